"""Cuts one table out of a TOML text, or writes one into it, with tomlkit. The result is not checked here: `toml_edit` does that.
Deleting or assigning with tomlkit itself would also take away comments behind the table, and mix line ends in a file with CRLF.
"""

import re
from collections.abc import Iterator
from contextlib import suppress

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, InlineTable, Item, Key, KeyType, Null, SingleKey, Table, Whitespace

from backburner.interfaces.client_setup.toml_edit import Path, get

Body = list[tuple[Key | None, Item]]

# A marker stands for each statement or member of an inline table that is cut out; valid TOML has no such characters. It is removed
# with the comma of the member, or with a blank line before it if another one or nothing follows.
_STATEMENT, _MEMBER = "\0\n", "\x01"
_MARKERS = re.compile(r"^\r?\n(?:\0\n)+(?=\r?\n|\Z)|\0\n|,?[ \t]*\x01(?![ \t]*,)|[ \t]*\x01[ \t]*,", re.MULTILINE)


def cut(text: str, path: Path) -> str:
    """The text without what is at a path. Comments on lines of their own stay."""
    return _MARKERS.sub("", _marked(text, path))


def ways_to_put(text: str, path: Path, values: dict[str, object]) -> Iterator[str]:
    """The text with a table in the place of the older one, at the end, or as a member of the inline table above it."""
    marked, rest, table = _marked(text, path), cut(text, path), _written(text, path, values)
    if _STATEMENT in marked:
        yield _MARKERS.sub("", marked.replace(_STATEMENT, table, 1))
    newline = _newline(text) if rest.strip("\ufeff") else ""
    yield rest + (newline if rest.endswith("\n") else newline * 2) + table
    start = rest.find("{", _marked(rest, path[:-1]).find(_STATEMENT)) + 1
    comma = "" if rest[start:].lstrip().startswith("}") else ","
    yield f"{rest[:start]} {_key(path[-1:])} = {_inline(values).as_string()}{comma}{rest[start:]}"


def _marked(text: str, path: Path) -> str:
    """The text with markers for what is at a path."""
    bom = "\ufeff" if text.startswith("\ufeff") else ""
    with suppress(TOMLKitError, ValueError):
        document = tomlkit.parse(text.removeprefix(bom))
        if bom + document.as_string() == text:
            for body, index, is_member in _entries(document.body, path):
                member = SingleKey(_MEMBER, KeyType.Bare, sep="", original=_MEMBER), Null()
                body[index] = member if is_member else (None, Whitespace(_markers(body[index][1])))
            return bom + document.as_string()
    # tomlkit does not write every document back as it was. There, only a table that is written just as here is found.
    values = get(text, path)
    return text.replace(_written(text, path, values), _STATEMENT, 1) if isinstance(values, dict) else text


def _entries(body: Body, path: Path, is_member: bool = False) -> Iterator[tuple[Body, int, bool]]:
    """Where a path is in a document: several times if it is written with dotted keys or in separate tables."""
    for index, (key, item) in enumerate(body):
        if key is not None and path == (key.key,):
            yield body, index, is_member
        elif key is not None and path[:1] == (key.key,) and isinstance(item, InlineTable | Table):
            yield from _entries(item.value.body, path[1:], is_member or isinstance(item, InlineTable))


def _markers(item: Item) -> str:
    """A marker for each statement, between the comments on lines of their own and the blank lines."""
    if isinstance(item, AoT):
        return "".join(map(_markers, item.body))
    body = item.value.body if isinstance(item, Table) else []
    return _STATEMENT + "".join(inner.as_string() if key is None else _markers(inner) for key, inner in body)


def _written(text: str, path: Path, values: dict[str, object]) -> str:
    """A table with the line ends of the text."""
    pairs = (f"{key.as_string()} = {item.as_string()}" for key, item in _inline(values).value.body if key is not None)
    return _newline(text).join([f"[{_key(path)}]", *pairs, ""])


def _inline(values: dict[str, object]) -> InlineTable:
    inline = tomlkit.inline_table()
    inline.update(values)
    return inline


def _key(path: Path) -> str:
    return tomlkit.key(path).as_string()


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
