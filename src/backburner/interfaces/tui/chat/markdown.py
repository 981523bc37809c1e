"""Markdown of a model's answer, drawn for a terminal line by line as it streams in. Pure but for the asked width.

A line is drawn when its newline comes; only a line that may start a table waits for the next one, and a table for its end.
Nothing of the input but text reaches the terminal: the escapes in what comes out are ours, and only set styles.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import groupby

from wcwidth import iter_graphemes, wcswidth

from backburner.core.terminal_text import readable

_NARROWEST = 20

# A style is the parameters of its escape sequence, each after a semicolon.
Span = tuple[str, str]
_BOLD, _DIM, _ITALIC, _UNDERLINED, _STRUCK, _CODE, _RESET = ";1", ";2", ";3", ";4", ";9", ";36", "\x1b[0m"
_STYLES = {"*": _ITALIC, "**": _BOLD, "_": _ITALIC, "~~": _STRUCK}
_RUNS = {**{mark: (mark,) for mark in _STYLES}, "***": ("**", "*")}

# These take linear time on any text: no part matches what its neighbour could, and what repeats gives nothing back.
_LINE = re.compile(r".{0,8000}+\n|(?=.{8001})(?:.{4000,7999} |.{8000})")  # or as much as is given out of one that is too long
_BLOCK = re.compile(r"((?: *+> ?+)*+)( *+)(?:([-*+]|\d{1,4}[.)])(?: ++|$)(?:\[([ xX])\](?: ++|$))?)?")
_RULE = re.compile(r" *+(?:(?:- *+){3,}+|(?:\* *+){3,}+|(?:_ *+){3,}+)$")
_FENCE = re.compile(r"`{3,}+(?=[^`]*$)|~{3,}+")
_HEADING = re.compile(r"(#{1,6})(?: ++|$)")
_DELIMITER = re.compile(r"\|? *+:?-++:? *+(?:\| *+:?-++:? *+)*+\|?$")
_INLINE = re.compile(
    r"\\([!-/:-@\[-`{-~])"
    r"|(`++)"
    r"|!?\[((?:[^\[\]]++|\[[^\[\]]*+\])*+)\]\(([^()\s]*+(?:\([^()\s]*+\)[^()\s]*+)*+)(?: ++\"[^\"]*+\")?\)"
    r"|(\*++|_++|~++)"
)
# What a run of marks stands beside where it can open or close: inside words and paths it seldom can.
_OPENS = re.compile(r"(?<![A-Za-z0-9/\\])[*~]++(?=\S)|(?<!\w)_(?=\S)")
_CLOSES = re.compile(r"(?<=\S)[*~]++(?![A-Za-z0-9])|(?<=[^\W\d_])[*~]{2,}(?=[A-Za-z])|(?<=\S)_(?!\w)")


class Markdown:
    """An answer as it comes in: finished lines drawn for a terminal, and the rest that is still being said."""

    def __init__(self, width: Callable[[], int], *, colour: bool = True) -> None:
        self._width = lambda: max(_NARROWEST, width())
        self._colour = colour
        self._start()

    def _start(self) -> None:
        self._rest = ""
        self._cut = False  # the beginning of the line was given out already
        self._code: re.Pattern[str] | None = None  # what is no code before a line of it; the first group is its end
        self._table: list[str] = []
        self._hang: list[Span] = []  # what stands before a row that goes on the last line

    def feed(self, text: str) -> list[str]:
        """The lines that are finished now, without newlines. How the text is cut into pieces makes no difference."""
        lines: list[str] = []
        text, at = self._rest + text, 0
        while found := _LINE.match(text, at):
            at = found.end()
            lines += self._line(found[0].removesuffix("\n"))
            self._cut = not found[0].endswith("\n")
        self._rest = text[at:]
        return lines

    @property
    def rest(self) -> str:
        """What has come of the unfinished line, harmless but undrawn."""
        return _harmless(self._rest)

    def close(self) -> list[str]:
        """What is left, drawn; the object is then as new."""
        lines = (self._line(self._rest) if self._rest else []) + self._held()
        self._start()
        return lines

    def _line(self, line: str) -> list[str]:
        line, width = _harmless(line), self._width()
        if self._code:
            before = None if self._cut else self._code.match(line)
            if self._cut or (before and before[1] is None):
                return [self._drawn([*self._hang, ("  ", ""), (line[before.end() if before else 0 :], _CODE)])]
            self._code = None
            if before:
                return []
        if self._cut or not line:
            rest = line.strip(" ")
            return self._held() + (self._wrapped(self._inline(rest), self._hang) if rest else [] if self._cut else [""])
        block = _BLOCK.match(line)
        assert block
        quotes, indent, mark, box = block.groups()
        depth, text, rule = quotes.count(">"), line[block.end() :].rstrip(" "), _RULE.match(line, block.end(1))
        hang: list[Span] = [(" " * min(len(quotes) - len(quotes.lstrip(" ")), width // 10), "")]
        hang += [("│", _DIM), (" ", "")] * min(depth, width // 8) + [(" " * min(len(indent), width // 5), "")]
        first = hang
        if mark and not rule:
            box = {None: "", " ": "☐ "}.get(box, "☑ ")
            mark = f"{mark} {box}" if mark[0].isdigit() else box or "• "
            first, hang = [*hang, (mark, "")], [*hang, (" " * len(mark), "")]
        fence, heading = _FENCE.match(text), _HEADING.match(text)
        if "|" in text and not (mark or fence or heading):
            lines = [] if self._table and self._goes_on(text, hang) else self._held()
            self._table.append(text)
            self._hang = hang
            return lines
        lines, self._hang = self._held(), hang
        if fence:
            indented = block.end() - len(quotes)
            end = rf" {{0,{indented + 3}}}+{fence[0]}{fence[0][0]}*+ *$"
            self._code = re.compile(rf"(?: *+> ?+){{{depth}}}(?:({end})| {{0,{indented}}})")
            return lines + ([self._drawn(first)] if mark else [])
        if rule:
            spans = [("─" * (width - _columns(hang)), _DIM)]
        elif heading:
            title = re.sub("(?:^| )#++$", "", text[heading.end() :]).rstrip(" ")
            spans = self._inline(title, _BOLD + (_UNDERLINED if len(heading[1]) < 3 else ""))
        else:
            spans = self._inline(text)
        return lines + self._wrapped(spans, hang, first)

    def _goes_on(self, text: str, hang: list[Span]) -> bool:
        """Whether a line belongs to the table that is held back; the second says with its dashes that it is one."""
        is_row = len(self._table) > 1 or (_DELIMITER.match(text) and len(_cells(text)) == len(_cells(self._table[0])))
        return bool(is_row) and hang == self._hang

    def _held(self) -> list[str]:
        """The table that was held back, or the line that only looked like the start of one."""
        if not self._table:
            return []
        rows, self._table = self._table, []
        sides = _cells(rows.pop(1)) if len(rows) > 1 else []
        room = self._width() - _columns(self._hang) - 3 * (len(sides) - 1)
        if not sides or room < 3 * len(sides):
            return [line for row in rows for line in self._wrapped(self._inline(row), self._hang)]
        table = [[self._inline(cell, "" if n else _BOLD) for cell in _cells(row, len(sides))] for n, row in enumerate(rows)]
        sizes = [max([1, *(_columns(row[n]) for row in table if n < len(row))]) for n in range(len(sides))]
        widest = next(most for most in range(min(room, max(sizes)), 0, -1) if sum(min(size, most) for size in sizes) <= room)
        sizes = [min(size, widest) for size in sizes]
        lines = [self._drawn([*self._hang, ("─┼─".join("─" * size for size in sizes), _DIM)])]
        for row in table:
            cells = [[(" │ ", _DIM), *_fitted(cell, sizes[n], sides[n])] for n, cell in enumerate(row)]
            lines.append(self._drawn([*self._hang, *[span for cell in cells for span in cell][1:]]))
        return [lines[1], lines[0], *lines[2:]]

    def _inline(self, text: str, style: str = "") -> list[Span]:
        """Text with its marks taken as styles. A mark without its like stays as it is."""
        spans: list[Span] = []
        opened: dict[str, int] = {}  # where in `spans` the last of each mark stands that can open
        at = 0
        while found := _INLINE.search(text, at):
            spans.append((text[at : found.start()], style))
            at = found.end()
            escaped, ticks, label, url, run = found.groups()
            if ticks and (end := re.search(rf"(?<!`){ticks}(?!`)", text[at:])):
                code = text[at : at + end.start()]
                inside = code[1:-1] if code[0] == code[-1] == " " and code.strip(" ") else code
                spans.append((inside, style + _CODE) if self._colour else (f"{ticks}{code}{ticks}", style))
                at += end.end()
            elif label or url:
                spans += self._inline(label, style + _UNDERLINED)
                spans += [(f" ({url})", style + _DIM)] if url not in ("", label) else []
            elif run in _RUNS and (self._colour or run != "~~"):
                opens, closes = _OPENS.match(text, found.start()), _CLOSES.match(text, found.start())
                for mark in _RUNS[run]:
                    if closes and mark in opened:
                        start = opened.pop(mark)
                        spans[start:] = [("", style), *((said, inner + _STYLES[mark]) for said, inner in spans[start + 1 :])]
                        continue
                    if opens:
                        opened[mark] = len(spans)
                    spans.append((mark, style))
            else:
                spans.append((escaped or found[0], style))
        return [*spans, (text[at:], style)]

    def _wrapped(self, spans: list[Span], hang: list[Span], first: list[Span] | None = None) -> list[str]:
        rows = _rows(spans, self._width() - _columns(hang))
        return [self._drawn([*(first if first and not n else hang), *row]) for n, row in enumerate(rows)]

    def _drawn(self, spans: list[Span]) -> str:
        line = ""
        for style, same in groupby(spans, key=lambda span: span[1] if self._colour and span[0] else ""):
            text = "".join(text for text, _ in same)
            line += f"\x1b[{style[1:]}m{text}{_RESET}" if style else text
        line = line.rstrip(" ")
        return line + (_RESET if "\x1b" in line and not line.endswith(_RESET) else "")


def _harmless(line: str) -> str:
    """A line without whatever a terminal would obey or not show. Joiners stay, as scripts and emoji need them."""
    if line.isascii() and line.isprintable():
        return line
    line = readable(line.rstrip("\r").replace("\r", " ")).replace("\t", "    ").encode(errors="replace").decode()
    return "".join(c for c in line if c in "\u200c\u200d" or unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp"))


def _columns(spans: list[Span]) -> int:
    """How many columns of a terminal they take. Unlike `cells` it counts an emoji made of several characters as one."""
    text = "".join([text for text, _ in spans])
    return len(text) if text.isascii() else sum(map(wcswidth, iter_graphemes(text)))


def _cells(row: str, most: int = 0) -> list[str]:
    """The cells of a row; what is more than `most` stays with the last."""
    row = row.removeprefix("|")
    row = row[:-1] if row.endswith("|") and not row.endswith(r"\|") else row
    row = re.sub("`[^`]*`", lambda code: re.sub(r"\\?\|", r"\\|", code[0]), row)
    cells = [cell.strip(" ").replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row)]
    return [*cells[: most - 1], " | ".join(cells[most - 1 :])] if 0 < most < len(cells) else cells


def _fitted(spans: list[Span], size: int, side: str) -> list[Span]:
    """A cell in just `size` columns, on the side that the table says."""
    if _columns(spans) > size:
        spans = [*next(_rows(spans, size - 1)), ("…", "")]
    room = size - _columns(spans)
    left = room // (2 if side[0] == ":" else 1) if side[-1] == ":" else 0
    return [(" " * left, ""), *spans, (" " * (room - left), "")]


def _rows(spans: list[Span], room: int) -> Iterator[list[Span]]:
    """Text broken at words into rows of at most `room` columns; a word that no row can hold is broken anywhere."""
    if _columns(spans) <= room:
        yield spans
        return
    row, gap, used = list[Span](), list[Span](), 0
    parts = ((part, style) for text, style in spans for part in re.findall(" +|[^ ]+", text))
    for blank, same in groupby(parts, key=lambda part: part[0][0] == " "):
        word = list(same)
        if blank:
            gap = word if row else []
            continue
        size, before = _columns(word), _columns(gap)
        if row and used + before + (2 if size > room else size) > room:
            yield row
            row, gap, used, before = [], [], 0, 0
        row += gap
        used += before
        for part in word if size <= room else [(cluster, style) for text, style in word for cluster in iter_graphemes(text)]:
            size = _columns([part])
            if used + size > room:
                yield row
                row, used = [], 0
            row.append(part)
            used += size
    yield row
