"""Three hosts that are upgraded one after the other: one has an older version of the program than the ledger."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from three_hosts import WAIT, ThreeHosts, World
from ticking_command import overlap

import backburner
from backburner.store.migrations import VERSION


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.getbasetemp() / "pg-version")
    yield world
    world.close()


@pytest.fixture
def hosts(world: World, tmp_path: Path) -> Iterator[ThreeHosts]:
    """Host b has a version that knows one migration less, which is one that it need not know."""
    with world.hosts(tmp_path) as hosts:
        try:
            hosts.sql(f"UPDATE schema SET least = {VERSION - 1}")
            b = hosts.named("b")
            b.stop_engine()
            b.start(older_version(tmp_path))
            hosts.wait_for_states(active=3)
            yield hosts
        finally:
            hosts.sql(f"UPDATE schema SET version = {VERSION}, least = {VERSION}")


def older_version(folder: Path) -> str:
    """The folder of a copy of the package without the last migration."""
    package = Path(str(backburner.__file__)).parent
    shutil.copytree(package, folder / "older" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    with open(folder / "older" / package.name / "store" / "migrations.py", "a", encoding="utf-8") as file:
        file.write("\nVERSION = VERSION - 1\n")
    return str(folder / "older")


def test_an_older_worker_goes_on_until_the_ledger_needs_a_newer_one_and_its_commands_are_kept(hosts: ThreeHosts) -> None:
    b = hosts.named("b")
    once = hosts.start("--host", "b", code=7)
    assert hosts.server.terminate_connections(hosts.database.name) >= 9  # it can also connect again
    second = hosts.start("--host", "b", code=7)
    again = hosts.start("--host", "b", "--rerun")
    beat = hosts.beats()["b"][1]
    wait_until(lambda: hosts.beats()["b"][1] >= beat + 2, "the connections to be open again", WAIT)
    hosts.sql(f"UPDATE schema SET version = {VERSION + 1}, least = {VERSION}")  # what `migrate` of a newer version does
    wait_until(lambda: "Upgrade Backburner" in b.engine_log, "the older worker to say so", WAIT)
    since = time.monotonic()
    assert hosts.wait_until_noticed(b, "fenced") <= 6 and {hosts.states()[name] for name in "ac"} == {"active"}
    print(f"suspected after {time.monotonic() - since:.1f} s")
    assert "ticking_command" in b.kinds and hosts.run_of(once)["state"] == "running"
    written = hosts.sql("SELECT max(seen_at) FROM hosts WHERE name = 'b'")
    elsewhere = hosts.start()
    assert hosts.host_of(elsewhere) is not b
    # It is upgraded, and its next engine takes over.
    assert hosts.sql("SELECT max(seen_at) FROM hosts WHERE name = 'b'") == written
    b.stop_engine()
    b.start()
    hosts.wait_for_state(b, "active")
    hosts.finish()
    assert [hosts.wait_for_end(task_id)["exit_code"] for task_id in (once, second, again, elsewhere)] == [7, 7, 0, 0]
    assert [len(hosts.lives(task_id)) for task_id in (once, second, again, elsewhere)] == [1, 1, 2, 1] and overlap(hosts.lives(again)) < 0
    assert hosts.events() == {"host_fenced": 1} and len(hosts.notices("does not answer")) == 1
