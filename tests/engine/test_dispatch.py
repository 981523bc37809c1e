"""Handing out runs of lanes to hosts, with a real Postgres: every run once, cancels, outages, and engines that end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from postgres_server import HOST_ID, LedgerDatabase, PostgresServer

from backburner.core.errors import LedgerUnreachable
from backburner.core.models import Approval, ProcessId
from backburner.engine.dispatch import ProcrastinateDispatch
from backburner.store.ledger import Ledger, open_postgres_ledger
from backburner.store.postgres import dispatch_conninfo
from backburner.store.postgres_listener import PostgresListener
from backburner.testing.records import request

NOW = 1_770_000_000_000
LANE, OTHER = "engine/gpu", "engine/cpu"


async def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait for a condition while the event loop runs."""
    await asyncio.to_thread(wait_until, condition, what, seconds)


@pytest.fixture
def ledger(database: LedgerDatabase, tmp_path: Path) -> Iterator[Ledger]:
    database.empty()
    ledger = open_postgres_ledger(database.url, str(tmp_path), HOST_ID)
    yield ledger
    ledger.close()


def submit(ledger: Ledger, name: str, runner: str = LANE) -> None:
    submission = request(command=("true",), cwd="/p", environment={})
    approval = Approval("user", "cli", NOW)
    ledger.tasks.submit(
        submission, project="/p", wanted_id=name, approval=approval, reasons=(), runner=runner, folder="tasks", now=NOW, expires_at=NOW
    )


class Host:
    """An engine as far as dispatch is concerned: it claims what it is handed, and holds it until the test lets it end."""

    def __init__(self, database: LedgerDatabase, ledger: Ledger, folder: Path, number: int = 1) -> None:
        self._ledger, self._owner = ledger, ProcessId(number, "1", "boot")
        self.listener = PostgresListener(database.url)
        self.dispatch = ProcrastinateDispatch(
            dispatch_conninfo(database.url), self.listener.subscribe, str(folder / f"job_workers-{number}")
        )
        self.begun: list[str] = []
        self.refused: list[str] = []
        self.aborted: list[str] = []
        self.let_go: list[str] = []
        self.may_end = asyncio.Event()
        self.problems: list[Exception] = []

    async def begin(self, run_id: str) -> None:
        if self.problems:
            raise self.problems.pop()
        if not self.claim(run_id):
            self.refused.append(run_id)
            return
        self.begun.append(run_id)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.let_go.append(run_id)
            raise

    def claim(self, run_id: str) -> bool:
        return bool(self._ledger.dispatch.take([run_id], self._owner, NOW))

    def abort(self, run_id: str) -> None:
        self.aborted.append(run_id)

    def work(self, *queues: str, capacity: int = 4) -> contextlib.AbstractAsyncContextManager[asyncio.Task[None]]:
        return self._work(queues, capacity)

    @contextlib.asynccontextmanager
    async def _work(self, queues: tuple[str, ...], capacity: int) -> AsyncIterator["asyncio.Task[None]"]:
        working = asyncio.create_task(self.dispatch.work(queues or (LANE,), capacity, self.begin, self.abort))
        try:
            yield working
        finally:
            working.cancel()
            await asyncio.wait([working])


@pytest.fixture
def host(database: LedgerDatabase, ledger: Ledger, tmp_path: Path) -> Iterator[Host]:
    host = Host(database, ledger, tmp_path)
    yield host
    host.listener.close()


def is_listening(server: PostgresServer) -> bool:
    """Whether somebody listens for jobs. A connection that listens has done nothing else since."""
    rows = server.administer("SELECT 1 FROM pg_stat_activity WHERE datname = 'test_dispatch' AND query LIKE 'LISTEN%procrastinate%'")
    return bool(rows)


def jobs(server: PostgresServer) -> list[tuple]:
    return server.administer("SELECT args->>'run_id', status::text FROM backburner_jobs.procrastinate_jobs ORDER BY id", "test_dispatch")


async def test_a_run_that_is_waiting_and_one_that_comes_later_begin(ledger: Ledger, host: Host, postgres_server: PostgresServer) -> None:
    submit(ledger, "task_first")
    submit(ledger, "task_elsewhere", "engine/other")
    async with host.work(LANE, OTHER):
        await until(lambda: host.begun == ["task_first"], "the run that was waiting")
        await until(lambda: is_listening(postgres_server), "LISTEN")
        submit(ledger, "task_second", OTHER)
        await until(lambda: host.begun == ["task_first", "task_second"], "the run that came later", 20)  # sooner than the next poll
        host.may_end.set()
        await until(lambda: jobs(postgres_server) == [("task_elsewhere", "todo")], "the jobs to be deleted")


async def test_a_run_occupies_a_seat_until_it_has_ended(ledger: Ledger, host: Host, postgres_server: PostgresServer) -> None:
    for number in range(3):
        submit(ledger, f"task_{number}")
    async with host.work(capacity=2):
        await until(lambda: len(host.begun) == 2, "two runs")
        submit(ledger, "task_3")
        assert host.begun == ["task_0", "task_1"] and [status for _, status in jobs(postgres_server)] == ["doing"] * 2 + ["todo"] * 2
        host.may_end.set()
        await until(lambda: len(host.begun) == 4, "the others")


async def test_a_job_whose_run_is_taken_is_simply_done(ledger: Ledger, host: Host, postgres_server: PostgresServer) -> None:
    submit(ledger, "task_taken")
    postgres_server.administer("ALTER TABLE backburner.runs DISABLE TRIGGER dispatch_changed", "test_dispatch")  # so that the job remains
    try:
        host.claim("task_taken")
    finally:
        postgres_server.administer("ALTER TABLE backburner.runs ENABLE TRIGGER dispatch_changed", "test_dispatch")
    assert jobs(postgres_server) == [("task_taken", "todo")]
    async with host.work():
        await until(lambda: host.refused == ["task_taken"] and not jobs(postgres_server), "the job to be done")
    assert host.begun == []


async def test_a_cancel_is_forwarded_and_the_seat_stays_occupied(ledger: Ledger, host: Host, postgres_server: PostgresServer) -> None:
    submit(ledger, "task_x")
    submit(ledger, "task_y")
    async with host.work(capacity=1):
        await until(lambda: host.begun == ["task_x"], "the run to begin")
        await until(lambda: is_listening(postgres_server), "LISTEN")
        ledger.tasks.request_cancel("task_x", NOW)
        await until(lambda: host.aborted == ["task_x"], "the cancel", 30)
        assert host.begun == ["task_x"] and host.let_go == []
        host.may_end.set()
        await until(lambda: host.begun == ["task_x", "task_y"] and not jobs(postgres_server), "the next run")


async def test_a_hundred_runs_begin_once_each_on_two_hosts(
    database: LedgerDatabase, ledger: Ledger, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    hosts = [Host(database, ledger, tmp_path, number) for number in (1, 2)]
    names = [f"task_{number:02}" for number in range(100)]
    for host in hosts:
        host.may_end.set()
    async with hosts[0].work(), hosts[1].work():
        for name in names:
            submit(ledger, name)
            await asyncio.sleep(0)
        await until(lambda: not jobs(postgres_server), "all jobs")
    for host in hosts:
        host.listener.close()
    assert sorted(hosts[0].begun + hosts[1].begun) == names and not (hosts[0].refused or hosts[1].refused)
    assert hosts[0].begun and hosts[1].begun


async def test_a_run_that_cannot_begin_now_begins_later(ledger: Ledger, host: Host) -> None:
    host.problems = [LedgerUnreachable("it is away", path="x")]
    submit(ledger, "task_x")
    async with host.work():
        await until(lambda: host.begun == ["task_x"], "the second attempt")


async def test_an_engine_that_ends_lets_its_runs_continue_and_gives_back_what_has_not_begun(
    ledger: Ledger, host: Host, postgres_server: PostgresServer
) -> None:
    for name in ("task_begun", "task_not"):
        submit(ledger, name)
    async with host.work(capacity=2):
        await until(lambda: len(host.begun) == 2, "both")
        with ledger.database.transaction():  # as if it had been handed out, but not claimed yet
            ledger.database.write("UPDATE runs SET state = 'pending', owner = NULL, started_at = NULL WHERE run_id = 'task_not'")
        postgres_server.administer(
            "SET search_path = backburner_jobs; DELETE FROM procrastinate_jobs WHERE status = 'todo' RETURNING 1", "test_dispatch"
        )
    assert sorted(host.let_go) == ["task_begun", "task_not"] and host.aborted == []
    assert jobs(postgres_server) == [("task_not", "todo")]


async def test_what_a_killed_engine_was_handed_and_has_not_begun_is_offered_again_by_the_next_one(
    database: LedgerDatabase, ledger: Ledger, host: Host, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    for name in ("task_begun", "task_not"):
        submit(ledger, name)
    in_jobs = "SET search_path = backburner_jobs;"
    ((worker,),) = postgres_server.administer(f"{in_jobs} SELECT worker_id FROM procrastinate_register_worker_v1()", database.name)
    for _ in range(2):  # as an engine does that is killed before it begins the second one
        postgres_server.administer(
            f"{in_jobs} SELECT id FROM procrastinate_fetch_job_v2(ARRAY['{LANE}']::varchar[], {worker})", database.name
        )
    host.claim("task_begun")
    assert jobs(postgres_server) == [("task_begun", "doing"), ("task_not", "doing")]
    (tmp_path / "job_workers-2").write_text(str(worker))
    successor = Host(database, ledger, tmp_path, 2)
    async with successor.work():
        await until(lambda: successor.begun == ["task_not"], "the run that had not begun", 30)  # sooner than the sweep finds it
        assert (tmp_path / "job_workers-2").read_text() not in ("", str(worker))
    successor.listener.close()


async def test_two_limits_share_the_connections(ledger: Ledger, host: Host, postgres_server: PostgresServer) -> None:
    async with host.work(LANE, capacity=1), host.work(OTHER, capacity=1):
        for name, lane in (("task_a", LANE), ("task_b", LANE), ("task_c", OTHER)):
            submit(ledger, name, lane)
        await until(lambda: sorted(host.begun) == ["task_a", "task_c"], "one run of each")
        ((connections,),) = postgres_server.administer("SELECT count(*) FROM pg_stat_activity WHERE datname = 'test_dispatch'")
        assert connections == 3  # the ledger's, one for all queries, one that listens
    host.listener.close()


async def test_lost_connections_are_replaced(ledger: Ledger, host: Host, postgres_server: PostgresServer) -> None:
    submit(ledger, "task_before")
    async with host.work():
        for number in range(3):
            await until(lambda: is_listening(postgres_server), "LISTEN")
            assert postgres_server.terminate_connections("test_dispatch") >= 3
            submit(ledger, f"task_{number}")
            await until(lambda number=number: f"task_{number}" in host.begun, "the next run")
        assert host.begun.count("task_before") == 1 and host.let_go == [] and host.aborted == []


async def test_work_continues_after_the_server_was_away(ledger: Ledger, host: Host, postgres_server: PostgresServer) -> None:
    submit(ledger, "task_before")
    async with host.work():
        await until(lambda: host.begun == ["task_before"], "the first run")
        postgres_server.stop()
        await asyncio.sleep(10)  # longer than an attempt to connect, which failed several times
        postgres_server.start()
        await until(lambda: is_listening(postgres_server), "LISTEN is back")
        submit(ledger, "task_after")
        await until(lambda: host.begun == ["task_before", "task_after"], "the next run", 25)  # sooner than the next poll
        ledger.tasks.request_cancel("task_before", NOW)
        await until(lambda: host.aborted == ["task_before"], "the cancel", 30)
        host.may_end.set()
        await until(lambda: not jobs(postgres_server), "the jobs to be deleted")
