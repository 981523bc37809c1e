"""ansi.js: what a terminal would show of a line. pyte, a terminal emulator, is the oracle."""

# ruff: noqa: F811 - fixtures are imported by their names

import pyte
import pytest
from browser_fixture import chromium, modules  # noqa: F401
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page

PARSE = """lines => import('/ansi.js').then(ansi => {
    let style = ansi.PLAIN;
    return lines.map(line => { const parsed = ansi.parseLine(line, style); style = parsed.end; return parsed.pieces; });
})"""
NAMES = ["black", "red", "green", "brown", "blue", "magenta", "cyan", "white"]


def parsed(page: Page, *lines: str) -> list[list[dict]]:
    return page.evaluate(PARSE, list(lines))


def shown(pieces: list[dict]) -> list[tuple[str, str, str, bool, bool]]:
    """Each character with its colours, bold and underline."""
    cells = []
    for piece in pieces:
        style = piece["style"]
        assert "mark" not in piece, piece
        cells += [(c, style["fg"], style["bg"], style["bold"], style["underline"]) for c in piece["text"]]
    while cells and cells[-1][0] == " " and not cells[-1][2]:
        cells.pop()
    return cells


def colour(name: str) -> str:
    if name == "default":
        return ""
    if name in NAMES:
        return str(NAMES.index(name))
    if name.startswith("bright") and (bright := name.removeprefix("bright").replace("yellow", "brown")) in NAMES:
        return str(NAMES.index(bright) + 8)
    return f"#{name}"


def in_a_terminal(line: str) -> list[tuple[str, str, str, bool, bool]]:
    screen = pyte.Screen(200, 1)
    pyte.Stream(screen).feed(line)
    cells = [
        (cell.data, colour(cell.fg), colour(cell.bg), cell.bold, cell.underscore) for cell in (screen.buffer[0][n] for n in range(200))
    ]
    while cells and cells[-1][0] == " " and not cells[-1][2]:
        cells.pop()
    return cells


LINES = [
    "plain text",
    "\x1b[31mred\x1b[0m and \x1b[1;32mbold green\x1b[22m not bold",
    "\x1b[93;44mbright on blue\x1b[39;49m",
    "\x1b[38;5;196mindexed\x1b[48;5;240m ground\x1b[m",
    "\x1b[38;2;10;20;30mtrue colour\x1b[0m",
    "\x1b[4munderlined\x1b[24m",
    " 10%\r 50%\r100% done",
    "progress 99%\r\x1b[Kok",
    "abc\b\bXY",
    "\x1b[5Gindented",
    "one\rtwo three\rx",
    "\x1b[31m50%\r\x1b[32m9",
]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_line_looks_as_in_a_terminal(modules: Page, line: str) -> None:
    assert shown(parsed(modules, line)[0]) == in_a_terminal(line)


def test_random_lines_look_as_in_a_terminal(modules: Page) -> None:
    piece = st.sampled_from(
        ["a", "bc", " ", "\r", "\b", "\x1b[K", "\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[95m", "\x1b[38;5;100m", "\x1b[4G", "\x1b[39m"]
    )

    @settings(max_examples=200, suppress_health_check=list(HealthCheck))
    @given(st.lists(piece, max_size=12).map("".join).filter(lambda line: not line.endswith("\r")))
    def check(line: str) -> None:
        # pyte gives erased cells the style of the cursor; a log shows them as the ground.
        expected = [cell for cell in in_a_terminal(line) if cell[0] != " "]
        found = [cell for cell in shown(parsed(modules, line)[0]) if cell[0] != " "]
        assert "".join(cell[0] for cell in shown(parsed(modules, line)[0])) == "".join(cell[0] for cell in in_a_terminal(line))
        assert found == expected

    check()


def test_a_colour_goes_on_into_the_next_line(modules: Page) -> None:
    first, second = parsed(modules, "\x1b[31mred", "still red")
    assert [piece["style"]["fg"] for piece in first + second] == ["1", "1"]


def test_hidden_characters_and_unknown_sequences_are_marked(modules: Page) -> None:
    (pieces,) = parsed(modules, "a\u202eb\x1b[2Jc\x1b[?25ld")
    assert [(piece.get("mark"), piece["text"]) for piece in pieces] == [
        (None, "a"),
        ("hidden", "\u202e"),
        (None, "b"),
        ("escape", "\x1b[2J"),
        (None, "cd"),
    ]


@pytest.mark.parametrize(
    ("target", "link"), [("https://example.com/x", "https://example.com/x"), ("javascript:alert(1)", ""), ("file:///etc/passwd", "")]
)
def test_only_addresses_of_the_web_become_links(modules: Page, target: str, link: str) -> None:
    (pieces,) = parsed(modules, f"\x1b]8;;{target}\x07text\x1b]8;;\x07 after")
    assert (pieces[0]["text"], pieces[0]["style"]["link"]) == ("text", link)
