"""Claims pending runs: which runs come next, and assigning them to an owner. Runs inside the caller's transaction."""

from collections.abc import Sequence

from backburner.core.claims import ClaimedRun
from backburner.core.errors import StaleRun
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import AGENT_LANES, ProcessId, Run
from backburner.core.states import RunEvent, advance
from backburner.store.rows import RUN, TASK, WIDTH, run_of, task_of

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.environments import Environments
    from backburner.store.event_writer import EventWriter

QUEUE = "FROM runs WHERE state = 'pending' AND blocked = 0 AND runner = ?"
_READY = f"SELECT run_id, priority, seq {QUEUE} AND (due_at IS NOT NULL) = FALSE ORDER BY priority DESC, seq LIMIT ?"
_NEXT = f"SELECT run_id, priority, seq, 1 {QUEUE} AND due_at IS NOT NULL AND due_at <= ? UNION ALL SELECT run_id, priority, seq, 0 FROM ({_READY}) AS ready"


class Claims:
    """Assigns pending runs to owners that have capacity for them."""

    def __init__(self, db: "Database", events: "EventWriter", environments: "Environments") -> None:
        self._db, self._events, self._environments = db, events, environments

    def queued(self, runner: str, now: int, limit: int) -> Sequence[str]:
        """The ids of the runs to claim next: by priority, then oldest first. Reads no run that is not due."""
        return [row[0] for row in self._next(runner, now, limit)[:limit]]

    def claim(self, runner: str, owner: ProcessId, limit: int, now: int) -> Sequence[ClaimedRun]:
        """Assign up to `limit` pending runs to `owner`. Those that are due join the queue of the others."""
        if limit <= 0:
            return []
        found = self._next(runner, now, limit)
        if any(was_due for *_, was_due in found):
            self._db.write(
                f"UPDATE runs SET due_at = NULL WHERE seq IN (SELECT seq {QUEUE} AND due_at IS NOT NULL AND due_at <= ?)", (runner, now)
            )
        claimable = [self.work(row[0]) for row in found[:limit]]
        return [work._replace(run=self.take(work.run, owner, now)) for work in claimable]

    def _next(self, runner: str, now: int, limit: int) -> Sequence[tuple[str, int, int, int]]:
        """The runs to claim next, and all whose start time has come: id, priority, number, and 1 if it had a start time."""
        found = self._db.execute(_NEXT, (runner, now, runner, limit))
        return sorted(found, key=lambda row: (-row[1], row[2]))

    def take(self, run: Run, owner: ProcessId, now: int) -> Run:
        """Assign one run to `owner`; StaleRun if another process claimed it first."""
        event = RunEvent.RESUMED if run.runner in AGENT_LANES and run.n > 1 and not run.cause.kind else RunEvent.CLAIMED
        after = advance(run.state, event)
        taken = self._db.write(
            "UPDATE runs SET state = ?, owner = ?, started_at = ? WHERE run_id = ? AND state = ?",
            (after, str(owner), now, run.run_id, run.state),
        )
        if not taken:
            raise StaleRun(run_id=run.run_id)
        self._events.write(now, event, run.task_id, run.run_id)
        return run._replace(state=after, owner=owner, started_at=now)

    def work(self, run_id: str) -> ClaimedRun:
        """A run with everything that is needed to start it: its task and its environment."""
        row = self._db.one(
            f"SELECT {TASK}, {RUN}, t.environment_id FROM runs r JOIN tasks t ON t.task_id = r.task_id WHERE r.run_id = ?", (run_id,)
        )
        return ClaimedRun(task_of(row[:WIDTH]), run_of(row[WIDTH:-1]), self._environments.read(row[-1]))
