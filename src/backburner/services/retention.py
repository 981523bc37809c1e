"""Deletes finished tasks with their folders and worktrees, and old runs of recurring tasks."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.config_file import ConfigFile
from backburner.core.errors import LedgerUnavailable
from backburner.core.models import Clock
from backburner.services.conversations import worktree_of
from backburner.system import run_files, sandbox_storage
from backburner.system.disk_usage import disk_usage, disk_usage_steps, size_text
from backburner.system.home import Home

if TYPE_CHECKING:
    from backburner.core.store_ports import EventStore, LedgerQueries, RecordStore, RecurringStore, TaskStore

_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
_COUNT, _MARK = "retention_marks", "retention_mark_"  # cursors: the number of marks so far, and the clock time of each mark
_REPORTED = "output_removed_at"  # cursor: when the person was told that output was removed
_KEPT_SHARE = 0.9  # of the limit, so that not every new task causes another removal
_REMOVED = "[backburner: the output was removed because the home was larger than commands.home_limit_gb]"
_TASKS_PER_BATCH = 100
_EVENTS_PER_BATCH = 5000
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
        record_store: "RecordStore",
        config: ConfigFile,
        changes: ChangeFeed,
        clock: Clock,
    ) -> None:
        self._home, self._task_store, self._ledger_queries, self._event_store = home, task_store, ledger_queries, event_store
        self._recurring_store, self._record_store = recurring_store, record_store
        self._config, self._changes, self._clock = config, changes, clock

    def forget(self, task_ids: Sequence[str], *, sweep: bool = True) -> Sequence[str]:
        """Delete finished tasks from the ledger, with their folders and worktrees; returns their ids. `sweep` is as in `TaskStore.clear`."""
        if not task_ids:
            return task_ids
        if os.path.isdir(os.path.join(self._home.root, "worktrees")):
            for entry in filter(None, map(self._ledger_queries.get, task_ids)):
                if worktree := worktree_of(self._home, entry.task):
                    worktree.forget()
        for folder in self._task_store.clear(task_ids, self._clock(), sweep=sweep):
            run_files.remove(self._home.folder(folder))
        self._changes.announce()
        return task_ids

    def clean_up(self, retention_days: float | None = None, *, as_of: int | None = None) -> Sequence[str]:
        """Delete tasks and old runs that ended longer ago than the retention, counted from `as_of` or now; returns the task ids."""
        return [task_id for batch in self.clean_up_batches(retention_days, as_of=as_of) for task_id in batch]

    def clean_up_batches(self, retention_days: float | None = None, *, as_of: int | None = None) -> Iterator[Sequence[str]]:
        """Like `clean_up`, in short transactions: yields the ids of the tasks that each has deleted. What is done stays done."""
        days = self._config.current.number("commands.retention_days") if retention_days is None else retention_days
        now = self._clock() if as_of is None else as_of
        before = now - int(days * _DAY_MS)
        sandbox_storage.clean_up(self._home, before / 1000)
        expired = self._task_store.ended_before(before)
        for start in range(0, len(expired), _TASKS_PER_BATCH):
            yield self.forget(expired[start : start + _TASKS_PER_BATCH], sweep=False)
        while self._compact(before, now, limit=_TASKS_PER_BATCH) == _TASKS_PER_BATCH:
            yield ()
        position: int | None = 0
        while expired and (position := self._task_store.sweep_cleared(position or 0, self._clock(), _EVENTS_PER_BATCH)) is not None:
            yield ()

    def limit_size_batches(self) -> Iterator[int]:
        """Remove the output of the runs that ended first while the home is larger than its limit; yields often, with the bytes freed so far.

        The person is told once a day. The tasks stay in the ledger, with their results and conversations.
        """
        limit = int(self._config.current.number("commands.home_limit_gb") * (1 << 30))
        disk = os.statvfs(self._home.root)
        if not limit or (disk.f_blocks - disk.f_bfree) * disk.f_frsize <= limit:
            return
        size = freed = count = 0
        for counted in disk_usage_steps(self._home.root):
            size = counted
            yield 0
        if size <= limit:
            return
        last, wanted = "", size - int(limit * _KEPT_SHARE)
        for run in self._record_store.run_folders():
            folder = self._home.folder(run.folder)
            if freed >= wanted:
                break
            if run.has_ended and os.path.isdir(folder):
                before = disk_usage(folder)[0]
                with contextlib.suppress(OSError):
                    if run_files.remove_output(folder, _REMOVED):
                        freed, count, last = freed + before - disk_usage(folder)[0], count + 1, run.task_id
            yield freed
        if count:
            self._report_removed(last, count, freed, limit)

    def _report_removed(self, task_id: str, count: int, freed: int, limit: int) -> None:
        now = self._clock()
        is_new = now - self._event_store.cursor(_REPORTED) > _DAY_MS
        text = (
            f"The home was larger than {size_text(limit)} (commands.home_limit_gb): removed the output of"
            f" {'1 run' if count == 1 else f'{count} runs'} that ended first ({size_text(freed)}), up to {task_id}."
        )
        self._task_store.report_removed_output(task_id, text, count, now, notify=is_new)
        if is_new:
            self._event_store.advance_cursor(_REPORTED, now)
        self._changes.announce()

    def compact(self, task_ids: Sequence[str] = (), days: float | None = None, *, as_of: int | None = None) -> int:
        """Delete runs of recurring tasks that ended longer ago than the retention, except the latest; returns the number of folders."""
        days = self._config.current.number("commands.retention_days") if days is None else days
        now = self._clock() if as_of is None else as_of
        return self._compact(now - int(days * _DAY_MS), now, task_ids)

    def _compact(self, before: int, now: int, task_ids: Sequence[str] = (), limit: int | None = None) -> int:
        folders = self._recurring_store.compact(before, now, task_ids or None, limit)
        for folder in filter(None, folders):
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
