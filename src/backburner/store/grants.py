"""Permanent permissions in the ledger: trusted projects, and commands that are always allowed in one."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.core.grants import Grant
from backburner.core.masking import masked_words

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter


class GrantRepository:
    """What the gate asks for besides its rules."""

    def __init__(self, db: "Database", events: "EventWriter") -> None:
        self._db, self._events = db, events

    def grant(self, kind: str, project: str, command: Sequence[str], via: str, now: int) -> None:
        """Remember a trusted project, or a command that is always allowed in one; nothing happens where it is known."""
        with self._db.transaction():
            added = self._db.write(
                "INSERT INTO grants (kind, project, command, via, created_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (kind, project, json.dumps(list(command)), via, now),
            )
            if added:
                self._events.write(now, "granted", None, None, grant=kind, project=project, command=masked_words(command), via=via)

    def revoke(self, grant_id: int, now: int) -> bool:
        """Take a grant back; False where there is none with this number."""
        with self._db.transaction():
            gone = bool(self._db.write("DELETE FROM grants WHERE grant_id = ?", (grant_id,)))
            if gone:
                self._events.write(now, "revoked", None, None, grant_id=grant_id)
        return gone

    def grants(self, project: str | None = None) -> Sequence[Grant]:
        """What holds in a project, or everywhere."""
        where, values = ("", ()) if project is None else ("WHERE project = ?", (project,))
        rows = self._db.execute(f"SELECT {', '.join(Grant._fields)} FROM grants {where} ORDER BY grant_id", values)
        return [Grant(number, kind, where, tuple(json.loads(command)), via, at) for number, kind, where, command, via, at in rows]
