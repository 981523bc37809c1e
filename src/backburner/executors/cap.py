"""Bounds an output.log while it grows: its head and its tail stay, a hole is punched between them.

The command's output is appended by a process of its own, so nothing here is in its way. Offsets stay true while the
command runs; when it has ended the log is written anew as head, a line that says what is missing, and tail.
"""

import ctypes
import errno
import os
import signal

from backburner import process
from backburner.models import ProcessId
from backburner.output import CAPPED, NAME, cut_marker

_PUNCH_HOLE_KEEP_SIZE = 0x1 | 0x2
_BLOCK = 4096
_QUIET, _BUSY = 0.25, 0.02  # seconds until the next look
_FAST = 1 << 20  # bytes between two looks that call for the shorter wait
_COPY = 1 << 20


class Cap:
    """Keeps one log below `limit` bytes on disk. `writer` is the process that appends, where it is known."""

    def __init__(self, folder: str, limit: int, writer: ProcessId | None) -> None:
        self.path = os.path.join(folder, NAME)
        self._mark = os.path.join(folder, CAPPED)
        self._writer = writer
        self._head = limit // 2 // _BLOCK * _BLOCK
        self._tail = limit - self._head
        self._punched = self._head
        self._seen = 0

    def look(self) -> float:
        """Cut what is too much; the seconds after which to look again if the log grew meanwhile."""
        try:
            size = os.stat(self.path).st_size
        except FileNotFoundError:
            return _QUIET
        grown, self._seen = size - self._seen, size
        until = (size - self._tail) // _BLOCK * _BLOCK
        if size > self._head + self._tail and until > self._punched:
            self._cut(until)
            return _BUSY
        return _BUSY if grown > _FAST else _QUIET

    def _cut(self, until: int) -> None:
        with open(self._mark, "a"):
            pass
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            if _punch(descriptor, self._punched, until - self._punched):
                self._punched = until
            else:
                self._rewrite(descriptor)
        finally:
            os.close(descriptor)

    def _rewrite(self, descriptor: int) -> None:
        """Where no hole can be punched: hold the writer for a moment and move the tail up."""
        if self._writer is None:
            return
        process.send(self._writer, signal.SIGSTOP)
        try:
            size = os.fstat(descriptor).st_size
            kept = os.pread(descriptor, self._tail // 2, size - self._tail // 2)
            os.ftruncate(descriptor, self._head)
            os.pwrite(descriptor, cut_marker(size - self._head - len(kept)) + kept, self._head)
        finally:
            process.send(self._writer, signal.SIGCONT)

    def finish(self) -> None:
        """Close the gap for good: only once nobody appends any more."""
        if not os.path.exists(self._mark):
            return
        self.look()
        temporary = self.path + ".new"
        with open(self.path, "rb") as old:
            size = os.fstat(old.fileno()).st_size
            start = max(self._head, (size - self._tail) // _BLOCK * _BLOCK)
            if start > self._head and hasattr(os, "SEEK_DATA") and os.lseek(old.fileno(), self._head, os.SEEK_DATA) > self._head:
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as new:
                    _copy(old.fileno(), new.fileno(), 0, self._head)
                    os.write(new.fileno(), cut_marker(start - self._head))
                    _copy(old.fileno(), new.fileno(), start, size)
                os.replace(temporary, self.path)


def _copy(source: int, target: int, start: int, end: int) -> None:
    while start < end and (piece := os.pread(source, min(_COPY, end - start), start)):
        os.write(target, piece)
        start += len(piece)


def _punch(descriptor: int, start: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "fallocate"):
        return False
    done = libc.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_longlong(start), ctypes.c_longlong(length))
    if done == 0:
        return True
    if ctypes.get_errno() in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(ctypes.get_errno(), "fallocate")
