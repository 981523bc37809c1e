"""Ours killed at any moment while agents work: every task ends, each end is told once, and nothing is left that nobody knows."""

import os
import random
import signal
import time
from typing import Any

from harness import KINDS, PATIENCE, Step

from backburner.system import processes as process

SEED = int(os.environ.get("BACKBURNER_SEED") or 7)  # read now: tests do not see it
ROUNDS = 6
AGENTS = ("opencode", "goose", "default")
VICTIMS = ("host", "engine", "both", "server", "host")


def steps(agent: str, number: int) -> list[Step]:
    """Work for some seconds: tools, and words that come slowly."""
    kind = KINDS[agent]
    return [
        kind.runs(f"echo {number}.one"),
        {"hang": 0.7, **kind.runs(f"echo {number}.two")},
        {"drip": 0.7, **kind.runs(f"echo {number}.three")},
        {"drip": 0.5, "say": f"all of {number}"},
        {"say": f"all of {number}"},  # where the words before were cut off
    ]


def kill(office: Any, victim: str) -> bool:
    """SIGKILL; whether there was anybody to kill."""
    found = []
    if victim in ("host", "both"):
        found += office.place.hosts("agents.process")
    if victim in ("engine", "both") and office.place.engine:
        found.append(office.place.engine)
    if victim == "server":
        found += [process.ProcessId.parse(one["process"]) for one in office.servers if one.get("process")]
    return sum(process.send(one, signal.SIGKILL) for one in found) > 0


def test_ours_killed_at_random_moments_loses_nothing_and_tells_nothing_twice(own_office: Any) -> None:
    office, chance, kills = own_office, random.Random(SEED), 0
    somebodies = {agent: office.session(agent) for agent in AGENTS}
    for number in range(ROUNDS):
        asked = {agent: one.ask(*steps(agent, number), words=f"Round {number} for {agent}.") for agent, one in somebodies.items()}
        victim, moment = chance.choice(VICTIMS), chance.uniform(0.2, 5.0)
        time.sleep(moment)  # any moment will do
        kills += kill(office, victim)
        for agent, task_id in asked.items():
            what, somebody = f"round {number} (seed {SEED}), {victim} killed after {moment:.1f} s", somebodies[agent]
            looked = somebody.until(task_id, "completed", "error", "cancelled", "waiting", seconds=PATIENCE)
            assert len(somebody.notices(task_id)) == 1, (what, agent, somebody.notices(task_id))
            if looked["status"] == "completed":
                assert looked["result"] == f"all of {number}\n", (what, agent, looked)
                continue
            assert looked["status"] == "error" and "interrupted" in looked["error"], (what, agent, looked)
            assert agent != "opencode", (what, looked, "it works in a server that lives on")
            somebody.resume(task_id, {"say": f"again {number}"})
            assert somebody.answer(task_id) == f"again {number}\n", (what, agent)
            assert len(somebody.notices(task_id)) == 2, (what, agent)
        assert office.live() == [], what
        office.settle()
    assert kills >= ROUNDS - 2, "hardly anybody was there to be killed"
