"""Refusals: tasks that a user rejected or removed, so that agents do not request them again automatically."""

from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Task

if TYPE_CHECKING:
    from backburner.store.database import Database

_KEPT_MS = 365 * 86_400_000


class RefusalRepository:
    """Refused tasks, by name and by a digest of what they do."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def record(self, task: Task, digest: str, why: str, now: int) -> None:
        """Record that a user refused a task; refusals older than a year are deleted."""
        with self._db.transaction():
            refused = {"project": task.project, "name": normal(task.spec.name or ""), "digest": digest, "why": why, "at": now}
            self._db.insert("refusals", refused)
            self._db.write("DELETE FROM refusals WHERE at < ?", (now - _KEPT_MS,))

    def refused_since(self, project: str, name: str, digest: str, since: int, why: str) -> int | None:
        """When a task with this name or this digest was refused, not before `since`; None if it was not."""
        same = "(name = ? AND name <> '' OR digest = ?)"
        latest = f"SELECT max(at) FROM refusals WHERE project = ? AND why = ? AND at >= ? AND {same}"
        return self._db.one(latest, (project, why, since, normal(name), digest))[0]


def normal(name: str) -> str:
    """A name in the form in which names are compared."""
    return " ".join(name.replace("-", " ").replace("_", " ").casefold().split())
