"""Records for the events of the ledger and the spans of a trace."""

from backburner.core.light_typing import NamedTuple

STEP_DECIDED = "step_decided"  # the gate decided on a step of an external agent


class Event(NamedTuple):
    """One row of the event log; ids increase in commit order."""

    event_id: int
    at: int
    kind: str
    task_id: str | None
    run_id: str | None
    data: dict[str, object]


class Span(NamedTuple):
    """One span of a trace: the submission of a task, or one of its runs."""

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
