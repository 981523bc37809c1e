"""Edits TOML that people write by hand as text: one table comes, changes or goes, and every other byte stays as it was.
Pure: text goes in, text comes out. Each edit is read back; where it would mean anything but the same file with or without
the table, it is a BadInput that names the file, as is what cannot be read.
"""

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from typing import NamedTuple

from backburner.core.errors import BadInput

Path = tuple[str, ...]
Table = dict[str, object]

# Strings of all four kinds, a comment, or any one character.
_TOKEN = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|.', re.DOTALL)
_TRIVIA = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Statement(NamedTuple):
    """A header or a pair, by its full path; `start` to `end` are whole lines, `value` is where that of a pair begins."""

    path: Path
    start: int
    end: int
    value: int | None


def get(text: str, path: Path = (), where: str = "The file") -> object:
    """What is at a path, None where there is nothing; `where` is how errors call the file."""
    found: object = _load(text, where)
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def put(text: str, path: Path, table: Table, where: str = "The file") -> str:
    """`text` with `table` at `path`, in the place of what was there."""
    before = _load(text, where)
    for depth in range(1, len(path)):
        above = get(text, path[:depth], where)
        if above is not None and not isinstance(above, dict):
            raise BadInput(f'{where}: "{".".join(path[:depth])}" is not a table; correct that first. Nothing was changed.')
    if get(text, path, where) == table:
        return text
    wanted = _with(before, path, table)
    for candidate in _candidates(text, path, table, where):
        if _means(candidate, wanted):
            return candidate
    raise BadInput(f"{where} is written in a way that leaves no place for [{'.'.join(path)}]; add it by hand. Nothing was changed.")


def remove(text: str, path: Path, where: str = "The file") -> str:
    """`text` without what is at `path`."""
    before = _load(text, where)
    if get(text, path, where) is None:
        return text
    after = _without(text, path)
    if not _means(after, _less(before, path), but=path):
        raise BadInput(
            f"{where} is written in a way from which [{'.'.join(path)}] cannot be taken; remove it by hand. Nothing was changed."
        )
    return after


def _load(text: str, where: str) -> Table:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not valid TOML: {error}. Nothing was changed.") from None


def _means(text: str, wanted: Table, but: Path = ()) -> bool:
    """Whether a text says just that, where `but` is given apart from an empty table above that path."""
    try:
        found = tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return False
    return _canonical(_less(found, but) if but else found) == _canonical(wanted)


def _canonical(document: Table) -> str:
    return json.dumps(document, sort_keys=True, default=repr)


def _with(document: Table, path: Path, table: Table) -> Table:
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        step = inner.setdefault(key, {})
        assert isinstance(step, dict)
        inner = step
    inner[path[-1]] = table
    return document


def _less(document: Table, path: Path) -> Table:
    """The document without what is at a path, and without the tables above it that then hold nothing."""
    document = dict(document)
    inner = document.get(path[0])
    if len(path) > 1 and isinstance(inner, dict) and (rest := _less(inner, path[1:])):
        document[path[0]] = rest
    else:
        document.pop(path[0], None)
    return document


def _candidates(text: str, path: Path, table: Table, where: str) -> Iterator[str]:
    """Ways to write it: where it is, as a table at the end, as a pair beside its siblings, inside the inline table of these."""
    newline = "\r\n" if "\r\n" in text else "\n"
    block = newline.join([f"[{_dotted(path)}]", *(f"{_dotted((key,))} = {_written(value)}" for key, value in table.items()), ""])
    ours = [one for one in _statements(text) if one.path[: len(path)] == path]
    if ours and ours[0].path == path and ours[0].value is None:
        start = ours[0].start
        rest = _without(text, path, keep_blank=True)
        yield rest[:start] + block + rest[start:]
    rest = _without(text, path) if ours or get(text, path, where) is not None else text
    if rest and not rest.endswith("\n"):
        rest += newline
    apart = newline if rest.strip("\ufeff") else ""
    yield rest + apart + block
    for one in reversed(list(_statements(rest))):
        if one.value is None or one.path[: len(path) - 1] != path[:-1]:
            continue
        if one.path != path[:-1]:
            yield f"{rest[: one.end]}{_dotted(path)} = {_written(table)}{newline}{rest[one.end :]}"
        else:
            close = _end(rest, one.value + 1, "}")
            last = one.value + 1 + len(rest[one.value + 1 : close].rstrip())
            new = f" {_dotted(path[-1:])} = {_written(table)}"
            yield f"{rest[:last]},{new}{rest[last:]}" if last > one.value + 1 else f"{rest[:last]}{new} {rest[close:]}"


def _without(text: str, path: Path, keep_blank: bool = False) -> str:
    """The text without the lines of a path, or without its place in an inline table. Comments of their own lines stay."""
    for one in reversed(list(_statements(text))):
        if one.path[: len(path)] == path:
            start = one.start
            blank = re.search(r"(?:\A|\n)(\r?\n)\Z", text[:start])
            if one.value is None and blank and not keep_blank and re.match(r"\r?\n|\Z", text[one.end :]):
                start = blank.start(1)
            text = text[:start] + text[one.end :]
        elif one.path == path[:-1] and one.value is not None and text[one.value] == "{":
            text = _without_member(text, one.value, path[-1])
    return text


def _without_member(text: str, opening: int, key: str) -> str:
    at = opening + 1
    before = opening
    while text[before] != "}":
        end = _end(text, at, ",}")
        if text[at:end].strip() and _key(text[at : _end(text, at, "=")])[0] == key:
            if text[end] == ",":
                return text[:at] + text[end + 1 :]
            return text[:before] + text[at + len(text[at:end].rstrip()) :] if text[before] == "," else text[:at] + text[end:]
        before, at = end, end + 1
    return text


def _statements(text: str) -> Iterator[Statement]:
    """The headers and pairs of a valid text, in order."""
    header: Path = ()
    at = _past_trivia(text, 1 if text.startswith("\ufeff") else 0)
    while at < len(text):
        start = text.rfind("\n", 0, at) + 1
        if text[at] == "[":
            opened = at + (2 if text.startswith("[[", at) else 1)
            closed = _end(text, opened, "]")
            header, value = _key(text[opened:closed]), None
            path, rest = header, closed
        else:
            equals = _end(text, at, "=")
            path, value = header + _key(text[at:equals]), _past_trivia(text, equals + 1)
            rest = _end(text, value, "\n")
        end = text.find("\n", rest) + 1 or len(text)
        yield Statement(path, max(start, 1 if text.startswith("\ufeff") else 0), end, value)
        at = _past_trivia(text, end)


def _past_trivia(text: str, at: int) -> int:
    found = _TRIVIA.match(text, at)
    return found.end() if found else at


def _end(text: str, at: int, stops: str) -> int:
    """Where the first of `stops` stands outside strings, comments and brackets."""
    depth = 0
    for found in _TOKEN.finditer(text, at):
        token = found[0]
        if depth == 0 and token in stops:
            return found.start()
        depth += (token in "[{") - (token in "]}")
    return len(text)


def _key(text: str) -> Path:
    """The parts of a key, quoted or not."""
    path, inner = [], tomllib.loads(f"{text.strip()} = 0")
    while isinstance(inner, dict):
        ((part, inner),) = inner.items()
        path.append(part)
    return tuple(path)


def _dotted(path: Path) -> str:
    return ".".join(part if _BARE.fullmatch(part) else _written(part) for part in path)


def _written(value: object) -> str:
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool() | int() | float():
            return json.dumps(value)
        case list():
            return f"[{', '.join(map(_written, value))}]"
        case dict():
            return f"{{ {', '.join(f'{_dotted((str(key),))} = {_written(one)}' for key, one in value.items())} }}" if value else "{}"
        case _:
            return str(value)  # a date or a time
