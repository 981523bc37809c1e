"""The path of a command's output: a pipe, a log, and the `cat` between them, which signals to the run do not reach."""

import contextlib
import fcntl
import os
import subprocess

_PIPE_BYTES = 256 * 1024
_SETPIPE_SZ = 1031


class Child(subprocess.Popen):
    """A child process that is meant to outlive this process, so an unreaped one is not reported."""

    def __del__(self) -> None:  # type: ignore[override]
        return


class OutputPipe:
    """A pipe, the log it is written to, and the `cat` between them. The log is locked while any process can write to it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reader, self.writer = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.writer, _SETPIPE_SZ, _PIPE_BYTES)
        self.log = -1
        try:
            self.log = open_log(path, os.O_CREAT | os.O_TRUNC)
            self.cat = start_cat(self.reader, self.log)
        except OSError:
            for descriptor in (self.reader, self.writer, self.log):
                if descriptor >= 0:
                    os.close(descriptor)
            raise

    def close(self) -> None:
        """Close what only the command and `cat` need; the read end stays open in case `cat` fails because the disk is full."""
        os.close(self.writer)
        os.close(self.log)

    def abandon(self) -> None:
        """Remove an unused pipe and its log; `cat` ends when its input is closed."""
        self.close()
        os.close(self.reader)
        self.cat.wait()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def start_cat(source: int, target: int) -> Child:
    """Start a `cat` from a pipe into a file, in its own session so that signals to the run do not reach it."""
    return Child(["cat"], stdin=source, stdout=target, stderr=subprocess.DEVNULL, cwd="/", env={"PATH": os.defpath}, start_new_session=True)


def open_log(path: str, flags: int = 0) -> int:
    """Open a log for appending; it is locked while any process has this descriptor."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | flags, 0o600)
    fcntl.flock(log, fcntl.LOCK_EX)
    return log
