"""Offers runs of lanes to the hosts that serve them, and claims those that a host was handed.

On Postgres a trigger offers a run as soon as it may start; see `postgres_dispatch.py`.
"""

from collections.abc import Sequence

from backburner.core.claims import ClaimedRun
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import ProcessId

if TYPE_CHECKING:
    from backburner.store.claims import Claims
    from backburner.store.database import Database

_LATER = "FROM runs WHERE state = 'pending' AND blocked = 0 AND due_at IS NOT NULL AND runner IN"


class DispatchRepository:
    """The runs of lanes, which several hosts may start."""

    def __init__(self, db: "Database", claims: "Claims") -> None:
        self._db, self._claims = db, claims

    def take(self, run_ids: Sequence[str], owner: ProcessId, now: int) -> Sequence[ClaimedRun]:
        """Assign those of these runs to `owner` that are still pending; none if this host has been fenced.

        On disk before anything is started.
        """
        with self._db.transaction():
            return self._claims.claim_these(run_ids, owner, now)

    def move(self, run_id: str, queue: str) -> bool:
        """Move a pending run of a lane to another queue, from which it is then claimed; False if somebody has it."""
        pending = "run_id = ? AND state = 'pending' AND blocked = 0 AND runner LIKE '%/%'"
        with self._db.transaction():
            return bool(self._db.write(f"UPDATE runs SET runner = ? WHERE {pending}", (queue, run_id)))

    def occupying(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Those of these runs that are about to start or running."""
        among = f"run_id IN ({', '.join('?' * len(run_ids))})"
        rows = self._db.execute(f"SELECT run_id FROM runs WHERE state IN ('pending', 'running', 'resumed') AND {among}", run_ids)
        return [row[0] for row in rows]

    def unclaimed(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Those of these runs that nobody has claimed, although they may start."""
        among = f"run_id IN ({', '.join('?' * len(run_ids))})"
        rows = self._db.execute(f"SELECT run_id FROM runs WHERE state = 'pending' AND blocked = 0 AND due_at IS NULL AND {among}", run_ids)
        return [row[0] for row in rows]

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
