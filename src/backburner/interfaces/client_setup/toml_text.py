"""Removes one table from a TOML text, or inserts one, with tomlkit. `toml_edit` checks the result.

Deleting or assigning with tomlkit directly would also remove comments after the table, and mix line ends in a file with CRLF.
"""

import re
from collections.abc import Iterator
from contextlib import suppress

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, InlineTable, Item, Key, KeyType, Null, SingleKey, Table, Whitespace

from backburner.interfaces.client_setup.toml_edit import Path, get

Body = list[tuple[Key | None, Item]]

# A marker replaces each statement or member of an inline table that is removed; valid TOML has no such characters. It is deleted
# with the comma of the member, or with the blank line before it if another blank line or the end of the text follows.
_STATEMENT, _MEMBER = "\0\n", "\x01"
_MARKERS = re.compile(r"^\r?\n(?:\0\n)+(?=\r?\n|\Z)|\0\n|,?[ \t]*\x01(?![ \t]*,)|[ \t]*\x01[ \t]*,", re.MULTILINE)


def cut(text: str, path: Path) -> str:
    """The text without the value at a path. Comments on separate lines are kept."""
    return _MARKERS.sub("", _with_markers(text, path))


def candidates_with(text: str, path: Path, values: dict[str, object]) -> Iterator[str]:
    """Candidates of the text with the table: at the old position, at the end, or as a member of the parent inline table."""
    marked, rest, table = _with_markers(text, path), cut(text, path), _table_text(text, path, values)
    if _STATEMENT in marked:
        yield _MARKERS.sub("", marked.replace(_STATEMENT, table, 1))
    newline = _newline(text) if rest.strip("\ufeff") else ""
    yield rest + (newline if rest.endswith("\n") else newline * 2) + table
    start = rest.find("{", _with_markers(rest, path[:-1]).find(_STATEMENT)) + 1
    comma = "" if rest[start:].lstrip().startswith("}") else ","
    yield f"{rest[:start]} {_key(path[-1:])} = {_inline(values).as_string()}{comma}{rest[start:]}"


def _with_markers(text: str, path: Path) -> str:
    """The text with markers instead of the value at a path."""
    bom = "\ufeff" if text.startswith("\ufeff") else ""
    with suppress(TOMLKitError, ValueError):
        document = tomlkit.parse(text.removeprefix(bom))
        if bom + document.as_string() == text:
            for body, index, is_member in _entries(document.body, path):
                member = SingleKey(_MEMBER, KeyType.Bare, sep="", original=_MEMBER), Null()
                body[index] = member if is_member else (None, Whitespace(_markers(body[index][1])))
            return bom + document.as_string()
    # tomlkit does not preserve every document exactly. In those, only a table in the format of `_table_text` is found.
    values = get(text, path)
    return text.replace(_table_text(text, path, values), _STATEMENT, 1) if isinstance(values, dict) else text


def _entries(body: Body, path: Path, is_member: bool = False) -> Iterator[tuple[Body, int, bool]]:
    """The positions of a path in a document: several if it is written with dotted keys or in separate tables."""
    for index, (key, item) in enumerate(body):
        if key is not None and path == (key.key,):
            yield body, index, is_member
        elif key is not None and path[:1] == (key.key,) and isinstance(item, InlineTable | Table):
            yield from _entries(item.value.body, path[1:], is_member or isinstance(item, InlineTable))


def _markers(item: Item) -> str:
    """A marker for each statement; comments on separate lines and blank lines are kept."""
    if isinstance(item, AoT):
        return "".join(map(_markers, item.body))
    body = item.value.body if isinstance(item, Table) else []
    return _STATEMENT + "".join(inner.as_string() if key is None else _markers(inner) for key, inner in body)


def _table_text(text: str, path: Path, values: dict[str, object]) -> str:
    """The text of a table, with the line ends of `text`."""
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
