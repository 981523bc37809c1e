"""Hooks of agent clients: each notice is delivered once, to the session that started the task."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import Place, wait_until
from mcp_client import Raw

from backburner.core.notice_text import NOTICE_PREFIX


def _hook(place: Place, client: str, event: object, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "backburner", "inbox", "--hook", client],
        cwd=place.cwd,
        env={**place.environ, **env},
        input=event if isinstance(event, str) else json.dumps(event),
        capture_output=True,
        text=True,
        timeout=60,
    )


def _event(name: str, session: str = "s1", **more: object) -> dict[str, object]:
    return {"session_id": session, "hook_event_name": name, **more}


def _ended(place: Place, session: str = "claude:s1", *command: str) -> str:
    """The ID of a finished task with a pending notice for a session."""
    done = place.cli("run", "--yes", "--", *(command or ("echo", "hello")), env={"BACKBURNER_SESSION": session})
    task_id = done.stdout.strip()
    wait_until(lambda: place.status(task_id)["status"] in ("completed", "failed"), "the task to end")
    return task_id


@pytest.mark.parametrize(
    ("client", "event"),
    [
        ("claude", "UserPromptSubmit"),
        ("claude", "PostToolUse"),
        ("claude", "SessionStart"),
        ("codex", "UserPromptSubmit"),
        ("codex", "PostToolUse"),
        ("gemini", "BeforeAgent"),
        ("gemini", "AfterTool"),
    ],
)
def test_a_hook_passes_each_notice_to_the_model_once(place: Place, client: str, event: str) -> None:
    task_id = _ended(place, f"{client}:s1")
    assert _hook(place, client, _event(event, "other")).stdout == "", "not its own"
    output = json.loads(_hook(place, client, _event(event)).stdout)["hookSpecificOutput"]
    context = output["additionalContext"]
    assert output["hookEventName"] == event and context.startswith(NOTICE_PREFIX) and task_id in context
    assert _hook(place, client, _event(event)).stdout == ""
    assert place.json("inbox") == []


@pytest.mark.parametrize(("client", "event"), [("codex", "Stop"), ("gemini", "AfterAgent")])
def test_a_stop_hook_continues_the_agent_when_a_task_has_ended(place: Place, client: str, event: str) -> None:
    assert _hook(place, client, _event(event)).stdout == ""
    task_id = _ended(place, f"{client}:s1")
    output = json.loads(_hook(place, client, _event(event)).stdout)
    assert output["decision"] == "block" and task_id in output["reason"]
    assert _hook(place, client, _event(event)).stdout == ""


def test_claudes_stop_hook_uses_exit_code_2_and_stderr(place: Place) -> None:
    task_id = _ended(place)
    done = _hook(place, "claude", _event("Stop"))
    assert done.returncode == 2 and done.stdout == "" and task_id in done.stderr and done.stderr.startswith(NOTICE_PREFIX)
    assert _hook(place, "claude", _event("Stop")).returncode == 0


def test_claudes_stop_hook_waits_for_open_tasks_and_then_wakes_claude(place: Place) -> None:
    attended = {"CLAUDE_CODE_SESSION_ATTENDED": "1", "CLAUDE_PID": str(os.getpid())}
    assert _hook(place, "claude", _event("Stop"), **attended).returncode == 0, "nothing is open: it does not stay"
    task_id = place.ok("run", "--yes", "--", "sleep", "1.5", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    waiting = subprocess.Popen(
        [sys.executable, "-m", "backburner", "inbox", "--hook", "claude"],
        cwd=place.cwd,
        env={**place.environ, **attended},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdin and waiting.stderr
    waiting.stdin.write(json.dumps(_event("Stop")))
    waiting.stdin.close()
    second = _hook(place, "claude", _event("Stop"), **attended)
    codes, texts = (waiting.wait(30), second.returncode), waiting.stderr.read() + second.stderr
    waiting.stderr.close()
    assert sorted(codes) == [0, 2] and texts.count(f"<task-id>{task_id}<") == 1, "one of the two hooks waits and delivers the notice"
    assert _hook(place, "claude", _event("Stop")).returncode == 0, "delivered once"


def test_the_stop_hook_does_not_delay_a_non_interactive_claude(place: Place) -> None:
    task_id = place.ok("run", "--yes", "--", "sleep", "60", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    env = {"CLAUDE_CODE_SESSION_ATTENDED": "0", "CLAUDE_PID": str(os.getpid())}
    assert _hook(place, "claude", _event("Stop"), **env).returncode == 0
    place.ok("cancel", task_id)


def test_after_a_compaction_the_hook_repeats_the_open_work(place: Place) -> None:
    task_id = place.run("sleep", "60")
    output = json.loads(_hook(place, "claude", _event("SessionStart", source="compact")).stdout)
    context = output["hookSpecificOutput"]["additionalContext"]
    assert task_id in context and len(context) <= 2000
    assert _hook(place, "claude", _event("SessionStart", source="startup")).stdout == ""
    place.ok("cancel", task_id)


def test_a_hook_delivers_notices_of_all_sessions_of_its_client_process(place: Place) -> None:
    """After /clear the hook has a new session ID while the server keeps the old one; both are children of one client."""
    with Raw(place, "--client", "claude", env={"CLAUDE_CODE_SESSION_ID": "before"}) as client:
        task_id = client.ended()
        assert task_id in _hook(place, "claude", _event("UserPromptSubmit", "after")).stdout


@pytest.mark.parametrize("event", ["", "nothing", "[]", "null", '{"session_id": 5}', "{" * 100_000, "\x00"])
def test_a_hook_with_invalid_input_prints_nothing(place: Place, event: str) -> None:
    done = _hook(place, "claude", event)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class _Plugin:
    """A process that acts as the OpenCode plugin: it reads notices from the hook and acknowledges them."""

    def __init__(self, place: Place) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "backburner", "inbox", "--hook", "opencode"],
            cwd=place.cwd,
            env=place.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def write(self, **value: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        assert self.process.stdout.read() == ""
        self.process.stdout.close()


def test_the_plugin_receives_notices_of_its_sessions_and_acknowledges_them(place: Place) -> None:
    plugin = _Plugin(place)
    plugin.write(session="ses_1")
    other, mine = _ended(place, "opencode:ses_2"), _ended(place, "opencode:ses_1")
    message = plugin.read()
    assert message["session"] == "ses_1" and f">{mine}<" in message["text"] and f">{other}<" not in message["text"]
    plugin.write(told=message["notices"])
    plugin.write(session="ses_2")
    late = plugin.read()
    assert late["session"] == "ses_2" and other in late["text"]
    plugin.close()
    again = _Plugin(place)
    again.write(session="ses_1")
    again.write(session="ses_2")
    assert other in again.read()["text"], "it was not acknowledged, so it is delivered again"
    again.close()


def test_tasks_that_end_together_share_one_message(place: Place) -> None:
    ids = {_ended(place, "opencode:ses_1") for _ in range(5)}
    plugin = _Plugin(place)
    plugin.write(session="ses_1")
    message = plugin.read()
    assert all(task_id in message["text"] for task_id in ids)
    plugin.write(told=message["notices"])
    plugin.close()


def test_an_agent_is_notified_of_a_command_it_started_in_a_shell(place: Place) -> None:
    task_id = place.ok("run", "--yes", "--", "echo", "x", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    place.cli("wait", task_id)
    assert place.json("inbox") == [], "it is the agent's"
    assert task_id in _hook(place, "claude", _event("UserPromptSubmit")).stdout


def test_wait_acknowledges_the_notice_only_for_the_session_that_waited(place: Place) -> None:
    task_id = place.ok("run", "--yes", "--", "echo", "x", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    place.ok("wait", task_id)
    assert task_id in _hook(place, "claude", _event("UserPromptSubmit")).stdout, "a person's wait does not tell the agent"
    task_id = place.ok("run", "--yes", "--", "echo", "x", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    place.ok("wait", task_id, env={"BACKBURNER_SESSION": "claude:s1"})
    assert _hook(place, "claude", _event("UserPromptSubmit")).stdout == ""


def test_notices_that_do_not_fit_are_delivered_later(place: Place) -> None:
    place.configure((place.root / "config.toml").read_text() + "[commands]\nmax_concurrent = 20\n")
    env = {"BACKBURNER_SESSION": "claude:s1"}
    names = ["long-name-" + "x" * 150 + str(number) for number in range(30)]
    ids = {place.ok("run", "--yes", "--name", name, "--", "true", env=env).strip() for name in names}
    wait_until(lambda: len(place.json("list", "completed")) == 30, "all to end")  # type: ignore[arg-type]
    delivered: list[str] = []
    for _ in range(10):
        text = _hook(place, "claude", _event("UserPromptSubmit")).stdout
        assert len(text) < 9000
        delivered += re.findall("<task-id>(.*?)</task-id>", text)
    assert sorted(delivered) == sorted(ids)


def test_concurrent_hooks_deliver_a_notice_once(place: Place) -> None:
    task_id = _ended(place)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: _hook(place, "claude", _event("UserPromptSubmit")).stdout, range(4)))
    assert sum(task_id in text for text in outputs) == 1


def test_a_person_does_not_acknowledge_notices_of_a_running_agent(place: Place) -> None:
    with Raw(place, env={"CLAUDE_CODE_SESSION_ID": "s1"}) as client:
        task_id = client.ended()
        assert task_id in place.ok("inbox", "--read", "--ack")
        assert task_id in client.value("list_background_tasks")["notices"]


def test_the_proposing_session_is_notified_of_a_cancelled_proposal(place: Place) -> None:
    with Raw(place) as client:
        task_id = client.value("start_background_task", command="rm -r x", description="x")["task_id"]
        place.ok("cancel", task_id)
        assert "rejected by a person" in client.value("list_background_tasks")["notices"]


def test_the_brief_is_short_with_many_tasks(place: Place) -> None:
    assert place.ok("brief").strip() == "No background tasks."
    place.configure((place.root / "config.toml").read_text() + "[commands]\nmax_concurrent = 2\n")
    for number in range(30):
        place.run("sleep", "60", options=("--description", f"{number} " + "long words " * 30))
    proposal = place.cli("run", "--description", "needs approval", "--", "rm", "-r", "x").stdout.strip()
    text = place.ok("brief")
    assert len(text) <= 2001 and "30 at work" in text and "1 waiting for a person's approval" in text
    assert "more lines: backburner list" in text or proposal in text
    place.cli(
        "cancel", *[task["task_id"] for task in place.json("list", "pending")], *[task["task_id"] for task in place.json("list", "running")]
    )  # type: ignore[index]
