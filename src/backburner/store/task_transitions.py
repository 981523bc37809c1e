"""State changes of tasks, as the table in core/states.py allows them: guarded by the previous state, and recorded as events."""

from backburner.core import recurring
from backburner.core.errors import StaleTask
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Approval, Task
from backburner.core.states import NoticeKind, PauseKind, TaskEvent, TaskState, advance_task

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter
    from backburner.store.notice_writer import NoticeWriter


class TaskTransitions:
    """Changes the state of tasks. Runs inside the caller's transaction."""

    def __init__(self, db: "Database", events: "EventWriter", notices: "NoticeWriter") -> None:
        self._db, self._events, self._notices = db, events, notices

    def apply(self, task: Task, event: TaskEvent, now: int, approval: Approval | None = None, **data: object) -> Task:
        """The task after `event`; IllegalTransition if the event is not allowed, StaleTask if the task was changed in between."""
        state = advance_task(task.state, event)
        decision, recurs = task.decision, task.recurring
        change = "state = ?"
        values: list[object] = [state]
        if approval:
            decision = decision._replace(by=approval.by, via=approval.via, at=approval.at, fingerprint=approval.fingerprint)
            change += ", approved_by = ?, approved_via = ?, approved_at = ?, fingerprint = ?"
            values += [approval.by, approval.via, approval.at, approval.fingerprint]
            data = {"by": approval.by, "via": approval.via, **data}
        if state != TaskState.ACTIVE and task.is_recurring:
            recurs = recurs._replace(next_run_at=None)
            change += ", next_run_at = NULL"
        if not self._db.write(f"UPDATE tasks SET {change} WHERE task_id = ? AND state = ?", (*values, task.task_id, task.state)):
            raise StaleTask(task_id=task.task_id)
        self._events.write(now, event, task.task_id, None, **data)
        return task._replace(state=state, decision=decision, recurring=recurs)

    def pause(self, task: Task, because: str, now: int, notice: str = "", kind: PauseKind = PauseKind.OTHER) -> None:
        """Start no more runs of a task: pending runs are held, an active run continues. `notice` is the text for the requester, if any."""
        self.apply(task, TaskEvent.PAUSED, now, because=because)
        self._db.write("UPDATE tasks SET paused_because = ?, pause_kind = ? WHERE task_id = ?", (because, kind, task.task_id))
        self._db.write("UPDATE runs SET blocked = 1 WHERE task_id = ? AND state = 'pending' AND cause <> 'manual'", (task.task_id,))
        if notice:
            self._notices.write(task, None, notice, now, NoticeKind.PAUSED, again=True)

    def pause_over_budget(self, task: Task, reason: str, now: int) -> None:
        """Pause a task that has used up its budget, and ask the user."""
        self.pause(task, reason, now, recurring.budget_message(task, reason), kind=PauseKind.BUDGET)
