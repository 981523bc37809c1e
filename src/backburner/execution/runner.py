"""Claims pending runs, has them executed, and writes how they ended. The engine has one; so has every `TaskRunner`.

It claims only what is meant for it and never more than its cap. What it cannot write (a full disk) it keeps and tries again.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from backburner.core.claims import ClaimedRun, RunResult
from backburner.core.errors import LedgerUnavailable, StaleRun
from backburner.core.formatting import duration
from backburner.core.models import Clock, ProcessId, Run, Task
from backburner.core.ports import TEMPORARY_ERRORS, CannotStart, Executor, Handle, Outcome, StartLater, Suspended
from backburner.core.states import Result, RunState, WaitKind
from backburner.core.store_ports import LedgerQueries, RunnerQueue
from backburner.execution.delays import Delays
from backburner.system import log_file as output
from backburner.system import processes as process
from backburner.system import run_files as folders
from backburner.system import run_inspection as signs
from backburner.system.home import Home
from backburner.system.unapproved import MAX_FILE_BYTES

log = logging.getLogger("backburner")

_RETRY_SECONDS = 1.0
_ADMISSION_SECONDS = 0.5  # how long to let the machine settle before one more is started
_LONGEST_SLEEP = 30.0  # seconds: a clock that was set, or a machine that slept, is noticed after that
_CPU_TIME_UP = 128 + 24
_FILE_TOO_LARGE = 128 + 25
_RECORD_SECONDS = 0.02  # many commands have ended by then, and need not be written down as running
_BIG_LOG = 1 << 20
_KILLED, _TERMINATED = 128 + 9, 128 + 15


class _Live(NamedTuple):
    work: ClaimedRun
    handle: Handle
    cancelled: asyncio.Event
    supervisor: "asyncio.Task[None]"


class Runner:
    """`tick()` does everything that is due now and returns; ends of commands come in by themselves."""

    def __init__(
        self,
        queue: RunnerQueue,
        queries: LedgerQueries,
        executor: Executor,
        home: Home,
        clock: Clock,
        *,
        runner: str,
        owner: ProcessId,
        cap: int,
        grace: float,
        changed: Callable[[], None],
        changed_since: Callable[[ClaimedRun], tuple[str, str] | None] = lambda work: None,
        admit: Callable[[int], int] = lambda wanted: wanted,
    ) -> None:
        self.cap, self.grace = cap, grace
        self._queue, self._queries, self._executor, self._home, self._clock = queue, queries, executor, home, clock
        self._runner, self._owner = runner, owner
        self._changed, self._changed_since, self._admit = changed, changed_since, admit
        self._live: dict[str, _Live] = {}
        self._ended: list[tuple[Task, RunResult]] = []
        self._delayed = Delays(self._start_again, self.tick)  # claimed, but the machine had no room yet
        self._settling: asyncio.TimerHandle | asyncio.Handle | None = None
        self._due: asyncio.TimerHandle | None = None  # the next look at what is not due or not admitted yet
        self._stopping = False

    @property
    def busy(self) -> bool:
        return bool(self._live or self._ended or self._delayed)

    @property
    def owner(self) -> ProcessId:
        return self._owner

    def tick(self) -> None:
        """Stop what is to be cancelled, then start what there is room for."""
        try:
            self._notice_cancels()
            now = self._clock()
            self._begin(self._queue.claim(self._runner, self._owner, self._room(now), now), now)
        except LedgerUnavailable as error:
            log.warning("%s", error)
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self.tick)

    def _begin(self, claimed: Sequence[ClaimedRun], now: int) -> None:
        """Start what was claimed, and see to it that there is a next look where something will be due."""
        for work in claimed:
            self._start(work)
        if claimed:
            self._changed()
        if self.full:
            return  # it looks again at the next end
        try:
            if (due := self._queue.next_due(self._runner, now)) is not None:
                self._retry(min(_LONGEST_SLEEP, (due - now) / 1000))
        except LedgerUnavailable as error:
            log.warning("%s", error)
            self._retry(_RETRY_SECONDS)

    def _room(self, now: int) -> int:
        """How many more may start now: by count, and by what the machine can bear."""
        ending = sum(ending.run_id in self._live for _, ending in self._ended)
        room = self.cap - len(self._live) + ending - len(self._delayed)
        if self._stopping or self._delayed or room <= 0 or not self._queue.queued(self._runner, now, 1):
            return 0
        if (admitted := self._admit(room)) < room:
            self._retry(_ADMISSION_SECONDS)
        return admitted

    def _retry(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._due and loop.time() < self._due.when() <= loop.time() + seconds:
            return  # sooner than that anyway
        if self._due:
            self._due.cancel()
        self._due = loop.call_later(max(0.0, seconds), self.tick)

    @property
    def full(self) -> bool:
        return len(self._live) + len(self._delayed) >= self.cap

    @property
    def has_room(self) -> bool:
        """Whether one more could start at once."""
        return not self._stopping and not self._delayed and not self.full and self._admit(1) > 0

    def start(self, work: ClaimedRun) -> None:
        """Start what was submitted and claimed in this very moment: what was approved is what runs."""
        self._start(work, just_approved=True)
        self._changed()

    def take_over(self, run: Run) -> None:
        """Go on with a run whose owner is dead: watch it, write down its end, or start it if it never began."""
        try:
            work = self._queue.adopt(run, self._owner)
        except StaleRun:
            return
        work = work._replace(run=work.run._replace(owner=run.owner))  # in whose boot it ran
        try:
            handle = self._executor.attach(work)
        except Exception:  # one that cannot be examined must not keep the others waiting
            log.exception("%s cannot be taken over yet, trying again", run.run_id)
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._changed)
            return
        if handle is None:
            self._start(work)
        else:
            self._supervise(work, handle)

    def owns(self, run_id: str) -> bool:
        """Whether a run is watched here, waits here to be started, or has ended and only has to be written."""
        return run_id in self._live or run_id in self._delayed or any(ending.run_id == run_id for _, ending in self._ended)

    def _notice_cancels(self) -> None:
        if not self._live and not self._delayed:
            return
        for run_id in self._queue.cancel_requests():
            if run_id in self._live:
                self._live[run_id].cancelled.set()
            elif work := self._delayed.drop(run_id):
                error = "cancelled before it started"
                self._conclude(work, RunResult(run_id, RunState.CANCELLED, Result.UNSTARTED, self._clock(), error=error))

    def _start(self, work: ClaimedRun, just_approved: bool = False) -> None:
        """Start a claimed run; what stands in the way for now is tried again, so that none is claimed and forgotten."""
        folder = self._home.folder(work.run.folder)
        try:
            if not just_approved and (changed := self._changed_since(work)):
                reason, fingerprint = changed
                log.warning("%s waits for approval: %s", work.run.run_id, reason)
                self._queue.suspend(work.run.run_id, self._owner, reason, self._clock(), WaitKind.APPROVAL, asked=fingerprint)
                return
            handle = self._executor.launch(work)
        except CannotStart as error:
            self._refuse(work, folder, error)
            return
        except (StartLater, LedgerUnavailable) as error:
            self._postpone(work, str(error))
            return
        except StaleRun:
            return  # somebody else has it
        except Exception as error:
            log.exception("starting %s failed", work.run.run_id)
            handle = self._executor.attach(work)
            if handle is None and isinstance(error, OSError) and error.errno in TEMPORARY_ERRORS:
                self._postpone(work, str(error.strerror))
                return
            if handle is None:
                self._refuse(work, folder, CannotStart(f"it could not be started: {error or type(error).__name__}"))
                return
        self._supervise(work, handle)
        asyncio.get_running_loop().call_later(_RECORD_SECONDS, self._record, work, handle)

    def _start_again(self, work: ClaimedRun) -> None:
        self._start(work._replace(run=work.run._replace(started_at=self._clock())))  # its time counts from now on

    def _postpone(self, work: ClaimedRun, reason: str) -> None:
        """Try again later. Why it waits is in the ledger; a person is told once, where that lasts, however many wait."""
        self._delayed.add(work)
        tell = self._delayed.persists and not self._delayed.told
        if tell or not self._delayed.persists:
            log.warning("%s: %s; trying again", work.run.run_id, reason)
        try:
            self._queue.postpone(work.run.run_id, self._owner, reason, self._clock(), tell=tell)
            self._delayed.told = self._delayed.told or tell
        except StaleRun:
            self._delayed.drop(work.run.run_id)  # somebody else has it
        except LedgerUnavailable as error:
            log.warning("%s", error)
        self._changed()

    def _record(self, work: ClaimedRun, handle: Handle) -> None:
        """Write down which process a run became; what has ended meanwhile said so with its end."""
        live = self._live.get(work.run.run_id)
        if live is None or live.supervisor.done() or handle.process is None:
            return
        with contextlib.suppress(StaleRun, LedgerUnavailable):
            self._queue.record_process(work.run.run_id, self._owner, handle.process)
        self._write_files(work.task, work.run._replace(process=handle.process))
        self._changed()

    def _refuse(self, work: ClaimedRun, folder: str, error: CannotStart) -> None:
        """A command that cannot be started has ended: with the code a shell would give, and the reason in its log."""
        with contextlib.suppress(OSError):
            os.makedirs(folder, 0o700, exist_ok=True)
            with open(os.path.join(folder, "output.log"), "a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"backburner: {error}\n")
        ending = RunResult(work.run.run_id, RunState.FAILED, Result.UNSTARTED, self._clock(), error.exit_code, str(error), None, 0)
        self._conclude(work, ending)

    def _supervise(self, work: ClaimedRun, handle: Handle) -> None:
        cancelled = asyncio.Event()
        if work.run.cancel_requested_at is not None:
            cancelled.set()
        task = asyncio.get_running_loop().create_task(self._watch(work, handle, cancelled))
        task.add_done_callback(lambda done: self._failed(work, done))
        self._live[work.run.run_id] = _Live(work, handle, cancelled, task)
        if work.task.spec.command.ready_when is not None and work.run.ready_at is None:
            ready = asyncio.get_running_loop().create_task(self._await_ready(work, handle, work.task.spec.command.ready_when))
            task.add_done_callback(lambda _: ready.cancel())

    async def _await_ready(self, work: ClaimedRun, handle: Handle, when: str) -> None:
        if not await handle.ready(when):
            log.warning("%s: whether it is ready cannot be told by '%s'", work.run.run_id, when)
            return
        with contextlib.suppress(StaleRun):
            self._queue.record_ready(work.run.run_id, self._owner, self._clock())
        self._changed()

    def _failed(self, work: ClaimedRun, supervisor: "asyncio.Task[None]") -> None:
        """A mistake of ours must not leave a run unwatched: say it, and look at the run afresh."""
        mistake = None if supervisor.cancelled() else supervisor.exception()
        if self._stopping or (mistake is None and not supervisor.cancelled()):
            return
        log.error("watching %s failed", work.run.run_id, exc_info=mistake)
        asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._watch_again, work)

    def _watch_again(self, work: ClaimedRun) -> None:
        try:
            handle = self._executor.attach(work)
        except Exception:
            log.exception("%s cannot be watched yet, trying again", work.run.run_id)
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._watch_again, work)
            return
        if handle:
            self._supervise(work, handle)
        else:  # nothing of it is left to be watched
            self._live.pop(work.run.run_id, None)
            error = "it was interrupted by a mistake of ours; the log of the engine has more"
            self._conclude(work, RunResult(work.run.run_id, RunState.FAILED, Result.LOST, self._clock(), error=error))

    async def _watch(self, work: ClaimedRun, handle: Handle, cancelled: asyncio.Event) -> None:
        """See one run to its end, whichever comes first: its own, a cancel, or its timeout."""
        end = asyncio.ensure_future(handle.ended())
        cancel = asyncio.ensure_future(cancelled.wait())
        try:
            await asyncio.wait({end, cancel}, timeout=self._remaining(work), return_when=asyncio.FIRST_COMPLETED)
            outcome = None
            if not end.done():
                outcome = await self._stop(work, handle)
            stopped = outcome is not None
            try:
                outcome = outcome or await end
            except Suspended as parked:
                self._suspend(work, parked)
                return
            if not stopped and _stopped_before(work.run, outcome):
                stopped = True
                if outcome.result == Result.LOST:  # SIGKILL took its shim too, which would have written the code
                    outcome = outcome._replace(result=Result.SIGNAL, exit_code=_KILLED, error=None)
        finally:
            cancel.cancel()
            end.cancel()
        state, result = _meaning(outcome, stopped, cancelled.is_set())
        summary, lines = await self._close(handle)
        error = outcome.error
        if outcome.exit_code == _CPU_TIME_UP and (seconds := work.task.spec.command.limits.cpu_seconds):
            error = f"it used up its CPU time of {duration(seconds * 1000)}"
        if outcome.exit_code == _FILE_TOO_LARGE and work.task.is_unapproved:
            error = f"it wrote a file of more than {MAX_FILE_BYTES >> 30} GiB, which a command that nobody approved may not"
        if result in (Result.TIMEOUT, Result.AMBIGUOUS):
            error = f"timed out after {duration(work.task.spec.timeout_ms)}"
        ended_at = outcome.ended_at or self._clock()
        ending = RunResult(work.run.run_id, state, result, ended_at, outcome.exit_code, error, summary, lines, process=handle.process)
        ending = ending._replace(answer=outcome.answer, usage=outcome.usage, report=outcome.report, problem=outcome.problem)
        if work.task.is_recurring:
            digest = outcome.digest or await asyncio.to_thread(output.digest, self._home.folder(work.run.folder))
            ending = ending._replace(digest=digest)
        run = work.run._replace(process=handle.process)
        self._conclude(work._replace(run=run), ending._replace(artifacts=signs.artifacts(self._home.folder(run.folder))))

    def _suspend(self, work: ClaimedRun, parked: Suspended) -> None:
        """A run that cannot go on for now gives its place back."""
        self._live.pop(work.run.run_id, None)
        try:
            self._queue.suspend(work.run.run_id, self._owner, str(parked), self._clock(), parked.kind, parked.target)
        except LedgerUnavailable as error:
            log.warning("%s", error)
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._suspend, work, parked)
            return
        except StaleRun:
            return
        self._changed()
        self.tick()

    async def _stop(self, work: ClaimedRun, handle: Handle) -> Outcome | None:
        """End the command, however long it takes to be sure that it is gone."""
        while True:
            try:
                return await handle.stop(self.grace)
            except Exception as error:
                log.error("%s cannot be ended yet, trying again: %s", work.run.run_id, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _close(self, handle: Handle) -> tuple[str | None, int | None]:
        if getattr(handle, "log_size", 0) > _BIG_LOG:
            return await asyncio.to_thread(handle.close)
        return handle.close()

    def _remaining(self, work: ClaimedRun) -> float | None:
        if work.task.spec.timeout_ms is None:
            return None
        spent = max(0, self._clock() - (work.run.started_at or 0))
        return max(0.0, work.task.spec.timeout_ms - spent) / 1000

    def _conclude(self, work: ClaimedRun, ending: RunResult) -> None:
        """Files first, then the ledger: who learns of the end from the ledger finds the files complete."""
        end = work.run.end._replace(result=ending.result, exit_code=ending.exit_code, summary=ending.summary, lines=ending.lines)
        ended_at = max(ending.ended_at, work.run.started_at or 0)
        run = work.run._replace(state=ending.state, end=end, error=ending.error, ended_at=ended_at)
        self._write_files(work.task, run)
        self._ended.append((work.task, ending))
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        """Write all the ends that came in together and claim what they made room for, in one transaction."""
        self._settling = None
        now = self._clock()
        ended: list[tuple[Task, RunResult]] = []
        try:
            room = self._room(now)
            ended, self._ended = self._ended, []
            claimed = self._queue.settle([ending for _, ending in ended], self._owner, runner=self._runner, limit=room, now=now).claimed
        except LedgerUnavailable as error:
            log.warning("%s; the ends of %d runs wait", error, len(ended))
            self._ended = ended + self._ended
            self._settling = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._settle)
            return
        for _, ending in ended:
            self._live.pop(ending.run_id, None)
        self._changed()
        self._begin(claimed, now)
        if self._delayed and not self._stopping:
            self._delayed.again()  # what ended may have made room
        for task, ending in ended:
            with contextlib.suppress(LedgerUnavailable):  # what fell with it is in the ledger; these are copies
                for other, run in self._queries.failed_dependents(task.task_id) if ending.state != RunState.COMPLETED else ():
                    if run:
                        self._write_files(other, run)

    def _write_files(self, task: Task, run: Run) -> None:
        folder = self._home.folder(run.folder)
        try:
            folders.write(folder, task, run)
        except (OSError, ValueError) as error:
            log.warning("%s: %s", folder, error)

    async def stop(self) -> None:
        """Let go of everything: commands live on, and whoever comes next takes them over."""
        self._stopping = True
        if self._due:
            self._due.cancel()
        self._delayed.stop()
        if self._settling:
            self._settling.cancel()
            self._settle()
        supervisors = [live.supervisor for live in self._live.values()]
        for supervisor in supervisors:
            supervisor.cancel()
        await asyncio.gather(*supervisors, return_exceptions=True)
        self._live.clear()


def _stopped_before(run: Run, outcome: Outcome) -> bool:
    """Whether a run that was taken over, and of which nothing is left, had died of the cancel that its dead owner was carrying out."""
    if run.cancel_requested_at is None:
        return False
    before = run.process or run.owner
    gone_in_this_boot = outcome.result == Result.LOST and (before is None or before.boot == process.boot_id())
    return gone_in_this_boot or outcome.exit_code in (_KILLED, _TERMINATED)


def _meaning(outcome: Outcome, stopped: bool, cancelled: bool) -> tuple[RunState, Result]:
    """What the way a command ended means for its run."""
    if stopped and cancelled:
        return RunState.CANCELLED, outcome.result
    if stopped:
        return RunState.FAILED, Result.AMBIGUOUS if outcome.result == Result.SIGNAL and outcome.problem is None else Result.TIMEOUT
    done = outcome.result == Result.EXIT and outcome.exit_code == 0
    return RunState.COMPLETED if done else RunState.FAILED, outcome.result
