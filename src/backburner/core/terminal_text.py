"""Somebody else's text made fit to be shown: nothing in it can move a cursor, hide, or pretend to be ours. Pure.

`clean` and `visible` take a whole text; `Screen` takes output as it comes; `cells`, `cut` and `fitted` count the columns of a
terminal that a text takes. Patterns are compiled when first used.
"""

import codecs
import re

# An escape sequence, whole or broken off: CSI; OSC, DCS, SOS, PM or APC; any other. It never fails after its ESC and holds
# no second ESC, so every ESC of a text starts one. All but the first group say that it is complete. A string ends at BEL,
# ST, CAN or SUB, and is given up at a newline or after 4,096 characters.
_ESCAPE = (
    r"\x1b(?:\[([ -?]{0,4096})([@-~])?"
    r"|[]PX^_][^\n\x07\x18\x1a\x1b\x9c]{0,4096}([\x07\x18\x1a\x9c])?"
    r"|[ -/]{0,4096}([0-~])?)"
)
# C0 but tab, newline, carriage return and ESC; DEL; C1; bidi controls.
_UNSHOWN = r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+"
_LONGEST_COLOUR = 40
_MAX_CHARACTERS_PER_COLUMN = 8  # a letter and the accents on it


def clean(text: str) -> str:
    """`text` without terminal escapes and control characters: what a line may show of a command's output."""
    text = re.sub(_ESCAPE, "", text)
    return (text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)).strip()


def readable(text: str) -> str:
    """Output as a reader would have it: no escapes or control characters, and of a line that was drawn over its last state."""
    text = re.sub(f"{_ESCAPE}|{_UNSHOWN}", "", text)
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def shortened(line: str, suffix: str = "", longest: int = 200) -> str:
    """`line` cut so that it has at most `longest` characters together with `suffix`, which it ends with."""
    longest -= len(suffix)
    return (line if len(line) <= longest else line[: longest - 1] + "…") + suffix


def visible(text: str) -> str:
    """`text` with every control, formatting and bidi character written out: what a person decides on must hide nothing."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    import unicodedata  # slow to load, and most texts need none

    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` columns, with "…" in place of what does not fit. Reads no more of a long text than could fit."""
    if width < 1:
        return ""
    if text.isascii():
        return text if len(text) <= width else f"{text[: width - 1]}…"
    text, used, kept = text[: _MAX_CHARACTERS_PER_COLUMN * width], 0, 0
    for count, c in enumerate(text, 1):
        used += cells(c)
        if used > width:
            return f"{text[:kept]}…"
        if used < width:
            kept = count  # as much as leaves a column for the "…"
    return text


def fitted(text: str, width: int) -> str:
    """`text` in exactly `width` columns: cut, or filled with spaces."""
    text = cut(text, width)
    return text + " " * (width - cells(text))


class Screen:
    """Makes a command's raw output fit for a terminal, piece by piece.

    Colours, tabs, newlines and carriage returns stay; whatever could move the cursor, clear, retitle, ask the terminal or
    hide goes. How the output is cut into pieces makes no difference. Holds back at most one unfinished escape sequence.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._coloured = False

    def feed(self, piece: bytes) -> bytes:
        """What of `piece`, and of what was held back before it, can be shown now."""
        return self._shown(self._decoder.decode(piece))

    def close(self) -> bytes:
        """What is left at the end of the output; resets colours where any were shown."""
        shown = self._shown(self._decoder.decode(b"", True)) + (b"\x1b[0m" if self._coloured else b"")
        self._held, self._coloured = "", False
        return shown

    def _shown(self, text: str) -> bytes:
        text, self._held = self._held + text, ""
        if (start := text.rfind("\x1b")) >= 0:
            last = re.compile(_ESCAPE).match(text, start)
            if last and last.end() == len(text) and (last.lastindex or 0) < 2:
                text, self._held = text[:start], text[start:]
        return re.sub(f"{_ESCAPE}|{_UNSHOWN}", self._kept, text).encode()

    def _kept(self, found: re.Match[str]) -> str:
        if found[2] != "m" or len(found[1]) > _LONGEST_COLOUR or not (colours := _colours(found[1])):
            return ""
        self._coloured = True
        return f"\x1b[{';'.join(colours)}m"


def _colours(parameters: str) -> list[str]:
    """The parameters of a colour sequence without "conceal" (8); none where it is no plain colour sequence."""
    kept: list[str] = []
    rest = parameters.split(";")
    if not re.fullmatch("[0-9;:]*", parameters):
        return kept
    while rest:
        # In 38;5;8 and in 38;2;8;8;8 the 8 is part of a colour.
        extended = re.fullmatch("0*[345]8", rest[0]) and len(rest) > 1
        size = {"5": 3, "2": 5}.get(rest[1].lstrip("0"), 1) if extended else 1
        group, rest = rest[:size], rest[size:]
        if size > 1 and (len(group) < size or ":" in "".join(group)):
            return []
        if not re.fullmatch("0*8(?::.*)?", group[0]):
            kept += group
    return kept
