"""Somebody else's text, made fit to be shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner.text import clean, visible


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
    ],
)
def test_a_line_is_shown_without_what_a_terminal_would_obey(text: str, wanted: str) -> None:
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
def test_what_a_person_decides_on_hides_nothing(text: str, wanted: str) -> None:
    assert visible(text) == wanted


@given(st.text(st.characters(codec=None)))
def test_nothing_that_is_shown_can_move_a_cursor(text: str) -> None:
    assert clean(text).isprintable() and visible(text).isprintable()
