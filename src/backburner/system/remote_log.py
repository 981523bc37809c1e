"""A run's log whose file is on another host: the same interface as `Log`, by cursor instead of by offset, so that nothing shifts.

Parts that are already known are read from memory, the others through `fetch`. Without `fetch` only those parts exist: an excerpt.
What exists nowhere is shown as removed output, like a hole.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from backburner.system.log_file import Cut, Log, body_start_of, cut_marker

Fetch = Callable[[int, int], Iterator[tuple[int, bytes]]]  # (start, end) to (position, bytes), in order
_LONG_HEADER = 1 << 18


class LogGrowth(Protocol):
    """Waits for more output and adds it to a log."""

    is_silent: bool  # whether the host does not answer at the moment

    def wait(self, seconds: float, *descriptors: int) -> None: ...
    def close(self) -> None: ...


class RemoteLog(Log):
    """An open log of another host. Not thread-safe."""

    is_remote = True

    def __init__(
        self,
        ranges: Sequence[tuple[int, int]],
        blocks: Sequence[tuple[int, bytes]],
        size: int,
        fetch: Fetch | None = None,
        note: str = "",
    ) -> None:
        """`ranges` are the parts that exist, `blocks` those that are known. `note` says why this is not all of it; empty if it is."""
        self._ranges, self._blocks, self._size, self._fetch, self.note = list(ranges), list(blocks), size, fetch, note
        self._body_start: int | None = None
        self.growth: LogGrowth | None = None  # how to wait for more; None for an excerpt
        self.on_close: Callable[[], None] = self._blocks.clear

    def close(self) -> None:
        if self.growth:
            self.growth.close()
        self.on_close()

    @property
    def size(self) -> int:
        return self._size

    @property
    def inode(self) -> int:
        return 0

    def add(self, position: int, data: bytes) -> None:
        """Add what was written at the end."""
        self._blocks.append((position, data))
        if self._ranges and self._ranges[-1][1] == position:
            self._ranges[-1] = (self._ranges[-1][0], position + len(data))
        else:
            self._ranges.append((position, position + len(data)))
        self._size = position + len(data)

    def forget(self, before: int) -> None:
        """Free the memory of what was read."""
        self.body_start()
        self._blocks = [(position, data) for position, data in self._blocks if position + len(data) > before]

    def body_start(self) -> int:
        if self._body_start is None:
            start = body_start_of(self._known(0))
            if start is None and self._fetch:
                start = body_start_of(b"".join(piece for _, piece in self._pieces(0, min(_LONG_HEADER, self._size))))
            self._body_start = start or 0
        return self._body_start

    def chunks(self, start: int, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        position, end = start, self._size if end is None else end
        for at, piece in self._pieces(start, end) if start < end else ():
            if at > position:
                yield at, cut_marker(at - position)
            position = at + len(piece)
            yield position, piece
        if position < end:
            yield end, cut_marker(end - position)

    def cuts(self) -> list[Cut]:
        return []

    def removed_lines(self) -> int:
        return 0

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The data from `start` to `end`: from memory if all of it is there, or if there is nowhere else to read it."""
        known = list(self._from_memory(start, end))
        if self._fetch is None or sum(len(piece) for _, piece in known) == self._existing(start, end):
            yield from known
        else:
            yield from self._fetch(start, end)

    def _existing(self, start: int, end: int) -> int:
        return sum(max(0, min(last, end) - max(first, start)) for first, last in self._ranges)

    def _from_memory(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for position, block in self._blocks:
            first, last = max(start, position), min(end, position + len(block))
            if first < last:
                yield first, block[first - position : last - position]
                start = last

    def _known(self, position: int) -> bytes:
        return next((block[position - at :] for at, block in self._blocks if at <= position < at + len(block)), b"")

    def _extent(self, position: int, end: int) -> tuple[int, int]:
        for first, last in self._ranges:
            if position < last:
                return min(max(first, position), end), min(last, end)
        return end, end
