"""Inspects a run through its folder and its processes: progress, artifacts, and ports it listens on.

All of this was written by the command: nothing is trusted, no link is followed, and every read is limited.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from backburner.core.models import ProcessId
from backburner.core.terminal_text import clean, shortened, visible
from backburner.system import run_files
from backburner.system.home import open_folder
from backburner.system.log_file import NAME, Log
from backburner.system.processes import members

if TYPE_CHECKING:
    from backburner.core.progress import Progress

PROGRESS = "progress.jsonl"
# Backburner's files that do not begin with a dot: they are in the folder of a run, and not in `work/`.
_OURS = frozenset([run_files.METADATA, run_files.RESULT, run_files.SPAN, run_files.EVENT, run_files.INPUTS, run_files.PRECHECK, NAME])
_OURS |= {run_files.CONVERSATION, run_files.STREAM, run_files.ERRORS}
_TAIL_BYTES = 64 * 1024
_MAX_LISTED_FILES = 20
_MAX_SCANNED_FILES = 100_000
_MAX_ARTIFACTS = 1000
_MAX_ARTIFACT_DEPTH = 8
_LISTENING = "0A"


def of_agent(activity: dict[str, Any]) -> "Progress | None":
    """The activity of an agent, whose progress cannot be measured: the number of tool calls and the latest ones."""
    calls, recent = activity.get("tools"), activity.get("recent")
    if not isinstance(calls, int) or not calls or not isinstance(recent, list):
        return None
    from backburner.core.progress import Progress

    names = ", ".join(shortened(clean(str(name)), longest=40) for name in recent[-3:])
    plural = "" if calls == 1 else "s"
    return Progress(None, None, None, f"{calls} tool call{plural}, last: {names}")


def progress(folder: str) -> "Progress | None":
    """The progress that the command reports, otherwise what can be concluded from its output; None if neither says anything."""
    from backburner.core.progress import observed, reported  # slow to import, and lists do not need it

    if found := reported(_end_of_progress_file(folder)):
        return found
    try:
        with Log(folder) as log:
            return observed(log.tail(4000, longest=_TAIL_BYTES).decode("utf-8", "replace"))
    except OSError:
        return None


def _end_of_progress_file(folder: str) -> bytes:
    """The end of the progress file; empty if it is not a regular file."""
    with contextlib.suppress(OSError), _open_command_folder(folder) as (place, _):
        descriptor = os.open(PROGRESS, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=place)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode):
                return os.pread(descriptor, _TAIL_BYTES, max(0, found.st_size - _TAIL_BYTES))
        finally:
            os.close(descriptor)
    return b""


def artifacts(folder: str) -> tuple[str, ...]:
    """The names of the files that the command left in `work/`, safe to print; a folder ends in a slash."""
    names = sorted(_artifact_names(folder))
    more = len(names) - _MAX_LISTED_FILES
    return (*(visible(name) for name in names[:_MAX_LISTED_FILES]), *((f"and {more} more",) if more > 0 else ()))


class Artifact(NamedTuple):
    """A file that a command left in `work/`. `name` is safe to show; `parts` are the names of its folders and its own, as they are."""

    name: str
    size: int
    modified_at: int
    parts: tuple[str, ...]


def artifact_files(folder: str) -> list[Artifact]:
    """The regular files below `work/`, in the order of their names. Links are left out, and what is deeper or more than the limits."""
    found: list[Artifact] = []
    with contextlib.suppress(OSError), _open_command_folder(folder) as (place, among_ours):
        _collect(place, (), found, _OURS if among_ours else frozenset())
    return sorted(found)


def find_artifact(folder: str, name: str) -> Artifact | None:
    """The file of a name, as it is or as it is shown. The name is compared with the files that exist, and never used as a path."""
    found = artifact_files(folder)
    return next((file for file in found if "/".join(file.parts) == name), None) or next((file for file in found if file.name == name), None)


def _collect(place: int, inside: tuple[str, ...], found: list[Artifact], left_out: frozenset[str]) -> None:
    with os.scandir(place) as items:
        for item in items:
            if len(found) >= _MAX_ARTIFACTS:
                return
            ours = left_out and (item.name in left_out or item.name.endswith(".new"))
            if ours or item.name.startswith(".") or (item.name == PROGRESS and not inside):
                continue
            parts = (*inside, item.name)
            if item.is_dir(follow_symlinks=False) and len(parts) < _MAX_ARTIFACT_DEPTH:
                with contextlib.suppress(OSError):
                    descriptor = open_folder(item.name, place)
                    try:
                        _collect(descriptor, parts, found, frozenset())
                    finally:
                        os.close(descriptor)
            elif item.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    about = item.stat(follow_symlinks=False)
                    found.append(Artifact(visible("/".join(parts)), about.st_size, int(about.st_mtime * 1000), parts))


def open_artifact(folder: str, artifact: Artifact) -> int:
    """Open such a file for reading; OSError if it was replaced by something else in the meantime."""
    with _open_command_folder(folder) as (place, _):
        place = os.dup(place)
        try:
            for part in artifact.parts[:-1]:
                inner = open_folder(part, place)
                os.close(place)
                place = inner
            descriptor = os.open(artifact.parts[-1], os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=place)
        finally:
            os.close(place)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def _artifact_names(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), _open_command_folder(folder) as (place, among_ours), os.scandir(place) as found:
        for number, item in enumerate(found):
            if number >= _MAX_SCANNED_FILES:
                return
            ours = among_ours and (item.name in _OURS or item.name.endswith(".new"))
            if item.name != PROGRESS and not item.name.startswith(".") and not ours:
                yield item.name + ("/" if item.is_dir(follow_symlinks=False) else "")


@contextlib.contextmanager
def _open_command_folder(folder: str) -> Generator[tuple[int, bool]]:
    """Open the folder that the command writes in: its descriptor, and whether Backburner's own files are in it too.

    That is `work/`. A run without it was started by an older version, and its command wrote into the folder of the run itself.
    """
    try:
        descriptor, among_ours = run_files.open_work(folder), False
    except FileNotFoundError:
        descriptor, among_ours = open_folder(folder), True
    try:
        yield descriptor, among_ours
    finally:
        os.close(descriptor)


def ports(leader: ProcessId | None, process_tag: str) -> list[int]:
    """The TCP ports that the processes of a run listen on; empty if that cannot be determined."""
    if leader is None:
        return []
    found = members(leader, process_tag)
    networks = {_network(member.pid): member.pid for member in found}  # a sandbox has its own
    listening = dict(socket for pid in networks.values() for socket in _sockets(pid))
    return sorted({listening[inode] for member in found for inode in _inodes(member) if inode in listening}) if listening else []


def _network(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _sockets(pid: int) -> Iterator[tuple[str, int]]:
    """(inode, port) of every listening TCP socket in the network of a process."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}") as file:
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
