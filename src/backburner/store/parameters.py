"""Lists of values in SQL: placeholders, and groups that fit into one statement."""

from collections.abc import Iterable, Iterator, Sequence

_GROUP_SIZE = 500


def places(values: Sequence[object]) -> str:
    """A placeholder for each value, for `IN (…)`; there must be at least one value."""
    return ", ".join("?" * len(values))


def groups(values: Iterable[str]) -> Iterator[list[str]]:
    """The distinct values, in groups of at most 500 that fit into one statement."""
    distinct = list(dict.fromkeys(values))
    for start in range(0, len(distinct), _GROUP_SIZE):
        yield distinct[start : start + _GROUP_SIZE]
