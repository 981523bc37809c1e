"""Three hosts, of which one dies, hangs or is cut off: what ran how often, what was reported, and after how many beats.

The times that this takes depend on the lease and not on the machine: they are counted in beats of the hosts that are alive.
"""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LONG, wait_until
from three_hosts import LANE, WAIT, ThreeHosts, World
from ticking_command import overlap

from backburner.system import processes

# A beat every 2 s: a host that is dead is noticed within 10 s by each of the others, and one beat more if it was just before its own.
MAX_BEATS = 6


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.getbasetemp() / "pg-three")
    yield world
    world.close()


@pytest.fixture
def hosts(world: World, tmp_path: Path) -> Iterator[ThreeHosts]:
    with world.hosts(tmp_path) as hosts:
        yield hosts


def report(what: str, hosts: ThreeHosts, since: float, task_id: str, more: str = "") -> None:
    """Print when the runs of a task ended and began, in seconds since a fault; shown with `-s`."""
    lives = ", ".join(f"on {life.host} {life.first - since:+.2f} to {life.last - since:+.2f}" for life in hosts.lives(task_id))
    print(f"{what}: noticed or back at {time.monotonic() - since:+.2f} s; {lives}; {more}", file=sys.stderr)


def test_a_host_that_loses_power_is_noticed_and_what_may_run_twice_runs_elsewhere(hosts: ThreeHosts) -> None:
    again = hosts.start("--lane", LANE, "--rerun")
    dead = hosts.host_of(again)
    once = hosts.start("--host", dead.name)
    assert dead.kinds == {"backburner-keeper", "engine.startup", "log_writer", "lease_enforcer", "bwrap", "ticking_command"}
    killed_at = time.monotonic()
    dead.kill()
    assert hosts.wait_until_noticed(dead, "fenced") <= MAX_BEATS
    wait_until(lambda: len(hosts.lives(again)) == 2, "the second run", WAIT)
    report("lost power", hosts, killed_at, again)
    hosts.finish()
    assert hosts.wait_for_end(again)["state"] == "completed"
    assert overlap(hosts.lives(again)) < 0 and hosts.host_of(again) is not dead
    # The other one may go on, as far as anybody knows.
    assert len(hosts.lives(once)) == 1 and hosts.run_of(once)["state"] == "running"
    assert hosts.events() == {"host_fenced": 1}
    assert hosts.notices("does not answer") == [
        f"Host {dead.name} does not answer. 1 of its runs is run again elsewhere. 1 run is there, and whether it goes on is not known."
        f" If the host does not come back: backburner hosts forget {dead.name}"
    ]
    assert hosts.desk.cli("hosts", "forget", dead.name).stderr == f"1 run of {dead.name} is lost.\n"
    assert (hosts.run_of(once)["state"], hosts.run_of(once)["result"]) == ("failed", "lost")
    assert len(hosts.notices(once)) == 1
    dead.start()
    hosts.wait_for_state(dead, "active")
    assert len(hosts.lives(once)) == 1 and hosts.events() == {"host_fenced": 1, "host_forgotten": 1}


def test_a_killed_engine_is_replaced_and_nobody_is_told(hosts: ThreeHosts) -> None:
    again = hosts.start("--lane", LANE, "--rerun", code=5)
    host = hosts.host_of(again)
    once = hosts.start("--host", host.name, code=7)
    killed_at = time.monotonic()
    host.kill_engine()
    wait_until(lambda: hosts.beats()[host.name][0] == 2, "the next engine to enrol", WAIT)
    report("engine killed", hosts, killed_at, again)
    hosts.finish()
    assert [hosts.wait_for_end(task_id)["exit_code"] for task_id in (again, once)] == [5, 7]
    assert len(hosts.lives(again)) == len(hosts.lives(once)) == 1
    assert hosts.events() == {} and hosts.notices("does not answer") == []
    assert len(hosts.notices(again)) == len(hosts.notices(once)) == 1


def test_a_host_whose_engine_hangs_ends_what_may_run_twice_before_another_starts_it(hosts: ThreeHosts) -> None:
    again = hosts.start("--lane", LANE, "--rerun")
    host = hosts.host_of(again)
    once = hosts.start("--host", host.name, code=7)
    stopped_at = time.monotonic()
    engine = host.stop_engine_process()
    try:
        assert hosts.wait_until_noticed(host, "fenced") <= MAX_BEATS
        wait_until(lambda: len(hosts.lives(again)) == 2, "the second run", WAIT)
        report("engine stopped", hosts, stopped_at, again)
    finally:
        processes.send(engine, signal.SIGCONT)
    hosts.wait_for_state(host, "active")
    hosts.finish()
    assert hosts.wait_for_end(again)["state"] == "completed" and hosts.wait_for_end(once)["exit_code"] == 7
    assert overlap(hosts.lives(again)) < 0 and len(hosts.lives(again)) == 2 and len(hosts.lives(once)) == 1
    assert hosts.events() == {"host_fenced": 1} and hosts.beats()[host.name][0] == 2
    assert len(hosts.notices("does not answer")) == len(hosts.notices(again)) == len(hosts.notices(once)) == 1


@pytest.mark.skipif(not LONG, reason="waits for a lease")
def test_a_host_that_is_paused_as_a_whole_runs_for_at_most_a_moment_when_it_continues(hosts: ThreeHosts) -> None:
    """The process that ends the command is paused too, so it acts when it continues: the command can run until that process wakes up."""
    again = hosts.start("--lane", LANE, "--rerun")
    host = hosts.host_of(again)
    once = hosts.start("--host", host.name, code=7)
    stopped_at = time.monotonic()
    host.stop_everything()
    assert hosts.wait_until_noticed(host, "fenced") <= MAX_BEATS
    wait_until(lambda: len(hosts.lives(again)) == 2, "the second run", WAIT)
    paused = hosts.lives(again)[0]
    assert paused.last < hosts.lives(again)[1].first
    ticks = hosts.ticks(again, host)
    host.continue_everything()
    hosts.wait_for_state(host, "active")
    report("everything stopped", hosts, stopped_at, again, f"{hosts.ticks(again, host) - ticks} ticks after it continued")
    wait_until(lambda: "lease_enforcer" not in host.kinds, "the old command to be ended", WAIT)
    hosts.finish()
    assert hosts.wait_for_end(again)["state"] == "completed" and hosts.wait_for_end(once)["exit_code"] == 7
    assert [life.host for life in hosts.lives(again)].count(host.name) == 1 and len(hosts.lives(once)) == 1
    assert hosts.events() == {"host_fenced": 1}
    assert len(hosts.notices("does not answer")) == len(hosts.notices(again)) == len(hosts.notices(once)) == 1


def test_a_host_that_is_cut_off_ends_what_may_run_twice_and_comes_back_by_itself(hosts: ThreeHosts) -> None:
    network = hosts.need_network()
    again = hosts.start("--lane", LANE, "--rerun")
    host = hosts.host_of(again)
    once = hosts.start("--host", host.name, code=7)
    cut_at = time.monotonic()
    network.cut(host.name)
    try:
        assert hosts.wait_until_noticed(host, "fenced") <= MAX_BEATS
        wait_until(lambda: len(hosts.lives(again)) == 2, "the second run", WAIT)
        report("cut off", hosts, cut_at, again)
        assert hosts.run_of(once)["state"] == "running" and "ticking_command" in host.kinds  # nobody has ended the other one
    finally:
        network.mend(host.name)
    back = hosts.wait_for_state(host, "active")
    report("back after the cut", hosts, time.monotonic() - back, again)
    hosts.finish()
    assert hosts.wait_for_end(again)["state"] == "completed" and hosts.wait_for_end(once)["exit_code"] == 7
    assert overlap(hosts.lives(again)) < 0 and len(hosts.lives(again)) == 2 and len(hosts.lives(once)) == 1
    assert hosts.events() == {"host_fenced": 1}
    assert len(hosts.notices("does not answer")) == len(hosts.notices(again)) == len(hosts.notices(once)) == 1
    wait_until(lambda: hosts.listeners() == len(hosts.hosts), "LISTEN on all hosts", WAIT)


@pytest.mark.skipif(not LONG, reason="waits for the least value of lost_after_minutes, one minute")
def test_a_host_that_stays_away_is_given_up_and_ends_what_is_left_when_it_comes_back(world: World, tmp_path: Path) -> None:
    with world.hosts(tmp_path, "lost_after_minutes = 1\n") as hosts:
        once = hosts.start()
        host = hosts.host_of(once)
        silent_at = time.monotonic()
        for process in (*host.processes("backburner-keeper"), host.engine):
            assert process
            processes.send(process, signal.SIGKILL)
        hosts.wait_for_state(host, "suspected")
        assert hosts.run_of(once)["state"] == "running"
        ended = hosts.wait_for_end(once)
        report("given up", hosts, silent_at, once)
        assert (ended["state"], ended["result"]) == ("failed", "lost") and "has not answered since" in ended["error"]
        assert "ticking_command" in host.kinds  # it goes on there
        host.start()
        hosts.wait_for_state(host, "active")
        wait_until(lambda: "ticking_command" not in host.kinds, "the host to end what was given up", WAIT)
        assert hosts.events() == {"host_suspected": 1, "host_lost": 1, "run_ended_late": 1}
        assert len(hosts.lives(once)) == len(hosts.notices("does not answer")) == len(hosts.notices(once)) == 1
