"""Sends spans of ended tasks to an OTLP collector, in a separate process that the engine starts if `telemetry.otlp_endpoint` is set.

Reads the ledger from the last position, sends, and only then advances the position: a span arrives at least once, with the same id.
Its libraries come with `backburner[telemetry]` and are not imported unless there is something to send.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from backburner.coordination.config_file import ConfigFile
from backburner.core.events import Event, Span
from backburner.core.settings import Config
from backburner.services.trace_source import open_trace_source
from backburner.system.home import Home

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

log = logging.getLogger("backburner")

NOT_INSTALLED, NOT_SENT = 3, 4  # exit codes
_RUN_EVENTS = ("run_completed", "run_failed", "run_cancelled", "run_skipped")
_TASK_EVENTS = ("task_rejected", "task_expired")
_PAGE = 500


def main(arguments: list[str]) -> int:
    """`telemetry HOME`: send all spans that ended and were not sent yet. Exit code 0 if all of them arrived."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    home = Home(arguments[0])
    config_file = ConfigFile(home, dict(os.environ))
    config = config_file.current
    try:
        send = Sender(config)
    except ImportError as error:
        log.warning("traces cannot be sent: %s; install backburner[telemetry]", error)
        return NOT_INSTALLED
    with open_trace_source(home, config_file) as source:
        while events := source.events():
            spans = [span for event in events for span in ended(source.spans, event)]
            for start in range(0, len(spans), _PAGE):
                if not send(spans[start : start + _PAGE]):
                    log.warning("traces could not be sent to %s; trying again later", config.text("telemetry.otlp_endpoint"))
                    return NOT_SENT
            source.sent(events[-1])
    return 0


def ended(spans_of: Callable[[str], Sequence[Span]], event: Event) -> Iterator[Span]:
    """The spans that an event completes: a run when it ends, and the request for the task when its first run ends."""
    if event.task_id is None or event.kind not in (*_RUN_EVENTS, *_TASK_EVENTS):
        return
    spans = spans_of(event.task_id)
    first = next((span.run_id for span in spans if span.run_id), None)
    for span in spans:
        if span.run_id == event.run_id or (span.run_id is None and event.run_id == first):
            yield span


class Sender:
    """Converts spans to OpenTelemetry's and exports them; a call returns whether they arrived."""

    def __init__(self, config: Config) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        endpoint = config.text("telemetry.otlp_endpoint").rstrip("/")
        pairs = (pair.partition("=") for pair in config.text("telemetry.otlp_headers").split(",") if pair.strip())
        headers = {name.strip(): value.strip() for name, _, value in pairs}
        self._exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", headers=headers, timeout=10)
        self._resource = Resource.create({"service.name": config.text("telemetry.service_name")})

    def __call__(self, spans: Sequence[Span]) -> bool:
        from opentelemetry.sdk.trace.export import SpanExportResult

        return self._exporter.export([self._converted(span) for span in spans]) is SpanExportResult.SUCCESS

    def _converted(self, span: Span) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

        def context(span_id: str) -> SpanContext:
            return SpanContext(int(span.trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        ended_at = span.ended_at or span.started_at or 0
        started_at = span.started_at if span.started_at is not None else ended_at
        bad = span.status in ("failed", "cancelled", "rejected", "expired")
        return ReadableSpan(
            name=span.name,
            context=context(span.span_id),
            parent=context(span.parent_span_id) if span.parent_span_id else None,
            resource=self._resource,
            attributes={name: value if isinstance(value, int) else str(value) for name, value in span.attributes.items()},
            status=Status(StatusCode.ERROR, span.status) if bad else Status(StatusCode.OK),
            start_time=started_at * 1_000_000,
            end_time=max(ended_at, started_at) * 1_000_000,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
