"""Requeues runs that wait for approval, a budget, another task or interactive priority. Runs inside the caller's transaction."""

from backburner.core.errors import StaleRun
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.states import RunEvent, RunState, WaitKind, advance

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter

_LEASES_OF_LANE = """
    WITH RECURSIVE requesters (task_id, session, parent_task) AS (
        SELECT task_id, session, parent_task FROM tasks WHERE task_id = ?
        UNION SELECT t.task_id, t.session, t.parent_task FROM requesters r JOIN tasks t ON t.task_id = r.parent_task)
    SELECT EXISTS (
        SELECT 1 FROM requesters r JOIN tasks awaited ON awaited.task_id = l.task_id
        WHERE r.task_id = awaited.task_id OR (awaited.client = 'chat' AND r.session = awaited.session))
    FROM interactive_leases l WHERE l.lane = ? AND l.host = ?
"""


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

    def continue_after(self, task_id: str, now: int) -> None:
        """Requeue every run that waits for the end of this task."""
        for run_id, waiting, _ in self._waiting_for(WaitKind.TASK, task_id):
            self.requeue(run_id, now, task_id=waiting)

    def continue_interactive(self, lane: str, now: int) -> None:
        """Requeue every run of this host that yielded on this lane and need not yield any more."""
        for run_id, task_id, host in self._waiting_for(WaitKind.INTERACTIVE, lane):
            if host == self._db.host_id and not self.must_yield(task_id, lane):
                self.requeue(run_id, now, task_id=task_id)

    def must_yield(self, task_id: str, lane: str) -> bool:
        """Whether users have priority on the lane and none of them waits for this task.

        A user waits for a task also if it was requested by the agent they wait for, directly or through other agents, or in their chat.
        """
        leases = [is_for_task for (is_for_task,) in self._db.execute(_LEASES_OF_LANE, (task_id, lane, self._db.host_id))]
        return bool(leases) and not any(leases)

    def _waiting_for(self, kind: WaitKind, target: str) -> list[tuple[str, str, str]]:
        waiting = "SELECT run_id, task_id, host FROM runs WHERE wait_target = ? AND wait_kind = ? AND state = 'waiting'"
        return list(self._db.execute(waiting, (target, kind)))
