"""Waiting for changes that another host makes in the same ledger on Postgres."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import CONFIG, HomeCli, wait_until
from postgres_server import LedgerDatabase, PostgresServer

from backburner.services.app import App, open_app
from backburner.services.async_app import AsyncApp
from backburner.store.postgres import connect

LONG = 600.0  # seconds until an unchanged ledger is read again: longer than any test
ADD = "INSERT INTO events (at, kind, data) VALUES (1, 'note_added', '{}')"


@pytest.fixture
def home(home_cli: HomeCli, database: LedgerDatabase) -> HomeCli:
    database.empty()
    home_cli.configure(f'{CONFIG}\n[store]\nurl = "{database.url}"\n')
    home_cli.ok("migrate")
    return home_cli


@pytest.fixture
def app(home: HomeCli) -> Iterator[App]:
    with open_app(str(home.root), home.environ) as app:
        yield app


@pytest.fixture
def change(database: LedgerDatabase) -> Iterator[Callable[[str], None]]:
    """Write an event, as the given host does."""

    def change(host_id: str) -> None:
        with connect(database.url, host_id) as connection:
            connection.execute(ADD)

    yield change


def listening(server: PostgresServer) -> int:
    """The number of connections that listen for changes."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'test_changes_on_other_hosts' AND query LIKE 'LISTEN%'"
    return server.administer(query)[0][0]


class Watch:
    """Counts in a thread how often a process that waits is woken."""

    def __init__(self, app: App) -> None:
        self.seen = 0
        self._listener = app.changes.listen()
        self._thread = threading.Thread(target=self._run)
        self._ended = False
        self._thread.start()

    def _run(self) -> None:
        while not self._ended:
            if self._listener.wait(LONG):
                self.seen += 1

    def close(self, app: App) -> None:
        self._ended = True
        app.changes.announce()
        self._thread.join()
        self._listener.close()


def test_who_waits_is_woken_by_another_host_and_keeps_no_connection_afterwards(
    app: App, change: Callable[[str], None], postgres_server: PostgresServer
) -> None:
    assert listening(postgres_server) == 0
    watch = Watch(app)
    wait_until(lambda: watch.seen == 1 and listening(postgres_server) == 1, "LISTEN")
    change("elsewhere")
    wait_until(lambda: watch.seen == 2, "the change")
    watch.close(app)
    wait_until(lambda: listening(postgres_server) == 0, "the end of LISTEN")


def test_a_change_of_this_home_is_not_heard_a_second_time(
    app: App, home: HomeCli, change: Callable[[str], None], postgres_server: PostgresServer
) -> None:
    host_id = home.home.host_id()
    assert host_id
    watch = Watch(app)
    wait_until(lambda: watch.seen == 1 and listening(postgres_server) == 1, "LISTEN")
    change(host_id)
    change("elsewhere")
    wait_until(lambda: watch.seen >= 2, "the change of the other host")
    watch.close(app)
    assert watch.seen == 3  # with the announcement that ended the thread


def test_two_that_wait_share_a_connection_and_outlive_an_outage(
    app: App, change: Callable[[str], None], postgres_server: PostgresServer
) -> None:
    watches = [Watch(app), Watch(app)]
    wait_until(lambda: listening(postgres_server) == 1, "LISTEN")
    postgres_server.stop()
    postgres_server.start()
    wait_until(lambda: listening(postgres_server) == 1, "LISTEN is back")
    before = [watch.seen for watch in watches]
    change("elsewhere")
    wait_until(lambda: all(watch.seen > seen for watch, seen in zip(watches, before, strict=True)), "the change")
    for watch in watches:
        watch.close(app)


async def test_an_event_loop_is_woken_too(home: HomeCli, change: Callable[[str], None], postgres_server: PostgresServer) -> None:
    async with AsyncApp(lambda: open_app(str(home.root), home.environ)) as app:
        changes = app.changes(lambda: LONG)
        await anext(changes)
        await asyncio.to_thread(wait_until, lambda: listening(postgres_server) == 1, "LISTEN")
        await anext(changes)  # it began to listen
        await asyncio.to_thread(change, "elsewhere")
        await asyncio.wait_for(anext(changes), 60)
        await changes.aclose()


def test_commands_that_do_not_wait_open_one_connection(home: HomeCli, postgres_server: PostgresServer) -> None:
    postgres_server.administer("ALTER DATABASE test_changes_on_other_hosts CONNECTION LIMIT 1")
    try:
        home.ok("list")
        home.ok("events")
    finally:
        postgres_server.administer("ALTER DATABASE test_changes_on_other_hosts CONNECTION LIMIT -1")


def test_a_cancel_reaches_the_engine_of_another_host(home: HomeCli, tmp_path: Path, database: LedgerDatabase) -> None:
    """Nothing of its own home wakes that engine."""
    other = HomeCli(tmp_path / "other", home.cwd)
    other.configure(f'{CONFIG}\n[store]\nurl = "{database.url}"\n')
    other.ok("migrate")
    task_id = home.run("sleep", "600")
    wait_until(lambda: home.status(task_id)["status"] == "running", "the command to start")
    other.ok("cancel", task_id)
    wait_until(lambda: other.status(task_id)["status"] == "cancelled", "the cancel")
    other.stop_engine()


def test_a_file_is_heard_by_its_own_home_only(home_cli: HomeCli) -> None:
    with open_app(str(home_cli.root), home_cli.environ) as app:
        assert app.changes.subscribe("backburner", lambda _: None) is None
        app.changes.listen().close()
        app.changes.hear_other_hosts(lambda: None)()
