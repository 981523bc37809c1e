"""The agent process killed at any time: the run is reported as interrupted, its conversation is complete, and no tool runs twice."""

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CONFIG, LONG, HomeCli, caller, wait_until

from backburner.system import processes
from backburner.testing.scripted_model import ScriptedModel


@pytest.fixture
def home(home_cli: HomeCli) -> Iterator[HomeCli]:
    with ScriptedModel() as model:
        home_cli.configure(
            f'{CONFIG}[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\nmax_concurrent = 8\n[tasks]\nmax_concurrent = 8\n'
        )
        home_cli.ok("trust", ".")
        yield home_cli
        home_cli.stop_engine()
        wait_until(lambda: not [processes.send(one, signal.SIGTERM) for one in home_cli.processes()], "the agent process to leave")


def agent_process(home_cli: HomeCli) -> processes.ProcessId | None:
    """The running agent process."""
    found = [one for one in home_cli.processes() if b"agents.process" in Path(f"/proc/{one.pid}/cmdline").read_bytes()]
    return found[0] if found else None


def status(home_cli: HomeCli, task_id: str) -> dict[str, Any]:
    return home_cli.status(task_id)


def steps(n: int) -> list[dict[str, Any]]:
    """An agent that leaves a trace of each tool call: a task in the ledger, or a file."""
    made: list[dict[str, Any]] = []
    for step in range(4):
        made.append({"tool": "run_command", "args": {"command": f"echo {n}.{step}"}})
        made.append({"drip": 0.05, "tool": "write_file", "args": {"path": f"files/{n}-{step}.txt", "content": "x"}})
    return [*made, {"drip": 0.3, "say": f"all of {n}"}]


def test_a_killed_agent_process_loses_no_message_and_runs_no_tool_twice(home: HomeCli) -> None:
    """Kills at random times: during tool calls, during answers of the model, and between them."""
    chance, kills, rounds = random.Random(11), 0, 50 if LONG else 4
    finished = []
    for number in range(rounds):
        task_id = home.ok("ask", f"[[script: {json.dumps(steps(number))}]]").strip()
        wait_until(lambda task_id=task_id: status(home, task_id)["status"] not in ("pending",), "it to start")
        time.sleep(chance.uniform(0.0, 1.2))
        if (victim := agent_process(home)) and processes.send(victim, signal.SIGKILL):
            kills += 1
        wait_until(lambda task_id=task_id: status(home, task_id)["status"] in ("completed", "failed"), "its end")
        ended = status(home, task_id)
        if ended["status"] == "failed":
            assert ended["result"] == "lost" and "interrupted" in str(ended["error"]), ended
            conversation = home.folder(task_id) / "conversation.json"
            before = json.loads(conversation.read_text())["messages"] if conversation.exists() else []
            home.ok("resume", task_id, f"go on [[script: {json.dumps([{'say': 'resumed'}])}]]", "--wait")
            after = json.loads(conversation.read_text())["messages"]
            assert len(after) > len(before) and status(home, task_id)["status"] == "completed"
            words = json.dumps(after)
            assert ("go on" in words and f"{number}.0" in words) or len(before) <= 1, "the resume has the whole conversation"
        finished.append(task_id)
    marks = [" ".join(task["command"]) for task in home.json("list", "--limit", "0") if task["type"] == "command"]  # type: ignore[union-attr, index, call-overload]
    assert len(marks) == len(set(marks)) > 0, "no command ran twice"
    notices = [one["task_id"] for one in home.json("inbox", "--read")]  # type: ignore[union-attr, index, call-overload]
    for task_id in finished:
        runs = int(status(home, task_id)["run_count"])
        assert notices.count(task_id) == runs, "each run has one notice"
    assert kills >= rounds // 2


def test_two_agent_processes_never_run_one_conversation(home: HomeCli) -> None:
    import subprocess

    from backburner.coordination.launcher import process_command
    from backburner.system.home import Home

    task_id = home.ok("ask", '[[script: [{"hang": 2, "say": "once"}]]]').strip()
    wait_until(lambda: status(home, task_id)["status"] == "running", "it to start")
    others = [
        subprocess.run(process_command(Home(str(home.root)), "agents.process"), env=home.environ, timeout=30).returncode for _ in range(2)
    ]
    assert others == [3, 3], "there is one already"
    wait_until(lambda: status(home, task_id)["status"] == "completed", "it to end")
    assert home.log(task_id) == b"once\n"


def test_a_concurrent_cancel_and_answer_give_one_end(home: HomeCli) -> None:
    for number in range(6):
        task_id = home.ok("ask", f'[[script: [{{"hang": {0.1 * number:.1f}, "say": "x"}}]]]').strip()
        wait_until(lambda task_id=task_id: status(home, task_id)["status"] != "pending", "it to start")
        home.cli("cancel", task_id)
        wait_until(lambda task_id=task_id: status(home, task_id)["status"] in ("completed", "cancelled"), "one end")
        ends = [
            event["kind"]
            for event in home.json("events")
            if event["task_id"] == task_id and event["kind"] in ("run_completed", "run_cancelled")
        ]  # type: ignore[union-attr, index, call-overload]
        assert len(ends) == 1


def test_only_one_of_a_hundred_concurrent_resumes_succeeds(home: HomeCli) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from backburner import BackburnerSync
    from backburner.core.errors import BackburnerError

    task_id = home.ok("ask", '[[script: [{"say": "first"}]]]', "--wait", env={}) and home.json("list")[0]["task_id"]  # type: ignore[index]

    def resume(_: int) -> bool:
        with BackburnerSync.open(home.root) as bb:
            try:
                bb._app.conversations.resume(task_id, '[[script: [{"hang": 3, "say": "second"}]]]', caller(bb._app))
            except BackburnerError:
                return False
            return True

    with ThreadPoolExecutor(20) as pool:
        won = list(pool.map(resume, range(100)))
    assert sum(won) == 1
    wait_until(lambda: status(home, task_id)["status"] == "completed", "the one to end")
    assert status(home, task_id)["run_count"] == 2
