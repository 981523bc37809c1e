"""Making untrusted text safe to show in a terminal."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backburner.core.terminal_text import Screen, cells, clean, cut, fitted, shortened, visible


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain", "plain"),
        ("  a  b ", "a  b"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\y", "xy"),
        ("a\tb\r\n\0c", "a b   c"),
        ("\x1b[2J\x1b[H", ""),
        ("tput\x1b(B\x1b[m", "tput"),
        ("\x1bP1;2|payload\x1b\\shown", "shown"),
        ("\x1b_a\x1b\\b\x1b^c\x1b\\d\x1bXe\x1b\\f", "bdf"),
        ("\x1b]0;never ends\nnext line", "next line"),
        ("\x1bPnever ends", ""),
        ("\x1b[31", ""),
        ("\x1b", ""),
    ],
)
def test_clean_removes_escapes_and_control_characters(text: str, wanted: str) -> None:
    assert clean(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain text", "plain text"),
        ("naïve 日本語", "naïve 日本語"),
        ("a\nb\x1b[2J", "a\\nb\\x1b[2J"),
        ("safe\u202etxt.exe", "safe\\u202etxt.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\udcff", "\\udcff"),
    ],
)
def test_visible_escapes_every_hidden_character(text: str, wanted: str) -> None:
    assert visible(text) == wanted


@given(st.text(st.characters(codec=None)))
def test_clean_and_visible_text_cannot_move_the_cursor(text: str) -> None:
    assert clean(text).isprintable() and visible(text).isprintable()


def test_an_unterminated_string_sequence_hides_at_most_4096_characters() -> None:
    assert clean("\x1b]52;" + "x" * 5000) == "x" * (5000 - 4096 + 3)


@pytest.mark.parametrize(
    ("text", "width", "wanted"),
    [
        ("plain", 5, "plain"),
        ("plain", 4, "pla…"),
        ("plain", 1, "…"),
        ("plain", 0, ""),
        ("plain", -3, ""),
        ("進捗", 4, "進捗"),
        ("進捗", 3, "進…"),
        ("進捗", 2, "…"),
        ("a進捗", 4, "a進…"),
        ("e\u0301e\u0301", 2, "e\u0301e\u0301"),
        ("e\u0301e\u0301e", 2, "e\u0301…"),
        ("naïve", 4, "naï…"),
    ],
)
def test_a_text_is_cut_at_a_column_and_ends_with_an_ellipsis(text: str, width: int, wanted: str) -> None:
    assert cut(text, width) == wanted


@given(st.text(st.characters(codec="utf-8")), st.integers(0, 40))
@example("e" + "\u0301" * 500, 3)
@example("進" * 500, 7)
def test_a_fitted_text_has_exactly_its_width_and_the_same_start(text: str, width: int) -> None:
    assert cells(fitted(text, width)) == width
    assert fitted(text, width) == text + " " * (width - cells(text)) or text.startswith(fitted(text, width).rstrip(" ").removesuffix("…"))


def test_a_shortened_line_keeps_its_suffix() -> None:
    assert shortened("x" * 300, " (53%)") == "x" * 193 + "… (53%)"
    assert shortened("x" * 200) == "x" * 200
    assert shortened("abcdef", longest=4) == "abc…"


def on_screen(*pieces: bytes) -> bytes:
    screen = Screen()
    return b"".join([*map(screen.feed, pieces), screen.close()])


@pytest.mark.parametrize(
    "text",
    [
        b"plain\ttext\r\nand more\n",
        "naïve 日本語 🙂 👩\u200d💻\n".encode(),
        b"\x1b[31mred\x1b[0m",
        b"\x1b[mreset\x1b[0m",
        b"\x1b[1;38;5;208;48;2;8;8;8mcolours\x1b[0m",
        b"\x1b[38;5;8mgrey\x1b[0m",
        b"\x1b[4:3m\x1b[58:2::8:8:8mcurly\x1b[0m",
    ],
)
def test_text_and_colours_are_kept(text: bytes) -> None:
    assert Screen().feed(text) == text


DROPPED = {
    "cursor": b"\x1b[2A",
    "clear": b"\x1b[2J",
    "mode": b"\x1b[?1049h",
    "question": b"\x1b[6n",
    "private colour": b"\x1b[>4;2m",
    "intermediate": b"\x1b[1 q",
    "colour too long": b"\x1b[" + b"1;" * 30 + b"m",
    "title": b"\x1b]0;title\x07",
    "link": b"\x1b]8;;http://a\x1b\\",
    "clipboard": b"\x1b]52;c;aGk=\xc2\x9c",
    "device": b"\x1bP+q544e\x1b\\",
    "application": b"\x1b_G=1\x1b\\",
    "privacy": b"\x1b^x\x1b\\",
    "start of string": b"\x1bXx\x1b\\",
    "charset": b"\x1b(0",
    "reset": b"\x1bc",
    "save": b"\x1b7",
    "controls": b"\x00\x07\x08\x0b\x0c\x0e\x0f\x18\x1a\x7f",
    "c1": "\x85\x9b\x9d\x90".encode(),
    "bidi": "\u202a\u202e\u2066\u2069\u200e\u200f\u061c".encode(),
    "two escapes": b"\x1b\x1b[2J",
    "cancelled": b"\x1b]0;x\x18",
    "conceal": b"\x1b[8m",
    "conceal with zeros": b"\x1b[008m",
    "conceal with a subparameter": b"\x1b[8:1m",
    "broken colour": b"\x1b[38;5m",
    "broken direct colour": b"\x1b[38;2;8;8m",
}


@pytest.mark.parametrize("sequence", DROPPED.values(), ids=DROPPED)
def test_every_other_escape_sequence_is_removed(sequence: bytes) -> None:
    assert on_screen(b"a" + sequence + b"b") == b"ab"


@pytest.mark.parametrize(
    ("sequence", "wanted"),
    [
        (b"\x1b[8;31m", b"\x1b[31m"),
        (b"\x1b[31;8m", b"\x1b[31m"),
        (b"\x1b[38;5;8;8m", b"\x1b[38;5;8m"),
        (b"\x1b[;8m", b"\x1b[m"),
        (b"\x1b[28;18m", b"\x1b[28;18m"),
    ],
)
def test_colour_sequences_cannot_conceal_text(sequence: bytes, wanted: bytes) -> None:
    assert on_screen(sequence + b"x") == wanted + b"x\x1b[0m"


def test_colours_are_reset_at_the_end_if_any_were_used() -> None:
    screen = Screen()
    assert screen.feed(b"\x1b[31mred") == b"\x1b[31mred"
    assert screen.close() == b"\x1b[0m"
    assert screen.close() == b""


def test_an_incomplete_sequence_at_the_end_is_dropped() -> None:
    screen = Screen()
    assert screen.feed(b"a\x1b[3") + screen.close() == b"a"
    assert screen.feed(b"1m") == b"1m"


@pytest.mark.parametrize("start", [b"\x1b]0;", b"\x1bP", b"\x1b_", b"\x1b^", b"\x1bX", b"\x1b[1;", b"\x1b("])
def test_an_unterminated_sequence_ends_at_the_end_of_its_line(start: bytes) -> None:
    assert on_screen(start + b"1\nnext") == b"\nnext"


def test_an_unterminated_sequence_without_newline_ends_after_4096_characters() -> None:
    assert on_screen(b"\x1b]" + b"x" * 5000) == b"x" * (5000 - 4096)
    assert on_screen(*[b"\x1b]"], *[b"x"] * 5000) == b"x" * (5000 - 4096)


def test_complete_text_is_shown_immediately() -> None:
    screen = Screen()
    assert screen.feed(b"50%\r") == b"50%\r"
    assert screen.feed(b"\x1b[32mok\x1b[0m") == b"\x1b[32mok\x1b[0m"
    assert screen.feed(b"\xe6\x97") == b""
    assert screen.feed(b"\xa5") == "日".encode()


def test_invalid_utf8_in_output_is_replaced() -> None:
    assert on_screen(b"a\xffb\xe6\x97") == "a\ufffdb\ufffd".encode()


PARTS = [
    *DROPPED.values(),
    b"\x1b[31m",
    b"\x1b[8;1m",
    b"\n",
    b"\r",
    b"\x1b",
    b"[",
    b"]",
    b"m",
    b"\\",
    b"8",
    b"38;5;8",
    "é日".encode(),
    b"\xe6",
    b"x",
]
OUTPUT = st.lists(st.sampled_from(PARTS) | st.binary(max_size=8), max_size=30).map(b"".join)


@given(OUTPUT, st.lists(st.integers(0, 200)))
@example(b"\x1b]" + b"x" * 4095 + b"\x07y", [4096, 4097])
@example(b"\x1b]" + b"x" * 4097 + b"\x07y", [4097, 4098, 4099])
@example(b"\x1b[" + b"1" * 4097 + b"my", [4097, 4098, 4099])
def test_the_result_does_not_depend_on_the_size_of_the_chunks(output: bytes, cuts: list[int]) -> None:
    ends = [*sorted(min(cut, len(output)) for cut in cuts), len(output)]
    pieces = [output[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    assert on_screen(*pieces) == on_screen(*(bytes([byte]) for byte in output)) == on_screen(output)


@given(OUTPUT)
def test_only_text_and_colours_remain_on_a_screen(output: bytes) -> None:
    shown = on_screen(output).decode()
    parts = shown.split("\x1b")
    assert all(part.startswith("[") and not part[1:].partition("m")[0].strip("0123456789;:") and "m" in part for part in parts[1:])
    assert not set("".join(parts)) & set(map(chr, [*range(9), 11, 12, *range(14, 32), *range(127, 160), 0x202E, 0x2066, 0x200F, 0x61C]))
    assert on_screen(shown.encode()) in (shown.encode(), shown.encode() + b"\x1b[0m")


ENDLESS = [
    b"\x1b[",
    b"\x1b]",
    b"\x1bP",
    b"\x1b[9",
    b"\x1b]0;\x1b",
    b"\x1b(",
    b"\x1b ",
    b"9;",
    b"\x9b",
    "\u202e".encode(),
    b"\x1b[1m",
    b"\x1b]x\x07",
]


@pytest.mark.parametrize("part", ENDLESS)
@pytest.mark.parametrize("size", [3, 1 << 20])
def test_processing_any_output_is_fast_and_buffers_little(part: bytes, size: int) -> None:
    output = (part * (1 << 16))[: 1 << 16]
    screen = Screen()
    for start in range(0, len(output), size):
        screen.feed(output[start : start + size])
        assert len(screen._buffered) <= 4100
    clean(output.decode("utf-8", "replace"))
