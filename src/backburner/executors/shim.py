"""The few lines of POSIX sh that hold a command: they outlive us and put its exit code where we will find it.

The shell reads its script from a locked file as its input: the lock says that it lives, whoever asks and whenever, and
neither the command's words nor the task's id are in its command line, where another `pkill -f` would find them.
"""

import json
import os
import re
import shlex
import sys

from backburner import folders
from backburner.folders import EXIT

SCRIPT, ENVIRONMENT = ".shim", ".environment"
_BLANK = b"    "  # written beforehand, so that a full disk cannot keep the code from being written over it

# What a shell does not hand on as it got it: names it cannot hold, and names it keeps for itself.
_SPECIAL = re.compile(r"(OPTIND|PPID|IFS|LINENO)$|(?![A-Za-z_][A-Za-z0-9_]*$)", re.ASCII)
_EXEC = "import json,os,sys; e=json.load(open(sys.argv[1])); os.execvpe(sys.argv[2], sys.argv[2:], e)"


def prepare(
    folder: str, command: tuple[str, ...], shell: bool, environment: dict[str, str], umask: int | None = None, files: int | None = None
) -> dict[str, str]:
    """Write the script and the blank exit file of one run; the environment to start the shim with."""
    argv = ("/bin/sh", "-c", command[0]) if shell else command
    given = environment
    if any(map(_SPECIAL.match, environment)):
        # Rare, and an interpreter's start dearer: a shell in between would lose part of the environment.
        path = os.path.join(folder, ENVIRONMENT)
        _write(path, json.dumps(environment).encode())
        argv = (sys.executable, "-ISc", _EXEC, path, *argv)
        given = {name: value for name, value in environment.items() if not _SPECIAL.match(name)}
    words = " ".join(map(shlex.quote, argv))
    code = shlex.quote(os.path.join(folder, EXIT))
    lines = [
        "trap : TERM INT HUP",
        *([f"umask {umask:04o}"] if umask is not None else []),
        *([f"ulimit -Sn {files}"] if files is not None else []),
        "exec 3>&2 2>/dev/null",  # the shell's own words about the command's end are not the command's output
        f"printf s 1<>{code}",
        f"(exec </dev/null 2>&3 3>&- {words})",
        f"printf '%-4s' \"$?\" 1<>{code}",
        "exit 0",
    ]
    _write(os.path.join(folder, EXIT), _BLANK)
    _write(os.path.join(folder, SCRIPT), os.fsencode("\n".join(lines) + "\n"))
    return given


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
