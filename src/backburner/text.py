"""Somebody else's text made fit to be shown: nothing in it can move a cursor, hide, or pretend to be ours. Pure."""

import re

_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[ -/]+[0-~]|[@-Z\\-_])")


def clean(text: str) -> str:
    """`text` without terminal escapes and control characters: what a line may show of a command's output."""
    return "".join(c if c.isprintable() else " " for c in _ANSI.sub("", text)).strip()


def visible(text: str) -> str:
    """`text` with every control, formatting and bidi character written out: what a person decides on must hide nothing."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
