"""Three hosts whose Postgres is away, slow, or back with less than it had: what ran how often, and what was reported."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LONG, wait_until
from three_hosts import LANE, WAIT, ThreeHosts, World
from ticking_command import overlap

from backburner.system import processes, run_files

_LEASE_SECONDS = 8.0
# takes the lock of the writer, stops itself, and then tries to store something
_STOPPED_CLIENT = """
import os, signal, sys
from backburner.core.errors import LedgerUnreachable
from backburner.store.postgres import PostgresDatabase
database = PostgresDatabase(sys.argv[1])
try:
    with database.transaction():
        database.write("INSERT INTO events (at, kind, data) VALUES (1, 'half', '{}')")
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        database.write("INSERT INTO events (at, kind, data) VALUES (2, 'half', '{}')")
except LedgerUnreachable as error:
    print("failed", flush=True)
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.getbasetemp() / "pg-fails")
    yield world
    world.close()


@pytest.fixture
def hosts(world: World, tmp_path: Path) -> Iterator[ThreeHosts]:
    with world.hosts(tmp_path) as hosts:
        yield hosts


def wait_until_all_listen(hosts: ThreeHosts) -> None:
    wait_until(lambda: hosts.listeners() == len(hosts.hosts), "LISTEN on all hosts", WAIT)


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.skipif(not LONG, reason="a minute's wait"))])
def test_while_the_server_is_away_commands_continue_and_nobody_is_suspected(hosts: ThreeHosts, seconds: int) -> None:
    again, once = hosts.start("--lane", LANE, "--rerun"), [hosts.start("--host", host.name, code=7) for host in hosts.hosts]
    epochs = {name: epoch for name, (epoch, _) in hosts.beats().items()}
    first = hosts.host_of(again)
    stopped_at = time.monotonic()
    hosts.server.stop()
    try:
        wait_until((first.folder(again) / run_files.LEASE_OVER).exists, "the lease enforcer to end what may run twice", WAIT)
        wait_until(lambda: time.monotonic() > stopped_at + seconds, "the end of the outage", WAIT)
        late = hosts.others(first)[0]
        engine = late.stop_engine_process()  # it says later than the others that it lives
    finally:
        hosts.server.start()
    back_at, beats = time.monotonic(), hosts.beats()
    others = [host.name for host in hosts.others(late)]
    wait_until(lambda: all(hosts.beats()[name][1] >= beats[name][1] + 2 for name in others), "two beats of the others", WAIT)
    processes.send(engine, signal.SIGCONT)
    wait_until(lambda: len(hosts.lives(again)) == 2, "the second run of what may run twice", WAIT)
    new = hosts.start()
    print(f"away for {back_at - stopped_at:.1f} s; a new command ran {time.monotonic() - back_at:.1f} s after that", file=sys.stderr)
    wait_until_all_listen(hosts)
    hosts.finish()
    assert [hosts.wait_for_end(task_id)["exit_code"] for task_id in (*once, again, new)] == [7, 7, 7, 0, 0]
    assert [len(hosts.lives(task_id)) for task_id in (*once, again, new)] == [1, 1, 1, 2, 1] and overlap(hosts.lives(again)) < 0
    assert hosts.events() == {} and hosts.notices("does not answer") == []
    assert {name: epoch for name, (epoch, _) in hosts.beats().items()} == epochs
    assert all(len(hosts.notices(task_id)) == 1 for task_id in (*once, again, new))


def test_connections_that_an_administrator_ends_are_opened_again_and_nobody_notices(hosts: ThreeHosts) -> None:
    running = [hosts.start("--lane", LANE, "--rerun", code=3), *(hosts.start("--host", host.name, code=7) for host in hosts.hosts)]
    for _ in range(2):
        wait_until_all_listen(hosts)
        assert hosts.server.terminate_connections(hosts.database.name) >= 3 * len(hosts.hosts)
        running.append(hosts.start())
    wait_until_all_listen(hosts)
    hosts.finish()
    assert [hosts.wait_for_end(task_id)["exit_code"] for task_id in running] == [3, 7, 7, 7, 0, 0]
    assert all(len(hosts.lives(task_id)) == len(hosts.notices(task_id)) == 1 for task_id in running)
    assert hosts.events() == {} and {epoch for _, (epoch, _) in hosts.beats().items() if epoch} == {1}


def test_a_client_that_is_stopped_inside_a_transaction_loses_it_and_the_others_go_on(hosts: ThreeHosts) -> None:
    client = subprocess.Popen([sys.executable, "-c", _STOPPED_CLIENT, hosts.database.url], stdout=subprocess.PIPE)
    try:
        assert client.stdout and client.stdout.readline() == b"stopping\n"
        stopped_at, beats = time.monotonic(), hosts.beats()
        task_id = hosts.start()
        print(f"the next command ran after {time.monotonic() - stopped_at:.1f} s", file=sys.stderr)
        assert all(hosts.beats()[host.name][1] > beats[host.name][1] for host in hosts.hosts)
    finally:
        client.send_signal(signal.SIGCONT)
        out, _ = client.communicate(timeout=WAIT)
    assert out == b"failed\n" and hosts.events("half") == {}
    hosts.finish()
    assert hosts.wait_for_end(task_id)["exit_code"] == 0 and len(hosts.lives(task_id)) == 1 and hosts.events() == {}


def test_commits_that_are_slow_delay_no_beat_and_nobody_is_suspected(hosts: ThreeHosts) -> None:
    """The server waits for a standby that does not exist, as it would for a slow one: durable commits do not return for longer than a lease."""
    before = hosts.start(code=7)

    def wait_for_standby(name: str) -> None:
        hosts.server.administer(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        hosts.server.administer("SELECT pg_reload_conf()")

    wait_for_standby("nobody")
    submitting = None
    try:
        words = [sys.executable, "-m", "backburner", "run", "--lane", LANE, "--", sys.executable, "-c", "print(1)"]
        submitting = subprocess.Popen(words, cwd=hosts.shared, env=hosts.desk.environ, stdout=subprocess.PIPE, text=True)
        hosts.finish()  # the end of the first command cannot be stored either
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        wait_until(lambda: hosts.sql(waits)[0][0], "a commit that waits", WAIT)
        slow_at, beats = time.monotonic(), hosts.beats()

        def have_all_beaten() -> bool:
            now = hosts.beats()
            return all(now[host.name][1] >= beats[host.name][1] + _LEASE_SECONDS / 2 + 1 for host in hosts.hosts)

        wait_until(have_all_beaten, "beats of all hosts for longer than a lease", WAIT)
        print(f"a lease of beats took {time.monotonic() - slow_at:.1f} s while commits did not return", file=sys.stderr)
        assert hosts.sql(waits)[0][0] and submitting.poll() is None and hosts.run_of(before)["state"] == "running"
    finally:
        wait_for_standby("")
        if submitting:
            out, _ = submitting.communicate(timeout=WAIT)
    assert hosts.wait_for_end(before)["exit_code"] == 7 and hosts.wait_for_end(out.strip())["exit_code"] == 0
    assert len(hosts.lives(before)) == len(hosts.notices(before)) == len(hosts.notices(out.strip())) == 1
    assert hosts.events() == {} and {epoch for _, (epoch, _) in hosts.beats().items() if epoch} == {1}


@pytest.mark.parametrize("what", ["runs", "runs, and its engine was killed", "has ended"])
def test_a_run_whose_start_the_server_has_lost_is_found_on_its_host_and_not_started_again(hosts: ThreeHosts, what: str) -> None:
    """A replica took over that had not received the last commits: according to the ledger, the run has not begun."""
    host = hosts.named("b")
    engine = host.stop_engine_process()  # so that the command is stored, but does not begin
    task_id, again = hosts.submit("--host", "b", code=7), hosts.submit("--host", "b", "--rerun", code=7)
    copy = hosts.server.copy()
    processes.send(engine, signal.SIGCONT)
    for name in (task_id, again):
        wait_until(lambda name=name: hosts.lives(name), "the commands to run", WAIT)
    if what == "has ended":
        hosts.finish()
        assert hosts.wait_for_end(task_id)["exit_code"] == hosts.wait_for_end(again)["exit_code"] == 7
    if what == "runs, and its engine was killed":
        for process in (*host.processes("backburner-keeper"), host.engine):
            assert process
            processes.send(process, signal.SIGKILL)
    restored_at = time.monotonic()
    hosts.server.restore(copy)
    if what == "runs, and its engine was killed":
        assert hosts.run_of(task_id)["state"] == "pending"
        host.start()
    wait_until(lambda: hosts.events("run_found") == {"run_found": 2}, "the host to find what has begun", WAIT)
    print(f"found after {time.monotonic() - restored_at:.1f} s", file=sys.stderr)
    hosts.finish()
    for name in (task_id, again):
        assert hosts.wait_for_end(name)["exit_code"] == 7 and hosts.run_of(name)["run_id"] == name
        assert len(hosts.lives(name)) == len(hosts.notices(f"{name} had begun on host b before")) == 1 and len(hosts.notices(name)) == 2
    assert f"{task_id} had begun here before the ledger lost it" in host.engine_log
    wait_until_all_listen(hosts)
