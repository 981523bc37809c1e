"""The sessions of agents, and who waits for a model at the moment, as the ledger has them."""

from typing import NamedTuple

from backburner.core.models import ProcessId


class Session(NamedTuple):
    """An agent's conversation, as whoever asks. `process` is the client that it lives in, where there is one on this machine."""

    session_id: str
    client: str
    project: str
    process: ProcessId | None
    created_at: int
    seen_at: int


class InteractiveLease(NamedTuple):
    """A person waits for a model in a lane: what runs in the background there stands aside, but for what belongs to the turn."""

    process: ProcessId
    lane: str
    task_id: str | None
    since: int
