"""Environments of submitted tasks. Most tasks of a user share one, so each distinct environment is stored once."""

import functools
import zlib
from collections.abc import Collection

from backburner.core import light_json as json
from backburner.core.light_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backburner.store.database import Database

_MAX_PARSED, _MAX_SCANS = 8, 4
_NOTHING_STORED: tuple[dict[str, str] | None, int, int] = (None, 0, 0)
_NOTHING_READ: tuple[int, int, dict[str, str]] = (0, 0, {})


class Environments:
    """Stores and reads environments. The latest of each is cached until another connection commits, because ids may be reused."""

    def __init__(self, db: "Database") -> None:
        self._db = db
        self._stored = _NOTHING_STORED  # an environment, its id, and the change counter at that time
        self._read = _NOTHING_READ  # an id, the change counter at that time, and the environment

    def store(self, environment: dict[str, str]) -> int:
        """The id of an environment, which is added if it is new. Runs inside the caller's transaction."""
        cached, cached_id, counter = self._stored
        if environment == cached and counter == self._db.change_counter():
            return cached_id
        body = self._db.keep_private(json.dumps(environment, sort_keys=True))
        checksum = zlib.crc32(body.encode())
        found = self._db.one("SELECT environment_id FROM environments WHERE checksum = ? AND body = ?", (checksum, body))
        if not found:
            found = self._db.one("INSERT INTO environments (checksum, body) VALUES (?, ?) RETURNING environment_id", (checksum, body))
        self._stored = dict(environment), found[0], self._db.change_counter()
        return found[0]

    def read(self, environment_id: int | None) -> dict[str, str]:
        """The environment with this id, not to be changed; empty if there is none. On another host, the environment of that host."""
        if environment_id is None:
            return {}
        cache_key = environment_id, self._db.change_counter() if self._db.reuses_ids else 0
        if self._read[:2] != cache_key:
            body = self._db.one("SELECT body FROM environments WHERE environment_id = ?", (environment_id,))
            text = self._db.private_text(body[0]) if body else None
            self._read = *cache_key, _parsed(text) if text else dict(self._db.host_environment)
        return self._read[2]

    def forget(self) -> None:
        """Clear the cache, because its rows may have been deleted or rolled back."""
        self._stored, self._read = _NOTHING_STORED, _NOTHING_READ

    def are_used(self, environment_ids: Collection[int | None]) -> bool:
        """Whether tasks use all of these environments. The newest tasks are read first; False if it would take several scans to know."""
        used = "SELECT 1 FROM tasks WHERE environment_id = ? ORDER BY seq DESC LIMIT 1"
        return len(environment_ids) <= _MAX_SCANS and all(number is None or self._db.one(used, (number,)) for number in environment_ids)

    def delete_unused(self, limit: int | None = None) -> int:
        """Delete environments that no task uses; returns how many. Each takes a scan of all tasks."""
        unused = "SELECT environment_id FROM environments WHERE environment_id NOT IN (SELECT environment_id FROM tasks WHERE environment_id IS NOT NULL)"
        deleted = self._db.write(f"DELETE FROM environments WHERE environment_id IN ({unused}{'' if limit is None else f' LIMIT {limit}'})")
        if deleted:
            self._db.delete_private_except(lambda: [row[0] for row in self._db.execute("SELECT body FROM environments")])
        return deleted


@functools.lru_cache(_MAX_PARSED)
def _parsed(body: str) -> dict[str, str]:
    """An environment from JSON: one dictionary for all who keep the same environment, for example with a verdict."""
    return json.loads(body)
