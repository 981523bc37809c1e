"""A schedule on three hosts, of which one fires it: every slot once, also while that one is killed, hangs, or comes back."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ticking_command
from conftest import LONG, wait_until
from three_hosts import LANE, WAIT, Host, ThreeHosts, World
from ticking_command import lifetimes

from backburner.system import processes

EVERY_MS = 1000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.getbasetemp() / "pg-slots")
    yield world
    world.close()


@pytest.fixture
def hosts(world: World, tmp_path: Path) -> Iterator[ThreeHosts]:
    """The host that leads runs nothing itself, so that no run is lost with it."""
    with world.hosts(tmp_path, serving="bc") as hosts:
        yield hosts


def slots(hosts: ThreeHosts) -> list[int]:
    return [slot for (slot,) in hosts.sql("SELECT slot FROM runs WHERE slot IS NOT NULL ORDER BY slot")]


def wait_for_slots(hosts: ThreeHosts, count: int) -> None:
    """Wait for so many slots more."""
    wanted = len(slots(hosts)) + count
    wait_until(lambda: len(slots(hosts)) >= wanted, f"{count} more slots", WAIT)


def stop_and_continue(hosts: ThreeHosts, leader: Host) -> None:
    """The engine that fires slots hangs until another has taken over, and for a moment both fire them."""
    engine = leader.stop_engine_process()
    stopped_at = time.monotonic()
    try:
        hosts.wait_for_state(leader, "suspected")
        wait_for_slots(hosts, 2)
    finally:
        processes.send(engine, signal.SIGCONT)
    print(f"stopped: the next host fired slots within {time.monotonic() - stopped_at:.1f} s", file=sys.stderr)
    hosts.wait_for_state(leader, "active")
    wait_for_slots(hosts, 2)


def kill_and_restart(hosts: ThreeHosts, leader: Host) -> None:
    killed_at = time.monotonic()
    leader.kill()
    hosts.wait_for_state(leader, "suspected")
    wait_for_slots(hosts, 2)
    print(f"killed: the next host fired slots within {time.monotonic() - killed_at:.1f} s", file=sys.stderr)
    leader.start()
    hosts.wait_for_state(leader, "active")
    hosts.named("b").kill_engine()
    wait_for_slots(hosts, 2)


LONGER = pytest.mark.skipif(not LONG, reason="waits for a lease")


@pytest.mark.parametrize("happens", [kill_and_restart, pytest.param(stop_and_continue, marks=LONGER)])
def test_every_slot_runs_once_whatever_happens_to_the_host_that_fires_them(
    hosts: ThreeHosts, happens: Callable[[ThreeHosts, Host], None]
) -> None:
    leader = hosts.named("a")
    hosts.finish()  # each run ends at once
    words = [sys.executable, "-IS", ticking_command.__file__, str(hosts.record), str(hosts.shared / "finish"), "0"]
    leader.call("add", "clock", "--every", f"{EVERY_MS // 1000}s", "--missed", "run_all", "--lane", LANE, "--", *words)
    wait_for_slots(hosts, 2)
    happens(hosts, leader)
    leader.call("pause", "clock")
    wait_until(lambda: not hosts.sql("SELECT 1 FROM runs WHERE ended_at IS NULL"), "the last runs to end", WAIT)
    fired = slots(hosts)
    assert fired == list(range(fired[0], fired[-1] + 1, EVERY_MS)), "a slot is missing, or was fired twice"
    rows = hosts.sql("SELECT run_id, state FROM runs WHERE slot IS NOT NULL")
    assert {state for _, state in rows} == {"completed"}
    assert sorted(life.run_id for life in lifetimes(hosts.record)) == sorted(run_id for run_id, _ in rows)
    assert hosts.events("host_suspected", "host_fenced") == {"host_suspected": 1} and hosts.notices("does not answer") == []
