"""Waits until tasks have ended, woken by changes of the ledger."""

from collections.abc import Iterator, Sequence

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.supervision import EngineSupervisor
from backburner.core.errors import WaitTimedOut
from backburner.core.models import Entry
from backburner.services.queries import Queries


class Waiting:
    """Blocks the caller until tasks have ended."""

    def __init__(self, queries: Queries, changes: ChangeFeed, supervisor: EngineSupervisor) -> None:
        self._queries, self._changes, self._supervisor = queries, changes, supervisor

    def wait(self, task_ids: Sequence[str], timeout: float | None = None) -> Sequence[Entry]:
        """Block until every task has ended; WaitTimedOut if that takes longer than `timeout` seconds."""
        for entries in self.watch(task_ids, timeout):
            if not any(entry.is_live for entry in entries):
                return entries
        raise WaitTimedOut(seconds=timeout, task_ids=", ".join(task_ids))

    def watch(self, task_ids: Sequence[str], timeout: float | None, interval: float = 5.0) -> Iterator[Sequence[Entry]]:
        """Yield the tasks as they are now, and again after every change; end after `timeout` seconds."""
        for _ in self._changes.changes(timeout, interval):
            self._supervisor.ensure_supervised()
            yield [self._queries.get(task_id) for task_id in task_ids]
