"""Which task comes after which: a task waits until all that it comes after have completed, and fails when one of them does not."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.core.claims import RunResult
from backburner.core.models import Entry, Task
from backburner.core.states import Result, RunState, TaskState

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.task_reader import TaskReader


class Dependencies:
    """The tasks that have not completed and that others come after. Inside the caller's transaction."""

    def __init__(self, db: "Database", reader: "TaskReader") -> None:
        self._db, self._reader = db, reader

    def block(self, task: Task) -> tuple[bool, str | None]:
        """Note what has not completed of that which a task comes after: whether it still may, and why the task cannot start at all."""
        blocked, failed = False, None
        for after_id in task.spec.order.after:
            other = self._reader.find(after_id)
            if other is None:
                noted = self._db.one("SELECT 1 FROM dependencies WHERE task_id = ? AND after_id = ?", (task.task_id, after_id))
                failed = f"{after_id}, which it comes after, is not known any more" if noted else failed
            elif other.status not in (RunState.COMPLETED, TaskState.DONE):
                self._db.write(
                    "INSERT INTO dependencies (task_id, after_id) VALUES (?, ?) ON CONFLICT DO NOTHING", (task.task_id, after_id)
                )
                blocked = blocked or not other.has_ended
                failed = failure_reason(after_id, other.status) if other.has_ended else failed
        return blocked, failed

    def dependents(self, after_id: str) -> Sequence[str]:
        """The tasks that wait for this one."""
        return [row[0] for row in self._db.execute("SELECT task_id FROM dependencies WHERE after_id = ?", (after_id,))]

    def completed(self, task_id: str, after_id: str) -> None:
        """What a task comes after has completed: it may start once that was the last."""
        self._db.write("DELETE FROM dependencies WHERE task_id = ? AND after_id = ?", (task_id, after_id))
        if not self._db.one("SELECT 1 FROM dependencies WHERE task_id = ?", (task_id,)):
            self._db.write(
                "UPDATE runs SET blocked = 0, origin = ? WHERE task_id = ? AND state = 'pending'",
                (self._reader.latest_run(after_id), task_id),
            )


def failure_reason(after_id: str, state: str) -> str:
    """Why a task fails that comes after one which did not complete."""
    how = {"failed": "failed", "expired": "was not approved in time"}.get(state, f"was {state}")
    return f"{after_id}, which it comes after, {how}"


def dependency_failed(entry: Entry, reason: str, now: int) -> RunResult:
    """The end of a run that can never start."""
    assert entry.run is not None
    return RunResult(entry.run.run_id, RunState.FAILED, Result.DEPENDENCY, now, error=reason, lines=0)
