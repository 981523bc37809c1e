"""Reading the plain part of shell: simple commands with redirects, joined by | && || ; & and line ends. Pure.

Every shell reads this part alike. Whatever goes beyond it (substitutions, here-documents, compound commands, quoting that is
not simple) is not read here at all: the gate asks.
"""

import re
from typing import NamedTuple

_KEYWORDS = frozenset(
    [
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "select",
        "function",
        "in",
        "coproc",
        "!",
        "{",
        "}",
        "[[",
        "]]",
    ]
)
_BARE = frozenset("_./:=@%+,^!-")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDS = " \t\n;|&<>"


class Token(NamedTuple):
    """One word: its text, whether an expansion or a pattern is in it, and whether any of it was quoted."""

    text: str
    known: bool
    pattern: bool
    quoted: bool


class Simple(NamedTuple):
    """One simple command."""

    assigned: list[tuple[str, Token]]
    words: list[Token]
    redirects: list[tuple[str, str]]


class _NotPlain(Exception):
    pass


def read(line: str) -> list[Simple] | None:
    """The simple commands of a line; None where the line is more than that."""
    try:
        return _read(line)
    except _NotPlain:
        return None


def _read(line: str) -> list[Simple]:
    commands, current, at = [], Simple([], [], []), 0
    while at < len(line):
        c, two = line[at], line[at : at + 2]
        if c in " \t":
            at += 1
        elif c in "\n;|&":
            if two in (";;", ";&", "|&", "&>"):
                raise _NotPlain
            commands.append(current)
            current, at = Simple([], [], []), at + (2 if two in ("&&", "||") else 1)
        elif c == "#":
            end = line.find("\n", at)
            at = len(line) if end < 0 else end
        elif found := re.compile(r"\d?(>>|>|<)").match(line, at):
            at = _redirect(line, found.end(), found.group(1), current)
        else:
            token, at = _word(line, at)
            _add(current, token)
    commands.append(current)
    return [one for one in commands if one != Simple([], [], [])]


def _add(current: Simple, token: Token) -> None:
    name, equals, value = token.text.partition("=")
    if not current.words and equals and _NAME.fullmatch(name):
        current.assigned.append((name, token._replace(text=value)))
        return
    if not current.words and not token.quoted and token.text in _KEYWORDS:
        raise _NotPlain
    current.words.append(token)


def _redirect(line: str, at: int, operator: str, current: Simple) -> int:
    if line.startswith("&", at):
        found = re.compile(r"&(\d|-)(?=[ \t\n;|&]|$)").match(line, at)
        if not found:
            raise _NotPlain
        return found.end()
    while line[at : at + 1] in (" ", "\t"):
        at += 1
    if at >= len(line) or line[at] in _ENDS + "(":
        raise _NotPlain
    token, at = _word(line, at)
    current.redirects.append((operator, token.text))
    return at


def _word(line: str, at: int) -> tuple[Token, int]:
    text, known, pattern, quoted, start = "", True, False, False, at
    while at < len(line) and line[at] not in _ENDS:
        c = line[at]
        if c == "'":
            end = line.find("'", at + 1)
            if end < 0:
                raise _NotPlain
            text, quoted, at = text + line[at + 1 : end], True, end + 1
        elif c == '"':
            inner, whole, at = _double(line, at + 1)
            text, quoted, known = text + inner, True, known and whole
        elif c == "\\":
            if line[at + 1 : at + 2] not in tuple(";(){}*?[]"):
                raise _NotPlain
            text, quoted, at = text + line[at + 1], True, at + 2
        elif c == "$":
            found = _NAME.match(line, at + 1)
            if not found:
                raise _NotPlain
            text, known, at = text + line[at : found.end()], False, found.end()
        elif c == "{" and line.startswith("{}", at) and at == start and line[at + 2 : at + 3] in ("", *_ENDS):
            text, quoted, at = "{}", True, at + 2
        elif c in "*?[]":
            pattern = pattern or (c != "]" and not (c == "[" and at == start and line[at + 1 : at + 2] in ("", *_ENDS)))
            text, at = text + c, at + 1
        elif c == "~" and at == start:
            text, pattern, at = "~", True, at + 1
        elif c.isalnum() or c in _BARE or (c == "~" and line[at - 1] not in ":="):
            text, at = text + c, at + 1
        else:
            raise _NotPlain
    return Token(text, known, pattern, quoted), at


def _double(line: str, at: int) -> tuple[str, bool, int]:
    """The inside of a double-quoted string, whether all of it is known, and where it ends."""
    text, known = "", True
    while at < len(line):
        c = line[at]
        if c == '"':
            return text, known, at + 1
        if c == "\\":
            if line[at + 1 : at + 2] not in ('"', "\\"):
                raise _NotPlain
            text, at = text + line[at + 1], at + 2
        elif c == "$":
            found = _NAME.match(line, at + 1)
            if not found:
                raise _NotPlain
            text, known, at = text + line[at : found.end()], False, found.end()
        elif c == "`":
            raise _NotPlain
        else:
            text, at = text + c, at + 1
    raise _NotPlain
