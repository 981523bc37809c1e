"""Hooks of agent clients: each notice is delivered once, to the session that started the task."""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import HomeCli, wait_until
from mcp_client import Raw

from backburner.core.models import ENGINE
from backburner.core.notice_text import NOTICE_PREFIX
from backburner.interfaces.cli.tasks import LIST_LIMIT
from backburner.interfaces.client_setup import wiring
from backburner.store.ledger import open_ledger
from backburner.testing.records import request


def _hook(home_cli: HomeCli, client: str, event: object, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "backburner", "inbox", "--hook", client],
        cwd=home_cli.cwd,
        env={**home_cli.environ, **env},
        input=event if isinstance(event, str) else json.dumps(event),
        capture_output=True,
        text=True,
        timeout=60,
    )


def _event(name: str, session: str = "s1", **more: object) -> dict[str, object]:
    return {"session_id": session, "hook_event_name": name, **more}


def _ended(home_cli: HomeCli, session: str = "claude:s1", *command: str) -> str:
    """The ID of a finished task with a pending notice for a session."""
    done = home_cli.cli("run", "--yes", "--", *(command or ("echo", "hello")), env={"BACKBURNER_SESSION": session})
    task_id = done.stdout.strip()
    wait_until(lambda: home_cli.status(task_id)["status"] in ("completed", "failed"), "the task to end")
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
def test_a_hook_passes_each_notice_to_the_model_once(home_cli: HomeCli, client: str, event: str) -> None:
    task_id = _ended(home_cli, f"{client}:s1")
    assert _hook(home_cli, client, _event(event, "other")).stdout == "", "not its own"
    output = json.loads(_hook(home_cli, client, _event(event)).stdout)["hookSpecificOutput"]
    context = output["additionalContext"]
    assert output["hookEventName"] == event and context.startswith(NOTICE_PREFIX) and task_id in context
    assert _hook(home_cli, client, _event(event)).stdout == ""
    assert home_cli.json("inbox") == []


def _frequent_hook(home_cli: HomeCli, event: dict[str, object], *, named: bool = True) -> tuple[str, bool]:
    """Run the hook after a tool call as `install` writes it; returns its output, and whether it started Backburner."""
    program = [sys.executable, "-m", "backburner", *(["--home", str(home_cli.root)] if named else [])]
    started = home_cli.cwd / "started"
    started.unlink(missing_ok=True)
    script = f'touch {started}; exec "$@"'
    environ = {**home_cli.environ, "BACKBURNER_HOME": "/nowhere"}  # at the time of the installation
    entries = wiring._hooks(environ, ("sh", "-c", script, "sh", *program), "claude", ("PostToolUse",), 10)
    command = str(entries.hooks["PostToolUse"]["command"])
    done = subprocess.run(
        command, shell=True, cwd=home_cli.cwd, env=home_cli.environ, input=json.dumps(event), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, started.exists()


def test_the_hook_after_a_tool_call_starts_no_interpreter_while_nothing_waits(home_cli: HomeCli) -> None:
    event = _event("PostToolUse")
    assert _frequent_hook(home_cli, event) == ("", True), "the first call"
    wait_until(lambda: _frequent_hook(home_cli, event) == ("", False), "the ledger to stay as it is")
    assert _frequent_hook(home_cli, event) == _frequent_hook(home_cli, event, named=False) == ("", False)
    task_id = _ended(home_cli)
    output, started = _frequent_hook(home_cli, event, named=False)
    assert started and task_id in output
    _ended(home_cli, "claude:other")
    assert [_frequent_hook(home_cli, event)[1] for _ in range(3)] == [True] * 3, "a notice waits for another session of this client"
    assert _hook(home_cli, "claude", _event("PostToolUse", "other")).stdout
    wait_until(lambda: _frequent_hook(home_cli, event) == ("", False), "the ledger to stay as it is")
    running = home_cli.ok("run", "--yes", "--", "sleep", "600").strip()
    assert [_frequent_hook(home_cli, event)[1] for _ in range(3)] == [True] * 3, "a command runs, so the engine must be supervised"
    home_cli.ok("cancel", running)


@pytest.mark.parametrize(("client", "event"), [("codex", "Stop"), ("gemini", "AfterAgent")])
def test_a_stop_hook_continues_the_agent_when_a_task_has_ended(home_cli: HomeCli, client: str, event: str) -> None:
    assert _hook(home_cli, client, _event(event)).stdout == ""
    task_id = _ended(home_cli, f"{client}:s1")
    output = json.loads(_hook(home_cli, client, _event(event)).stdout)
    assert output["decision"] == "block" and task_id in output["reason"]
    assert _hook(home_cli, client, _event(event)).stdout == ""


def test_claudes_stop_hook_uses_exit_code_2_and_stderr(home_cli: HomeCli) -> None:
    task_id = _ended(home_cli)
    done = _hook(home_cli, "claude", _event("Stop"))
    assert done.returncode == 2 and done.stdout == "" and task_id in done.stderr and done.stderr.startswith(NOTICE_PREFIX)
    assert _hook(home_cli, "claude", _event("Stop")).returncode == 0


def test_claudes_stop_hook_waits_for_open_tasks_and_then_wakes_claude(home_cli: HomeCli) -> None:
    attended = {"CLAUDE_CODE_SESSION_ATTENDED": "1", "CLAUDE_PID": str(os.getpid())}
    assert _hook(home_cli, "claude", _event("Stop"), **attended).returncode == 0, "nothing is open: it does not stay"
    task_id = home_cli.ok("run", "--yes", "--", "sleep", "1.5", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    waiting = subprocess.Popen(
        [sys.executable, "-m", "backburner", "inbox", "--hook", "claude"],
        cwd=home_cli.cwd,
        env={**home_cli.environ, **attended},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdin and waiting.stderr
    waiting.stdin.write(json.dumps(_event("Stop")))
    waiting.stdin.close()
    second = _hook(home_cli, "claude", _event("Stop"), **attended)
    codes, texts = (waiting.wait(30), second.returncode), waiting.stderr.read() + second.stderr
    waiting.stderr.close()
    assert sorted(codes) == [0, 2] and texts.count(f"- Background task {task_id} completed") == 1, (
        "one of the two hooks waits and delivers the notice"
    )
    assert _hook(home_cli, "claude", _event("Stop")).returncode == 0, "delivered once"


def test_the_stop_hook_does_not_delay_a_non_interactive_claude(home_cli: HomeCli) -> None:
    task_id = home_cli.ok("run", "--yes", "--", "sleep", "60", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    env = {"CLAUDE_CODE_SESSION_ATTENDED": "0", "CLAUDE_PID": str(os.getpid())}
    assert _hook(home_cli, "claude", _event("Stop"), **env).returncode == 0
    home_cli.ok("cancel", task_id)


def test_after_a_compaction_the_hook_repeats_the_open_work(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sleep", "60")
    output = json.loads(_hook(home_cli, "claude", _event("SessionStart", source="compact")).stdout)
    context = output["hookSpecificOutput"]["additionalContext"]
    assert task_id in context and len(context) <= 2000
    assert _hook(home_cli, "claude", _event("SessionStart", source="startup")).stdout == ""
    home_cli.ok("cancel", task_id)


def test_a_hook_delivers_notices_of_all_sessions_of_its_client_process(home_cli: HomeCli) -> None:
    """After /clear the hook has a new session ID while the server keeps the old one; both are children of one client."""
    with Raw(home_cli, "--client", "claude", env={"CLAUDE_CODE_SESSION_ID": "before"}) as client:
        task_id = client.ended()
        assert task_id in _hook(home_cli, "claude", _event("UserPromptSubmit", "after")).stdout


@pytest.mark.parametrize("event", ["", "nothing", "[]", "null", '{"session_id": 5}', "{" * 100_000, "\x00"])
def test_a_hook_with_invalid_input_prints_nothing(home_cli: HomeCli, event: str) -> None:
    done = _hook(home_cli, "claude", event)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class _Plugin:
    """A process that acts as the OpenCode plugin: it reads notices from the hook and acknowledges them."""

    def __init__(self, home_cli: HomeCli) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "backburner", "inbox", "--hook", "opencode"],
            cwd=home_cli.cwd,
            env=home_cli.environ,
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


def test_the_plugin_receives_notices_of_its_sessions_and_acknowledges_them(home_cli: HomeCli) -> None:
    plugin = _Plugin(home_cli)
    plugin.write(session="ses_1")
    other, mine = _ended(home_cli, "opencode:ses_2"), _ended(home_cli, "opencode:ses_1")
    message = plugin.read()
    assert message["session"] == "ses_1" and f">{mine}<" in message["text"] and f">{other}<" not in message["text"]
    plugin.write(told=message["notices"])
    plugin.write(session="ses_2")
    late = plugin.read()
    assert late["session"] == "ses_2" and other in late["text"]
    plugin.close()
    again = _Plugin(home_cli)
    again.write(session="ses_1")
    again.write(session="ses_2")
    assert other in again.read()["text"], "it was not acknowledged, so it is delivered again"
    again.close()


def test_tasks_that_end_together_share_one_message(home_cli: HomeCli) -> None:
    ids = {_ended(home_cli, "opencode:ses_1") for _ in range(5)}
    plugin = _Plugin(home_cli)
    plugin.write(session="ses_1")
    message = plugin.read()
    assert all(task_id in message["text"] for task_id in ids)
    plugin.write(told=message["notices"])
    plugin.close()


def test_an_agent_is_notified_of_a_command_it_started_in_a_shell(home_cli: HomeCli) -> None:
    task_id = home_cli.ok("run", "--yes", "--", "echo", "x", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    home_cli.cli("wait", task_id)
    assert home_cli.json("inbox") == [], "it is the agent's"
    assert task_id in _hook(home_cli, "claude", _event("UserPromptSubmit")).stdout


def test_wait_acknowledges_the_notice_only_for_the_session_that_waited(home_cli: HomeCli) -> None:
    task_id = home_cli.ok("run", "--yes", "--", "echo", "x", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    home_cli.ok("wait", task_id)
    assert task_id in _hook(home_cli, "claude", _event("UserPromptSubmit")).stdout, "a person's wait does not tell the agent"
    task_id = home_cli.ok("run", "--yes", "--", "echo", "x", env={"BACKBURNER_SESSION": "claude:s1"}).strip()
    home_cli.ok("wait", task_id, env={"BACKBURNER_SESSION": "claude:s1"})
    assert _hook(home_cli, "claude", _event("UserPromptSubmit")).stdout == ""


def test_notices_that_do_not_fit_are_delivered_later(home_cli: HomeCli) -> None:
    home_cli.configure((home_cli.root / "config.toml").read_text() + "[commands]\nmax_concurrent = 20\n")
    env = {"BACKBURNER_SESSION": "claude:s1"}
    names = ["long-name-" + "x" * 150 + str(number) for number in range(30)]
    ids = {home_cli.ok("run", "--yes", "--name", name, "--", "true", env=env).strip() for name in names}
    wait_until(lambda: len(home_cli.json("list", "completed")) == 30, "all to end")  # type: ignore[arg-type]
    delivered: list[str] = []
    for _ in range(10):
        text = _hook(home_cli, "claude", _event("UserPromptSubmit")).stdout
        assert len(text) < 9000
        delivered += re.findall(r"- Background task (\S+) completed", text)
    assert sorted(delivered) == sorted(ids)


def test_concurrent_hooks_deliver_a_notice_once(home_cli: HomeCli) -> None:
    task_id = _ended(home_cli)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: _hook(home_cli, "claude", _event("UserPromptSubmit")).stdout, range(4)))
    assert sum(task_id in text for text in outputs) == 1


def test_a_person_does_not_acknowledge_notices_of_a_running_agent(home_cli: HomeCli) -> None:
    with Raw(home_cli, env={"CLAUDE_CODE_SESSION_ID": "s1"}) as client:
        task_id = client.ended()
        assert task_id in home_cli.ok("inbox", "--read", "--ack")
        assert task_id in client.value("list_background_tasks")["notices"]


def test_the_proposing_session_is_notified_of_a_cancelled_proposal(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        task_id = client.value("start_background_task", command="rm -r x", description="x")["task_id"]
        home_cli.ok("cancel", task_id)
        assert "rejected by a person" in client.value("list_background_tasks")["notices"]


def test_the_brief_lists_scheduled_tasks_even_if_many_newer_ones_have_ended(home_cli: HomeCli) -> None:
    home_cli.ok("add", "later", "--at", "tomorrow 9am", "--", "echo", "hi")
    home_cli.ok("add", "often", "--every", "3h", "--", "echo", "hi")
    home_cli.ok("pause", "often")
    text = home_cli.ok("brief")
    assert "0 active, 0 waiting for a person's approval, 2 scheduled." in text
    assert re.search(r"^Scheduled:\n- task_\S+_often \(paused\) echo hi\n- task_\S+_later \(active, next in \d.*\) echo hi$", text, re.M)
    ledger, now = open_ledger(home_cli.home.ledger), time.time_ns() // 1_000_000
    for number in range(LIST_LIMIT):
        ledger.tasks.submit(
            request(("true",), str(home_cli.cwd), {}), project=str(home_cli.cwd), wanted_id=f"task_{number}", approval=None,
            reasons=(), runner=ENGINE, folder="tasks", now=now, expires_at=now + 10_000_000,
        )  # fmt: skip
        ledger.tasks.refuse(f"task_{number}", expired=False, now=now)
    ledger.close()
    with Raw(home_cli) as client:
        for text in (home_cli.ok("brief"), client.value("brief")["display"]):
            assert "2 scheduled" in text and "_later (active, next in" in text


def test_the_brief_is_short_with_many_tasks(home_cli: HomeCli) -> None:
    assert home_cli.ok("brief").strip() == "No background tasks."
    home_cli.configure((home_cli.root / "config.toml").read_text() + "[commands]\nmax_concurrent = 2\n")
    for number in range(30):
        home_cli.run("sleep", "60", options=("--description", f"{number} " + "long words " * 30))
    proposal = home_cli.cli("run", "--description", "needs approval", "--", "rm", "-r", "x").stdout.strip()
    text = home_cli.ok("brief")
    assert len(text) <= 2001 and "30 active" in text and "1 waiting for a person's approval" in text
    assert "more lines: backburner list" in text or proposal in text
    home_cli.cli(
        "cancel",
        *[task["task_id"] for task in home_cli.json("list", "pending")],
        *[task["task_id"] for task in home_cli.json("list", "running")],
    )  # type: ignore[index]
