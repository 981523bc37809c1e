"""Makes untrusted text safe to show in a terminal: it cannot move the cursor, hide text, or imitate Backburner's own output.

`clean` and `visible` take a complete text; `Screen` takes streamed output; `cells`, `cut` and `fitted` work with the number of terminal
columns. `re` is loaded when it is first needed: most texts are plain, and loading it takes as long as half of a `backburner list`.
"""

import codecs

TYPE_CHECKING = False

if TYPE_CHECKING:
    import re

# An escape sequence, complete or not: CSI; OSC, DCS, SOS, PM or APC; any other. The pattern always matches after an ESC and contains
# no second ESC, so every ESC of a text starts a match. A match of any group but the first means that the sequence is complete. A
# string ends at BEL, ST, CAN or SUB, and is cut at a newline or after 4,096 characters.
_ESCAPE = (
    r"\x1b(?:\[([ -?]{0,4096})([@-~])?"
    r"|[]PX^_][^\n\x07\x18\x1a\x1b\x9c]{0,4096}([\x07\x18\x1a\x9c])?"
    r"|[ -/]{0,4096}([0-~])?)"
)
# C0 except tab, newline, carriage return and ESC; DEL; C1; bidi controls.
_REMOVED = r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+"
_MAX_COLOUR_CHARACTERS = 40
_MAX_CHARACTERS_PER_COLUMN = 8  # a letter with its combining accents


def clean(text: str) -> str:
    """Remove terminal escapes and control characters, so that a line of output can be shown."""
    if "\x1b" in text:
        import re

        text = re.sub(_ESCAPE, "", text)
    return (text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)).strip()


def readable(text: str) -> str:
    """Remove escapes and control characters from output. Of a line that was overwritten, only the last state is kept."""
    if not text.replace("\n", "").replace("\t", "").isprintable():
        import re

        text = re.sub(f"{_ESCAPE}|{_REMOVED}", "", text)
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def encodable(text: str) -> str:
    """Replace unpaired surrogates, which broken output can contain and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def shortened(line: str, suffix: str = "", longest: int = 200) -> str:
    """Shorten `line` so that it has at most `longest` characters including `suffix`, which is appended."""
    longest -= len(suffix)
    return (line if len(line) <= longest else line[: longest - 1] + "…") + suffix


def visible(text: str) -> str:
    """Escape every control, formatting and bidi character, so that text that a person approves hides nothing."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cells(text: str) -> int:
    """Return the number of terminal columns of a text."""
    if text.isascii():
        return len(text)
    import unicodedata  # slow to load, and most texts are ASCII

    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def cut(text: str, width: int) -> str:
    """Cut `text` to at most `width` columns, ending with "…" if it does not fit. Reads only as much of a long text as could fit."""
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
            kept = count  # leaves one column for the "…"
    return text


def fitted(text: str, width: int) -> str:
    """Cut or pad `text` to exactly `width` columns."""
    text = cut(text, width)
    return text + " " * (width - cells(text))


class Screen:
    """Makes the raw output of a command safe for a terminal, in chunks.

    Colours, tabs, newlines and carriage returns are kept; everything that could move the cursor, clear the screen, change the title,
    query the terminal or hide text is removed. The result does not depend on the size of the chunks. Buffers at most one incomplete
    escape sequence.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._buffered = ""
        self._coloured = False

    def feed(self, piece: bytes) -> bytes:
        """Return what can be shown of `piece` and of the buffered text."""
        return self._safe(self._decoder.decode(piece))

    def close(self) -> bytes:
        """Return the rest at the end of the output; resets colours if any were used."""
        shown = self._safe(self._decoder.decode(b"", True)) + (b"\x1b[0m" if self._coloured else b"")
        self._buffered, self._coloured = "", False
        return shown

    def _safe(self, text: str) -> bytes:
        import re

        text, self._buffered = self._buffered + text, ""
        if (start := text.rfind("\x1b")) >= 0:
            last = re.compile(_ESCAPE).match(text, start)
            if last and last.end() == len(text) and (last.lastindex or 0) < 2:
                text, self._buffered = text[:start], text[start:]
        return re.sub(f"{_ESCAPE}|{_REMOVED}", self._replacement, text).encode()

    def _replacement(self, found: "re.Match[str]") -> str:
        if found[2] != "m" or len(found[1]) > _MAX_COLOUR_CHARACTERS or not (colours := _colours(found[1])):
            return ""
        self._coloured = True
        return f"\x1b[{';'.join(colours)}m"


def _colours(parameters: str) -> list[str]:
    """Return the parameters of a colour sequence without "conceal" (8); empty if it is not a plain colour sequence."""
    import re

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
