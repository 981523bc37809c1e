"""Permanent permissions."""

from backburner.core.light_typing import NamedTuple


class Grant(NamedTuple):
    """A permanent permission in one project.

    `kind` is `trust`; `always`, for a command that is always allowed; or `connect`, for a port of this machine that sandboxed commands may
    connect to, which is the only word of `command`.
    """

    grant_id: int
    kind: str
    project: str
    command: tuple[str, ...]
    via: str
    created_at: int
