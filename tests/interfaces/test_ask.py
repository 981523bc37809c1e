"""Agent tasks from the command line: approval during a run, budgets, misbehaving models, sessions that end."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CONFIG, HomeCli, wait_until
from mcp_client import Raw
from terminal import Terminal

from backburner import Backburner, BackburnerSync
from backburner.core.errors import BadInput
from backburner.system import processes
from backburner.testing.scripted_model import ScriptedModel


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted


@pytest.fixture
def home(home_cli: HomeCli, model: ScriptedModel) -> Iterator[HomeCli]:
    """A home whose agents ask the scripted model."""
    home_cli.configure(
        f'{CONFIG}[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n[tasks]\nmax_concurrent = 8\n[agents]\nyield_seconds = 1\n'
    )
    yield home_cli
    home_cli.stop_all()


def stop_agent_process(home_cli: HomeCli, number: int = signal.SIGTERM) -> None:
    """End the agent process and all other processes of the home."""

    def have_exited() -> bool:
        remaining = home_cli.processes()
        for running in remaining:
            processes.send(running, number)
        return not remaining

    wait_until(have_exited, "the agent process to exit")


def ask(home_cli: HomeCli, *steps: dict[str, Any], options: tuple[str, ...] = ()) -> str:
    return home_cli.ok("ask", *options, f"Please [[script: {json.dumps(steps)}]]").strip()


def wait_for_status(home_cli: HomeCli, task_id: str, *states: str) -> dict[str, Any]:
    wait_until(
        lambda: home_cli.status(task_id)["status"] in (states or ("completed", "failed", "cancelled")), f"the status of {task_id}", 40
    )
    return home_cli.status(task_id)


def runs(home_cli: HomeCli, command: str) -> list[dict[str, Any]]:
    return [task for task in home_cli.json("list") if task["command"] == command.split()]  # type: ignore[union-attr, index, call-overload]


def test_ask_wait_and_resume_from_the_command_line(home: HomeCli) -> None:
    (home.cwd / "notes.txt").write_text("hello")
    task_id = ask(home, {"tool": "read_file", "args": {"path": "notes.txt"}}, {"say": "It says hello."})
    home.ok("wait", task_id, "--timeout", "40")
    assert home.log(task_id) == b"It says hello.\n"
    assert home.ok("resume", task_id, 'And? [[script: [{"say": "Nothing more."}]]]', "--wait") == "Nothing more.\n"
    status = home.status(task_id)
    assert (status["type"], status["status"], status["run_count"]) == ("agent", "completed", 2) and "Please" in str(status["prompt"])
    assert "is a command" in home.cli("resume", home.run("true"), "x").stderr
    assert home.cli("resume", "nothing", "x").returncode == 4


async def test_ask_resume_and_restart_from_python(home: HomeCli, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.cwd / "notes.txt").write_text("hello")
    monkeypatch.chdir(home.cwd)
    steps = [{"tool": "read_file", "args": {"path": "notes.txt"}}, {"say": "It says hello."}]
    async with Backburner.open(home.root) as bb:
        asked = await bb.ask(f"Look [[script: {json.dumps(steps)}]]", name="look", budget={"tokens": 5000})
        (answered,) = await bb.wait("look", timeout=60)
        assert (answered.task.task_id, answered.status, await bb.tail("look")) == (asked.task.task_id, "completed", "It says hello.\n")
        assert answered.task.spec.description.startswith("Look [[script") and answered.task.spec.budget.per_run.tokens == 5000
        await bb.resume("look", 'And? [[script: [{"say": "Nothing more."}]]]')
        await bb.wait("look", timeout=60)
        assert await bb.tail("look", 1) == "Nothing more.\n"
        again = await bb.restart(asked.task.task_id)
        await bb.wait(again.task.task_id, timeout=60)
        assert again.task.task_id != asked.task.task_id and await bb.tail(again.task.task_id) == "It says hello.\n"
    with BackburnerSync.open(home.root) as bb:
        with pytest.raises(BadInput, match="Invalid budget"):
            bb.ask("Look", budget={"money": 1})
        with pytest.raises(BadInput, match="run-now"):
            bb.restart(bb.add("tick", ["true"], every="1h").task.task_id)


def test_ask_without_a_model_explains_how_to_configure_one(home_cli: HomeCli) -> None:
    assert "no model is set" in home_cli.cli("doctor").stdout
    done = home_cli.cli("ask", "Hello")
    assert done.returncode == 2 and "Ollama" in done.stderr and f"to {home_cli.root / 'config.toml'}" in done.stderr
    assert home_cli.json("list") == []
    home_cli.configure('[models]\ndefault = "openai-chat:x"\n[agents.writer]\nmodel = "openai-chat:y"\ndescription = "Writes"\n')
    agents = {row["name"]: row["model"] for row in home_cli.json("agents")}  # type: ignore[union-attr, index, call-overload]
    assert agents == {"default": "openai-chat:x", "writer": "openai-chat:y"}
    done = home_cli.cli("ask", "--agent", "nobody", "Hello")
    assert (
        done.returncode == 2
        and "Unknown agent 'nobody'. Available agents: claude, codex, default," in done.stderr
        and "writer." in done.stderr
    )


def test_an_agent_waits_for_approval_across_a_restart_of_all_processes(home: HomeCli) -> None:
    (home.cwd / "old.txt").write_text("x")
    task_id = ask(home, {"tool": "run_command", "args": {"command": "rm old.txt"}}, {"say": "It is gone."})
    waiting = wait_for_status(home, task_id, "waiting")
    (proposal,) = runs(home, "rm old.txt")
    assert proposal["status"] == "proposed" and proposal["task_id"] in str(waiting["error"])
    assert "answer that" in home.cli("approve", task_id).stderr, "the approval belongs to the command"
    home.kill_engine()
    stop_agent_process(home, signal.SIGKILL)
    home.ok("approve", proposal["task_id"])
    done = wait_for_status(home, task_id)
    assert done["status"] == "completed" and home.log(task_id) == b"It is gone.\n"
    assert not (home.cwd / "old.txt").exists() and len(runs(home, "rm old.txt")) == 1
    assert runs(home, "rm old.txt")[0]["run_count"] == 1, "it ran once"


def test_an_agent_continues_after_its_command_was_rejected(home: HomeCli, model: ScriptedModel) -> None:
    (home.cwd / "old.txt").write_text("x")
    task_id = ask(home, {"tool": "run_command", "args": {"command": "rm old.txt"}}, {"say": "Then I leave it."})
    wait_for_status(home, task_id, "waiting")
    home.ok("reject", runs(home, "rm old.txt")[0]["task_id"])
    assert wait_for_status(home, task_id)["status"] == "completed" and (home.cwd / "old.txt").exists()
    assert model.seen("rejected")


@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_changing_a_file_needs_approval_and_creating_one_does_not(home: HomeCli, model: ScriptedModel, answer: str) -> None:
    (home.cwd / "a.txt").write_text("one two three")
    steps = [{"tool": "write_file", "args": {"path": "new/b.txt", "content": "made"}}]
    steps += [{"tool": "edit_file", "args": {"path": "a.txt", "old": "two", "new": "TWO"}}, {"say": "done"}]
    task_id = ask(home, *steps)
    waiting = wait_for_status(home, task_id, "waiting")
    assert "change a.txt" in str(waiting["error"]) and (home.cwd / "new" / "b.txt").read_text() == "made"
    home.ok(answer, task_id, *(["--reason", "Two is right."] if answer == "reject" else []))
    assert wait_for_status(home, task_id)["status"] == "completed"
    assert (home.cwd / "a.txt").read_text() == ("one TWO three" if answer == "approve" else "one two three")
    assert model.seen("The user rejected this. Their reason: Two is right.") == (answer == "reject")


def test_an_agent_cannot_read_or_write_outside_the_project(home: HomeCli, model: ScriptedModel) -> None:
    secret = home.cwd.parent / "outside.txt"
    secret.write_text("the outside")
    (home.cwd / "link").symlink_to(secret)
    (home.cwd / ".env").write_text("KEY=hush")
    steps = [{"tool": "read_file", "args": {"path": path}} for path in ("../outside.txt", "link", str(secret), ".env", "/etc/passwd")]
    steps += [{"tool": "write_file", "args": {"path": "../x.txt", "content": "x"}}, {"say": "done"}]
    assert wait_for_status(home, ask(home, *steps))["status"] == "completed"
    assert (
        not model.seen("the outside")
        and not model.seen("KEY=hush")
        and not model.seen("root:x:")
        and not (home.cwd.parent / "x.txt").exists()
    )


def test_a_long_command_moves_to_the_background_and_the_agent_is_notified(home: HomeCli, model: ScriptedModel) -> None:
    steps = [{"tool": "run_command", "args": {"command": "sleep 2.5"}}, {"hang": 4, "tool": "memory_list", "args": {}}, {"say": "done"}]
    task_id = ask(home, *steps)
    assert wait_for_status(home, task_id)["status"] == "completed"
    assert model.seen("in the background as task_") and model.seen("Automatic notice from Backburner")
    assert len(runs(home, "sleep 2.5")) == 1


def test_a_run_that_reaches_its_budget_waits_for_approval(home: HomeCli) -> None:
    steps = [{"tool": "memory_list", "args": {}} for _ in range(5)] + [{"say": "done"}]
    task_id = ask(home, *steps, options=("--budget", "tool_calls=2"))
    waiting = wait_for_status(home, task_id, "waiting")
    assert "2 of 2 tool calls" in str(waiting["error"])
    home.ok("approve", task_id)
    assert "4 of 4 tool calls" in str(wait_for_status(home, task_id, "waiting")["error"])
    home.ok("approve", task_id)
    assert wait_for_status(home, task_id)["status"] == "completed"
    task_id = ask(home, *steps, options=("--budget", "tool_calls=2"))
    wait_for_status(home, task_id, "waiting")
    home.ok("reject", task_id)
    ended = wait_for_status(home, task_id)
    assert (ended["status"], ended["result"]) == ("failed", "budget")


def test_memory_is_available_to_the_next_task_of_the_project(home: HomeCli, model: ScriptedModel) -> None:
    first = ask(home, {"tool": "memory_set", "args": {"key": "colour", "value": "the colour is teal"}}, {"say": "ok"})
    wait_for_status(home, first)
    wait_for_status(home, ask(home, {"tool": "memory_get", "args": {"key": "colour"}}, {"say": "ok"}))
    assert any("the colour is teal" in json.dumps(request["messages"][-1]) for request in model.requests)


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ([{"flood": 10_000_000}], "completed"),
        ([{"tools": [{"tool": "memory_list", "args": {}}] * 1000}, {"say": "done"}], "waiting"),
        ([{"tool": "run_command", "raw_args": "not json"}, {"say": "done"}], "completed"),
        ([{"tool": "run_command", "args": {"command": 5, "nonsense": []}}, {"say": "done"}], "completed"),
        ([{"error": 500}, {"say": "done"}], "completed"),
        ([{"error": 500, "times": 50}], "failed"),
    ],
    ids=["a flood", "a thousand calls", "no JSON", "wrong arguments", "one error", "only errors"],
)
def test_a_misbehaving_model_is_limited_and_reported_once(home: HomeCli, steps: list[dict[str, Any]], status: str) -> None:
    task_id = ask(home, *steps)
    ended = wait_for_status(home, task_id, "completed", "failed", "waiting")
    assert ended["status"] == status, ended
    assert Path(str(ended["log"])).stat().st_size < 5 << 20
    if status == "waiting":
        assert "the next step makes 1,000 tool calls, and its budget is 0 of " in str(ended["error"])
        home.ok("cancel", task_id)
    elif "flood" in steps[0]:
        beginning, omitted, end = Path(str(ended["log"])).read_text().rpartition(" characters omitted]\n")
        assert omitted and len(beginning) > 1 << 20 and len(end) > 1 << 20, "beginning and end are kept"
    notices = [notice["text"] for notice in home.json("inbox", "--read") if notice["task_id"] == task_id]  # type: ignore[union-attr, index, call-overload]
    assert len(notices) == 1 and len(notices[0]) < 9000


def test_notice_and_status_of_an_agent_say_why_it_failed_or_that_it_was_stopped(home: HomeCli) -> None:
    failed, stopped = ask(home, {"error": 400, "times": 9}), ask(home, {"hang": 50})
    wait_for_status(home, failed)
    wait_for_status(home, stopped, "running")
    home.ok("cancel", stopped)
    for task_id, text in ((failed, "refused the request (HTTP 400)"), (stopped, "it was stopped")):
        (notice,) = [notice["text"] for notice in home.json("inbox", "--read") if notice["task_id"] == task_id]  # type: ignore[union-attr, index, call-overload]
        for shown in (notice, home.ok("status", task_id), home.cli("wait", task_id).stdout + home.cli("list").stdout):
            assert "signal" not in shown and "exit 1" not in shown and "Exit code" not in shown
        assert text in notice and text in home.ok("status", task_id)


def test_ask_wait_with_seconds_stops_waiting_after_them(home: HomeCli) -> None:
    done = home.cli("ask", "--wait", "0.5", 'x [[script: [{"hang": 50}]]]')
    assert done.returncode == 124 and "Still running after 0.5 s" in done.stderr
    home.ok("cancel", "last")
    assert home.ok("ask", "--wait", 'x [[script: [{"say": "first"}]]]') == "first\n"
    assert home.ok("ask", 'x [[script: [{"say": "second"}]]]', "--wait", "60") == "second\n"
    assert home.ok("resume", "last", "--wait", 'x [[script: [{"say": "third"}]]]') == "third\n"
    assert "'soon' is not a number of seconds" in home.cli("ask", "--wait", "soon", "hello").stderr
    assert "No prompt given." in home.cli("ask").stderr


def test_run_command_takes_a_description(home: HomeCli) -> None:
    wait_for_status(home, ask(home, {"tool": "run_command", "args": {"command": "echo x", "description": "Print x"}}, {"say": "ok"}))
    assert [task["description"] for task in runs(home, "echo x")] == ["Print x"]


def test_a_model_that_hangs_is_stopped_at_the_timeout(home: HomeCli) -> None:
    task_id = ask(home, {"hang": 50, "say": "late"}, options=("--timeout", "2s"))
    ended = wait_for_status(home, task_id)
    assert ended["status"] == "failed" and "timed out" in str(ended["error"])


def test_the_fallback_model_answers_when_the_first_one_fails(home: HomeCli, model: ScriptedModel) -> None:
    dead, alive = 'model = "openai-chat:one"\nbase_url = "http://127.0.0.1:9/v1"\n', model.url
    sturdy = f'{dead}fallback = "anthropic:two"\nfallback_base_url = "{alive}"\n'
    home.configure(f"{(home.root / 'config.toml').read_text()}[agents.frail]\n{dead}[agents.sturdy]\n{sturdy}")
    frail, other = ask(home, {"say": "never"}, options=("--agent", "frail")), ask(home, {"say": "here"}, options=("--agent", "sturdy"))
    ended = wait_for_status(home, frail)
    assert ended["status"] == "failed" and ended["error"]
    assert wait_for_status(home, other)["status"] == "completed" and home.log(other) == b"here\n"


def test_an_agent_can_use_the_anthropic_api(home: HomeCli, model: ScriptedModel) -> None:
    home.configure(f'{CONFIG}[models]\ndefault = "anthropic:scripted"\nbase_url = "{model.url}"\n')
    task_id = ask(home, {"tool": "search_files", "args": {}}, {"say": "done over Anthropic"})
    assert wait_for_status(home, task_id)["status"] == "completed" and home.log(task_id) == b"done over Anthropic\n"


def test_a_base_url_for_a_provider_without_one_is_refused(home: HomeCli) -> None:
    home.configure(f'{CONFIG}[models]\ndefault = "groq:x"\nbase_url = "http://127.0.0.1:9/v1"\n')
    ended = wait_for_status(home, ask(home, {"say": "never"}))
    assert ended["status"] == "failed" and "base_url is not supported for" in str(ended["error"])


def test_ending_a_session_deletes_its_tasks(home: HomeCli) -> None:
    env = {"BACKBURNER_SESSION": "claude:s1"}
    running = home.ok("ask", 'x [[script: [{"hang": 50}]]]', env=env).strip()
    done = home.ok("ask", 'x [[script: [{"say": "y"}]]]', env=env).strip()
    other = ask(home, {"say": "z"})
    wait_for_status(home, done)
    wait_for_status(home, other)
    home.ok("sessions", "end", "claude:s1")
    assert [task["task_id"] for task in home.json("list")] == [other]  # type: ignore[union-attr, index, call-overload]
    assert home.cli("status", running).returncode == 4


def test_nested_agent_tasks_are_limited_in_depth(home: HomeCli, model: ScriptedModel) -> None:
    script: list[dict[str, Any]] = [{"say": "deepest"}]
    for _ in range(5):
        prompt = f"[[script: {json.dumps(script)}]]"
        script = [{"tool": "background_task", "args": {"description": "deeper", "prompt": prompt}}, {"say": "asked"}]
    task_id = ask(home, *script)
    wait_for_status(home, task_id)
    wait_until(lambda: model.seen("Agents can be nested at most 3 levels deep"), "the deepest to be refused", 60)
    wait_until(lambda: all(task["status"] == "completed" for task in home.json("list")), "all to end", 60)  # type: ignore[union-attr, index, call-overload]
    assert len(home.json("list")) == 3  # type: ignore[arg-type]


def test_command_tools_and_agent_tools_refuse_each_others_tasks(home: HomeCli) -> None:
    command = home.run("true")
    agent = ask(home, {"say": "x"})
    wait_for_status(home, agent)
    with Raw(home) as client:
        names = {tool["name"] for tool in client.request("tools/list")["result"]["tools"]}
        assert {"background_task", "start_background_task"} <= names
        assert "Use background_output" in client.call("check_task_status", task_id=agent)["content"][0]["text"]
        assert "Use check_task_status" in client.call("background_output", task_id=command)["content"][0]["text"]
        assert client.call("background_output", task_id="nothing")["content"][0]["text"] == "Task not found: nothing"
        assert client.value("background_output", task_id=agent)["result"] == "x\n"
        assert [task["task_id"] for task in client.value("background_list")["tasks"]] == [agent]
        assert [task["task_id"] for task in client.value("list_background_tasks")["tasks"]] == [command]


def test_restarting_an_agent_task_creates_a_new_task(home: HomeCli) -> None:
    first = ask(home, {"say": "x"})
    wait_for_status(home, first)
    again = home.ok("restart", first).strip()
    assert again != first and wait_for_status(home, again)["status"] == "completed" and home.log(again) == b"x\n"


def test_a_key_starts_an_agent_task_only_once(home: HomeCli) -> None:
    first = ask(home, {"say": "x"}, options=("--key", "once"))
    assert ask(home, {"say": "x"}, options=("--key", "once")) == first
    assert "a different prompt" in home.cli("ask", "--key", "once", "something else").stderr
    wait_for_status(home, first)


def test_doctor_checks_each_agent(home: HomeCli, model: ScriptedModel) -> None:
    assert f"ok   agent default (openai-chat:scripted at {model.url}/v1) answers" in home.cli("doctor").stdout
    assert home.ok("agents", "--check").split() == ["default", "openai-chat:scripted", "answers"]
    home.configure('[models]\ndefault = "openai-chat:x"\nbase_url = "http://127.0.0.1:9/v1"\n')
    done = home.cli("doctor")
    assert done.returncode == 1 and "BAD  agent default (openai-chat:x at http://127.0.0.1:9/v1): " in done.stdout
    assert home.cli("agents", "--check").returncode == 1


def test_doctor_at_a_terminal_prints_only_its_own_lines(home: HomeCli) -> None:
    environ = {name: value for name, value in home.environ.items() if name not in ("CI", "PYTEST_VERSION", "PYDANTIC_AI_NO_BANNER")}
    with Terminal([sys.executable, "-m", "backburner", "doctor"], cwd=home.cwd, env=environ, columns=200) as terminal:
        terminal.ended()
        lines = [line for line in terminal.history.splitlines() if line.strip()]
    assert any("agent default" in line for line in lines)
    assert all(line.startswith(("ok   ", "BAD  ", "     → ")) for line in lines), lines


def test_each_file_change_is_approved_separately(home: HomeCli) -> None:
    for name in ("a.txt", "b.txt"):
        (home.cwd / name).write_text("one")
    calls = [{"tool": "edit_file", "args": {"path": "a.txt", "old": "one", "new": "uno"}}]
    calls += [{"tool": "write_file", "args": {"path": "b.txt", "content": "EVIL"}}]
    task_id = ask(home, {"tools": calls}, {"say": "done"})
    assert "a.txt" in str(wait_for_status(home, task_id, "waiting")["error"])
    home.ok("approve", task_id)
    wait_until(lambda: "b.txt" in str(home.status(task_id)["error"]), "the question about the second")
    assert "EVIL" in str(home.status(task_id)["error"])
    home.ok("reject", task_id)
    assert wait_for_status(home, task_id)["status"] == "completed"
    assert [(home.cwd / name).read_text() for name in ("a.txt", "b.txt")] == ["uno", "one"]


def test_a_command_and_a_file_change_in_one_step_both_need_approval(home: HomeCli) -> None:
    for name in ("a.txt", "old.txt"):
        (home.cwd / name).write_text("one")
    calls = [{"tool": "run_command", "args": {"command": "rm old.txt"}}]
    calls += [{"tool": "edit_file", "args": {"path": "a.txt", "old": "one", "new": "uno"}}]
    task_id = ask(home, {"tools": calls}, {"say": "done"})
    wait_for_status(home, task_id, "waiting")
    assert "answer that" in home.cli("reject", task_id).stderr
    home.ok("approve", runs(home, "rm old.txt")[0]["task_id"])
    wait_until(lambda: "a.txt" in str(home.status(task_id)["error"]), "the question about the change")
    home.ok("approve", task_id)
    assert (
        wait_for_status(home, task_id)["status"] == "completed"
        and (home.cwd / "a.txt").read_text() == "uno"
        and not (home.cwd / "old.txt").exists()
    )


def test_searching_files_stays_in_the_project_and_does_not_hang(home: HomeCli, model: ScriptedModel) -> None:
    (home.cwd.parent / "outside.txt").write_text("TOPSECRET")
    (home.cwd / "readme.md").symlink_to(home.cwd.parent / "outside.txt")
    os.mkfifo(home.cwd / "pipe.md")
    steps = [{"tool": "search_files", "args": {"text": "TOP"}}, {"tool": "read_file", "args": {"path": "pipe.md"}}]
    steps += [{"tool": "read_file", "args": {"path": "a\u0000b"}}, {"say": "done"}]
    assert wait_for_status(home, ask(home, *steps))["status"] == "completed"
    assert not model.seen("TOPSECRET")


@pytest.mark.parametrize("path", [".github/workflows/x.yml", "conftest.py", ".GIT/hooks/pre-commit"])
def test_creating_an_executable_config_file_needs_approval(home: HomeCli, path: str) -> None:
    task_id = ask(home, {"tool": "write_file", "args": {"path": path, "content": "x"}}, {"say": "done"})
    ended = wait_for_status(home, task_id, "waiting", "completed")
    assert (ended["status"] == "waiting") == (".GIT" not in path) and not (home.cwd / path).exists()
    home.cli("cancel", task_id)


def test_a_damaged_conversation_fails_its_run_and_frees_its_capacity(home: HomeCli) -> None:
    home.configure((home.root / "config.toml").read_text().replace("max_concurrent = 8", "max_concurrent = 1"))
    task_id = ask(home, {"say": "x"})
    wait_for_status(home, task_id)
    (home.folder(task_id) / "conversation.json").write_text('{"messages": [')
    home.ok("resume", task_id, "more")
    assert wait_for_status(home, task_id, "failed")["error"]
    assert wait_for_status(home, ask(home, {"say": "next"}))["status"] == "completed"


def test_an_agent_that_waits_for_another_frees_its_capacity(home: HomeCli) -> None:
    home.configure((home.root / "config.toml").read_text().replace("max_concurrent = 8", "max_concurrent = 1"))
    inner = f"[[script: {json.dumps([{'say': 'from below'}])}]]"
    steps = [{"tool": "background_task", "args": {"description": "below", "prompt": inner}}]
    steps += [{"tool": "background_block", "args": {"task_ids": ["{{task_id}}"]}}, {"say": "it has answered"}]
    task_id = ask(home, *steps)
    assert wait_for_status(home, task_id)["status"] == "completed" and home.log(task_id) == b"it has answered\n"


def test_cancelling_an_agent_closes_its_open_question(home: HomeCli) -> None:
    (home.cwd / "old.txt").write_text("x")
    task_id = ask(home, {"tool": "run_command", "args": {"command": "rm old.txt"}}, {"say": "done"})
    wait_for_status(home, task_id, "waiting")
    home.ok("cancel", task_id)
    assert runs(home, "rm old.txt")[0]["status"] == "rejected" and home.status(task_id)["status"] == "cancelled"


def test_an_agent_sees_the_tasks_of_its_own_project(home: HomeCli, model: ScriptedModel, tmp_path: Path) -> None:
    mine = home.run("echo", "mine", options=("--batch", "nightly"))
    other = tmp_path / "other"
    other.mkdir()
    theirs = home.ok("run", "--yes", "--batch", "nightly", "--", "echo", "theirs", cwd=other).strip()
    task_id = ask(home, {"tool": "list_background_tasks", "args": {}}, {"say": "done"})
    wait_for_status(home, task_id)
    assert model.seen(mine) and not model.seen(theirs)


def test_a_running_agent_process_applies_changed_settings(home: HomeCli) -> None:
    wait_for_status(home, ask(home, {"say": "x"}))
    text = (home.root / "config.toml").read_text()
    home.configure(text + '[agents.fresh]\ndescription = "new"\n')
    assert wait_for_status(home, ask(home, {"say": "y"}, options=("--agent", "fresh")))["status"] == "completed"
