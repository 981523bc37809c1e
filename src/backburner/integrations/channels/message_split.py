"""A text cut into messages of a bounded length, each of which can be read by itself. Pure.

A text comes in, chunks in order go out. A chunk ends at a paragraph, a line or a word where it can; a code fence that fits into one is
never cut, and a longer one is closed at the end of a chunk and opened again, with its language, in the next. Nothing is lost but the
whitespace that would have been a message of its own. Lengths are in code points, as Discord counts them.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

LIMIT = 2000
_FENCE = "```"
_LANGUAGE = re.compile(r"[A-Za-z0-9_+.#-]{1,32}\n")


class Piece(NamedTuple):
    """A part of the text, and what is put before and behind it so that it holds no half of a fence. The texts joined are the whole."""

    before: str
    text: str
    after: str


class _Fence(NamedTuple):
    """A fence from its first backtick to behind its last. `code` is where its code begins, `first` and `last` where it is not blank."""

    start: int
    code: int
    first: int
    last: int
    close: int
    end: int
    closed: bool
    reopened: str


def split(text: str, limit: int = LIMIT) -> list[str]:
    """The chunks of `text`, none longer than `limit` (at least 100) and none blank; no chunk where there is nothing to show."""
    return list(chunks(text, limit))


def chunks(text: str, limit: int = LIMIT) -> Iterator[str]:
    """Like `split`, each cut when it is asked for."""
    return ("".join(piece) for piece in pieces(text, limit) if piece.text.strip() not in ("", _FENCE if piece.before else ""))


def pieces(text: str, limit: int = LIMIT) -> Iterator[Piece]:
    """`text` in pieces, also blank ones, whose lengths with what is put around them are at most `limit`."""
    cutter, at = _Cutter(text, limit), 0
    while at < len(text):
        end = cutter.cut(at)
        yield Piece(cutter.opening(at), text[at:end], cutter.closing(end))
        at = end


def _fences(text: str) -> list[_Fence]:
    """Every three backticks open or close a fence, wherever they stand in a line; one that is never closed goes to the end."""
    found, end = [], 0
    while (start := text.find(_FENCE, end)) >= 0:
        inner = start + len(_FENCE)
        language = _LANGUAGE.match(text, inner)
        code = language.end() if language else inner
        close = text.find(_FENCE, inner)
        closed = close >= 0
        close, end = (close, close + len(_FENCE)) if closed else (len(text), len(text))
        inside = text[code:close]
        first, last = close - len(inside.lstrip()), code + len(inside.rstrip())
        found.append(_Fence(start, code, first, last, close, end, closed, _FENCE + (language[0] if language else "\n")))
    return found


class _Cutter:
    """Finds the places where a text may be cut."""

    def __init__(self, text: str, limit: int) -> None:
        self._text, self._limit, self._fences = text, limit, _fences(text)
        self._borders = {border for fence in self._fences for border in (fence.start, fence.end)}

    def opening(self, at: int) -> str:
        """What a piece that begins at `at` must begin with."""
        return fence.reopened if (fence := self._around(at)) else ""

    def closing(self, at: int) -> str:
        """What a piece that ends at `at` must end with."""
        if not self._around(at):
            return ""
        return _FENCE if self._text[at - 1] == "\n" else "\n" + _FENCE

    def cut(self, at: int) -> int:
        """Where the piece that begins at `at` ends: behind a paragraph or a line in its second half, else behind a word, else full."""
        room = self._limit - len(self.opening(at))
        furthest, half = min(at + room, len(self._text)), at + room // 2

        def fits(end: int) -> bool:
            return end - at + len(self.closing(end)) <= room

        if furthest == len(self._text) and fits(furthest):
            return furthest
        kinds = ((self._paragraph, half), (self._line, half), (self._word, at), (fits, at))
        return next(
            end
            for allowed in (self._tidy, self._possible)
            for fine, least in kinds
            for end in range(furthest, least, -1)
            if fine(end) and fits(end) and allowed(end)
        )

    def _around(self, at: int) -> _Fence | None:
        """The fence that a cut at `at` divides."""
        number = bisect_left(self._fences, at, key=lambda fence: fence.start) - 1
        if number < 0:
            return None
        fence = self._fences[number]
        return fence if at < fence.end or not fence.closed else None

    def _possible(self, end: int) -> bool:
        """Whether a cut divides neither a fence that fits into one chunk nor the marks of a longer one."""
        if (fence := self._around(end)) is None:
            return True
        whole = fence.end - fence.start + (0 if fence.closed else len(_FENCE) + 1) <= self._limit
        return not whole and fence.code < end <= fence.close

    def _tidy(self, end: int) -> bool:
        """Whether a cut leaves some code on both of its sides, where it is inside a fence."""
        fence = self._around(end)
        return fence is None or (self._possible(end) and fence.first < end < fence.last)

    def _paragraph(self, end: int) -> bool:
        return end in self._borders or self._text.endswith("\n\n", 0, end)

    def _line(self, end: int) -> bool:
        return self._text[end - 1] == "\n"

    def _word(self, end: int) -> bool:
        return end in self._borders or self._text[end - 1].isspace()
