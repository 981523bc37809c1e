"""What a person said for good, and what a yes is bound to."""

import json
from collections.abc import Sequence

from backburner.core.masking import masked_words
from backburner.core.models import Grant
from backburner.store.connection import Connection


class Grants(Connection):
    """The part of the ledger that the gate asks."""

    def grant(self, kind: str, project: str, command: Sequence[str], via: str, now: int) -> None:
        """Remember a trusted project, or a command that is always allowed in one."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO grants (kind, project, command, via, created_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (kind, project, json.dumps(list(command)), via, now),
            )
            if self._db.changes():
                self._event(now, "granted", None, None, grant=kind, project=project, command=masked_words(command), via=via)

    def revoke(self, grant_id: int, now: int) -> bool:
        """Take a grant back; False where there is none with this number."""
        with self._transaction():
            self._db.execute("DELETE FROM grants WHERE grant_id = ?", (grant_id,))
            gone = bool(self._db.changes())
            if gone:
                self._event(now, "revoked", None, None, grant_id=grant_id)
        return gone

    def grants(self, project: str | None = None) -> Sequence[Grant]:
        """What holds in a project, or everywhere."""
        rows = self._all(
            f"SELECT {', '.join(Grant._fields)} FROM grants WHERE ? IS NULL OR project = ? ORDER BY grant_id", project, project
        )
        return [Grant(number, kind, where, tuple(json.loads(command)), via, at) for number, kind, where, command, via, at in rows]

    def environment(self, task_id: str) -> dict[str, str]:
        """The environment that a task was submitted with."""
        row = self._one(
            "SELECT e.body FROM tasks t JOIN environments e ON e.environment_id = t.environment_id WHERE t.task_id = ?", task_id
        )
        return json.loads(row[0]) if row else {}
