"""Agents of the Agent Client Protocol from the command line: a scripted one behaves as the real ones do, at their best and at their worst."""

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
from conftest import CONFIG, LONG, Place, caller, wait_until

from backburner.agents import prompts as briefing
from backburner.agents.external import message_fields as dialects
from backburner.core.models import Task
from backburner.core.ports import Outcome
from backburner.core.states import Result
from backburner.services.app import App, open_app
from backburner.system import processes as process
from backburner.testing import records

SCRIPTED = Path(__file__).parent / "scripted_acp.py"
EXPIRED = "Session expired or was deleted. Start a new background_task to continue."
ASKS = 'asks = "yes"\n'


class Company:
    """A home with scripted agents, and what they noted down."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.folder = place.root.parent / "agent"
        self.folder.mkdir()
        self._agents: dict[str, str] = {}
        self._open = contextlib.ExitStack()
        self._app: App | None = None

    def hire(self, *words: str, name: str = "fake", more: str = ASKS, settings: str = "") -> None:
        """Have an agent of that name, whose program is told these words."""
        command = shlex.join([sys.executable, "-I", str(SCRIPTED), str(self.folder), *words])
        self._agents[name] = f'[agents.{name}]\ntype = "acp"\ncommand = {json.dumps(command)}\n{more}'
        self.place.configure(
            f"{CONFIG}[tasks]\nmax_concurrent = 8\n[models]\nmax_concurrent = 8\n{settings}{''.join(self._agents.values())}"
        )

    def ask(self, *steps: dict[str, Any], options: tuple[str, ...] = (), agent: str = "fake") -> str:
        return self.place.ok("ask", "--agent", agent, *options, script(*steps)).strip()

    @property
    def app(self) -> App:
        """The home as a library sees it, to look often and cheaply."""
        if self._app is None:
            self._app = self._open.enter_context(open_app(self.place.home))
        return self._app

    def close(self) -> None:
        self._open.close()

    def settled(self, task_id: str, *states: str, words: str = "") -> dict[str, Any]:
        """Wait until a task has ended, or is in one of these states with these words as its error."""
        wanted = states or ("completed", "failed", "cancelled")

        def is_so() -> bool:
            entry = self.app.queries.get(task_id)
            return entry.status in wanted and words in str(entry.run and entry.run.error)

        wait_until(is_so, f"{task_id} to be {' or '.join(wanted)} {words}", 40)
        return self.place.status(task_id)

    def answers(self, *scripts: list[dict[str, Any]], agent: str = "fake") -> list[str]:
        """What comes of these steps, each asked for by itself: an answer, or else why there is none."""
        told = []
        for task_id in [self.ask(*steps, agent=agent) for steps in scripts]:
            ended = self.settled(task_id)
            told.append(self.place.log(task_id).decode() if ended["status"] == "completed" else f"{ended['status']}: {ended['error']}")
        return told

    def answer(self, *steps: dict[str, Any], agent: str = "fake") -> str:
        return self.answers([*steps], agent=agent)[0]

    def questions(self, *steps: dict[str, Any], options: tuple[str, ...] = ()) -> list[str]:
        """What a person is asked for at each of these steps; empty where nobody is."""
        asked = [self.ask(step, {"say": "Done."}, options=options) for step in steps]
        found = [str(self.settled(task_id, "waiting", "completed")["error"] or "") for task_id in asked]
        self.place.cli("cancel", *asked)
        return found

    def used(self, task_id: str) -> dict[str, float]:
        return self.place.status(task_id)["usage"]  # type: ignore[return-value]

    def activity(self, task_id: str) -> dict[str, Any]:
        """What the tools of clients say of its progress."""
        return dict(self.app.runs.activity(self.app.queries.get(task_id)))

    def journal(self, event: str) -> list[dict[str, Any]]:
        """What happened of that kind, to whichever agent."""
        try:
            lines = (self.folder / "journal.jsonl").read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def until(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.journal(event)) >= count, f"{count} times {event}", 40)
        return self.journal(event)

    @property
    def prompts(self) -> list[str]:
        return [one["text"] for one in self.journal("prompted")]

    def end_host(self, number: int) -> None:
        for host in self.place.hosts("agents.process"):
            process.send(host, number)
            wait_until(lambda host=host: not process.is_alive(host), "the agent process to be gone")  # type: ignore[misc]


def script(*steps: dict[str, Any]) -> str:
    return f"Please do this. [[script: {json.dumps(steps)}]]"


def shell(command: str, **about: Any) -> dict[str, Any]:
    """A command that is asked for, and run where it is allowed."""
    return {"ask": {"title": command, "kind": "execute", "rawInput": {"command": command}}, "do": command, **about}


def edit(path: Path | str, text: str = "new", **about: Any) -> dict[str, Any]:
    diff = {"type": "diff", "path": str(path), "oldText": None, "newText": text}
    return {"ask": {"title": f"Write {path}", "kind": "edit", "content": [diff], "locations": [{"path": str(path)}]}, **about}


def read(path: Path | str) -> dict[str, Any]:
    return {"ask": {"title": f"Read {path}", "kind": "read", "rawInput": {"file_path": str(path)}, "locations": [{"path": str(path)}]}}


def alive(pid: int) -> bool:
    return process.identify(pid) is not None


def git(place: Place, *words: str) -> str:
    named = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *words]
    return subprocess.run(named, cwd=place.cwd, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.fixture
def agents(place: Place) -> Iterator[Company]:
    """A home with agents, of whom nothing is left when the hosts have gone."""
    company = Company(place)
    yield company
    company.close()
    place.stop_engine()

    def gone() -> bool:
        hosts = place.hosts("agents.process")
        for one in hosts:
            process.send(one, signal.SIGTERM)
        return not hosts

    wait_until(gone, "the agent process to leave")


# -- answers


def test_it_is_asked_in_its_project_and_what_it_said_last_is_the_answer(agents: Company) -> None:
    agents.hire("load")
    cost = {"used": 9, "size": 100, "cost": {"amount": 0.25, "currency": "USD"}}
    steps = [
        {"say": "I begin. "},
        {"tool": "ls", "kind": "execute"},
        {"say": "I look. "},
        {"tool": "Read a.txt", "kind": "read", "name": "Read"},
    ]
    task_id = agents.ask(*steps, {"update": "usage_update", **cost}, {"say": "It is "}, {"say": "done."})
    assert agents.settled(task_id)["status"] == "completed" and agents.place.log(task_id) == b"It is done.\n"
    assert agents.used(task_id) == {"tokens": 7, "tool_calls": 2, "cost": 0.25}
    (listed,) = agents.place.json("list")  # type: ignore[misc]
    assert (listed["task_id"], listed["type"], listed["agent"], listed["summary"]) == (task_id, "agent", "fake", "It is done.")
    (greeted,), (opened,) = agents.journal("greeted"), agents.journal("new")
    assert greeted["cwd"] == opened["cwd"] == str(agents.place.cwd) and greeted["capabilities"] == {}
    assert not alive(greeted["pid"]) and agents.journal("left"), "it was given the time to leave by itself"


def test_how_far_it_is_can_be_seen_while_it_works(agents: Company) -> None:
    agents.hire()
    steps = [{"tool": f"tool {n}", "_meta": {"toolName": f"t{n}"}} for n in range(7)]
    task_id = agents.ask(*steps, {"hang": 1})
    wait_until(lambda: agents.activity(task_id).get("tools") == 7, "all its tools to be seen", 40)
    assert agents.activity(task_id)["recent"] == ["t2", "t3", "t4", "t5", "t6"]
    status = agents.place.status(task_id)
    assert status["status"] == "running" and status["pid"] == agents.journal("greeted")[0]["pid"]
    agents.place.ok("cancel", task_id)
    assert agents.used(task_id)["tool_calls"] == 7


def test_what_is_beside_the_answer_is_left_out_of_it(agents: Company) -> None:
    agents.hire("close")
    warned = [{"say": "Warning: no metadata.\n\n"}, {"say": "I begin. ", "messageId": "m1"}, {"say": "Done.", "messageId": "m2"}]
    assert agents.answer(*warned) == "Done.\n"
    counted = {"update": "agent_message_chunk", "content": {"type": "text", "text": ""}, "_meta": {"usage": {"totalTokens": 30}}}
    thought = {"update": "agent_thought_chunk", "content": {"type": "text", "text": "Hm."}}
    task_id = agents.ask(thought, {"say": "Counted."}, counted, counted, {"end": {"stopReason": "end_turn"}})
    agents.settled(task_id)
    assert agents.place.log(task_id) == b"Counted.\n" and agents.used(task_id)["tokens"] == 60
    notified = {"raw": json.dumps({"jsonrpc": "2.0", "method": "_auth/status_update", "params": {}})}
    assert agents.answer(notified, {"request": "fs/write_text_file", "path": "x"}, {"say": "All the same."}) == "All the same.\n"
    assert agents.journal("answered")[0]["answer"]["error"]["code"] == -32601
    assert len(agents.journal("closed")) == 3, "it was told that its session is over"


def test_long_lines_and_a_flood_of_complaints_do_no_harm(agents: Company) -> None:
    agents.hire()
    huge = agents.ask({"flood": 10_000_000})
    long, loud = agents.ask({"flood": 70_000}), agents.ask({"stderr": 20_000}, {"say": "Heard."})
    for task_id in (huge, long, loud):
        assert agents.settled(task_id)["status"] == "completed"
    assert agents.place.log(long) == b"x" * 70_000 + b"\n" and agents.place.log(loud) == b"Heard.\n"
    assert 4 << 20 <= len(agents.place.log(huge)) < 5 << 20


def test_complaints_without_end_do_not_fill_the_disk(agents: Company) -> None:
    agents.hire()
    task_id = agents.ask({"stderr": 30_000}, {"hang": 1})
    errors = agents.place.folder(task_id) / "agent.err"
    wait_until(lambda: errors.exists() and 0 < errors.stat().st_size <= 1 << 20, "the first of them to be dropped", 40)
    kept = errors.read_bytes()
    assert kept and set(kept) <= set(b"y\n")
    agents.place.ok("cancel", task_id)


def test_a_line_that_is_no_message_is_passed_over(agents: Company) -> None:
    agents.hire()
    assert agents.answer({"raw": "Debugger attached."}, {"raw": ""}, {"raw": "{"}, {"say": "Here."}) == "Here.\n"


def test_nor_is_one_that_only_looks_like_a_message(agents: Company) -> None:
    agents.hire()
    lines = ["4711", "null", '"ready"', "[1, 2]"]
    assert agents.answers(*([{"raw": line}, {"say": "Here."}] for line in lines)) == ["Here.\n"] * 4


def test_what_it_says_unasked_after_the_end_of_its_turn_is_not_its_answer(agents: Company) -> None:
    agents.hire()
    assert agents.answer({"say": "Asked."}, {"late": "Unasked."}) == "Asked.\n"


# -- failures


def test_a_failure_is_known_by_its_evidence_and_not_by_the_stop_reason(agents: Company) -> None:
    agents.hire()
    for name in ("goose", "codex"):
        agents.hire(name=name)
    trouble = "Ran into this error: 500. Please retry if you think this is a transient or recoverable error."
    done = {"end": {"stopReason": "end_turn"}}
    assert agents.answer({"say": trouble}, done, agent="goose") == f"failed: its provider failed: {trouble}"
    silent = {"end": {"stopReason": "end_turn", "usage": None, "_meta": {"quota": {"token_count": None}}}}
    retried = {"update": "session_info_update", "_meta": {"codex": {"error": {"message": "Reconnecting... 1/5", "willRetry": True}}}}
    broken = {"update": "session_info_update", "_meta": {"codex": {"threadStatus": {"type": "systemError"}}}}
    told = agents.answers([{"say": "Oh."}, silent], [retried, broken, {"say": "Oh."}], [retried, {"say": "Well again."}], agent="codex")
    assert (
        told[0] == "failed: its provider failed: Oh." and told[1].startswith("failed: its provider failed: ") and told[2] == "Well again.\n"
    )
    wrong = {"code": -32603, "message": "Internal error", "data": {"details": "400 bad request"}}
    half = [{"say": "Half."}, {"end": {"stopReason": "max_tokens"}}]
    assert agents.answers([{"say": "Nothing is counted."}, done], [done], half, [{"error": wrong}]) == [
        "Nothing is counted.\n",
        "failed: it ended its turn without an answer",
        "failed: it stopped before the end: max_tokens. It had said: Half.",
        "failed: Internal error: 400 bad request",
    ]


def test_one_that_dies_is_told_with_its_last_words(agents: Company) -> None:
    agents.hire()
    told = agents.answer({"say": "Half."}, {"die": 3, "words": "Trace:\n  somewhere\nPanic: out of luck\n\n"})
    assert told.startswith("failed: ") and told.endswith("ended in the middle of it: Panic: out of luck")
    told = agents.answer({"child": "group"}, {"child": "own"}, {"die": 0})
    assert told.startswith("failed: ") and told.endswith("ended in the middle of it")
    assert not any(alive(one["child"]) for one in agents.journal("child"))


def test_silence_ends_a_turn_but_not_while_a_tool_works(agents: Company) -> None:
    agents.hire(settings="timeout_seconds = 1\n")
    task_id = agents.ask({"hang": 1})
    working = agents.ask(
        {"update": "tool_call", "toolCallId": "c1", "title": "make", "kind": "execute"}, {"run": ["sleep", "2.5"]}, {"say": "Made."}
    )
    ended = agents.settled(task_id)
    assert ended["status"] == "failed" and "silent for too long" in str(ended["error"])
    assert agents.journal("cancelled") and not alive(agents.journal("hangs")[0]["pid"])
    assert agents.settled(working)["status"] == "completed"


def test_a_call_that_was_refused_is_not_at_work_any_more(agents: Company) -> None:
    (agents.place.cwd / "a.txt").write_text("old")
    agents.hire(settings="timeout_seconds = 1\n")
    task_id = agents.ask(edit("a.txt", no="cancels"), {"hang": 1})
    agents.settled(task_id, "waiting")
    agents.place.ok("reject", task_id)
    ended = agents.settled(task_id)
    assert ended["status"] == "failed" and "silent for too long" in str(ended["error"])


def test_a_step_that_a_person_allowed_may_take_its_time(agents: Company) -> None:
    agents.hire(settings="timeout_seconds = 1\n")
    asked = [agents.ask(shell("rm -f old.txt; sleep 2.5", announced=announced), {"say": "Made."}) for announced in (True, False)]
    for task_id in asked:
        agents.settled(task_id, "waiting")
    agents.place.ok("approve", *asked)
    assert [agents.settled(task_id)["error"] for task_id in asked] == [None, None]


def test_a_task_has_a_time(agents: Company) -> None:
    agents.hire()
    ended = agents.settled(agents.ask({"child": "own"}, {"hang": 1}, options=("--timeout", "2s")))
    assert ended["status"] == "failed" and "timed out" in str(ended["error"])
    assert not alive(agents.journal("child")[0]["child"]) and not alive(agents.journal("hangs")[0]["pid"])


# -- settings


def test_an_agent_that_is_not_there_is_one_sentence(agents: Company) -> None:
    agents.place.configure(f'{CONFIG}[agents.ghost]\ntype = "acp"\ncommand = "no-such-agent --acp"\n')
    done = agents.place.cli("ask", "--agent", "ghost", "Hello")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert "requires the program no-such-agent, which is not on the PATH" in done.stderr
    empty = {"PATH": os.path.dirname(sys.executable)}
    done = agents.place.cli("ask", "--agent", "claude", "Hello", env=empty)
    assert done.returncode == 2 and "npm install -g @agentclientprotocol/claude-agent-acp" in done.stderr
    assert agents.place.json("list") == []


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
def test_wrong_settings_are_one_sentence(agents: Company, table: str, sentence: str) -> None:
    agents.place.configure(f"{CONFIG}[agents.odd]\n{table}")
    done = agents.place.cli("ask", "--agent", "odd", "Hello")
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1 and "config.toml, line" in done.stderr


def test_its_mode_its_model_and_its_key_are_told_to_it(agents: Company) -> None:
    agents.hire("mode=auto", more=f'{ASKS}mode = "ask"\nmodel = "large"\nauth = "by-key"\n')
    agents.hire("mode=auto", name="lost", more=f'{ASKS}mode = "yolo"\n')
    agents.hire("mode=ask", name="right", more=f'{ASKS}mode = "ask"\n')
    agents.hire(name="qwen", more=ASKS)
    assert agents.answer({"say": "Yes."}) == "Yes.\n"
    assert [one["mode"] for one in agents.journal("mode")] == ["ask"] and [one["model"] for one in agents.journal("model")] == ["large"]
    assert [one["method"] for one in agents.journal("authenticated")] == ["by-key"]
    assert agents.answer({"say": "Yes."}, agent="lost") == "failed: it has no mode 'yolo'; it has ask, auto"
    assert agents.answer({"say": "Yes."}, agent="right") == "Yes.\n" and len(agents.journal("mode")) == 1
    task_id = agents.place.ok("ask", "--agent", "qwen", script({"say": "Yes."}), env={"OPENAI_API_KEY": "k"}).strip()
    agents.settled(task_id)
    assert [one["method"] for one in agents.journal("authenticated")] == ["by-key", "openai"]


def test_the_doctor_greets_it(agents: Company) -> None:
    agents.hire("stays", "deaf")
    assert "ok   agent fake (acp) answers" in agents.place.cli("doctor").stdout
    assert agents.journal("greeted") and not agents.prompts and not alive(agents.journal("greeted")[0]["pid"])
    agents.place.configure(f'{CONFIG}[agents.sick]\ntype = "acp"\ncommand = "false"\n')
    done = agents.place.cli("doctor")
    assert done.returncode == 1 and "BAD  agent sick (acp): " in done.stdout


def test_one_that_does_not_ask_needs_a_yes_first(agents: Company) -> None:
    agents.hire(more="")
    done = agents.place.cli("ask", "--agent", "fake", script({"say": "Done."}))
    assert done.returncode == 3 and "does not ask for permission before it acts" in done.stderr + done.stdout
    (task,) = agents.place.json("list")  # type: ignore[misc]
    assert task["status"] == "proposed" and not agents.journal("greeted")
    agents.place.ok("approve", task["task_id"])
    assert agents.settled(task["task_id"])["status"] == "completed" and agents.place.log(task["task_id"]) == b"Done.\n"
    agents.hire(name="goose", more="")
    assert agents.place.cli("ask", "--agent", "goose", "x").returncode == 3, "it is goose in name only"


def test_nor_does_it_hear_more_without_another_yes(agents: Company) -> None:
    agents.hire("load", more="")
    agents.place.cli("ask", "--agent", "fake", script({"say": "One."}))
    (task,) = agents.place.json("list")  # type: ignore[misc]
    task_id = task["task_id"]
    agents.place.ok("approve", task_id)
    agents.settled(task_id)
    done = agents.place.cli("resume", task_id, "--wait", script({"say": "Two."}))
    assert done.returncode == 3 and "does not ask before it acts" in done.stderr and "Two." in done.stderr
    assert agents.place.status(task_id)["status"] == "waiting" and len(agents.prompts) == 1
    agents.place.ok("approve", task_id)
    assert agents.settled(task_id)["status"] == "completed" and agents.place.log(task_id) == b"Two.\n"
    agents.place.ok("resume", task_id, script({"say": "Three."}))
    agents.settled(task_id, "waiting")
    agents.place.ok("reject", task_id)
    assert agents.settled(task_id, "failed")["error"] == "a person said no" and len(agents.prompts) == 2


# -- permissions


def test_what_the_gate_knows_is_answered_without_a_person(agents: Company) -> None:
    never = '[[approval.rules]]\nname = "never"\ndecision = "deny"\ncommand = "rm **"\nmatch = ["rm -rf x"]\nnot_match = ["ls"]\n'
    agents.hire(settings=never)
    assert agents.answer(shell("ls"), {"say": "Listed."}) == "Listed.\n"
    (agents.place.cwd / "a.txt").write_text("x")
    assert agents.answer(shell("rm a.txt"), {"say": "Then not."}) == "Then not.\n" and (agents.place.cwd / "a.txt").exists()
    assert [(one["outcome"], one["optionId"]) for one in agents.journal("outcome")] == [("selected", "once"), ("selected", "no")]
    assert len(agents.prompts) == 2, "it has heard of the refusal itself"


def test_of_many_that_wait_the_first_is_not_kept_and_goes_on_all_the_same(agents: Company) -> None:
    agents.hire("load")
    tasks = []
    for n in range(9):
        (agents.place.cwd / f"{n}.txt").write_text("x")
        tasks.append(agents.ask(shell(f"rm {n}.txt"), {"say": f"Gone: {n}."}))
        agents.settled(tasks[-1], "waiting")
    pids = [one["pid"] for one in agents.journal("greeted")]
    wait_until(lambda: not alive(pids[0]), "the first to be ended")
    assert all(map(alive, pids[1:])) and agents.place.status(tasks[0])["status"] == "waiting"
    for n, task_id in enumerate(tasks):
        agents.place.ok("approve", task_id)
        assert agents.settled(task_id)["status"] == "completed" and agents.place.log(task_id) == f"Gone: {n}.\n".encode()
        assert not (agents.place.cwd / f"{n}.txt").exists()
    assert len(agents.journal("greeted")) == 10, "the others were there all the time"


def test_a_person_is_asked_and_the_same_process_goes_on_with_the_yes(agents: Company) -> None:
    agents.hire("load")
    (agents.place.cwd / "a.txt").write_text("x")
    task_id = agents.ask(shell("rm a.txt"), {"say": "It is gone."})
    waiting = agents.settled(task_id, "waiting")
    assert "it wants to run `rm a.txt`" in str(waiting["error"]) and (agents.place.cwd / "a.txt").exists()
    (greeted,) = agents.journal("greeted")
    assert alive(greeted["pid"])
    agents.place.ok("approve", task_id)
    assert agents.settled(task_id)["status"] == "completed" and agents.place.log(task_id) == b"It is gone.\n"
    assert not (agents.place.cwd / "a.txt").exists()
    assert len(agents.journal("greeted")) == 1 and agents.journal("outcome")[0]["optionId"] == "once", "a yes is for once"
    assert agents.used(task_id) == {"tokens": 7, "tool_calls": 1}


def test_a_no_is_told_to_it_whether_its_turn_goes_on_or_ends_with_it(agents: Company) -> None:
    agents.hire()
    for no in ("hears", "ends", "cancels"):
        (agents.place.cwd / no).write_text("x")
    begin, end = {"say": "I begin."}, {"say": "Then I leave it."}
    asked = [agents.ask(begin, shell(f"rm {no}", no=no), end) for no in ("hears", "ends", "cancels")]
    for task_id in asked:
        agents.settled(task_id, "waiting")
    agents.place.ok("reject", *asked)
    for task_id in asked:
        ended = agents.settled(task_id)
        assert ended["status"] == "completed" and agents.place.log(task_id) == b"Then I leave it.\n", ended
    assert {one["optionId"] for one in agents.journal("outcome")} == {"no"} and len(agents.journal("greeted")) == 3
    told = sorted(text for text in agents.prompts if "[[script" not in text)
    assert [text.startswith("A person said no.") for text in told] == [True, True], "who had heard it was not told again"
    assert "rm cancels" in told[0] and "rm ends" in told[1]
    assert all((agents.place.cwd / no).exists() for no in ("hears", "ends", "cancels"))


def test_one_that_gives_no_choice_is_answered_all_the_same(agents: Company) -> None:
    agents.hire()
    only = [{"optionId": "always", "name": "Always", "kind": "allow_always"}]
    assert agents.answer(shell("ls", options=only), {"say": "Then not."}) == "Then not.\n", "a yes is for once"
    task_id = agents.ask(shell("rm a.txt", options=only), {"say": "Then not."})
    agents.settled(task_id, "waiting")
    agents.place.ok("reject", task_id)
    assert agents.settled(task_id)["status"] == "completed"
    assert [(one["outcome"], one.get("optionId")) for one in agents.journal("outcome")] == [("cancelled", None)] * 2


def test_two_questions_at_once_are_asked_one_after_the_other(agents: Company) -> None:
    agents.hire()
    for name in ("a.txt", "b.txt"):
        (agents.place.cwd / name).write_text("x")
    task_id = agents.ask({"asks": [shell("rm a.txt"), shell("rm b.txt")]}, {"say": "One of two."})
    assert "rm a.txt" in str(agents.settled(task_id, "waiting")["error"])
    agents.place.ok("approve", task_id)
    agents.settled(task_id, "waiting", words="rm b.txt")
    agents.place.ok("reject", task_id)
    assert agents.settled(task_id)["status"] == "completed"
    assert not (agents.place.cwd / "a.txt").exists() and (agents.place.cwd / "b.txt").exists()
    assert [one["optionId"] for one in agents.journal("outcome")] == ["once", "no"]


def test_files_of_the_project_are_its_own_to_read_and_new_ones_to_make(agents: Company) -> None:
    agents.hire()
    cwd = agents.place.cwd
    for name in ("a.txt", ".env"):
        (cwd / name).write_text("old")
    (cwd.parent / "outside.txt").write_text("x")
    free = [read("a.txt"), read(cwd / "a.txt"), edit(cwd / "new.txt"), edit("sub/new.txt")]
    elsewhere = [read(cwd.parent / "outside.txt"), read(".env"), edit(cwd.parent / "new.txt"), edit("link")]
    (cwd / "link").symlink_to(cwd.parent / "outside.txt")
    *none, changed, acted, read_outside, read_secret, made_outside, linked = agents.questions(
        *free, edit(cwd / "a.txt", "EVIL"), edit("conftest.py"), *elsewhere
    )
    assert none == [""] * 4
    assert f"change {cwd / 'a.txt'}" in changed and "EVIL" in changed and "conftest.py" in acted
    assert f"read {cwd.parent / 'outside.txt'}" in read_outside and "read .env" in read_secret
    assert "outside the project" in made_outside and "outside the project" in linked
    agents.place.ok("trust")
    assert ["outside the project" in one for one in agents.questions(edit(cwd / "a.txt"), edit("link"))] == [False, True]
    assert agents.questions(edit("a.txt")) == [""]


def test_in_a_checkout_of_its_own_it_may_change_what_is_there(agents: Company) -> None:
    agents.hire()
    git(agents.place, "init", "--quiet", "--initial-branch=main")
    (agents.place.cwd / "a.txt").write_text("one\n")
    git(agents.place, "add", "--all")
    git(agents.place, "commit", "--quiet", "--message", "first")
    steps = [edit("a.txt", do="echo two > a.txt"), {"say": "Changed."}]
    task_id = agents.ask(*steps, options=("--worktree",))
    ended = agents.settled(task_id, "completed", "failed", "waiting")
    assert ended["status"] == "completed", ended
    assert "1 file changed" in agents.place.log(task_id).decode() and (agents.place.cwd / "a.txt").read_text() == "one\n"
    assert git(agents.place, "show", f"backburner/{task_id}:a.txt") == "two\n"
    assert str(agents.place.root) in agents.journal("new")[0]["cwd"]
    (asked,) = agents.questions(edit(agents.place.cwd / "a.txt"), options=("--worktree",))
    assert "outside the project" in asked, "the tree of the person is not its own"


# -- its end


@pytest.mark.parametrize("words", [(), ("deaf", "stays")], ids=["polite", "deaf"])
def test_cancelled_nothing_of_it_is_left(agents: Company, words: tuple[str, ...]) -> None:
    agents.hire(*words)
    task_id = agents.ask({"child": "own"}, {"child": "group"}, {"hang": 1})
    (hangs,) = agents.until("hangs")
    agents.place.ok("cancel", task_id)
    assert not any(alive(one["child"]) for one in agents.journal("child")) and not alive(hangs["pid"])
    assert agents.place.status(task_id)["status"] == "cancelled" and agents.journal("cancelled"), "it was told first"


@pytest.mark.parametrize("words", [(), ("stubborn", "deaf", "stays")], ids=["polite", "stubborn"])
def test_cancelled_while_it_waits_for_a_word_it_goes_too(agents: Company, words: tuple[str, ...]) -> None:
    agents.hire(*words)
    task_id = agents.ask({"child": "own"}, shell("rm a.txt"), {"say": "Never."})
    agents.settled(task_id, "waiting")
    agents.place.ok("cancel", task_id)
    assert agents.place.status(task_id)["status"] == "cancelled"
    left = [agents.journal("greeted")[0]["pid"], agents.journal("child")[0]["child"]]
    wait_until(lambda: not any(map(alive, left)), "it to be gone")
    if "stubborn" in words:
        assert agents.journal("outcome")[0]["outcome"] == "cancelled"


def test_after_its_answer_it_ends_with_all_it_started(agents: Company) -> None:
    agents.hire("close", "deaf", "stays")
    assert agents.answer({"child": "own"}, {"child": "group"}, {"say": "Done."}) == "Done.\n"
    assert not any(alive(one["child"]) for one in agents.journal("child")) and not alive(agents.journal("greeted")[0]["pid"])


# -- going on


def test_it_is_talked_to_again_in_a_new_process_that_knows_what_was_said(agents: Company) -> None:
    kinds = [("load",), ("load", "late"), ("load", "resume"), ("load", "forgetful")]
    for words in kinds:
        agents.hire(*words, name="-".join(words))
    asked = [agents.ask({"say": "It is teal."}, agent="-".join(words)) for words in kinds]
    for task_id in asked:
        agents.settled(task_id, "completed")
        agents.place.ok("resume", task_id, f"And? {script({'recall': 1})}")
    for task_id in asked:
        assert agents.settled(task_id)["status"] == "completed"
        answer = agents.place.log(task_id).decode()
        assert answer.startswith("I was told 1 things before: Please do this.") and "an old answer" not in answer
        assert agents.used(task_id) == {"tokens": 7, "tool_calls": 0}, "what is replayed was counted before"
    assert len({one["pid"] for one in agents.journal("greeted")}) == 8
    assert (len(agents.journal("new")), len(agents.journal("loaded")), len(agents.journal("resumed"))) == (4, 3, 1)
    assert sum(text.startswith("And? ") for text in agents.prompts) == 4


def test_the_price_of_a_session_is_counted_once(agents: Company) -> None:
    agents.hire("load")
    task_id = agents.ask(
        {"update": "usage_update", "cost": {"amount": 0.5}}, {"update": "usage_update", "cost": {"amount": 0.75}}, {"say": "One."}
    )
    agents.settled(task_id)
    assert agents.used(task_id)["cost"] == 0.75
    agents.place.ok("resume", task_id, script({"update": "usage_update", "cost": {"amount": 1.0}}, {"say": "Two."}), "--wait")
    assert agents.used(task_id)["cost"] == 0.25


def test_a_session_that_is_gone_is_told_in_the_same_words_everywhere(agents: Company) -> None:
    agents.hire("load")
    agents.hire(name="once")
    kept, once = agents.ask({"say": "One."}), agents.ask({"say": "One."}, agent="once")
    agents.settled(kept)
    agents.settled(once)
    for path in (agents.folder / "sessions").iterdir():
        path.unlink()
    for task_id in (kept, once):
        agents.place.ok("resume", task_id, "And?")
        ended = agents.settled(task_id, "failed")
        assert str(ended["error"]).startswith(EXPIRED)
    assert len(agents.prompts) == 2


@pytest.mark.skipif(not LONG, reason="waits for the next minute")
def test_gemini_is_not_loaded_in_the_minute_of_its_making(agents: Company) -> None:
    agents.hire("load", "minute", name="gemini")
    task_id = agents.ask({"say": "One."}, agent="gemini")
    agents.settled(task_id)
    agents.place.ok("resume", task_id, script({"recall": 1}))
    wait_until(lambda: agents.place.status(task_id)["status"] in ("completed", "failed"), "the next minute", 90)
    assert agents.place.log(task_id).startswith(b"I was told 1 things before")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_host_that_ends_takes_its_agent_along_and_its_conversation_can_be_gone_on_with(agents: Company, number: int) -> None:
    agents.hire("load", "stays", "deaf")
    task_id = agents.ask({"child": "own"}, {"child": "group"}, {"say": "I see."}, {"hang": 1})
    (hangs,) = agents.until("hangs")
    agents.end_host(number)
    ended = agents.settled(task_id)
    left = [hangs["pid"], *(one["child"] for one in agents.journal("child"))]
    wait_until(lambda: not any(map(alive, left)), "the agent to be gone")
    assert ended["status"] == "failed" and "interrupted" in str(ended["error"]) and "resumed" in str(ended["error"]), ended
    agents.place.ok("resume", task_id, script({"recall": 1}), "--wait")
    assert agents.place.log(task_id).startswith(b"I was told 1 things before: Please do this.")
    assert "hang" not in agents.prompts[1], "it had heard that"


@pytest.mark.parametrize("moment", ["at work", "waiting", "leaving"])
def test_a_host_that_is_told_to_leave_when_no_engine_is_there_ends_its_agent_itself(agents: Company, moment: str) -> None:
    agents.hire("load", "stays", "deaf")
    last = {"at work": {"hang": 1}, "waiting": shell("rm a.txt"), "leaving": {"say": "Done."}}[moment]
    task_id = agents.ask({"child": "own"}, last)
    match moment:
        case "at work":
            agents.until("hangs")
        case "waiting":
            agents.settled(task_id, "waiting")
        case "leaving":
            agents.until("hung up")
    agents.place.stop_engine()
    agents.end_host(signal.SIGTERM)
    assert not alive(agents.journal("greeted")[0]["pid"]) and not alive(agents.journal("child")[0]["child"])


@pytest.mark.parametrize(("number", "answer"), [(signal.SIGKILL, "approve"), (signal.SIGKILL, "reject"), (signal.SIGTERM, "approve")])
def test_a_word_reaches_it_when_its_host_has_ended_meanwhile(agents: Company, number: int, answer: str) -> None:
    agents.hire("load", "stays", "deaf")
    (agents.place.cwd / "a.txt").write_text("x")
    task_id = agents.ask({"child": "own"}, shell("rm a.txt"), {"say": "I heard."})
    agents.settled(task_id, "waiting")
    first = [one["pid"] for one in agents.journal("greeted")]
    agents.end_host(number)
    wait_until(lambda: not any(map(alive, [*first, *(one["child"] for one in agents.journal("child"))])), "the agent to be gone")
    assert agents.place.status(task_id)["status"] == "waiting"
    agents.place.ok(answer, task_id)
    agents.until("prompted", 2)
    word = "yes" if answer == "approve" else "no"
    assert agents.prompts[1].startswith(f"A person said {word} to this, which you had asked for: run `rm a.txt`")
    assert (
        agents.settled(task_id)["status"] == "completed"
        and agents.place.log(task_id) == b"I heard.\n"
        and len(agents.journal("loaded")) == 1
    )
    assert (agents.place.cwd / "a.txt").exists() == (answer == "reject"), "it was not asked for twice"


def test_a_yes_after_the_end_of_the_host_is_for_once(agents: Company) -> None:
    agents.hire("load")
    task_id = agents.ask(shell("rm a.txt"), shell("rm a.txt"), {"say": "Twice."})
    agents.settled(task_id, "waiting")
    agents.end_host(signal.SIGKILL)
    agents.place.ok("approve", task_id)
    agents.until("outcome")
    agents.settled(task_id, "waiting")
    agents.place.ok("reject", task_id)
    agents.settled(task_id)
    assert [one["optionId"] for one in agents.journal("outcome")] == ["once", "no"]


def test_a_budget_that_is_used_up_waits_and_a_yes_goes_on(agents: Company) -> None:
    agents.hire("load")
    steps = [{"tool": f"t{n}", "kind": "read"} for n in range(2)] + [{"hang": 1}]
    task_id = agents.ask(*steps, options=("--budget", "tool_calls=2"))
    waiting = agents.settled(task_id, "waiting")
    assert "2 of 2 tool calls" in str(waiting["error"])
    (hangs,) = agents.journal("greeted")
    assert not alive(hangs["pid"]), "nothing works for free"
    agents.place.ok("approve", task_id)
    agents.until("prompted", 2)
    assert agents.prompts[1].startswith("You were interrupted in the middle of your work."), "it knows what it was asked for"
    agents.place.ok("cancel", task_id)
    assert agents.used(task_id)["tool_calls"] >= 2, "what it did before counts"


def test_a_budget_that_is_not_granted_ends_it(agents: Company) -> None:
    agents.hire("load")
    task_id = agents.ask({"tool": "t", "kind": "read"}, {"hang": 1}, options=("--budget", "tool_calls=1"))
    agents.settled(task_id, "waiting")
    agents.place.ok("reject", task_id)
    ended = agents.settled(task_id)
    assert (ended["status"], ended["result"]) == ("failed", "budget")


# -- its place


def test_it_is_inside_of_its_task_and_not_of_who_asked_for_it(agents: Company) -> None:
    agents.hire("load")
    waiting = agents.place.cli("run", "--", "rm", "x")
    assert waiting.returncode == 3
    (proposed,) = agents.place.json("list")  # type: ignore[misc]
    own = [sys.executable, "-m", "backburner"]
    steps = [
        {"run": [*own, "approve", proposed["task_id"]]},
        {"run": [*own, "run", "--wait", "--", "echo", "from inside"]},
        {"run": [sys.executable, "-c", "import resource; print(resource.getrlimit(10)[1])"]},
        {"say": "Done."},
    ]
    env = {"CLAUDECODE": "1", "CLAUDE_CODE_SESSION_ID": "s", "CODEX_THREAD_ID": "t", "OPENCODE": "1", "MINE": "kept"}
    task_id = agents.place.ok("ask", "--agent", "fake", script(*steps), env=env).strip()
    agents.settled(task_id)
    given = agents.journal("greeted")[0]["environ"]
    assert given["BACKBURNER_TASK_ID"] == task_id and given["MINE"] == "kept" and given["BACKBURNER_SESSION"] == f"agent:{task_id}"
    assert not {"CLAUDECODE", "CLAUDE_CODE_SESSION_ID", "CODEX_THREAD_ID", "OPENCODE"} & given.keys()
    approved, ran, limit = agents.journal("ran")
    assert approved["code"] == 3 and "Only a person can approve" in approved["err"]
    assert agents.place.status(proposed["task_id"])["status"] == "proposed"
    assert ran["code"] == 0 and "from inside" in ran["out"], ran
    assert int(limit["out"]) == process.INSIDE, "nothing that it starts can say yes, whatever it sheds"


def test_what_has_ended_since_is_told_with_the_next_words(agents: Company) -> None:
    agents.hire("load")
    own = [sys.executable, "-m", "backburner", "run", "--", "echo", "from inside"]
    task_id = agents.ask({"run": own}, {"say": "Started."})
    agents.settled(task_id)
    asked = agents.journal("ran")[0]["out"].strip()
    agents.settled(asked)
    agents.place.ok("resume", task_id, script({"say": "I know."}), "--wait")
    assert asked in agents.prompts[1] and "Automatic notice from Backburner" in agents.prompts[1] and asked not in agents.prompts[0]


def test_a_standing_task_reports_what_has_changed(agents: Company) -> None:
    agents.hire("load", more=f'{ASKS}instructions = "Be brief."\n')
    todo = agents.place.cwd / "ci.txt"
    words = ("--every", "1h", "--agent", "fake", "--prompt", "Look.", "--wake", "success", "--", "cat", "ci.txt")
    task_id = agents.place.ok("add", "ci", *words).strip()
    for state, message in (("passing", "All is well."), ("passing", "As before."), ("failed", "Red!")):
        result = json.dumps({"report": True, "state": state, "message": message})
        todo.write_text(script({"say": f"I looked {{around}}.\n```json\n{result}\n```\n"}))
        run_id = agents.place.ok("run-now", "ci").strip()
        wait_until(lambda: not agents.app.queries.find("ci", caller(agents.app)).is_live, f"{run_id} to end", 40)
        run = next(run for run in agents.place.status("ci")["runs"] if run["run_id"] == run_id)  # type: ignore[attr-defined]
        assert (run["status"], run["result"], run["tokens_used"]) == ("completed", message, 7)
    assert [notice["text"] for notice in agents.place.json("inbox", "--ack")] == ["ci: All is well.", "ci: Red!"]  # type: ignore[union-attr, index, call-overload]
    assert len(agents.journal("new")) == 3 and not agents.journal("loaded"), "each run is a conversation of its own"
    assert agents.place.log(task_id) == b"Red!\n"
    assert agents.prompts[0].startswith("Be brief.") and "one JSON object" in agents.prompts[0]


# -- what they say, each in its own way: the requests of the real ones

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
def test_a_command_is_known_from_what_it_would_run_and_not_from_its_title(agent: str) -> None:
    asked = dialects.asked_of({"toolCallId": "c1", "status": "pending", **SHELL[agent]}, agent)
    assert (asked.kind, asked.command, asked.words) == ("command", "touch made", "run `touch made`")
    assert asked.cwd == (PROJECT if agent == "codex" else "")


def test_a_command_of_which_only_the_title_is_told_is_left_to_a_person() -> None:
    where = [{"type": "content", "content": {"type": "text", "text": f"[current working directory {PROJECT}] (d)"}}]
    gemini = {"toolCallId": "run_shell_command__1", "title": "touch made", "content": where, "locations": [], "kind": "execute"}
    assert dialects.asked_of(gemini)[:5] == ("other", "run `touch made`", "", (), "")


@pytest.mark.parametrize("agent", EDIT)
def test_a_change_is_known_by_its_file_and_shown_with_its_text(agent: str) -> None:
    asked = dialects.asked_of({"toolCallId": "c1", "status": "pending", **EDIT[agent]}, agent)
    assert (asked.kind, asked.paths) == ("edit", (f"{PROJECT}/written.txt",))
    assert asked.words.startswith(f"change {PROJECT}/written.txt: ") and repr("hello\nworld\n") in asked.words


def test_other_steps_are_known_as_far_as_they_are_certain() -> None:
    claude = {
        "name": "Read",
        "rawInput": {"file_path": "/etc/hostname"},
        "title": "Read",
        "kind": "read",
        "locations": [{"path": "/etc/hostname", "line": 1}],
    }
    assert dialects.asked_of(claude)[:4] == ("read", "read /etc/hostname", "", ("/etc/hostname",))
    qwen = {"title": "/etc/hostname", "locations": [{"path": "/etc/hostname"}], "kind": "read", "rawInput": {"file_path": "/etc/hostname"}}
    assert dialects.asked_of(qwen).paths == ("/etc/hostname",)
    opencode = {
        "title": "/etc",
        "kind": "other",
        "locations": [{"path": "/etc"}],
        "rawInput": {"filepath": "/etc/hostname", "parentDir": "/etc"},
    }
    assert dialects.asked_of(opencode).kind == "other" and "/etc/hostname" in dialects.asked_of(opencode).words
    outside = {"title": "cd / && ls", "kind": "other", "rawInput": {"command": "cd / && ls", "directories": ["/"], "patterns": ["/*"]}}
    assert dialects.asked_of(outside, "opencode-acp")[:3] == ("command", "run `cd / && ls`", "cd / && ls")
    assert dialects.asked_of(outside, "qwen").kind == "other", "whoever else says that says something else"
    more = {"title": "make", "kind": "execute", "rawInput": {"command": "make", "shell": "evil"}}
    assert dialects.asked_of(more).kind == "other" and "evil" in dialects.asked_of(more).words
    patch = {"title": "patch", "kind": "edit", "rawInput": {"filepath": "src/a.py, .git/hooks/pre-commit", "diff": "+"}}
    assert dialects.asked_of(patch, "opencode-acp").kind == "other", "many files as one path are none"
    moved = {"kind": "move", "title": "mv", "locations": [{"path": "a"}, {"path": "../b"}]}
    assert dialects.asked_of(moved).kind == "other", "it leads somewhere"
    assert dialects.asked_of({"kind": "execute", "rawInput": {"command": ["rm", "a b"]}}).command == "rm 'a b'"
    assert dialects.asked_of({"kind": "edit", "title": "Edit files"})[:5] == ("other", "Edit files", "", (), "")
    assert (
        dialects.asked_of({"kind": "fetch", "title": "Get it", "rawInput": {"url": "http://x"}}).words == 'use Get it: {"url": "http://x"}'
    )
    assert dialects.asked_of({}).kind == "other" and dialects.asked_of({"rawInput": "text", "kind": "read"}).kind == "other"


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
def test_a_tool_has_a_short_name(call: dict[str, Any], name: str) -> None:
    assert dialects.tool(call) == name


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
def test_what_a_turn_used_is_read_in_the_words_of_each(answer: dict[str, Any], tokens: float) -> None:
    assert dialects.tokens({"stopReason": "end_turn", **answer}) == tokens


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
def test_an_error_is_told_with_its_reason(error: RequestError, words: str) -> None:
    assert dialects.error_message(error) == words


def task(**options: object) -> Task:
    return records.task("task_x", agent="default", prompt="Look.", terms=options)


def words_of(answer: str, **terms: object) -> Outcome:
    return briefing.parse_result(task(**terms), Outcome(Result.EXIT, 0, answer=answer))


def test_a_result_in_words_is_found_at_their_end() -> None:
    result = '{"report": false, "state": "passing", "message": "All {is} well."}'
    for answer in (result, f"I looked at {{}}.\n{result}", f"So:\n```json\n{result}\n```\n", f"{result}\nand again\n{result}  "):
        found = words_of(answer)
        assert (found.answer, found.report) == ("All {is} well.", False)
    assert words_of(result).digest == words_of(result.replace("passing", " Passing").replace("All", "Now all")).digest
    assert words_of(result).digest != words_of(result.replace("passing", "failing")).digest


def test_declared_fields_are_found_in_words_too() -> None:
    found = words_of('Measured: {"used": 81.5, "host": "a", "message": "Nearly full."}', fields=["used", "host"])
    assert found.answer == "Nearly full.\nused: 81.5\nhost: a" and found.report
    assert found.digest == words_of('{"used": 81.5, "host": "a", "message": "Other words."}', fields=["used", "host"]).digest


@pytest.mark.parametrize("answer", ["All is well.", '{"state": "passing"}', '{"report": true, "state": "x"} and more', "{" * 5000, ""])
def test_words_without_a_result_are_told_and_compared_as_they_are(answer: str) -> None:
    found = words_of(answer)
    assert found.answer == answer and found.report and found.digest != words_of(f"{answer} Or not.").digest
    assert found.digest == words_of(f"  {answer}\n").digest
