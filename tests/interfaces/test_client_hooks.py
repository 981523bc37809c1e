"""What an agent's hooks print, and what is told where: each notice once, to the session that asked."""

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


def _hook(place: Place, client: str, asked: object, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "backburner", "inbox", "--hook", client],
        cwd=place.cwd,
        env={**place.environ, **env},
        input=asked if isinstance(asked, str) else json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=60,
    )


def _event(name: str, session: str = "s1", **more: object) -> dict[str, object]:
    return {"session_id": session, "hook_event_name": name, **more}


def _ended(place: Place, session: str = "claude:s1", *command: str) -> str:
    """A task that ended and is owed to a session."""
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
def test_a_hook_tells_the_model_what_ended_once(place: Place, client: str, event: str) -> None:
    task_id = _ended(place, f"{client}:s1")
    assert _hook(place, client, _event(event, "other")).stdout == "", "not its own"
    told = json.loads(_hook(place, client, _event(event)).stdout)["hookSpecificOutput"]
    assert told["hookEventName"] == event and told["additionalContext"].startswith(NOTICE_PREFIX) and task_id in told["additionalContext"]
    assert _hook(place, client, _event(event)).stdout == ""
    assert place.json("inbox") == []


@pytest.mark.parametrize(("client", "event"), [("codex", "Stop"), ("gemini", "AfterAgent")])
def test_an_agent_that_stops_goes_on_where_something_ended(place: Place, client: str, event: str) -> None:
    assert _hook(place, client, _event(event)).stdout == ""
    task_id = _ended(place, f"{client}:s1")
    said = json.loads(_hook(place, client, _event(event)).stdout)
    assert said["decision"] == "block" and task_id in said["reason"]
    assert _hook(place, client, _event(event)).stdout == ""


def test_claude_is_told_by_its_stop_hook_in_its_own_way(place: Place) -> None:
    task_id = _ended(place)
    done = _hook(place, "claude", _event("Stop"))
    assert done.returncode == 2 and done.stdout == "" and task_id in done.stderr and done.stderr.startswith(NOTICE_PREFIX)
    assert _hook(place, "claude", _event("Stop")).returncode == 0


def test_claudes_stop_hook_waits_for_work_that_is_open_and_then_wakes_it(place: Place) -> None:
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
    assert sorted(codes) == [0, 2] and texts.count(f"<task-id>{task_id}<") == 1, "one of the two waits, and tells"
    assert _hook(place, "claude", _event("Stop")).returncode == 0, "told once"


def test_an_unattended_claude_is_not_kept(place: Place) -> None:
    task_id = place.ok("run", "--yes", "--", "sleep", "60", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    env = {"CLAUDE_CODE_SESSION_ATTENDED": "0", "CLAUDE_PID": str(os.getpid())}
    assert _hook(place, "claude", _event("Stop"), **env).returncode == 0
    place.ok("cancel", task_id)


def test_after_a_compaction_the_open_work_is_said_again(place: Place) -> None:
    task_id = place.run("sleep", "60")
    told = json.loads(_hook(place, "claude", _event("SessionStart", source="compact")).stdout)
    assert task_id in told["hookSpecificOutput"]["additionalContext"] and len(told["hookSpecificOutput"]["additionalContext"]) <= 2000
    assert _hook(place, "claude", _event("SessionStart", source="startup")).stdout == ""
    place.ok("cancel", task_id)


def test_a_hook_of_the_same_client_process_speaks_for_its_sessions(place: Place) -> None:
    """After /clear a hook has another session's id, and the server still the old one; both are children of one client."""
    with Raw(place, "--client", "claude", env={"CLAUDE_CODE_SESSION_ID": "before"}) as client:
        task_id = client.ended()
        assert task_id in _hook(place, "claude", _event("UserPromptSubmit", "after")).stdout


@pytest.mark.parametrize("asked", ["", "nothing", "[]", "null", '{"session_id": 5}', "{" * 100_000, "\x00"])
def test_whatever_a_hook_is_given_it_says_nothing_that_is_not_owed(place: Place, asked: str) -> None:
    done = _hook(place, "claude", asked)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class _Plugin:
    """The other end of the hook that OpenCode's plugin keeps."""

    def __init__(self, place: Place) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "backburner", "inbox", "--hook", "opencode"],
            cwd=place.cwd,
            env=place.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, **value: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        assert self.process.stdout.read() == ""
        self.process.stdout.close()


def test_the_plugin_is_told_of_its_sessions_and_says_what_it_passed_on(place: Place) -> None:
    plugin = _Plugin(place)
    plugin.say(session="ses_1")
    other, mine = _ended(place, "opencode:ses_2"), _ended(place, "opencode:ses_1")
    told = plugin.hear()
    assert told["session"] == "ses_1" and f">{mine}<" in told["text"] and f">{other}<" not in told["text"]
    plugin.say(told=told["notices"])
    plugin.say(session="ses_2")
    late = plugin.hear()
    assert late["session"] == "ses_2" and other in late["text"]
    plugin.close()
    again = _Plugin(place)
    again.say(session="ses_1")
    again.say(session="ses_2")
    assert other in again.hear()["text"], "it was not said to have been passed on, so it is still owed"
    again.close()


def test_what_ends_together_is_told_together(place: Place) -> None:
    ids = {_ended(place, "opencode:ses_1") for _ in range(5)}
    plugin = _Plugin(place)
    plugin.say(session="ses_1")
    told = plugin.hear()
    assert all(task_id in told["text"] for task_id in ids)
    plugin.say(told=told["notices"])
    plugin.close()


def test_a_command_that_an_agent_runs_itself_is_told_to_it(place: Place) -> None:
    task_id = place.ok("run", "--yes", "--", "echo", "x", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    place.cli("wait", task_id)
    assert place.json("inbox") == [], "it is the agent's"
    assert task_id in _hook(place, "claude", _event("UserPromptSubmit")).stdout


def test_waiting_is_being_told_for_who_waited_alone(place: Place) -> None:
    task_id = place.ok("run", "--yes", "--", "echo", "x", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    place.ok("wait", task_id)
    assert task_id in _hook(place, "claude", _event("UserPromptSubmit")).stdout, "a person's wait does not tell the agent"
    task_id = place.ok("run", "--yes", "--", "echo", "x", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    place.ok("wait", task_id, env={"BACKBURNER_SESSION": "claude:s1"})
    assert _hook(place, "claude", _event("UserPromptSubmit")).stdout == ""


def test_more_than_fits_is_told_by_and_by_and_nothing_is_left_out(place: Place) -> None:
    place.configure((place.root / "config.toml").read_text() + "[commands]\nmax_concurrent = 20\n")
    env = {"BACKBURNER_SESSION": "claude:s1"}
    names = ["long-name-" + "x" * 150 + str(number) for number in range(30)]
    ids = {place.ok("run", "--yes", "--name", name, "--", "true", env=env).strip() for name in names}
    wait_until(lambda: len(place.json("list", "completed")) == 30, "all to end")  # type: ignore[arg-type]
    told: list[str] = []
    for _ in range(10):
        text = _hook(place, "claude", _event("UserPromptSubmit")).stdout
        assert len(text) < 9000
        told += re.findall("<task-id>(.*?)</task-id>", text)
    assert sorted(told) == sorted(ids)


def test_two_that_tell_at_the_same_moment_do_not_tell_the_same(place: Place) -> None:
    task_id = _ended(place)
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda _: _hook(place, "claude", _event("UserPromptSubmit")).stdout, range(4)))
    assert sum(task_id in text for text in said) == 1


def test_what_a_living_agent_is_owed_is_not_acknowledged_by_a_person(place: Place) -> None:
    with Raw(place, env={"CLAUDE_CODE_SESSION_ID": "s1"}) as client:
        task_id = client.ended()
        assert task_id in place.ok("inbox", "--read", "--ack")
        assert task_id in client.value("list_background_tasks")["notices"]


def test_a_cancelled_proposal_is_told_to_who_proposed_it(place: Place) -> None:
    with Raw(place) as client:
        task_id = client.value("start_background_task", command="rm -r x", description="x")["task_id"]
        place.ok("cancel", task_id)
        assert "rejected by a person" in client.value("list_background_tasks")["notices"]


def test_the_brief_is_short_whatever_there_is(place: Place) -> None:
    assert place.ok("brief").strip() == "No background tasks."
    place.configure((place.root / "config.toml").read_text() + "[commands]\nmax_concurrent = 2\n")
    for number in range(30):
        place.run("sleep", "60", options=("--description", f"{number} " + "long words " * 30))
    asked = place.cli("run", "--description", "to be asked", "--", "rm", "-r", "x").stdout.strip()
    text = place.ok("brief")
    assert len(text) <= 2001 and "30 at work" in text and "1 waiting for a person's approval" in text
    assert "more lines: backburner list" in text or asked in text
    place.cli(
        "cancel", *[task["task_id"] for task in place.json("list", "pending")], *[task["task_id"] for task in place.json("list", "running")]
    )  # type: ignore[index]
