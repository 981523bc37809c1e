"""W3C trace ids: read from a TRACEPARENT, made anew, and written for whoever comes next. Pure but for the dice."""

import os
import re
from typing import NamedTuple

VARIABLE = "TRACEPARENT"
_FORM = r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"  # compiled when first needed


class ParentSpan(NamedTuple):
    """Where in a trace the one who asks stands."""

    trace_id: str
    span_id: str


def parse(text: str | None) -> ParentSpan | None:
    """What a TRACEPARENT says; None for one that the standard would have us ignore."""
    found = re.fullmatch(_FORM, (text or "").strip())
    if not found or found.group(1) == "ff" or (found.group(1) == "00" and found.group(5)):
        return None
    trace_id, span_id = found.group(2), found.group(3)
    return ParentSpan(trace_id, span_id) if trace_id.strip("0") and span_id.strip("0") else None


def traceparent(trace_id: str, span_id: str) -> str:
    """The TRACEPARENT to hand on."""
    return f"00-{trace_id}-{span_id}-01"


def new_trace_id() -> str:
    return os.urandom(16).hex()


def new_span_id() -> str:
    return os.urandom(8).hex()
