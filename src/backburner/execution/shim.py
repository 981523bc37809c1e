"""The few lines of POSIX sh that hold a command: they outlive us and put its exit code where we will find it.

The shell reads its script from a locked file as its input: the lock says that it lives, whoever asks and whenever, and
neither the command's words nor the task's id are in its command line, where another `pkill -f` would find them.
"""

import contextlib
import json
import os
import re
import shlex
import sys

from backburner.core.models import Task
from backburner.system import run_files as folders
from backburner.system.processes import INSIDE, executable_of
from backburner.system.run_files import EXIT, INPUT, SCRIPT
from backburner.system.unapproved import MAX_FILE_BYTES

ENVIRONMENT = ".environment"
_CPU_GRACE = 5  # seconds of CPU between the signal that can be caught and the one that cannot
_BLANK = b"    "  # written beforehand, so that a full disk cannot keep the code from being written over it

# What a shell does not hand on as it got it: names it cannot hold, and names it keeps for itself.
_SPECIAL = re.compile(r"(OPTIND|PPID|IFS|LINENO)$|(?![A-Za-z_][A-Za-z0-9_]*$)", re.ASCII)
_EXEC = "import json,os,sys; e=json.load(open(sys.argv[1])); os.execvpe(sys.argv[2], sys.argv[2:], e)"


def prepare(folder: str, task: Task, environment: dict[str, str], files: int | None = None) -> dict[str, str]:
    """Write the script and the blank exit file of one run; the environment to start the shim with."""
    argv = ("/bin/sh", "-c", task.spec.command.words[0]) if task.spec.command.shell else task.spec.command.words
    given = environment
    if any(map(_SPECIAL.match, environment)):
        # Rare, and an interpreter's start dearer: a shell in between would lose part of the environment.
        path = os.path.join(folder, ENVIRONMENT)
        _write(path, json.dumps(environment).encode())
        argv = (sys.executable, "-ISc", _EXEC, path, *argv)
        given = {name: value for name, value in environment.items() if not _SPECIAL.match(name)}
    limits = task.spec.command.limits
    if limits.nice is not None:
        # by its path: the command's own PATH may lead elsewhere
        argv = (executable_of("nice", "/", os.defpath) or "/usr/bin/nice", "-n", str(limits.nice), *argv)
    words = " ".join(map(shlex.quote, argv))
    code = shlex.quote(os.path.join(folder, EXIT))
    source, fifo = "</dev/null", os.path.join(folder, INPUT)
    if task.spec.command.stdin:
        with contextlib.suppress(FileExistsError):  # of a start that had to be tried again
            os.mkfifo(fifo, 0o600)
        source = f"<{shlex.quote(fifo)} 4>&-"
    lines = [
        "trap : TERM INT HUP",
        *([f"umask {task.spec.command.umask:04o}"] if task.spec.command.umask is not None else []),
        *([f"ulimit -Sn {files}"] if files is not None else []),
        "exec 3>&2 2>/dev/null",  # the shell's own words about the command's end are not the command's output
        f"ulimit -w {INSIDE} || ulimit -x {INSIDE}",  # file locks: -w in dash and ash, -x in bash and ksh; see process.INSIDE
        # held open, so that the input does not end between two sends
        *([f"exec 4<>{shlex.quote(fifo)}"] if task.spec.command.stdin else []),
        f"printf s 1<>{code}",
        f"({_limits(task)}exec {source} 2>&3 3>&- {words})",
        f"printf '%-4s' \"$?\" 1<>{code}",
        "exit 0",
    ]
    _write(os.path.join(folder, EXIT), _BLANK)
    _write(os.path.join(folder, SCRIPT), os.fsencode("\n".join(lines) + "\n"))
    return given


def _limits(task: Task) -> str:
    """What the shell sets for the command alone. RLIMIT_DATA: address space merely reserved, as many runtimes do, is not counted."""
    limits = task.spec.command.limits
    lines = [f"ulimit -d {limits.memory_mb * 1024}"] if limits.memory_mb is not None else []
    if seconds := limits.cpu_seconds:
        lines += [f"ulimit -St {seconds}", f"ulimit -Ht {seconds + _CPU_GRACE}"]
    if task.is_unapproved:
        lines.append(f"ulimit -f {MAX_FILE_BYTES // 512}")
    return "".join(f"{line}; " for line in lines)


def ended_at(folder: str) -> int:
    """When the code was written, in milliseconds UTC."""
    return os.stat(os.path.join(folder, EXIT)).st_mtime_ns // 1_000_000


def has_begun(folder: str) -> bool:
    """Whether the shim came as far as starting the command."""
    return folders.exit_text(folder) != ""


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
