"""Draws the screen of a terminal as SVG: `tmux capture-pane -ep | python docs/terminal.py "a title" > docs/picture.svg`.

Supports colours, and bold, faint, italic, underlined and reversed text. A character takes one cell, a wide character two.
"""

import re
import sys
import unicodedata
from html import escape
from typing import NamedTuple

CELL, LINE, FONT = 8.4, 18, 14
BACK, FORE = "#16181d", "#d7dae0"
BASIC = [
    "#16181d",
    "#e06c75",
    "#98c379",
    "#e5c07b",
    "#61afef",
    "#c678dd",
    "#56b6c2",
    "#d7dae0",
    "#5c6370",
    "#f07178",
    "#b5e08f",
    "#f5d08b",
    "#82c4ff",
    "#d68fff",
    "#7fd6e0",
    "#ffffff",
]


class Style(NamedTuple):
    """How a piece of text is drawn; None is the default colour."""

    fore: str | None = None
    back: str | None = None
    bold: bool = False
    faint: bool = False
    italic: bool = False
    under: bool = False
    reverse: bool = False


def colour(number: int) -> str:
    """The hex value of one of the 256 terminal colours."""
    if number < 16:
        return BASIC[number]
    if number < 232:
        red, rest = divmod(number - 16, 36)
        return "#" + "".join(f"{55 + 40 * part if part else 0:02x}" for part in (red, *divmod(rest, 6)))
    return "#" + f"{8 + 10 * (number - 232):02x}" * 3


def apply_sequence(style: Style, parameters: str) -> Style:
    """Return the style after one colour sequence (the numbers between `ESC [` and `m`)."""
    numbers = [int(number or 0) for number in re.split("[;:]", parameters)]
    while numbers:
        number = numbers.pop(0)
        match number:
            case 0:
                style = Style()
            case 1 | 2 | 3 | 4 | 7:
                style = style._replace(**{{1: "bold", 2: "faint", 3: "italic", 4: "under", 7: "reverse"}[number]: True})
            case 22:
                style = style._replace(bold=False, faint=False)
            case 23 | 24 | 27:
                style = style._replace(**{{23: "italic", 24: "under", 27: "reverse"}[number]: False})
            case 38 | 48 if numbers:
                side = "fore" if number == 38 else "back"
                if numbers.pop(0) == 5:
                    style = style._replace(**{side: colour(numbers.pop(0))})
                else:
                    style = style._replace(**{side: "#" + "".join(f"{numbers.pop(0):02x}" for _ in range(3))})
            case 39:
                style = style._replace(fore=None)
            case 49:
                style = style._replace(back=None)
            case _ if 30 <= number <= 37 or 90 <= number <= 97:
                style = style._replace(fore=BASIC[number - 30 if number < 40 else number - 82])
            case _ if 40 <= number <= 47 or 100 <= number <= 107:
                style = style._replace(back=BASIC[number - 40 if number < 50 else number - 92])
    return style


def width(text: str) -> int:
    """How many cells a text takes."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def draw(screen: str, title: str) -> str:
    """Return the screen as SVG."""
    lines = screen.rstrip().split("\n")
    plain = [re.sub(r"\x1b\[[0-9;:]*m|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.", "", line) for line in lines]
    across, down = max(map(width, plain)) * CELL + 32, len(lines) * LINE + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across:.0f} {down}" width="{across:.0f}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{BACK}"/>',
        *(f'<circle cx="{x}" cy="18" r="5.5" fill="{fill}"/>' for x, fill in ((20, "#e06c75"), (38, "#e5c07b"), (56, "#98c379"))),
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{FONT}" xml:space="preserve">',
    ]
    style = Style()
    for number, line in enumerate(lines):
        x, y = 16.0, 48 + number * LINE
        for piece in re.split(r"(\x1b\[[0-9;:]*m|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\))", line):
            if piece.startswith("\x1b["):
                style = apply_sequence(style, piece[2:-1])
            elif piece and not piece.startswith("\x1b"):
                wide = width(piece) * CELL
                parts += _draw_piece(piece, style, x, y, wide)
                x += wide
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _draw_piece(text: str, style: Style, x: float, y: int, wide: float) -> list[str]:
    """Return the SVG elements for text of one style: its background, if it has one, and the text."""
    fore, back = style.fore or FORE, style.back
    if style.reverse:
        fore, back = back or BACK, fore
    drawn = [f'<rect x="{x:.1f}" y="{y - 14}" width="{wide:.1f}" height="{LINE}" fill="{back}"/>'] if back and back != BACK else []
    if not text.strip() and not style.under:
        return drawn
    marks = []
    if style.bold:
        marks.append(' font-weight="bold"')
    if style.faint:
        marks.append(' opacity="0.6"')
    if style.italic:
        marks.append(' font-style="italic"')
    if style.under:
        marks.append(' text-decoration="underline"')
    # The width is fixed, so that columns line up in every font.
    attributes = f'x="{x:.1f}" y="{y}" fill="{fore}" textLength="{wide:.1f}" lengthAdjust="spacingAndGlyphs"{"".join(marks)}'
    return [*drawn, f"<text {attributes}>{escape(text)}</text>"]


if __name__ == "__main__":
    print(draw(sys.stdin.read(), sys.argv[1] if len(sys.argv) > 1 else "a terminal"), end="")
