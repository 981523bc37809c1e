"""`traces`: prints a trace as a tree of spans with their durations."""

import argparse
from collections.abc import Sequence

from backburner.core import formatting, task_text
from backburner.core.events import Span
from backburner.core.models import Caller
from backburner.services.app import App, now_ms


def traces(app: App, caller: Caller, args: argparse.Namespace) -> int:
    spans = app.queries.trace(args.task, caller, span_id=args.span)
    if args.json:
        times = [{"started_at": formatting.iso(span.started_at), "ended_at": formatting.iso(span.ended_at)} for span in spans]
        task_text.print_json([{**span._asdict(), **at} for span, at in zip(spans, times, strict=True)])
        return 0
    print(f"trace {spans[0].trace_id}")
    known = {span.span_id for span in spans}
    roots: dict[str | None, list[Span]] = {}
    for span in spans:
        if span.parent_span_id not in known:
            roots.setdefault(span.parent_span_id, []).append(span)
    for parent, children in roots.items():
        if parent is None:
            _print(children, spans, "", args.span)
        else:
            print(f"└─ span {parent} of the caller")
            _print(children, spans, "   ", args.span)
    return 0


def _print(children: Sequence[Span], spans: Sequence[Span], indent: str, wanted: str | None) -> None:
    """Print a tree of any depth and mark the span `wanted`."""
    stack = [(span, indent, span is children[-1]) for span in reversed(children)]
    while stack:
        span, margin, last = stack.pop()
        print(f"{margin}{'└─' if last else '├─'} {_line(span)}{'  ◀' if span.span_id == wanted else ''}")
        nested = [other for other in spans if other.parent_span_id == span.span_id]
        stack += [(other, margin + ("   " if last else "│  "), other is nested[-1]) for other in reversed(nested)]


def _line(span: Span) -> str:
    elapsed_ms = None
    if span.started_at is not None:
        elapsed_ms = max(0, (span.ended_at if span.ended_at is not None else now_ms()) - span.started_at)
    code = span.attributes.get("task.exit_code")
    ended = f", exit {formatting.exit_text(int(str(code)))}" if code is not None else ""
    return f"{span.name} {span.run_id or span.task_id}  {formatting.duration(elapsed_ms)}  {span.status}{ended}  span {span.span_id}"
