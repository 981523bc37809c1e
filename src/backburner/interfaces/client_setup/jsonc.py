"""Edits JSON that people write by hand, with comments and trailing commas, as text: a member or an element comes, changes or
goes, and every other byte stays as it was. Pure: text goes in, text comes out. What cannot be read, or holds something else
at the path than is needed, is a BadInput that names the file.
"""

import json
import re
from typing import NamedTuple, NoReturn

from backburner.core.errors import BadInput

Path = tuple[str | int, ...]

_DEEPEST = 200
_SPACE = " \t\r\n"
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_PIECE = r"[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/"
_TRIVIA = re.compile(rf"(?:{_PIECE})*", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}


class Node(NamedTuple):
    """A value and where it stands; `items` are the members of an object or the elements of an array."""

    value: object
    start: int
    end: int
    items: tuple["Item", ...] = ()


class Item(NamedTuple):
    """A member or, with its number for a key, an element. `comma` is where the one after it stands."""

    key: str | int
    start: int
    node: Node
    comma: int | None


def get(text: str, path: Path = (), where: str = "The file") -> object:
    """The value at a path, None where there is none; `where` is how errors call the file."""
    node = _find(_read(text, where), path)
    return node.value if node else None


def put(text: str, path: Path, value: object, where: str = "The file") -> str:
    """`text` with `value` at `path`; objects that are missing on the way are made."""
    root = node = _read(text, where)
    newline, unit = _newline(text), _unit(text, root)
    if node is None:
        apart = "" if not text.strip("\ufeff") or text.endswith("\n") else newline
        return text + apart + _written(_nested(path, value), unit, "", newline) + newline
    for depth, key in enumerate(path):
        _must_be(text, node, list if isinstance(key, int) else dict, path[:depth], where)
        found = _item(node, key)
        if found is None:
            return _added(text, node, json.dumps(key, ensure_ascii=False) + ": ", _nested(path[depth + 1 :], value), unit)
        node = found.node
    if _same(node.value, value):
        return text
    return text[: node.start] + _written(value, unit, _indent(text, node.start), newline) + text[node.end :]


def append(text: str, path: Path, element: object, where: str = "The file") -> str:
    """`text` with one more element at the end of the array at `path`, which is made where it is missing."""
    root = _read(text, where)
    node = _find(root, path)
    if node is None:
        return put(text, path, [element], where)
    _must_be(text, node, list, path, where)
    return _added(text, node, "", element, _unit(text, root))


def remove(text: str, path: Path, where: str = "The file") -> str:
    """`text` without what is at `path`, and without what was around it and now holds nothing."""
    holder = _find(_read(text, where), path[:-1])
    found = _item(holder, path[-1]) if holder else None
    if holder is None or found is None:
        return text
    text = _without(text, holder, holder.items.index(found))
    left = _find(_read(text, where), path[:-1])
    if left is None or (isinstance(path[-1], str) and _item(left, path[-1])):
        return remove(text, path, where)  # it was there twice
    empty = not text[left.start + 1 : left.end - 1].strip(_SPACE)
    return remove(text, path[:-1], where) if empty and len(path) > 1 else text


def _find(node: Node | None, path: Path) -> Node | None:
    for key in path:
        found = _item(node, key) if node else None
        node = found.node if found else None
    return node


def _item(node: Node, key: str | int) -> Item | None:
    """Of several members with the same name the last one counts, as for every reader of JSON."""
    return next((item for item in reversed(node.items) if item.key == key and type(item.key) is type(key)), None)


def _must_be(text: str, node: Node, kind: type, path: Path, where: str) -> None:
    if isinstance(node.value, kind):
        return
    wanted = "an object" if kind is dict else "a list"
    what = f'"{".".join(map(str, path))}"' if path else "what it holds"
    raise BadInput(f"{where}, line {_line(text, node.start)}: {what} is not {wanted}; correct that first. Nothing was changed.")


def _nested(path: Path, value: object) -> object:
    for key in reversed(path):
        value = {key: value}
    return value


def _same(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _indent(text: str, at: int) -> str:
    """What the line of a place begins with."""
    line = text[text.rfind("\n", 0, at) + 1 : at].lstrip("\ufeff")
    return line[: len(line) - len(line.lstrip(" \t"))]


def _begins_line(text: str, at: int) -> bool:
    start = text.rfind("\n", 0, at) + 1
    return start > 0 and not text[start:at].strip(" \t")


def _unit(text: str, root: Node | None) -> str:
    """How far one level is indented in this file."""
    for item in root.items if root else ():
        if _begins_line(text, item.start):
            return _indent(text, item.start) or "  "
    return "  "


def _written(value: object, unit: str, indent: str, newline: str) -> str:
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", newline + indent)


def _added(text: str, node: Node, name: str, value: object, unit: str) -> str:
    """`text` with one more item at the end of an object or array, in the way its others are written."""
    newline, close = _newline(text), node.end - 1
    inside = text[node.start + 1 : close]
    at = node.start + 1 + len(inside.rstrip(_SPACE))
    outer = _indent(text, node.start)
    if at == node.start + 1:
        indent = outer + unit
        return f"{text[:at]}{newline}{indent}{name}{_written(value, unit, indent, newline)}{newline}{outer}{text[close:]}"
    last = node.items[-1] if node.items else None
    if "\n" in inside:
        own = next((item for item in reversed(node.items) if _begins_line(text, item.start)), None)
        indent = _indent(text, own.start) if own else outer + unit
        added = f"{newline}{indent}{name}{_written(value, unit, indent, newline)}"
    else:
        added = f" {name}{json.dumps(value, ensure_ascii=False)}"
    if last and last.comma is None:
        return f"{text[: last.node.end]},{text[last.node.end : at]}{added}{text[at:]}"
    return f"{text[:at]}{added}{',' if last else ''}{text[at:]}"


def _without(text: str, node: Node, index: int) -> str:
    """`text` without one item, its comma, and the line it leaves. Comments stay, and still end where they ended."""
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
    """The whole document; None where there is nothing but space and comments."""
    reader = _Reader(text, where)
    start = reader.skip(1 if text.startswith("\ufeff") else 0)
    if start == len(text):
        return None
    node = reader.value(start, 0)
    if (end := reader.skip(node.end)) != len(text):
        reader.fail(end, "something follows the end")
    return node


class _Reader:
    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where

    def fail(self, at: int, what: str) -> NoReturn:
        column = at - self.text.rfind("\n", 0, at)
        raise BadInput(f"{self.where}, line {_line(self.text, at)}, column {column}: not valid JSON: {what}. Nothing was changed.")

    def skip(self, at: int) -> int:
        """Past space and comments."""
        found = _TRIVIA.match(self.text, at)
        return found.end() if found else at

    def value(self, at: int, depth: int) -> Node:
        text = self.text
        if depth > _DEEPEST:
            self.fail(at, "nested too deeply")
        match text[at : at + 1]:
            case "{" | "[":
                return self.items(at, depth)
            case '"':
                return self.string(at)
            case "":
                self.fail(at, "it ends too early")
        for word, meant in _WORDS.items():
            if text.startswith(word, at):
                return Node(meant, at, at + len(word))
        found = _NUMBER.match(text, at)
        if not found:
            self.fail(at, f"{text[at]!r} is no value")
        try:
            return Node(json.loads(found[0]), at, found.end())
        except ValueError:  # more digits than Python reads
            return Node(float(found[0]), at, found.end())

    def string(self, at: int) -> Node:
        found = _STRING.match(self.text, at)
        if not found:
            self.fail(at, "a string with a wrong character or without an end")
        return Node(json.loads(found[0]), at, found.end())

    def items(self, at: int, depth: int) -> Node:
        text, named = self.text, self.text[at] == "{"
        close = "}" if named else "]"
        items: list[Item] = []
        here = self.skip(at + 1)
        while text[here : here + 1] != close:
            if items and items[-1].comma is None:
                self.fail(here, f"',' or '{close}' expected" if here < len(text) else "it ends too early")
            start, key = here, len(items)
            if named:
                if text[here : here + 1] != '"':
                    self.fail(here, "a name in quotes expected" if here < len(text) else "it ends too early")
                name = self.string(here)
                key = str(name.value)
                colon = self.skip(name.end)
                if text[colon : colon + 1] != ":":
                    self.fail(colon, "':' expected")
                here = self.skip(colon + 1)
            node = self.value(here, depth + 1)
            here = self.skip(node.end)
            comma = here if text[here : here + 1] == "," else None
            items.append(Item(key, start, node, comma))
            if comma is not None:
                here = self.skip(here + 1)
        value = {item.key: item.node.value for item in items} if named else [item.node.value for item in items]
        return Node(value, at, here + 1, tuple(items))
