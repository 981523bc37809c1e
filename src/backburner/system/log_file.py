"""Reads a run's output.log: without its header, past the hole of a capped log, from an offset or from the end.

Never writes a log. A file `.capped` next to it says that a hole in it was punched by Backburner and is not zeros of the command,
and, after the hole was closed, what was removed where. A *cursor* counts all bytes ever written, so removals do not shift it.
"""

import os
from collections.abc import Callable, Iterator

from backburner.core.errors import BadInput
from backburner.core.light_typing import NamedTuple
from backburner.core.terminal_text import clean
from backburner.system.home import open_plain, read_plain

NAME, CAPPED = "output.log", ".capped"
_FIRST, _LAST = b"# Background task: ", b"\n# Started: "
_SHORT_HEADER = 2048  # bytes; nearly every header is shorter
_CHUNK = 1 << 20
_COUNTED = 1 << 16  # bytes that are read at once to be counted; memory of this size is not returned to the system each time
_MAX_VALUE_CHARACTERS = 4000
_MAX_CAPPED_BYTES = 4096


def header(lines: dict[str, str]) -> bytes:
    """The `#` lines at the beginning of a log; the first is `Background task`, the last `Started`."""
    text = "".join(f"# {name}: {_shortened(clean(value))}\n" for name, value in lines.items())
    return text.encode("utf-8", "surrogateescape")


def _shortened(value: str) -> str:
    return value if len(value) <= _MAX_VALUE_CHARACTERS else value[:_MAX_VALUE_CHARACTERS] + "…"


def cut_marker(dropped: int) -> bytes:
    """The text that replaces removed output."""
    return f"\n[backburner: {dropped:,} bytes of output left out here]\n".encode()


def _cut(data: bytes) -> bytes:
    """`data` up to the end of its last line, or of its last whole character."""
    if (newline := data.rfind(b"\n")) >= 0:
        return data[: newline + 1]
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 != 0x80:  # not in the middle of a character
            width = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return data[:-back] if width > back and len(data) > back else data
    return data


def digest(folder: str) -> str:
    """A hash of the output; equal for equal output."""
    import hashlib

    found = hashlib.sha256()
    try:
        with Log(folder) as log:
            for _, chunk in log.chunks(log.body_start()):
                found.update(chunk)
    except OSError:
        return ""
    return found.hexdigest()


def small_output(folder: str, limit: int) -> bytes | None:
    """The output of a command, if it has at most `limit` bytes and nothing was removed from it; otherwise None. Faster than `Log`."""
    if os.path.lexists(f"{folder}/{CAPPED}"):
        return None
    descriptor = open_plain(f"{folder}/{NAME}")
    try:
        found = os.read(descriptor, limit + 1)
    finally:
        os.close(descriptor)
    return found[body_start_of(found) or 0 :] if len(found) <= limit else None


def body_start_of(beginning: bytes) -> int | None:
    """The offset at which the command's own output begins; None if more of the log is needed to tell."""
    if not beginning.startswith(_FIRST):
        return 0
    last = beginning.find(_LAST)
    end = beginning.find(b"\n", last + 1) if last >= 0 else -1
    return end + 1 if end >= 0 else None


class Cut(NamedTuple):
    """A closed gap: from `start` on, `dropped` bytes with `lines` line ends are missing and `marker` bytes replace them.

    Valid for one inode. With inode 0 it only counts the lines that were removed from holes, which are not closed yet.
    """

    inode: int
    start: int
    dropped: int
    marker: int
    lines: int = 0

    def __str__(self) -> str:
        return " ".join(map(str, self))


class Piece(NamedTuple):
    """A limited part of the output; `cursor` is where the next part begins, and `more` says that it already has data."""

    data: bytes
    cursor: str
    more: bool
    note: str = ""  # why this is not all of it


class Log:
    """An open output.log. Offsets are offsets in the file and stay valid while it grows."""

    note = ""  # why this is not the whole log
    is_remote = False

    def __init__(self, folder: str, name: str = NAME) -> None:
        self._descriptor = open_plain(os.path.join(folder, name))
        self._mark = os.path.join(folder, CAPPED)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    @property
    def inode(self) -> int:
        return os.fstat(self._descriptor).st_ino

    def first_gap(self) -> tuple[int, int]:
        """Where the first hole begins, and where the data after it begins; both -1 if there is none."""
        size = self.size
        hole = self._extent(0, size)[1]
        return (hole, self._extent(hole, size)[0]) if hole < size else (-1, -1)

    def body_start(self) -> int:
        """The offset at which the command's own output begins."""
        for size in (_SHORT_HEADER, 1 << 18):
            if (start := body_start_of(os.pread(self._descriptor, size, 0))) is not None:
                return start
        return 0

    def chunks(self, start: int, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """The data from `start` to `end` as (offset after it, bytes); a hole is returned as its marker."""
        position = start
        end = self.size if end is None else end
        while position < end:
            data, hole = self._extent(position, end)
            if data > position:
                yield data, cut_marker(data - position)
                position = data
                continue
            piece = os.pread(self._descriptor, min(_CHUNK, hole - position), position)
            if not piece:
                return
            position += len(piece)
            yield position, piece

    def data_ranges(self) -> list[tuple[int, int, int]]:
        """What this log contains, by cursor: the cursors of the first byte and after the last one, and the offset in the file.

        What was removed is between them. Unlike offsets, cursors stay valid when a hole is closed.
        """
        found, position, size, cuts = [], 0, self.size, self.cuts()
        while position < size:
            start, hole = self._extent(position, size)
            for cut in [*cuts, Cut(0, hole, 0, 0)]:
                if start < min(hole, cut.start):
                    end = min(hole, cut.start)
                    shift = self.cursor(start) - start
                    found.append((start + shift, end + shift, start))
                start = max(start, min(hole, cut.start + cut.marker))
            position = max(hole, position + 1)
        return found

    def read(self, offset: int, size: int) -> bytes:
        """Some bytes of the file."""
        return os.pread(self._descriptor, size, offset)

    def bounded(self, limit: int) -> Iterator[bytes]:
        """The output; if it is larger than `limit` bytes, the first and last half of that, with a marker between them."""
        start, end = self.body_start(), self.size
        if end - start <= limit:
            yield from (piece for _, piece in self.chunks(start, end))
            return
        head, tail = self._before_hole(start + limit // 2), self._extent(end - limit // 2, end)[0]
        yield from (piece for _, piece in self.chunks(start, head))
        yield cut_marker(tail - head)
        yield from (piece for _, piece in self.chunks(tail, end))

    def piece(self, start: int, max_bytes: int) -> tuple[int, bytes]:
        """At most `max_bytes` bytes from `start` as (offset after them, bytes), cut at a line end or between characters."""
        position, found = start, b""
        for after, chunk in self.chunks(start):
            room = max_bytes - len(found)
            if len(chunk) <= room:
                position, found = after, found + chunk
                continue
            cut = b"" if after - position != len(chunk) else _cut(chunk[:room])  # a marker represents more bytes than it has
            if not found and not cut:
                return after, chunk[:room]
            return position + len(cut), found + cut
        return position, found

    def lines_with(self, text: str, start: int, max_bytes: int, *, growing: bool) -> tuple[int, bytes]:
        """The lines from `start` that contain a text (ignoring case) as (offset after them, bytes); at most `max_bytes` bytes.

        A longer line is cut. The last line of a growing log may be incomplete: it is left for the next call.
        """
        wanted, found, line, line_start = text.casefold(), b"", b"", start
        for after, chunk in self.chunks(start):
            whole = after - (line_start + len(line)) == len(chunk)  # false for a marker, and after a marker within a line
            for part in chunk.splitlines(keepends=True):
                line += part
                if not line.endswith(b"\n"):
                    continue
                if wanted in line.decode("utf-8", "replace").casefold():
                    if found and len(found) + len(line) > max_bytes:
                        return line_start, found
                    found += line if len(line) <= max_bytes else line[: max_bytes - 1] + b"\n"
                line_start, line = (line_start + len(line) if whole else after), b""
        if line and not growing:
            if wanted in line.decode("utf-8", "replace").casefold() and (not found or len(found) + len(line) <= max_bytes):
                return line_start + len(line), found + line[:max_bytes]
            return (line_start if found and wanted in line.decode("utf-8", "replace").casefold() else line_start + len(line)), found
        return line_start, found

    def cursor(self, position: int) -> int:
        """The cursor of an offset in the file."""
        return position + sum(cut.dropped - cut.marker for cut in self.cuts() if position >= cut.start + cut.marker)

    def position(self, cursor: int) -> int:
        """The offset in the file of a cursor; the offset of the marker if the data at the cursor was removed."""
        missing = 0
        for cut in self.cuts():
            if cursor < cut.start + missing:
                break
            if cursor < cut.start + missing + cut.dropped:
                return max(cut.start, self.body_start())
            missing += cut.dropped - cut.marker
        return max(cursor - missing, self.body_start())

    def cuts(self) -> list[Cut]:
        """What was removed from this file, in file order."""
        return [cut for cut in self._recorded_cuts() if cut.inode == os.fstat(self._descriptor).st_ino]

    def removed_lines(self) -> int:
        """The number of line ends in what was removed from this file."""
        return sum(cut.lines for cut in self._recorded_cuts() if cut.inode in (0, os.fstat(self._descriptor).st_ino))

    def _recorded_cuts(self) -> list[Cut]:
        try:
            return [Cut(*map(int, line.split())) for line in read_plain(self._mark, _MAX_CAPPED_BYTES).split(b"\n") if line]
        except (OSError, ValueError, TypeError):
            return []

    def tail(self, lines: int, *, longest: int = 1 << 20, end: int | None = None) -> bytes:
        """The last `lines` lines of the output up to `end`, at most `longest` bytes."""
        end, first = self.size if end is None else end, self.body_start()
        start, found = end, b""
        while lines > 0 and start > first and end - start < longest and found.count(b"\n") <= lines:
            start = max(first, end - max(4096, 2 * (end - start)), end - longest)
            found = b"".join(piece for _, piece in self.chunks(self._before_hole(start), end))
        kept = found.split(b"\n")
        return b"\n".join(kept[-lines - (kept[-1] == b"") :]) if lines > 0 else b""

    def count_lines(self) -> int:
        """The number of lines of the output, including removed ones and a last line without a newline."""
        start = self.body_start()
        last = os.pread(self._descriptor, 1, max(start, self.size - 1))
        markers = sum(cut_marker(cut.dropped).count(b"\n") for cut in self.cuts())
        return self.line_ends(start) - markers + self.removed_lines() + (last not in (b"\n", b""))

    def line_ends(self, start: int, end: int | None = None) -> int:
        """The number of line ends in the data from `start` to `end`."""
        count, position, end = 0, start, self.size if end is None else end
        while position < end:
            data, position = self._extent(position, end)
            for offset in range(data, position, _COUNTED):
                piece = os.pread(self._descriptor, min(_COUNTED, position - offset), offset)
                if b"\n" in piece:  # far faster than counting
                    count += piece.count(b"\n")
        return count

    @property
    def has_hole(self) -> bool:
        """Whether the log has a hole that is not closed yet."""
        return self._extent(0, self.size)[1] < self.size

    def _before_hole(self, position: int) -> int:
        """The start of the hole that contains `position`; `position` itself if there is none."""
        data = 0
        while True:
            hole = self._extent(data, position)[1]
            if hole >= position:
                return position
            data = self._extent(hole, position)[0]
            if data >= position:
                return hole

    def _extent(self, position: int, end: int) -> tuple[int, int]:
        """Where data begins at or after `position`, and where it ends."""
        if not os.path.exists(self._mark) or not hasattr(os, "SEEK_DATA"):
            return position, end
        try:
            data = os.lseek(self._descriptor, position, os.SEEK_DATA)
            hole = os.lseek(self._descriptor, data, os.SEEK_HOLE)
        except OSError:
            return end, end
        return min(data, end), min(hole, end)


class LogSource(NamedTuple):
    """A log that can be opened by any thread; `key` identifies it."""

    key: str
    open: Callable[[], Log]


def local_log(folder: str) -> LogSource:
    """The log in a folder of this home."""
    return LogSource(folder, lambda: Log(folder))


def position_of(text: str, count: int) -> tuple[int, int]:
    """The run number and offset of a cursor."""
    n, colon, offset = text.partition(":")
    if not colon:
        n, offset = str(count if text != "0" else 1), text
    if not (n.isdecimal() and offset.isdecimal() and len(n) < 9 and len(offset) < 18 and 1 <= int(n) <= max(1, count)):
        raise BadInput(f"'{text}' is not a cursor of this task; `logs --json` gives one, and 0 is the start.")
    return int(n), int(offset)
