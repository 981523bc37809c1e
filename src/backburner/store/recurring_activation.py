"""Starts a recurring task: whether there is room for it, when it is due first, and what it comes after."""

from typing import TYPE_CHECKING

from backburner.core.errors import BadInput
from backburner.core.models import Entry, Task

if TYPE_CHECKING:
    from backburner.store.database import Database


class RecurringActivation:
    """Plans recurring tasks that were approved or unpaused just now. Inside the caller's transaction."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def activate(self, task: Task, now: int, most_active: int) -> Entry:
        """Set when a task is due first and what it comes after; BadInput where it would never be due, or there is no room."""
        from backburner.core.schedule import next_slot  # dates are slow to load, and most interfaces need none

        self.check_room(task, most_active)
        schedule = task.spec.schedule
        due = next_slot(schedule, now) if task.kind != "event" else None
        if schedule.at is not None and task.recurring.fired == 0:
            due = schedule.at  # also where it is past: it was put off
        if schedule.max_runs is not None and task.recurring.fired >= schedule.max_runs:
            raise BadInput(f"It has run {task.recurring.fired} times, which is all it was to: backburner cancel {task.task_id}")
        if due is None and task.kind != "event":
            raise BadInput(f"Its time is over, and it would never be due again: backburner cancel {task.task_id}")
        self._db.write("UPDATE tasks SET next_run_at = ?, expires_at = NULL WHERE task_id = ?", (due, task.task_id))
        if task.kind == "event" and task.spec.order.after:
            self._db.write(
                "INSERT INTO chains (task_id, after_id, changed) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (task.task_id, task.spec.order.after[0], int(bool(task.spec.source))),
            )
        return Entry(task._replace(recurring=task.recurring._replace(next_run_at=due)), None)

    def check_room(self, task: Task, most_active: int) -> None:
        """BadInput where too many are active at once, or another open one has the same name."""
        self.check_name(task.spec.name, task.project, task.task_id)
        active = "SELECT count(*) FROM tasks WHERE schedule <> '{}' AND task_id <> ? AND state = 'active' AND kind <> 'oneshot'"
        if task.kind != "oneshot" and self._db.one(active, (task.task_id,))[0] >= most_active:
            raise BadInput(f"There are {most_active} active standing tasks already; pause or cancel one, or raise [tasks] max_active.")

    def check_name(self, name: str | None, project: str, besides: str) -> None:
        """BadInput where another recurring task of that name is open."""
        same = "schedule <> '{}' AND state IN ('proposed', 'active', 'paused') AND name = ? AND project = ? AND task_id <> ?"
        if other := self._db.one(f"SELECT task_id FROM tasks WHERE {same}", (name, project, besides)):
            raise BadInput(f"There is a standing task '{name}' here already: {other[0]}. Cancel it first: backburner cancel {other[0]}")
