"""Dependencies between tasks: a task waits until all its dependencies have completed, and fails if one of them does not."""

from collections.abc import Sequence

from backburner.core.claims import RunResult
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Entry, Task
from backburner.core.states import Result, RunState, TaskState

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.task_reader import TaskReader


class Dependencies:
    """Dependencies that have not completed yet. Runs inside the caller's transaction."""

    def __init__(self, db: "Database", reader: "TaskReader") -> None:
        self._db, self._reader = db, reader

    def block(self, task: Task) -> tuple[bool, str | None]:
        """Record the open dependencies of a task. Returns whether it must wait, and why it can never start (None if it can)."""
        blocked, failed = False, None
        for after_id in task.spec.order.after:
            other = self._reader.find(after_id)
            if other is None:
                was_recorded = self._db.one("SELECT 1 FROM dependencies WHERE task_id = ? AND after_id = ?", (task.task_id, after_id))
                failed = f"dependency {after_id} no longer exists" if was_recorded else failed
            elif other.status not in (RunState.COMPLETED, TaskState.DONE):
                self._db.write(
                    "INSERT INTO dependencies (task_id, after_id) VALUES (?, ?) ON CONFLICT DO NOTHING", (task.task_id, after_id)
                )
                blocked = blocked or not other.has_ended
                failed = failure_reason(after_id, other.status) if other.has_ended else failed
        return blocked, failed

    def dependents(self, after_id: str) -> Sequence[str]:
        """The ids of the tasks that wait for this task."""
        return [row[0] for row in self._db.execute("SELECT task_id FROM dependencies WHERE after_id = ?", (after_id,))]

    def completed(self, task_id: str, after_id: str) -> None:
        """Record that a dependency has completed; the task may start if that was the last one."""
        self._db.write("DELETE FROM dependencies WHERE task_id = ? AND after_id = ?", (task_id, after_id))
        if not self._db.one("SELECT 1 FROM dependencies WHERE task_id = ?", (task_id,)):
            self._db.write(
                "UPDATE runs SET blocked = 0, origin = ? WHERE task_id = ? AND state = 'pending'",
                (self._reader.latest_run(after_id), task_id),
            )


def failure_reason(after_id: str, state: str) -> str:
    """Why a task fails whose dependency did not complete."""
    outcome = {"failed": "failed", "expired": "was not approved in time"}.get(state, f"was {state}")
    return f"dependency {after_id} {outcome}"


def dependency_failed(entry: Entry, reason: str, now: int) -> RunResult:
    """The result of a run that can never start because a dependency failed."""
    assert entry.run is not None
    return RunResult(entry.run.run_id, RunState.FAILED, Result.DEPENDENCY, now, error=reason, lines=0)
