"""Limits the size of an output.log while it grows: its beginning and end are kept, and a hole is punched between them.

A separate process appends the command's output, so this never blocks it. Offsets stay valid while the command runs. After
it has ended, the log is rewritten as the beginning, a line that says how much is missing, and the end.
"""

import ctypes
import errno
import os
import signal
import time

from backburner.system import processes
from backburner.system.home import create, open_plain, write_atomically
from backburner.system.log_file import CAPPED, NAME, Cut, Log, cut_marker

_PUNCH_HOLE_KEEP_SIZE = 0x1 | 0x2
_BLOCK = 4096
_QUIET_INTERVAL, _BUSY_INTERVAL = 0.1, 0.02  # seconds until the next check
_BUSY_BYTES = 1 << 20  # growth between two checks from which on the shorter interval is used
_STOP_TIMEOUT = 0.2  # seconds that the writer may take to stop
_MARKER_BYTES = 128  # reserved for the line that says how much is missing


class OutputLimit:
    """Keeps one log below `limit` bytes on disk. `writer` is the pid of the process that appends, if it is our child."""

    def __init__(self, folder: str, limit: int, writer: int | None) -> None:
        self.path = os.path.join(folder, NAME)
        self._capped_file = os.path.join(folder, CAPPED)
        self.writer = writer
        self._head = limit // 2 // _BLOCK * _BLOCK
        self._tail = limit - self._head
        self._punched = self._head
        self._seen = 0
        self._folder = folder
        self._dropped, self._marker = 0, b""  # bytes removed where no hole can be punched, and the line that says so

    def check(self) -> float:
        """Remove what exceeds the limit; returns the seconds after which to check again if the log has grown."""
        try:
            size = os.stat(self.path).st_size
        except FileNotFoundError:
            return _QUIET_INTERVAL
        grown, self._seen = size - self._seen, size
        until = (size - self._tail + _MARKER_BYTES) // _BLOCK * _BLOCK + _BLOCK
        if size > self._head + self._tail and until > self._punched:
            self._cut(until)
            return _BUSY_INTERVAL
        return _BUSY_INTERVAL if grown > _BUSY_BYTES else _QUIET_INTERVAL

    def has_changed(self) -> bool:
        """Whether the size of the log changed since the last check."""
        try:
            return os.stat(self.path).st_size != self._seen
        except FileNotFoundError:
            return False

    def _cut(self, until: int) -> None:
        if not os.path.isfile(self._capped_file) or os.path.islink(self._capped_file):
            write_atomically(self._capped_file, "")
        descriptor = open_plain(self.path, os.O_RDWR)
        try:
            if _punch(descriptor, self._punched, until - self._punched):
                self._punched = until
            else:
                self._rewrite(descriptor)
        finally:
            os.close(descriptor)

    def _rewrite(self, descriptor: int) -> None:
        """Without support for holes: stop the writer for a moment and move the end of the log forward."""
        writer = processes.identify(self.writer) if self.writer is not None else None
        if writer is None:
            return
        processes.send(writer, signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_TIMEOUT
        while processes.state_of(writer.pid) not in ("T", None) and time.monotonic() < deadline:
            time.sleep(0.0005)
        try:
            size = os.fstat(descriptor).st_size
            kept = os.pread(descriptor, self._tail // 2, size - self._tail // 2)
            self._dropped += size - self._head - len(self._marker) - len(kept)
            self._marker = cut_marker(self._dropped)
            os.ftruncate(descriptor, self._head)
            os.pwrite(descriptor, self._marker + kept, self._head)
            write_atomically(self._capped_file, str(Cut(os.fstat(descriptor).st_ino, self._head, self._dropped, len(self._marker))))
        finally:
            processes.send(writer, signal.SIGCONT)

    def finish(self) -> None:
        """Replace the hole by its marker. Only when no process appends any more."""
        self.check()
        if not os.path.exists(self._capped_file):
            return
        temporary = self.path + ".new"
        with Log(self._folder) as log:
            if not log.has_hole:
                return
            with open(create(temporary), "wb") as new:
                before, cuts = 0, []
                for after, piece in log.chunks(0):
                    if after - before != len(piece):  # a hole, read as its marker
                        cuts.append(Cut(os.fstat(new.fileno()).st_ino, new.tell(), after - before, len(piece)))
                    new.write(piece)
                    before = after
        write_atomically(self._capped_file, "\n".join(map(str, cuts)))
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
