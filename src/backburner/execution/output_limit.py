"""Limits the size of an output.log while it grows: its beginning and end are kept, and a hole is punched between them.

The log writer does this for the logs that it has locked. Offsets stay valid while the command runs. After the command has ended, the
log is rewritten as the beginning, a line that says how much is missing, and the end.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import os

from backburner.system.home import create, open_plain, write_atomically
from backburner.system.log_file import CAPPED, NAME, Cut, Log, cut_marker

_PUNCH_HOLE_KEEP_SIZE = 0x1 | 0x2
_BLOCK = 4096
_STEPS = 64  # a hole grows by this part of the limit at a time: by 1 MB of 64, as much as a pipe takes in meanwhile
_LONG_RECORD = 1024  # bytes of a `.capped` file that is written anew, with the sum of its lines
_MARKER_BYTES = 128  # reserved for the line that says how much is missing


class OutputLimit:
    """Keeps one log below about `limit` bytes on disk."""

    def __init__(self, folder: str, limit: int) -> None:
        self.path = os.path.join(folder, NAME)
        self._capped_file = os.path.join(folder, CAPPED)
        self._head = limit // 2 // _BLOCK * _BLOCK
        self._tail = limit - self._head
        self._step = limit // _STEPS
        self._punched = self._head
        self._folder = folder

    @property
    def is_exceeded(self) -> bool:
        """Whether something was removed from the log, or must be."""
        return os.path.exists(self._capped_file) or os.stat(self.path).st_size > self._head + self._tail

    def check(self, log: int, excess: int | None = None) -> int:
        """Remove what exceeds the limit by more than `excess` bytes from the open log; returns the descriptor to go on writing to.

        It is positioned at the end.
        """
        size, excess = os.fstat(log).st_size, self._step if excess is None else excess
        until = (size - self._tail + _MARKER_BYTES) // _BLOCK * _BLOCK + _BLOCK
        if size <= self._head + self._tail or until <= self._punched + excess:
            return log
        if not os.path.isfile(self._capped_file) or os.path.islink(self._capped_file):
            write_atomically(self._capped_file, "")
        with Log(self._folder) as old:
            lines = old.line_ends(self._punched, until)
        if _punch(log, self._punched, until - self._punched):
            self._punched = until
            with contextlib.suppress(OSError):  # only the number of lines is lost
                self._record(lines)
            return log
        return self._rewrite(log, size)

    def _record(self, lines: int) -> None:
        """Record how many lines were removed. They are added to the file, because replacing it each time waits for the disk."""
        record = open_plain(self._capped_file, os.O_WRONLY | os.O_APPEND)
        try:
            found = os.fstat(record)
            if found.st_size < _LONG_RECORD and found.st_nlink == 1:  # not another name of some other file
                os.write(record, f"\n{Cut(0, self._head, 0, 0, lines)}".encode())
                return
        finally:
            os.close(record)
        with Log(self._folder) as log:
            cuts = log.cuts()
            lines += log.removed_lines() - sum(cut.lines for cut in cuts)
        write_atomically(self._capped_file, "\n".join(map(str, [*cuts, Cut(0, self._head, 0, 0, lines)])))

    def _rewrite(self, log: int, size: int) -> int:
        """Without support for holes: replace the log by a shorter one. It is locked before it gets the name, as the old one was."""
        temporary = self.path + ".new"
        with Log(self._folder) as old:
            before = next(iter(old.cuts()), Cut(0, self._head, 0, 0))
            if before.start != self._head:
                return log  # it was cut with another limit
            kept = size - self._tail // 2
            dropped = before.dropped + kept - self._head - before.marker
            marker, lines = cut_marker(dropped), before.lines + old.line_ends(self._head + before.marker, kept)
            new = create(temporary)
            try:
                fcntl.flock(new, fcntl.LOCK_EX)
                with open(new, "wb", closefd=False) as file:
                    file.writelines(piece for _, piece in old.chunks(0, self._head))
                    file.write(marker)
                    file.writelines(piece for _, piece in old.chunks(kept, size))
                write_atomically(self._capped_file, str(Cut(os.fstat(new).st_ino, self._head, dropped, len(marker), lines)))
                os.replace(temporary, self.path)
            except OSError:
                os.close(new)
                raise
        os.close(log)
        return new

    def finish(self) -> None:
        """Replace the hole by its marker. Only when no process appends any more."""
        os.close(self.check(open_plain(self.path, os.O_RDWR), excess=0))
        if not os.path.exists(self._capped_file):
            return
        temporary = self.path + ".new"
        with Log(self._folder) as log:
            if not log.has_hole:
                return
            with open(create(temporary), "wb") as new:
                before, cuts, lines = 0, [], log.removed_lines()
                for after, piece in log.chunks(0):
                    if after - before != len(piece):  # a hole, read as its marker
                        cuts.append(Cut(os.fstat(new.fileno()).st_ino, new.tell(), after - before, len(piece), lines))
                        lines = 0
                    new.write(piece)
                    before = after
        write_atomically(self._capped_file, "\n".join(map(str, cuts)))
        os.replace(temporary, self.path)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _punch(descriptor: int, start: int, length: int) -> bool:
    if not hasattr(_libc(), "fallocate"):
        return False
    done = _libc().fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_longlong(start), ctypes.c_longlong(length))
    if done == 0:
        return True
    if ctypes.get_errno() in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(ctypes.get_errno(), "fallocate")
