"""Backburner's processes are killed at random moments while agents run: every task ends with one notice, and no process remains."""

import os
import random
import signal
import time
from typing import Any

from harness import KINDS, PATIENCE, Step

from backburner.system import processes

SEED = int(os.environ.get("BACKBURNER_SEED") or 7)  # read at import, because tests run with a clean environment
ROUNDS = 6
AGENTS = ("opencode", "goose", "default")
VICTIMS = ("host", "engine", "both", "server", "host")


def steps(agent: str, number: int) -> list[Step]:
    """Work for a few seconds: tools, and text that is streamed slowly."""
    kind = KINDS[agent]
    return [
        kind.command_step(f"echo {number}.one"),
        {"hang": 0.7, **kind.command_step(f"echo {number}.two")},
        {"drip": 0.7, **kind.command_step(f"echo {number}.three")},
        {"drip": 0.5, "say": f"all of {number}"},
        {"say": f"all of {number}"},  # if the text before was cut off
    ]


def kill(agents_home: Any, victim: str) -> bool:
    """Send SIGKILL; True if there was a process to kill."""
    found = []
    if victim in ("host", "both"):
        found += agents_home.home_cli.hosts("agents.process")
    if victim in ("engine", "both") and agents_home.home_cli.engine:
        found.append(agents_home.home_cli.engine)
    if victim == "server":
        found += [processes.ProcessId.parse(one["process"]) for one in agents_home.servers if one.get("process")]
    return sum(processes.send(one, signal.SIGKILL) for one in found) > 0


def test_random_kills_lose_no_task_and_repeat_no_notice(new_agents_home: Any) -> None:
    agents_home, generator, kills = new_agents_home, random.Random(SEED), 0
    sessions = {agent: agents_home.session(agent) for agent in AGENTS}
    for number in range(ROUNDS):
        task_ids = {agent: session.ask(*steps(agent, number), words=f"Round {number} for {agent}.") for agent, session in sessions.items()}
        victim, moment = generator.choice(VICTIMS), generator.uniform(0.2, 5.0)
        time.sleep(moment)  # a random moment
        kills += kill(agents_home, victim)
        for agent, task_id in task_ids.items():
            what, session = f"round {number} (seed {SEED}), {victim} killed after {moment:.1f} s", sessions[agent]
            output = session.wait_for(task_id, "completed", "error", "cancelled", "waiting", seconds=PATIENCE)
            assert len(session.notices(task_id)) == 1, (what, agent, session.notices(task_id))
            if output["status"] == "completed":
                assert output["result"] == f"all of {number}\n", (what, agent, output)
                continue
            assert output["status"] == "error" and "interrupted" in output["error"], (what, agent, output)
            assert agent != "opencode", (what, output, "its server was not killed, so it must complete")
            session.resume(task_id, {"say": f"again {number}"})
            assert session.answer(task_id) == f"again {number}\n", (what, agent)
            assert len(session.notices(task_id)) == 2, (what, agent)
        assert agents_home.live_runs() == [], what
        agents_home.settle()
    assert kills >= ROUNDS - 2, "too few processes were killed"
