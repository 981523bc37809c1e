"""Reads all records of a ledger, for backups and exports. A page at a time, so that the memory does not grow with the ledger."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from backburner.core.events import Event
from backburner.core.models import Entry, Run, RunFolder
from backburner.core.notices import Notice
from backburner.store.parameters import groups, places
from backburner.store.rows import ENTRY, NOTICE, RUN, entry_of, notice_of, run_of

if TYPE_CHECKING:
    from backburner.store.database import Database

_PER_PAGE = 500
_FOLDERS = "SELECT folder, task_id, ended_at IS NOT NULL FROM runs WHERE folder <> ''"
_HERE = "host IN ('', ?)"


class RecordRepository:
    """Every record, oldest first. Records that are added or deleted meanwhile may be missing."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def count_tasks(self) -> int:
        """The number of tasks."""
        return self._db.one("SELECT count(*) FROM tasks")[0]

    def newest_folders(self, limit: int | None) -> Sequence[RunFolder]:
        """The folders of the newest runs of this host, or of all."""
        newest = f"{_FOLDERS} AND {_HERE} ORDER BY seq DESC{'' if limit is None else f' LIMIT {limit}'}"
        rows = self._db.execute(newest, (self._db.host_id,))
        return [RunFolder(folder, task_id, bool(ended)) for folder, task_id, ended in rows]

    def folders_of(self, run_ids: Sequence[str]) -> Sequence[RunFolder]:
        """The folders of these runs."""
        rows = [row for group in groups(run_ids) for row in self._db.execute(f"{_FOLDERS} AND run_id IN ({places(group)})", group)]
        return [RunFolder(folder, task_id, bool(ended)) for folder, task_id, ended in rows]

    def run_folders(self) -> Iterator[RunFolder]:
        """The folders of all runs of this host, oldest first."""
        for _, folder, task_id, ended, host in self._pages("SELECT seq, folder, task_id, ended_at IS NOT NULL, host FROM runs", "seq"):
            if folder and host in ("", self._db.host_id):
                yield RunFolder(folder, task_id, bool(ended))

    def all_tasks(self) -> Iterator[tuple[Entry, Sequence[Run]]]:
        """Every task with all its runs, including skipped slots."""
        for _, *row in self._pages(ENTRY.replace("SELECT ", "SELECT t.seq, ", 1), "t.seq"):
            entry = entry_of(tuple(row))
            rows = self._db.execute(f"SELECT {RUN} FROM runs r WHERE r.task_id = ? ORDER BY r.seq", (entry.task.task_id,))
            yield entry, [run_of(run) for run in rows]

    def all_notices(self) -> Iterator[Notice]:
        """Every notice."""
        for _, *row in self._pages(f"SELECT notice_id, {NOTICE} FROM notices", "notice_id"):
            yield notice_of(tuple(row))

    def all_events(self) -> Iterator[Event]:
        """Every event."""
        for _, *row in self._pages(f"SELECT event_id, {', '.join(Event._fields)} FROM events", "event_id"):
            yield Event(*row[:5], json.loads(row[5]))

    def all_memory(self) -> Iterator[tuple[str, str, str, int]]:
        """Project, key, value and time of every memory entry."""
        yield from self._db.execute("SELECT project, key, value, set_at FROM memory ORDER BY project, key")  # type: ignore[misc]

    def _pages(self, select: str, number: str) -> Iterator[tuple]:
        last = -1
        while rows := self._db.execute(f"{select} WHERE {number} > ? ORDER BY {number} LIMIT ?", (last, _PER_PAGE)):
            yield from rows
            last = rows[-1][0]
