"""Serves lanes of a ledger on Postgres: takes the runs that `Dispatch` hands out to this host, and starts those that nobody else has."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from backburner.core.claims import ClaimedRun, RunResult, Settled
from backburner.core.errors import LedgerUnavailable
from backburner.core.models import AGENT_LANE, ENGINE, LOCAL_AGENT_LANE, Clock, ProcessId
from backburner.core.ports import Dispatch
from backburner.core.queues import at_host
from backburner.core.store_ports import DispatchStore, RunQueue
from backburner.execution.runner import Runner

log = logging.getLogger("backburner")

_RETRY_DELAY = 1.0
_LONGEST_SLEEP = 30.0  # seconds, so that a changed clock is noticed


class HandedOutRuns:
    """The queue of a runner, which consists of what was handed out to this host. A run that the runner has claimed occupies a seat."""

    def __init__(self, runs: RunQueue, store: DispatchStore) -> None:
        self._runs, self._store = runs, store
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._claimed: dict[str, asyncio.Future[None]] = {}
        self._ticking: asyncio.Handle | None = None
        self.runner: Runner | None = None  # whose queue this is
        self.adopt, self.cancel_requests, self.postpone = runs.adopt, runs.cancel_requests, runs.postpone
        self.record_process, self.record_sandbox, self.record_ready = runs.record_process, runs.record_sandbox, runs.record_ready

    async def begin(self, run_id: str) -> None:
        """Let the runner claim a run, and wait until it has ended or somebody else has it."""
        future = self._waiting[run_id] = asyncio.get_running_loop().create_future()
        self._wake_runner()
        try:
            await future
        finally:
            self._waiting.pop(run_id, None)

    def abort(self, _: str) -> None:
        """The runner finds in the ledger what must be cancelled."""
        self._wake_runner()

    def free_seats(self) -> None:
        """Free the seats of runs that the runner does not have any more."""
        for run_id, future in list(self._claimed.items()):
            if self.runner and not self.runner.owns(run_id):
                del self._claimed[run_id]
                _resolve(future)

    def claim(self, _: str, owner: ProcessId, limit: int, now: int) -> Sequence[ClaimedRun]:
        run_ids = self._next(limit)
        return self._claimed_of(run_ids, self._store.take(run_ids, owner, now)) if run_ids else []

    def settle(
        self,
        endings: Sequence[RunResult],
        owner: ProcessId,
        *,
        runner: str = "",
        limit: int = 0,
        run_ids: Sequence[str] = (),
        now: int = 0,
    ) -> Settled:
        run_ids = self._next(limit)
        settled = self._runs.settle(endings, owner, run_ids=run_ids, now=now)
        asyncio.get_running_loop().call_soon(self.free_seats)  # when the runner has let go of what has ended
        return settled._replace(claimed=self._claimed_of(run_ids, settled.claimed))

    def suspend(self, *args: Any, **options: Any) -> None:
        self._runs.suspend(*args, **options)
        asyncio.get_running_loop().call_soon(self.free_seats)

    def _next(self, limit: int) -> Sequence[str]:
        return list(self._waiting)[: max(0, limit)]

    def _claimed_of(self, run_ids: Sequence[str], claimed: Sequence[ClaimedRun]) -> Sequence[ClaimedRun]:
        """Note which of these runs were claimed; those that somebody else has need no seat.

        A run that could not be claimed because this host was fenced keeps waiting: its job must not be finished, because nobody would
        offer the run again. This engine is about to exit, and gives the job back then.
        """
        mine = {work.run.run_id for work in claimed}
        open_runs = self._unclaimed([run_id for run_id in run_ids if run_id not in mine])
        for run_id in run_ids:
            if run_id in open_runs:
                continue
            future = self._waiting.pop(run_id)
            if run_id in mine:
                if run_id in self._claimed:
                    _resolve(self._claimed[run_id])  # the server has lost that it was claimed before
                self._claimed[run_id] = future
            else:
                _resolve(future)
        return claimed

    def _unclaimed(self, run_ids: Sequence[str]) -> set[str]:
        """Those of these runs that nobody has, as far as the ledger can be read."""
        try:
            return set(self._store.unclaimed(run_ids)) if run_ids else set()
        except LedgerUnavailable as error:
            log.warning("%s", error)
            return set(run_ids)

    def queued(self, _: str, now: int, limit: int) -> Sequence[str]:
        return list(self._waiting)[:limit]

    def next_due(self, _: str, now: int) -> int | None:
        """A run is handed out when it is due."""
        return None

    def _wake_runner(self) -> None:
        """Make the runner look once for several runs that are handed out at nearly the same time."""
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._ticking = None
        if self.runner:
            self.runner.tick()


class AgentRuns:
    """Runs of agents that are handed out to this host: moved to its own queue, from which the agent process claims them."""

    def __init__(self, store: DispatchStore, host_id: str, moved: Callable[[], None]) -> None:
        self._store, self._host_id, self._moved = store, host_id, moved
        self._occupying: dict[str, asyncio.Future[None]] = {}

    def begin_in(self, base: str) -> Callable[[str], Awaitable[None]]:
        """What to do with a run of a queue with this base."""

        async def begin(run_id: str) -> None:
            if self._store.move(run_id, at_host(base, self._host_id)):
                future = self._occupying[run_id] = asyncio.get_running_loop().create_future()
                self._moved()
                try:
                    await future
                finally:
                    del self._occupying[run_id]

        return begin

    def abort(self, _: str) -> None:
        self._moved()

    def free_seats(self) -> None:
        """Free the seats of runs that have ended, or wait for something."""
        if self._occupying:
            occupying = set(self._store.occupying(list(self._occupying)))
            for run_id, future in self._occupying.items():
                if run_id not in occupying:
                    _resolve(future)


class LaneWork:
    """The lanes that a host serves: commands with one capacity, agents with another for each kind of model."""

    def __init__(
        self,
        dispatch: Dispatch,
        store: DispatchStore,
        commands: HandedOutRuns,
        agents: AgentRuns,
        lanes: Sequence[str],
        capacities: dict[str, int],
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        """`lanes` are those that the host serves; `capacities` how many runs of each base may run here, zero to serve none.

        `wake` causes another `tick`.
        """
        self._dispatch, self._store, self._commands, self._agents = dispatch, store, commands, agents
        self._clock, self._wake = clock, wake
        self._queues = {
            base: [f"{base}/{lane}" for lane in lanes] for base in (ENGINE, AGENT_LANE, LOCAL_AGENT_LANE) if capacities.get(base)
        }
        self._capacities = capacities
        self._working: list[asyncio.Task[None]] = []
        self._offering: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._working = [asyncio.create_task(self._serve(base)) for base in self._queues]

    async def _serve(self, base: str) -> None:
        begin, abort = self._commands.begin, self._commands.abort
        if base != ENGINE:
            begin, abort = self._agents.begin_in(base), self._agents.abort
        while True:
            try:
                await self._dispatch.work(self._queues[base], self._capacities[base], begin, abort)
            except Exception:
                log.exception("the queues %s are not served, trying again", ", ".join(self._queues[base]))
            await asyncio.sleep(_RETRY_DELAY)

    def tick(self) -> None:
        """Free the seats of what has ended, and offer the runs of these lanes that are due now."""
        self._commands.free_seats()
        self._agents.free_seats()
        if self._offering:
            self._offering.cancel()
            self._offering = None
        now = self._clock()
        due = self._store.offer_due([queue for queues in self._queues.values() for queue in queues], now)
        if due is not None:
            seconds = min(_LONGEST_SLEEP, max(0.0, (due - now) / 1000))
            self._offering = asyncio.get_running_loop().call_later(seconds, self._wake)

    async def close(self) -> None:
        """Take nothing any more. What has begun continues."""
        if self._offering:
            self._offering.cancel()
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
