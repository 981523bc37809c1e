"""Splitting texts into chunks: no chunk is too long or blank, fences are complete in each chunk, and no text is lost."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from backburner.integrations.channels.message_split import LIMIT, pieces, split

WORDS = st.sampled_from(
    [
        "a",
        "word",
        "eins",
        "🙂🙂",
        "日本語",
        "x" * 30,
        "y" * 130,
        " ",
        "  ",
        "\n",
        "\n\n",
        "```",
        "```\n",
        "```python\n",
        "\n```\n",
        "`",
        "``",
    ]
)
TEXTS = st.lists(WORDS, max_size=120).map("".join) | st.text(max_size=400)
LIMITS = st.integers(100, 300)
CODE = re.compile(r"```(?:[\w+.#-]+\n)?(.*?)```", re.DOTALL)


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, limit=LIMITS)
@example(text="```", limit=100)
@example(text="`" * 1000, limit=100)
@example(text="```py\n" + "\n" * 500 + "x\n```", limit=100)
@example(text="```py\nx" + "\n" * 500 + "```\nend", limit=100)
@example(text="a" + " " * 500 + "b", limit=100)
@example(text="🙂" * 500, limit=100)
def test_every_chunk_is_within_the_limit_not_blank_and_has_complete_fences(text: str, limit: int) -> None:
    for chunk in split(text, limit):
        assert 0 < len(chunk) <= limit
        assert chunk.strip()
        assert chunk.count("```") % 2 == 0


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, limit=LIMITS)
def test_the_joined_pieces_are_the_text_and_only_blank_pieces_are_dropped(text: str, limit: int) -> None:
    parts = list(pieces(text, limit))
    assert "".join(part.text for part in parts) == text
    assert all(part.text and re.fullmatch(r"|```[\w+.#-]*\n", part.before) and part.after in ("", "```", "\n```") for part in parts)
    sent = split(text, limit)
    assert [piece for piece in ("".join(part) for part in parts) if piece in sent] == sent
    shown = "".join(part.text for part in parts if "".join(part) in sent)
    assert re.sub(r"\s|`", "", shown) == re.sub(r"\s|`", "", text)


@settings(max_examples=150, deadline=None)
@given(words=st.lists(st.text("abcdefg🙂", min_size=1, max_size=90), min_size=1, max_size=60), limit=LIMITS, gap=st.sampled_from(" \n"))
def test_words_that_fit_into_a_chunk_are_not_split(words: list[str], limit: int, gap: str) -> None:
    assert " ".join(split(gap.join(words), limit)).split() == words


@settings(max_examples=150, deadline=None)
@given(codes=st.lists(st.text("abc \n", min_size=1, max_size=80).filter(str.strip), min_size=1, max_size=12), limit=LIMITS)
def test_a_fence_that_fits_into_a_chunk_is_not_split(codes: list[str], limit: int) -> None:
    text = "and so on\n".join(f"```python\n{code}\n```\n" for code in codes)
    assert [code for chunk in split(text, limit) for code in CODE.findall(chunk)] == [f"{code}\n" for code in codes]


@settings(max_examples=150, deadline=None)
@given(lines=st.lists(st.text("abc d", min_size=1, max_size=40).filter(str.strip), min_size=20, max_size=60))
def test_a_long_fence_is_split_at_lines_and_reopened_with_its_language(lines: list[str]) -> None:
    code = "\n".join(lines) + "\n"
    chunks = split(f"Look:\n```c++\n{code}```\nDone.", 120)
    blocks = [re.search(r"```c\+\+\n(.*?)```", chunk, re.DOTALL) for chunk in chunks]
    assert "".join(block[1] for block in blocks if block) == code


def test_a_short_fence_after_a_long_one_is_not_split() -> None:
    long, fitting = "```python\n" + "print(1)\n" * 30 + "```\n", "```\n" + "a" * 88 + "\n```"
    assert len(fitting) == 96
    assert split(long + fitting, 100)[-1].endswith(fitting)
    assert split(long.replace("print(1)", "x" * 99) + fitting, 100)[-1].endswith(fitting)


def test_a_text_within_the_limit_is_one_unchanged_chunk() -> None:
    assert split("Done.\n```\nok\n```") == ["Done.\n```\nok\n```"]
    assert split("🙂" * LIMIT) == ["🙂" * LIMIT]


def test_a_blank_text_has_no_chunks() -> None:
    assert split("") == split("  \n \n") == []


def test_a_text_is_split_between_paragraphs_if_they_fit() -> None:
    first, second = "one two " * 20 + "\n\n", "three four " * 20
    assert split(first + second, 300) == [first, second]


def test_an_unclosed_fence_is_closed() -> None:
    assert split("so far:\n```sh\nmake") == ["so far:\n```sh\nmake\n```"]


def test_large_texts_are_split_quickly() -> None:
    for text in (
        ("```py\nprint(1)\n```\nand then some words, " * 30 + "\n") * 200,
        "```\n" + "some code\n" * 30_000 + "```",
        "`" * 300_000,
    ):
        assert sum(map(len, split(text))) >= len(text)
