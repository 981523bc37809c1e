"""Permanent permissions."""

from typing import NamedTuple


class Grant(NamedTuple):
    """A permanent permission: a trusted project, or a command that is always allowed in one project."""

    grant_id: int
    kind: str
    project: str
    command: tuple[str, ...]
    via: str
    created_at: int
