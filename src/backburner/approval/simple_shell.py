"""Reads simple shell lines: simple commands with redirects, joined by | && || ; & and line ends. Pure.

All shells interpret this subset in the same way. Lines with other syntax (substitutions, here-documents, compound commands, complex
quoting) are not read, and the gate requires approval for them, unless they run in a sandbox: there, loops and conditions are read too. A word that is only a quoted here-document, `"$(cat <<'END' …)"`, is read, and so is
one that is the input of a command.
"""

from backburner.core.deferred_modules import re
from backburner.core.light_typing import NamedTuple

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
_BEFORE_COMMANDS = frozenset(["!", "if", "then", "else", "elif", "while", "until", "do"])
_AFTER_COMMANDS = frozenset(["fi", "done"])
_AFTER_LOOP = r"[ \t]*($|[;|&\n]|\d?>)"
_FOR = r"for[ \t]+[A-Za-z_]\w*[ \t]+in[ \t]+(\$\(seq((?:[ \t]+\d+)+)\)|\{\d+\.\.\d+\}|[\w./-]+(?:[ \t]+[\w./-]+)*)[ \t]*(?=[;\n])"
_UNQUOTED = frozenset("_./:=@%+,^!-")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# A text of several lines as one word, without expansions. No line begins like its end, which some shells would take for it.
_DOCUMENT = r"\"\$\(cat <<'([A-Z]{2,20})'\n((?:(?!\1).*\n)*)\1\n\)\""
# The same as the input of a command. It is the last part of its line, and no line of it ends like one that could be joined with the next.
_INPUT_DOCUMENT = r"<<'([A-Z]{2,20})'\n(?:(?!\1)(?:.*[^\\\n])?\n)*\1(?=\n|$)"
# The start of one whose line goes on, and its text with the end. Without quotes, only text without expansions is read.
_OPENED_DOCUMENT = r"<<(['\"]?)([A-Z][A-Z0-9_]{1,20})\1(?=[ \t;|&>\n])"
_REST_OF_DOCUMENT = r"\n(?:(?!%s)(?:%s*[^\\\n%s])?\n)*%s(?=\n|$)"
_WORD_ENDS = " \t\n;|&<>"


class Token(NamedTuple):
    """One word: its text, whether it is free of expansions (`known`), contains a pattern, and is quoted at least in part."""

    text: str
    known: bool
    pattern: bool
    quoted: bool


class Simple(NamedTuple):
    """One simple command."""

    assigned: list[tuple[str, Token]]
    words: list[Token]
    redirects: list[tuple[str, str]]


class _NotSimple(Exception):
    """The line contains syntax that is not read here."""


def read(line: str, *, compound: bool = False) -> list[Simple] | None:
    """Return the simple commands of a line, with `compound` also those in loops and conditions; None if the line contains other syntax."""
    try:
        return _read(line, compound=compound)
    except _NotSimple:
        return None


def without_documents(line: str) -> str:
    """The line without the here-documents that are the input of its commands, if `read` reads it."""
    documents: list[tuple[int, int]] = []
    for compound in (False, True):
        try:
            _read(line, compound=compound, documents=documents)
        except _NotSimple:
            documents.clear()
            continue
        break
    for start, end in reversed(documents):
        line = line[:start] + line[end:]
    return line


def without_continued_documents(line: str) -> str:
    """The same for a line that also has commands or redirects after the start of a here-document."""
    documents: list[tuple[int, int]] = []
    try:
        _read(line, compound=True, documents=documents, continued=True)
    except _NotSimple:
        return line
    for start, end in sorted(documents, reverse=True):
        line = line[:start] + line[end:]
    return line


def _read(line: str, *, compound: bool, documents: list[tuple[int, int]] | None = None, continued: bool = False) -> list[Simple]:
    """`documents` gets the places of the here-documents. `continued`: their lines may go on after their starts."""
    commands, current, index = [], Simple([], [], []), 0
    opened: re.Match[str] | None = None
    while index < len(line):
        c, two = line[index], line[index : index + 2]
        if opened and "\n" in line[opened.end() : index]:
            raise _NotSimple
        if opened and c == "\n":
            index = _after_document(line, index, opened, documents)
            opened = None
        elif c in " \t":
            index += 1
        elif compound and current == Simple([], [], []) and (loop := re.compile(_FOR).match(line, index)):
            words = ("seq", *loop.group(2).split()) if loop.group(2) else ()
            commands.append(Simple([], [Token(word, True, False, False) for word in words], []))
            index = loop.end()
        elif c in "\n;|&":
            if two in (";;", ";&", "|&", "&>"):
                raise _NotSimple
            commands.append(current)
            current, index = Simple([], [], []), index + (2 if two in ("&&", "||") else 1)
        elif c == "#":
            end = line.find("\n", index)
            index = len(line) if end < 0 else end
        elif c == "<" and (text := re.compile(_INPUT_DOCUMENT).match(line, index)):
            index = text.end()
            if documents is not None:
                documents.append(text.span())
        elif continued and not opened and (found := re.compile(_OPENED_DOCUMENT).match(line, index)):
            opened, index = found, found.end()
        elif matched := re.compile(r"\d?(>>|>|<)").match(line, index):
            index = _redirect(line, matched.end(), matched.group(1), current)
        else:
            token, index = _word(line, index)
            is_keyword = compound and current == Simple([], [], []) and not token.quoted
            if is_keyword and token.text in _AFTER_COMMANDS and not re.compile(_AFTER_LOOP).match(line, index):
                raise _NotSimple
            if not is_keyword or token.text not in _BEFORE_COMMANDS | _AFTER_COMMANDS:
                _add(current, token)
    if opened:
        raise _NotSimple
    commands.append(current)
    return [command for command in commands if command != Simple([], [], [])]


def _after_document(line: str, index: int, opened: "re.Match[str]", documents: list[tuple[int, int]] | None) -> int:
    """The end of the here-document whose text begins in the next line."""
    quote, end = opened.groups()
    text = re.compile(_REST_OF_DOCUMENT % (end, "." if quote else r"[^\\$`\n]", "" if quote else "$`", end)).match(line, index)
    if not text:
        raise _NotSimple
    if documents is not None:
        documents += [opened.span(), text.span()]
    return text.end()


def _add(current: Simple, token: Token) -> None:
    name, equals, value = token.text.partition("=")
    if not current.words and equals and re.fullmatch(_NAME, name):
        current.assigned.append((name, token._replace(text=value)))
        return
    if not current.words and not token.quoted and token.text in _KEYWORDS:
        raise _NotSimple
    current.words.append(token)


def _redirect(line: str, index: int, operator: str, current: Simple) -> int:
    if line.startswith("&", index):
        matched = re.compile(r"&(\d|-)(?=[ \t\n;|&]|$)").match(line, index)
        if not matched:
            raise _NotSimple
        return matched.end()
    while line[index : index + 1] in (" ", "\t"):
        index += 1
    if index >= len(line) or line[index] in _WORD_ENDS + "(":
        raise _NotSimple
    token, index = _word(line, index)
    current.redirects.append((operator, token.text))
    return index


def _word(line: str, index: int) -> tuple[Token, int]:
    text, known, pattern, quoted, start = "", True, False, False, index
    while index < len(line) and line[index] not in _WORD_ENDS:
        c = line[index]
        if c == "'":
            end = line.find("'", index + 1)
            if end < 0:
                raise _NotSimple
            text, quoted, index = text + line[index + 1 : end], True, end + 1
        elif c == '"' and (document := re.compile(_DOCUMENT).match(line, index)):
            text, quoted, index = text + _content(document), True, document.end()
        elif c == '"':
            inner, whole, index = _double(line, index + 1)
            text, quoted, known = text + inner, True, known and whole
        elif c == "\\":
            if line[index + 1 : index + 2] not in tuple(";(){}*?[]"):
                raise _NotSimple
            text, quoted, index = text + line[index + 1], True, index + 2
        elif c == "$":
            matched = re.compile(_NAME).match(line, index + 1)
            if not matched:
                raise _NotSimple
            text, known, index = text + line[index : matched.end()], False, matched.end()
        elif c == "{" and line.startswith("{}", index) and index == start and line[index + 2 : index + 3] in ("", *_WORD_ENDS):
            text, quoted, index = "{}", True, index + 2
        elif c in "*?[]":
            pattern = pattern or (c != "]" and not (c == "[" and index == start and line[index + 1 : index + 2] in ("", *_WORD_ENDS)))
            text, index = text + c, index + 1
        elif c == "~" and index == start:
            text, pattern, index = "~", True, index + 1
        elif c.isalnum() or c in _UNQUOTED or (c == "~" and line[index - 1] not in ":="):
            text, index = text + c, index + 1
        else:
            raise _NotSimple
    return Token(text, known, pattern, quoted), index


def document(text: str) -> str | None:
    """The content of a word that is `"$(cat <<'END' …)"`; None for other words."""
    matched = re.fullmatch(_DOCUMENT, text)
    return _content(matched) if matched else None


def _content(document: "re.Match[str]") -> str:
    return document.group(2).rstrip("\n")


def _double(line: str, index: int) -> tuple[str, bool, int]:
    """Return the content of a double-quoted string, whether it is free of expansions, and the position after it."""
    text, known = "", True
    while index < len(line):
        c = line[index]
        if c == '"':
            return text, known, index + 1
        if c == "\\":
            after = line[index + 1 : index + 2]
            if after in ("", "\n", "!"):
                raise _NotSimple
            text, index = text + (after if after in '"\\$`' else c + after), index + 2
        elif c == "$":
            matched = re.compile(_NAME).match(line, index + 1)
            if not matched:
                raise _NotSimple
            text, known, index = text + line[index : matched.end()], False, matched.end()
        elif c == "`":
            raise _NotSimple
        else:
            text, index = text + c, index + 1
    raise _NotSimple
