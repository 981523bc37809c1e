"""Rows an embedder keeps by hand."""

from backburner.core.errors import BadInput
from backburner.core.models import RECORD, Run, Task
from backburner.core.states import event_between
from backburner.store.queries import Reading
from backburner.store.rows import plain


class Records(Reading):
    """Tasks that somebody else runs, in whatever state they are."""

    def record(self, task: Task, run: Run) -> None:
        """Store a task that somebody else runs, in whatever state it is."""
        with self._transaction():
            if self._one("SELECT 1 FROM tasks WHERE task_id = ?", task.task_id):
                raise BadInput(f"There is a task {task.task_id} already.")
            self._insert("tasks", task._asdict())
            self._insert("runs", run._asdict())
            self._event(task.created_at, "task_recorded", task.task_id, run.run_id)

    def change_record(self, task: Task, run: Run) -> None:
        """Overwrite a task and run that `record` stored; the change of state must be a legal one."""
        with self._transaction():
            before = self._entry(task.task_id).run
            if before is None or (before.runner != RECORD and before._replace(span_id=run.span_id) != run):
                raise BadInput(f"Task {task.task_id} is run by Backburner; only its words can be changed, not its state.")
            if before.state != run.state:
                self._event(
                    run.ended_at or run.started_at or run.created_at, event_between(before.state, run.state), task.task_id, run.run_id
                )
            for table, row, key in (("tasks", task._asdict(), "task_id"), ("runs", run._asdict(), "run_id")):
                columns = ", ".join(f"{name} = ?" for name in row)
                self._db.execute(f"UPDATE {table} SET {columns} WHERE {key} = ?", (*map(plain, row.values()), row[key]))
