"""The way of a command's output: a pipe, the log it leads to, and the `cat` between them, out of reach of what is done to the run."""

import contextlib
import fcntl
import os
import subprocess

_PIPE_BYTES = 256 * 1024
_SETPIPE_SZ = 1031


class Child(subprocess.Popen):
    """A child that is meant to outlive us: letting go of it is no mistake to warn of."""

    def __del__(self) -> None:  # type: ignore[override]
        return


class OutputPipe:
    """A pipe, the log it leads to, and the `cat` between them. The log is locked for as long as anybody writes to it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reader, self.writer = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.writer, _SETPIPE_SZ, _PIPE_BYTES)
        self.log = -1
        try:
            self.log = open_log(path, os.O_CREAT | os.O_TRUNC)
            self.cat = pour(self.reader, self.log)
        except OSError:
            for descriptor in (self.reader, self.writer, self.log):
                if descriptor >= 0:
                    os.close(descriptor)
            raise

    def close(self) -> None:
        """Let go of what only the command and `cat` need; the reading end is kept, should `cat` meet a full disk."""
        os.close(self.writer)
        os.close(self.log)

    def abandon(self) -> None:
        """Nothing will come: `cat` ends with its input."""
        self.close()
        os.close(self.reader)
        self.cat.wait()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def pour(source: int, target: int) -> Child:
    """A `cat` from a pipe into a file, out of reach of whatever is done to the run's own processes."""
    return Child(["cat"], stdin=source, stdout=target, stderr=subprocess.DEVNULL, cwd="/", env={"PATH": os.defpath}, start_new_session=True)


def open_log(path: str, more: int = 0) -> int:
    """The log, to be appended to, locked for as long as anybody has this descriptor."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | more, 0o600)
    fcntl.flock(log, fcntl.LOCK_EX)
    return log
