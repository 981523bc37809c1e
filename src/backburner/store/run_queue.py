"""Runs in the ledger: the queue of pending runs, active runs, and waiting runs.

Every method is one transaction, guarded by the expected state and owner: StaleRun if either has changed.
"""

from collections.abc import Sequence

from backburner.core import recurring
from backburner.core.claims import ClaimedRun, RunResult, Settled
from backburner.core.errors import StaleRun
from backburner.core.formatting import delay_text, short_fingerprint
from backburner.core.light_typing import TYPE_CHECKING, assert_never
from backburner.core.masking import masked_line
from backburner.core.models import ENGINE, EXTERNAL, Entry, ProcessId, Run
from backburner.core.queues import at_host, base_of, is_queue
from backburner.core.states import LIVE, RUNNING_STATES, NoticeKind, Result, RunEvent, RunState, TaskState, WaitKind, advance
from backburner.core.terminal_text import shortened
from backburner.store.claims import QUEUE
from backburner.store.rows import ACTIVE_RUNS, LIVE_RUNS

if TYPE_CHECKING:
    from backburner.store.claims import Claims
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter
    from backburner.store.notice_writer import NoticeWriter
    from backburner.store.run_endings import RunEndings
    from backburner.store.task_reader import TaskReader
    from backburner.store.waiting_runs import WaitingRuns

_LIVE_HERE = "run_id = ? AND owner = ? AND ended_at IS NULL"  # another host may have given it up


class RunQueueRepository:
    """The life cycle of a run, from the queue to its end."""

    def __init__(
        self,
        db: "Database",
        reader: "TaskReader",
        events: "EventWriter",
        notices: "NoticeWriter",
        claims: "Claims",
        waiting: "WaitingRuns",
        endings: "RunEndings",
    ) -> None:
        self._db, self._reader, self._events, self._notices = db, reader, events, notices
        self._claims, self._waiting, self._endings = claims, waiting, endings
        self._own_engine = at_host(ENGINE, db.host_id)
        self._here, self._host = (" AND host = ?", (db.host_id,)) if db.host_id else ("", ())

    def claim(self, runner: str, owner: ProcessId, limit: int, now: int) -> Sequence[ClaimedRun]:
        """Assign up to `limit` pending runs to `owner`, by priority and then oldest first. On disk before anything is started."""
        if limit <= 0 or not self.queued(runner, now, 1):
            return []
        with self._db.transaction():
            return self._claims.claim(runner, owner, limit, now)

    def queued(self, runner: str, now: int, limit: int) -> Sequence[str]:
        """The ids of the runs to claim next: by priority, then oldest first."""
        return self._claims.queued(runner, now, limit)

    def next_due(self, runner: str, now: int) -> int | None:
        """The earliest start time of the pending runs that may not start yet."""
        return self._db.one(f"SELECT min(due_at) {QUEUE} AND due_at IS NOT NULL AND due_at > ?", (at_host(runner, self._db.host_id), now))[
            0
        ]

    def settle(
        self,
        endings: Sequence[RunResult],
        owner: ProcessId,
        *,
        runner: str = "",
        limit: int = 0,
        run_ids: Sequence[str] = (),
        now: int = 0,
    ) -> Settled:
        """Write the ends of runs with their events and notices, and claim runs that may start now: one transaction, one sync.

        Up to `limit` runs of the queue `runner` are claimed, and those of `run_ids` that are pending. Ends of runs that `owner` no longer
        owns are ignored.
        """
        with self._db.transaction():
            settled = []
            for ending in endings:
                entry = self._reader.by_latest_run(ending.run_id)
                if entry and entry.run and entry.run.owner == owner and entry.run.state in LIVE:
                    self._endings.end(entry, ending)
                    settled.append(ending.run_id)
            claimed = [*self._claims.claim(runner, owner, limit, now), *self._claims.claim_these(run_ids, owner, now)]
            return Settled(settled, claimed)

    def adopt(self, run: Run, owner: ProcessId) -> ClaimedRun:
        """Take over an active run whose owner process has died."""
        with self._db.transaction():
            adopted = self._db.write(
                "UPDATE runs SET owner = ?, runner = ? WHERE run_id = ? AND state = ? AND owner = ?",
                (str(owner), run.runner if is_queue(run.runner) else self._own_engine, run.run_id, run.state, str(run.owner)),
            )
            if not adopted:
                raise StaleRun(run_id=run.run_id)
        return self._claims.work(run.run_id)

    def release(self, runner: str) -> int:
        """Assign the unstarted runs of an embedding program that has died to the engine; returns how many."""
        with self._db.transaction():
            pending = self._db.write("UPDATE runs SET runner = ? WHERE state = 'pending' AND runner = ?", (self._own_engine, runner))
            return pending + self._db.write(
                f"UPDATE runs SET runner = ? WHERE {ACTIVE_RUNS} AND state = 'waiting' AND runner = ?", (self._own_engine, runner)
            )

    def cancel_requests(self) -> Sequence[str]:
        """The active runs of this host for which a cancel was requested."""
        requested = f"SELECT run_id FROM runs WHERE {ACTIVE_RUNS} AND cancel_requested_at IS NOT NULL{self._here}"
        return [row[0] for row in self._db.execute(requested, self._host)]

    def processes(self, pid: int) -> Sequence[ProcessId]:
        """The processes of live runs on this host that have this pid."""
        found = f"SELECT process FROM runs WHERE {ACTIVE_RUNS} AND process LIKE ?{self._here}"
        rows = self._db.execute(found, (f"{pid}:%", *self._host))
        return [ProcessId.parse(row[0]) for row in rows]

    def record_process(self, run_id: str, owner: ProcessId, process: ProcessId) -> None:
        """Record the process of a run. Not synced to disk: after a crash the process is found by its tag."""
        with self._db.transaction(durable=False):
            change = "process = ?, error = NULL"  # it may have been delayed before
            if not self._db.write(f"UPDATE runs SET {change} WHERE {_LIVE_HERE}", (str(process), run_id, str(owner))):
                raise StaleRun(run_id=run_id)

    def record_sandbox(self, run_id: str, owner: ProcessId, sandbox: str | None) -> None:
        """Record the sandbox that a claimed run starts in. Not synced to disk: a run that has not started is judged again."""
        with self._db.transaction(durable=False):
            if not self._db.write(f"UPDATE runs SET sandbox = ? WHERE {_LIVE_HERE}", (sandbox, run_id, str(owner))):
                raise StaleRun(run_id=run_id)

    def record_ready(self, run_id: str, owner: ProcessId, now: int) -> None:
        """Record that a server is ready. Not synced to disk: after a crash this is detected again."""
        with self._db.transaction(durable=False):
            ready = self._db.write(
                "UPDATE runs SET ready_at = ? WHERE run_id = ? AND owner = ? AND ready_at IS NULL AND ended_at IS NULL",
                (now, run_id, str(owner)),
            )
            if not ready:
                raise StaleRun(run_id=run_id)
            self._events.write(now, "run_ready", self._reader.task_of(run_id), run_id)

    def postpone(self, run_id: str, owner: ProcessId, reason: str, now: int, *, notify: bool) -> None:
        """Record why a claimed run cannot start yet; its start time is reset. With `notify`, the user gets a notice about it."""
        with self._db.transaction(durable=False):
            change = "error = ?, started_at = ?, process = NULL"
            claimed = "run_id = ? AND owner = ? AND state IN ('running', 'resumed')"
            if not self._db.write(f"UPDATE runs SET {change} WHERE {claimed}", (reason, now, run_id, str(owner))):
                raise StaleRun(run_id=run_id)
            if notify:
                task = self._reader.get(self._reader.task_of(run_id)).task
                self._events.write(now, "run_delayed", task.task_id, run_id, reason=reason)
                self._notices.write(task, None, delay_text(task.task_id, reason), now, NoticeKind.DELAYED, again=True)

    def suspend(
        self,
        run_id: str,
        owner: ProcessId,
        reason: str,
        now: int,
        kind: WaitKind = WaitKind.APPROVAL,
        target: str | None = None,
        asked: str | None = None,
    ) -> None:
        """Suspend a running run. `target` is the task or lane that it waits for, `asked` the fingerprint of what an approval would cover."""
        with self._db.transaction():
            row = self._db.one("SELECT state, task_id, runner, host FROM runs WHERE run_id = ? AND owner = ?", (run_id, str(owner)))
            if not row or row[0] not in RUNNING_STATES:
                raise StaleRun(run_id=run_id)
            before, task_id = RunState(row[0]), row[1]
            runner = at_host(base_of(row[2]), row[3]) if row[3] and is_queue(row[2]) else row[2]  # it continues where it began
            suspended = self._db.write(
                "UPDATE runs SET state = ?, error = ?, wait_kind = ?, wait_target = ?, reply = NULL, wait_fingerprint = ?, runner = ?"
                " WHERE run_id = ? AND state = ? AND owner = ?",
                (advance(before, RunEvent.SUSPENDED), reason, kind, target, asked, runner, run_id, before, str(owner)),
            )
            if not suspended:
                raise StaleRun(run_id=run_id)
            self._events.write(now, RunEvent.SUSPENDED, task_id, run_id, reason=reason)
            entry = self._reader.get(task_id)
            if entry.run and entry.run.cancel_requested_at is not None:  # a cancel was requested: it must not wait
                self._endings.end(entry, RunResult(run_id, RunState.CANCELLED, Result.SIGNAL, now, error="it was stopped"))
            elif self._is_over(task_id, kind, target):
                self._waiting.requeue(run_id, now, task_id=task_id)  # the other task ended before the run was suspended
            elif entry.task.is_recurring or (kind is WaitKind.APPROVAL and entry.task.spec.order.place):
                self._notify_waiting(entry, reason, kind, target, asked, now)

    def resume_suspended(self, run_id: str, now: int) -> None:
        """Requeue a run that waits for approval of a tool call, without an answer; StaleRun if it does not."""
        with self._db.transaction():
            row = self._db.one("SELECT task_id FROM runs WHERE run_id = ? AND state = 'waiting' AND wait_kind = 'tool'", (run_id,))
            if not row:
                raise StaleRun(run_id=run_id)
            self._waiting.requeue(run_id, now, task_id=row[0])

    def end_unobserved(self, error: str, now: int) -> int:
        """End every run of a ledger that comes from a backup as lost, if it may have continued after the backup; returns how many.

        Runs that wait for a person, for a later time or for such a run are kept: nothing starts them before that.
        """
        for_person = ", ".join(f"'{kind}'" for kind in (WaitKind.APPROVAL, WaitKind.BUDGET, WaitKind.TOOL))
        waits = f"state = 'waiting' AND coalesce(wait_kind, 'approval') IN ({for_person})"
        later = "state = 'pending' AND (blocked = 1 OR coalesce(due_at, 0) > ?)"
        select = f"SELECT run_id FROM runs WHERE {LIVE_RUNS} AND runner <> ? AND NOT ({waits} OR {later}) ORDER BY seq LIMIT 1"
        count = 0
        with self._db.transaction():
            self._events.write(now, "home_restored", None, None)
            self._db.write("UPDATE source_states SET waiting = NULL")  # events that have waited would start runs again
            self._db.write("DELETE FROM interactive_leases")
            while row := self._db.one(select, (EXTERNAL, now)):  # the end of a run can release another one
                entry = self._reader.by_latest_run(row[0])
                assert entry is not None
                self._endings.end(entry, RunResult(row[0], RunState.FAILED, Result.LOST, now, error=error))
                count += 1
        return count

    def _is_over(self, task_id: str, kind: WaitKind, target: str | None) -> bool:
        """Whether the thing that a run of this task waits for has already ended."""
        match kind:
            case WaitKind.APPROVAL | WaitKind.BUDGET | WaitKind.TOOL:
                return False
            case WaitKind.REATTACH:
                return True
            case WaitKind.INTERACTIVE:
                return not self._waiting.must_yield(task_id, target or "")
            case WaitKind.TASK:
                other = self._reader.find(target or "")
                return other is None or other.has_ended
            case _:
                assert_never(kind)

    def _notify_waiting(self, entry: Entry, reason: str, kind: WaitKind, target: str | None, asked: str | None, now: int) -> None:
        """Notify the user, each time, that a recurring task, or one for another host, waits for something that only they can answer."""
        answer_id = entry.task.task_id
        if kind is WaitKind.INTERACTIVE:
            return
        if kind is WaitKind.TASK:
            other = self._reader.get(target or "")
            if other.status != TaskState.PROPOSED:
                return
            answer_id = other.task.task_id
            line = masked_line(other.task.spec.command.words, other.task.spec.command.shell)
            reason = f"it wants to run `{shortened(line, longest=400)}` ({'; '.join(other.task.decision.reasons)})"
        elif asked:
            reason = f"{reason} (fingerprint {short_fingerprint(asked)})"
        self._notices.write(
            entry.task, entry.run, recurring.waiting_message(entry.task, reason, answer_id), now, NoticeKind.WAITING, again=True
        )
