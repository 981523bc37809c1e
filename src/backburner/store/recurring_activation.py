"""Activates recurring tasks: checks the limits, and sets the first due time and the task it follows."""

from backburner.core.errors import BadInput
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Entry, Task

if TYPE_CHECKING:
    from backburner.store.database import Database


class RecurringActivation:
    """Activates recurring tasks that were just approved or unpaused. Runs inside the caller's transaction."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def activate(self, task: Task, now: int, max_active: int) -> Entry:
        """Set when a task is first due and which task it follows; BadInput if it would never be due, or a limit is reached."""
        from backburner.core.schedule import next_slot  # slow to import, and most commands do not need it

        self.check_room(task, max_active)
        schedule = task.spec.schedule
        due = next_slot(schedule, now) if task.kind != "event" else None
        if schedule.at is not None and task.recurring.fired == 0:
            due = schedule.at  # even if it is in the past: the approval came late
        if schedule.max_runs is not None and task.recurring.fired >= schedule.max_runs:
            raise BadInput(
                f"Task {task.task_id} has already completed its maximum of {task.recurring.fired} runs."
                f" Remove it with: backburner cancel {task.task_id}"
            )
        if due is None and task.kind != "event":
            raise BadInput(
                f"The schedule of task {task.task_id} has ended, so it would never run again."
                f" Remove it with: backburner cancel {task.task_id}"
            )
        self._db.write("UPDATE tasks SET next_run_at = ?, expires_at = NULL WHERE task_id = ?", (due, task.task_id))
        if task.kind == "event" and task.spec.order.after:
            self._db.write(
                "INSERT INTO chains (task_id, after_id, changed) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (task.task_id, task.spec.order.after[0], int(bool(task.spec.source))),
            )
        return Entry(task._replace(recurring=task.recurring._replace(next_run_at=due)), None)

    def check_room(self, task: Task, max_active: int) -> None:
        """BadInput if too many recurring tasks are active, or another open one has the same name."""
        self.check_name(task.spec.name, task.project, task.task_id)
        active = "SELECT count(*) FROM tasks WHERE schedule <> '{}' AND task_id <> ? AND state = 'active' AND kind <> 'oneshot'"
        if task.kind != "oneshot" and self._db.one(active, (task.task_id,))[0] >= max_active:
            raise BadInput(f"There are already {max_active} active recurring tasks; pause or cancel one, or raise [tasks] max_active.")

    def check_name(self, name: str | None, project: str, except_task: str) -> None:
        """BadInput if another open recurring task of the project has this name."""
        same = "schedule <> '{}' AND state IN ('proposed', 'active', 'paused') AND name = ? AND project = ? AND task_id <> ?"
        if other := self._db.one(f"SELECT task_id FROM tasks WHERE {same}", (name, project, except_task)):
            raise BadInput(
                f"A recurring task '{name}' already exists here: {other[0]}. To change it: backburner edit {other[0]};"
                f" to replace it, cancel it first: backburner cancel {other[0]}"
            )
