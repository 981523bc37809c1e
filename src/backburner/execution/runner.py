"""Claims pending runs, executes them, and records how they ended. The engine has one; so has every `TaskRunner`.

It claims only runs of its own queue and never more than its cap. Results that it cannot write (disk full) are kept and retried.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from backburner.core.claims import ClaimedRun, LogEnd, Recheck, RunResult
from backburner.core.errors import LedgerUnavailable, StaleRun
from backburner.core.formatting import CPU_TIME_UP, duration
from backburner.core.models import SANDBOX, Clock, ProcessId, Run, Task
from backburner.core.output_excerpt import excerpt
from backburner.core.ports import TEMPORARY_ERRORS, CannotStart, Executor, Handle, Outcome, StartLater, Suspended
from backburner.core.states import Result, RunState, WaitKind
from backburner.core.store_ports import LedgerQueries, RunnerQueue
from backburner.execution.delays import Delays
from backburner.system import log_file, processes, run_files, run_inspection
from backburner.system.home import Home
from backburner.system.sandbox_environment import MAX_FILE_BYTES

log = logging.getLogger("backburner")

_RETRY_DELAY = 1.0
_ADMISSION_INTERVAL = 0.5  # seconds between two starts while capacity limits are set, so that load and memory are up to date
_MAX_SLEEP = 30.0  # seconds, so that a changed clock or a suspended machine is noticed
_FILE_TOO_LARGE = 128 + 25
_RECORD_DELAY = 0.05  # seconds: many commands have ended by then and need not be recorded as running
_BIG_LOG_BYTES = 1 << 20
_KILLED, _TERMINATED = 128 + 9, 128 + 15


class _Live(NamedTuple):
    work: ClaimedRun
    handle: Handle
    cancelled: "asyncio.Future[None]"
    supervisor: "asyncio.Task[None]"


class Runner:
    """`tick()` does everything that is due now and returns; the ends of commands are handled in the event loop."""

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
        placed: Callable[[ClaimedRun], ClaimedRun] = lambda work: work,
        recheck: Callable[[ClaimedRun], Recheck] = lambda work: Recheck(work.run.sandbox),
        admit: Callable[[int], int] = lambda wanted: wanted,
        has_begun: Callable[[ClaimedRun], bool] = lambda work: False,
        give_back: Callable[[ClaimedRun, Outcome], bool] = lambda work, outcome: False,
    ) -> None:
        """`has_begun` tells whether a run that was just claimed has begun before, and must only be watched.

        `give_back` queues a run again that this host could not run to its end, if that may be; it is then not recorded as ended.
        """
        self.cap, self.grace = cap, grace
        self._queue, self._queries, self._executor, self._home, self._clock = queue, queries, executor, home, clock
        self._runner, self._owner = runner, owner
        self._changed, self._placed, self._recheck, self._admit = changed, placed, recheck, admit
        self._has_begun, self._give_back = has_begun, give_back
        self._live: dict[str, _Live] = {}
        self._ended: list[tuple[Task, RunResult]] = []
        self._delayed = Delays(self._retry_start, self.tick)  # claimed, but the machine has no capacity yet
        self._settling: asyncio.TimerHandle | asyncio.Handle | None = None
        self._due: asyncio.TimerHandle | None = None  # the next tick, for runs that are not due or not admitted yet
        self._stopping = False

    @property
    def busy(self) -> bool:
        return bool(self._live or self._ended or self._delayed)

    @property
    def owner(self) -> ProcessId:
        return self._owner

    def tick(self) -> None:
        """Stop runs whose cancellation was requested, then start as many runs as there is capacity for."""
        try:
            self._handle_cancels()
            now = self._clock()
            claimed = self._queue.claim(self._runner, self._owner, self._capacity(now), now)
            self._begin(claimed, now)
            if claimed:
                self._changed()
        except LedgerUnavailable as error:
            log.warning("%s", error)
            asyncio.get_running_loop().call_later(_RETRY_DELAY, self.tick)

    def _begin(self, claimed: Sequence[ClaimedRun], now: int) -> None:
        """Start claimed runs, and schedule the next tick if a run will be due."""
        for work in claimed:
            self._start(work)
        if self.full:
            return  # the next end of a run triggers another claim
        try:
            if (due := self._queue.next_due(self._runner, now)) is not None:
                self._schedule_tick(min(_MAX_SLEEP, (due - now) / 1000))
        except LedgerUnavailable as error:
            log.warning("%s", error)
            self._schedule_tick(_RETRY_DELAY)

    def _capacity(self, now: int) -> int:
        """How many more runs may start now: by number, and by the capacity of the machine."""
        ending = sum(ending.run_id in self._live for _, ending in self._ended)
        free = self.cap - len(self._live) + ending - len(self._delayed)
        if self._stopping or self._delayed or free <= 0:
            return 0
        if (admitted := self._admit(free)) < free and self._queue.queued(self._runner, now, 1):
            self._schedule_tick(_ADMISSION_INTERVAL)
        return admitted

    def _schedule_tick(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._due and loop.time() < self._due.when() <= loop.time() + seconds:
            return  # an earlier tick is already scheduled
        if self._due:
            self._due.cancel()
        self._due = loop.call_later(max(0.0, seconds), self.tick)

    @property
    def full(self) -> bool:
        return len(self._live) + len(self._delayed) >= self.cap

    @property
    def has_room(self) -> bool:
        """Whether one more run could start immediately."""
        return not self._stopping and not self._delayed and not self.full and self._admit(1) > 0

    def start(self, work: ClaimedRun) -> None:
        """Start a run that was just submitted and claimed; it is not checked for changes since its approval."""
        self._start(work, just_approved=True)
        self._changed()

    def take_over(self, run: Run) -> None:
        """Take over a run whose owner has died: watch it, record its end, or start it if it never started."""
        try:
            work = self._queue.adopt(run, self._owner)
        except StaleRun:
            return
        work = work._replace(run=work.run._replace(owner=run.owner))  # to know in which boot it ran
        try:
            handle = self._executor.attach(work)
        except Exception:  # a run that cannot be examined must not delay the others
            log.exception("%s cannot be taken over yet, trying again", run.run_id)
            asyncio.get_running_loop().call_later(_RETRY_DELAY, self._changed)
            return
        if handle is None:
            self._start(work)
        else:
            self._supervise(work, handle)

    def owns(self, run_id: str) -> bool:
        """Whether a run is watched here, waits here to be started, or has ended and must only be written."""
        return run_id in self._live or run_id in self._delayed or any(ending.run_id == run_id for _, ending in self._ended)

    def _handle_cancels(self) -> None:
        if not self._live and not self._delayed:
            return
        for run_id in self._queue.cancel_requests():
            if run_id in self._live:
                _mark_done(self._live[run_id].cancelled)
            elif work := self._delayed.drop(run_id):
                self._cancel_unstarted(work)

    def _start(self, work: ClaimedRun, just_approved: bool = False) -> None:
        """Start a claimed run. After a temporary failure it is retried, so that no claimed run is lost."""
        folder = self._home.folder(work.run.folder)
        try:
            if self._has_begun(work):
                self._watch_begun(work)
                return
            work = self._placed(work)
            checked = Recheck(work.run.sandbox) if just_approved else self._recheck(work)
            if checked.reason is not None:
                log.warning("%s waits for approval: %s", work.run.run_id, checked.reason)
                asked = checked.fingerprint
                self._queue.suspend(work.run.run_id, self._owner, checked.reason, self._clock(), WaitKind.APPROVAL, asked=asked)
                return
            if checked.sandbox != work.run.sandbox:
                self._queue.record_sandbox(work.run.run_id, self._owner, checked.sandbox)
                work = work._replace(run=work.run._replace(sandbox=checked.sandbox))
            if checked.rule:
                work = work._replace(task=work.task._replace(decision=work.task.decision._replace(rule=checked.rule)))
            handle = self._executor.launch(work)
        except CannotStart as error:
            self._fail_start(work, folder, error)
            return
        except (StartLater, LedgerUnavailable) as error:
            self._postpone(work, str(error))
            return
        except StaleRun:
            return  # another process owns it
        except Exception as error:
            log.exception("starting %s failed", work.run.run_id)
            handle = self._executor.attach(work)
            if handle is None and isinstance(error, OSError) and error.errno in TEMPORARY_ERRORS:
                self._postpone(work, str(error.strerror))
                return
            if handle is None:
                self._fail_start(work, folder, CannotStart(f"it could not be started: {error or type(error).__name__}"))
                return
        self._supervise(work, handle)
        asyncio.get_running_loop().call_later(_RECORD_DELAY, self._record, work, handle)

    def _watch_begun(self, work: ClaimedRun) -> None:
        """Watch a run that has begun before it was claimed, or record how it has ended."""
        if work.run.run_id not in self._live and (handle := self._executor.attach(work)):
            self._supervise(work, handle)

    def _retry_start(self, work: ClaimedRun) -> None:
        self._start(work._replace(run=work.run._replace(started_at=self._clock())))  # its timeout counts from now on

    def _postpone(self, work: ClaimedRun, reason: str) -> None:
        """Retry later. The reason is in the ledger; if the problem persists, the user is notified once for all delayed runs."""
        self._delayed.add(work)
        notify = self._delayed.persists and not self._delayed.notified
        if notify or not self._delayed.persists:
            log.warning("%s: %s; trying again", work.run.run_id, reason)
        try:
            self._queue.postpone(work.run.run_id, self._owner, reason, self._clock(), notify=notify)
            self._delayed.notified = self._delayed.notified or notify
        except StaleRun:
            self._delayed.drop(work.run.run_id)  # another process owns it
        except LedgerUnavailable as error:
            log.warning("%s", error)
        self._changed()

    def _record(self, work: ClaimedRun, handle: Handle) -> None:
        """Record the process of a run that is still active; for an ended one it is recorded with the end."""
        live = self._live.get(work.run.run_id)
        if live is None or live.supervisor.done() or (handle.process is None and not handle.is_starting):
            return
        if handle.process is None:
            asyncio.get_running_loop().call_later(_RECORD_DELAY, self._record, work, handle)
            return
        with contextlib.suppress(StaleRun, LedgerUnavailable):
            self._queue.record_process(work.run.run_id, self._owner, handle.process)
        self._write_files(work.task, work.run._replace(process=handle.process))
        self._changed()

    def _fail_start(self, work: ClaimedRun, folder: str, error: CannotStart) -> None:
        """End a run whose command cannot be started: with the exit code that a shell would give, and the reason in its log."""
        with contextlib.suppress(OSError):
            os.makedirs(folder, 0o700, exist_ok=True)
            with open(os.path.join(folder, "output.log"), "a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"backburner: {error}\n")
        ending = RunResult(work.run.run_id, RunState.FAILED, Result.UNSTARTED, self._clock(), error.exit_code, str(error), None, 0)
        self._conclude(work, ending)

    def _supervise(self, work: ClaimedRun, handle: Handle) -> None:
        cancelled = asyncio.get_running_loop().create_future()
        if work.run.cancel_requested_at is not None:
            _mark_done(cancelled)
        task = asyncio.get_running_loop().create_task(self._watch(work, handle, cancelled))
        task.add_done_callback(lambda done: self._supervisor_ended(work, done))
        self._live[work.run.run_id] = _Live(work, handle, cancelled, task)
        if work.task.spec.command.ready_when is not None and work.run.ready_at is None:
            ready = asyncio.get_running_loop().create_task(self._await_ready(work, handle, work.task.spec.command.ready_when))
            task.add_done_callback(lambda _: ready.cancel())

    async def _await_ready(self, work: ClaimedRun, handle: Handle, when: str) -> None:
        if not await handle.ready(when):
            log.warning("%s: '%s' cannot be used to detect whether it is ready", work.run.run_id, when)
            return
        with contextlib.suppress(StaleRun):
            self._queue.record_ready(work.run.run_id, self._owner, self._clock())
        self._changed()

    def _supervisor_ended(self, work: ClaimedRun, supervisor: "asyncio.Task[None]") -> None:
        """After an internal error in the supervisor of a run: log it and watch the run again."""
        error = None if supervisor.cancelled() else supervisor.exception()
        if self._stopping or (error is None and not supervisor.cancelled()):
            return
        log.error("watching %s failed", work.run.run_id, exc_info=error)
        asyncio.get_running_loop().call_later(_RETRY_DELAY, self._watch_again, work)

    def _watch_again(self, work: ClaimedRun) -> None:
        try:
            handle = self._executor.attach(work)
        except Exception:
            log.exception("%s cannot be watched yet, trying again", work.run.run_id)
            asyncio.get_running_loop().call_later(_RETRY_DELAY, self._watch_again, work)
            return
        if handle:
            self._supervise(work, handle)
        else:  # nothing is left to watch
            self._live.pop(work.run.run_id, None)
            error = "it was interrupted by an internal error; see the engine log"
            self._conclude(work, RunResult(work.run.run_id, RunState.FAILED, Result.LOST, self._clock(), error=error))

    async def _watch(self, work: ClaimedRun, handle: Handle, cancelled: "asyncio.Future[None]") -> None:
        """Wait for the end of one run: its own, a cancel, or its timeout, whichever comes first."""
        end = asyncio.ensure_future(handle.ended())
        try:
            await asyncio.wait({end, cancelled}, timeout=self._remaining(work), return_when=asyncio.FIRST_COMPLETED)
            outcome = None
            if not end.done():
                outcome = await self._stop(work, handle)
            stopped = outcome is not None
            try:
                outcome = outcome or await end
            except Suspended as suspended:
                self._suspend(work, suspended)
                return
            except (CannotStart, StartLater) as error:
                self._not_started(work, error, cancelled.done())
                return
            if not stopped and _stopped_before(work.run, outcome):
                stopped = True
                if outcome.result == Result.LOST:  # SIGKILL also killed its shim, which would have written the exit code
                    outcome = outcome._replace(result=Result.SIGNAL, exit_code=_KILLED, error=None)
        finally:
            end.cancel()
        if await self._was_given_back(work, outcome):
            return
        state, result = _final_state(outcome, stopped, cancelled.done())
        summary, lines, text = await self._close(handle)
        error = outcome.error
        if outcome.exit_code == CPU_TIME_UP and (seconds := work.task.spec.command.limits.cpu_seconds):
            error = f"it used up its CPU time of {duration(seconds * 1000)}"
        if outcome.problem == SANDBOX and (stopped or work.task.is_recurring):
            outcome = outcome._replace(problem=None)
        if outcome.exit_code == _FILE_TOO_LARGE and work.task.is_unapproved:
            error = f"it wrote a file larger than {MAX_FILE_BYTES >> 30} GiB, the limit for a command that nobody approved"
        if result in (Result.TIMEOUT, Result.AMBIGUOUS):
            error = f"timed out after {duration(work.task.spec.timeout_ms)}"
        ended_at = outcome.ended_at or self._clock()
        folder, digest = self._home.folder(work.run.folder), None
        if work.task.is_recurring:
            digest = outcome.digest or await asyncio.to_thread(log_file.digest, folder)
        ending = RunResult(
            work.run.run_id,
            state,
            result,
            ended_at,
            outcome.exit_code,
            error,
            summary,
            lines,
            artifacts=run_inspection.artifacts(folder),
            process=handle.process,
            answer=outcome.answer,
            output=excerpt(text, work.task.task_id, failed=state == RunState.FAILED) if state != RunState.CANCELLED else "",
            usage=outcome.usage,
            digest=digest,
            report=outcome.report,
            problem=outcome.problem,
            notes=outcome.notes,
        )
        self._conclude(work, ending)

    async def _was_given_back(self, work: ClaimedRun, outcome: Outcome) -> bool:
        while True:
            try:
                if not self._give_back(work, outcome):
                    return False
                break
            except LedgerUnavailable as error:
                log.warning("%s", error)
                await asyncio.sleep(_RETRY_DELAY)
        self._live.pop(work.run.run_id, None)
        self._changed()
        self.tick()
        return True

    def _not_started(self, work: ClaimedRun, error: CannotStart | StartLater, cancelled: bool) -> None:
        """Handle a run that turned out not to have started."""
        self._live.pop(work.run.run_id, None)
        if cancelled:
            self._cancel_unstarted(work)
        elif isinstance(error, StartLater):
            self._postpone(work, str(error))
        else:
            self._fail_start(work, self._home.folder(work.run.folder), error)

    def _cancel_unstarted(self, work: ClaimedRun) -> None:
        error = "cancelled before it started"
        self._conclude(work, RunResult(work.run.run_id, RunState.CANCELLED, Result.UNSTARTED, self._clock(), error=error))

    def _suspend(self, work: ClaimedRun, suspended: Suspended) -> None:
        """Record that a run is suspended, and free its slot."""
        self._live.pop(work.run.run_id, None)
        try:
            self._queue.suspend(work.run.run_id, self._owner, str(suspended), self._clock(), suspended.kind, suspended.target)
        except LedgerUnavailable as error:
            log.warning("%s", error)
            asyncio.get_running_loop().call_later(_RETRY_DELAY, self._suspend, work, suspended)
            return
        except StaleRun:
            return
        self._changed()
        self.tick()

    async def _stop(self, work: ClaimedRun, handle: Handle) -> Outcome | None:
        """Stop the command; retries until all its processes are gone."""
        while True:
            try:
                return await handle.stop(self.grace)
            except (CannotStart, StartLater):
                return None  # it was never started
            except Exception as error:
                log.error("%s cannot be stopped yet, trying again: %s", work.run.run_id, error)
                await asyncio.sleep(_RETRY_DELAY)

    async def _close(self, handle: Handle) -> LogEnd:
        if getattr(handle, "log_size", 0) > _BIG_LOG_BYTES:
            return await asyncio.to_thread(handle.close)
        return handle.close()

    def _remaining(self, work: ClaimedRun) -> float | None:
        if work.task.spec.timeout_ms is None:
            return None
        spent = max(0, self._clock() - (work.run.started_at or 0))
        return max(0.0, work.task.spec.timeout_ms - spent) / 1000

    def _conclude(self, work: ClaimedRun, ending: RunResult) -> None:
        """Write the files of an ended run, then queue its end for the ledger: a reader who sees the end there finds complete files."""
        ending = ending.storable()
        end = work.run.end._replace(result=ending.result, exit_code=ending.exit_code, summary=ending.summary, lines=ending.lines)
        ended_at = max(ending.ended_at, work.run.started_at or 0)
        run = work.run._replace(
            state=ending.state, end=end, error=ending.error, ended_at=ended_at, process=ending.process or work.run.process
        )
        self._write_files(work.task, run)
        self._ended.append((work.task, ending))
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        """Write all pending ends and claim as many runs as there is capacity for now, in one transaction."""
        self._settling = None
        now = self._clock()
        ended: list[tuple[Task, RunResult]] = []
        try:
            capacity = self._capacity(now)
            ended, self._ended = self._ended, []
            claimed = self._queue.settle([ending for _, ending in ended], self._owner, runner=self._runner, limit=capacity, now=now).claimed
        except LedgerUnavailable as error:
            self._ended = ended + self._ended
            log.warning("%s; the results of %d runs are kept and written later", error, len(self._ended))
            self._settling = asyncio.get_running_loop().call_later(_RETRY_DELAY, self._settle)
            return
        for _, ending in ended:
            self._live.pop(ending.run_id, None)
        self._changed()
        self._begin(claimed, now)
        if self._delayed and not self._stopping:
            self._delayed.retry()  # the runs that ended may have freed resources
        for task, ending in ended:
            with contextlib.suppress(LedgerUnavailable):  # the failed dependents are in the ledger; these files are copies
                for other, run in self._queries.failed_dependents(task.task_id) if ending.state != RunState.COMPLETED else ():
                    if run:
                        self._write_files(other, run)

    def _write_files(self, task: Task, run: Run) -> None:
        folder = self._home.folder(run.folder)
        try:
            run_files.write(folder, task, run)
        except (OSError, ValueError) as error:
            log.warning("%s: %s", folder, error)

    async def stop(self) -> None:
        """Release everything: commands continue, and the next process takes them over."""
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


def _mark_done(event: "asyncio.Future[None]") -> None:
    if not event.done():
        event.set_result(None)


def _stopped_before(run: Run, outcome: Outcome) -> bool:
    """Whether a run that was taken over, and of which nothing is left, was stopped by the cancel that its dead owner had started."""
    if run.cancel_requested_at is None:
        return False
    before = run.process or run.owner
    gone_in_this_boot = outcome.result == Result.LOST and (before is None or before.boot == processes.boot_id())
    return gone_in_this_boot or outcome.exit_code in (_KILLED, _TERMINATED)


def _final_state(outcome: Outcome, stopped: bool, cancelled: bool) -> tuple[RunState, Result]:
    """The state and result of a run, from the outcome of its command."""
    if stopped and cancelled:
        return RunState.CANCELLED, outcome.result
    if stopped:
        return RunState.FAILED, Result.AMBIGUOUS if outcome.result == Result.SIGNAL and outcome.problem is None else Result.TIMEOUT
    done = outcome.result == Result.EXIT and outcome.exit_code == 0
    return RunState.COMPLETED if done else RunState.FAILED, outcome.result
