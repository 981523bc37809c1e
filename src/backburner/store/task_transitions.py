"""Changes of a task's state, as the table in core/states.py allows them: guarded by the state before, with the event they leave."""

from typing import TYPE_CHECKING

from backburner.core import recurring
from backburner.core.errors import StaleTask
from backburner.core.models import Approval, Task
from backburner.core.states import NoticeKind, PauseKind, TaskEvent, TaskState, advance_task

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter
    from backburner.store.notice_writer import NoticeWriter


class TaskTransitions:
    """Moves tasks from one state to another, inside the caller's transaction."""

    def __init__(self, db: "Database", events: "EventWriter", notices: "NoticeWriter") -> None:
        self._db, self._events, self._notices = db, events, notices

    def apply(self, task: Task, event: TaskEvent, now: int, approval: Approval | None = None, **about: object) -> Task:
        """The task after `event`; IllegalTransition where it cannot happen, StaleTask where the task was changed meanwhile."""
        state = advance_task(task.state, event)
        fingerprint = approval.fingerprint if approval else task.decision.fingerprint
        by, via, at = (approval.by, approval.via, approval.at) if approval else (task.decision.by, task.decision.via, task.decision.at)
        due = "next_run_at" if state == TaskState.ACTIVE else "NULL"
        changed = self._db.write(
            f"UPDATE tasks SET state = ?, approved_by = ?, approved_via = ?, approved_at = ?, fingerprint = ?, next_run_at = {due}"
            " WHERE task_id = ? AND state = ?",
            (state, by, via, at, fingerprint, task.task_id, task.state),
        )
        if not changed:
            raise StaleTask(task_id=task.task_id)
        self._events.write(now, event, task.task_id, None, **({"by": by, "via": via} if approval else {}), **about)
        return task._replace(
            state=state,
            decision=task.decision._replace(by=by, via=via, at=at, fingerprint=fingerprint),
            recurring=task.recurring if state == TaskState.ACTIVE else task.recurring._replace(next_run_at=None),
        )

    def pause(self, task: Task, because: str, now: int, told: str = "", kind: PauseKind = PauseKind.OTHER) -> None:
        """Start nothing of it from now on: what waits to is held, what is at work goes on. `told` is for whoever did not pause it."""
        self.apply(task, TaskEvent.PAUSED, now, because=because)
        self._db.write("UPDATE tasks SET paused_because = ?, pause_kind = ? WHERE task_id = ?", (because, kind, task.task_id))
        self._db.write("UPDATE runs SET blocked = 1 WHERE task_id = ? AND state = 'pending' AND cause <> 'manual'", (task.task_id,))
        if told:
            self._notices.write(task, None, told, now, NoticeKind.PAUSED, again=True)

    def pause_over_budget(self, task: Task, reason: str, now: int) -> None:
        """Pause a task that has used up what it may, and ask a person."""
        self.pause(task, reason, now, recurring.budget_message(task, reason), kind=PauseKind.BUDGET)
