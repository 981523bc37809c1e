"""Writes a backup of a home to one file, also while the home is in use.

The ledger is copied as it is at one moment, then the files of the runs that this copy knows are added. So everything that was recorded
before the backup is in it, and the files of a run that is still active as far as it has come. Temporary files, locks, caches of
sandboxed commands, git worktrees and changes that were not applied yet are left out.
"""

import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from backburner.core import formatting
from backburner.core.errors import BackupFailed, BadInput, LedgerUnavailable
from backburner.core.models import Clock
from backburner.core.version import VERSION
from backburner.system import run_files
from backburner.system.archive import ArchiveError, ArchiveReader, ArchiveWriter
from backburner.system.home import Home
from backburner.system.paths import is_below, real_path

if TYPE_CHECKING:
    from backburner.store.ledger import Ledger

# The files of a home, besides the ledger and the run folders.
HOME_FILES = ("config.toml", "chat_history", "token")
LEDGER = "ledger.db"
_KEPT_WITHOUT_OUTPUT = frozenset(
    [run_files.METADATA, run_files.RESULT, run_files.SPAN, run_files.CONVERSATION, run_files.ACTIVITY, run_files.EXIT]
)


class Backup(NamedTuple):
    """A backup that was written. `skipped` is the number of links and special files in run folders that it does not contain."""

    path: str
    tasks: int
    size: int
    skipped: int


class Backups:
    """Writes backups of one home."""

    def __init__(self, home: Home, ledger: "Ledger", clock: Clock) -> None:
        self._home, self._ledger, self._clock = home, ledger, clock

    def write(self, path: str, *, output: bool = True) -> Backup:
        """Write a backup; an older file is replaced once the new one is complete and was read back. `output` includes output and work files."""
        if self._ledger.database.dialect != "sqlite":
            raise BadInput(
                "The ledger of this home is on Postgres: back it up with pg_dump, and copy the folders `tasks` and `environments` of the home."
            )
        path = os.path.abspath(path)
        folder = os.path.dirname(path)
        if os.path.isdir(path):
            raise BadInput(f"{path} is a folder; give the name of a file.")
        if os.path.lexists(path) and not os.path.isfile(path):
            raise BadInput(f"{path} is not a regular file.")
        if is_below(real_path(folder), real_path(self._home.root)):
            raise BadInput(f"{path} is in the home that is backed up; give the name of a file in another folder.")
        try:
            temporary = tempfile.mkdtemp(prefix=".backburner-backup-", dir=folder)  # accessible only by the user
        except OSError as error:
            raise BackupFailed(file=path, reason=f"{folder}: {error.strerror}") from None
        try:
            return self._write(path, temporary, output)
        except OSError as error:
            raise BackupFailed(file=path, reason=f"{error.filename or path}: {error.strerror}") from None
        except LedgerUnavailable as error:
            raise BackupFailed(file=path, reason=f"{error.fields['path']}: {error.fields['message']}") from None
        except ArchiveError as error:
            raise BackupFailed(file=path, reason=f"what was written could not be read back: {error}") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _write(self, path: str, temporary: str, output: bool) -> Backup:
        from backburner.store.ledger import open_ledger

        copy, written = os.path.join(temporary, LEDGER), os.path.join(temporary, "backup")
        self._ledger.copy_to(copy)
        ledger = open_ledger(copy)
        try:
            if damage := ledger.check():
                raise BackupFailed(file=path, reason=f"the ledger {self._home.ledger} is damaged ({damage[0]}). See: backburner doctor")
            tasks = ledger.records.count_tasks()
            with open(os.open(written, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
                with ArchiveWriter(file) as archive:
                    archive.add_file(copy, LEDGER)
                    self._add_files(archive, ledger, output)
                    facts = {"version": VERSION, "created_at": formatting.iso(self._clock())}
                    archive.close({**facts, "tasks": tasks, "output": output})
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
                file.seek(0)
                for _ in ArchiveReader(file).members():
                    pass
        finally:
            ledger.close()
        os.replace(written, path)
        _sync_folder(os.path.dirname(path))
        return Backup(path, tasks, size, archive.skipped)

    def _add_files(self, archive: ArchiveWriter, ledger: "Ledger", output: bool) -> None:
        """Add the files of the home, and the folders of the runs that the copy of the ledger knows."""
        for name in HOME_FILES:
            with contextlib.suppress(FileNotFoundError):
                archive.add_file(os.path.join(self._home.root, name), name)
        parents: set[str] = set()
        for folder, _, _ in ledger.records.run_folders():
            parent = os.path.dirname(folder)
            if parent and parent not in parents:
                parents.add(parent)
                archive.add_folder(os.path.join(self._home.root, parent), parent, lambda _: False)
            archive.add_folder(self._home.folder(folder), folder, _wanted if output else _KEPT_WITHOUT_OUTPUT.__contains__)


def _wanted(path: str) -> bool:
    """Whether a file of a run belongs into a backup. Overlay layers cannot be stored: they contain devices and extended attributes."""
    return path != run_files.CHANGES


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
