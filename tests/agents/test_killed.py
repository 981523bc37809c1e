"""Backburner's processes are killed at random moments while three kinds of agents run: every task ends with one notice, and no process remains."""

import json
import random
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CONFIG, LONG, HomeCli, wait_until

from backburner.system import processes
from backburner.testing.scripted_model import ScriptedModel

HERE = Path(__file__).parent
KINDS = ("default", "fake", "opencode")


@pytest.fixture
def home(home_cli: HomeCli) -> Iterator[HomeCli]:
    """A home with an agent of each kind: the built-in one, an ACP agent, and one in an OpenCode server."""
    folder, notes = home_cli.root.parent / "bin", home_cli.root.parent / "agent"
    folder.mkdir()
    notes.mkdir()
    program = folder / "opencode"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(str(HERE / "scripted_opencode.py"))} "$@"\n')
    program.chmod(0o755)
    home_cli.environ |= {"PATH": f"{folder}:{home_cli.environ['PATH']}", "XDG_DATA_HOME": str(home_cli.root.parent / "data")}
    command = shlex.join([sys.executable, "-I", str(HERE / "scripted_acp.py"), str(notes), "load"])
    with ScriptedModel() as model:
        home_cli.configure(
            f'{CONFIG}[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n[tasks]\nmax_concurrent = 8\n'
            f'[agents.fake]\ntype = "acp"\nasks = "yes"\ncommand = {json.dumps(command)}\n'
        )
        yield home_cli
        home_cli.stop_all()


def steps(kind: str, number: int) -> list[dict[str, Any]]:
    """Work for one or two seconds: tools, with pauses between them."""
    match kind:
        case "default":
            tools = [{"drip": 0.2, "tool": "run_command", "args": {"command": f"echo {number}.{n}"}} for n in range(3)]
        case "fake":
            ask = {"title": "ls", "kind": "execute", "rawInput": {"command": "ls"}}
            tools = [{"ask": ask, "do": "sleep 0.3"} for _ in range(3)]
        case _:
            tools = [{"tool": "bash", "args": {"command": f"sleep 0.3{number}"}, "tokens": 1} for _ in range(3)]
    return [*tools, {"say": f"all of {number}"}]


def kill(home_cli: HomeCli, victim: str) -> int:
    """Send SIGKILL; return the number of processes."""
    found = [*(home_cli.hosts("agents.process") if victim in ("host", "both") else [])]
    found += [home_cli.engine] if victim in ("engine", "both") and home_cli.engine else []
    for record in (home_cli.root / "opencode").glob("*.json") if victim == "server" else ():
        about = json.loads(record.read_text())
        found += [processes.ProcessId.parse(about["process"])] if about.get("process") else []
    return sum(processes.send(one, signal.SIGKILL) for one in found)


def test_after_any_kill_every_task_ends_with_exactly_one_notice(home: HomeCli) -> None:
    chance, kills, rounds = random.Random(5), 0, 60 if LONG else 4
    for number in range(rounds):
        asked = {kind: home.ok("ask", "--agent", kind, f"Please [[script: {json.dumps(steps(kind, number))}]]").strip() for kind in KINDS}
        victim, moment = chance.choice(["host", "host", "engine", "both", "server"]), chance.uniform(0.0, 3.5)
        time.sleep(moment)  # a random moment
        kills += kill(home, victim)
        for kind, task_id in asked.items():
            what = f"round {number}: {victim} after {moment:.2f} s, {kind}"
            wait_until(lambda task_id=task_id: home.status(task_id)["status"] in ("completed", "failed"), what, 60)  # type: ignore[misc]
            ended = home.status(task_id)
            told = [one["text"] for one in home.json("inbox", "--read") if one["task_id"] == task_id]  # type: ignore[union-attr, index, call-overload]
            assert len(told) == 1, (what, told)
            if ended["status"] == "completed":
                assert home.log(task_id).decode().strip() == f"all of {number}", what
            else:
                assert ended["result"] == "lost" and kind != "opencode", (what, ended["error"])
    assert kills >= rounds // 2
    home.ok(
        "ask", "--agent", "opencode", "--wait", f"Please [[script: {json.dumps([{'say': 'done'}])}]]"
    )  # its agent process stops the servers
    home.stop_all()
    assert home.processes() == [], "no process remains"
    assert not list((home.root / "opencode").glob("*.json")), "no server record remains"
