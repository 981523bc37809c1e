"""Adds, replaces or removes one table in a TOML text that a person maintains, without changing any other byte.

`toml_text` makes the edit with tomlkit; this module reads the result back and compares it. An edit that would change anything
else is rejected with a BadInput that names the file, and so is an invalid file.
"""

import json
import tomllib
from collections.abc import Iterable
from contextlib import suppress

from backburner.core.errors import BadInput
from backburner.core.optional_dependencies import need

Path = tuple[str, ...]
Table = dict[str, object]


def get(text: str, path: Path = (), where: str = "The file") -> object:
    """The value at a path, or None. `where` is the name of the file in error messages."""
    found: object = _load(text, where)
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def put(text: str, path: Path, table: Table, where: str = "The file") -> str:
    """`text` with `table` at `path`, instead of what was there."""
    for depth in range(1, len(path)):
        above = get(text, path[:depth], where)
        if above is not None and not isinstance(above, dict):
            raise BadInput(f'{where}: "{".".join(path[:depth])}" is not a table; correct the file first. Nothing was changed.')
    if _canonical(get(text, path, where)) == _canonical(table):
        return text
    need("toml", f"Editing {where} needs")
    from backburner.interfaces.client_setup.toml_text import candidates_with, cut

    error_text = f"[{'.'.join(path)}] cannot be added to {where} because of how it is written; add it by hand. Nothing was changed."
    return _first_valid(candidates_with(text, path, table), cut(text, path), text, path, table, error_text)


def remove(text: str, path: Path, where: str = "The file") -> str:
    """`text` without what is at `path`. Comments on separate lines are kept."""
    if get(text, path, where) is None:
        return text
    need("toml", f"Editing {where} needs")
    from backburner.interfaces.client_setup.toml_text import cut

    error_text = f"[{'.'.join(path)}] cannot be removed from {where} because of how it is written; remove it by hand. Nothing was changed."
    rest = cut(text, path)
    return _first_valid([rest], rest, text, path, None, error_text)


def _first_valid(candidates: Iterable[str], rest: str, text: str, path: Path, wanted: Table | None, error_text: str) -> str:
    """The first candidate that has `wanted` at the path and in which the rest of `text` has the same characters and values."""
    for candidate in candidates:
        with suppress(BadInput, RecursionError):
            same = _canonical(_others(_load(candidate), path)) == _canonical(_others(_load(text), path))
            found = _canonical(get(candidate, path)) == _canonical(wanted)
            if found and same and _contains(text, rest) and _contains(candidate, rest):
                return candidate
    raise BadInput(error_text)


def _contains(text: str, rest: str) -> bool:
    """Whether `rest` is `text` with some characters removed."""
    characters = iter(text)
    return all(character in characters for character in rest)


def _load(text: str, where: str = "The file") -> Table:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not valid TOML: {error}. Nothing was changed.") from None


def _others(table: Table, path: Path) -> Table:
    """The table without the value at a path, and without parent tables that become empty."""
    others = {key: value for key, value in table.items() if key != path[0]}
    inner = table.get(path[0])
    if len(path) > 1 and isinstance(inner, dict) and (kept := _others(inner, path[1:])):
        others[path[0]] = kept
    return others


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=repr)
