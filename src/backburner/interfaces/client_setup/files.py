"""Reads and replaces the files of other programs: all of a set of changes or none, each file as a whole, through links to the
real one, with its mode and owner. The state before the first change is kept beside it as NAME.before-backburner.
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
    """A file as it is and as it shall be; None where there is none. `first` says that it holds nothing of ours yet."""

    path: str
    before: str | None
    after: str | None
    first: bool = True


def read(path: str) -> str | None:
    """A file's text with the line ends and the mark it has; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot(path, error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BackburnerError(f"{path} is not a file. Nothing was changed.")
    with open(descriptor, "rb") as file:
        try:
            return file.read().decode()
        except UnicodeDecodeError as error:
            raise BadInput(f"{path} is not valid UTF-8 (byte {error.start}). Nothing was changed.") from None


def apply(changes: Sequence[Change], *, undo: bool = False) -> None:
    """Make all changes, or none. A file that is not as `before` says any more stops everything; undoing drops the backups."""
    kept: list[str] = []
    made: list[str] = []
    done: list[Change] = []
    at = ""
    try:
        for change in changes if not undo else ():
            at = change.path
            if change.before is not None and (change.first or not os.path.lexists(at + BACKUP)):
                _check(change)
                _write(at + BACKUP, change.before, like=os.path.realpath(at), made=made)
                kept.append(at + BACKUP)
        for change in changes:
            at = change.path
            _make(change, made)
            done.append(change)
    except BaseException as error:
        left = _put_back(done, kept, made)
        problem = _cannot(at, error) if isinstance(error, OSError) else error
        if left:
            raise BackburnerError(f"{problem} But {left} could not be put back; as it was before it is {left}{BACKUP}.") from None
        raise problem from None
    for change in changes if undo else ():
        with contextlib.suppress(OSError):
            os.unlink(change.path + BACKUP)


def _put_back(done: list[Change], kept: list[str], made: list[str]) -> str:
    """Undo what was done so far; the file with which that failed, if any."""
    left = ""
    for change in reversed(done):
        try:
            _make(Change(change.path, change.after, change.before), [])
        except (OSError, BackburnerError):
            left = change.path
    for path in kept if not left else ():
        with contextlib.suppress(OSError):
            os.unlink(path)
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return left


def _make(change: Change, made: list[str]) -> None:
    real = os.path.realpath(change.path)
    if change.after is not None:
        _write(real, change.after, like=real, made=made, change=change)
        return
    _check(change)
    os.unlink(real)
    if os.path.basename(os.path.dirname(real)) == "backburner":
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(real))


def _check(change: Change) -> None:
    real = os.path.realpath(change.path)
    if read(change.path) != change.before:
        raise BackburnerError(f"{change.path} was changed by somebody else meanwhile. Nothing was changed; try again.")
    if change.before is not None and not os.access(real, os.W_OK):
        raise BackburnerError(f"{change.path} is read-only. Nothing was changed.")


def _write(path: str, text: str, *, like: str, made: list[str], change: Change | None = None) -> None:
    """Replace one file; `like` is where mode and owner come from, `change` is looked at a last time just before."""
    _folders(os.path.dirname(path), made)
    temporary = f"{path}.{os.getpid()}.new"
    descriptor = create(temporary, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
        if os.path.exists(like):
            found = os.stat(like)
            if (found.st_uid, found.st_gid) != (os.stat(temporary).st_uid, os.stat(temporary).st_gid):
                os.chown(temporary, found.st_uid, found.st_gid)
            shutil.copystat(like, temporary)
            os.utime(temporary)
        if change:
            _check(change)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _folders(folder: str, made: list[str]) -> None:
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
        if folder == os.path.dirname(folder):
            break
    for path in reversed(missing):
        os.mkdir(path, 0o700)
        made.append(path)


def _cannot(path: str, error: OSError) -> BackburnerError:
    what = {errno.EROFS: "it is on a read-only file system", errno.EISDIR: "it is a folder"}.get(error.errno or 0, error.strerror)
    return BackburnerError(f"{path} cannot be changed: {what}. Nothing was changed.")
