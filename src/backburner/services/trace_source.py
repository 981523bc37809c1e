"""Spans that have not been exported yet, for the trace exporter."""

from collections.abc import Sequence

from backburner.coordination.config_file import ConfigFile
from backburner.coordination.ledger_file import open_home_ledger
from backburner.core.events import Event, Span
from backburner.core.models import TRACE_CURSOR
from backburner.store.ledger import Ledger
from backburner.system.home import Home

_EVENTS_PER_PAGE = 1000


class TraceSource:
    """Events after the last exported one, and the spans of their tasks."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __enter__(self) -> "TraceSource":
        return self

    def __exit__(self, *_: object) -> None:
        self._ledger.close()

    def events(self) -> Sequence[Event]:
        """Return up to 1,000 events that have not been exported yet."""
        return self._ledger.events.events(self._ledger.events.cursor(TRACE_CURSOR), _EVENTS_PER_PAGE)

    def spans(self, task_id: str) -> Sequence[Span]:
        """Return the spans of a task and its runs."""
        return self._ledger.queries.task_spans(task_id)

    def sent(self, event: Event) -> None:
        """Record that everything up to an event was exported."""
        self._ledger.events.advance_cursor(TRACE_CURSOR, event.event_id)


def open_trace_source(home: Home, config: ConfigFile) -> TraceSource:
    """Open a home for the export of traces."""
    return TraceSource(open_home_ledger(home, config))
