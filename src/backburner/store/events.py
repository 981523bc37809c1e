"""The event log, and the position of each of its readers."""

import json
from collections.abc import Sequence

from backburner.core.events import Event
from backburner.core.light_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter


class EventRepository:
    """Events and the positions of their readers. Event ids increase in commit order."""

    def __init__(self, db: "Database", events: "EventWriter") -> None:
        self._db, self._events = db, events

    def append(self, kind: str, task_id: str, run_id: str, now: int, **data: object) -> None:
        """Record an event that changes no state."""
        with self._db.transaction(durable=False):
            self._events.write(now, kind, task_id, run_id, **data)

    def events(self, after: int, limit: int = 1000) -> Sequence[Event]:
        """The events after the one with this id, oldest first; a negative `after` counts from the end."""
        if after < 0:
            after = max(0, (self._db.one("SELECT coalesce(max(event_id), 0) FROM events")[0]) + after)
        return self._read("event_id > ? ORDER BY event_id LIMIT ?", after, limit)

    def decisions(self, task_id: str) -> Sequence[Event]:
        """The decisions on steps of a task, oldest first."""
        # The kinds are written as in the condition of the index.
        found = self._read("task_id = ? AND kind IN ('run_requeued', 'step_decided') ORDER BY event_id", task_id)
        return [event for event in found if "answer" in event.data]

    def rejection(self, task_id: str) -> Event | None:
        """The event of the rejection of a task, with the reason that was given; searched from the newest event on."""
        found = self._read("task_id = ? AND kind = 'task_rejected' ORDER BY event_id DESC LIMIT 1", task_id)
        return found[0] if found else None

    def of_kinds(self, kinds: Sequence[str], before: tuple[int, int], limit: int, *, since: int = 0) -> Sequence[Event]:
        """Events of some kinds, newest first, before a time and an event id."""
        where = f"kind IN ({', '.join('?' for _ in kinds)}) AND (at, event_id) < (?, ?) AND at >= ? ORDER BY at DESC, event_id DESC LIMIT ?"
        return self._read(where, *kinds, *before, since, limit)

    def _read(self, where: str, *values: str | int) -> Sequence[Event]:
        rows = self._db.execute(f"SELECT {', '.join(Event._fields)} FROM events WHERE {where}", values)
        return [Event(*row[:5], json.loads(row[5])) for row in rows]

    def cursor(self, name: str) -> int:
        """The id of the last event that a reader has processed; 0 if none."""
        row = self._db.one("SELECT position FROM cursors WHERE name = ?", (name,))
        return row[0] if row else 0

    def advance_cursor(self, name: str, position: int) -> None:
        """Record that a reader has processed the events up to this position."""
        with self._db.transaction():
            self._db.write(
                "INSERT INTO cursors (name, position) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET position = excluded.position",
                (name, position),
            )
