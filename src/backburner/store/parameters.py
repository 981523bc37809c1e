"""Lists of values in SQL: places for them, and groups that a statement has room for."""

from collections.abc import Iterable, Iterator, Sequence

_GROUP_SIZE = 500


def places(values: Sequence[object]) -> str:
    """A place for each value, for `IN (…)`; there must be at least one."""
    return ", ".join("?" * len(values))


def groups(values: Iterable[str]) -> Iterator[list[str]]:
    """The values without repetitions, as many at a time as fit into a statement."""
    distinct = list(dict.fromkeys(values))
    for start in range(0, len(distinct), _GROUP_SIZE):
        yield distinct[start : start + _GROUP_SIZE]
