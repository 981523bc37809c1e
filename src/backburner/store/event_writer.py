"""Writes events, inside the transaction that they describe."""

from backburner.core import light_json as json
from backburner.core.light_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backburner.store.database import Database


class EventWriter:
    """Appends to the event log."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def write(self, at: int, kind: str, task_id: str | None, run_id: str | None, **data: object) -> None:
        self._db.write_later(
            "INSERT INTO events (at, kind, task_id, run_id, data) VALUES (?, ?, ?, ?, ?)",
            (at, str(kind), task_id, run_id, json.dumps(data) if data else "{}"),
        )
