"""Permanent permissions."""

from typing import NamedTuple


class Grant(NamedTuple):
    """What a person said for good: a project is trusted, or one command always allowed in it."""

    grant_id: int
    kind: str
    project: str
    command: tuple[str, ...]
    via: str
    created_at: int
