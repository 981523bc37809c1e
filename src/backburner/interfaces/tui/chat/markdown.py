"""Renders the Markdown of a streamed answer for a terminal, line by line. Pure, except that it asks for the width.

A line is rendered when its newline arrives. A line that may start a table is held until the next line, and a table until its end.
Control characters of the input never reach the terminal: the only escape sequences in the output set styles.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import groupby

from wcwidth import iter_graphemes, wcswidth

from backburner.core.terminal_text import readable

_MIN_WIDTH = 20

# A style is the parameters of its escape sequence, each preceded by a semicolon.
Span = tuple[str, str]
_BOLD, _DIM, _ITALIC, _UNDERLINED, _STRUCK, _CODE, _RESET = ";1", ";2", ";3", ";4", ";9", ";36", "\x1b[0m"
_STYLES = {"*": _ITALIC, "**": _BOLD, "_": _ITALIC, "~~": _STRUCK}
_MARK_RUNS = {**{mark: (mark,) for mark in _STYLES}, "***": ("**", "*")}

# These take linear time on any text: neighbouring parts never match the same characters, and repetitions do not backtrack.
_LINE = re.compile(r".{0,8000}+\n|(?=.{8001})(?:.{4000,7999} |.{8000})")  # or the first piece of a line that is too long
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
# The characters around a run of marks that let it open or close a style; inside words and paths it rarely can.
_OPENS = re.compile(r"(?<![A-Za-z0-9/\\])[*~]++(?=\S)|(?<!\w)_(?=\S)")
_CLOSES = re.compile(r"(?<=\S)[*~]++(?![A-Za-z0-9])|(?<=[^\W\d_])[*~]{2,}(?=[A-Za-z])|(?<=\S)_(?!\w)")


class Markdown:
    """Takes an answer in pieces and returns its finished lines, rendered; `rest` is the unfinished line."""

    def __init__(self, width: Callable[[], int], *, colour: bool = True) -> None:
        self._width = lambda: max(_MIN_WIDTH, width())
        self._colour = colour
        self._reset()

    def _reset(self) -> None:
        self._rest = ""
        self._line_was_split = False  # the beginning of the line was already returned
        self._code_line: re.Pattern[str] | None = None  # matches the indentation of a code line; group 1 matches the closing fence
        self._table: list[str] = []
        self._indent: list[Span] = []  # the prefix of rows that continue the last line

    def feed(self, text: str) -> list[str]:
        """The lines that are finished now, without newlines. The result does not depend on how the text is cut into pieces."""
        lines: list[str] = []
        text, at = self._rest + text, 0
        while found := _LINE.match(text, at):
            at = found.end()
            lines += self._render_line(found[0].removesuffix("\n"))
            self._line_was_split = not found[0].endswith("\n")
        self._rest = text[at:]
        return lines

    @property
    def rest(self) -> str:
        """The unfinished line, without control characters and not rendered."""
        return _without_controls(self._rest)

    def close(self) -> list[str]:
        """The remaining lines, rendered. Afterwards the object can be used for another answer."""
        lines = (self._render_line(self._rest) if self._rest else []) + self._flush_table()
        self._reset()
        return lines

    def _render_line(self, line: str) -> list[str]:
        line, width = _without_controls(line), self._width()
        if self._code_line:
            before = None if self._line_was_split else self._code_line.match(line)
            if self._line_was_split or (before and before[1] is None):
                return [self._join_spans([*self._indent, ("  ", ""), (line[before.end() if before else 0 :], _CODE)])]
            self._code_line = None
            if before:
                return []
        if self._line_was_split or not line:
            rest = line.strip(" ")
            return self._flush_table() + (self._wrap(self._inline(rest), self._indent) if rest else [] if self._line_was_split else [""])
        block = _BLOCK.match(line)
        assert block
        quotes, indent, mark, box = block.groups()
        depth, text, rule = quotes.count(">"), line[block.end() :].rstrip(" "), _RULE.match(line, block.end(1))
        prefix: list[Span] = [(" " * min(len(quotes) - len(quotes.lstrip(" ")), width // 10), "")]
        prefix += [("│", _DIM), (" ", "")] * min(depth, width // 8) + [(" " * min(len(indent), width // 5), "")]
        first_prefix = prefix
        if mark and not rule:
            box = {None: "", " ": "☐ "}.get(box, "☑ ")
            mark = f"{mark} {box}" if mark[0].isdigit() else box or "• "
            first_prefix, prefix = [*prefix, (mark, "")], [*prefix, (" " * len(mark), "")]
        fence, heading = _FENCE.match(text), _HEADING.match(text)
        if "|" in text and not (mark or fence or heading):
            lines = [] if self._table and self._continues_table(text, prefix) else self._flush_table()
            self._table.append(text)
            self._indent = prefix
            return lines
        lines, self._indent = self._flush_table(), prefix
        if fence:
            indented = block.end() - len(quotes)
            end = rf" {{0,{indented + 3}}}+{fence[0]}{fence[0][0]}*+ *$"
            self._code_line = re.compile(rf"(?: *+> ?+){{{depth}}}(?:({end})| {{0,{indented}}})")
            return lines + ([self._join_spans(first_prefix)] if mark else [])
        if rule:
            spans = [("─" * (width - _columns(prefix)), _DIM)]
        elif heading:
            title = re.sub("(?:^| )#++$", "", text[heading.end() :]).rstrip(" ")
            spans = self._inline(title, _BOLD + (_UNDERLINED if len(heading[1]) < 3 else ""))
        else:
            spans = self._inline(text)
        return lines + self._wrap(spans, prefix, first_prefix)

    def _continues_table(self, text: str, prefix: list[Span]) -> bool:
        """Whether a line belongs to the table that is held back. The second line of a table must be a row of dashes."""
        is_row = len(self._table) > 1 or (_DELIMITER.match(text) and len(_cells(text)) == len(_cells(self._table[0])))
        return bool(is_row) and prefix == self._indent

    def _flush_table(self) -> list[str]:
        """Render the table that was held back, or the line that turned out not to start one."""
        if not self._table:
            return []
        rows, self._table = self._table, []
        sides = _cells(rows.pop(1)) if len(rows) > 1 else []
        available = self._width() - _columns(self._indent) - 3 * (len(sides) - 1)
        if not sides or available < 3 * len(sides):
            return [line for row in rows for line in self._wrap(self._inline(row), self._indent)]
        table = [[self._inline(cell, "" if n else _BOLD) for cell in _cells(row, len(sides))] for n, row in enumerate(rows)]
        sizes = [max([1, *(_columns(row[n]) for row in table if n < len(row))]) for n in range(len(sides))]
        widths = range(min(available, max(sizes)), 0, -1)
        widest = next(width for width in widths if sum(min(size, width) for size in sizes) <= available)
        sizes = [min(size, widest) for size in sizes]
        lines = [self._join_spans([*self._indent, ("─┼─".join("─" * size for size in sizes), _DIM)])]
        for row in table:
            cells = [[(" │ ", _DIM), *_fit_cell(cell, sizes[n], sides[n])] for n, cell in enumerate(row)]
            lines.append(self._join_spans([*self._indent, *[span for cell in cells for span in cell][1:]]))
        return [lines[1], lines[0], *lines[2:]]

    def _inline(self, text: str, style: str = "") -> list[Span]:
        """Parse the inline marks of a text into styled spans. A mark without a counterpart is kept as text."""
        spans: list[Span] = []
        opened: dict[str, int] = {}  # index in `spans` of the last mark of each kind that can open a style
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
            elif run in _MARK_RUNS and (self._colour or run != "~~"):
                opens, closes = _OPENS.match(text, found.start()), _CLOSES.match(text, found.start())
                for mark in _MARK_RUNS[run]:
                    if closes and mark in opened:
                        start = opened.pop(mark)
                        spans[start:] = [("", style), *((inner, inner_style + _STYLES[mark]) for inner, inner_style in spans[start + 1 :])]
                        continue
                    if opens:
                        opened[mark] = len(spans)
                    spans.append((mark, style))
            else:
                spans.append((escaped or found[0], style))
        return [*spans, (text[at:], style)]

    def _wrap(self, spans: list[Span], prefix: list[Span], first_prefix: list[Span] | None = None) -> list[str]:
        rows = _wrap_spans(spans, self._width() - _columns(prefix))
        return [self._join_spans([*(first_prefix if first_prefix and not n else prefix), *row]) for n, row in enumerate(rows)]

    def _join_spans(self, spans: list[Span]) -> str:
        line = ""
        for style, same in groupby(spans, key=lambda span: span[1] if self._colour and span[0] else ""):
            text = "".join(text for text, _ in same)
            line += f"\x1b[{style[1:]}m{text}{_RESET}" if style else text
        line = line.rstrip(" ")
        return line + (_RESET if "\x1b" in line and not line.endswith(_RESET) else "")


def _without_controls(line: str) -> str:
    """A line without control and invisible characters. Joiners are kept, because some scripts and emoji need them."""
    if line.isascii() and line.isprintable():
        return line
    line = readable(line.rstrip("\r").replace("\r", " ")).replace("\t", "    ").encode(errors="replace").decode()
    return "".join(c for c in line if c in "\u200c\u200d" or unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp"))


def _columns(spans: list[Span]) -> int:
    """The number of terminal columns. Unlike `cells`, it counts an emoji made of several characters as one."""
    text = "".join([text for text, _ in spans])
    return len(text) if text.isascii() else sum(map(wcswidth, iter_graphemes(text)))


def _cells(row: str, limit: int = 0) -> list[str]:
    """The cells of a row. With a `limit`, further cells are joined to the last one."""
    row = row.removeprefix("|")
    row = row[:-1] if row.endswith("|") and not row.endswith(r"\|") else row
    row = re.sub("`[^`]*`", lambda code: re.sub(r"\\?\|", r"\\|", code[0]), row)
    cells = [cell.strip(" ").replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row)]
    return [*cells[: limit - 1], " | ".join(cells[limit - 1 :])] if 0 < limit < len(cells) else cells


def _fit_cell(spans: list[Span], size: int, side: str) -> list[Span]:
    """A cell padded or cut to `size` columns; `side` is its alignment in the row of dashes."""
    if _columns(spans) > size:
        spans = [*next(_wrap_spans(spans, size - 1)), ("…", "")]
    free = size - _columns(spans)
    left = free // (2 if side[0] == ":" else 1) if side[-1] == ":" else 0
    return [(" " * left, ""), *spans, (" " * (free - left), "")]


def _wrap_spans(spans: list[Span], width: int) -> Iterator[list[Span]]:
    """Break text at words into rows of at most `width` columns; a word that is longer than a row is broken anywhere."""
    if _columns(spans) <= width:
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
        if row and used + before + (2 if size > width else size) > width:
            yield row
            row, gap, used, before = [], [], 0, 0
        row += gap
        used += before
        for part in word if size <= width else [(cluster, style) for text, style in word for cluster in iter_graphemes(text)]:
            size = _columns([part])
            if used + size > width:
                yield row
                row, used = [], 0
            row.append(part)
            used += size
    yield row
