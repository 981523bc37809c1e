"""The lines that have a limit as bars in an SVG: how much of the limit is used, so that a bar past the mark is a miss.

It has colours for a light and for a dark page, and says in words what the colours say.
"""

from html import escape

from bench.lines import Result
from bench.words import limit_words, number

_WIDTH, _ROW, _TOP, _LEFT, _BAR = 1000, 34, 76, 410, 330
_FURTHEST = 1.5  # bars that go further end here, with an arrow; the words beside them say the rest

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


def draw(results: list[Result], when: str) -> str:
    """The picture as text."""
    shown = [result for result in results if result.met is not None]
    height = _TOP + _ROW * len(shown) + 44
    mark = _LEFT + _BAR / _FURTHEST
    missed = sum(not result.met for result in shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">',
        f"<title>Backburner against its limits: {len(shown) - missed} met, {missed} missed</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
        '<text class="text title" x="20" y="30">How much of each limit is used</text>',
        f'<text class="faint small" x="20" y="50">shorter is better, past the mark is a miss; » goes further; thin line: middle half of the rounds; {escape(when)}</text>',
        f'<text class="text small" x="{mark:.0f}" y="{_TOP - 8}" text-anchor="middle">limit</text>',
    ]
    for number_of_row, result in enumerate(shown):
        parts += _row(result, _TOP + number_of_row * _ROW)
    bottom = _TOP + _ROW * len(shown)
    parts.append(
        f'<line class="mark" x1="{mark:.1f}" y1="{_TOP - 2}" x2="{mark:.1f}" y2="{bottom}" stroke-width="1.5" stroke-dasharray="4 3"/>'
    )
    parts.append(f'<text class="faint small" x="20" y="{bottom + 26}">{len(shown) - missed} of {len(shown)} limits met</text>')
    return "\n".join([*parts, "</svg>\n"])


def _row(result: Result, y: float) -> list[str]:
    line = result.line
    assert result.figure is not None and line.limit
    ends = sorted(_x(line.limit, figure, line.least) for figure in (result.low, result.high))
    length = _x(line.limit, result.figure, line.least)
    word = "met" if result.met else "missed"
    against = f"against {line.against}" if line.against else ""
    said = f"{number(result.figure)} {line.unit}"
    return [
        f'<text class="text" x="20" y="{y + (14 if against else 18)}">{escape(line.what)}</text>',
        f'<text class="faint small" x="20" y="{y + 27}">{escape(against)}</text>' if against else "",
        f'<rect class="rail" x="{_LEFT}" y="{y + 6}" width="{_BAR}" height="16" rx="3"/>',
        f'<rect class="{word}" x="{_LEFT}" y="{y + 6}" width="{max(length, 2):.1f}" height="16" rx="3"/>',
        f'<line class="spread" x1="{_LEFT + ends[0]:.1f}" y1="{y + 14}" x2="{_LEFT + ends[1]:.1f}" y2="{y + 14}" stroke-width="1.5"/>',
        f'<text class="page" x="{_LEFT + _BAR - 6}" y="{y + 18}" text-anchor="end">»</text>' if length == _BAR else "",
        f'<text class="text" x="{_LEFT + _BAR + 14}" y="{y + 18}">{escape(said)}</text>',
        f'<text class="faint" x="{_LEFT + _BAR + 100}" y="{y + 18}">{escape(limit_words(line))}</text>',
        f'<text class="{word}" x="{_WIDTH - 20}" y="{y + 18}" text-anchor="end">{word}</text>',
    ]


def _x(limit: float, figure: float, least: bool) -> float:
    """How far a bar reaches, in pixels."""
    used = limit / figure if least else figure / limit
    return min(used, _FURTHEST) / _FURTHEST * _BAR
