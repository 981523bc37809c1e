"""Serving lanes: what is handed out to a host is claimed, started and ended there, and its seat is free again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from postgres_server import HOST_ID, LedgerDatabase, PostgresServer

from backburner.core.claims import ClaimedRun, LogEnd, RunResult
from backburner.core.models import AGENT_LANE, ENGINE, Approval, ProcessId, Run
from backburner.core.ports import Outcome
from backburner.core.states import Result, RunState
from backburner.engine.dispatch import ProcrastinateDispatch
from backburner.engine.lanes import AgentRuns, HandedOutRuns, LaneWork
from backburner.execution.runner import Runner
from backburner.store.ledger import Ledger, open_postgres_ledger
from backburner.store.postgres import dispatch_conninfo
from backburner.store.postgres_listener import PostgresListener
from backburner.system.home import Home
from backburner.testing.records import request

NOW = 1_770_000_000_000
OWNER, OTHER = ProcessId(1, "1", "boot"), ProcessId(2, "2", "boot")


class EventHandle:
    """A command that runs until it is told to end."""

    process, is_starting = None, False

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def ended(self) -> Outcome:
        await self.may_end.wait()
        return Outcome(Result.EXIT, 0)

    async def ready(self, when: str) -> bool:
        return False

    async def stop(self, grace: float) -> Outcome | None:
        return Outcome(Result.SIGNAL, 143)

    def close(self) -> LogEnd:
        return LogEnd()


class EventExecutor:
    output_cap = 0

    def __init__(self) -> None:
        self.handles: dict[str, EventHandle] = {}

    def launch(self, work: ClaimedRun) -> EventHandle:
        handle = self.handles[work.run.run_id] = EventHandle()
        return handle

    def attach(self, work: ClaimedRun) -> None:
        return None


class Host:
    """The part of an engine that serves lanes, with two seats for commands and one for agents."""

    def __init__(self, url: str, ledger: Ledger, folder: Path) -> None:
        self.now = NOW
        self.executor = EventExecutor()
        self.listener = PostgresListener(url)
        commands = HandedOutRuns(ledger.runs, ledger.dispatch)
        self.runner = commands.runner = Runner(
            commands, ledger.queries, self.executor, Home(str(folder)).make(), lambda: self.now, runner="", owner=OWNER, cap=2, grace=1.0,
            changed=lambda: self.wake(),
        )  # fmt: skip
        dispatch = ProcrastinateDispatch(dispatch_conninfo(url), self.listener.subscribe, str(folder / "job_workers"))
        agents = AgentRuns(ledger.dispatch, HOST_ID, lambda: self.wake())
        self.lanes = LaneWork(
            dispatch, ledger.dispatch, commands, agents, ["gpu", "cpu"], {ENGINE: 2, AGENT_LANE: 1}, lambda: self.now, lambda: self.wake()
        )

    def wake(self) -> None:
        asyncio.get_running_loop().call_soon(self.tick)

    def tick(self) -> None:
        self.lanes.tick()
        self.runner.tick()

    @property
    def started(self) -> list[str]:
        return sorted(self.executor.handles)


@pytest.fixture
def ledger(database: LedgerDatabase, tmp_path: Path) -> Iterator[Ledger]:
    database.empty()
    ledger = open_postgres_ledger(database.url, str(tmp_path), HOST_ID)
    yield ledger
    ledger.close()


@pytest.fixture
async def host(database: LedgerDatabase, ledger: Ledger, tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(database.url, ledger, tmp_path / "home")
    host.lanes.start()
    yield host
    await host.lanes.close()
    await host.runner.stop()
    host.listener.close()


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition that needs the event loop."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


def submit(ledger: Ledger, name: str, runner: str = "engine/gpu", **more: object) -> None:
    approval = Approval("user", "cli", NOW)
    ledger.tasks.submit(
        request(**{"command": ("true",), "cwd": "/p", "environment": {}, **more}), project="/p", wanted_id=name, approval=approval, reasons=(),
        runner=runner, folder="tasks", now=NOW, expires_at=NOW
    )  # fmt: skip


def run_of(ledger: Ledger, name: str) -> Run:
    entry = ledger.queries.get(name)
    assert entry and entry.run
    return entry.run


async def test_runs_start_up_to_the_number_of_seats_and_free_them_when_they_end(ledger: Ledger, host: Host) -> None:
    for name, lane in (("a", "gpu"), ("b", "cpu"), ("c", "gpu"), ("d", "other")):
        submit(ledger, f"task_{name}", f"engine/{lane}")
    await until(lambda: host.started == ["task_a", "task_b"], "two runs")
    assert run_of(ledger, "task_a").owner == OWNER and run_of(ledger, "task_c").state == RunState.PENDING
    host.executor.handles["task_a"].may_end.set()
    await until(lambda: host.started == ["task_a", "task_b", "task_c"], "the third")
    assert run_of(ledger, "task_a").state == RunState.COMPLETED
    for handle in host.executor.handles.values():
        handle.may_end.set()
    await until(lambda: run_of(ledger, "task_c").state == RunState.COMPLETED, "the last end")
    assert run_of(ledger, "task_d").state == RunState.PENDING


async def test_a_cancel_frees_the_seat(ledger: Ledger, host: Host) -> None:
    for name in "abc":
        submit(ledger, f"task_{name}")
    await until(lambda: len(host.started) == 2, "two runs")
    ledger.tasks.request_cancel(host.started[0], NOW)
    await until(lambda: len(host.started) == 3, "the third")
    assert run_of(ledger, host.started[0]).state == RunState.CANCELLED


async def test_what_another_host_has_is_not_started(ledger: Ledger, host: Host, postgres_server: PostgresServer) -> None:
    postgres_server.administer("ALTER TABLE backburner.runs DISABLE TRIGGER dispatch_changed", "test_lanes")  # so that the job remains
    try:
        submit(ledger, "task_theirs", "engine/elsewhere")
        ledger.dispatch.take(["task_theirs"], OTHER, NOW)
        postgres_server.administer("UPDATE backburner_jobs.procrastinate_jobs SET queue_name = 'engine/gpu'", "test_lanes")
    finally:
        postgres_server.administer("ALTER TABLE backburner.runs ENABLE TRIGGER dispatch_changed", "test_lanes")
    submit(ledger, "task_ours")
    await until(lambda: host.started == ["task_ours"], "the other run")
    gone = "SELECT count(*) = 0 FROM backburner_jobs.procrastinate_jobs WHERE queueing_lock = 'task_theirs'"
    await asyncio.to_thread(wait_until, lambda: postgres_server.administer(gone, "test_lanes")[0][0], "the job to be done")
    assert run_of(ledger, "task_theirs").owner == OTHER


async def test_what_a_fenced_host_was_handed_is_offered_to_another(
    ledger: Ledger, host: Host, database: LedgerDatabase, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    set_state = "UPDATE backburner.hosts SET state = '{}' WHERE host_id = '" + HOST_ID + "'"
    postgres_server.administer(set_state.format("fenced"), database.name)
    submit(ledger, "task_x")
    taken = "SELECT count(*) > 0 FROM backburner_jobs.procrastinate_jobs WHERE queueing_lock = 'task_x' AND status = 'doing'"
    await until(lambda: postgres_server.administer(taken, database.name)[0][0], "the job to be handed out")
    host.tick()
    assert run_of(ledger, "task_x").state == RunState.PENDING and host.started == []
    await host.lanes.close()  # the engine exits
    postgres_server.administer(set_state.format("active"), database.name)
    other = Host(database.url, ledger, tmp_path / "other")
    other.lanes.start()
    try:
        await until(lambda: other.started == ["task_x"], "the run on the other host")
    finally:
        await other.lanes.close()
        await other.runner.stop()
        other.listener.close()


async def test_a_run_starts_when_it_is_due(ledger: Ledger, host: Host) -> None:
    submit(ledger, "task_x", start_at=NOW + 1000)
    host.tick()
    assert run_of(ledger, "task_x").state == RunState.PENDING and host.started == []
    host.now = NOW + 1000
    await until(lambda: host.started == ["task_x"], "the run")  # woken by its timer


async def test_runs_of_agents_are_moved_to_the_agent_process_of_the_host_one_at_a_time(ledger: Ledger, host: Host) -> None:
    for name in "ab":
        submit(ledger, f"task_{name}", "agents/gpu", agent="claude", prompt="look", command=())
    here = f"agents@{HOST_ID}"
    await until(lambda: run_of(ledger, "task_a").runner == here, "the first run to be moved")
    (work,) = ledger.runs.claim(AGENT_LANE, OTHER, 9, NOW)
    host.tick()
    assert run_of(ledger, "task_b").runner == "agents/gpu"
    ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, NOW + 1, 0)], OTHER)
    host.tick()
    await until(lambda: run_of(ledger, "task_b").runner == here, "the second run to be moved")
