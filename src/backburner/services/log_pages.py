"""Reads pages of a run's output by line number, by cursor or from the end, and searches it. Any thread may use it.

Line numbers come from a sparse index that is kept in memory and grows with the log. Lines are those of the text as it is shown: the marker
of removed output counts as well.
"""

import bisect
import contextlib
import re
import threading
from collections.abc import Generator, Iterator
from typing import NamedTuple

from backburner.core.errors import BadInput
from backburner.system.log_file import Log, LogSource

MAX_BYTES = 1 << 20
MAX_LINES = 10_000
_STEP = 1000  # lines between two marks of an index
_MAX_INDEXES = 64
_MAX_HIT_CHARACTERS = 500
_MAX_CHARACTER_BYTES = 4


class LogPage(NamedTuple):
    """A part of the output. `start` and `cursor` are the cursors of its first byte and of the byte after it."""

    text: str
    start: int
    cursor: int
    first_line: int
    total_lines: int
    size: int
    more: bool
    note: str = ""  # why this is not the whole log


class Hit(NamedTuple):
    """A line that was found; `start` and `end` are where in its text, in characters."""

    line: int
    text: str
    start: int
    end: int


class Found(NamedTuple):
    hits: list[Hit]
    total: int
    next: int | None


class _Index:
    """The positions of every thousandth line of one log, as far as it was read."""

    def __init__(self, log: Log, signature: object) -> None:
        self.signature = signature
        start = log.body_start()
        self.lines, self.positions = [1], [start]
        self.scanned, self.ends = start, 0  # up to where it was read, and how many line ends are before that
        self.ends_with_newline = True

    def update(self, log: Log) -> None:
        for after, piece in log.chunks(self.scanned):
            is_data = after - self.scanned == len(piece)
            at = 0
            while is_data and (count := piece.count(b"\n", at)) and self.ends + count + 1 >= self.lines[-1] + _STEP:
                for _ in range(self.lines[-1] + _STEP - 1 - self.ends):
                    at = piece.index(b"\n", at) + 1
                self.ends = self.lines[-1] + _STEP - 1
                self.lines.append(self.ends + 1)
                self.positions.append(self.scanned + at)
            self.ends += piece.count(b"\n", at)
            self.scanned, self.ends_with_newline = after, piece.endswith(b"\n")

    @property
    def total(self) -> int:
        return self.ends + (not self.ends_with_newline)

    def before_line(self, line: int) -> tuple[int, int]:
        """The number and position of the last known line at or before a line."""
        at = bisect.bisect_right(self.lines, line) - 1
        return self.lines[at], self.positions[at]

    def line_at(self, log: Log, position: int) -> int:
        """The number of the line that contains a position."""
        at = bisect.bisect_right(self.positions, position) - 1
        known, before = self.lines[max(0, at)], self.positions[max(0, at)]
        return known + sum(piece.count(b"\n") for _, piece in log.chunks(before, position))


class LogPages:
    """Reads logs by page. One object per process, because it keeps the indexes."""

    def __init__(self) -> None:
        self._indexes: dict[str, _Index] = {}
        self._lock = threading.Lock()

    def from_cursor(self, source: LogSource, cursor: int, max_bytes: int, *, live: bool) -> LogPage:
        """The output from a cursor on."""
        with self._open(source) as (log, index):
            start = log.position(cursor)
            after, data = log.piece(start, max_bytes)
            data, after = _whole(data, after, live and after >= log.size)
            return self._page(log, index, start, after, data)

    def from_end(self, source: LogSource, lines: int, max_bytes: int, *, live: bool) -> LogPage:
        """The last lines of the output."""
        with self._open(source) as (log, index):
            first = max(1, index.total - lines + 1)
            end = index.scanned
            start = self._find(log, index, first)
            if end - start > max_bytes:
                start = max(start, end - max_bytes)
                start = next((after for after in _line_starts(log, start, end)), start)
            data = b"".join(piece for _, piece in log.chunks(start, end))
            data, end = _whole(data, end, live)
            return self._page(log, index, start, end, data)

    def from_line(self, source: LogSource, line: int, lines: int, max_bytes: int, *, live: bool) -> LogPage:
        """Some lines from a line on."""
        with self._open(source) as (log, index):
            start = self._find(log, index, line)
            end = min(self._find(log, index, line + lines), start + max_bytes)
            data = b"".join(piece for _, piece in log.chunks(start, end))
            data, end = _whole(data, end, live or end < index.scanned)
            return self._page(log, index, start, end, data)

    def search(self, source: LogSource, text: str, *, regex: bool, case: bool, after: int, limit: int) -> Found:
        """The lines that contain a text or match a pattern, after a line; `total` counts all of them in the whole log."""
        try:
            pattern = re.compile(text if regex else re.escape(text), 0 if case else re.IGNORECASE)
        except (re.error, OverflowError, RecursionError) as error:
            raise BadInput(f"'{text}' is not a valid pattern: {error}.") from None
        hits: list[Hit] = []
        total = 0
        with self._open(source) as (log, _):
            for first, block in _blocks(log):
                for hit in _matches(block, first, text, pattern, regex=regex, case=case):
                    total += 1
                    if hit.line > after and len(hits) <= limit:
                        hits.append(hit)
        more = len(hits) > limit
        return Found(hits[:limit], total, hits[limit - 1].line if more else None)

    # -- parts

    @contextlib.contextmanager
    def _open(self, source: LogSource) -> Generator[tuple[Log, _Index]]:
        """Open a log and bring its index up to date. One thread at a time."""
        with self._lock, source.open() as log:
            signature = (log.inode, log.first_gap(), tuple(log.cuts()))
            index = self._indexes.pop(source.key, None)
            if index is None or index.signature != signature or index.scanned > log.size:
                index = _Index(log, signature)
            index.update(log)
            self._indexes[source.key] = index
            while len(self._indexes) > _MAX_INDEXES:
                del self._indexes[next(iter(self._indexes))]
            yield log, index

    def _find(self, log: Log, index: _Index, line: int) -> int:
        """The position at which a line begins; the end of the log if it has fewer lines."""
        known, position = index.before_line(line)
        missing = line - known
        if missing <= 0:
            return position
        for after, piece in log.chunks(position, index.scanned):
            count = piece.count(b"\n")
            if count < missing:
                missing, position = missing - count, after
                continue
            if after - position != len(piece):
                return after  # in the marker of removed output
            at = 0
            for _ in range(missing):
                at = piece.index(b"\n", at) + 1
            return position + at
        return index.scanned

    def _page(self, log: Log, index: _Index, start: int, end: int, data: bytes) -> LogPage:
        text = data.decode("utf-8", "backslashreplace")
        first = index.line_at(log, start)
        return LogPage(text, log.cursor(start), log.cursor(end), first, index.total, log.size, end < index.scanned, log.note)


def _whole(data: bytes, end: int, grows: bool) -> tuple[bytes, int]:
    """Leave out the beginning of a character whose rest is not written yet."""
    if not grows:
        return data, end
    for back in range(1, min(_MAX_CHARACTER_BYTES, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 == 0x80:
            continue
        width = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return (data[:-back], end - back) if width > back else (data, end)
    return data, end


def _line_starts(log: Log, start: int, end: int) -> Iterator[int]:
    position = start
    for after, piece in log.chunks(start, end):
        if after - position == len(piece) and (at := piece.find(b"\n")) >= 0:
            yield position + at + 1
        position = after


def _blocks(log: Log) -> Iterator[tuple[int, str]]:
    """The output in blocks of whole lines, each with the number of its first line."""
    line, rest = 1, b""
    for _, piece in log.chunks(log.body_start()):
        block = rest + piece
        cut = block.rfind(b"\n") + 1
        if not cut and len(block) < MAX_BYTES:
            rest = block
            continue
        cut = cut or len(block)
        rest = block[cut:]
        yield line, block[:cut].decode("utf-8", "backslashreplace")
        line += block.count(b"\n", 0, cut)
    if rest:
        yield line, rest.decode("utf-8", "backslashreplace")


def _matches(block: str, first: int, text: str, pattern: re.Pattern[str], *, regex: bool, case: bool) -> Iterator[Hit]:
    """The lines of a block that match, with the first match in each."""
    if regex:
        for number, line in enumerate(block.split("\n"), first):
            if line and (found := pattern.search(line)):
                yield Hit(number, line[:_MAX_HIT_CHARACTERS], found.start(), found.end())
        return
    wanted, hay = (text, block) if case else (text.lower(), block.lower())
    if len(hay) != len(block):  # in a few languages a letter has another length in lower case
        hay, wanted = block, text
    line, at, counted = first, 0, 0
    while wanted and (at := hay.find(wanted, at)) >= 0:
        begin, end = block.rfind("\n", 0, at) + 1, block.find("\n", at)
        end = len(block) if end < 0 else end
        line += block.count("\n", counted, begin)
        counted = begin
        yield Hit(line, block[begin : min(end, begin + _MAX_HIT_CHARACTERS)], at - begin, at - begin + len(wanted))
        at = end
