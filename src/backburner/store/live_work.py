"""What is live or due. Every command reads this first, to decide whether an engine must run."""

from collections.abc import Sequence

from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import EXTERNAL, Run
from backburner.core.queues import BASES, at_host, host_of
from backburner.store.rows import ACTIVE_RUNS, LIVE_RUNS, RUN, run_of

if TYPE_CHECKING:
    from backburner.store.database import Database


class LiveWorkRepository:
    """Reads only, and imports little: `backburner list` needs no other repository except the queries.

    Runs of other hosts are left out: whether their processes are alive can only be seen there.
    """

    def __init__(self, db: "Database") -> None:
        self._db, self.host_id = db, db.host_id
        self._queues = [at_host(base, db.host_id) for base in BASES]
        self._here, self._host = (" AND r.host = ?", (db.host_id,)) if db.host_id else ("", ())

    def is_here(self, run: Run) -> bool:
        """Whether a run is of this host: its process is here, or a daemon of this home claims it."""
        return not self.host_id or self.host_id in (run.host, host_of(run.runner))

    def live_runs(self) -> Sequence[Run]:
        """Every run of this host that has not ended, except runs of external tasks."""
        rows = self._db.execute(f"SELECT {RUN} FROM runs r WHERE r.{LIVE_RUNS} AND r.runner <> ? ORDER BY r.seq", (EXTERNAL,))
        return [run for run in map(run_of, rows) if self.is_here(run)]

    def active_runs(self) -> Sequence[Run]:
        """Every run of this host that has been claimed and has not ended, except runs of external tasks.

        Does not read the queue, which may be long.
        """
        active = f"SELECT {RUN} FROM runs r WHERE r.{ACTIVE_RUNS} AND r.runner <> ?{self._here} ORDER BY r.seq"
        return [run_of(row) for row in self._db.execute(active, (EXTERNAL, *self._host))]

    def pending_runners(self) -> Sequence[str]:
        """The runners of this host that have pending runs: queues, and programs that run their own commands."""
        if self.host_id:
            return self._pending_here()
        found: list[str] = []
        after = "SELECT runner FROM runs WHERE state = 'pending' AND runner > ? ORDER BY runner LIMIT 1"
        while row := self._db.one(after, (found[-1] if found else "",)):
            found.append(row[0])
        return [runner for runner in found if runner != EXTERNAL]

    def _pending_here(self) -> Sequence[str]:
        of_queue = "SELECT CAST(? AS TEXT) WHERE EXISTS (SELECT 1 FROM runs WHERE state = 'pending' AND runner = ?)"
        of_programs = "SELECT DISTINCT runner FROM runs WHERE state = 'pending' AND host = ? AND runner NOT LIKE '%@%'"
        names = [name for queue in self._queues for name in (queue, queue)]
        rows = self._db.execute(f"{f'{of_queue} UNION ALL ' * len(self._queues)}{of_programs}", (*names, self.host_id))
        return [row[0] for row in rows]

    def overdue_proposals(self, now: int) -> Sequence[str]:
        """The proposals that nobody approved or rejected in time."""
        overdue = "SELECT task_id FROM tasks WHERE state = 'proposed' AND expires_at <= ?"
        return [row[0] for row in self._db.execute(overdue, (now,))]

    def approvable_elsewhere(self) -> bool:
        """Whether another host may approve a proposal of this one, which an engine of this home then starts."""
        proposed = "SELECT 1 FROM tasks WHERE state = 'proposed' AND origin_host = ? LIMIT 1"
        return bool(self.host_id and self._db.one(proposed, (self.host_id,)))

    def next_slot_at(self, after: int = -1, *, everywhere: bool = True) -> int | None:
        """The next time at which a recurring task is due, later than `after`; a task of this host unless `everywhere`."""
        earliest = "SELECT min(next_run_at) FROM tasks WHERE next_run_at IS NOT NULL AND next_run_at > ?"
        if self.host_id and not everywhere:
            return self._db.one(f"{earliest} AND origin_host = ?", (after, self.host_id))[0]
        return self._db.one(earliest, (after,))[0]

    def delayed_because(self) -> str | None:
        """Why a claimed run cannot start yet; None if there is no such run."""
        delayed = f"r.state = 'running' AND r.process IS NULL AND r.error IS NOT NULL{self._here}"
        row = self._db.one(f"SELECT r.error FROM runs r WHERE r.{ACTIVE_RUNS} AND {delayed} LIMIT 1", self._host)
        return row[0] if row else None
