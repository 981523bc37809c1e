"""Deletes finished tasks with their folders and worktrees, and old runs of recurring tasks."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.config_file import ConfigFile
from backburner.core.errors import LedgerUnavailable
from backburner.core.models import Clock
from backburner.services.conversations import worktree_of
from backburner.system import run_files
from backburner.system.home import Home

if TYPE_CHECKING:
    from backburner.core.store_ports import EventStore, LedgerQueries, RecurringStore, TaskStore

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
_COUNT, _MARK = "retention_marks", "retention_mark_"  # cursors: the number of marks so far, and the clock time of each mark
_MAX_MARKS = 367  # number of marks that are kept: enough for a year of days
_MIN_MARKS = 4  # marks that must follow the end of a task before it is deleted, even with a short retention


class Retention:
    """Decides what is deleted, and when. Live tasks are never deleted."""

    def __init__(
        self,
        home: Home,
        task_store: "TaskStore",
        ledger_queries: "LedgerQueries",
        event_store: "EventStore",
        recurring_store: "RecurringStore",
        config: ConfigFile,
        changes: ChangeFeed,
        clock: Clock,
    ) -> None:
        self._home, self._task_store, self._ledger_queries, self._event_store = home, task_store, ledger_queries, event_store
        self._recurring_store, self._config, self._changes, self._clock = recurring_store, config, changes, clock

    def forget(self, task_ids: Sequence[str]) -> Sequence[str]:
        """Delete finished tasks from the ledger, with their folders and worktrees; returns their ids."""
        if not task_ids:
            return task_ids
        if os.path.isdir(os.path.join(self._home.root, "worktrees")):
            for entry in filter(None, map(self._ledger_queries.get, task_ids)):
                if worktree := worktree_of(self._home, entry.task):
                    worktree.forget()
        for folder in self._task_store.clear(task_ids, self._clock()):
            run_files.remove(self._home.folder(folder))
        self._changes.announce()
        return task_ids

    def clean_up(self, retention_days: float | None = None, *, as_of: int | None = None) -> Sequence[str]:
        """Delete tasks and old runs that ended longer ago than the retention, counted from `as_of` or now; returns the task ids."""
        days = self._config.current.number("commands.retention_days") if retention_days is None else retention_days
        now = self._clock() if as_of is None else as_of
        self.compact(days=days, as_of=now)
        return self.forget(self._task_store.ended_before(now - int(days * _DAY_MS)))

    def compact(self, task_ids: Sequence[str] = (), days: float | None = None, *, as_of: int | None = None) -> int:
        """Delete runs of recurring tasks that ended longer ago than the retention, except the latest; returns the number of folders."""
        days = self._config.current.number("commands.retention_days") if days is None else days
        now = self._clock() if as_of is None else as_of
        folders = self._recurring_store.compact(now - int(days * _DAY_MS), now, task_ids or None)
        for folder in folders:
            run_files.remove(self._home.folder(folder))
        return len(folders)

    def confirmed_time(self) -> int | None:
        """Return the time that a clean-up may use as the current time; None if it may not delete anything yet.

        This protects against a clock that jumps ahead. A call stores a mark if about a day has passed since the last mark. A task may be
        deleted only after as many marks as the retention has days, and after its retention by the clock. A jump of the clock, however
        large, therefore counts as one day.
        """
        now, retention = self._clock(), int(self._config.current.number("commands.retention_days") * _DAY_MS)
        needed = min(max(_MIN_MARKS, -(-retention // _DAY_MS)), _MAX_MARKS - 1)
        count = self._event_store.cursor(_COUNT)
        try:
            self._lower_marks(count, now)
            if count and now < self._mark(count - 1) + max(_HOUR_MS, min(22 * _HOUR_MS, retention // needed)):
                return None
            self._event_store.advance_cursor(_MARK + str(count % _MAX_MARKS), now)
            self._event_store.advance_cursor(_COUNT, count + 1)
        except LedgerUnavailable:
            return None  # for example, the disk is full; a later call tries again
        return min(now, self._mark(count - needed) + retention) if count >= needed else None

    def _lower_marks(self, count: int, now: int) -> None:
        """After the clock was set back, move marks in the future to `now`, so that tasks that end later do not seem to be older."""
        for number in range(count - 1, max(-1, count - _MAX_MARKS - 1), -1):
            if self._mark(number) <= now:
                break
            self._event_store.advance_cursor(_MARK + str(number % _MAX_MARKS), now)

    def _mark(self, number: int) -> int:
        return self._event_store.cursor(_MARK + str(number % _MAX_MARKS))
