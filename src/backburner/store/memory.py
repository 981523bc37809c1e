"""Memory that the agents of a project share."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backburner.store.database import Database


class MemoryRepository:
    """Named values, by project."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def set(self, project: str, key: str, value: str | None, now: int) -> None:
        """Store a value under a name for the agents of a project, or delete it if the value is None. Values do not expire."""
        with self._db.transaction():
            if value is None:
                self._db.write("DELETE FROM memory WHERE project = ? AND key = ?", (project, key))
                return
            self._db.write(
                "INSERT INTO memory (project, key, value, set_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (project, key) DO UPDATE SET value = excluded.value, set_at = excluded.set_at",
                (project, key, value, now),
            )

    def all(self, project: str) -> dict[str, str]:
        """All stored values of a project, by name."""
        return dict(self._db.execute("SELECT key, value FROM memory WHERE project = ? ORDER BY key", (project,)))
