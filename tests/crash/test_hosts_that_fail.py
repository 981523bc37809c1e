"""Three hosts, of which one dies, hangs or is cut off: what ran how often, what was reported, and after how many beats.

The times that this takes depend on the lease and not on the machine: they are counted in beats of the hosts that are alive.
"""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from three_hosts import LANE, WAIT, Host, ThreeHosts, World
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


def test_a_host_that_loses_power_is_noticed_and_what_may_run_twice_runs_elsewhere(hosts: ThreeHosts) -> None:
    b = hosts.named("b")
    again, once = hosts.start("--host", "b", "--rerun"), hosts.start("--host", "b")
    print(b.kinds)
    print(hosts.lives(again))
    hosts.finish()
    print(hosts.wait_for_end(again), hosts.wait_for_end(once), hosts.lives(again))
