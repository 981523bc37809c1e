"""Chapter 6: agents that work in the background.

The model is `ScriptedModel`, an HTTP server on this machine that plays the script in the prompt. A script is a list of steps: a tool
call, or a text.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import CONFIG, HomeCli, wait_until

from backburner.testing.scripted_model import ScriptedModel


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture
def home(home_cli: HomeCli, model: ScriptedModel) -> Iterator[HomeCli]:
    """A home whose default model is the scripted model."""
    home_cli.configure(f'{CONFIG}[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n')
    yield home_cli
    home_cli.stop_all()


def script(*steps: dict[str, Any]) -> str:
    return f"Please [[script: {json.dumps(steps)}]]"


def test_ask_an_agent_and_continue_the_conversation(home: HomeCli) -> None:
    """`ask` starts the built-in agent. Its answer is the output of the task. `resume` sends another message."""
    (home.cwd / "notes.txt").write_text("hello")
    task_id = home.ok("ask", script({"tool": "read_file", "args": {"path": "notes.txt"}}, {"say": "It contains hello."})).strip()
    home.ok("wait", task_id)
    assert home.log(task_id) == b"It contains hello.\n"

    assert home.ok("resume", task_id, script({"say": "Nothing else."}), "--wait") == "Nothing else.\n"
    status = home.status(task_id)
    assert (status["type"], status["status"], status["run_count"]) == ("agent", "completed", 2)


@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_an_agent_waits_until_its_command_is_approved_or_rejected(home: HomeCli, answer: str) -> None:
    """The command of an agent is a separate task. While it needs approval, the run of the agent is `waiting`."""
    (home.cwd / "old.txt").write_text("x")
    task_id = home.ok("ask", script({"tool": "run_command", "args": {"command": "rm old.txt"}}, {"say": "Finished."})).strip()
    wait_until(lambda: home.status(task_id)["status"] == "waiting", "the agent to wait for approval")
    tasks = home.json("list")
    assert isinstance(tasks, list)
    (command,) = [task for task in tasks if task["command"] == ["rm", "old.txt"]]

    home.ok(answer, command["task_id"])
    home.ok("wait", task_id)
    assert home.log(task_id) == b"Finished.\n"
    assert (home.cwd / "old.txt").exists() == (answer == "reject")


def test_an_agent_cannot_read_outside_its_project(home: HomeCli, model: ScriptedModel) -> None:
    """The tool call fails, and the agent continues."""
    (home.cwd.parent / "secret.txt").write_text("confidential")
    task_id = home.ok("ask", script({"tool": "read_file", "args": {"path": "../secret.txt"}}, {"say": "I may not."})).strip()
    home.ok("wait", task_id)
    assert home.log(task_id) == b"I may not.\n" and not model.seen("confidential")
