"""Formats results and limits, and prints them as a table."""

from bench.lines import Line, Result


def format_number(figure: float) -> str:
    """Format with about three significant digits and without an exponent."""
    if figure == 0:
        return "0"
    digits = 0 if abs(figure) >= 100 else 1 if abs(figure) >= 10 else 2 if abs(figure) >= 0.1 else 4
    return f"{figure:,.{digits}f}"


def limit_text(line: Line) -> str:
    return "" if line.limit is None else f"{'≥' if line.is_minimum else '≤'} {line.limit:g} {line.unit}"


def table(results: list[Result]) -> str:
    """Return the results as a Markdown table."""
    head = ("what", "compared with", "result", "middle half", "rounds", "limit", "met")
    rows = [head, *map(_row, results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _row(result: Result) -> tuple[str, ...]:
    line = result.line
    if result.figure is None:
        return line.what, line.against, "not installed", "", "", limit_text(line), ""
    met = {True: "yes", False: "MISSED", None: ""}[result.met]
    spread = f"{format_number(result.low)} – {format_number(result.high)}" if result.rounds > 1 else ""
    value = f"{format_number(result.figure)} {line.unit}".strip()
    return line.what, line.against, value, spread, str(result.rounds), limit_text(line), met
