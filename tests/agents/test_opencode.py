"""Agents in an OpenCode server, from the command line: answers, permissions, servers, crashes and notices.

The server is scripted and imitates the quirks of the real one.
"""

import base64
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CONFIG, HomeCli, wait_until

from backburner.core.models import ProcessId
from backburner.services.app import open_app
from backburner.system import processes as process

SCRIPTED_SERVER = Path(__file__).with_name("scripted_opencode.py")
INTERRUPTED = "You were interrupted in the middle of your work."
EXPIRED = "Session expired or was deleted. Start a new background_task to continue."


class FakeOpenCode:
    """The files and the recorded requests of the scripted servers of a home."""

    def __init__(self, home_cli: HomeCli) -> None:
        self.home_cli = home_cli
        self.data = home_cli.root.parent / "data" / "opencode"
        self.data.mkdir(parents=True)
        self._knobs: dict[str, Any] = {}

    def set(self, **knobs: Any) -> None:
        self._knobs |= knobs
        other = self.data / "knobs.new"
        other.write_text(json.dumps(self._knobs))
        other.replace(self.data / "knobs.json")

    @property
    def journal(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in (self.data / "journal.jsonl").read_text().splitlines(keepends=True) if line.endswith("\n")]
        return []

    def requests(self, method: str, pattern: str) -> list[dict[str, Any]]:
        """The answered requests with this method and path."""
        return [one for one in self.journal if one.get("method") == method and re.fullmatch(pattern, one["path"])]

    @property
    def prompts(self) -> list[dict[str, Any]]:
        return [one["body"] for one in self.requests("POST", "/session/[^/]+/prompt_async")]

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [one["body"] for one in self.requests("POST", "/permission/[^/]+/reply") if one["status"] == 200]

    @property
    def ran(self) -> list[str]:
        return [one["ran"] for one in self.journal if "ran" in one]

    @property
    def child(self) -> ProcessId | None:
        """The last started command, if it is still running."""
        pids = [one["child"] for one in self.journal if "child" in one]
        return process.identify(pids[-1]) if pids else None

    @property
    def sessions(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.data / "sessions").glob("*.json"))]

    @property
    def started(self) -> list[dict[str, Any]]:
        return [one for one in self.journal if "started" in one]

    @property
    def server(self) -> ProcessId:
        """The last started server."""
        found = process.identify(self.started[-1]["pid"])
        assert found is not None
        return found

    def user_texts(self, session: int = 0) -> list[str]:
        """The texts of the user messages of a session."""
        said = [one for one in self.sessions[session]["messages"] if one["info"]["role"] == "user"]
        return ["|".join(part["text"] for part in one["parts"]) for one in said]

    def wait_for_second_step(self) -> None:
        """Wait until the only session has completed its first step."""
        wait_until(lambda: self.sessions and len(self.sessions[0]["messages"]) == 3, "the second step")

    def tools(self, session: int = 0) -> list[dict[str, Any]]:
        """The states of the tool calls of a session."""
        return [part["state"] for one in self.sessions[session]["messages"] for part in one["parts"] if part["type"] == "tool"]

    def call(self, method: str, path: str) -> Any:
        """Send a request to the server that was started for the home."""
        (record,) = (self.home_cli.root / "opencode").glob("*.json")
        about = json.loads(record.read_text())
        word = base64.b64encode(f"opencode:{about['password']}".encode()).decode()
        request = urllib.request.Request(about["url"] + path, headers={"Authorization": f"Basic {word}"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


@pytest.fixture
def home(home_cli: HomeCli) -> Iterator[HomeCli]:
    """A home with a scripted OpenCode on its PATH."""
    folder = home_cli.root.parent / "bin"
    folder.mkdir()
    program = folder / "opencode"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(str(SCRIPTED_SERVER))} "$@"\n')
    program.chmod(0o755)
    home_cli.environ |= {"PATH": f"{folder}:{home_cli.environ['PATH']}", "XDG_DATA_HOME": str(home_cli.root.parent / "data")}
    yield home_cli
    home_cli.stop_all()


@pytest.fixture
def fake(home: HomeCli) -> Iterator[FakeOpenCode]:
    """The scripted server. Checks after each test that nothing was allowed permanently and no prompt replaced the session rules."""
    fake = FakeOpenCode(home)
    yield fake
    assert not [one for one in fake.replies if one["reply"] == "always"]
    assert not [one for one in fake.requests("POST", "/session/[^/]+/(prompt_async|message)") if "tools" in one["body"]]


def script(*steps: dict[str, Any]) -> str:
    return f"Please [[script: {json.dumps(steps)}]]"


def ask(
    home_cli: HomeCli, *steps: dict[str, Any], options: tuple[str, ...] = (), agent: str = "opencode", env: dict[str, str] | None = None
) -> str:
    return home_cli.ok("ask", "--agent", agent, *options, script(*steps), env=env).strip()


def bash(command: str, **about: Any) -> dict[str, Any]:
    return {"tool": "bash", "args": {"command": command}, **about}


def write(path: str, content: str) -> dict[str, Any]:
    return {"tool": "write", "args": {"filePath": path, "content": content}}


def settled(home_cli: HomeCli, task_id: str, *states: str) -> dict[str, Any]:
    wait_until(lambda: home_cli.status(task_id)["status"] in (states or ("completed", "failed", "cancelled")), f"{task_id} to settle")
    return home_cli.status(task_id)


def answered(home_cli: HomeCli, task_id: str, answer: str = "done") -> dict[str, Any]:
    """Wait for the answer of a task, check it, and return the status."""
    ended = settled(home_cli, task_id)
    assert ended["status"] == "completed", ended
    assert home_cli.log(task_id).decode().strip() == answer
    return ended


def activity(home_cli: HomeCli, task_id: str) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        return json.loads((home_cli.folder(task_id) / ".activity.json").read_text())
    return {}


def notices(home_cli: HomeCli, task_id: str) -> list[str]:
    return [one["text"] for one in home_cli.json("inbox", "--read") if one["task_id"] == task_id]  # type: ignore[union-attr, index, call-overload]


def agent_process(home_cli: HomeCli) -> ProcessId:
    """The running agent process."""
    wait_until(lambda: home_cli.hosts("agents.process"), "an agent process")
    return home_cli.hosts("agents.process")[0]


def kill(*processes: ProcessId) -> None:
    for one in processes:
        process.send(one, signal.SIGKILL)
    wait_until(lambda: not any(map(process.is_alive, processes)), "the processes to end")


def records(home_cli: HomeCli) -> list[Path]:
    return list((home_cli.root / "opencode").glob("*.json"))


# Answers


def test_an_opencode_agent_answers_and_resumes_in_the_same_session(home: HomeCli, fake: FakeOpenCode) -> None:
    task_id = ask(home, {"say": "It is done.", "tokens": 120, "cost": 0.25})
    ended = answered(home, task_id, "It is done.")
    assert ended["type"] == "agent" and fake.sessions[0]["info"]["directory"] == str(home.cwd)
    assert home.ok("resume", task_id, script({"say": "Still done."}), "--wait") == "Still done.\n"
    assert len(fake.sessions) == 1 and [text.split(" ")[0] for text in fake.user_texts()] == ["Please", "Please"]
    assert [one["info"]["role"] for one in fake.sessions[0]["messages"]] == ["user", "assistant"] * 2, "the history is kept"
    first, second = fake.prompts
    assert first["messageID"].startswith("msg_") and first["messageID"] != second["messageID"]
    assert all(part["id"].startswith("prt_") for one in (first, second) for part in one["parts"])


def test_progress_shows_tools_and_usage(home: HomeCli, fake: FakeOpenCode) -> None:
    fake.set(twice=True)
    gate = home.cwd.parent / "go"
    steps = [bash("ls", tokens=100, cost=0.5), {"tool": "glob", "args": {}, "tokens": 20, "cost": 0.25}]
    task_id = ask(home, *steps, {"until": str(gate), "say": "done", "tokens": 3, "cost": 0.125})
    wait_until(lambda: activity(home, task_id).get("tokens") == 120, "two steps to be seen")
    seen = activity(home, task_id)
    assert (seen["tools"], seen["recent"], seen["cost"]) == (2, ["bash", "glob"], 0.75), "duplicate events are counted once"
    gate.touch()
    answered(home, task_id)
    wait_until(lambda: activity(home, task_id).get("tokens") == 123, "the last step, which is written after the end")
    seen = activity(home, task_id)
    assert (seen["tools"], seen["cost"]) == (2, 0.875)
    assert notices(home, task_id)


def test_the_idle_event_is_enough_to_detect_the_end(home: HomeCli, fake: FakeOpenCode) -> None:
    fake.set(status="busy")
    answered(home, ask(home, bash("ls"), {"say": "done"}))


def test_the_end_is_detected_without_the_idle_event(home: HomeCli, fake: FakeOpenCode) -> None:
    fake.set(mute=["session.idle"])
    answered(home, ask(home, {"say": "done"}))
    assert len(fake.prompts) == 1 == len(fake.user_texts())


def test_changes_during_a_lost_event_stream_are_not_missed(home: HomeCli, fake: FakeOpenCode) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, bash("ls"), {"tool": "toy_add", "args": {"a": 17}, "until": str(gate)}, {"say": "done"})
    fake.wait_for_second_step()
    fake.set(cut=1, deaf=True)
    gate.touch()
    wait_until(lambda: "toy_add" in str(home.status(task_id)["error"]), "the request to be visible")
    error = home.status(task_id)["error"]
    home.ok("approve", task_id)
    answered(home, task_id)
    assert fake.tools()[1]["output"] == "toy_add was used" and len(fake.user_texts()) == 1
    assert "17" in str(error), "the arguments are shown although the event was missed"


def test_a_lost_prompt_is_sent_again_and_processed_once(home: HomeCli, fake: FakeOpenCode) -> None:
    for task_id in [ask(home, {how: 1, "say": "done"}) for how in ("lose", "drop")] + [ask(home, {"slow": 2, "say": "done"})]:
        answered(home, task_id)
    for session in fake.sessions:
        assert [one["info"]["role"] for one in session["messages"]] == ["user", "assistant"] and len(session["messages"][0]["parts"]) == 1
    said = [(one["messageID"], one["parts"][0]["id"]) for one in fake.prompts]
    assert sorted(map(said.count, set(said))) == [1, 2, 2], "with the same ids, and only if it was lost"


def test_a_provider_error_is_reported_without_another_prompt(home: HomeCli, fake: FakeOpenCode) -> None:
    task_id = ask(home, {"error": 400})
    ended = settled(home, task_id)
    assert ended["status"] == "failed" and "APIError: scripted error 400" in str(ended["error"])
    assert len(fake.user_texts()) == 1, "at the first idle event the error is not stored yet, and a prompt sent then would be lost"
    assert len(notices(home, task_id)) == 1


def test_a_provider_that_keeps_failing_fails_the_run(home: HomeCli, fake: FakeOpenCode) -> None:
    answered(home, ask(home, {"retry": 2, "say": "done"}))
    task_id = ask(home, {"retry": 1000, "say": "never"})
    ended = settled(home, task_id)
    assert ended["status"] == "failed" and "provider failed" in str(ended["error"]) and "overloaded" in str(ended["error"])
    assert len(fake.requests("POST", "/session/[^/]+/abort")) == 1
    wait_until(lambda: fake.call("GET", f"/session/status?directory={home.cwd}") == {}, "the session to be idle")


def test_many_agents_run_at_once(home: HomeCli, fake: FakeOpenCode) -> None:
    home.configure(f"{CONFIG}[models]\nmax_concurrent = 20\n")
    gate = home.cwd.parent / "go"
    tasks = [ask(home, {"until": str(gate), "say": f"done {n}"}) for n in range(20)]
    wait_until(lambda: len([one for one in fake.sessions if len(one["messages"]) == 2]) == 20, "all agents to run")
    assert len(fake.started) == 1
    gate.touch()
    wait_until(lambda: len(home.json("list", "completed", "--limit", "0")) == 20, "all to end")  # type: ignore[arg-type]
    assert [(home.folder(task_id) / "output.log").read_text().splitlines()[-1] for task_id in tasks] == [f"done {n}" for n in range(20)]


def test_a_used_up_budget_stops_the_session_until_it_is_approved(home: HomeCli, fake: FakeOpenCode) -> None:
    gate = home.cwd.parent / "go"
    steps = [bash("ls", tokens=100), bash("ls", until=str(gate), tokens=10), {"say": "done", "tokens": 10}]
    task_id = ask(home, *steps, options=("--budget", "tokens=100"))
    assert "100 of 100 tokens" in str(settled(home, task_id, "waiting")["error"])
    assert len(fake.requests("POST", "/session/[^/]+/abort")) == 1
    gate.touch()
    home.ok("approve", task_id)
    answered(home, task_id)


# Permissions


def test_allowed_commands_need_no_approval(home: HomeCli, fake: FakeOpenCode) -> None:
    (home.cwd / "a.txt").write_text("inside")
    answered(home, ask(home, bash("ls"), {"tool": "read", "args": {"filePath": "a.txt"}}, write("new.txt", "made"), {"say": "done"}))
    assert [one["reply"] for one in fake.replies] == ["once"] * 3 and (home.cwd / "new.txt").read_text() == "made"
    assert [one["output"] for one in fake.tools()] == ["a.txt\n", "inside", "Wrote file successfully."]


@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_a_command_waits_for_its_approval(home: HomeCli, fake: FakeOpenCode, answer: str) -> None:
    (home.cwd / "old.txt").write_text("x")
    task_id = ask(home, bash("rm old.txt"), {"say": "done"})
    assert "run `rm old.txt`" in str(settled(home, task_id, "waiting")["error"]) and fake.ran == []
    home.ok(answer, task_id, *(["--reason", "It is needed."] if answer == "reject" else []))
    answered(home, task_id)
    assert (home.cwd / "old.txt").exists() == (answer == "reject") and len(fake.user_texts()) == 1
    assert [one["reply"] for one in fake.replies] == ["once" if answer == "approve" else "reject"]
    if answer == "reject":
        error = fake.tools()[0]["error"]
        assert "The user rejected this." in error and "Their reason: It is needed." in error, (
            "the rejection reaches the agent, and its turn continues"
        )


def test_rejecting_one_of_two_requests_leaves_no_open_request(home: HomeCli, fake: FakeOpenCode) -> None:
    for name in ("a.txt", "b.txt"):
        (home.cwd / name).write_text("x")
    task_id = ask(home, {"tools": [bash("rm a.txt"), bash("rm b.txt")]}, {"say": "done"})
    settled(home, task_id, "waiting")
    wait_until(lambda: len(fake.call("GET", f"/permission?directory={home.cwd}")) == 2, "both requests to be pending")
    home.ok("reject", task_id)

    def has_pending_request() -> bool:
        """Whether OpenCode still waits for an answer; one rejection rejects all pending requests."""
        return bool(fake.call("GET", f"/permission?directory={home.cwd}"))

    def settled_again() -> bool:
        status = home.status(task_id)["status"]
        return status == "completed" or (status == "waiting" and has_pending_request())

    wait_until(settled_again, "its end, or a question that is one")
    if home.status(task_id)["status"] == "waiting":
        home.ok("reject", task_id)
    answered(home, task_id)
    assert fake.ran == [] and any(
        "The user rejected this." in text for text in [*fake.user_texts(), *(one["error"] for one in fake.tools())]
    )


def test_two_simultaneous_requests_are_decided_separately(home: HomeCli, fake: FakeOpenCode) -> None:
    for name in ("a.txt", "b.txt"):
        (home.cwd / name).write_text("x")
    task_id = ask(home, {"tools": [bash("rm a.txt"), bash("rm b.txt")]}, {"say": "done"})
    first = str(settled(home, task_id, "waiting")["error"])
    home.ok("approve", task_id)
    wait_until(lambda: home.status(task_id)["error"] not in (first, None), "the second request")
    home.ok("approve", task_id)
    answered(home, task_id)
    assert sorted(fake.ran) == ["rm a.txt", "rm b.txt"] and not list(home.cwd.iterdir())


def test_each_of_many_waiting_agents_gets_its_decision(home: HomeCli, fake: FakeOpenCode) -> None:
    tasks = []
    for n in range(10):
        (home.cwd / f"{n}.txt").write_text("x")
        tasks.append(ask(home, bash(f"rm {n}.txt"), {"say": "done"}))
        settled(home, tasks[-1], "waiting")
    home.ok("reject", tasks[0])
    for task_id in tasks[1:]:
        home.ok("approve", task_id)
    for task_id in tasks:
        answered(home, task_id)
    assert [path.name for path in home.cwd.iterdir()] == ["0.txt"] and len(fake.replies) == 10
    assert [len(fake.user_texts(n)) for n in range(10)] == [1] * 10, "no agent was interrupted"


def test_session_rules_ask_for_everything_and_keep_the_users_deny_rules(home: HomeCli, fake: FakeOpenCode) -> None:
    (home.cwd / "old.txt").write_text("x")
    forbidden = {"permission": "bash", "pattern": "rm *", "action": "deny"}
    fake.set(
        rules=[{"permission": "*", "pattern": "*", "action": "allow"}, forbidden, {"permission": "bash", "pattern": "ls", "action": "ask"}]
    )
    answered(
        home, ask(home, bash("rm old.txt"), {"tool": "task", "args": {}}, {"tool": "question", "args": {"question": "?"}}, {"say": "done"})
    )
    assert (home.cwd / "old.txt").exists() and fake.replies == []
    assert all("a rule which prevents you" in one["error"] for one in fake.tools())
    (made,) = fake.requests("POST", "/session")
    rules = [(one["permission"], one["pattern"], one["action"]) for one in made["body"]["permission"]]
    assert rules[0] == ("*", "*", "ask") and rules[-1] == ("bash", "rm *", "deny")
    assert {("task", "*", "deny"), ("question", "*", "deny"), ("bash", "*", "ask")} <= set(rules)
    assert not [one for one in rules if one[2] == "allow" and one[0] in ("*", "bash", "edit", "read", "webfetch")]


def test_a_file_change_needs_approval_until_the_project_is_trusted(home: HomeCli, fake: FakeOpenCode) -> None:
    (home.cwd / "a.txt").write_text("one")
    task_id = ask(home, write("a.txt", "two"), {"say": "done"})
    waiting = str(settled(home, task_id, "waiting")["error"])
    assert "a.txt" in waiting and "+two" in waiting and (home.cwd / "a.txt").read_text() == "one"
    home.ok("approve", task_id)
    answered(home, task_id)
    assert (home.cwd / "a.txt").read_text() == "two"
    home.ok("trust", ".")
    answered(home, ask(home, write("a.txt", "three"), {"say": "done"}))
    assert (home.cwd / "a.txt").read_text() == "three"


def test_file_changes_in_a_worktree_need_no_approval(home: HomeCli, fake: FakeOpenCode) -> None:
    (home.cwd / "a.txt").write_text("one\n")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *words], cwd=home.cwd, check=True, timeout=30)
    task_id = ask(home, write("a.txt", "two\n"), {"say": "done"}, options=("--worktree",))
    assert settled(home, task_id)["status"] == "completed" and home.log(task_id).startswith(b"done\n\n1 file changed")
    assert (home.cwd / "a.txt").read_text() == "one\n" and "+two" in (home.folder(task_id) / "work" / "changes.diff").read_text()
    assert fake.sessions[0]["info"]["directory"] != str(home.cwd)


def test_access_outside_the_project_needs_approval(home: HomeCli, fake: FakeOpenCode) -> None:
    outside = home.cwd.parent / "outside.txt"
    outside.write_text("the outside")
    task_id = ask(home, {"tool": "read", "args": {"filePath": str(outside)}}, {"say": "done"})
    assert f"read {outside}" in str(settled(home, task_id, "waiting")["error"])
    home.ok("approve", task_id)
    answered(home, task_id)
    assert fake.tools()[0]["output"] == "the outside"


def test_a_command_is_checked_in_the_directory_in_which_it_would_run(home: HomeCli, fake: FakeOpenCode) -> None:
    outside = home.cwd.parent / "outside"
    outside.mkdir()
    for folder in (home.cwd, outside):
        (folder / "a.txt").write_text(folder.name)
    command = {"tool": "bash", "args": {"command": "cat a.txt", "workdir": str(outside)}}
    task_id = ask(home, bash("cat a.txt"), command, {"say": "done"})
    waiting = settled(home, task_id, "waiting", "completed", "failed")
    assert "run `cat a.txt`" in str(waiting["error"]) and fake.ran == ["cat a.txt"], "access outside the project needs approval"
    home.ok("approve", task_id)
    answered(home, task_id)
    assert [one["output"] for one in fake.tools()] == ["project", "outside"]


@pytest.mark.parametrize("arguments", [{"a": 17}, {"type": "sync", "a": 17}], ids=["plain", "like an event that is skipped"])
def test_an_unknown_tool_needs_approval_and_its_arguments_are_shown(home: HomeCli, fake: FakeOpenCode, arguments: dict[str, Any]) -> None:
    task_id = ask(home, {"tool": "toy_add", "args": arguments}, {"say": "done"})
    assert "toy_add" in (error := str(settled(home, task_id, "waiting")["error"]))
    assert '"a": 17' in error, error
    home.ok("reject", task_id)
    answered(home, task_id)
    assert "The user rejected this." in fake.tools()[0]["error"]


def test_a_request_that_cannot_be_listed_waits_without_affecting_others(home: HomeCli, fake: FakeOpenCode) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, {"tool": "webfetch", "args": {"url": "http://example.org/"}}, {"say": "done"})
    other = ask(home, bash("ls"), {"until": str(gate), "say": "mine"})
    assert "http://example.org/" in str(settled(home, task_id, "waiting")["error"])
    wait_until(lambda: len(fake.requests("GET", "/session/status")) >= 2, "a status request")
    count = len(fake.requests("GET", "/session/status"))
    wait_until(lambda: len(fake.requests("GET", "/session/status")) >= count + 2, "another status request")
    assert not fake.requests("POST", "/session/[^/]+/abort"), "neither this session nor the other one in the same directory is aborted"
    gate.touch()
    home.ok("approve", task_id)
    answered(home, task_id)
    answered(home, other, "mine")


def test_a_missed_request_that_cannot_be_listed_is_requested_again(home: HomeCli, fake: FakeOpenCode) -> None:
    gate = home.cwd.parent / "go"
    fetch = {"tool": "webfetch", "args": {"url": "http://example.org/"}}
    task_id = ask(home, bash("ls"), {**fetch, "until": str(gate)}, fetch, {"say": "done"})
    fake.wait_for_second_step()
    fake.set(cut=1, deaf=True)
    gate.touch()

    def has_pending_request() -> bool:
        """Whether the request is pending: it makes the list of requests fail."""
        with contextlib.suppress(urllib.error.HTTPError):
            fake.call("GET", f"/permission?directory={home.cwd}")
        return fake.requests("GET", "/permission")[-1]["status"] == 400

    wait_until(has_pending_request, "a request during the lost event stream")
    fake.set(deaf=False)
    ended = settled(home, task_id, "waiting", "failed", "completed")
    assert ended["status"] == "waiting", f"it must request permission again: {ended['error']}"
    home.ok("approve", task_id)
    answered(home, task_id)


def test_a_question_to_the_user_is_rejected(home: HomeCli, fake: FakeOpenCode) -> None:
    task_id = ask(home, {"tool": "question", "args": {"question": "Which?", "anyway": True}}, {"say": "done"})
    ended = settled(home, task_id)
    assert len(fake.requests("POST", "/question/[^/]+/reject")) == 1 and ended["status"] in ("completed", "failed")
    assert not fake.call("GET", f"/question?directory={home.cwd}")


# Cancelling


def test_cancel_stops_the_agent_and_its_command(home: HomeCli, fake: FakeOpenCode) -> None:
    task_id = ask(home, bash("sleep 300"), {"say": "never"})
    wait_until(lambda: fake.child, "the command to run")
    child = fake.child
    home.ok("cancel", task_id)
    assert settled(home, task_id)["status"] == "cancelled" and not process.is_alive(child)
    assert len(fake.requests("POST", "/session/[^/]+/abort")) == 1


def test_an_agent_that_waits_for_approval_can_be_cancelled(home: HomeCli, fake: FakeOpenCode) -> None:
    (home.cwd / "old.txt").write_text("x")
    task_id = ask(home, bash("rm old.txt"), {"say": "never"})
    settled(home, task_id, "waiting")
    home.ok("cancel", task_id)
    assert settled(home, task_id)["status"] == "cancelled"
    wait_until(lambda: fake.requests("POST", "/session/[^/]+/abort"), "the session to be aborted")
    wait_until(lambda: fake.call("GET", f"/session/status?directory={home.cwd}") == {}, "the session to be idle")
    assert (home.cwd / "old.txt").exists() and fake.replies == []


# Servers of the user


class UserServer:
    """A server that the user has started, on its own port."""

    def __init__(self, home_cli: HomeCli, fake: FakeOpenCode, password: str = "") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._env = {name: value for name, value in home_cli.environ.items() if name != "BACKBURNER_HOME"}
        self._env |= {"OPENCODE_SERVER_PASSWORD": password} if password else {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [sys.executable, "-S", str(SCRIPTED_SERVER), "serve", "--hostname", "127.0.0.1", "--port", str(self.port)]
        self._process = subprocess.Popen(words, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def configure(self, home_cli: HomeCli, more: str = "") -> None:
        home_cli.configure(f'{CONFIG}[agents.mine]\ntype = "opencode"\nurl = "{self.url}"\n{more}')


@pytest.fixture
def user_server(home: HomeCli, fake: FakeOpenCode) -> Iterator[UserServer]:
    user_server = UserServer(home, fake)
    yield user_server
    home.stop_all()
    user_server.kill()


def test_a_user_server_is_used_with_its_password_and_not_stopped(home: HomeCli, fake: FakeOpenCode) -> None:
    user_server = UserServer(home, fake, "secret")
    user_server.configure(home, 'password_env = "MY_WORD"\n')
    fake.set(boot=1.5)
    user_server.start()
    try:
        home.environ["MY_WORD"] = "secret"
        answered(home, ask(home, {"say": "done"}, agent="mine"))
        home.stop_all()
        assert process.is_alive(fake.server) and not records(home)
        home.environ["MY_WORD"] = "wrong"
        ended = settled(home, ask(home, {"say": "never"}, agent="mine"))
        assert ended["status"] == "failed"
        assert str(ended["error"]).startswith(f"the OpenCode server at {user_server.url} requires a password: see password_env")
    finally:
        home.stop_all()
        user_server.kill()


def test_a_missing_server_gives_a_one_line_error(home: HomeCli, fake: FakeOpenCode, user_server: UserServer) -> None:
    user_server.configure(home)
    ended = settled(home, ask(home, {"say": "never"}, agent="mine"))
    assert ended["error"] == f"no OpenCode server answers at {user_server.url}: start it with `opencode serve --port {user_server.port}`"


def test_a_user_server_may_restart_during_a_turn(home: HomeCli, fake: FakeOpenCode, user_server: UserServer) -> None:
    fake.set(boot=0)
    user_server.configure(home)
    user_server.start()
    gate = home.cwd.parent / "go"
    task_id = ask(home, bash("ls"), {"until": str(gate), "say": "done"}, agent="mine")
    fake.wait_for_second_step()
    user_server.kill()
    gate.touch()
    user_server.start()
    answered(home, task_id)
    first, second = fake.user_texts()
    assert "script" in first and second.startswith(INTERRUPTED) and len(notices(home, task_id)) == 1


def test_a_server_that_hangs_for_a_while_is_waited_for(home: HomeCli, fake: FakeOpenCode, user_server: UserServer) -> None:
    user_server.configure(home)
    user_server.start()
    gate = home.cwd.parent / "go"
    task_id = ask(home, bash("ls"), {"until": str(gate), "say": "done"}, agent="mine")
    fake.wait_for_second_step()
    fake.set(refuse=True, cut=1)
    wait_until(lambda: len([one for one in fake.journal if one.get("refused") == "/global/health"]) > 1, "repeated health checks")
    gate.touch()
    wait_until(lambda: fake.sessions[0]["messages"][-1]["info"].get("finish") == "stop", "the agent to answer meanwhile")
    fake.set(refuse=False)
    answered(home, task_id)
    assert len(fake.user_texts()) == 1, "the agent was not interrupted"


# Servers that Backburner starts


def start_two_agents(home_cli: HomeCli, fake: FakeOpenCode) -> tuple[Path, str, str]:
    """Start an agent that waits for approval, and one that runs until a file exists."""
    gate = home_cli.cwd.parent / "go"
    (home_cli.cwd / "old.txt").write_text("x")
    waiting = ask(home_cli, bash("rm old.txt"), bash("rm old.txt"), {"say": "done"})
    running = ask(home_cli, bash("ls"), {"until": str(gate), "say": "done"})
    settled(home_cli, waiting, "waiting")
    wait_until(lambda: len(fake.ran) == 1 and len(activity(home_cli, running).get("recent", [])) == 1, "the other agent to run")
    return gate, waiting, running


def test_tasks_with_the_same_environment_share_a_server(home: HomeCli, fake: FakeOpenCode) -> None:
    gate = home.cwd.parent / "go"
    step = {"until": str(gate), "say": "done"}
    tasks = [ask(home, step), ask(home, step), ask(home, step, env={"FAKE_API_KEY": "another"})]
    wait_until(lambda: len(fake.prompts) == 3, "all agents to run")
    assert sorted(one["key"] for one in fake.started) == ["", "another"]
    pids = [one["pid"] for one in fake.requests("POST", "/session/[^/]+/prompt_async")]
    assert sorted(map(pids.count, set(pids))) == [1, 2]
    gate.touch()
    for task_id in tasks:
        answered(home, task_id)


def test_an_idle_agent_process_exits_and_stops_its_server(home: HomeCli, fake: FakeOpenCode) -> None:
    home.configure(f"{CONFIG}[agents]\nidle_exit_seconds = 0.5\n")
    answered(home, ask(home, {"say": "done"}))
    wait_until(lambda: not process.identify(fake.started[0]["pid"]) and not records(home), "the server to end")
    wait_until(lambda: not home.hosts("agents.process"), "the agent process to exit")


def test_a_server_is_stopped_after_its_agent_process_died(home: HomeCli, fake: FakeOpenCode) -> None:
    answered(home, ask(home, {"say": "done"}))
    server = fake.server
    home.configure(f"{CONFIG}[agents]\nidle_exit_seconds = 0.5\n")
    kill(agent_process(home))
    wait_until(lambda: not process.is_alive(server) and not records(home), "the server to end")
    assert len(fake.started) == 1


def test_a_killed_server_is_restarted_and_the_agent_continues(home: HomeCli, fake: FakeOpenCode) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, bash("ls"), {"until": str(gate), "say": "done"})
    fake.wait_for_second_step()
    kill(fake.server)
    gate.touch()
    answered(home, task_id)
    first, second = fake.user_texts()
    assert "script" in first and second.startswith(INTERRUPTED) and len(fake.started) == 2
    assert fake.ran == ["ls"] and len(notices(home, task_id)) == 1
    wait_until(lambda: activity(home, task_id)["tokens"] == 4, "the usage to be counted")
    assert activity(home, task_id)["tools"] == 1, "earlier tool calls are counted once"


def test_agents_survive_a_killed_agent_process_and_the_next_one_follows_them(home: HomeCli, fake: FakeOpenCode) -> None:
    gate, waiting, running = start_two_agents(home, fake)
    late = ask(home, {"slow": 3, "say": "done"})
    wait_until(lambda: len(fake.prompts) == 3, "the third prompt")
    kill(agent_process(home))
    gate.touch()
    home.ok("approve", waiting)
    wait_until(lambda: not (home.cwd / "old.txt").exists(), "the approval to reach the step that requested it")
    answered(home, running)
    answered(home, late)
    settled(home, waiting, "waiting")
    home.ok("reject", waiting)
    answered(home, waiting)
    assert fake.ran.count("rm old.txt") == 1, "an approval is valid for one step"
    assert len(fake.started) == 1 and [len(fake.user_texts(n)) for n in range(3)] == [1, 1, 1], "no prompt is repeated"
    assert [len(one["messages"]) for one in fake.sessions].count(2) == 1, "a new turn is answered once"
    for task_id in (waiting, running, late):
        assert len(notices(home, task_id)) == 1 and home.status(task_id)["run_count"] == 1


def test_agents_continue_after_agent_process_and_server_are_both_killed(home: HomeCli, fake: FakeOpenCode) -> None:
    gate, waiting, running = start_two_agents(home, fake)
    kill(agent_process(home), fake.server)
    gate.touch()
    home.ok("approve", waiting)
    wait_until(lambda: not (home.cwd / "old.txt").exists(), "the approved step to run when it is requested again")
    for task_id in (waiting, running):
        answered(home, task_id)
        assert len(notices(home, task_id)) == 1 and home.status(task_id)["run_count"] == 1
    assert len(fake.started) == 2 and sorted(fake.ran) == ["ls", "rm old.txt"]
    prompts = sorted(text.split("\n")[0] for n in (0, 1) for text in fake.user_texts(n)[1:])
    assert len(prompts) == 2 and prompts[0].startswith("The user approved your request") and prompts[1].startswith(INTERRUPTED)


def test_a_deleted_session_cannot_be_resumed(home: HomeCli, fake: FakeOpenCode) -> None:
    task_id = ask(home, {"say": "done"})
    answered(home, task_id)
    fake.call("DELETE", f"/session/{fake.sessions[0]['info']['id']}")
    home.ok("resume", task_id, "more")
    ended = settled(home, task_id)
    assert (ended["status"], ended["error"]) == ("failed", EXPIRED) and len(fake.prompts) == 1


def test_deleting_a_session_during_a_turn_fails_the_run(home: HomeCli, fake: FakeOpenCode) -> None:
    task_id = ask(home, {"until": "/nowhere/at/all", "say": "never"})
    wait_until(lambda: fake.sessions and len(fake.sessions[0]["messages"]) == 2, "the agent to run")
    session = fake.sessions[0]["info"]["id"]
    fake.call("POST", f"/session/{session}/abort")
    fake.call("DELETE", f"/session/{session}")
    assert settled(home, task_id)["status"] == "failed"


# -- notices


def test_a_running_agent_gets_its_notices_once(home: HomeCli, fake: FakeOpenCode) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, {"until": str(gate), "say": "done"})
    wait_until(lambda: fake.prompts, "the agent to run")
    other = home.ok("run", "--yes", "--", "echo", "finished", env={"BACKBURNER_SESSION": f"agent:{task_id}"}).strip()
    wait_until(lambda: fake.requests("POST", "/session/[^/]+/message"), "the notice to be sent")
    (message,) = [one["body"] for one in fake.requests("POST", "/session/[^/]+/message")]
    assert message["noReply"] is True and message["parts"][0]["synthetic"] is True and other in fake.user_texts()[1]
    gate.touch()
    answered(home, task_id)
    assert home.ok("resume", task_id, script({"say": "more"}), "--wait") == "more\n"
    assert sum(other in text for text in fake.user_texts()) == 1, "the notice is sent once"


def test_notices_from_before_a_resume_come_with_the_prompt(home: HomeCli, fake: FakeOpenCode) -> None:
    task_id = ask(home, {"say": "done"})
    answered(home, task_id)
    other = home.ok("run", "--yes", "--", "echo", "finished", env={"BACKBURNER_SESSION": f"agent:{task_id}"}).strip()
    settled(home, other)
    assert home.ok("resume", task_id, script({"say": "more"}), "--wait") == "more\n"
    assert other in fake.user_texts()[1] and "Automatic notice" in fake.user_texts()[1] and len(fake.user_texts()) == 2


def test_a_notice_is_not_repeated_after_a_kill_before_its_acknowledgement(home: HomeCli, fake: FakeOpenCode) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, {"until": str(gate), "say": "done"})
    record = home.folder(task_id) / "conversation.json"
    wait_until(lambda: fake.prompts and not json.loads(record.read_text())["pending"], "the agent to run")
    fake.set(hold="/message")
    other = home.ok("run", "--yes", "--", "echo", "finished", env={"BACKBURNER_SESSION": f"agent:{task_id}"}).strip()
    wait_until(lambda: fake.requests("POST", "/session/[^/]+/message"), "the notice to be sent")
    kill(agent_process(home))
    fake.set(hold="")
    with open_app(str(home.root), dict(home.environ)) as app:
        wait_until(lambda: not app.inbox.pending(f"agent:{task_id}"), "the notice to be acknowledged")
    gate.touch()
    answered(home, task_id)
    assert sum(other in text for text in fake.user_texts()) == 1


def test_a_notice_in_a_prompt_is_not_repeated_after_a_kill(home: HomeCli, fake: FakeOpenCode) -> None:
    task_id = ask(home, {"say": "done"})
    answered(home, task_id)
    other = home.ok("run", "--yes", "--", "echo", "finished", env={"BACKBURNER_SESSION": f"agent:{task_id}"}).strip()
    settled(home, other)
    fake.set(hold="/prompt_async")
    home.ok("resume", task_id, script({"say": "more"}))
    wait_until(lambda: len(fake.prompts) == 2, "the notice to be sent")
    kill(agent_process(home))
    fake.set(hold="")
    answered(home, task_id, "more")
    with open_app(str(home.root), dict(home.environ)) as app:
        assert not app.inbox.pending(f"agent:{task_id}")
    assert sum(other in text for text in fake.user_texts()) == 1


@pytest.mark.parametrize("killed", [False, True], ids=["notified", "killed before acknowledging"])
def test_a_session_in_a_user_server_is_notified_once(home: HomeCli, fake: FakeOpenCode, user_server: UserServer, killed: bool) -> None:
    fake.set(boot=0)
    user_server.configure(home)
    user_server.start()
    wait_until(lambda: fake.started, "the server")
    made = json.loads(urllib.request.urlopen(f"{user_server.url}/session?directory={home.cwd}", data=b"{}", timeout=60).read())
    session = f"opencode:{made['id']}"
    fake.set(hold="/prompt_async" if killed else "")
    ids = [home.ok("run", "--yes", "--", "echo", word, env={"BACKBURNER_SESSION": session}).strip() for word in ("one", "two")]
    wait_until(lambda: fake.requests("POST", "/session/[^/]+/prompt_async"), "the notice to be sent")
    if killed:
        kill(agent_process(home))
        fake.set(hold="")
    with open_app(str(home.root), dict(home.environ)) as app:
        wait_until(lambda: not app.inbox.pending(session), "the notice to be acknowledged", 60)
    text = "|".join(fake.user_texts())
    assert all(text.count(f"<task-id>{task_id}</task-id>") == 1 for task_id in ids), text


# Setup


def test_the_check_does_not_prompt_the_model(home: HomeCli, fake: FakeOpenCode) -> None:
    checked = json.loads(home.cli("agents", "--check", "--json").stdout)
    assert [one["problem"] for one in checked if one["name"] == "opencode"] == [""]
    assert len(fake.started) == 1 and not fake.prompts and not fake.sessions and not records(home)
    wait_until(lambda: not process.identify(fake.started[0]["pid"]), "the server to end")


def test_without_the_program_the_error_says_how_to_install_it(home: HomeCli, fake: FakeOpenCode) -> None:
    os.unlink(home.root.parent / "bin" / "opencode")
    path = os.pathsep.join(folder for folder in home.environ["PATH"].split(os.pathsep) if not os.path.exists(f"{folder}/opencode"))
    done = home.cli("ask", "--agent", "opencode", "Hello", env={"PATH": path})
    assert done.returncode == 2 and "not on the PATH" in done.stderr and "npm install -g opencode-ai" in done.stderr
    assert home.json("list") == []


# Further cases


def test_a_check_does_not_stop_a_server_in_use(home: HomeCli, fake: FakeOpenCode) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, bash("ls"), {"say": "done", "until": str(gate)})
    fake.wait_for_second_step()
    server = fake.server
    checked = json.loads(home.cli("agents", "--check", "--json").stdout)
    assert [one["problem"] for one in checked if one["name"] == "opencode"] == [""]
    assert process.is_alive(server) and fake.server == server
    gate.touch()
    answered(home, task_id)


@pytest.mark.parametrize("word", ["approve", "reject"])
def test_a_decision_after_a_killed_agent_process_reaches_the_waiting_step(home: HomeCli, fake: FakeOpenCode, word: str) -> None:
    (home.cwd / "a.txt").write_text("x")
    task_id = ask(home, bash("rm a.txt"), {"say": "done"})
    settled(home, task_id, "waiting")
    kill(agent_process(home))
    home.ok(word, task_id)
    answered(home, task_id)
    assert (home.cwd / "a.txt").exists() == (word == "reject")
    assert [one["reply"] for one in fake.replies] == ["once" if word == "approve" else "reject"], "the request is answered once"


def test_an_agent_that_is_silent_for_too_long_fails(home: HomeCli, fake: FakeOpenCode) -> None:
    home.configure(f"{CONFIG}[models]\ntimeout_seconds = 1\n")
    task_id = ask(home, {"say": "never", "until": str(home.cwd.parent / "never")})
    ended = settled(home, task_id)
    assert ended["status"] == "failed" and "silent for too long" in str(ended["error"])
    assert fake.requests("POST", "/session/[^/]+/abort")


def test_waiting_for_approval_does_not_count_against_the_time_budget(home: HomeCli, fake: FakeOpenCode) -> None:
    (home.cwd / "a.txt").write_text("x")
    task_id = ask(home, bash("rm a.txt"), {"say": "done"}, options=("--budget", "seconds=8"))
    assert "rm a.txt" in str(settled(home, task_id, "waiting")["error"])
    time.sleep(8)  # the whole time budget
    home.ok("approve", task_id)
    answered(home, task_id)


def test_an_incomplete_answer_fails_the_run(home: HomeCli, fake: FakeOpenCode) -> None:
    ended = settled(home, ask(home, {"say": "and so on", "finish": "length"}))
    assert ended["status"] == "failed" and "length" in str(ended["error"]) and "and so on" in str(ended["error"])


def test_a_recurring_task_uses_a_new_session_per_run_and_deletes_it(home: HomeCli, fake: FakeOpenCode) -> None:
    report = json.dumps({"report": True, "state": "fine", "message": "All is well."})
    home.ok("add", "look", "--every", "1h", "--agent", "opencode", "--prompt", script({"say": f"I looked.\n{report}"}))
    for _ in range(2):
        home.ok("run-now", "look")
        wait_until(lambda: home.status("look")["runs"] and home.status("look")["runs"][0]["status"] == "completed", "a run")  # type: ignore[index, call-overload]
    runs = home.status("look")["runs"]
    assert len(runs) == 2 and "All is well." in home.ok("logs", "look")  # type: ignore[arg-type]
    assert fake.sessions == [] and len(fake.requests("DELETE", "/session/[^/]+")) == 2, "the sessions of a recurring task are deleted"
    assert "JSON" in fake.prompts[0]["parts"][0]["text"]
