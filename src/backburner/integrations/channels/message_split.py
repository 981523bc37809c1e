"""Splits a text into messages of limited length, each readable on its own. No I/O.

A chunk ends after a paragraph, a line or a word if possible. A code fence that fits into one chunk is never split; a longer one is closed
at the end of a chunk and reopened, with its language, in the next. Only whitespace that would form a message of its own is dropped.
Lengths are in code points, as Discord counts them.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

LIMIT = 2000
_FENCE = "```"
_LANGUAGE = re.compile(r"[A-Za-z0-9_+.#-]{1,32}\n")


class Piece(NamedTuple):
    """A part of the text, and the marks that are added before and after it so that it contains only complete fences.

    The `text` fields of all pieces joined are the whole text.
    """

    before: str
    text: str
    after: str


class _Fence(NamedTuple):
    """The positions of a code fence. It spans `start` to `end`, including its backticks.

    The code begins at `code`; its first non-blank character is at `first`, and its last one is just before `last`.
    """

    start: int
    code: int
    first: int
    last: int
    close: int
    end: int
    closed: bool
    reopened: str


def split(text: str, limit: int = LIMIT) -> list[str]:
    """Return the chunks of `text`, none longer than `limit` (at least 100) and none blank. A blank text has no chunks."""
    return list(chunks(text, limit))


def chunks(text: str, limit: int = LIMIT) -> Iterator[str]:
    """Like `split`, but lazy."""
    return ("".join(piece) for piece in pieces(text, limit) if piece.text.strip() not in ("", _FENCE if piece.before else ""))


def pieces(text: str, limit: int = LIMIT) -> Iterator[Piece]:
    """Yield all pieces of `text`, including blank ones. A piece with its added marks is at most `limit` long."""
    cutter, at = _Cutter(text, limit), 0
    while at < len(text):
        end = cutter.cut(at)
        yield Piece(cutter.opening(at), text[at:end], cutter.closing(end))
        at = end


def _fences(text: str) -> list[_Fence]:
    """Find all fences. Three backticks open or close a fence anywhere in a line; an unclosed fence extends to the end of the text."""
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
    """Finds the positions where a text may be cut."""

    def __init__(self, text: str, limit: int) -> None:
        self._text, self._limit, self._fences = text, limit, _fences(text)
        self._borders = {border for fence in self._fences for border in (fence.start, fence.end)}

    def opening(self, at: int) -> str:
        """Return the marks to add before a piece that begins at `at`."""
        return fence.reopened if (fence := self._fence_at(at)) else ""

    def closing(self, at: int) -> str:
        """Return the marks to add after a piece that ends at `at`."""
        if not self._fence_at(at):
            return ""
        return _FENCE if self._text[at - 1] == "\n" else "\n" + _FENCE

    def cut(self, at: int) -> int:
        """Return the end of the piece that begins at `at`.

        It is after a paragraph or a line in the second half of the piece, otherwise after a word, otherwise at the length limit.
        """
        available = self._limit - len(self.opening(at))
        furthest, half = min(at + available, len(self._text)), at + available // 2

        def fits(end: int) -> bool:
            return end - at + len(self.closing(end)) <= available

        if furthest == len(self._text) and fits(furthest):
            return furthest
        boundaries = ((self._is_paragraph_end, half), (self._is_line_end, half), (self._is_word_end, at), (fits, at))
        return next(
            end
            for is_allowed in (self._is_good_cut, self._is_possible_cut)
            for is_boundary, minimum in boundaries
            for end in range(furthest, minimum, -1)
            if is_boundary(end) and fits(end) and is_allowed(end)
        )

    def _fence_at(self, at: int) -> _Fence | None:
        """Return the fence that a cut at `at` would split."""
        number = bisect_left(self._fences, at, key=lambda fence: fence.start) - 1
        if number < 0:
            return None
        fence = self._fences[number]
        return fence if at < fence.end or not fence.closed else None

    def _is_possible_cut(self, end: int) -> bool:
        """Return whether a cut splits neither a fence that fits into one chunk nor the backticks of a longer one."""
        if (fence := self._fence_at(end)) is None:
            return True
        fits_in_chunk = fence.end - fence.start + (0 if fence.closed else len(_FENCE) + 1) <= self._limit
        return not fits_in_chunk and fence.code < end <= fence.close

    def _is_good_cut(self, end: int) -> bool:
        """Return whether a cut is outside all fences, or leaves some code of the fence on both sides."""
        fence = self._fence_at(end)
        return fence is None or (self._is_possible_cut(end) and fence.first < end < fence.last)

    def _is_paragraph_end(self, end: int) -> bool:
        return end in self._borders or self._text.endswith("\n\n", 0, end)

    def _is_line_end(self, end: int) -> bool:
        return self._text[end - 1] == "\n"

    def _is_word_end(self, end: int) -> bool:
        return end in self._borders or self._text[end - 1].isspace()
