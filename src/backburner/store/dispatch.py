"""Offers runs of lanes to the hosts that serve them. On Postgres a trigger does that when a run may start; see `postgres_dispatch.py`."""

from collections.abc import Sequence

from backburner.core.light_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backburner.store.database import Database

_LATER = "FROM runs WHERE state = 'pending' AND blocked = 0 AND due_at IS NOT NULL AND runner IN"


class DispatchRepository:
    """The runs of lanes that must not start before a certain time."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def offer_due(self, queues: Sequence[str], now: int) -> int | None:
        """Offer the runs in these queues whose time has come; returns the earliest time of the others. Any host may call it."""
        if not queues:
            return None
        later = f"{_LATER} ({', '.join('?' * len(queues))})"
        first = self._db.one(f"SELECT min(due_at) {later}", queues)[0]
        if first is None or first > now:
            return first
        with self._db.transaction():
            self._db.write(f"UPDATE runs SET due_at = NULL WHERE seq IN (SELECT seq {later} AND due_at <= ?)", (*queues, now))
        return self._db.one(f"SELECT min(due_at) {later}", queues)[0]
