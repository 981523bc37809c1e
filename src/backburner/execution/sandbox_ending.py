"""What happens after the end of a sandboxed command: its changes are kept for review, planted files are removed, and failures explained."""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Sequence
from typing import NamedTuple

from backburner.core.models import ProcessId, Task
from backburner.core.sandbox import Network, Sandbox, View
from backburner.core.sandbox_messages import (
    DEVICE,
    LOGIN,
    NETWORK,
    PROGRAM,
    SERVICE,
    SOCKET,
    missing_programs,
    refused_port,
    sandbox_reason,
)
from backburner.core.terminal_text import visible
from backburner.system import overlay, processes, run_files
from backburner.system.log_file import Log
from backburner.system.processes import executable_of
from backburner.system.project_files import OF_REPOSITORY, ProjectFiles, TooManyFolders, search

REMOVED = "removed"  # in the folder of a run: files that the command was not allowed to create
_MAX_TAIL_BYTES = 1 << 16


class SandboxEnding(NamedTuple):
    """What a person should know about a sandboxed command that has ended."""

    notes: tuple[str, ...] = ()
    reason: str | None = None  # why it may have failed because of the sandbox


def protected_before(sandbox: Sandbox, files: ProjectFiles) -> str:
    """Which protected files the project has before the command starts, as a line to keep in the exit file."""
    if sandbox.view is not View.WRITABLE or not sandbox.project:
        return ""
    return json.dumps({name: _identity(os.path.join(sandbox.project, name)) for name in files.protected})


def is_plain(sandbox: Sandbox, exit_code: int | None) -> bool:
    """Whether there is nothing to find out after the end: the command succeeded and could not change the project."""
    return exit_code == 0 and (sandbox.project is None or sandbox.view is View.READ_ONLY)


def finish(sandbox: Sandbox, task: Task, folder: str, exit_code: int | None, path: str) -> SandboxEnding:
    """Look at what a sandboxed command has left. `path` is the search path for programs outside of the sandbox."""
    notes: list[str] = []
    if sandbox.project and sandbox.view is View.WRITABLE:
        notes += _remove_planted(sandbox.project, folder, by_git=sandbox.git)
    elif sandbox.project and sandbox.view is View.COPY:
        notes += _count_changes(sandbox.project, task.task_id, folder)
    notes = list(map(visible, notes))  # names of files can hold anything, even bytes that are no text
    if not exit_code:
        return SandboxEnding(tuple(notes))
    try:
        with Log(folder) as log:
            tail = log.tail(1000, longest=_MAX_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        tail = ""
    return SandboxEnding(tuple(notes), _failure(sandbox, task, tail, exit_code, path))


def _failure(sandbox: Sandbox, task: Task, tail: str, exit_code: int, path: str) -> str | None:
    """Why it may have failed because of its sandbox; None if its sandbox permitted what it could not do."""
    reason = sandbox_reason(tail, exit_code)
    if reason == PROGRAM and not _exists_outside(tail, task, path):
        return None
    if reason in (NETWORK, SERVICE, DEVICE) and sandbox.network is Network.OPEN:
        return None
    if reason == SERVICE and sandbox.sockets:
        return None  # it had the sockets of its service
    if reason == LOGIN and sandbox.network is Network.OPEN and sandbox.project:
        return None  # it had the logins of its service
    if reason in (SERVICE, SOCKET) and (port := refused_port(tail)):
        if port in sandbox.connect:
            return None
        reason = f"it could not connect to port {port} of this machine"
        if sandbox.view is View.WRITABLE:
            reason += f" (to permit this to the sandboxed commands of this project: backburner trust --connect {port})"
    return reason


def _exists_outside(tail: str, task: Task, path: str) -> bool:
    """Whether one of the programs that were not found could be found outside."""
    return any(executable_of(name, task.spec.cwd, path) for name in missing_programs(tail) if not name.startswith("/dev"))


def monitor_of(members: Sequence[ProcessId]) -> ProcessId | None:
    """The process that passes on the command's exit code: that of bubblewrap outside of the sandbox, or the shim that is the first one inside."""
    for member in members:
        try:
            with open(f"/proc/{member.pid}/status") as file:
                status = dict(line.split(":", 1) for line in file if ":" in line)
        except OSError:
            continue
        is_bubblewrap, numbers = status["Name"].strip() == "bwrap", status.get("NSpid", "").split()
        if is_bubblewrap if len(numbers) == 1 else numbers[1:] == ["1"] and not is_bubblewrap:
            return member
    return None


def end_processes(folder: str, process_tag: str) -> None:
    """End what the command has left in its sandbox, by ending the first process of its namespace."""
    try:
        pid = json.loads(run_files.after_script(folder).split(b"\n")[1])["child-pid"]
        first = processes.identify(pid)
        if first and processes.tag_of(pid) == process_tag:
            processes.send(first, signal.SIGKILL)
    except (OSError, ValueError, KeyError, IndexError):
        return  # it never started


def _remove_planted(project: str, folder: str, *, by_git: bool) -> list[str]:
    """Move new files that other programs would use automatically to the folder of the run.

    Which of them git changes is known beforehand, but not that they complete a repository together with files that git does not track.
    """
    try:
        before = json.loads(run_files.after_script(folder).split(b"\n")[0])
        after = search(project, home=os.path.dirname(os.path.dirname(os.path.realpath(folder)))).protected
    except (OSError, ValueError, TooManyFolders):
        return ["files that other programs use automatically could not be checked"]
    planted = [name for name in after if before.get(name) != _identity(os.path.join(project, name))]
    planted = [
        name for name in planted if not by_git or os.path.basename(name) in OF_REPOSITORY or os.path.islink(os.path.join(project, name))
    ]
    moved = []
    for name in planted:
        target = os.path.join(folder, REMOVED, name)
        with contextlib.suppress(OSError, shutil.Error):
            os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            shutil.move(os.path.join(project, name), target)
            moved.append(name)
    left = [name for name in planted if name not in moved]
    notes = [f"removed {name}, which other programs use automatically; it is in {os.path.join(folder, REMOVED)}" for name in moved]
    return notes + [f"created {name}, which other programs use automatically, and it could not be removed" for name in left]


def _count_changes(project: str, task_id: str, folder: str) -> list[str]:
    upper = os.path.join(folder, run_files.CHANGES, "upper")
    try:
        found = overlay.changes(upper, project)
    except overlay.TooManyChanges as error:
        return [f"its changes to the project cannot be applied: {error}"]
    except OSError as error:
        return [f"its changes to the project cannot be read: {error}"]
    if found:
        count = "1 change to the project is" if len(found) == 1 else f"{len(found):,} changes to the project are"
        return [f"{count} kept in a copy; to apply: backburner apply {task_id}"]
    with contextlib.suppress(OSError):
        overlay.make_removable(os.path.dirname(upper))
    shutil.rmtree(os.path.dirname(upper), ignore_errors=True)
    return []


def _identity(path: str) -> list[object] | None:
    """What a command would change by replacing a protected file: the folder above it, or the link that it is. It is a mount otherwise."""
    try:
        return [os.lstat(os.path.dirname(path)).st_ino, os.readlink(path) if os.path.islink(path) else None]
    except OSError:
        return None
