"""Draws the lines that have a limit as an SVG bar chart: the bar is the used share of the limit, so a bar past the mark is a miss.

The chart has colours for light and dark pages, and repeats in words what the colours mean.
"""

from html import escape

from bench.lines import Result
from bench.table import format_number, limit_text

_WIDTH, _ROW, _TOP, _LEFT, _BAR = 1000, 34, 76, 410, 330
_MAX_RATIO = 1.5  # longer bars end here with an arrow; the text beside them has the figure

_STYLE = """
    .page { fill: #ffffff } .text { fill: #1f2328 } .faint { fill: #59636e } .rail { fill: #eaeef2 }
    .met { fill: #1a7f37 } .missed { fill: #cf222e } .mark { stroke: #1f2328 } .spread { stroke: #1f2328 }
    text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif } .title { font-size: 17px; font-weight: 600 }
    .small { font-size: 11px }
    @media (prefers-color-scheme: dark) {
        .page { fill: #0d1117 } .text { fill: #f0f6fc } .faint { fill: #9198a1 } .rail { fill: #21262d }
        .met { fill: #3fb950 } .missed { fill: #f85149 } .mark { stroke: #f0f6fc } .spread { stroke: #f0f6fc }
    }
"""


def draw(results: list[Result], subtitle: str) -> str:
    """Return the SVG text."""
    shown = [result for result in results if result.met is not None]
    height = _TOP + _ROW * len(shown) + 44
    mark = _LEFT + _BAR / _MAX_RATIO
    missed = sum(not result.met for result in shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">',
        f"<title>Backburner against its limits: {len(shown) - missed} met, {missed} missed</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
        '<text class="text title" x="20" y="30">The used share of each limit</text>',
        f'<text class="faint small" x="20" y="50">shorter is better; a bar past the mark misses the limit; » is longer than shown; thin line: middle half of the rounds; {escape(subtitle)}</text>',
        f'<text class="text small" x="{mark:.0f}" y="{_TOP - 8}" text-anchor="middle">limit</text>',
    ]
    for row, result in enumerate(shown):
        parts += _row(result, _TOP + row * _ROW)
    bottom = _TOP + _ROW * len(shown)
    parts.append(
        f'<line class="mark" x1="{mark:.1f}" y1="{_TOP - 2}" x2="{mark:.1f}" y2="{bottom}" stroke-width="1.5" stroke-dasharray="4 3"/>'
    )
    parts.append(f'<text class="faint small" x="20" y="{bottom + 26}">{len(shown) - missed} of {len(shown)} limits met</text>')
    return "\n".join([*parts, "</svg>\n"])


def _row(result: Result, y: float) -> list[str]:
    line = result.line
    assert result.figure is not None and line.limit
    ends = sorted(_bar_length(line.limit, figure, line.is_minimum) for figure in (result.low, result.high))
    length = _bar_length(line.limit, result.figure, line.is_minimum)
    status = "met" if result.met else "missed"
    against = f"compared with {line.against}" if line.against else ""
    value = f"{format_number(result.figure)} {line.unit}"
    return [
        f'<text class="text" x="20" y="{y + (14 if against else 18)}">{escape(line.what)}</text>',
        f'<text class="faint small" x="20" y="{y + 27}">{escape(against)}</text>' if against else "",
        f'<rect class="rail" x="{_LEFT}" y="{y + 6}" width="{_BAR}" height="16" rx="3"/>',
        f'<rect class="{status}" x="{_LEFT}" y="{y + 6}" width="{max(length, 2):.1f}" height="16" rx="3"/>',
        f'<line class="spread" x1="{_LEFT + ends[0]:.1f}" y1="{y + 14}" x2="{_LEFT + ends[1]:.1f}" y2="{y + 14}" stroke-width="1.5"/>',
        f'<text class="page" x="{_LEFT + _BAR - 6}" y="{y + 18}" text-anchor="end">»</text>' if length == _BAR else "",
        f'<text class="text" x="{_LEFT + _BAR + 14}" y="{y + 18}">{escape(value)}</text>',
        f'<text class="faint" x="{_LEFT + _BAR + 100}" y="{y + 18}">{escape(limit_text(line))}</text>',
        f'<text class="{status}" x="{_WIDTH - 20}" y="{y + 18}" text-anchor="end">{status}</text>',
    ]


def _bar_length(limit: float, figure: float, is_minimum: bool) -> float:
    """Return the length of a bar in pixels."""
    used = limit / figure if is_minimum else figure / limit
    return min(used, _MAX_RATIO) / _MAX_RATIO * _BAR
