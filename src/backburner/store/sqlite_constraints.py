"""Writes the lists in the constraints of SQLite tables as comparisons.

For every list of more than two values, SQLite builds a temporary table each time that a row is written, which takes longer than the
write itself. Each migration ends with this; what the constraints allow stays the same.
"""

import re
from collections.abc import Callable

_LIST = re.compile(r"\b(?!NOT\b)(\w+) IN\s*\(\s*('[^']*'(?:\s*,\s*'[^']*'){2,})\s*\)")
_VALUE = re.compile("'[^']*'")


def as_comparisons(sql: str) -> str:
    """The definition of a table without lists of more than two texts."""
    return _LIST.sub(lambda found: "(" + " OR ".join(f"{found[1]} = {value}" for value in _VALUE.findall(found[2])) + ")", sql)


def replace_lists(execute: Callable[[str, tuple[str, ...]], list[tuple]]) -> None:
    """Change the definitions of all tables, as SQLite documents it for changes that do not affect stored rows."""
    execute("PRAGMA writable_schema = ON", ())
    for name, sql in execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND sql LIKE '% IN%'", ()):
        execute("UPDATE sqlite_schema SET sql = ? WHERE type = 'table' AND name = ?", (as_comparisons(sql), name))
    execute("PRAGMA writable_schema = RESET", ())
