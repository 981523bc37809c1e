"""Claimed runs that the machine has no capacity for yet (disk full, too many processes): kept, and retried with growing delays."""

import asyncio
from collections.abc import Callable

from backburner.core.claims import ClaimedRun

_MAX_RETRY_DELAY = 8.0  # seconds


class Delays:
    """Retries delayed runs. `start` tries a run again and adds it again if that fails; `done` is called when no run is left."""

    def __init__(self, start: Callable[[ClaimedRun], None], done: Callable[[], None]) -> None:
        self._start, self._done = start, done
        self._works: dict[str, ClaimedRun] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self.notified = False  # whether the user was notified since the last time when no run was delayed

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._works

    @property
    def persists(self) -> bool:
        """Whether the second attempt has failed too."""
        return self._tries > 1

    def add(self, work: ClaimedRun) -> None:
        """Keep a run and schedule a retry."""
        self._works[work.run.run_id] = work
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(min(2.0**self._tries, _MAX_RETRY_DELAY), self.retry)
            self._tries += 1

    def drop(self, run_id: str) -> ClaimedRun | None:
        """Remove a run, so that it is not retried."""
        return self._works.pop(run_id, None)

    def retry(self) -> None:
        """Retry the runs one after the other, until one fails again."""
        self.stop()
        for run_id in list(self._works):
            self._start(self._works.pop(run_id))
            if self._timer is not None:
                return
        self._tries, self.notified = 0, False
        self._done()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
