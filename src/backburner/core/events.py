"""Events of the ledger, and the spans of a trace."""

from typing import NamedTuple


class Event(NamedTuple):
    """Something that happened; ids grow in the order of the commits."""

    event_id: int
    at: int
    kind: str
    task_id: str | None
    run_id: str | None
    data: dict[str, object]


class Span(NamedTuple):
    """One piece of a trace: a task being asked for, or a run of it."""

    span_id: str
    trace_id: str
    parent_span_id: str | None
    name: str
    task_id: str
    run_id: str | None
    started_at: int | None
    ended_at: int | None
    status: str
    attributes: dict[str, object]
