"""Signs of life of a run, read from its folder and its processes: how far it is, the files it left, the ports it listens on.

Everything here was written by the command or by whoever it runs: nothing is trusted, followed or read to its end.
"""

import contextlib
import os
import stat
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from backburner.core.models import ProcessId
from backburner.core.terminal_text import clean, shortened, visible
from backburner.system import run_files as folders
from backburner.system.home import open_folder
from backburner.system.log_file import NAME, Log
from backburner.system.processes import members

if TYPE_CHECKING:
    from backburner.core.progress import Progress

PROGRESS = "progress.jsonl"
# Our files that do not begin with a dot: they are in the folder of a run, and not in `work/`.
_OURS = frozenset([folders.METADATA, folders.RESULT, folders.SPAN, folders.EVENT, folders.INPUTS, folders.PRECHECK, NAME])
_OURS |= {folders.CONVERSATION, folders.STREAM, folders.ERRORS}
_TAIL = 64 * 1024
_MOST_FILES = 20
_MOST_LOOKED_AT = 100_000
_LISTENING = "0A"


def of_agent(activity: dict[str, Any]) -> "Progress | None":
    """How far an agent is: nobody knows, but what it does can be said."""
    calls, recent = activity.get("tools"), activity.get("recent")
    if not isinstance(calls, int) or not calls or not isinstance(recent, list):
        return None
    from backburner.core.progress import Progress

    names = ", ".join(shortened(clean(str(name)), longest=40) for name in recent[-3:])
    return Progress(None, None, None, f"{calls} tool call{'s' if calls != 1 else ''}, last: {names}")


def progress(folder: str) -> "Progress | None":
    """How far the command says it is, else what its output tells; None where neither says anything."""
    from backburner.core.progress import observed, reported  # slow to load, and lists need none

    if found := reported(_end_of_progress_file(folder)):
        return found
    try:
        with Log(folder) as log:
            return observed(log.tail(4000, longest=_TAIL).decode("utf-8", "replace"))
    except OSError:
        return None


def _end_of_progress_file(folder: str) -> bytes:
    """The end of what the command wrote there; nothing where there is no plain file, but something that would block or never end."""
    with contextlib.suppress(OSError), _open_command_folder(folder) as (place, _):
        descriptor = os.open(PROGRESS, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=place)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode):
                return os.pread(descriptor, _TAIL, max(0, found.st_size - _TAIL))
        finally:
            os.close(descriptor)
    return b""


def artifacts(folder: str) -> tuple[str, ...]:
    """What the command left in `work/`, by name and fit to be shown; a folder of its own ends in a slash."""
    names = sorted(_left(folder))
    more = len(names) - _MOST_FILES
    return (*(visible(name) for name in names[:_MOST_FILES]), *((f"and {more} more",) if more > 0 else ()))


def _left(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), _open_command_folder(folder) as (place, among_ours), os.scandir(place) as found:
        for number, one in enumerate(found):
            if number >= _MOST_LOOKED_AT:
                return
            ours = among_ours and (one.name in _OURS or one.name.endswith(".new"))
            if one.name != PROGRESS and not one.name.startswith(".") and not ours:
                yield one.name + ("/" if one.is_dir(follow_symlinks=False) else "")


@contextlib.contextmanager
def _open_command_folder(folder: str) -> Generator[tuple[int, bool]]:
    """Open the folder that the command of a run writes in: its descriptor, and whether our own files are in it too.

    That is `work/`. A run without it was started before there was one: its command wrote into the folder of the run itself.
    """
    try:
        descriptor, among_ours = folders.open_work(folder), False
    except FileNotFoundError:
        descriptor, among_ours = open_folder(folder), True
    try:
        yield descriptor, among_ours
    finally:
        os.close(descriptor)


def ports(leader: ProcessId | None, mark: str) -> list[int]:
    """The TCP ports that the processes of a run listen on; none where that cannot be seen."""
    listening = dict(_sockets())
    if leader is None or not listening:
        return []
    return sorted({listening[inode] for one in members(leader, mark) for inode in _inodes(one) if inode in listening})


def _sockets() -> Iterator[tuple[str, int]]:
    """(inode, port) of every listening TCP socket of the machine."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        yield from ((row[9], int(row[1].rpartition(":")[2], 16)) for row in rows if row[3] == _LISTENING)


def _inodes(process: ProcessId) -> Iterator[str]:
    folder = f"/proc/{process.pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(os.path.join(folder, name))
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target[8:-1]
