"""Waits until tasks have ended, woken by changes of the ledger."""

from collections.abc import Iterator, Sequence

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.supervision import EngineSupervisor
from backburner.core.errors import WaitTimedOut
from backburner.core.models import Entry
from backburner.services.queries import Queries

_INTERVAL = 5.0  # seconds between two looks without a change


class Waiting:
    """Blocks the caller until tasks have ended."""

    def __init__(self, queries: Queries, changes: ChangeFeed, supervisor: EngineSupervisor) -> None:
        self._queries, self._changes, self._supervisor = queries, changes, supervisor

    def wait(self, task_ids: Sequence[str], timeout: float | None = None) -> Sequence[Entry]:
        """Block until every task has ended; WaitTimedOut if that takes longer than `timeout` seconds."""
        waited_for = list(task_ids)  # of many tasks, only one is read after every change
        for _ in self._changes.changes(timeout, _INTERVAL):
            self._supervisor.ensure_supervised()
            while waited_for and not self._queries.get(waited_for[0]).is_live:
                waited_for.pop(0)
            if not waited_for:
                entries = [self._queries.get(task_id) for task_id in task_ids]
                if not (waited_for := [entry.task.task_id for entry in entries if entry.is_live]):  # resumed in between
                    return entries
        raise WaitTimedOut(seconds=timeout, task_ids=", ".join(task_ids))

    def watch(self, task_ids: Sequence[str], timeout: float | None, interval: float = _INTERVAL) -> Iterator[Sequence[Entry]]:
        """Yield the tasks as they are now, and again after every change; end after `timeout` seconds."""
        for _ in self._changes.changes(timeout, interval):
            self._supervisor.ensure_supervised()
            yield [self._queries.get(task_id) for task_id in task_ids]
