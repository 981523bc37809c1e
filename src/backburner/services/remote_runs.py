"""Finds the runs that are on other hosts, where several hosts use a ledger."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from backburner.core.models import Clock, Run
from backburner.services.remote_run import RemoteRun

if TYPE_CHECKING:
    from backburner.store.ledger import Ledger
    from backburner.system.remote_log import RemoteLog

_SILENT_SECONDS = 10.0  # a host that did not answer is not asked again for so long


class RemoteRuns:
    """Runs on other hosts. `open_ledger` opens another connection, for other threads."""

    def __init__(self, ledger: "Ledger", open_ledger: "Callable[[], Ledger]", clock: Clock) -> None:
        self._ledger, self._open_ledger, self._clock = ledger, open_ledger, clock
        self._silent: dict[str, float] = {}  # by host: since when it does not answer

    def find(self, run_id: str) -> RemoteRun | None:
        """A run that is on another host; None if it is on this one, or has not started."""
        return self._find(self._ledger, run_id)

    def is_elsewhere(self, run: Run) -> bool:
        """Whether a run is on another host."""
        return run.host not in ("", self._ledger.database.host_id)

    def open_separately(self, run_id: str) -> RemoteRun:
        """A run for another thread, with a connection of its own. Close it."""
        ledger = self._open_ledger()
        found = self._find(ledger, run_id)
        if found is None:
            ledger.close()
            raise FileNotFoundError(run_id)
        found.on_close = ledger.close
        return found

    def open_log_separately(self, run_id: str) -> "RemoteLog":
        """The log of such a run. Closing it closes the connection."""
        run = self.open_separately(run_id)
        try:
            log = run.open_log()
        except BaseException:
            run.close()
            raise
        log.on_close = run.close
        return log

    def _find(self, ledger: "Ledger", run_id: str) -> RemoteRun | None:
        place = ledger.host_requests.place(run_id)
        if place is None or place.host_id == ledger.database.host_id:
            return None
        if time.monotonic() < self._silent.get(place.host_id, 0.0) + _SILENT_SECONDS and place.answers:
            place = place._replace(state="suspected")

        def is_silent() -> None:
            self._silent[place.host_id] = time.monotonic()

        return RemoteRun(ledger.host_requests, ledger.output_excerpts, run_id, place, self._clock, is_silent)
