"""Lays out a list of tasks: as a table for a terminal, or as lines for other programs. Imports little: `backburner list` must be fast."""

import os
import sys

from backburner.core.ids import short_id
from backburner.core.terminal_text import cells, fitted

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Sequence

    Row = tuple[str, str, str, str, str]  # ID, status, start, duration, description

COLOURS = {
    "completed": "32",
    "failed": "31",
    "cancelled": "33",
    "running": "36",
    "pending": "2",
    "proposed": "35",
    "active": "36",
    "paused": "33",
    "done": "32",
    "rejected": "33",
    "expired": "33",
}
_RULE = "─"
_MIN_DESCRIPTION_COLUMNS = 12
_ENOUGH_DESCRIPTION_COLUMNS = 30  # in fewer, IDs are shown without their dates
_MIN_ID_COLUMNS = 20


def colour(status: str, width: int = 0) -> str:
    text = status.ljust(width)
    return f"\x1b[{COLOURS.get(status, '0')}m{text}\x1b[0m" if coloured() else text


def coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(rows: "Sequence[Row]", *, plain: bool = False) -> str:
    """Format tasks, given newest first, as a table with the newest last.

    A narrow terminal gets IDs without their dates, and fewer columns; `plain` ignores it.
    """
    width = columns(1) if sys.stdout.isatty() and not plain else 10_000
    heads = ("ID", "Status", "Started", "Duration", "Description")
    rows = rows[::-1]
    widths = [max(len(head), *(cells(row[i]) for row in rows)) for i, head in enumerate(heads)]
    if sum(widths[:4]) + 4 + min(widths[4], _ENOUGH_DESCRIPTION_COLUMNS) > width:
        rows = [(short_id(row[0]), *row[1:]) for row in rows]
        widths[0] = min(max(2, *(cells(row[0]) for row in rows)), max(_MIN_ID_COLUMNS, width // 2))
    shown = [0, 1, 2, 3, 4]
    for dropped in (2, 3, 4):
        if sum(widths[i] for i in shown if i != 4) + len(shown) - 1 + _MIN_DESCRIPTION_COLUMNS > width:
            shown.remove(dropped)
    widths[4] = max(_MIN_DESCRIPTION_COLUMNS, min(widths[4], width - sum(widths[i] for i in shown if i != 4) - len(shown) + 1))
    lines = [" ".join(heads[i].ljust(widths[i]) for i in shown).rstrip(), " ".join(_RULE * widths[i] for i in shown)]
    for row in rows:
        texts = [colour(row[1], widths[1]) if i == 1 and not plain else fitted(row[i], widths[i]) for i in shown]
        lines.append(" ".join(texts).rstrip())
    return "\n".join(lines)


def columns(descriptor: int) -> int:
    """Return the width of a terminal in columns; 80 if it is unknown."""
    return terminal(descriptor)[0]


def terminal(descriptor: int) -> tuple[int, int]:
    """Return the columns and lines of a terminal; 80 and 24 if they are unknown."""
    size = os.get_terminal_size(descriptor)
    return size.columns or 80, size.lines or 24


def tab_separated(rows: "Sequence[Row]") -> str:
    """Format tasks for other programs: one per line, with fields separated by tabs."""
    return "\n".join("\t".join(row) for row in rows)
