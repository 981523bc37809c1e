"""What a list of tasks is limited to, and one page of such a list."""

from collections.abc import Sequence
from typing import NamedTuple

from backburner.core.models import Entry

MAX_COUNTED = 10_000  # a longer list is not counted to its end


class TaskFilter(NamedTuple):
    """Every field that is set must match. `client` is `you` for tasks of a person; times are milliseconds UTC.

    `text` is searched in the id, name, description, command and prompt, ignoring case. `ended` selects tasks whose latest run has
    ended, in the order of their ends. `quiet` hides chats and successful commands of recurring tasks.
    """

    statuses: tuple[str, ...] = ()
    kind: str | None = None
    type: str | None = None
    project: str | None = None
    client: str | None = None
    session: str | None = None
    batch: str | None = None
    agent: str | None = None
    parent: str | None = None
    since: int | None = None
    until: int | None = None
    text: str | None = None
    ended: bool = False
    recurring: bool = False
    live: bool = False
    quiet: bool = False


class DecisionFilter(NamedTuple):
    """Which decisions on tasks are read. Every field that is set must match; `via` is the beginning of the interface's name."""

    decision: str | None = None
    by: str | None = None
    via: str | None = None
    rule: str | None = None
    task_id: str | None = None
    since: int = 0


class Listed(NamedTuple):
    """A task in a list; `seq` is its number in the ledger."""

    seq: int
    entry: Entry


class Page(NamedTuple):
    """One page of a list, newest first. `next` is where the following page begins. `total` counts all tasks that match, up to a limit; None if they were not counted."""

    items: Sequence[Listed]
    next: str | None
    total: int | None = None
