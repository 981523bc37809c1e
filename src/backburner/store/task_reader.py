"""Reads one task with its latest run. Nearly every repository uses this."""

from backburner.core.errors import TaskNotFound
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Entry
from backburner.store.rows import ENTRY, entry_of

if TYPE_CHECKING:
    from backburner.store.database import Database


_BY_ID = f"{ENTRY} WHERE t.task_id = ?"
_BY_KEY = f"{ENTRY} WHERE t.project = ? AND t.key = ?"
_BY_LATEST_RUN = f"{ENTRY} WHERE r.run_id = ?"


class TaskReader:
    """Reads tasks by id. Never writes."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def find(self, task_id: str) -> Entry | None:
        """The task with exactly this id."""
        return self._entry(_BY_ID, task_id)

    def get(self, task_id: str) -> Entry:
        """The task with exactly this id; TaskNotFound if there is none."""
        if (entry := self.find(task_id)) is None:
            raise TaskNotFound(task_id=task_id)
        return entry

    def by_key(self, project: str, key: str) -> Entry | None:
        """The task that was submitted with this key."""
        return self._entry(_BY_KEY, project, key)

    def by_latest_run(self, run_id: str) -> Entry | None:
        """The task whose latest run has this id."""
        return self._entry(_BY_LATEST_RUN, run_id)

    def task_of(self, run_id: str) -> str:
        """The id of the task that a run belongs to."""
        return self._db.one("SELECT task_id FROM runs WHERE run_id = ?", (run_id,))[0]

    def latest_run(self, task_id: str) -> str | None:
        """The id of the latest run of a task."""
        entry = self.find(task_id)
        return entry.run.run_id if entry and entry.run else None

    def _entry(self, select: str, *values: str) -> Entry | None:
        row = self._db.one(select, values)
        return entry_of(row) if row else None
