"""Tasks that an embedding program runs itself and only records in the ledger."""

from typing import TYPE_CHECKING

from backburner.core.errors import BadInput, StaleRun, StaleTask
from backburner.core.models import EXTERNAL, Run, Task
from backburner.core.states import event_between, task_event_between
from backburner.store.rows import plain, run_row, task_row

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter
    from backburner.store.task_reader import TaskReader


class ExternalTaskRepository:
    """Records of tasks that Backburner does not run."""

    def __init__(self, db: "Database", reader: "TaskReader", events: "EventWriter") -> None:
        self._db, self._reader, self._events = db, reader, events

    def record(self, task: Task, run: Run) -> None:
        """Store a task that another program runs, in any state."""
        with self._db.transaction(by_person=task.decision.by == "user"):
            if self._db.one("SELECT 1 FROM tasks WHERE task_id = ?", (task.task_id,)):
                raise BadInput(f"Task {task.task_id} already exists.")
            self._db.insert("tasks", task_row(task))
            self._db.insert("runs", run_row(run))
            self._events.write(task.created_at, "task_recorded", task.task_id, run.run_id)

    def change_record(self, task: Task, run: Run) -> None:
        """Overwrite a task and run that `record` stored; their state changes must be legal transitions."""
        with self._db.transaction(by_person=task.decision.by == "user"):
            stored, before = self._reader.get(task.task_id)
            if before is None or (before.runner != EXTERNAL and before._replace(span_id=run.span_id) != run):
                raise BadInput(f"Task {task.task_id} is run by Backburner; its state cannot be changed here, only its descriptive fields.")
            if before.state != run.state:
                at = run.ended_at or run.started_at or run.created_at
                self._events.write(at, event_between(before.state, run.state), task.task_id, run.run_id)
            if stored.state != task.state:
                task_event_between(stored.state, task.state)
            if not self._overwrite("tasks", "task_id", task_row(task), stored.state):
                raise StaleTask(task_id=task.task_id)
            if not self._overwrite("runs", "run_id", run_row(run), before.state):
                raise StaleRun(run_id=run.run_id)

    def _overwrite(self, table: str, key: str, row: dict[str, object], state: str) -> int:
        columns = ", ".join(f"{name} = ?" for name in row)
        return self._db.write(f"UPDATE {table} SET {columns} WHERE {key} = ? AND state = ?", (*map(plain, row.values()), row[key], state))
