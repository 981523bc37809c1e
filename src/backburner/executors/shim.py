"""The few lines of POSIX sh that hold a command: they outlive us and put its exit code where we will find it.

The shell reads its script from a locked file as its input: the lock says that it lives, whoever asks and whenever, and
neither the command's words nor the task's id are in its command line, where another `pkill -f` would find them.
"""

import os
import shlex

EXIT, SCRIPT = ".exit", ".shim"
_WAITING, _BEGUN = "", "s"
_BLANK = b"    "  # written beforehand, so that a full disk cannot keep the code from being written over it


def prepare(folder: str, command: tuple[str, ...], shell: bool) -> None:
    """Write the script and the blank exit file of one run."""
    argv = ("/bin/sh", "-c", command[0]) if shell else command
    words = " ".join(map(shlex.quote, argv))
    code = shlex.quote(os.path.join(folder, EXIT))
    script = f"trap : TERM INT HUP\nprintf s 1<>{code}\n(exec </dev/null {words})\nprintf '%-4s' \"$?\" 1<>{code}\nexit 0\n"
    _write(os.path.join(folder, EXIT), _BLANK)
    _write(os.path.join(folder, SCRIPT), os.fsencode(script))


def exit_code(folder: str) -> int | None:
    """The code the command ended with; None where it has not, or where nobody was there to write it."""
    text = _read(folder)
    return int(text) if text.isdigit() else None


def has_begun(folder: str) -> bool:
    """Whether the shim came as far as starting the command."""
    return _read(folder) != _WAITING


def _read(folder: str) -> str:
    try:
        with open(os.path.join(folder, EXIT)) as file:
            return file.read().strip("\0 \n")
    except FileNotFoundError:
        return _WAITING


def _write(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
