"""Environments of submitted tasks: most tasks of a person share one, so each is stored once."""

import json
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backburner.store.database import Database

_NOTHING_STORED: tuple[dict[str, str] | None, int, int] = (None, 0, 0)
_NOTHING_READ: tuple[int, int, dict[str, str]] = (0, 0, {})


class Environments:
    """Stores and reads environments, and keeps the latest of both for as long as nobody else writes: a number may be used again."""

    def __init__(self, db: "Database") -> None:
        self._db = db
        self._stored = _NOTHING_STORED  # an environment, its number, and the change counter of then
        self._read = _NOTHING_READ  # a number, the change counter of then, and the environment

    def store(self, environment: dict[str, str]) -> int:
        """The number of an environment, which is added where it is new. Inside the caller's transaction."""
        before, known, counter = self._stored
        if environment == before and counter == self._db.change_counter():
            return known
        body = json.dumps(environment, sort_keys=True)
        checksum = zlib.crc32(body.encode())
        found = self._db.one("SELECT environment_id FROM environments WHERE checksum = ? AND body = ?", (checksum, body))
        if not found:
            found = self._db.one("INSERT INTO environments (checksum, body) VALUES (?, ?) RETURNING environment_id", (checksum, body))
        self._stored = dict(environment), found[0], self._db.change_counter()
        return found[0]

    def read(self, number: int | None) -> dict[str, str]:
        """The environment with this number; empty where there is none."""
        if number is None:
            return {}
        now = number, self._db.change_counter()
        if self._read[:2] != now:
            body = self._db.one("SELECT body FROM environments WHERE environment_id = ?", (number,))
            self._read = *now, json.loads(body[0]) if body else {}
        return self._read[2]

    def forget(self) -> None:
        """Drop what is kept: its rows may be gone."""
        self._stored, self._read = _NOTHING_STORED, _NOTHING_READ

    def delete_unused(self) -> None:
        """Delete environments that no task has."""
        self._db.write(
            "DELETE FROM environments WHERE environment_id NOT IN (SELECT environment_id FROM tasks WHERE environment_id IS NOT NULL)"
        )
