"""Runs a command in a pseudo-terminal and copies what it prints: `terminal.py WORD…`, started by the shim of `run --tty`.

Programs then print each line at once, with colours and progress bars. Line ends stay as they are, without carriage returns.
"""

import fcntl
import os
import select
import signal
import struct
import sys
import termios

_COLUMNS, _ROWS = 80, 24
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # a cancel sends them to the command, too
_CHUNK = 1 << 16
_END_OF_INPUT = b"\x04"  # Ctrl-D


def main(words: list[str]) -> int:
    """Run the command to its end; returns its exit code, as a shell gives it."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    pid, master = os.forkpty()
    if pid == 0:
        _become(words)
    _copy(master, None if os.path.samestat(os.fstat(0), os.stat(os.devnull)) else 0, pid)
    os.close(master)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _become(words: list[str]) -> None:
    """Prepare the terminal and replace this process by the command."""
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    mode = termios.tcgetattr(0)
    mode[1] &= ~termios.ONLCR
    termios.tcsetattr(0, termios.TCSANOW, mode)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if os.environ.get("TERM", "dumb") == "dumb":
        os.environ["TERM"] = "xterm-256color"
    try:
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{words[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _copy(master: int, source: int | None, pid: int) -> None:
    """Copy until the command has ended, or no process has the terminal open any more. Descendants of the command then lose it."""
    ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    descriptors = [descriptor for descriptor in (master, source, ended) if descriptor is not None]
    while True:
        ready = select.select(descriptors, [], [])[0]
        if source in ready and not _pass(source, master):
            descriptors.remove(source)
            os.write(master, _END_OF_INPUT)
        if master in ready:
            if not _pass(master, 1):
                return
        elif ended in ready:
            return


def _pass(source: int, target: int) -> bool:
    """Copy what can be read now; False at the end."""
    try:
        data = os.read(source, _CHUNK)
    except OSError:  # EIO: the terminal was closed
        return False
    left = data
    while left:
        left = left[os.write(target, left) :]
    return bool(data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
