"""Agents in a lane of three hosts, with a scripted model: each runs once, on one host, also while engines and hosts are killed.

The hosts are processes of this machine without namespaces of their own, so that they reach the model.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_until
from three_hosts import LANE, WAIT, Host, ThreeHosts, World

from backburner.testing.scripted_model import ScriptedModel


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.getbasetemp() / "pg-agents", in_namespaces=False)
    yield world
    world.close()


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def hosts(world: World, model: ScriptedModel, tmp_path: Path) -> Iterator[ThreeHosts]:
    settings = f'[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n'
    with world.hosts(tmp_path, settings) as hosts:
        hosts.desk.configure((hosts.desk.root / "config.toml").read_text() + settings)
        yield hosts


def ask(hosts: ThreeHosts, *steps: dict[str, Any]) -> str:
    return hosts.desk.ok("ask", "--lane", LANE, f"Please [[script: {json.dumps(steps)}]]").strip()


def wait_for_host(hosts: ThreeHosts, task_id: str) -> Host:
    """Wait until an agent works; returns the host."""
    wait_until(lambda: hosts.run_of(task_id)["state"] == "running", f"the agent to begin: {task_id}", WAIT)
    return next(host for host in hosts.hosts if host.home.host_id() == hosts.run_of(task_id)["host"])


def starts(hosts: ThreeHosts, task_id: str) -> int:
    return hosts.sql(f"SELECT count(*)::int FROM events WHERE kind IN ('run_started', 'run_resumed') AND task_id = '{task_id}'")[0][0]


def test_agents_of_a_lane_run_once_each_and_survive_a_killed_engine(hosts: ThreeHosts, model: ScriptedModel) -> None:
    asked = [ask(hosts, {"hang": 2, "say": f"answer {number}"}) for number in range(4)]
    first = wait_for_host(hosts, asked[0])
    first.kill_engine()
    for number, task_id in enumerate(asked):
        assert hosts.wait_for_end(task_id)["state"] == "completed", hosts.run_of(task_id)
        assert f"answer {number}" in hosts.desk.ok("status", task_id) and starts(hosts, task_id) == 1
        assert len(hosts.notices(task_id)) == 1
    used = {hosts.run_of(task_id)["host"] for task_id in asked}
    print(f"4 agents ran on {len(used)} hosts", file=sys.stderr)
    assert hosts.events() == {}


def test_an_agent_of_a_host_that_loses_power_is_not_repeated_and_is_resumed_where_it_was(hosts: ThreeHosts) -> None:
    task_id = ask(hosts, {"say": "first"}, {"hang": 60, "say": "never"})
    host = wait_for_host(hosts, task_id)
    killed_at = time.monotonic()
    host.kill()
    hosts.wait_for_state(host, "suspected")
    print(f"noticed after {time.monotonic() - killed_at:.1f} s", file=sys.stderr)
    assert hosts.run_of(task_id)["state"] == "running" and starts(hosts, task_id) == 1
    assert len(hosts.notices("does not answer")) == 1
    host.start()
    ended = hosts.wait_for_end(task_id)
    assert (ended["state"], ended["result"]) == ("failed", "lost") and "can be resumed" in ended["error"]
    hosts.desk.ok("resume", task_id, f"go on [[script: {json.dumps([{'say': 'resumed'}])}]]")
    wait_until(lambda: hosts.run_of(task_id)["state"] == "completed", "the resumed agent to end", WAIT)
    assert hosts.run_of(task_id)["host"] == host.home.host_id() and "resumed" in hosts.desk.ok("status", task_id)
    assert hosts.events() == {"host_suspected": 1} and len(hosts.notices("does not answer")) == 1
