"""Claims pending runs: which runs come next, and assigning them to an owner. Runs inside the caller's transaction."""

from collections.abc import Sequence

from backburner.core.claims import ClaimedRun
from backburner.core.errors import StaleRun
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import ProcessId, Run
from backburner.core.queues import at_host, is_for_agents
from backburner.core.states import RunEvent, advance
from backburner.store.rows import RUN, TASK, WIDTH, run_of, task_of

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.environments import Environments
    from backburner.store.event_writer import EventWriter

QUEUE = "FROM runs WHERE state = 'pending' AND blocked = 0 AND runner = ?"
_READY = f"SELECT run_id, priority, seq {QUEUE} AND (due_at IS NOT NULL) = FALSE ORDER BY priority DESC, seq LIMIT ?"
_NEXT = f"SELECT run_id, priority, seq, 1 {QUEUE} AND due_at IS NOT NULL AND due_at <= ? UNION ALL SELECT run_id, priority, seq, 0 FROM ({_READY}) AS ready"

_WORK = f"SELECT {TASK}, {RUN}, t.environment_id FROM runs r JOIN tasks t ON t.task_id = r.task_id"


class Claims:
    """Assigns pending runs to owners that have capacity for them."""

    def __init__(self, db: "Database", events: "EventWriter", environments: "Environments") -> None:
        self._db, self._events, self._environments = db, events, environments
        self._host_id = db.host_id

    def queued(self, runner: str, now: int, limit: int) -> Sequence[str]:
        """The ids of the runs to claim next: by priority, then oldest first. Reads no run that is not due."""
        return [row[0] for row in self._next(at_host(runner, self._host_id), now, limit)[:limit]]

    def claim(self, runner: str, owner: ProcessId, limit: int, now: int) -> Sequence[ClaimedRun]:
        """Assign up to `limit` pending runs to `owner`. Those that are due join the queue of the others."""
        epoch = self._epoch() if limit > 0 and self._host_id else None
        if limit <= 0 or (self._host_id and epoch is None):
            return []
        runner = at_host(runner, self._host_id)
        found = self._next(runner, now, limit)
        if any(was_due for *_, was_due in found):
            self._db.write(
                f"UPDATE runs SET due_at = NULL WHERE seq IN (SELECT seq {QUEUE} AND due_at IS NOT NULL AND due_at <= ?)", (runner, now)
            )
        claimable = [self.work(row[0]) for row in found[:limit]]
        return [work._replace(run=self.take(work.run, owner, now, epoch=epoch)) for work in claimable]

    def _next(self, runner: str, now: int, limit: int) -> Sequence[tuple[str, int, int, int]]:
        """The runs to claim next, and all whose start time has come: id, priority, number, and 1 if it had a start time."""
        found = self._db.execute(_NEXT, (runner, now, runner, limit))
        return sorted(found, key=lambda row: (-row[1], row[2]))

    def claim_these(self, run_ids: Sequence[str], owner: ProcessId, now: int) -> Sequence[ClaimedRun]:
        """Assign those of these runs to `owner` that are pending and may start; none if this host has been fenced."""
        epoch = self._epoch() if run_ids and self._host_id else None
        if not run_ids or (self._host_id and epoch is None):
            return []
        pending = f"{_WORK} WHERE r.state = 'pending' AND r.blocked = 0 AND r.run_id IN ({', '.join('?' * len(run_ids))})"
        found = {work.run.run_id: work for work in map(self._work_of, self._db.execute(pending, run_ids))}
        claimable = [found[run_id] for run_id in run_ids if run_id in found]
        return [work._replace(run=self.take(work.run, owner, now, epoch=epoch)) for work in claimable]

    def take(self, run: Run, owner: ProcessId, now: int, *, epoch: int | None = None) -> Run:
        """Assign one run to `owner`; StaleRun if another process claimed it first, or if this host has been fenced."""
        event = RunEvent.RESUMED if is_for_agents(run.runner) and run.n > 1 and not run.cause.kind else RunEvent.CLAIMED
        after = advance(run.state, event)
        change, which = "state = ?, owner = ?, started_at = ?", "run_id = ? AND state = ?"
        host = self._host_id
        epoch = self._epoch() if host and epoch is None else epoch
        if not host:
            taken = self._db.write(f"UPDATE runs SET {change} WHERE {which}", (after, str(owner), now, run.run_id, run.state))
        else:
            taken = epoch is not None and self._db.write(
                f"UPDATE runs SET {change}, host = ?, epoch = ? WHERE {which}",
                (after, str(owner), now, host, epoch, run.run_id, run.state),
            )
        if not taken:
            raise StaleRun(run_id=run.run_id)
        self._events.write(now, event, run.task_id, run.run_id)
        return run._replace(state=after, owner=owner, started_at=now, host=host, epoch=epoch)

    def _epoch(self) -> int | None:
        """The current epoch of this host; None if it has been fenced, or if this process belongs to an earlier epoch.

        It stays the same until the caller's transaction ends, because there is one writer at a time.
        """
        row = self._db.one("SELECT epoch FROM hosts WHERE host_id = ? AND state <> 'fenced'", (self._host_id,))
        return row[0] if row and self._db.epoch in (None, row[0]) else None

    def work(self, run_id: str) -> ClaimedRun:
        """A run with everything that is needed to start it: its task and its environment."""
        return self._work_of(self._db.one(f"{_WORK} WHERE r.run_id = ?", (run_id,)))

    def _work_of(self, row: tuple) -> ClaimedRun:
        return ClaimedRun(task_of(row[:WIDTH]), run_of(row[WIDTH:-1]), self._environments.read(row[-1]))
