"""Rendering of Markdown, line by line, for a terminal."""

import re
import time
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wcwidth import iter_graphemes, wcswidth

from backburner.interfaces.tui.chat.markdown import Markdown

OFF = "\x1b[0m"
SGR = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\u2066\x00\x08\x7f\u2028\ud800\U000e0041a\x1bP+q\x1b\\\x1b[8m"


def drawn(text: str, width: int = 60, *, colour: bool = True) -> list[str]:
    markdown = Markdown(lambda: width, colour=colour)
    return markdown.feed(text) + markdown.close()


def plain(text: str, width: int = 60) -> list[str]:
    return drawn(text, width, colour=False)


def in_pieces(text: str, ends: list[int], width: int = 30) -> list[str]:
    markdown = Markdown(lambda: width)
    lines, at = [], 0
    for end in [*sorted(end for end in ends if end <= len(text)), len(text)]:
        lines += markdown.feed(text[at:end])
        at = end
    return lines + markdown.close()


def columns(line: str) -> int:
    return sum(wcswidth(cluster) for cluster in iter_graphemes(SGR.sub("", line)))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain", "plain"),
        ("# One", f"\x1b[1;4mOne{OFF}"),
        ("## Two ##", f"\x1b[1;4mTwo{OFF}"),
        ("###### Six", f"\x1b[1mSix{OFF}"),
        ("#hashtag", "#hashtag"),
        ("####### seven", "####### seven"),
        ("**bold**", f"\x1b[1mbold{OFF}"),
        ("*italic*", f"\x1b[3mitalic{OFF}"),
        ("_italic_", f"\x1b[3mitalic{OFF}"),
        ("***both***", f"\x1b[1;3mboth{OFF}"),
        ("**bold *both***", f"\x1b[1mbold {OFF}\x1b[1;3mboth{OFF}"),
        ("~~gone~~", f"\x1b[9mgone{OFF}"),
        ("`a **b** \\*`", f"\x1b[36ma **b** \\*{OFF}"),
        ("\\*stars\\* and \\`ticks\\`", "*stars* and `ticks`"),
        ("`` a`b ``", f"\x1b[36ma`b{OFF}"),
        ("**B**old", f"\x1b[1mB{OFF}old{OFF}"),
        ("这是**“粗体”**文字", f"这是\x1b[1m“粗体”{OFF}文字{OFF}"),
        ("[docs](https://x.y/a_(b))", f"\x1b[4mdocs{OFF}\x1b[2m (https://x.y/a_(b)){OFF}"),
        ("[https://x.y](https://x.y)", f"\x1b[4mhttps://x.y{OFF}"),
        ('![a [1]](u "title")', f"\x1b[4ma [1]{OFF}\x1b[2m (u){OFF}"),
        ("**[`f`](u)**", f"\x1b[4;36;1mf{OFF}\x1b[2;1m (u){OFF}"),
        ("***", f"\x1b[2m{'─' * 60}{OFF}"),
        ("- - -", f"\x1b[2m{'─' * 60}{OFF}"),
        ("> said", f"\x1b[2m│{OFF} said{OFF}"),
    ],
)
def test_marks_become_styles_and_every_styled_line_ends_with_a_reset(text: str, wanted: str) -> None:
    assert drawn(text) == [wanted]


@pytest.mark.parametrize(
    "text",
    [
        "snake_case_words and a_b_, __init__.py, _private_name",
        "2*3*4 and 2**3**4, 2 * 3 * 4",
        "a ** b, **kwargs, f(**a) and g(**b), f(*a, **b)",
        "src/*.py and tests/*.py, **/*.py",
        "**not closed, *nor this, `nor that, ~~ this ~~ one",
        "[not a link] (x), a[0](, ~5 ~~~~ ****",
        "C:\\new",
    ],
)
def test_text_without_markup_is_unchanged(text: str) -> None:
    assert drawn(text) == [text]


def test_without_colour_there_are_no_escape_sequences() -> None:
    text = "# T\n**b** *i* `c` ~~s~~ [t](u)\n> q\n---\n```\ncode\n```\n| a |\n|---|\n| **1** |\n"
    assert plain(text, 20) == ["T", "b i `c` ~~s~~ t (u)", "│ q", "─" * 20, "  code", "a", "─", "1"]


def test_lists_are_indented_nested_and_numbered() -> None:
    text = "- one two three four\n  * five six seven eight\n    12. nine ten eleven\n+ [ ] open\n- [x] done\n1) [X] both\n   more of it"
    assert plain(text, 20) == [
        "• one two three four",
        "  • five six seven",
        "    eight",
        "    12. nine ten",
        "        eleven",
        "☐ open",
        "☑ done",
        "1) ☑ both",
        "   more of it",
    ]


def test_quotes_are_indented_and_nested() -> None:
    assert plain("> one two three four five\n> > six\n>\n> - seven\n  > eight", 20) == [
        "│ one two three four",
        "│ five",
        "│ │ six",
        "│",
        "│ • seven",
        "  │ eight",
    ]


def test_text_is_wrapped_at_words_and_long_words_are_broken() -> None:
    assert plain("The quick brown fox jumps over it", 20) == ["The quick brown fox", "jumps over it"]
    assert plain("see " + "x" * 40 + " end", 20) == ["see " + "x" * 16, "x" * 20, "xxxx end"]
    assert plain("進捗" * 12, 20) == ["進捗" * 5, "進捗" * 5, "進捗" * 2]
    assert plain("👩\u200d💻" * 11, 20) == ["👩\u200d💻" * 10, "👩\u200d💻"]
    assert drawn("**one two three four five six**", 20) == [f"\x1b[1mone two three four{OFF}", f"\x1b[1mfive six{OFF}"]


def test_the_width_is_read_for_every_line_and_is_at_least_20() -> None:
    width = 40
    markdown = Markdown(lambda: width)
    assert markdown.feed("one two three four five\n") == ["one two three four five"]
    width = 1
    assert markdown.feed("one two three four five\n") == ["one two three four", "five"]


def test_fenced_code_is_returned_line_by_line_and_never_wrapped() -> None:
    markdown = Markdown(lambda: 20)
    assert markdown.feed('```python title="x"\n') == []
    long = "# not a **heading** and much longer than the screen is wide | a |"
    assert markdown.feed(f"{long}\n\tindented\n") == [f"  \x1b[36m{long}{OFF}", f"  \x1b[36m    indented{OFF}"]
    assert markdown.feed("\n    ```\n```\n**b**\n") == ["", f"  \x1b[36m    ```{OFF}", f"\x1b[1mb{OFF}"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("````md\n```\nx\n```\n````\n*y*", ["  ```", "  x", "  ```", "y"]),
        ("```\nx\n`````\n*y*", ["  x", "y"]),
        ("~~~\n```\n~~~\n*y*", ["  ```", "y"]),
        ("- a\n  ```sh\n  x\n    y\n  ```\n  *z*", ["• a", "    x", "      y", "  z"]),
        ("- ```\n  x\n  ```\n*y*", ["•", "    x", "y"]),
        ("> ```\n> x\n> ```\n*y*", ["│   x", "y"]),
        ("> ```\n> x\n*y*", ["│   x", "y"]),
        ("```never closed\nx", ["  x"]),
        ("```inline``` code", ["```inline``` code"]),
        ("```\nx\n``` no end\n", ["  x", "  ``` no end"]),
    ],
)
def test_fences_of_every_kind(text: str, wanted: list[str]) -> None:
    assert plain(text) == wanted


def test_a_table_is_held_until_its_end_and_aligned() -> None:
    markdown = Markdown(lambda: 60, colour=False)
    assert markdown.feed("| Name | Size | Of |\n|:--|--:|:-:|\n| 日本 | 1 | x |\n| `a|b` | 1000 | **y** |\n| c | \\| |\n") == []
    assert markdown.feed("\n") == [
        "Name  │ Size │ Of",
        "──────┼──────┼───",
        "日本  │    1 │ x",
        "`a|b` │ 1000 │ y",
        "c     │    |",
        "",
    ]
    assert drawn("a|b\n-|-\n1|2")[0] == f"\x1b[1ma{OFF}\x1b[2m │ {OFF}\x1b[1mb{OFF}"


def test_a_table_that_is_too_wide_is_cut() -> None:
    lines = plain("| a | b |\n|---|---|\n| short | this cell is much too long to be shown |\n", 24)
    assert lines == ["a     │ b", "──────┼─────────────────", "short │ this cell is…"]
    assert plain("|" + "a|" * 9 + "\n|" + "-|" * 9, 20) == ["|a|a|a|a|a|a|a|a|a|"]


def test_text_that_only_looks_like_a_table_is_text() -> None:
    markdown = Markdown(lambda: 60)
    assert markdown.feed("this | that\n") == []
    assert markdown.feed("and *more*\n") == ["this | that", f"and \x1b[3mmore{OFF}"]
    assert plain("a | b\n- | - | -\n") == ["a | b", "• | - | -"]
    assert plain("a | b\n--|--|--\n") == ["a | b", "--|--|--"]
    assert plain("> a | b\n---|---") == ["│ a | b", "---|---"]


def test_rest_is_the_unfinished_line() -> None:
    markdown = Markdown(lambda: 60)
    assert markdown.feed("one\n**tw\x1b[3") == ["one"]
    assert markdown.rest == "**tw"
    assert markdown.feed("1mo**") == [] and markdown.rest == "**two**"
    assert markdown.close() == [f"\x1b[1mtwo{OFF}"] and markdown.rest == ""


def test_after_close_the_renderer_can_be_used_again() -> None:
    markdown = Markdown(lambda: 60)
    for start in ("```\nx", "| a |\n| - |\n", "> `", "x" * 9000):
        markdown.feed(start)
        markdown.close()
        assert markdown.feed("*y*\n") == [f"\x1b[3my{OFF}"]


def test_carriage_returns_and_tabs() -> None:
    assert in_pieces("a\r\n\r\nb\r\n", [2, 3, 4]) == ["a", "", "b"]
    assert plain("hidden\rshown\n-\ttab") == ["hidden shown", "• tab"]


def test_a_line_that_is_too_long_is_returned_in_pieces() -> None:
    markdown = Markdown(lambda: 10_000)
    words = "word " * 2000
    assert markdown.feed("- " + words) == ["• " + words[:7994]]
    assert markdown.feed("# end\n") == ["  " + words[7995:] + "# end"]
    assert plain("x" * 8000 + "\r\ny", 10_000) == ["x" * 8000, "y"]
    assert plain("```\n" + "x" * 8000 + "```\ny\n```", 10_000) == ["  " + "x" * 8000, "  ```", "  y"]


PIECES = st.sampled_from(
    ["a", "word ", "日本", "👩\u200d💻", "e\u0301", " ", "    ", "\n", "\n\n", "\r\n", "\t", "*", "**", "***", "_", "~~", "`", "```", "~~~"]
    + ["- ", "12. ", "> ", "# ", "---\n", "[", "](", ")", "[ ] ", "|", "|-|-|\n", "| a | b |\n", "\\", "\x1b", "\x1b[3", "1m", HOSTILE]
    + ["x" * 50, "x" * 8000]
)
TEXTS = st.one_of(st.lists(PIECES, max_size=40).map("".join), st.text(st.characters(codec=None), max_size=200))


@settings(deadline=None)
@given(TEXTS, st.lists(st.integers(0, 400), max_size=10))
@example("| a | b |\n|-|-|\n| 1 |\n\n```\nx\n```\n" + HOSTILE, list(range(60)))
@example("x" * 7999 + "\r\n" + "y" * 8001, [7999, 8000, 8001, 16000])
def test_the_result_does_not_depend_on_how_the_text_is_cut(text: str, ends: list[int]) -> None:
    assert in_pieces(text, ends) == in_pieces(text, [])


@settings(deadline=None)
@given(TEXTS, st.integers(0, 70), st.booleans())
@example(HOSTILE, 20, True)
def test_the_output_contains_only_text_and_style_sequences(text: str, width: int, colour: bool) -> None:
    markdown = Markdown(lambda: width, colour=colour)
    lines = markdown.feed(text)
    for line in [*lines, markdown.rest, *markdown.close()]:
        bare = SGR.sub("", line) if colour else line
        assert not [c for c in bare if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\u200c\u200d"]
        assert bare == line or line.endswith(OFF)


@settings(deadline=None)
@given(st.lists(PIECES.filter(lambda piece: piece[0] not in "`~"), max_size=40).map("".join), st.integers(20, 70))
@example("> " * 50 + "- " * 50 + "1234. [ ] word " * 3, 20)
@example("                    - word", 20)
@example("            - a\n  > > >     1234. [x] 日本日本", 20)
def test_only_code_lines_are_wider_than_the_width(text: str, width: int) -> None:
    assert max(map(columns, drawn(text, width)), default=0) <= width


@pytest.mark.parametrize(
    "text",
    [
        "Some **bold** text, `code` and a [link](https://x.y), said at length.\n- one\n\n```\ncode\n```\n| a |\n|---|\n| b |\n\n",
        "a **b** `c` [d](e) ",
        "x",
        "日本語",
        "[x](",
        '[x](y "',
        "[[a][a]",
        "**a *b _c ~~d ",
        "`a``b```c",
        "> ",
        "# a" + " " * 7000 + "b\n",
        "-" + " " * 3000 + "-x\n",
        "> " * 3000 + "```\n",
        "\x1b]a",
        "\n",
    ],
)
def test_rendering_takes_linear_time(text: str) -> None:
    text = (text * (300_000 // len(text) + 1))[:300_000]
    before = time.process_time()
    assert in_pieces(text, list(range(0, 300_000, 100)), 80) == in_pieces(text, [], 80)
    assert time.process_time() - before < 20, "what is linear takes a second, what is quadratic takes minutes"
