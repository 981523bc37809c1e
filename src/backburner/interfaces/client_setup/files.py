"""Reads and replaces the files of other programs. A set of changes is applied completely or not at all.

Files are replaced atomically, through symbolic links, and keep their mode and owner. The content before the first change is
saved next to the file as NAME.before-backburner.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Sequence
from typing import NamedTuple

from backburner.core.errors import BackburnerError, BadInput
from backburner.system.home import create

BACKUP = ".before-backburner"


class Change(NamedTuple):
    """The content of a file before and after a change; None if it does not exist. `first`: it contains no entry of Backburner yet."""

    path: str
    before: str | None
    after: str | None
    first: bool = True


def read(path: str) -> str | None:
    """The text of a file, with its line ends and byte order mark; None if it does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _change_error(path, error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BackburnerError(f"{path} is not a file. Nothing was changed.")
    with open(descriptor, "rb") as file:
        try:
            return file.read().decode()
        except UnicodeDecodeError as error:
            raise BadInput(f"{path} is not valid UTF-8 (byte {error.start}). Nothing was changed.") from None


def apply(changes: Sequence[Change], *, undo: bool = False) -> None:
    """Apply all changes or none. Stops if a file no longer has its content of `before`. With `undo`, the backups are deleted."""
    backups: list[str] = []
    created_folders: list[str] = []
    applied: list[Change] = []
    path = ""
    try:
        for change in changes if not undo else ():
            path = change.path
            if change.before is not None and (change.first or not os.path.lexists(path + BACKUP)):
                _check(change)
                _write(path + BACKUP, change.before, like=os.path.realpath(path), created_folders=created_folders)
                backups.append(path + BACKUP)
        for change in changes:
            path = change.path
            _apply_change(change, created_folders)
            applied.append(change)
    except BaseException as error:
        not_restored = _roll_back(applied, backups, created_folders)
        problem = _change_error(path, error) if isinstance(error, OSError) else error
        if not_restored:
            raise BackburnerError(
                f"{problem} But {not_restored} could not be restored; its original content is in {not_restored}{BACKUP}."
            ) from None
        raise problem from None
    for change in changes if undo else ():
        with contextlib.suppress(OSError):
            os.unlink(change.path + BACKUP)


def _roll_back(applied: list[Change], backups: list[str], created_folders: list[str]) -> str:
    """Undo the applied changes; returns the path of a file that could not be restored, or an empty string."""
    not_restored = ""
    for change in reversed(applied):
        try:
            _apply_change(Change(change.path, change.after, change.before), [])
        except (OSError, BackburnerError):
            not_restored = change.path
    for path in backups if not not_restored else ():
        with contextlib.suppress(OSError):
            os.unlink(path)
    for folder in reversed(created_folders):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return not_restored


def _apply_change(change: Change, created_folders: list[str]) -> None:
    real = os.path.realpath(change.path)
    if change.after is not None:
        _write(real, change.after, like=real, created_folders=created_folders, change=change)
        return
    _check(change)
    os.unlink(real)
    if os.path.basename(os.path.dirname(real)) == "backburner":
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(real))


def _check(change: Change) -> None:
    real = os.path.realpath(change.path)
    if read(change.path) != change.before:
        raise BackburnerError(f"{change.path} was modified by another program meanwhile. Nothing was changed; try again.")
    if change.before is not None and not os.access(real, os.W_OK):
        raise BackburnerError(f"{change.path} is read-only. Nothing was changed.")


def _write(path: str, text: str, *, like: str, created_folders: list[str], change: Change | None = None) -> None:
    """Replace one file atomically, with the mode and owner of `like`. Checks `change` again right before."""
    _create_folders(os.path.dirname(path), created_folders)
    temporary = f"{path}.{os.getpid()}.new"
    descriptor = create(temporary, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
        if os.path.exists(like):
            status = os.stat(like)
            if (status.st_uid, status.st_gid) != (os.stat(temporary).st_uid, os.stat(temporary).st_gid):
                os.chown(temporary, status.st_uid, status.st_gid)
            shutil.copystat(like, temporary)
            os.utime(temporary)
        if change:
            _check(change)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _create_folders(folder: str, created_folders: list[str]) -> None:
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
        if folder == os.path.dirname(folder):
            break
    for path in reversed(missing):
        os.mkdir(path, 0o700)
        created_folders.append(path)


def _change_error(path: str, error: OSError) -> BackburnerError:
    reason = {errno.EROFS: "it is on a read-only file system", errno.EISDIR: "it is a folder"}.get(error.errno or 0, error.strerror)
    return BackburnerError(f"{path} cannot be changed: {reason}. Nothing was changed.")
