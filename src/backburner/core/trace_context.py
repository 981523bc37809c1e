"""W3C trace context: parses and formats TRACEPARENT, and generates trace and span ids."""

from backburner.core.deferred_modules import re
from backburner.core.light_typing import NamedTuple
from backburner.core.random_ids import random_id

VARIABLE = "TRACEPARENT"
_PATTERN = r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"  # compiled when first needed


class ParentSpan(NamedTuple):
    """The span of the caller, which becomes the parent of a task's span."""

    trace_id: str
    span_id: str


def parse(text: str | None) -> ParentSpan | None:
    """Parse a TRACEPARENT; None if the standard says that it must be ignored."""
    found = re.fullmatch(_PATTERN, (text or "").strip())
    if not found or found.group(1) == "ff" or (found.group(1) == "00" and found.group(5)):
        return None
    trace_id, span_id = found.group(2), found.group(3)
    return ParentSpan(trace_id, span_id) if trace_id.strip("0") and span_id.strip("0") else None


def traceparent(trace_id: str, span_id: str) -> str:
    """Format a TRACEPARENT for child processes."""
    return f"00-{trace_id}-{span_id}-01"


def new_trace_id() -> str:
    return random_id() + random_id()


def new_span_id() -> str:
    return random_id()
