"""Ledger records of agent sessions and of interactive priority."""

from typing import NamedTuple

from backburner.core.models import ProcessId


class Session(NamedTuple):
    """A session that submits tasks. `process` is its client, if the client runs on this machine. `host` is where it was last seen."""

    session_id: str
    client: str
    project: str
    process: ProcessId | None
    created_at: int
    seen_at: int
    host: str = ""


class InteractiveLease(NamedTuple):
    """A person is waiting for a model of this lane. Background runs in the lane must wait, except those of the person's own task."""

    process: ProcessId
    lane: str
    task_id: str | None
    since: int
