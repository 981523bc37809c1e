"""Edits TOML that people write by hand: one table is added, replaced or removed, and every other byte stays as it was.
Text goes in, text comes out. `toml_text` makes the edit with tomlkit; here it is read back and compared. An edit that would change
anything else is refused with a BadInput that names the file, as is a file that is not valid.
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
    """The value at a path, None if there is none. `where` is the name of the file in errors."""
    found: object = _load(text, where)
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def put(text: str, path: Path, table: Table, where: str = "The file") -> str:
    """`text` with `table` at `path`; it replaces what was there."""
    for depth in range(1, len(path)):
        above = get(text, path[:depth], where)
        if above is not None and not isinstance(above, dict):
            raise BadInput(f'{where}: "{".".join(path[:depth])}" is not a table; correct that first. Nothing was changed.')
    if _canonical(get(text, path, where)) == _canonical(table):
        return text
    need("toml", f"Editing {where} needs")
    from backburner.interfaces.client_setup.toml_text import cut, ways_to_put

    refusal = f"{where} is written in a way that leaves no place for [{'.'.join(path)}]; add it by hand. Nothing was changed."
    return _checked(ways_to_put(text, path, table), cut(text, path), text, path, table, refusal)


def remove(text: str, path: Path, where: str = "The file") -> str:
    """`text` without what is at `path`. Comments on lines of their own stay."""
    if get(text, path, where) is None:
        return text
    need("toml", f"Editing {where} needs")
    from backburner.interfaces.client_setup.toml_text import cut

    refusal = f"{where} is written in a way from which [{'.'.join(path)}] cannot be taken; remove it by hand. Nothing was changed."
    rest = cut(text, path)
    return _checked([rest], rest, text, path, None, refusal)


def _checked(candidates: Iterable[str], rest: str, text: str, path: Path, wanted: Table | None, refusal: str) -> str:
    """The first candidate that has `wanted` at the path and in which the rest of `text` is written, and means, the same."""
    for candidate in candidates:
        with suppress(BadInput, RecursionError):
            same = _canonical(_others(_load(candidate), path)) == _canonical(_others(_load(text), path))
            found = _canonical(get(candidate, path)) == _canonical(wanted)
            if found and same and _contains(text, rest) and _contains(candidate, rest):
                return candidate
    raise BadInput(refusal)


def _contains(text: str, rest: str) -> bool:
    """Whether `rest` is the text with nothing but some characters left out."""
    characters = iter(text)
    return all(character in characters for character in rest)


def _load(text: str, where: str = "The file") -> Table:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not valid TOML: {error}. Nothing was changed.") from None


def _others(table: Table, path: Path) -> Table:
    """The table without what is at a path, and without the tables above that are empty then."""
    others = {key: value for key, value in table.items() if key != path[0]}
    inner = table.get(path[0])
    if len(path) > 1 and isinstance(inner, dict) and (kept := _others(inner, path[1:])):
        others[path[0]] = kept
    return others


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=repr)
