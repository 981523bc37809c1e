"""Requeues runs that wait for approval, a budget, another task or interactive priority. Runs inside the caller's transaction."""

from typing import TYPE_CHECKING

from backburner.core.errors import StaleRun
from backburner.core.states import RunEvent, RunState, WaitKind, advance

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter


class WaitingRuns:
    """Makes waiting runs pending again."""

    def __init__(self, db: "Database", events: "EventWriter") -> None:
        self._db, self._events = db, events

    def requeue(self, run_id: str, now: int, *, task_id: str, reply: str | None = None, **data: object) -> None:
        """Make a waiting run pending again; StaleRun if it is not waiting any more."""
        before = RunState.WAITING
        after = advance(before, RunEvent.REQUEUED)
        changed = self._db.write(
            "UPDATE runs SET state = ?, owner = NULL, process = NULL, started_at = NULL, error = NULL, reply = ?,"
            " extensions = extensions + CASE WHEN wait_kind = 'budget' AND ? = 'yes' THEN 1 ELSE 0 END WHERE run_id = ? AND state = ?",
            (after, reply, reply, run_id, before),
        )
        if not changed:
            raise StaleRun(run_id=run_id)
        self._events.write(now, RunEvent.REQUEUED, task_id, run_id, **data)

    def continue_runs(self, kind: WaitKind, target: str, now: int) -> None:
        """Requeue every run that waits for this: the end of a task, or the end of interactive priority on a lane."""
        waiting = "SELECT run_id, task_id FROM runs WHERE wait_target = ? AND wait_kind = ? AND state = 'waiting'"
        for run_id, task_id in self._db.execute(waiting, (target, kind)):
            self.requeue(run_id, now, task_id=task_id)
