"""Permanent permissions in the ledger: trusted projects, and the commands and ports that are always allowed in a project."""

from collections.abc import Sequence

from backburner.core import light_json as json
from backburner.core.grants import Grant
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.masking import masked_words

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter


class GrantRepository:
    """Permanent permissions, which the gate reads in addition to its rules. On several hosts, each applies to projects of one."""

    def __init__(self, db: "Database", events: "EventWriter") -> None:
        self._db, self._events = db, events
        self._host = f"{db.host_id}:" if db.host_id else ""  # begins the names of its projects

    def grant(self, kind: str, project: str, command: Sequence[str], via: str, now: int) -> None:
        """Store a permanent permission; does nothing if it is already stored."""
        with self._db.transaction(by_person=True):
            added = self._db.write(
                "INSERT INTO grants (kind, project, command, via, created_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (kind, self._host + project, json.dumps(list(command)), via, now),
            )
            if added:
                self._events.write(now, "granted", None, None, grant=kind, project=project, command=masked_words(command), via=via)

    def revoke(self, grant_id: int, now: int) -> bool:
        """Revoke a permission; False if none has this id."""
        with self._db.transaction(by_person=True):
            deleted = bool(self._db.write("DELETE FROM grants WHERE grant_id = ?", (grant_id,)))
            if deleted:
                self._events.write(now, "revoked", None, None, grant_id=grant_id)
        return deleted

    def grants(self, project: str | None = None) -> Sequence[Grant]:
        """The permissions of one project, or of all, on this host."""
        where, values = ("project LIKE ?", (f"{self._host}%",)) if project is None else ("project = ?", (self._host + project,))
        rows = self._db.execute(f"SELECT {', '.join(Grant._fields)} FROM grants WHERE {where} ORDER BY grant_id", values)
        skipped = len(self._host)
        return [
            Grant(number, kind, folder[skipped:], tuple(json.loads(command)), via, at) for number, kind, folder, command, via, at in rows
        ]
