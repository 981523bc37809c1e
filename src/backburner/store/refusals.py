"""What a person did not want: it is not asked for again by itself."""

from typing import TYPE_CHECKING

from backburner.core.models import Task

if TYPE_CHECKING:
    from backburner.store.database import Database

_KEPT_MS = 365 * 86_400_000


class RefusalRepository:
    """Tasks that were refused, by their names and by what they would do."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def record(self, task: Task, digest: str, why: str, now: int) -> None:
        """Record that a person did not want a task; old refusals are forgotten."""
        with self._db.transaction():
            refused = {"project": task.project, "name": normal(task.spec.name or ""), "digest": digest, "why": why, "at": now}
            self._db.insert("refusals", refused)
            self._db.write("DELETE FROM refusals WHERE at < ?", (now - _KEPT_MS,))

    def refused_since(self, project: str, name: str, digest: str, since: int, why: str) -> int | None:
        """When something of this name, or the same in other words, was not wanted, since a moment."""
        same = "(name = ? AND name <> '' OR digest = ?)"
        latest = f"SELECT max(at) FROM refusals WHERE project = ? AND why = ? AND at >= ? AND {same}"
        return self._db.one(latest, (project, why, since, normal(name), digest))[0]


def normal(name: str) -> str:
    """A name as one would compare it."""
    return " ".join(name.replace("-", " ").replace("_", " ").casefold().split())
