"""The beginning and the end of the output of runs, for when their host cannot be reached; and folders that a host still has to delete."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.core.host_records import OutputExcerpt, RunOutput
from backburner.core.models import ProcessId
from backburner.store.rows import ACTIVE_RUNS

if TYPE_CHECKING:
    from backburner.store.database import Database

_RUN = "run_id, folder, process, process_tag, ended_at"


class OutputExcerptRepository:
    """Excerpts are written by the host that has the log, and read by the others."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def has_other_hosts(self) -> bool:
        """Whether anybody but this host could read an excerpt."""
        return bool(self._db.execute("SELECT 1 FROM hosts WHERE host_id <> ? LIMIT 1", (self._db.host_id,)))

    def outputs(self, ended_since: int) -> Sequence[RunOutput]:
        """The runs of this host that are active or have ended since a time."""
        active = f"SELECT {_RUN} FROM runs WHERE host = ? AND {ACTIVE_RUNS}"
        ended = f"SELECT {_RUN} FROM runs WHERE host = ? AND ended_at >= ?"
        rows = self._db.execute(f"{active} UNION ALL {ended}", (self._db.host_id, self._db.host_id, ended_since))
        return [RunOutput._make((*row[:2], row[2] and ProcessId.parse(row[2]), *row[3:])) for row in rows]

    def store(self, run_id: str, excerpt: OutputExcerpt) -> bool:
        """Replace the excerpt of a run of this host; False if the run is gone or belongs to another host."""
        head, tail, size, details, at = excerpt
        stored = self._db.write(
            "INSERT INTO output_excerpts (run_id, head, tail, size, details, at)"
            " SELECT run_id, ?, ?, ?, CAST(? AS TEXT), ? FROM runs WHERE run_id = ? AND host = ?"
            " ON CONFLICT (run_id) DO UPDATE SET head = excluded.head, tail = excluded.tail, size = excluded.size,"
            " details = excluded.details, at = excluded.at",
            (head, tail, size, details, at, run_id, self._db.host_id),
        )
        return stored == 1

    def excerpt(self, run_id: str) -> OutputExcerpt | None:
        """What is kept of the output of a run."""
        row = self._db.one("SELECT head, tail, size, details, at FROM output_excerpts WHERE run_id = ?", (run_id,))
        return OutputExcerpt(bytes(row[0]), bytes(row[1]), *row[2:]) if row else None

    def details(self, run_id: str) -> str | None:
        """The details of an excerpt alone."""
        row = self._db.one("SELECT details FROM output_excerpts WHERE run_id = ?", (run_id,))
        return row[0] if row else None

    def folders_to_delete(self) -> Sequence[str]:
        """Folders of this host whose runs were cleared on another one."""
        return [
            row[0]
            for row in self._db.execute("SELECT folder FROM folders_to_delete WHERE host_id = ? ORDER BY folder", (self._db.host_id,))
        ]

    def folder_deleted(self, folder: str) -> None:
        self._db.write("DELETE FROM folders_to_delete WHERE host_id = ? AND folder = ?", (self._db.host_id, folder))
