"""Agents in an OpenCode server, from the command line: answers, permissions, and everything that can end in the middle of a turn.

The server is scripted; its quirks are those of the real one.
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
from conftest import CONFIG, Place, wait_until

from backburner.core.models import ProcessId
from backburner.services.app import open_app
from backburner.system import processes as process

FAKE = Path(__file__).with_name("scripted_opencode.py")
GO_ON = "You were interrupted in the middle of your work."
EXPIRED = "Session expired or was deleted. Start a new background_task to continue."


class Fake:
    """What the scripted servers of a place have on disk, and what they were asked."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.data = place.root.parent / "data" / "opencode"
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

    def asked(self, method: str, pattern: str) -> list[dict[str, Any]]:
        """The requests of a kind that were answered."""
        return [one for one in self.journal if one.get("method") == method and re.fullmatch(pattern, one["path"])]

    @property
    def prompts(self) -> list[dict[str, Any]]:
        return [one["body"] for one in self.asked("POST", "/session/[^/]+/prompt_async")]

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [one["body"] for one in self.asked("POST", "/permission/[^/]+/reply") if one["status"] == 200]

    @property
    def ran(self) -> list[str]:
        return [one["ran"] for one in self.journal if "ran" in one]

    @property
    def child(self) -> ProcessId | None:
        """The command that was started last, where it still runs."""
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
        """The server that was started last."""
        found = process.identify(self.started[-1]["pid"])
        assert found is not None
        return found

    def users(self, session: int = 0) -> list[str]:
        """What was said in a session, by us."""
        said = [one for one in self.sessions[session]["messages"] if one["info"]["role"] == "user"]
        return ["|".join(part["text"] for part in one["parts"]) for one in said]

    def reaches_its_second_step(self) -> None:
        """Wait until the first step of the only session is over, with what it was allowed to do."""
        wait_until(lambda: self.sessions and len(self.sessions[0]["messages"]) == 3, "the second step")

    def tools(self, session: int = 0) -> list[dict[str, Any]]:
        """The states of the tools that were called."""
        return [part["state"] for one in self.sessions[session]["messages"] for part in one["parts"] if part["type"] == "tool"]

    def call(self, method: str, path: str) -> Any:
        """A request of somebody else's, to the server that was started for the home."""
        (record,) = (self.place.root / "opencode").glob("*.json")
        about = json.loads(record.read_text())
        word = base64.b64encode(f"opencode:{about['password']}".encode()).decode()
        request = urllib.request.Request(about["url"] + path, headers={"Authorization": f"Basic {word}"}, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


@pytest.fixture
def home(place: Place) -> Iterator[Place]:
    """A home on whose PATH there is an OpenCode."""
    folder = place.root.parent / "bin"
    folder.mkdir()
    program = folder / "opencode"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(str(FAKE))} "$@"\n')
    program.chmod(0o755)
    place.environ |= {"PATH": f"{folder}:{place.environ['PATH']}", "XDG_DATA_HOME": str(place.root.parent / "data")}
    yield place
    place.stop_all()


@pytest.fixture
def fake(home: Place) -> Iterator[Fake]:
    """The scripted server. Whatever a test does, nothing is ever allowed for good, and no prompt replaces the rules of a session."""
    fake = Fake(home)
    yield fake
    assert not [one for one in fake.replies if one["reply"] == "always"]
    assert not [one for one in fake.asked("POST", "/session/[^/]+/(prompt_async|message)") if "tools" in one["body"]]


def script(*steps: dict[str, Any]) -> str:
    return f"Please [[script: {json.dumps(steps)}]]"


def ask(
    place: Place, *steps: dict[str, Any], options: tuple[str, ...] = (), agent: str = "opencode", env: dict[str, str] | None = None
) -> str:
    return place.ok("ask", "--agent", agent, *options, script(*steps), env=env).strip()


def bash(command: str, **about: Any) -> dict[str, Any]:
    return {"tool": "bash", "args": {"command": command}, **about}


def write(path: str, content: str) -> dict[str, Any]:
    return {"tool": "write", "args": {"filePath": path, "content": content}}


def settled(place: Place, task_id: str, *states: str) -> dict[str, Any]:
    wait_until(lambda: place.status(task_id)["status"] in (states or ("completed", "failed", "cancelled")), f"{task_id} to settle", 40)
    return place.status(task_id)


def answered(place: Place, task_id: str, answer: str = "done") -> dict[str, Any]:
    """The status of a task that has ended with an answer."""
    ended = settled(place, task_id)
    assert ended["status"] == "completed", ended
    assert place.log(task_id).decode().strip() == answer
    return ended


def activity(place: Place, task_id: str) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        return json.loads((place.folder(task_id) / ".activity.json").read_text())
    return {}


def notices(place: Place, task_id: str) -> list[str]:
    return [one["text"] for one in place.json("inbox", "--read") if one["task_id"] == task_id]  # type: ignore[union-attr, index, call-overload]


def host(place: Place) -> ProcessId:
    """The agent process at work."""
    wait_until(lambda: place.hosts("agents.process"), "an agent process")
    return place.hosts("agents.process")[0]


def kill(*processes: ProcessId) -> None:
    for one in processes:
        process.send(one, signal.SIGKILL)
    wait_until(lambda: not any(map(process.is_alive, processes)), "them to be dead")


def records(place: Place) -> list[Path]:
    return list((place.root / "opencode").glob("*.json"))


# -- answers


def test_an_opencode_agent_answers_and_resumes_in_the_same_session(home: Place, fake: Fake) -> None:
    task_id = ask(home, {"say": "It is done.", "tokens": 120, "cost": 0.25})
    ended = answered(home, task_id, "It is done.")
    assert ended["type"] == "agent" and fake.sessions[0]["info"]["directory"] == str(home.cwd)
    assert home.ok("resume", task_id, script({"say": "Still done."}), "--wait") == "Still done.\n"
    assert len(fake.sessions) == 1 and [text.split(" ")[0] for text in fake.users()] == ["Please", "Please"]
    assert [one["info"]["role"] for one in fake.sessions[0]["messages"]] == ["user", "assistant"] * 2, "with its history"
    first, second = fake.prompts
    assert first["messageID"].startswith("msg_") and first["messageID"] != second["messageID"]
    assert all(part["id"].startswith("prt_") for one in (first, second) for part in one["parts"])


def test_progress_shows_tools_and_usage(home: Place, fake: Fake) -> None:
    fake.set(twice=True)
    gate = home.cwd.parent / "go"
    steps = [bash("ls", tokens=100, cost=0.5), {"tool": "glob", "args": {}, "tokens": 20, "cost": 0.25}]
    task_id = ask(home, *steps, {"until": str(gate), "say": "done", "tokens": 3, "cost": 0.125})
    wait_until(lambda: activity(home, task_id).get("tokens") == 120, "two steps to be seen")
    seen = activity(home, task_id)
    assert (seen["tools"], seen["recent"], seen["cost"]) == (2, ["bash", "glob"], 0.75), "each event came twice"
    gate.touch()
    answered(home, task_id)
    seen = activity(home, task_id)
    assert (seen["tools"], seen["tokens"], seen["cost"]) == (2, 123, 0.875)
    assert notices(home, task_id)


def test_the_idle_event_is_enough_to_detect_the_end(home: Place, fake: Fake) -> None:
    fake.set(status="busy")
    answered(home, ask(home, bash("ls"), {"say": "done"}))


def test_the_end_is_detected_without_the_idle_event(home: Place, fake: Fake) -> None:
    fake.set(mute=["session.idle"])
    answered(home, ask(home, {"say": "done"}))
    assert len(fake.prompts) == 1 == len(fake.users())


def test_changes_during_a_lost_event_stream_are_not_missed(home: Place, fake: Fake) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, bash("ls"), {"tool": "toy_add", "args": {"a": 17}, "until": str(gate)}, {"say": "done"})
    fake.reaches_its_second_step()
    fake.set(cut=1, deaf=True)
    gate.touch()
    wait_until(lambda: "toy_add" in str(home.status(task_id)["error"]), "what it asks for to be seen")
    error = home.status(task_id)["error"]
    home.ok("approve", task_id)
    answered(home, task_id)
    assert fake.tools()[1]["output"] == "toy_add was used" and len(fake.users()) == 1
    assert "17" in str(error), "what the tool is given is shown to the person, though nobody heard it"


def test_a_lost_prompt_is_sent_again_and_processed_once(home: Place, fake: Fake) -> None:
    for task_id in [ask(home, {how: 1, "say": "done"}) for how in ("lose", "drop")] + [ask(home, {"slow": 2, "say": "done"})]:
        answered(home, task_id)
    for session in fake.sessions:
        assert [one["info"]["role"] for one in session["messages"]] == ["user", "assistant"] and len(session["messages"][0]["parts"]) == 1
    said = [(one["messageID"], one["parts"][0]["id"]) for one in fake.prompts]
    assert sorted(map(said.count, set(said))) == [1, 2, 2], "with the same ids, and only where it was not heard"


def test_a_provider_error_is_reported_without_another_prompt(home: Place, fake: Fake) -> None:
    task_id = ask(home, {"error": 400})
    ended = settled(home, task_id)
    assert ended["status"] == "failed" and "APIError: scripted error 400" in str(ended["error"])
    assert len(fake.users()) == 1, "at the first idle the error is not written down yet, and what is said then is lost"
    assert len(notices(home, task_id)) == 1


def test_a_provider_that_keeps_failing_fails_the_run(home: Place, fake: Fake) -> None:
    answered(home, ask(home, {"retry": 2, "say": "done"}))
    task_id = ask(home, {"retry": 1000, "say": "never"})
    ended = settled(home, task_id)
    assert ended["status"] == "failed" and "provider failed" in str(ended["error"]) and "overloaded" in str(ended["error"])
    assert len(fake.asked("POST", "/session/[^/]+/abort")) == 1
    wait_until(lambda: fake.call("GET", f"/session/status?directory={home.cwd}") == {}, "the session to be idle")


def test_many_agents_run_at_once(home: Place, fake: Fake) -> None:
    home.configure(f"{CONFIG}[models]\nmax_concurrent = 20\n")
    gate = home.cwd.parent / "go"
    tasks = [ask(home, {"until": str(gate), "say": f"done {n}"}) for n in range(20)]
    wait_until(lambda: len([one for one in fake.sessions if len(one["messages"]) == 2]) == 20, "all to be at work", 40)
    assert len(fake.started) == 1
    gate.touch()
    wait_until(lambda: len(home.json("list", "completed", "--limit", "0")) == 20, "all to end", 40)  # type: ignore[arg-type]
    assert [(home.folder(task_id) / "output.log").read_text().splitlines()[-1] for task_id in tasks] == [f"done {n}" for n in range(20)]


def test_a_used_up_budget_stops_the_session_until_it_is_approved(home: Place, fake: Fake) -> None:
    gate = home.cwd.parent / "go"
    steps = [bash("ls", tokens=100), bash("ls", until=str(gate), tokens=10), {"say": "done", "tokens": 10}]
    task_id = ask(home, *steps, options=("--budget", "tokens=100"))
    assert "100 of 100 tokens" in str(settled(home, task_id, "waiting")["error"])
    assert len(fake.asked("POST", "/session/[^/]+/abort")) == 1
    gate.touch()
    home.ok("approve", task_id)
    answered(home, task_id)


# -- permissions


def test_allowed_commands_need_no_approval(home: Place, fake: Fake) -> None:
    (home.cwd / "a.txt").write_text("inside")
    answered(home, ask(home, bash("ls"), {"tool": "read", "args": {"filePath": "a.txt"}}, write("new.txt", "made"), {"say": "done"}))
    assert [one["reply"] for one in fake.replies] == ["once"] * 3 and (home.cwd / "new.txt").read_text() == "made"
    assert [one["output"] for one in fake.tools()] == ["a.txt\n", "inside", "Wrote file successfully."]


@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_a_command_waits_for_its_approval(home: Place, fake: Fake, answer: str) -> None:
    (home.cwd / "old.txt").write_text("x")
    task_id = ask(home, bash("rm old.txt"), {"say": "done"})
    assert "run `rm old.txt`" in str(settled(home, task_id, "waiting")["error"]) and fake.ran == []
    home.ok(answer, task_id)
    answered(home, task_id)
    assert (home.cwd / "old.txt").exists() == (answer == "reject") and len(fake.users()) == 1
    assert [one["reply"] for one in fake.replies] == ["once" if answer == "approve" else "reject"]
    if answer == "reject":
        assert "The user rejected this." in fake.tools()[0]["error"], "it is told, and its turn goes on"


def test_rejecting_one_of_two_requests_leaves_no_open_request(home: Place, fake: Fake) -> None:
    for name in ("a.txt", "b.txt"):
        (home.cwd / name).write_text("x")
    task_id = ask(home, {"tools": [bash("rm a.txt"), bash("rm b.txt")]}, {"say": "done"})
    settled(home, task_id, "waiting")
    wait_until(lambda: len(fake.call("GET", f"/permission?directory={home.cwd}")) == 2, "both to be asked for")
    home.ok("reject", task_id)

    def asked() -> bool:
        """Whether OpenCode still waits for an answer: with one, it rejects all that is pending."""
        return bool(fake.call("GET", f"/permission?directory={home.cwd}"))

    def settled_again() -> bool:
        status = home.status(task_id)["status"]
        return status == "completed" or (status == "waiting" and asked())

    wait_until(settled_again, "its end, or a question that is one", 15)
    if home.status(task_id)["status"] == "waiting":
        home.ok("reject", task_id)
    answered(home, task_id)
    assert fake.ran == [] and any("The user rejected this." in text for text in [*fake.users(), *(one["error"] for one in fake.tools())])


def test_two_simultaneous_requests_are_decided_separately(home: Place, fake: Fake) -> None:
    for name in ("a.txt", "b.txt"):
        (home.cwd / name).write_text("x")
    task_id = ask(home, {"tools": [bash("rm a.txt"), bash("rm b.txt")]}, {"say": "done"})
    first = str(settled(home, task_id, "waiting")["error"])
    home.ok("approve", task_id)
    wait_until(lambda: home.status(task_id)["error"] not in (first, None), "the second to be asked for")
    home.ok("approve", task_id)
    answered(home, task_id)
    assert sorted(fake.ran) == ["rm a.txt", "rm b.txt"] and not list(home.cwd.iterdir())


def test_each_of_many_waiting_agents_gets_its_decision(home: Place, fake: Fake) -> None:
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
    assert [len(fake.users(n)) for n in range(10)] == [1] * 10, "none was interrupted"


def test_session_rules_ask_for_everything_and_keep_the_users_deny_rules(home: Place, fake: Fake) -> None:
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
    (made,) = fake.asked("POST", "/session")
    rules = [(one["permission"], one["pattern"], one["action"]) for one in made["body"]["permission"]]
    assert rules[0] == ("*", "*", "ask") and rules[-1] == ("bash", "rm *", "deny")
    assert {("task", "*", "deny"), ("question", "*", "deny"), ("bash", "*", "ask")} <= set(rules)
    assert not [one for one in rules if one[2] == "allow" and one[0] in ("*", "bash", "edit", "read", "webfetch")]


def test_a_file_change_needs_approval_until_the_project_is_trusted(home: Place, fake: Fake) -> None:
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


def test_file_changes_in_a_worktree_need_no_approval(home: Place, fake: Fake) -> None:
    (home.cwd / "a.txt").write_text("one\n")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *words], cwd=home.cwd, check=True, timeout=30)
    task_id = ask(home, write("a.txt", "two\n"), {"say": "done"}, options=("--worktree",))
    assert settled(home, task_id)["status"] == "completed" and home.log(task_id).startswith(b"done\n\n1 file changed")
    assert (home.cwd / "a.txt").read_text() == "one\n" and "+two" in (home.folder(task_id) / "work" / "changes.diff").read_text()
    assert fake.sessions[0]["info"]["directory"] != str(home.cwd)


def test_access_outside_the_project_needs_approval(home: Place, fake: Fake) -> None:
    outside = home.cwd.parent / "outside.txt"
    outside.write_text("the outside")
    task_id = ask(home, {"tool": "read", "args": {"filePath": str(outside)}}, {"say": "done"})
    assert f"read {outside}" in str(settled(home, task_id, "waiting")["error"])
    home.ok("approve", task_id)
    answered(home, task_id)
    assert fake.tools()[0]["output"] == "the outside"


def test_a_command_is_checked_in_the_directory_in_which_it_would_run(home: Place, fake: Fake) -> None:
    outside = home.cwd.parent / "outside"
    outside.mkdir()
    for folder in (home.cwd, outside):
        (folder / "a.txt").write_text(folder.name)
    command = {"tool": "bash", "args": {"command": "cat a.txt", "workdir": str(outside)}}
    task_id = ask(home, bash("cat a.txt"), command, {"say": "done"})
    waiting = settled(home, task_id, "waiting", "completed", "failed")
    assert "run `cat a.txt`" in str(waiting["error"]) and fake.ran == ["cat a.txt"], "what is outside the project is asked for"
    home.ok("approve", task_id)
    answered(home, task_id)
    assert [one["output"] for one in fake.tools()] == ["project", "outside"]


@pytest.mark.parametrize("given", [{"a": 17}, {"type": "sync", "a": 17}], ids=["plain", "like an event that is skipped"])
def test_an_unknown_tool_needs_approval_and_its_arguments_are_shown(home: Place, fake: Fake, given: dict[str, Any]) -> None:
    task_id = ask(home, {"tool": "toy_add", "args": given}, {"say": "done"})
    assert "toy_add" in (asked := str(settled(home, task_id, "waiting")["error"]))
    assert '"a": 17' in asked, asked
    home.ok("reject", task_id)
    answered(home, task_id)
    assert "The user rejected this." in fake.tools()[0]["error"]


def test_a_request_that_cannot_be_listed_waits_without_affecting_others(home: Place, fake: Fake) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, {"tool": "webfetch", "args": {"url": "http://example.org/"}}, {"say": "done"})
    other = ask(home, bash("ls"), {"until": str(gate), "say": "mine"})
    assert "http://example.org/" in str(settled(home, task_id, "waiting")["error"])
    wait_until(lambda: len(fake.asked("GET", "/session/status")) >= 2, "a look at how it stands")
    looked = len(fake.asked("GET", "/session/status"))
    wait_until(lambda: len(fake.asked("GET", "/session/status")) >= looked + 2, "and another one")
    assert not fake.asked("POST", "/session/[^/]+/abort"), "neither it nor the other one in the same folder is stopped"
    gate.touch()
    home.ok("approve", task_id)
    answered(home, task_id)
    answered(home, other, "mine")


def test_a_missed_request_that_cannot_be_listed_is_requested_again(home: Place, fake: Fake) -> None:
    gate = home.cwd.parent / "go"
    fetch = {"tool": "webfetch", "args": {"url": "http://example.org/"}}
    task_id = ask(home, bash("ls"), {**fetch, "until": str(gate)}, fetch, {"say": "done"})
    fake.reaches_its_second_step()
    fake.set(cut=1, deaf=True)
    gate.touch()

    def asked() -> bool:
        """Whether the request is there: it makes the list of all of them fail."""
        with contextlib.suppress(urllib.error.HTTPError):
            fake.call("GET", f"/permission?directory={home.cwd}")
        return fake.asked("GET", "/permission")[-1]["status"] == 400

    wait_until(asked, "it to ask while nobody listens")
    fake.set(deaf=False)
    ended = settled(home, task_id, "waiting", "failed", "completed")
    assert ended["status"] == "waiting", f"it has to ask again: {ended['error']}"
    home.ok("approve", task_id)
    answered(home, task_id)


def test_a_question_to_the_user_is_rejected(home: Place, fake: Fake) -> None:
    task_id = ask(home, {"tool": "question", "args": {"question": "Which?", "anyway": True}}, {"say": "done"})
    ended = settled(home, task_id)
    assert len(fake.asked("POST", "/question/[^/]+/reject")) == 1 and ended["status"] in ("completed", "failed")
    assert not fake.call("GET", f"/question?directory={home.cwd}")


# -- cancelling


def test_cancel_stops_the_agent_and_its_command(home: Place, fake: Fake) -> None:
    task_id = ask(home, bash("sleep 300"), {"say": "never"})
    wait_until(lambda: fake.child, "its command to run")
    child = fake.child
    home.ok("cancel", task_id)
    assert settled(home, task_id)["status"] == "cancelled" and not process.is_alive(child)
    assert len(fake.asked("POST", "/session/[^/]+/abort")) == 1


def test_an_agent_that_waits_for_approval_can_be_cancelled(home: Place, fake: Fake) -> None:
    (home.cwd / "old.txt").write_text("x")
    task_id = ask(home, bash("rm old.txt"), {"say": "never"})
    settled(home, task_id, "waiting")
    home.ok("cancel", task_id)
    assert settled(home, task_id)["status"] == "cancelled"
    wait_until(lambda: fake.asked("POST", "/session/[^/]+/abort"), "its session to be stopped")
    wait_until(lambda: fake.call("GET", f"/session/status?directory={home.cwd}") == {}, "the session to be idle")
    assert (home.cwd / "old.txt").exists() and fake.replies == []


# -- servers of a person


class Own:
    """A server that a person has started, on a port of its own."""

    def __init__(self, place: Place, fake: Fake, password: str = "") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._env = {name: value for name, value in place.environ.items() if name != "BACKBURNER_HOME"}
        self._env |= {"OPENCODE_SERVER_PASSWORD": password} if password else {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [sys.executable, "-S", str(FAKE), "serve", "--hostname", "127.0.0.1", "--port", str(self.port)]
        self._process = subprocess.Popen(words, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def configure(self, place: Place, more: str = "") -> None:
        place.configure(f'{CONFIG}[agents.mine]\ntype = "opencode"\nurl = "{self.url}"\n{more}')


@pytest.fixture
def own(home: Place, fake: Fake) -> Iterator[Own]:
    own = Own(home, fake)
    yield own
    home.stop_all()
    own.kill()


def test_a_user_server_is_used_with_its_password_and_not_stopped(home: Place, fake: Fake) -> None:
    own = Own(home, fake, "secret")
    own.configure(home, 'password_env = "MY_WORD"\n')
    fake.set(boot=1.5)
    own.start()
    try:
        home.environ["MY_WORD"] = "secret"
        answered(home, ask(home, {"say": "done"}, agent="mine"))
        home.stop_all()
        assert process.is_alive(fake.server) and not records(home)
        home.environ["MY_WORD"] = "wrong"
        ended = settled(home, ask(home, {"say": "never"}, agent="mine"))
        assert ended["status"] == "failed"
        assert str(ended["error"]).startswith(f"the OpenCode server at {own.url} requires a password: see password_env")
    finally:
        home.stop_all()
        own.kill()


def test_a_missing_server_gives_a_one_line_error(home: Place, fake: Fake, own: Own) -> None:
    own.configure(home)
    ended = settled(home, ask(home, {"say": "never"}, agent="mine"))
    assert ended["error"] == f"no OpenCode server answers at {own.url}: start it with `opencode serve --port {own.port}`"


def test_a_user_server_may_restart_during_a_turn(home: Place, fake: Fake, own: Own) -> None:
    fake.set(boot=0)
    own.configure(home)
    own.start()
    gate = home.cwd.parent / "go"
    task_id = ask(home, bash("ls"), {"until": str(gate), "say": "done"}, agent="mine")
    fake.reaches_its_second_step()
    own.kill()
    gate.touch()
    own.start()
    answered(home, task_id)
    first, second = fake.users()
    assert "script" in first and second.startswith(GO_ON) and len(notices(home, task_id)) == 1


def test_a_server_that_hangs_for_a_while_is_waited_for(home: Place, fake: Fake, own: Own) -> None:
    own.configure(home)
    own.start()
    gate = home.cwd.parent / "go"
    task_id = ask(home, bash("ls"), {"until": str(gate), "say": "done"}, agent="mine")
    fake.reaches_its_second_step()
    fake.set(refuse=True, cut=1)
    wait_until(lambda: len([one for one in fake.journal if one.get("refused") == "/global/health"]) > 1, "it to be waited for")
    gate.touch()
    wait_until(lambda: fake.sessions[0]["messages"][-1]["info"].get("finish") == "stop", "the agent to answer meanwhile")
    fake.set(refuse=False)
    answered(home, task_id)
    assert len(fake.users()) == 1, "it was not interrupted"


# -- servers of ours


def both(place: Place, fake: Fake) -> tuple[Path, str, str]:
    """An agent that waits for a yes, and one that is at work until there is a file."""
    gate = place.cwd.parent / "go"
    (place.cwd / "old.txt").write_text("x")
    waiting = ask(place, bash("rm old.txt"), bash("rm old.txt"), {"say": "done"})
    at_work = ask(place, bash("ls"), {"until": str(gate), "say": "done"})
    settled(place, waiting, "waiting")
    wait_until(lambda: len(fake.ran) == 1 and len(activity(place, at_work).get("recent", [])) == 1, "the other to be at work")
    return gate, waiting, at_work


def test_tasks_with_the_same_environment_share_a_server(home: Place, fake: Fake) -> None:
    gate = home.cwd.parent / "go"
    step = {"until": str(gate), "say": "done"}
    tasks = [ask(home, step), ask(home, step), ask(home, step, env={"FAKE_API_KEY": "another"})]
    wait_until(lambda: len(fake.prompts) == 3, "all to be at work")
    assert sorted(one["key"] for one in fake.started) == ["", "another"]
    pids = [one["pid"] for one in fake.asked("POST", "/session/[^/]+/prompt_async")]
    assert sorted(map(pids.count, set(pids))) == [1, 2]
    gate.touch()
    for task_id in tasks:
        answered(home, task_id)


def test_an_idle_agent_process_exits_and_stops_its_server(home: Place, fake: Fake) -> None:
    home.configure(f"{CONFIG}[agents]\nidle_exit_seconds = 0.5\n")
    answered(home, ask(home, {"say": "done"}))
    wait_until(lambda: not process.identify(fake.started[0]["pid"]) and not records(home), "the server to end")
    wait_until(lambda: not home.hosts("agents.process"), "the host to leave")


def test_a_server_is_stopped_after_its_agent_process_died(home: Place, fake: Fake) -> None:
    answered(home, ask(home, {"say": "done"}))
    server = fake.server
    home.configure(f"{CONFIG}[agents]\nidle_exit_seconds = 0.5\n")
    kill(host(home))
    wait_until(lambda: not process.is_alive(server) and not records(home), "the server to end")
    assert len(fake.started) == 1


def test_a_killed_server_is_restarted_and_the_agent_continues(home: Place, fake: Fake) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, bash("ls"), {"until": str(gate), "say": "done"})
    fake.reaches_its_second_step()
    kill(fake.server)
    gate.touch()
    answered(home, task_id)
    first, second = fake.users()
    assert "script" in first and second.startswith(GO_ON) and len(fake.started) == 2
    assert fake.ran == ["ls"] and len(notices(home, task_id)) == 1
    wait_until(lambda: activity(home, task_id)["tokens"] == 4, "all of it to be counted")
    assert activity(home, task_id)["tools"] == 1, "what was done before is counted once"


def test_agents_survive_a_killed_agent_process_and_the_next_one_follows_them(home: Place, fake: Fake) -> None:
    gate, waiting, at_work = both(home, fake)
    late = ask(home, {"slow": 3, "say": "done"})
    wait_until(lambda: len(fake.prompts) == 3, "the third to be asked")
    kill(host(home))
    gate.touch()
    home.ok("approve", waiting)
    wait_until(lambda: not (home.cwd / "old.txt").exists(), "the yes to reach the very step that was asked for")
    answered(home, at_work)
    answered(home, late)
    settled(home, waiting, "waiting")
    home.ok("reject", waiting)
    answered(home, waiting)
    assert fake.ran.count("rm old.txt") == 1, "a yes is for one step"
    assert len(fake.started) == 1 and [len(fake.users(n)) for n in range(3)] == [1, 1, 1], "nothing is said twice"
    assert [len(one["messages"]) for one in fake.sessions].count(2) == 1, "what was just begun is answered once"
    for task_id in (waiting, at_work, late):
        assert len(notices(home, task_id)) == 1 and home.status(task_id)["run_count"] == 1


def test_agents_continue_after_agent_process_and_server_are_both_killed(home: Place, fake: Fake) -> None:
    gate, waiting, at_work = both(home, fake)
    kill(host(home), fake.server)
    gate.touch()
    home.ok("approve", waiting)
    wait_until(lambda: not (home.cwd / "old.txt").exists(), "what was granted to be done when it is asked for again", 30)
    for task_id in (waiting, at_work):
        answered(home, task_id)
        assert len(notices(home, task_id)) == 1 and home.status(task_id)["run_count"] == 1
    assert len(fake.started) == 2 and sorted(fake.ran) == ["ls", "rm old.txt"]
    told = sorted(text.split("\n")[0] for n in (0, 1) for text in fake.users(n)[1:])
    assert len(told) == 2 and told[0].startswith("The user approved your request") and told[1].startswith(GO_ON)


def test_a_deleted_session_cannot_be_resumed(home: Place, fake: Fake) -> None:
    task_id = ask(home, {"say": "done"})
    answered(home, task_id)
    fake.call("DELETE", f"/session/{fake.sessions[0]['info']['id']}")
    home.ok("resume", task_id, "more")
    ended = settled(home, task_id)
    assert (ended["status"], ended["error"]) == ("failed", EXPIRED) and len(fake.prompts) == 1


def test_deleting_a_session_during_a_turn_fails_the_run(home: Place, fake: Fake) -> None:
    task_id = ask(home, {"until": "/nowhere/at/all", "say": "never"})
    wait_until(lambda: fake.sessions and len(fake.sessions[0]["messages"]) == 2, "it to be at work")
    session = fake.sessions[0]["info"]["id"]
    fake.call("POST", f"/session/{session}/abort")
    fake.call("DELETE", f"/session/{session}")
    assert settled(home, task_id)["status"] == "failed"


# -- notices


def test_a_running_agent_gets_its_notices_once(home: Place, fake: Fake) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, {"until": str(gate), "say": "done"})
    wait_until(lambda: fake.prompts, "it to be at work")
    other = home.ok("run", "--yes", "--", "echo", "finished", env={"BACKBURNER_SESSION": f"agent:{task_id}"}).strip()
    wait_until(lambda: fake.asked("POST", "/session/[^/]+/message"), "it to be told")
    (told,) = [one["body"] for one in fake.asked("POST", "/session/[^/]+/message")]
    assert told["noReply"] is True and told["parts"][0]["synthetic"] is True and other in fake.users()[1]
    gate.touch()
    answered(home, task_id)
    assert home.ok("resume", task_id, script({"say": "more"}), "--wait") == "more\n"
    assert sum(other in text for text in fake.users()) == 1, "it is told once"


def test_notices_from_before_a_resume_come_with_the_prompt(home: Place, fake: Fake) -> None:
    task_id = ask(home, {"say": "done"})
    answered(home, task_id)
    other = home.ok("run", "--yes", "--", "echo", "finished", env={"BACKBURNER_SESSION": f"agent:{task_id}"}).strip()
    settled(home, other)
    assert home.ok("resume", task_id, script({"say": "more"}), "--wait") == "more\n"
    assert other in fake.users()[1] and "Automatic notice" in fake.users()[1] and len(fake.users()) == 2


def test_a_notice_is_not_repeated_after_a_kill_before_its_acknowledgement(home: Place, fake: Fake) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, {"until": str(gate), "say": "done"})
    record = home.folder(task_id) / "conversation.json"
    wait_until(lambda: fake.prompts and not json.loads(record.read_text())["pending"], "it to be at work")
    fake.set(hold="/message")
    other = home.ok("run", "--yes", "--", "echo", "finished", env={"BACKBURNER_SESSION": f"agent:{task_id}"}).strip()
    wait_until(lambda: fake.asked("POST", "/session/[^/]+/message"), "it to be told")
    kill(host(home))
    fake.set(hold="")
    with open_app(str(home.root), dict(home.environ)) as app:
        wait_until(lambda: not app.inbox.pending(f"agent:{task_id}"), "what it was told to be known")
    gate.touch()
    answered(home, task_id)
    assert sum(other in text for text in fake.users()) == 1


def test_a_notice_in_a_prompt_is_not_repeated_after_a_kill(home: Place, fake: Fake) -> None:
    task_id = ask(home, {"say": "done"})
    answered(home, task_id)
    other = home.ok("run", "--yes", "--", "echo", "finished", env={"BACKBURNER_SESSION": f"agent:{task_id}"}).strip()
    settled(home, other)
    fake.set(hold="/prompt_async")
    home.ok("resume", task_id, script({"say": "more"}))
    wait_until(lambda: len(fake.prompts) == 2, "it to be told")
    kill(host(home))
    fake.set(hold="")
    answered(home, task_id, "more")
    with open_app(str(home.root), dict(home.environ)) as app:
        assert not app.inbox.pending(f"agent:{task_id}")
    assert sum(other in text for text in fake.users()) == 1


@pytest.mark.parametrize("killed", [False, True], ids=["told", "killed before that is known"])
def test_a_session_in_a_user_server_is_notified_once(home: Place, fake: Fake, own: Own, killed: bool) -> None:
    fake.set(boot=0)
    own.configure(home)
    own.start()
    wait_until(lambda: fake.started, "the server")
    made = json.loads(urllib.request.urlopen(f"{own.url}/session?directory={home.cwd}", data=b"{}", timeout=10).read())
    session = f"opencode:{made['id']}"
    fake.set(hold="/prompt_async" if killed else "")
    ids = [home.ok("run", "--yes", "--", "echo", word, env={"BACKBURNER_SESSION": session}).strip() for word in ("one", "two")]
    wait_until(lambda: fake.asked("POST", "/session/[^/]+/prompt_async"), "it to be told")
    if killed:
        kill(host(home))
        fake.set(hold="")
    with open_app(str(home.root), dict(home.environ)) as app:
        wait_until(lambda: not app.inbox.pending(session), "it to be told, and that to be known", 60)
    text = "|".join(fake.users())
    assert all(text.count(f"<task-id>{task_id}</task-id>") == 1 for task_id in ids), text


# -- being set up


def test_the_check_does_not_prompt_the_model(home: Place, fake: Fake) -> None:
    checked = json.loads(home.cli("agents", "--check", "--json").stdout)
    assert [one["problem"] for one in checked if one["name"] == "opencode"] == [""]
    assert len(fake.started) == 1 and not fake.prompts and not fake.sessions and not records(home)
    wait_until(lambda: not process.identify(fake.started[0]["pid"]), "its server to be gone")


def test_without_the_program_the_error_says_how_to_install_it(home: Place, fake: Fake) -> None:
    os.unlink(home.root.parent / "bin" / "opencode")
    path = os.pathsep.join(folder for folder in home.environ["PATH"].split(os.pathsep) if not os.path.exists(f"{folder}/opencode"))
    done = home.cli("ask", "--agent", "opencode", "Hello", env={"PATH": path})
    assert done.returncode == 2 and "not on the PATH" in done.stderr and "npm install -g opencode-ai" in done.stderr
    assert home.json("list") == []


# -- what was found by reading


def test_a_check_does_not_stop_a_server_in_use(home: Place, fake: Fake) -> None:
    gate = home.cwd.parent / "go"
    task_id = ask(home, bash("ls"), {"say": "done", "until": str(gate)})
    fake.reaches_its_second_step()
    server = fake.server
    checked = json.loads(home.cli("agents", "--check", "--json").stdout)
    assert [one["problem"] for one in checked if one["name"] == "opencode"] == [""]
    assert process.is_alive(server) and fake.server == server
    gate.touch()
    answered(home, task_id)


@pytest.mark.parametrize("word", ["approve", "reject"])
def test_a_decision_after_a_killed_agent_process_reaches_the_waiting_step(home: Place, fake: Fake, word: str) -> None:
    (home.cwd / "a.txt").write_text("x")
    task_id = ask(home, bash("rm a.txt"), {"say": "done"})
    settled(home, task_id, "waiting")
    kill(host(home))
    home.ok(word, task_id)
    answered(home, task_id)
    assert (home.cwd / "a.txt").exists() == (word == "reject")
    assert [one["reply"] for one in fake.replies] == ["once" if word == "approve" else "reject"], "it is asked for once"


def test_an_agent_that_is_silent_for_too_long_fails(home: Place, fake: Fake) -> None:
    home.configure(f"{CONFIG}[models]\ntimeout_seconds = 1\n")
    task_id = ask(home, {"say": "never", "until": str(home.cwd.parent / "never")})
    ended = settled(home, task_id)
    assert ended["status"] == "failed" and "silent for too long" in str(ended["error"])
    assert fake.asked("POST", "/session/[^/]+/abort")


def test_waiting_for_approval_does_not_count_against_the_time_budget(home: Place, fake: Fake) -> None:
    (home.cwd / "a.txt").write_text("x")
    task_id = ask(home, bash("rm a.txt"), {"say": "done"}, options=("--budget", "seconds=8"))
    assert "rm a.txt" in str(settled(home, task_id, "waiting")["error"])
    time.sleep(8)  # all that it has, in which it does nothing
    home.ok("approve", task_id)
    answered(home, task_id)


def test_an_incomplete_answer_fails_the_run(home: Place, fake: Fake) -> None:
    ended = settled(home, ask(home, {"say": "and so on", "finish": "length"}))
    assert ended["status"] == "failed" and "length" in str(ended["error"]) and "and so on" in str(ended["error"])


def test_a_recurring_task_uses_a_new_session_per_run_and_deletes_it(home: Place, fake: Fake) -> None:
    report = json.dumps({"report": True, "state": "fine", "message": "All is well."})
    home.ok("add", "look", "--every", "1h", "--agent", "opencode", "--prompt", script({"say": f"I looked.\n{report}"}))
    for _ in range(2):
        home.ok("run-now", "look")
        wait_until(lambda: home.status("look")["runs"] and home.status("look")["runs"][0]["status"] == "completed", "a run", 40)  # type: ignore[index, call-overload]
    runs = home.status("look")["runs"]
    assert len(runs) == 2 and "All is well." in home.ok("logs", "look")  # type: ignore[arg-type]
    assert fake.sessions == [] and len(fake.asked("DELETE", "/session/[^/]+")) == 2, "nobody can talk on with them"
    assert "JSON" in fake.prompts[0]["parts"][0]["text"]
