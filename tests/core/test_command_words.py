"""Splitting a command line into arguments, and rejecting shell syntax."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backburner import BadInput
from backburner.core.command_words import words_of


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pytest -q", ("pytest", "-q")),
        ("grep 'a|b' file", ("grep", "a|b", "file")),
        (r"echo a\;b \$HOME", ("echo", "a;b", "$HOME")),
        ('git commit -m "one (two) & three > four"', ("git", "commit", "-m", "one (two) & three > four")),
        ("echo '$(rm -rf /)' '`x`'", ("echo", "$(rm -rf /)", "`x`")),
        ("pytest tests/test_a.py::test_b[1-x]", ("pytest", "tests/test_a.py::test_b[1-x]")),
        ("echo 5$ a$", ("echo", "5$", "a$")),
        ("env A=1 make", ("env", "A=1", "make")),
        ("  ls  ", ("ls",)),
    ],
)
def test_a_command_line_is_split_like_a_shell_does(line: str, words: tuple[str, ...]) -> None:
    assert words_of(line) == words


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("a | b", "`|`"),
        ("a && b", "`&&`"),
        ("a || b", "`||`"),
        ("a; b", "`;`"),
        ("a &", "`&`"),
        ("a > f", "`>`"),
        ("a 2>&1", "`>`"),
        ("a >> f", "`>>`"),
        ("a < f", "`<`"),
        ("a << E", "`<<`"),
        ("a $(b)", "`$(`"),
        ("a `b`", "```"),
        ("a $HOME", "`$`"),
        ("a ${B}", "`$`"),
        ('a "$HOME"', "`$`"),
        ('a "$(b)"', "`$(`"),
        ('a "`b`"', "```"),
        ("(a)", "`(`"),
        ("a\nb", "a line break"),
        ("A=1 make", "`A=1`"),
    ],
)
def test_shell_syntax_is_rejected_and_named_in_the_error(line: str, named: str) -> None:
    with pytest.raises(BadInput, match="shell=true") as refused:
        words_of(line)
    assert named in str(refused.value)


@pytest.mark.parametrize("line", ["", "   ", "'", 'a "b', "a\\"])
def test_an_invalid_command_line_is_rejected(line: str) -> None:
    with pytest.raises(BadInput):
        words_of(line)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=6))
def test_quoted_arguments_are_restored_exactly(words: list[str]) -> None:
    line = shlex.join(["true", *words])
    assert words_of(line) == ("true", *words)
