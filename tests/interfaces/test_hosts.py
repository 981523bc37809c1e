"""Several homes with one ledger on Postgres: each is a host."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import CONFIG, HomeCli, wait_until
from postgres_server import LedgerDatabase, PostgresServer

WAIT = 90.0  # seconds; a machine with many tests at a time is slow
NewHost = Callable[..., HomeCli]


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> LedgerDatabase:
    return LedgerDatabase(postgres_server, "several", "bytes")


@pytest.fixture
def new_host(database: LedgerDatabase, tmp_path: Path) -> Iterator[NewHost]:
    """Homes that have joined the ledger. With lanes, an engine serves them."""
    database.empty()
    homes: list[HomeCli] = []
    (tmp_path / "project").mkdir()

    def new_host(name: str, *lanes: str, settings: str = "") -> HomeCli:
        home = HomeCli(tmp_path / name, tmp_path / "project")
        worker = f"[worker]\nlanes = {json.dumps(lanes)}\n{settings}" if lanes or settings else ""
        home.configure(f"{CONFIG}\n{worker}")
        home.ok("join", database.url, "--name", name)
        homes.append(home)
        if lanes:
            home.start_engine()
            wait_until(lambda: state_of(home, name) == "active", f"host {name} to enrol", WAIT)
        return home

    yield new_host
    for home in homes:
        home.stop_engine()


def hosts(home: HomeCli) -> dict[str, dict]:
    return {host["name"]: host for host in home.json("hosts")}  # type: ignore[attr-defined]


def state_of(home: HomeCli, name: str) -> str:
    return hosts(home)[name]["state"]


def has_status(home: HomeCli, task_id: str, status: str) -> bool:
    done = home.cli("status", task_id, "--json")
    return done.returncode == 0 and json.loads(done.stdout)["status"] == status
