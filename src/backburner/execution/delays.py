"""Claimed runs that the machine has no room for yet (a full disk, no more processes): kept, and tried again more and more slowly."""

import asyncio
from collections.abc import Callable

from backburner.core.claims import ClaimedRun

_LONGEST_PAUSE = 8.0  # seconds between two tries


class Delays:
    """`start` tries a run again; where that fails, it adds the run again. `done` is called when nothing is left to wait."""

    def __init__(self, start: Callable[[ClaimedRun], None], done: Callable[[], None]) -> None:
        self._start, self._done = start, done
        self._works: dict[str, ClaimedRun] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tries = 0
        self.told = False  # whether somebody was told of it, since there was room for all

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._works

    @property
    def persists(self) -> bool:
        """Whether there still was no room at the second try."""
        return self._tries > 1

    def add(self, work: ClaimedRun) -> None:
        """Keep a run, and try again after a while."""
        self._works[work.run.run_id] = work
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(min(2.0**self._tries, _LONGEST_PAUSE), self.again)
            self._tries += 1

    def drop(self, run_id: str) -> ClaimedRun | None:
        """Do not try this one again."""
        return self._works.pop(run_id, None)

    def again(self) -> None:
        """Try one after the other, up to the first for which there is still no room."""
        self.stop()
        for run_id in list(self._works):
            self._start(self._works.pop(run_id))
            if self._timer is not None:
                return
        self._tries, self.told = 0, False
        self._done()

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
