"""The tasks whose sources the integrations process watches."""

from collections.abc import Sequence

from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Task
from backburner.store.rows import TASK, task_of

if TYPE_CHECKING:
    from backburner.store.database import Database


class WatchedTasks:
    """Active tasks with a source to watch. A source of the kind `command` is polled by another task instead."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def find(self) -> Sequence[Task]:
        """Every watched task, oldest first."""
        rows = self._db.execute(
            f"SELECT {TASK} FROM tasks t WHERE t.source <> '{{}}' AND t.state = 'active' AND t.kind = 'event' ORDER BY t.seq"
        )
        return [task for task in map(task_of, rows) if task.spec.source_kind != "command" and self._can_watch(task)]

    def _can_watch(self, task: Task) -> bool:
        """A file is on the host that the task was added on."""
        return task.spec.source_kind != "file" or task.origin_host == self._db.host_id
