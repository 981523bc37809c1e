"""Adds, changes or removes one member or element in a JSON text that a person maintains, without changing any other byte.

Comments and trailing commas are allowed. Pure: works on text only. Raises a BadInput that names the file if the text cannot be
parsed or has a value of another type at the path.
"""

import json
import re
from typing import NamedTuple, NoReturn

from backburner.core.errors import BadInput

Path = tuple[str | int, ...]

_MAX_DEPTH = 200
_SPACE = " \t\r\n"
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_PIECE = r"[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/"
_TRIVIA = re.compile(rf"(?:{_PIECE})*", re.DOTALL)
_LITERALS = {"true": True, "false": False, "null": None}


class Node(NamedTuple):
    """A value and its position; `items` are the members of an object or the elements of an array."""

    value: object
    start: int
    end: int
    items: tuple["Item", ...] = ()


class Item(NamedTuple):
    """A member, or an element with its index as key. `comma` is the position of the comma after it."""

    key: str | int
    start: int
    node: Node
    comma: int | None


def get(text: str, path: Path = (), where: str = "The file") -> object:
    """The value at a path, or None. `where` is the name of the file in error messages."""
    node = _find(_read(text, where), path)
    return node.value if node else None


def put(text: str, path: Path, value: object, where: str = "The file") -> str:
    """`text` with `value` at `path`. Missing objects on the path are created."""
    root = node = _read(text, where)
    newline, unit = _newline(text), _unit(text, root)
    if node is None:
        separator = "" if not text.strip("\ufeff") or text.endswith("\n") else newline
        return text + separator + _json_text(_nested(path, value), unit, "", newline) + newline
    for depth, key in enumerate(path):
        _require_type(text, node, list if isinstance(key, int) else dict, path[:depth], where)
        found = _item(node, key)
        if found is None:
            return _with_item(text, node, json.dumps(key, ensure_ascii=False) + ": ", _nested(path[depth + 1 :], value), unit)
        node = found.node
    if _is_equal(node.value, value):
        return text
    return text[: node.start] + _json_text(value, unit, _indent(text, node.start), newline) + text[node.end :]


def append(text: str, path: Path, element: object, where: str = "The file") -> str:
    """`text` with `element` appended to the array at `path`, which is created if it is missing."""
    root = _read(text, where)
    node = _find(root, path)
    if node is None:
        return put(text, path, [element], where)
    _require_type(text, node, list, path, where)
    return _with_item(text, node, "", element, _unit(text, root))


def remove(text: str, path: Path, where: str = "The file") -> str:
    """`text` without the value at `path`, and without parents that become empty."""
    parent = _find(_read(text, where), path[:-1])
    found = _item(parent, path[-1]) if parent else None
    if parent is None or found is None:
        return text
    text = _without_item(text, parent, parent.items.index(found))
    remaining = _find(_read(text, where), path[:-1])
    if remaining is None or (isinstance(path[-1], str) and _item(remaining, path[-1])):
        return remove(text, path, where)  # the key occurred twice
    is_empty = not text[remaining.start + 1 : remaining.end - 1].strip(_SPACE)
    return remove(text, path[:-1], where) if is_empty and len(path) > 1 else text


def _find(node: Node | None, path: Path) -> Node | None:
    for key in path:
        found = _item(node, key) if node else None
        node = found.node if found else None
    return node


def _item(node: Node, key: str | int) -> Item | None:
    """The item with this key. If a name occurs several times, the last member counts, as in every JSON parser."""
    return next((item for item in reversed(node.items) if item.key == key and type(item.key) is type(key)), None)


def _require_type(text: str, node: Node, kind: type, path: Path, where: str) -> None:
    if isinstance(node.value, kind):
        return
    wanted = "an object" if kind is dict else "a list"
    name = f'"{".".join(map(str, path))}"' if path else "the content"
    raise BadInput(f"{where}, line {_line(text, node.start)}: {name} is not {wanted}; correct the file first. Nothing was changed.")


def _nested(path: Path, value: object) -> object:
    for key in reversed(path):
        value = {key: value}
    return value


def _is_equal(first: object, second: object) -> bool:
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _indent(text: str, at: int) -> str:
    """The indentation of the line at a position."""
    line = text[text.rfind("\n", 0, at) + 1 : at].lstrip("\ufeff")
    return line[: len(line) - len(line.lstrip(" \t"))]


def _begins_line(text: str, at: int) -> bool:
    start = text.rfind("\n", 0, at) + 1
    return start > 0 and not text[start:at].strip(" \t")


def _unit(text: str, root: Node | None) -> str:
    """The indentation of one level in this file."""
    for item in root.items if root else ():
        if _begins_line(text, item.start):
            return _indent(text, item.start) or "  "
    return "  "


def _json_text(value: object, unit: str, indent: str, newline: str) -> str:
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", newline + indent)


def _with_item(text: str, node: Node, name: str, value: object, unit: str) -> str:
    """`text` with an item added at the end of an object or array, formatted like the other items."""
    newline, close = _newline(text), node.end - 1
    inside = text[node.start + 1 : close]
    at = node.start + 1 + len(inside.rstrip(_SPACE))
    outer = _indent(text, node.start)
    if at == node.start + 1:
        indent = outer + unit
        return f"{text[:at]}{newline}{indent}{name}{_json_text(value, unit, indent, newline)}{newline}{outer}{text[close:]}"
    last = node.items[-1] if node.items else None
    if "\n" in inside:
        own = next((item for item in reversed(node.items) if _begins_line(text, item.start)), None)
        indent = _indent(text, own.start) if own else outer + unit
        added = f"{newline}{indent}{name}{_json_text(value, unit, indent, newline)}"
    else:
        added = f" {name}{json.dumps(value, ensure_ascii=False)}"
    if last and last.comma is None:
        return f"{text[: last.node.end]},{text[last.node.end : at]}{added}{text[at:]}"
    return f"{text[:at]}{added}{',' if last else ''}{text[at:]}"


def _without_item(text: str, node: Node, index: int) -> str:
    """`text` without one item, its comma, and the line that would be empty. Comments are kept, and still end at the same place."""
    item = node.items[index]
    before = node.items[index - 1] if index else None
    end = item.node.end if item.comma is None else item.comma + 1
    past = end + len(text[end:]) - len(text[end:].lstrip(" \t"))
    following = text[past : past + 1]
    since = node.start + 1 if before is None or before.comma is None else before.comma + 1
    pieces = [piece for piece in re.findall(_PIECE, text[since : item.start], re.DOTALL) if piece.strip(_SPACE)]
    after_line_comment = bool(pieces) and pieces[-1].startswith("//")
    if following in ("\r", "\n") or (not after_line_comment and (following == "/" or index == len(node.items) - 1)):
        start = len(text[: item.start].rstrip(_SPACE))
    else:
        start, end = item.start, past
    head, tail = text[:start], text[end:]
    if before and before.comma is not None and item.comma is None:
        head = head[: before.comma] + head[before.comma + 1 :]
    rest = head[node.start + 1 :] + tail[: node.end - 1 - end]
    if not rest.strip(_SPACE):
        return text[: node.start + 1] + text[node.end - 1 :]
    return head + tail


def _read(text: str, where: str) -> Node | None:
    """Parse the document; None if it contains only white space and comments."""
    reader = _Reader(text, where)
    start = reader.skip(1 if text.startswith("\ufeff") else 0)
    if start == len(text):
        return None
    node = reader.value(start, 0)
    if (end := reader.skip(node.end)) != len(text):
        reader.fail(end, "unexpected text after the end of the document")
    return node


class _Reader:
    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where

    def fail(self, at: int, problem: str) -> NoReturn:
        column = at - self.text.rfind("\n", 0, at)
        raise BadInput(f"{self.where}, line {_line(self.text, at)}, column {column}: not valid JSON: {problem}. Nothing was changed.")

    def skip(self, at: int) -> int:
        """The position after white space and comments."""
        found = _TRIVIA.match(self.text, at)
        return found.end() if found else at

    def value(self, at: int, depth: int) -> Node:
        text = self.text
        if depth > _MAX_DEPTH:
            self.fail(at, "nested too deeply")
        match text[at : at + 1]:
            case "{" | "[":
                return self.items(at, depth)
            case '"':
                return self.string(at)
            case "":
                self.fail(at, "unexpected end of the file")
        for word, value in _LITERALS.items():
            if text.startswith(word, at):
                return Node(value, at, at + len(word))
        found = _NUMBER.match(text, at)
        if not found:
            self.fail(at, f"{text[at]!r} is not a value")
        try:
            return Node(json.loads(found[0]), at, found.end())
        except ValueError:  # more digits than Python reads
            return Node(float(found[0]), at, found.end())

    def string(self, at: int) -> Node:
        found = _STRING.match(self.text, at)
        if not found:
            self.fail(at, "a string has an invalid character or no closing quote")
        return Node(json.loads(found[0]), at, found.end())

    def items(self, at: int, depth: int) -> Node:
        text, is_object = self.text, self.text[at] == "{"
        close = "}" if is_object else "]"
        items: list[Item] = []
        position = self.skip(at + 1)
        while text[position : position + 1] != close:
            if items and items[-1].comma is None:
                self.fail(position, f"',' or '{close}' expected" if position < len(text) else "unexpected end of the file")
            start, key = position, len(items)
            if is_object:
                if text[position : position + 1] != '"':
                    self.fail(position, "a name in quotes expected" if position < len(text) else "unexpected end of the file")
                name = self.string(position)
                key = str(name.value)
                colon = self.skip(name.end)
                if text[colon : colon + 1] != ":":
                    self.fail(colon, "':' expected")
                position = self.skip(colon + 1)
            node = self.value(position, depth + 1)
            position = self.skip(node.end)
            comma = position if text[position : position + 1] == "," else None
            items.append(Item(key, start, node, comma))
            if comma is not None:
                position = self.skip(position + 1)
        value = {item.key: item.node.value for item in items} if is_object else [item.node.value for item in items]
        return Node(value, at, position + 1, tuple(items))
