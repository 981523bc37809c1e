"""Bounds an output.log while it grows: its head and its tail stay, a hole is punched between them.

The command's output is appended by a process of its own, so nothing here is in its way. Offsets stay true while the
command runs; when it has ended the log is written anew as head, a line that says what is missing, and tail.
"""

import ctypes
import errno
import os
import signal
import time

from backburner.system import processes as process
from backburner.system.home import create, open_plain, write_atomically
from backburner.system.log_file import CAPPED, NAME, Cut, Log, cut_marker

_PUNCH_HOLE_KEEP_SIZE = 0x1 | 0x2
_BLOCK = 4096
_QUIET, _BUSY = 0.1, 0.02  # seconds until the next look
_FAST = 1 << 20  # bytes between two looks that call for the shorter wait
_STOP_SECONDS = 0.2  # how long the writer may take to stop
_MARKER = 128  # room for the line that says what is missing


class OutputLimit:
    """Keeps one log below `limit` bytes on disk. `writer` is the pid of the child that appends, where it is ours."""

    def __init__(self, folder: str, limit: int, writer: int | None) -> None:
        self.path = os.path.join(folder, NAME)
        self._mark = os.path.join(folder, CAPPED)
        self.writer = writer
        self._head = limit // 2 // _BLOCK * _BLOCK
        self._tail = limit - self._head
        self._punched = self._head
        self._seen = 0
        self._folder = folder
        self._dropped, self._marker = 0, b""  # what was cut where no hole can be punched, and the line that says so

    def look(self) -> float:
        """Cut what is too much; the seconds after which to look again if the log grew meanwhile."""
        try:
            size = os.stat(self.path).st_size
        except FileNotFoundError:
            return _QUIET
        grown, self._seen = size - self._seen, size
        until = (size - self._tail + _MARKER) // _BLOCK * _BLOCK + _BLOCK
        if size > self._head + self._tail and until > self._punched:
            self._cut(until)
            return _BUSY
        return _BUSY if grown > _FAST else _QUIET

    def grown(self) -> bool:
        """Whether the log changed since the last look."""
        try:
            return os.stat(self.path).st_size != self._seen
        except FileNotFoundError:
            return False

    def _cut(self, until: int) -> None:
        if not os.path.isfile(self._mark) or os.path.islink(self._mark):
            write_atomically(self._mark, "")
        descriptor = open_plain(self.path, os.O_RDWR)
        try:
            if _punch(descriptor, self._punched, until - self._punched):
                self._punched = until
            else:
                self._rewrite(descriptor)
        finally:
            os.close(descriptor)

    def _rewrite(self, descriptor: int) -> None:
        """Where no hole can be punched: hold the writer for a moment and move the tail up."""
        writer = process.identify(self.writer) if self.writer is not None else None
        if writer is None:
            return
        process.send(writer, signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_SECONDS
        while process.state_of(writer.pid) not in ("T", None) and time.monotonic() < deadline:
            time.sleep(0.0005)
        try:
            size = os.fstat(descriptor).st_size
            kept = os.pread(descriptor, self._tail // 2, size - self._tail // 2)
            self._dropped += size - self._head - len(self._marker) - len(kept)
            self._marker = cut_marker(self._dropped)
            os.ftruncate(descriptor, self._head)
            os.pwrite(descriptor, self._marker + kept, self._head)
            write_atomically(self._mark, str(Cut(os.fstat(descriptor).st_ino, self._head, self._dropped, len(self._marker))))
        finally:
            process.send(writer, signal.SIGCONT)

    def finish(self) -> None:
        """Close the gap for good: only once nobody appends any more."""
        self.look()
        if not os.path.exists(self._mark):
            return
        temporary = self.path + ".new"
        with Log(self._folder) as log:
            if not log.has_hole:
                return
            with open(create(temporary), "wb") as new:
                before, cuts = 0, []
                for after, piece in log.chunks(0):
                    if after - before != len(piece):  # a hole, as its marker
                        cuts.append(Cut(os.fstat(new.fileno()).st_ino, new.tell(), after - before, len(piece)))
                    new.write(piece)
                    before = after
        write_atomically(self._mark, "\n".join(map(str, cuts)))
        os.replace(temporary, self.path)


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
