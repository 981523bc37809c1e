"""Agents of the Agent Client Protocol from the command line, tested with a scripted agent that imitates the real ones and their faults."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError
from conftest import CONFIG, LONG, NO_TERMINAL, HomeCli, caller, wait_until

from backburner.agents import prompts
from backburner.agents.external import message_fields
from backburner.core.models import Task
from backburner.core.ports import Outcome
from backburner.core.states import Result
from backburner.services.app import App, open_app
from backburner.system import processes
from backburner.testing import records

SCRIPTED = Path(__file__).parent / "scripted_acp.py"
EXPIRED = "Session expired or was deleted. Start a new background_task to continue."
ASKS = 'asks = "yes"\n'


class FakeAgents:
    """A home with scripted agents, and the journal of these agents."""

    def __init__(self, home_cli: HomeCli) -> None:
        self.home_cli = home_cli
        self.folder = home_cli.root.parent / "agent"
        self.folder.mkdir()
        self._agents: dict[str, str] = {}
        self._open = contextlib.ExitStack()
        self._app: App | None = None

    def add(self, *words: str, name: str = "fake", more: str = ASKS, settings: str = "") -> None:
        """Configure an agent with this name; `words` are the arguments of its program."""
        command = shlex.join([sys.executable, "-I", str(SCRIPTED), str(self.folder), *words])
        self._agents[name] = f'[agents.{name}]\ntype = "acp"\ncommand = {json.dumps(command)}\n{more}'
        self.home_cli.configure(
            f"{NO_TERMINAL}[tasks]\nmax_concurrent = 8\n[models]\nmax_concurrent = 8\n{settings}{''.join(self._agents.values())}"
        )

    def ask(self, *steps: dict[str, Any], options: tuple[str, ...] = (), agent: str = "fake") -> str:
        return self.home_cli.ok("ask", "--agent", agent, *options, script(*steps)).strip()

    @property
    def app(self) -> App:
        """The home opened as a library, for fast repeated reads."""
        if self._app is None:
            self._app = self._open.enter_context(open_app(self.home_cli.home))
        return self._app

    def close(self) -> None:
        self._open.close()

    def settled(self, task_id: str, *states: str, words: str = "") -> dict[str, Any]:
        """Wait until a task has ended, or has one of these states with `words` in its error."""
        expected = states or ("completed", "failed", "cancelled")

        def has_state() -> bool:
            entry = self.app.queries.get(task_id)
            return entry.status in expected and words in str(entry.run and entry.run.error)

        wait_until(has_state, f"{task_id} to be {' or '.join(expected)} {words}")
        return self.home_cli.status(task_id)

    def answers(self, *scripts: list[dict[str, Any]], agent: str = "fake") -> list[str]:
        """Run each script as a task of its own, and return its answer, or its status and error."""
        results = []
        for task_id in [self.ask(*steps, agent=agent) for steps in scripts]:
            ended = self.settled(task_id)
            results.append(
                self.home_cli.log(task_id).decode() if ended["status"] == "completed" else f"{ended['status']}: {ended['error']}"
            )
        return results

    def answer(self, *steps: dict[str, Any], agent: str = "fake") -> str:
        return self.answers([*steps], agent=agent)[0]

    def approval_requests(self, *steps: dict[str, Any], options: tuple[str, ...] = ()) -> list[str]:
        """The approval request of each step; empty if it needs no approval."""
        task_ids = [self.ask(step, {"say": "Done."}, options=options) for step in steps]
        found = [str(self.settled(task_id, "waiting", "completed")["error"] or "") for task_id in task_ids]
        self.home_cli.cli("cancel", *task_ids)
        return found

    def used(self, task_id: str) -> dict[str, float]:
        return self.home_cli.status(task_id)["usage"]  # type: ignore[return-value]

    def activity(self, task_id: str) -> dict[str, Any]:
        """The progress of a run as the tools report it."""
        return dict(self.app.runs.activity(self.app.queries.get(task_id)))

    def journal(self, event: str) -> list[dict[str, Any]]:
        """The journal entries with this event, of all agents."""
        try:
            lines = (self.folder / "journal.jsonl").read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def wait_for_event(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.journal(event)) >= count, f"{count} times {event}")
        return self.journal(event)

    @property
    def prompts(self) -> list[str]:
        return [entry["text"] for entry in self.journal("prompted")]

    def end_agent_process(self, number: int) -> None:
        for host in self.home_cli.hosts("agents.process"):
            processes.send(host, number)
            wait_until(lambda host=host: not processes.is_alive(host), "the agent process to end")  # type: ignore[misc]


def script(*steps: dict[str, Any]) -> str:
    return f"Please do this. [[script: {json.dumps(steps)}]]"


def shell(command: str, **about: Any) -> dict[str, Any]:
    """A step that requests permission for a command, and runs it if allowed."""
    return {"ask": {"title": command, "kind": "execute", "rawInput": {"command": command}}, "do": command, **about}


def edit(path: Path | str, text: str = "new", **about: Any) -> dict[str, Any]:
    diff = {"type": "diff", "path": str(path), "oldText": None, "newText": text}
    return {"ask": {"title": f"Write {path}", "kind": "edit", "content": [diff], "locations": [{"path": str(path)}]}, **about}


def read(path: Path | str) -> dict[str, Any]:
    return {"ask": {"title": f"Read {path}", "kind": "read", "rawInput": {"file_path": str(path)}, "locations": [{"path": str(path)}]}}


def alive(pid: int) -> bool:
    return processes.identify(pid) is not None


def git(home_cli: HomeCli, *words: str) -> str:
    named = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *words]
    return subprocess.run(named, cwd=home_cli.cwd, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.fixture
def agents(home_cli: HomeCli) -> Iterator[FakeAgents]:
    """A home with scripted agents, none of which is left when the agent process has ended."""
    fake_agents = FakeAgents(home_cli)
    yield fake_agents
    fake_agents.close()
    home_cli.stop_engine()

    def has_exited() -> bool:
        hosts = home_cli.hosts("agents.process")
        for one in hosts:
            processes.send(one, signal.SIGTERM)
        return not hosts

    wait_until(has_exited, "the agent process to exit")


# Answers


def test_the_agent_runs_in_its_project_and_its_last_message_is_the_answer(agents: FakeAgents) -> None:
    agents.add("load")
    cost = {"used": 9, "size": 100, "cost": {"amount": 0.25, "currency": "USD"}}
    steps = [
        {"say": "I begin. "},
        {"tool": "ls", "kind": "execute"},
        {"say": "I look. "},
        {"tool": "Read a.txt", "kind": "read", "name": "Read"},
    ]
    task_id = agents.ask(*steps, {"update": "usage_update", **cost}, {"say": "It is "}, {"say": "done."})
    assert agents.settled(task_id)["status"] == "completed" and agents.home_cli.log(task_id) == b"It is done.\n"
    assert agents.used(task_id) == {"tokens": 7, "tool_calls": 2, "cost": 0.25}
    (listed,) = agents.home_cli.json("list")  # type: ignore[misc]
    assert (listed["task_id"], listed["type"], listed["agent"], listed["summary"]) == (task_id, "agent", "fake", "It is done.")
    (greeted,), (opened,) = agents.journal("greeted"), agents.journal("new")
    assert opened["meta"] == {"claudeCode": {"options": {"allowDangerouslySkipPermissions": False}}}
    assert greeted["cwd"] == opened["cwd"] == str(agents.home_cli.cwd) and greeted["capabilities"] == {}
    assert not alive(greeted["pid"]) and agents.journal("left"), "it had time to exit by itself"


def test_progress_is_visible_while_the_agent_runs(agents: FakeAgents) -> None:
    agents.add()
    steps = [{"tool": f"tool {n}", "_meta": {"toolName": f"t{n}"}} for n in range(7)]
    task_id = agents.ask(*steps, {"hang": 1})
    wait_until(lambda: agents.activity(task_id).get("tools") == 7, "all its tools to be seen")
    assert agents.activity(task_id)["recent"] == ["t2", "t3", "t4", "t5", "t6"]
    status = agents.home_cli.status(task_id)
    assert status["status"] == "running" and status["pid"] == agents.journal("greeted")[0]["pid"]
    agents.home_cli.ok("cancel", task_id)
    assert agents.used(task_id)["tool_calls"] == 7


def test_thoughts_and_earlier_messages_are_not_part_of_the_answer(agents: FakeAgents) -> None:
    agents.add("close")
    warned = [{"say": "Warning: no metadata.\n\n"}, {"say": "I begin. ", "messageId": "m1"}, {"say": "Done.", "messageId": "m2"}]
    assert agents.answer(*warned) == "Done.\n"
    counted = {"update": "agent_message_chunk", "content": {"type": "text", "text": ""}, "_meta": {"usage": {"totalTokens": 30}}}
    thought = {"update": "agent_thought_chunk", "content": {"type": "text", "text": "Hm."}}
    task_id = agents.ask(thought, {"say": "Counted."}, counted, counted, {"end": {"stopReason": "end_turn"}})
    agents.settled(task_id)
    assert agents.home_cli.log(task_id) == b"Counted.\n" and agents.used(task_id)["tokens"] == 60
    notified = {"raw": json.dumps({"jsonrpc": "2.0", "method": "_auth/status_update", "params": {}})}
    assert agents.answer(notified, {"request": "fs/write_text_file", "path": "x"}, {"say": "All the same."}) == "All the same.\n"
    assert agents.journal("answered")[0]["answer"]["error"]["code"] == -32601
    assert len(agents.journal("closed")) == 3, "session/close was sent"


def test_long_lines_and_large_stderr_output_are_accepted(agents: FakeAgents) -> None:
    agents.add()
    huge = agents.ask({"flood": 10_000_000})
    long, loud = agents.ask({"flood": 70_000}), agents.ask({"stderr": 20_000}, {"say": "Heard."})
    for task_id in (huge, long, loud):
        assert agents.settled(task_id)["status"] == "completed"
    assert agents.home_cli.log(long) == b"x" * 70_000 + b"\n" and agents.home_cli.log(loud) == b"Heard.\n"
    assert 4 << 20 <= len(agents.home_cli.log(huge)) < 5 << 20


def test_the_stderr_file_is_limited_in_size(agents: FakeAgents) -> None:
    agents.add()
    task_id = agents.ask({"stderr": 30_000}, {"hang": 1})
    errors = agents.home_cli.folder(task_id) / "agent.err"
    wait_until(lambda: errors.exists() and 0 < errors.stat().st_size <= 1 << 20, "the first of them to be dropped")
    kept = errors.read_bytes()
    assert kept and set(kept) <= set(b"y\n")
    agents.home_cli.ok("cancel", task_id)


def test_a_line_that_is_not_json_is_ignored(agents: FakeAgents) -> None:
    agents.add()
    assert agents.answer({"raw": "Debugger attached."}, {"raw": ""}, {"raw": "{"}, {"say": "Here."}) == "Here.\n"


def test_a_json_line_that_is_not_a_message_is_ignored(agents: FakeAgents) -> None:
    agents.add()
    lines = ["4711", "null", '"ready"', "[1, 2]"]
    assert agents.answers(*([{"raw": line}, {"say": "Here."}] for line in lines)) == ["Here.\n"] * 4


def test_messages_after_the_end_of_the_turn_are_not_part_of_the_answer(agents: FakeAgents) -> None:
    agents.add()
    assert agents.answer({"say": "Asked."}, {"late": "Unasked."}) == "Asked.\n"


# Failures


def test_a_failed_turn_is_detected_despite_its_stop_reason(agents: FakeAgents) -> None:
    agents.add()
    for name in ("goose", "codex"):
        agents.add(name=name)
    trouble = "Ran into this error: 500. Please retry if you think this is a transient or recoverable error."
    done = {"end": {"stopReason": "end_turn"}}
    assert agents.answer({"say": trouble}, done, agent="goose") == f"failed: its provider failed: {trouble}"
    silent = {"end": {"stopReason": "end_turn", "usage": None, "_meta": {"quota": {"token_count": None}}}}
    retried = {"update": "session_info_update", "_meta": {"codex": {"error": {"message": "Reconnecting... 1/5", "willRetry": True}}}}
    broken = {"update": "session_info_update", "_meta": {"codex": {"threadStatus": {"type": "systemError"}}}}
    answers = agents.answers([{"say": "Oh."}, silent], [retried, broken, {"say": "Oh."}], [retried, {"say": "Well again."}], agent="codex")
    assert (
        answers[0] == "failed: its provider failed: Oh."
        and answers[1].startswith("failed: its provider failed: ")
        and answers[2] == "Well again.\n"
    )
    wrong = {"code": -32603, "message": "Internal error", "data": {"details": "400 bad request"}}
    half = [{"say": "Half."}, {"end": {"stopReason": "max_tokens"}}]
    assert agents.answers([{"say": "Nothing is counted."}, done], [done], half, [{"error": wrong}]) == [
        "Nothing is counted.\n",
        "failed: it ended its turn without an answer",
        "failed: it stopped before the end: max_tokens. Its last text: Half.",
        "failed: Internal error: 400 bad request",
    ]


def test_the_error_of_a_crashed_agent_has_its_last_stderr_line(agents: FakeAgents) -> None:
    agents.add()
    answer = agents.answer({"say": "Half."}, {"die": 3, "words": "Trace:\n  somewhere\nPanic: out of luck\n\n"})
    assert answer.startswith("failed: ") and answer.endswith("exited during the turn: Panic: out of luck")
    answer = agents.answer({"child": "group"}, {"child": "own"}, {"die": 0})
    assert answer.startswith("failed: ") and answer.endswith("exited during the turn")
    assert not any(alive(one["child"]) for one in agents.journal("child"))


def test_a_silent_agent_fails_unless_a_tool_is_running(agents: FakeAgents) -> None:
    agents.add(settings="timeout_seconds = 1\n")
    task_id = agents.ask({"hang": 1})
    working = agents.ask(
        {"update": "tool_call", "toolCallId": "c1", "title": "make", "kind": "execute"}, {"run": ["sleep", "2.5"]}, {"say": "Made."}
    )
    ended = agents.settled(task_id)
    assert ended["status"] == "failed" and "silent for too long" in str(ended["error"])
    assert agents.journal("cancelled") and not alive(agents.journal("hangs")[0]["pid"])
    assert agents.settled(working)["status"] == "completed"


def test_a_rejected_tool_call_does_not_count_as_running(agents: FakeAgents) -> None:
    (agents.home_cli.cwd / "a.txt").write_text("old")
    agents.add(settings="timeout_seconds = 1\n")
    task_id = agents.ask(edit("a.txt", no="cancels"), {"hang": 1})
    agents.settled(task_id, "waiting")
    agents.home_cli.ok("reject", task_id)
    ended = agents.settled(task_id)
    assert ended["status"] == "failed" and "silent for too long" in str(ended["error"])


def test_audit_shows_the_decisions_on_the_steps_of_an_agent(agents: FakeAgents) -> None:
    for name in ("a.txt", "b.txt"):
        (agents.home_cli.cwd / name).write_text("old")
    agents.add()
    task_id = agents.ask(edit("new.txt"), edit("a.txt"), edit("b.txt"), {"say": "Done."})
    for verb in ("approve", "reject"):
        agents.settled(task_id, "waiting")
        agents.home_cli.ok(verb, task_id)
    agents.settled(task_id)
    (row,) = [row for row in agents.home_cli.json("audit") if row["task_id"] == task_id]  # type: ignore[union-attr, index, call-overload]
    assert [(step["by"], step["via"], step["answer"]) for step in row["steps"]] == [
        ("gate", None, "yes"),
        ("user", "cli", "yes"),
        ("user", "cli", "no"),
    ]
    shown = agents.home_cli.ok("audit")
    assert "step approved by gate at" in shown and "step rejected by user via cli at" in shown and "b.txt" in shown


def test_an_approved_tool_call_may_run_longer_than_the_silence_timeout(agents: FakeAgents) -> None:
    agents.add(settings="timeout_seconds = 1\n")
    task_ids = [agents.ask(shell("rm -f old.txt; sleep 2.5", announced=announced), {"say": "Made."}) for announced in (True, False)]
    for task_id in task_ids:
        agents.settled(task_id, "waiting")
    agents.home_cli.ok("approve", *task_ids)
    assert [agents.settled(task_id)["error"] for task_id in task_ids] == [None, None]


def test_a_task_timeout_stops_the_agent(agents: FakeAgents) -> None:
    agents.add()
    ended = agents.settled(agents.ask({"child": "own"}, {"hang": 1}, options=("--timeout", "2s")))
    assert ended["status"] == "failed" and "timed out" in str(ended["error"])
    assert not alive(agents.journal("child")[0]["child"]) and not alive(agents.journal("hangs")[0]["pid"])


# Settings


def test_a_missing_program_gives_a_one_line_error(agents: FakeAgents) -> None:
    agents.home_cli.configure(f'{CONFIG}[agents.ghost]\ntype = "acp"\ncommand = "no-such-agent --acp"\n')
    done = agents.home_cli.cli("ask", "--agent", "ghost", "Hello")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert "requires the program no-such-agent, which is not on the PATH" in done.stderr
    empty = {"PATH": os.path.dirname(sys.executable)}
    done = agents.home_cli.cli("ask", "--agent", "claude", "Hello", env=empty)
    assert done.returncode == 2 and "npm install -g @agentclientprotocol/claude-agent-acp" in done.stderr
    assert agents.home_cli.json("list") == []


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('type = "telepathy"\ncommand = "x"\n', "'agents.odd.type' must be one of opencode, acp, not 'telepathy'"),
        ('type = "acp"\n', "'agents.odd' requires `command`"),
        ('model = "openai-chat:x"\nurl = "http://127.0.0.1:9"\n', "'agents.odd.url' requires `type`"),
        ('command = "x"\n', "'agents.odd.command' requires `type`"),
        ('type = "acp"\ncommand = "x"\nshout = "y"\n', "unknown key 'shout' for an agent"),
        ('type = "acp"\ncommand = ["x"]\n', "'agents.odd.command' must be a string"),
    ],
    ids=["a type", "no command", "an address", "no type", "a key", "a list"],
)
def test_invalid_agent_settings_give_a_one_line_error(agents: FakeAgents, table: str, sentence: str) -> None:
    agents.home_cli.configure(f"{CONFIG}[agents.odd]\n{table}")
    done = agents.home_cli.cli("ask", "--agent", "odd", "Hello")
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1 and "config.toml, line" in done.stderr


def test_mode_model_and_authentication_are_sent_to_the_agent(agents: FakeAgents) -> None:
    agents.add("mode=auto", more=f'{ASKS}mode = "ask"\nmodel = "large"\nauth = "by-key"\n')
    agents.add("mode=auto", name="lost", more=f'{ASKS}mode = "yolo"\n')
    agents.add("mode=ask", name="right", more=f'{ASKS}mode = "ask"\n')
    agents.add(name="qwen", more=ASKS)
    assert agents.answer({"say": "Yes."}) == "Yes.\n"
    assert [one["mode"] for one in agents.journal("mode")] == ["ask"] and [one["model"] for one in agents.journal("model")] == ["large"]
    assert [one["method"] for one in agents.journal("authenticated")] == ["by-key"]
    assert agents.answer({"say": "Yes."}, agent="lost") == "failed: unknown mode 'yolo'; available: ask, auto"
    assert agents.answer({"say": "Yes."}, agent="right") == "Yes.\n" and len(agents.journal("mode")) == 1
    task_id = agents.home_cli.ok("ask", "--agent", "qwen", script({"say": "Yes."}), env={"OPENAI_API_KEY": "k"}).strip()
    agents.settled(task_id)
    assert [one["method"] for one in agents.journal("authenticated")] == ["by-key", "openai"]


def test_doctor_makes_a_handshake_with_the_agent(agents: FakeAgents) -> None:
    agents.add("stays", "deaf")
    assert "ok   agent fake (acp) answers" in agents.home_cli.cli("doctor").stdout
    assert agents.journal("greeted") and not agents.prompts and not alive(agents.journal("greeted")[0]["pid"])
    agents.home_cli.configure(f'{CONFIG}[agents.sick]\ntype = "acp"\ncommand = "false"\n')
    done = agents.home_cli.cli("doctor")
    assert done.returncode == 1 and "BAD  agent sick (acp): " in done.stdout


def test_an_agent_that_does_not_ask_needs_approval_before_it_starts(agents: FakeAgents) -> None:
    agents.add(more="")
    done = agents.home_cli.cli("ask", "--agent", "fake", script({"say": "Done."}))
    assert done.returncode == 3 and "does not ask for permission before it acts" in done.stderr + done.stdout
    (task,) = agents.home_cli.json("list")  # type: ignore[misc]
    assert task["status"] == "proposed" and not agents.journal("greeted")
    agents.home_cli.ok("approve", task["task_id"])
    assert agents.settled(task["task_id"])["status"] == "completed" and agents.home_cli.log(task["task_id"]) == b"Done.\n"
    agents.add(name="goose", more="")
    assert agents.home_cli.cli("ask", "--agent", "goose", "x").returncode == 3, "only the name is goose"


def test_a_new_prompt_for_an_agent_that_does_not_ask_needs_another_approval(agents: FakeAgents) -> None:
    agents.add("load", more="")
    agents.home_cli.cli("ask", "--agent", "fake", script({"say": "One."}))
    (task,) = agents.home_cli.json("list")  # type: ignore[misc]
    task_id = task["task_id"]
    agents.home_cli.ok("approve", task_id)
    agents.settled(task_id)
    done = agents.home_cli.cli("resume", task_id, "--wait", script({"say": "Two."}))
    assert done.returncode == 3 and "acts without asking for permission" in done.stderr and "Two." in done.stderr
    assert agents.home_cli.status(task_id)["status"] == "waiting" and len(agents.prompts) == 1
    agents.home_cli.ok("approve", task_id)
    assert agents.settled(task_id)["status"] == "completed" and agents.home_cli.log(task_id) == b"Two.\n"
    agents.home_cli.ok("resume", task_id, script({"say": "Three."}))
    agents.settled(task_id, "waiting")
    agents.home_cli.ok("reject", task_id)
    assert agents.settled(task_id, "failed")["error"] == "rejected by the user" and len(agents.prompts) == 2


# Permissions


def test_requests_that_the_gate_decides_need_no_person(agents: FakeAgents) -> None:
    never = '[[approval.rules]]\nname = "never"\ndecision = "deny"\ncommand = "rm **"\nmatch = ["rm -rf x"]\nnot_match = ["ls"]\n'
    agents.add(settings=never)
    assert agents.answer(shell("ls"), {"say": "Listed."}) == "Listed.\n"
    (agents.home_cli.cwd / "a.txt").write_text("x")
    assert agents.answer(shell("rm a.txt"), {"say": "Then not."}) == "Then not.\n" and (agents.home_cli.cwd / "a.txt").exists()
    assert [(one["outcome"], one["optionId"]) for one in agents.journal("outcome")] == [("selected", "once"), ("selected", "no")]
    assert len(agents.prompts) == 2, "the agent has noticed the rejection itself"


def test_the_oldest_of_too_many_waiting_agents_is_stopped_and_still_continues(agents: FakeAgents) -> None:
    agents.add("load")
    tasks = []
    for n in range(9):
        (agents.home_cli.cwd / f"{n}.txt").write_text("x")
        tasks.append(agents.ask(shell(f"rm {n}.txt"), {"say": f"Gone: {n}."}))
        agents.settled(tasks[-1], "waiting")
    pids = [one["pid"] for one in agents.journal("greeted")]
    wait_until(lambda: not alive(pids[0]), "the first agent to end")
    assert all(map(alive, pids[1:])) and agents.home_cli.status(tasks[0])["status"] == "waiting"
    for n, task_id in enumerate(tasks):
        agents.home_cli.ok("approve", task_id)
        assert agents.settled(task_id)["status"] == "completed" and agents.home_cli.log(task_id) == f"Gone: {n}.\n".encode()
        assert not (agents.home_cli.cwd / f"{n}.txt").exists()
    assert len(agents.journal("greeted")) == 10, "the other agents were kept"


def test_an_approval_continues_the_same_agent_process(agents: FakeAgents) -> None:
    agents.add("load")
    (agents.home_cli.cwd / "a.txt").write_text("x")
    task_id = agents.ask(shell("rm a.txt"), {"say": "It is gone."})
    waiting = agents.settled(task_id, "waiting")
    assert "it wants to run `rm a.txt`" in str(waiting["error"]) and (agents.home_cli.cwd / "a.txt").exists()
    (greeted,) = agents.journal("greeted")
    assert alive(greeted["pid"])
    agents.home_cli.ok("approve", task_id)
    assert agents.settled(task_id)["status"] == "completed" and agents.home_cli.log(task_id) == b"It is gone.\n"
    assert not (agents.home_cli.cwd / "a.txt").exists()
    assert len(agents.journal("greeted")) == 1 and agents.journal("outcome")[0]["optionId"] == "once", "an approval is valid once"
    assert agents.used(task_id) == {"tokens": 7, "tool_calls": 1}


def test_a_rejection_reaches_the_agent_even_if_its_turn_ended(agents: FakeAgents) -> None:
    agents.add()
    for no in ("hears", "ends", "cancels"):
        (agents.home_cli.cwd / no).write_text("x")
    begin, end = {"say": "I begin."}, {"say": "Then I leave it."}
    task_ids = [agents.ask(begin, shell(f"rm {no}", no=no), end) for no in ("hears", "ends", "cancels")]
    for task_id in task_ids:
        agents.settled(task_id, "waiting")
    agents.home_cli.ok("reject", *task_ids)
    for task_id in task_ids:
        ended = agents.settled(task_id)
        assert ended["status"] == "completed" and agents.home_cli.log(task_id) == b"Then I leave it.\n", ended
    assert {one["optionId"] for one in agents.journal("outcome")} == {"no"} and len(agents.journal("greeted")) == 3
    follow_ups = sorted(text for text in agents.prompts if "[[script" not in text)
    assert [text.startswith("The user rejected this.") for text in follow_ups] == [True, True], (
        "an agent that noticed the rejection gets no further prompt"
    )
    assert "rm cancels" in follow_ups[0] and "rm ends" in follow_ups[1]
    assert all((agents.home_cli.cwd / no).exists() for no in ("hears", "ends", "cancels"))


def test_a_request_without_usable_options_is_cancelled(agents: FakeAgents) -> None:
    agents.add()
    only = [{"optionId": "always", "name": "Always", "kind": "allow_always"}]
    assert agents.answer(shell("ls", options=only), {"say": "Then not."}) == "Then not.\n", "an approval is valid once"
    task_id = agents.ask(shell("rm a.txt", options=only), {"say": "Then not."})
    agents.settled(task_id, "waiting")
    agents.home_cli.ok("reject", task_id)
    assert agents.settled(task_id)["status"] == "completed"
    assert [(one["outcome"], one.get("optionId")) for one in agents.journal("outcome")] == [("cancelled", None)] * 2


def test_two_simultaneous_permission_requests_are_asked_one_after_the_other(agents: FakeAgents) -> None:
    agents.add()
    for name in ("a.txt", "b.txt"):
        (agents.home_cli.cwd / name).write_text("x")
    task_id = agents.ask({"asks": [shell("rm a.txt"), shell("rm b.txt")]}, {"say": "One of two."})
    assert "rm a.txt" in str(agents.settled(task_id, "waiting")["error"])
    agents.home_cli.ok("approve", task_id)
    agents.settled(task_id, "waiting", words="rm b.txt")
    agents.home_cli.ok("reject", task_id)
    assert agents.settled(task_id)["status"] == "completed"
    assert not (agents.home_cli.cwd / "a.txt").exists() and (agents.home_cli.cwd / "b.txt").exists()
    assert [one["optionId"] for one in agents.journal("outcome")] == ["once", "no"]


def test_reading_and_creating_project_files_needs_no_approval(agents: FakeAgents) -> None:
    agents.add()
    cwd = agents.home_cli.cwd
    for name in ("a.txt", ".env"):
        (cwd / name).write_text("old")
    (cwd.parent / "outside.txt").write_text("x")
    free = [read("a.txt"), read(cwd / "a.txt"), edit(cwd / "new.txt"), edit("sub/new.txt")]
    elsewhere = [read(cwd.parent / "outside.txt"), read(".env"), edit(cwd.parent / "new.txt"), edit("link")]
    (cwd / "link").symlink_to(cwd.parent / "outside.txt")
    *none, changed, acted, read_outside, read_secret, made_outside, linked = agents.approval_requests(
        *free, edit(cwd / "a.txt", "EVIL"), edit("conftest.py"), *elsewhere
    )
    assert none == [""] * 4
    assert f"change {cwd / 'a.txt'}" in changed and "EVIL" in changed and "conftest.py" in acted
    assert f"read {cwd.parent / 'outside.txt'}" in read_outside and "read .env" in read_secret
    assert "outside the project" in made_outside and "outside the project" in linked
    agents.home_cli.ok("trust")
    assert ["outside the project" in one for one in agents.approval_requests(edit(cwd / "a.txt"), edit("link"))] == [False, True]
    assert agents.approval_requests(edit("a.txt")) == [""]


def test_existing_files_may_be_changed_in_a_worktree(agents: FakeAgents) -> None:
    agents.add()
    git(agents.home_cli, "init", "--quiet", "--initial-branch=main")
    (agents.home_cli.cwd / "a.txt").write_text("one\n")
    git(agents.home_cli, "add", "--all")
    git(agents.home_cli, "commit", "--quiet", "--message", "first")
    steps = [edit("a.txt", do="echo two > a.txt"), {"say": "Changed."}]
    task_id = agents.ask(*steps, options=("--worktree",))
    ended = agents.settled(task_id, "completed", "failed", "waiting")
    assert ended["status"] == "completed", ended
    assert "1 file changed" in agents.home_cli.log(task_id).decode() and (agents.home_cli.cwd / "a.txt").read_text() == "one\n"
    assert git(agents.home_cli, "show", f"backburner/{task_id}:a.txt") == "two\n"
    assert str(agents.home_cli.root) in agents.journal("new")[0]["cwd"]
    (approval_request,) = agents.approval_requests(edit(agents.home_cli.cwd / "a.txt"), options=("--worktree",))
    assert "outside the project" in approval_request, "the user's working tree is outside its worktree"


# Cancelling and ending


@pytest.mark.parametrize("words", [(), ("deaf", "stays")], ids=["polite", "deaf"])
def test_cancel_ends_all_processes_of_the_agent(agents: FakeAgents, words: tuple[str, ...]) -> None:
    agents.add(*words)
    task_id = agents.ask({"child": "own"}, {"child": "group"}, {"hang": 1})
    (hangs,) = agents.wait_for_event("hangs")
    agents.home_cli.ok("cancel", task_id)
    assert not any(alive(one["child"]) for one in agents.journal("child")) and not alive(hangs["pid"])
    assert agents.home_cli.status(task_id)["status"] == "cancelled" and agents.journal("cancelled"), "it was sent session/cancel first"


@pytest.mark.parametrize("words", [(), ("stubborn", "deaf", "stays")], ids=["polite", "stubborn"])
def test_cancel_ends_an_agent_that_waits_for_approval(agents: FakeAgents, words: tuple[str, ...]) -> None:
    agents.add(*words)
    task_id = agents.ask({"child": "own"}, shell("rm a.txt"), {"say": "Never."})
    agents.settled(task_id, "waiting")
    agents.home_cli.ok("cancel", task_id)
    assert agents.home_cli.status(task_id)["status"] == "cancelled"
    left = [agents.journal("greeted")[0]["pid"], agents.journal("child")[0]["child"]]
    wait_until(lambda: not any(map(alive, left)), "the agent to end")
    if "stubborn" in words:
        assert agents.journal("outcome")[0]["outcome"] == "cancelled"


def test_the_agent_and_its_processes_end_after_the_answer(agents: FakeAgents) -> None:
    agents.add("close", "deaf", "stays")
    assert agents.answer({"child": "own"}, {"child": "group"}, {"say": "Done."}) == "Done.\n"
    assert not any(alive(one["child"]) for one in agents.journal("child")) and not alive(agents.journal("greeted")[0]["pid"])


# Resuming


def test_resume_starts_a_new_process_with_the_full_conversation(agents: FakeAgents) -> None:
    kinds = [("load",), ("load", "late"), ("load", "resume"), ("load", "forgetful")]
    for words in kinds:
        agents.add(*words, name="-".join(words))
    task_ids = [agents.ask({"say": "It is teal."}, agent="-".join(words)) for words in kinds]
    for task_id in task_ids:
        agents.settled(task_id, "completed")
        agents.home_cli.ok("resume", task_id, f"And? {script({'recall': 1})}")
    for task_id in task_ids:
        assert agents.settled(task_id)["status"] == "completed"
        answer = agents.home_cli.log(task_id).decode()
        assert answer.startswith("I was told 1 things before: Please do this.") and "an old answer" not in answer
        assert agents.used(task_id) == {"tokens": 7, "tool_calls": 0}, "replayed messages are not counted again"
    assert len({one["pid"] for one in agents.journal("greeted")}) == 8
    assert (len(agents.journal("new")), len(agents.journal("loaded")), len(agents.journal("resumed"))) == (4, 3, 1)
    assert sum(text.startswith("And? ") for text in agents.prompts) == 4


def test_the_cost_of_a_resumed_session_is_counted_once(agents: FakeAgents) -> None:
    agents.add("load")
    task_id = agents.ask(
        {"update": "usage_update", "cost": {"amount": 0.5}}, {"update": "usage_update", "cost": {"amount": 0.75}}, {"say": "One."}
    )
    agents.settled(task_id)
    assert agents.used(task_id)["cost"] == 0.75
    agents.home_cli.ok("resume", task_id, script({"update": "usage_update", "cost": {"amount": 1.0}}, {"say": "Two."}), "--wait")
    assert agents.used(task_id)["cost"] == 0.25


def test_resume_of_a_lost_session_gives_the_expired_error(agents: FakeAgents) -> None:
    agents.add("load")
    agents.add(name="once")
    kept, once = agents.ask({"say": "One."}), agents.ask({"say": "One."}, agent="once")
    agents.settled(kept)
    agents.settled(once)
    for path in (agents.folder / "sessions").iterdir():
        path.unlink()
    for task_id in (kept, once):
        agents.home_cli.ok("resume", task_id, "And?")
        ended = agents.settled(task_id, "failed")
        assert str(ended["error"]).startswith(EXPIRED)
    assert len(agents.prompts) == 2


@pytest.mark.skipif(not LONG, reason="waits for the next minute")
def test_a_gemini_session_is_not_loaded_in_the_minute_of_its_creation(agents: FakeAgents) -> None:
    agents.add("load", "minute", name="gemini")
    task_id = agents.ask({"say": "One."}, agent="gemini")
    agents.settled(task_id)
    agents.home_cli.ok("resume", task_id, script({"recall": 1}))
    wait_until(lambda: agents.home_cli.status(task_id)["status"] in ("completed", "failed"), "the next minute", 90)
    assert agents.home_cli.log(task_id).startswith(b"I was told 1 things before")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_agent_ends_with_the_agent_process_and_can_be_resumed(agents: FakeAgents, number: int) -> None:
    agents.add("load", "stays", "deaf")
    task_id = agents.ask({"child": "own"}, {"child": "group"}, {"say": "I see."}, {"hang": 1})
    (hangs,) = agents.wait_for_event("hangs")
    agents.end_agent_process(number)
    ended = agents.settled(task_id)
    left = [hangs["pid"], *(one["child"] for one in agents.journal("child"))]
    wait_until(lambda: not any(map(alive, left)), "the agent to end")
    assert ended["status"] == "failed" and "interrupted" in str(ended["error"]) and "resumed" in str(ended["error"]), ended
    agents.home_cli.ok("resume", task_id, script({"recall": 1}), "--wait")
    assert agents.home_cli.log(task_id).startswith(b"I was told 1 things before: Please do this.")
    assert "hang" not in agents.prompts[1], "the first prompt is not repeated"


@pytest.mark.parametrize("moment", ["at work", "waiting", "leaving"])
def test_the_agent_process_ends_its_agent_when_terminated_without_an_engine(agents: FakeAgents, moment: str) -> None:
    agents.add("load", "stays", "deaf")
    last = {"at work": {"hang": 1}, "waiting": shell("rm a.txt"), "leaving": {"say": "Done."}}[moment]
    task_id = agents.ask({"child": "own"}, last)
    match moment:
        case "at work":
            agents.wait_for_event("hangs")
        case "waiting":
            agents.settled(task_id, "waiting")
        case "leaving":
            agents.wait_for_event("hung up")
    agents.home_cli.stop_engine()
    agents.end_agent_process(signal.SIGTERM)
    assert not alive(agents.journal("greeted")[0]["pid"]) and not alive(agents.journal("child")[0]["child"])


@pytest.mark.parametrize(("number", "answer"), [(signal.SIGKILL, "approve"), (signal.SIGKILL, "reject"), (signal.SIGTERM, "approve")])
def test_a_decision_reaches_the_agent_after_the_agent_process_ended(agents: FakeAgents, number: int, answer: str) -> None:
    agents.add("load", "stays", "deaf")
    (agents.home_cli.cwd / "a.txt").write_text("x")
    task_id = agents.ask({"child": "own"}, shell("rm a.txt"), {"say": "I heard."})
    agents.settled(task_id, "waiting")
    first = [one["pid"] for one in agents.journal("greeted")]
    agents.end_agent_process(number)
    wait_until(lambda: not any(map(alive, [*first, *(one["child"] for one in agents.journal("child"))])), "the agent to end")
    assert agents.home_cli.status(task_id)["status"] == "waiting"
    agents.home_cli.ok(answer, task_id, *(["--reason", "It is needed."] if answer == "reject" else []))
    agents.wait_for_event("prompted", 2)
    assert agents.prompts[1].endswith("Their reason: It is needed.") == (answer == "reject")
    decision = "approved" if answer == "approve" else "rejected"
    assert agents.prompts[1].startswith(f"The user {decision} your request: run `rm a.txt`")
    assert (
        agents.settled(task_id)["status"] == "completed"
        and agents.home_cli.log(task_id) == b"I heard.\n"
        and len(agents.journal("loaded")) == 1
    )
    assert (agents.home_cli.cwd / "a.txt").exists() == (answer == "reject"), "the step needed no second approval"


def test_an_approval_after_the_agent_process_ended_is_valid_once(agents: FakeAgents) -> None:
    agents.add("load")
    task_id = agents.ask(shell("rm a.txt"), shell("rm a.txt"), {"say": "Twice."})
    agents.settled(task_id, "waiting")
    agents.end_agent_process(signal.SIGKILL)
    agents.home_cli.ok("approve", task_id)
    agents.wait_for_event("outcome")
    agents.settled(task_id, "waiting")
    agents.home_cli.ok("reject", task_id)
    agents.settled(task_id)
    assert [one["optionId"] for one in agents.journal("outcome")] == ["once", "no"]


def test_a_used_up_budget_suspends_the_run_until_it_is_approved(agents: FakeAgents) -> None:
    agents.add("load")
    steps = [{"tool": f"t{n}", "kind": "read"} for n in range(2)] + [{"hang": 1}]
    task_id = agents.ask(*steps, options=("--budget", "tool_calls=2"))
    waiting = agents.settled(task_id, "waiting")
    assert "2 of 2 tool calls" in str(waiting["error"])
    (hangs,) = agents.journal("greeted")
    assert not alive(hangs["pid"]), "the agent does not run without a budget"
    agents.home_cli.ok("approve", task_id)
    agents.wait_for_event("prompted", 2)
    assert agents.prompts[1].startswith("You were interrupted in the middle of your work."), "the first prompt is in its history"
    agents.home_cli.ok("cancel", task_id)
    assert agents.used(task_id)["tool_calls"] >= 2, "earlier tool calls are counted"


def test_rejecting_a_budget_fails_the_run(agents: FakeAgents) -> None:
    agents.add("load")
    task_id = agents.ask({"tool": "t", "kind": "read"}, {"hang": 1}, options=("--budget", "tool_calls=1"))
    agents.settled(task_id, "waiting")
    agents.home_cli.ok("reject", task_id)
    ended = agents.settled(task_id)
    assert (ended["status"], ended["result"]) == ("failed", "budget")


# Environment and session


def test_the_agent_runs_in_the_session_of_its_task_not_of_its_submitter(agents: FakeAgents) -> None:
    agents.add("load")
    waiting = agents.home_cli.cli("run", "--", "git", "push")
    assert waiting.returncode == 3
    (proposed,) = agents.home_cli.json("list")  # type: ignore[misc]
    own = [sys.executable, "-m", "backburner"]
    steps = [
        {"run": [*own, "approve", proposed["task_id"]]},
        {"run": [*own, "run", "--wait", "--", "echo", "from inside"]},
        {"run": [sys.executable, "-c", "import resource; print(resource.getrlimit(10)[1])"]},
        {"say": "Done."},
    ]
    env = {"CLAUDECODE": "1", "CLAUDE_CODE_SESSION_ID": "s", "CODEX_THREAD_ID": "t", "OPENCODE": "1", "MINE": "kept"}
    task_id = agents.home_cli.ok("ask", "--agent", "fake", script(*steps), env=env).strip()
    agents.settled(task_id)
    environ = agents.journal("greeted")[0]["environ"]
    assert environ["BACKBURNER_TASK_ID"] == task_id and environ["MINE"] == "kept" and environ["BACKBURNER_SESSION"] == f"agent:{task_id}"
    assert not {"CLAUDECODE", "CLAUDE_CODE_SESSION_ID", "CODEX_THREAD_ID", "OPENCODE"} & environ.keys()
    approved, ran, limit = agents.journal("ran")
    assert approved["code"] == 3 and "Only a person can approve" in approved["err"]
    assert agents.home_cli.status(proposed["task_id"])["status"] == "proposed"
    assert ran["code"] == 0 and "from inside" in ran["out"], ran
    assert int(limit["out"]) == processes.INSIDE, "no child process can approve anything, even without the variables"


def test_notices_are_sent_with_the_next_prompt(agents: FakeAgents) -> None:
    agents.add("load")
    own = [sys.executable, "-m", "backburner", "run", "--", "echo", "from inside"]
    task_id = agents.ask({"run": own}, {"say": "Started."})
    agents.settled(task_id)
    started_id = agents.journal("ran")[0]["out"].strip()
    agents.settled(started_id)
    agents.home_cli.ok("resume", task_id, script({"say": "I know."}), "--wait")
    assert (
        started_id in agents.prompts[1] and "Automatic notice from Backburner" in agents.prompts[1] and started_id not in agents.prompts[0]
    )


def test_a_recurring_task_reports_only_changes(agents: FakeAgents) -> None:
    agents.add("load", more=f'{ASKS}instructions = "Be brief."\n')
    todo = agents.home_cli.cwd / "ci.txt"
    words = ("--every", "1h", "--agent", "fake", "--prompt", "Look.", "--wake", "success", "--", "cat", "ci.txt")
    task_id = agents.home_cli.ok("add", "ci", *words).strip()
    for state, message in (("passing", "All is well."), ("passing", "As before."), ("failed", "Red!")):
        result = json.dumps({"report": True, "state": state, "message": message})
        todo.write_text(script({"say": f"I looked {{around}}.\n```json\n{result}\n```\n"}))
        run_id = agents.home_cli.ok("run-now", "ci").strip()
        wait_until(lambda: not agents.app.queries.find("ci", caller(agents.app)).is_live, f"{run_id} to end")
        run = next(run for run in agents.home_cli.status("ci")["runs"] if run["run_id"] == run_id)  # type: ignore[attr-defined]
        assert (run["status"], run["result"], run["tokens_used"]) == ("completed", message, 7)
    assert [notice["text"] for notice in agents.home_cli.json("inbox", "--ack")] == ["ci: All is well.", "ci: Red!"]  # type: ignore[union-attr, index, call-overload]
    assert len(agents.journal("new")) == 3 and not agents.journal("loaded"), "each run has its own conversation"
    assert agents.home_cli.log(task_id) == b"Red!\n"
    assert agents.prompts[0].startswith("Be brief.") and "one JSON object" in agents.prompts[0]


# Messages recorded from the real agents

PROJECT = "/home/ada/project"
SHELL = {
    "opencode": {"title": "touch made", "kind": "execute", "locations": [], "rawInput": {"command": "touch made"}},
    "claude": {
        "name": "Bash",
        "rawInput": {"command": "touch made", "description": "d"},
        "title": "touch made",
        "kind": "execute",
        "content": [{"type": "content", "content": {"type": "text", "text": "d"}}],
        "locations": [{"path": f"{PROJECT}/made"}],
    },
    "codex": {"title": "touch made", "rawInput": {"command": "touch made", "cwd": PROJECT}, "kind": "execute"},
    "goose": {"kind": "other", "title": "shell", "rawInput": {"command": "touch made"}},
    "qwen": {
        "title": "touch made (d)",
        "content": [],
        "locations": [],
        "kind": "execute",
        "rawInput": {"command": "touch made", "description": "d", "is_background": False},
        "_meta": {"toolName": "run_shell_command"},
    },
}
DIFF = {"type": "diff", "path": f"{PROJECT}/written.txt", "oldText": "", "newText": "hello\nworld\n"}
PLACES = [{"path": f"{PROJECT}/written.txt"}]
EDIT = {
    "opencode": {
        "title": f"{PROJECT}/written.txt",
        "kind": "edit",
        "locations": PLACES,
        "rawInput": {"filepath": f"{PROJECT}/written.txt", "diff": "@@ -0,0 +1,2 @@\n+hello\n+world\n"},
        "content": [DIFF],
    },
    "claude": {
        "name": "Write",
        "rawInput": {"file_path": f"{PROJECT}/written.txt", "content": "hello\nworld\n"},
        "title": "Write written.txt",
        "kind": "edit",
        "content": [{**DIFF, "oldText": None}],
        "locations": PLACES,
    },
    "codex": {"title": "Edit files", "locations": PLACES, "kind": "edit", "content": [{**DIFF, "oldText": None}]},
    "gemini": {"title": "Writing to written.txt", "content": [{**DIFF, "_meta": {"kind": "add"}}], "locations": PLACES, "kind": "edit"},
    "goose": {"kind": "other", "title": "write", "rawInput": {"path": f"{PROJECT}/written.txt", "content": "hello\nworld\n"}},
    "qwen": {
        "title": "Writing to written.txt",
        "content": [DIFF],
        "locations": PLACES,
        "kind": "edit",
        "rawInput": {"file_path": f"{PROJECT}/written.txt", "content": "hello\nworld\n"},
        "_meta": {"toolName": "write_file"},
    },
}


@pytest.mark.parametrize("agent", SHELL)
def test_a_command_is_read_from_its_arguments_not_from_its_title(agent: str) -> None:
    request = message_fields.acp_permission_request({"toolCallId": "c1", "status": "pending", **SHELL[agent]}, agent)
    assert (request.kind, request.command, request.description) == ("command", "touch made", "run `touch made`")
    assert request.cwd == (PROJECT if agent == "codex" else "")


def test_a_command_with_only_a_title_needs_a_person() -> None:
    where = [{"type": "content", "content": {"type": "text", "text": f"[current working directory {PROJECT}] (d)"}}]
    gemini = {"toolCallId": "run_shell_command__1", "title": "touch made", "content": where, "locations": [], "kind": "execute"}
    assert message_fields.acp_permission_request(gemini)[:5] == ("other", "run `touch made`", "", (), "")


@pytest.mark.parametrize("agent", EDIT)
def test_a_file_change_has_its_path_and_its_text(agent: str) -> None:
    request = message_fields.acp_permission_request({"toolCallId": "c1", "status": "pending", **EDIT[agent]}, agent)
    assert (request.kind, request.paths) == ("edit", (f"{PROJECT}/written.txt",))
    assert request.description.startswith(f"change {PROJECT}/written.txt: ") and repr("hello\nworld\n") in request.description


def test_other_requests_are_classified_only_if_certain() -> None:
    claude = {
        "name": "Read",
        "rawInput": {"file_path": "/etc/hostname"},
        "title": "Read",
        "kind": "read",
        "locations": [{"path": "/etc/hostname", "line": 1}],
    }
    assert message_fields.acp_permission_request(claude)[:4] == ("read", "read /etc/hostname", "", ("/etc/hostname",))
    qwen = {"title": "/etc/hostname", "locations": [{"path": "/etc/hostname"}], "kind": "read", "rawInput": {"file_path": "/etc/hostname"}}
    assert message_fields.acp_permission_request(qwen).paths == ("/etc/hostname",)
    opencode = {
        "title": "/etc",
        "kind": "other",
        "locations": [{"path": "/etc"}],
        "rawInput": {"filepath": "/etc/hostname", "parentDir": "/etc"},
    }
    assert (
        message_fields.acp_permission_request(opencode).kind == "other"
        and "/etc/hostname" in message_fields.acp_permission_request(opencode).description
    )
    outside = {"title": "cd / && ls", "kind": "other", "rawInput": {"command": "cd / && ls", "directories": ["/"], "patterns": ["/*"]}}
    assert message_fields.acp_permission_request(outside, "opencode-acp")[:3] == ("command", "run `cd / && ls`", "cd / && ls")
    assert message_fields.acp_permission_request(outside, "qwen").kind == "other", "only OpenCode uses it like this"
    more = {"title": "make", "kind": "execute", "rawInput": {"command": "make", "shell": "evil"}}
    assert message_fields.acp_permission_request(more).kind == "other" and "evil" in message_fields.acp_permission_request(more).description
    patch = {"title": "patch", "kind": "edit", "rawInput": {"filepath": "src/a.py, .git/hooks/pre-commit", "diff": "+"}}
    assert message_fields.acp_permission_request(patch, "opencode-acp").kind == "other", "several files in one path are not recognised"
    moved = {"kind": "move", "title": "mv", "locations": [{"path": "a"}, {"path": "../b"}]}
    assert message_fields.acp_permission_request(moved).kind == "other", "a move has an unknown target"
    assert message_fields.acp_permission_request({"kind": "execute", "rawInput": {"command": ["rm", "a b"]}}).command == "rm 'a b'"
    assert message_fields.acp_permission_request({"kind": "edit", "title": "Edit files"})[:5] == ("other", "Edit files", "", (), "")
    assert (
        message_fields.acp_permission_request({"kind": "fetch", "title": "Get it", "rawInput": {"url": "http://x"}}).description
        == 'use Get it: {"url": "http://x"}'
    )
    assert (
        message_fields.acp_permission_request({}).kind == "other"
        and message_fields.acp_permission_request({"rawInput": "text", "kind": "read"}).kind == "other"
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ({"toolCallId": "run_shell_command__call_1", "title": "touch x", "kind": "execute"}, "run_shell_command"),
        ({"toolCallId": "c", "name": "Bash", "kind": "execute"}, "Bash"),
        ({"toolCallId": "c", "_meta": {"toolName": "write_file"}, "kind": "edit"}, "write_file"),
        ({"toolCallId": "c", "_meta": {"goose": {"toolCall": {"toolName": "shell"}}}, "kind": "other"}, "shell"),
        ({"toolCallId": "c", "kind": "read", "title": "a.txt"}, "read"),
        ({}, "tool"),
    ],
)
def test_tool_names_are_short(call: dict[str, Any], name: str) -> None:
    assert message_fields.tool_name(call) == name


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ({"usage": {"inputTokens": 2, "outputTokens": 2, "totalTokens": 4}, "_meta": {"quota": {"token_count": {"totalTokens": 6}}}}, 4),
        ({"_meta": {"quota": {"token_count": {"input_tokens": 2, "output_tokens": 3}}}}, 5),
        ({"usage": None, "_meta": {"quota": {"token_count": None, "model_usage": []}}}, 0),
        ({"_meta": {"qwen.branchPoint": {}}}, 0),
    ],
    ids=["claude, codex, goose, opencode", "gemini", "codex, failed", "qwen"],
)
def test_used_tokens_are_read_from_the_fields_of_each_agent(answer: dict[str, Any], tokens: float) -> None:
    assert message_fields.used_tokens({"stopReason": "end_turn", **answer}) == tokens


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RequestError(-32603, "Internal error: scripted 400", {"service": "session", "errorName": "APIError"}),
            "Internal error: scripted 400: APIError",
        ),
        (RequestError(-32002, "Resource not found", "Session not found: x"), "Resource not found: Session not found: x"),
        (RequestError(-32603, "Internal error", {"details": "no rollout found"}), "Internal error: no rollout found"),
        (RequestError(400, "the body", None), "the body"),
    ],
)
def test_a_protocol_error_has_its_reason(error: RequestError, words: str) -> None:
    assert message_fields.error_message(error) == words


def task(**options: object) -> Task:
    return records.task("task_x", agent="default", prompt="Look.", terms=options)


def parse_answer(answer: str, **terms: object) -> Outcome:
    return prompts.parse_result(task(**terms), Outcome(Result.EXIT, 0, answer=answer))


def test_a_result_is_parsed_from_the_end_of_a_text() -> None:
    result = '{"report": false, "state": "passing", "message": "All {is} well."}'
    for answer in (result, f"I looked at {{}}.\n{result}", f"So:\n```json\n{result}\n```\n", f"{result}\nand again\n{result}  "):
        found = parse_answer(answer)
        assert (found.answer, found.report) == ("All {is} well.", False)
    assert parse_answer(result).digest == parse_answer(result.replace("passing", " Passing").replace("All", "Now all")).digest
    assert parse_answer(result).digest != parse_answer(result.replace("passing", "failing")).digest


def test_declared_fields_are_parsed_from_a_text() -> None:
    found = parse_answer('Measured: {"used": 81.5, "host": "a", "message": "Nearly full."}', fields=["used", "host"])
    assert found.answer == "Nearly full.\nused: 81.5\nhost: a" and found.report
    assert found.digest == parse_answer('{"used": 81.5, "host": "a", "message": "Other words."}', fields=["used", "host"]).digest


@pytest.mark.parametrize("answer", ["All is well.", '{"state": "passing"}', '{"report": true, "state": "x"} and more', "{" * 5000, ""])
def test_a_text_without_a_result_is_reported_and_compared_as_a_whole(answer: str) -> None:
    found = parse_answer(answer)
    assert found.answer == answer and found.report and found.digest != parse_answer(f"{answer} Or not.").digest
    assert found.digest == parse_answer(f"  {answer}\n").digest
