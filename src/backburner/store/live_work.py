"""What is live or due. Every command reads this first, to decide whether an engine must run."""

from collections.abc import Sequence

from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import EXTERNAL, Run
from backburner.store.rows import ACTIVE_RUNS, LIVE_RUNS, RUN, run_of

if TYPE_CHECKING:
    from backburner.store.database import Database


class LiveWorkRepository:
    """Reads only, and imports little: `backburner list` needs no other repository except the queries."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def live_runs(self) -> Sequence[Run]:
        """Every run that has not ended, except runs of external tasks."""
        rows = self._db.execute(f"SELECT {RUN} FROM runs r WHERE r.{LIVE_RUNS} AND r.runner <> ? ORDER BY r.seq", (EXTERNAL,))
        return [run_of(row) for row in rows]

    def active_runs(self) -> Sequence[Run]:
        """Every run that has been claimed and has not ended, except runs of external tasks. Does not read the queue, which may be long."""
        rows = self._db.execute(f"SELECT {RUN} FROM runs r WHERE r.{ACTIVE_RUNS} AND r.runner <> ? ORDER BY r.seq", (EXTERNAL,))
        return [run_of(row) for row in rows]

    def pending_runners(self) -> Sequence[str]:
        """The runners that have pending runs: lanes, and programs that run their own commands."""
        found: list[str] = []
        after = "SELECT runner FROM runs WHERE state = 'pending' AND runner > ? ORDER BY runner LIMIT 1"
        while row := self._db.one(after, (found[-1] if found else "",)):
            found.append(row[0])
        return [runner for runner in found if runner != EXTERNAL]

    def overdue_proposals(self, now: int) -> Sequence[str]:
        """The proposals that nobody approved or rejected in time."""
        overdue = "SELECT task_id FROM tasks WHERE state = 'proposed' AND expires_at <= ?"
        return [row[0] for row in self._db.execute(overdue, (now,))]

    def next_slot_at(self, after: int = -1) -> int | None:
        """The next time at which a recurring task is due, later than `after`."""
        return self._db.one("SELECT min(next_run_at) FROM tasks WHERE next_run_at IS NOT NULL AND next_run_at > ?", (after,))[0]

    def delayed_because(self) -> str | None:
        """Why a claimed run cannot start yet; None if there is no such run."""
        delayed = "state = 'running' AND process IS NULL AND error IS NOT NULL"
        row = self._db.one(f"SELECT error FROM runs WHERE {ACTIVE_RUNS} AND {delayed} LIMIT 1")
        return row[0] if row else None
