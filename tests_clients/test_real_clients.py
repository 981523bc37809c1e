"""Real clients with Backburner: they list, start, wait and read, are told of what they did not wait for, once, and can approve nothing."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import (
    AGENTS,
    Claude,
    Client,
    Codex,
    Mcpdo,
    OpenCode,
    Terminal,
    a_person_types,
    client,
    notices_of,
    prompt,
    said,
    shown,
    start,
    task_in,
)
from real import CLIENTS, PATIENCE, Gate, Place, wait_until

from backburner.agent_tools.registry import toolset
from backburner.interfaces.client_setup.wiring import own_command
from backburner.system import processes as process
from backburner.testing.scripted_model import ScriptedModel

ERAS = ["legacy", "modern"]
HOOKED = ["claude", "codex", "gemini"]  # OpenCode is woken by its plugin instead


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, home: Place) -> Iterator[Any]:
    """Each coding agent in turn, wired to a home of its own."""
    with client(AGENTS[request.param], home) as made:
        yield made


@pytest.fixture(params=ERAS)
def inspector(request: pytest.FixtureRequest, home: Place) -> Iterator[Mcpdo]:
    """MCP Inspector with a connection that lasts, in each era of the protocol."""
    made = Mcpdo(home, request.param)
    try:
        yield made
    finally:
        made.close()


def _ended(place: Place, task_id: str) -> None:
    wait_until(lambda: place.status(task_id)["status"] == "completed", f"{task_id} to complete", 60)


# -- starting, waiting, reading


def test_an_agent_lists_the_tools_starts_a_command_waits_for_it_and_reads_its_result(agent: Client) -> None:
    gate = Gate(agent.place.cwd)
    script = (
        start(gate.command),
        {"tool": "backburner_wait_for_background_tasks", "args": {"task_ids": ["{{task_id}}"]}},
        *agent.finding("read_background_output"),
        {"tool": "backburner_read_background_output", "args": {"task_id": "{{task_id}}"}},
        {"say": "read it"},
    )
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(agent.turn, *script)
        wait_until(lambda: "Started background task" in agent.conversation() or turn.done(), "it to be started", PATIENCE)
        gate.open()
        text = turn.result()
    task_id = task_in(text)
    assert f"{task_id} completed (exit 0" in text, "it waited"
    assert text.count(gate.line) >= 2, "once as the summary of the wait, once as the output"
    assert all(name in agent.offered() for name in toolset("commands"))
    assert notices_of(task_id, text) == 0, "whoever waited is not told again"
    assert agent.place.status(task_id)["status"] == "completed"
    assert agent.place.json("inbox") == []


def test_a_command_outlives_opencode_run_which_is_told_at_its_next(home: Place) -> None:
    gate = Gate(home.cwd)
    with client(OpenCode, home) as agent:
        task_id = task_in(agent.run_once(start(gate.command), {"say": "started"}))
        gate.open()
        _ended(home, task_id)
        agent.run_once({"say": "hm"}, {"say": "I see"})
        text = agent.run_once({"say": "and?"})
        assert notices_of(task_id, text) == 1 and gate.line in text


@pytest.mark.parametrize("era", ERAS)
def test_the_inspector_lists_the_tools_starts_a_command_waits_for_it_and_reads_its_result(home: Place, era: str) -> None:
    def inspect(*words: str) -> Any:
        done = subprocess.run(
            ["mcp-inspector", "--cli", *own_command(home.environ), "mcp", "--protocol-era", era, "--format", "json", "-q", *words],
            env={**home.environ, "PATH": f"{CLIENTS}:{home.environ['PATH']}"},
            cwd=home.cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        return json.loads(done.stdout)["result"]

    def call(tool: str, **arguments: Any) -> dict[str, Any]:
        done = inspect("--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments))
        assert not done["isError"], done
        return done["structuredContent"]

    (home.cwd / "notes.txt").write_text("the ninth wave\n")
    listed = [tool["name"] for tool in inspect("--method", "tools/list", "--strict")["tools"]]
    assert listed == list(toolset()), "the clients on the PATH are agents that can be asked"
    task_id = call("start_background_task", command="cat notes.txt", description="Read")["task_id"]
    assert call("wait_for_background_tasks", task_ids=[task_id])["tasks"][0]["status"] == "completed"
    assert call("read_background_output", task_id=task_id)["output"] == "the ninth wave\n"


# -- being told


@pytest.mark.parametrize("agent", HOOKED, indirect=True)
def test_an_agent_is_told_once_of_what_ended_between_its_turns(agent: Client) -> None:
    gate = Gate(agent.place.cwd)
    task_id = task_in(agent.turn(start(gate.command), {"say": "started, and not waited for"}))
    gate.open()
    _ended(agent.place, task_id)
    told = agent.turn({"say": "so it has ended"})
    assert notices_of(task_id, told) == 1 and gate.line in told
    later = agent.turn({"tool": "backburner_list_background_tasks", "args": {}}, {"say": "nothing new"})
    assert notices_of(task_id, later) == agent.remembers, "that of before, in the history"
    assert agent.place.json("inbox") == []


def test_an_idle_session_of_opencode_is_woken_once_and_only_its_own(home: Place) -> None:
    gate = Gate(home.cwd)
    with client(OpenCode, home) as agent:
        agent.turn({"say": "hello"})
        first, agent.session = agent.session, None
        task_id = task_in(agent.turn(start(gate.command), {"say": "started, and not waited for"}))
        turns = len(agent.asked())
        gate.open()
        wait_until(lambda: len(agent.asked()) > turns, "the plugin to wake the session", 60)
        assert notices_of(task_id, agent.conversation()) == 1 and gate.line in agent.conversation()
        assert notices_of(task_id, agent.turn({"tool": "backburner_list_background_tasks", "args": {}}, {"say": "nothing new"})) == 1
        agent.session = first
        assert notices_of(task_id, agent.turn({"tool": "backburner_list_background_tasks", "args": {}})) == 0, "another session's"


@pytest.mark.parametrize("agent", HOOKED, indirect=True)
def test_an_agent_that_comes_to_an_end_goes_on_where_something_ended(agent: Client) -> None:
    gate = Gate(agent.place.cwd)
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(agent.turn, start(gate.command), {"hang": 8, "say": "I think I am done"}, {"say": "oh, it ended"})
        wait_until(lambda: "Started background task" in agent.conversation() or turn.done(), "it to be started", PATIENCE)
        gate.open()
        text = turn.result()
    task_id = task_in(text)
    *_, before, after = [notices_of(task_id, said(request)) for request in agent.asked()]
    assert (before, after) == (0, 1), "the model was done, and was asked once more"
    assert notices_of(task_id, agent.turn({"say": "nothing new"})) == 1


def test_codex_without_trusted_hooks_is_told_with_the_next_answer(home: Place) -> None:
    gate = Gate(home.cwd)
    with client(Codex, home) as agent:
        agent.trusted = False
        task_id = task_in(agent.turn(start(gate.command), {"say": "started"}))
        gate.open()
        _ended(home, task_id)
        text = agent.turn(
            {"tool": "backburner_list_background_tasks", "args": {}}, {"tool": "backburner_list_background_tasks", "args": {}}
        )
        assert notices_of(task_id, text) == 1


def test_an_idle_claude_in_a_terminal_is_woken_by_its_stop_hook_once(home: Place) -> None:
    gate = Gate(home.cwd)

    def hooks() -> int:
        return sum(b"--hook" in Path(f"/proc/{one.pid}/cmdline").read_bytes() for one in home.processes())

    def types(*script: dict[str, Any]) -> None:
        turns = len(agent.asked())
        terminal.type(f"\x1b[200~{prompt(list(script))}\x1b[201~")
        terminal.type("\r")
        wait_until(lambda: len(agent.asked()) > turns, "the model to be asked", PATIENCE)

    with client(Claude, home) as agent:
        terminal = Terminal(["claude", prompt([{"say": "hello"}])], agent.environ, home.cwd)
        try:
            wait_until(agent.asked, "the first turn", PATIENCE)
            for _ in range(20):
                if "mcp__backburner__start_background_task" in shown(agent.asked()[-1]["tools"]):
                    break
                types({"say": "its servers are not all there yet"})
            types(start(gate.command), {"say": "started"}, {"say": "oh, it ended"})
            wait_until(lambda: "Started background task" in agent.conversation(), "it to be started", PATIENCE)
            turns, task_id = len(agent.asked()), task_in(agent.conversation())
            wait_until(hooks, "the Stop hook to stay behind", 60)
            gate.open()
            wait_until(lambda: len(agent.asked()) > turns, "the session to be woken", 60)
            assert notices_of(task_id, agent.conversation()) == 1
            wait_until(lambda: not hooks(), "the hooks to be gone", 60)
            types({"say": "nothing new"})
            assert notices_of(task_id, agent.conversation()) == 1 and len(agent.asked()) == turns + 2, "woken once"
        finally:
            terminal.process.terminate()
            terminal.end(60)


def test_the_inspector_is_told_with_the_next_answer_once(home: Place, inspector: Mcpdo) -> None:
    gate = Gate(home.cwd)
    task_id = inspector.call("start_background_task", command=gate.command, description="x")["structuredContent"]["task_id"]
    gate.open()
    _ended(home, task_id)
    told = inspector.call("list_background_tasks")
    assert notices_of(task_id, told["structuredContent"]["notices"]) == notices_of(task_id, told["content"][0]["text"]) == 1
    assert gate.line in told["structuredContent"]["notices"]
    assert "notices" not in inspector.call("list_background_tasks")["structuredContent"]


def test_clients_at_once_on_one_home_are_each_told_of_their_own_once(home: Place) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        agents = [stack.enter_context(client(kind, home)) for kind in (Claude, Claude, Codex)]
        gates = [Gate(home.cwd, f"gate{number}") for number in range(3)]
        texts = list(pool.map(lambda one, gate: one.turn(start(gate.command), {"say": "started"}), agents, gates))
        tasks = [task_in(text) for text in texts]
        for gate, task_id in zip(gates, tasks, strict=True):
            gate.open()
            _ended(home, task_id)
        list(pool.map(lambda one: one.turn({"say": "so it has ended"}), agents))
        texts = list(
            pool.map(lambda one: one.turn({"tool": "backburner_list_background_tasks", "args": {}}, {"say": "nothing new"}), agents)
        )
        assert len(set(tasks)) == 3
        told = [[notices_of(task_id, text) for task_id in tasks] for text in texts]
        assert told == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


# -- a person's yes


def test_what_needs_a_yes_waits_for_a_persons_and_no_agent_can_give_it(agent: Client) -> None:
    place, precious = agent.place, agent.place.cwd / "precious.txt"
    precious.write_text("mine")
    approve = " ".join([*own_command(place.environ), "approve", "{{task_id}}"])
    text = agent.turn(
        start("rm precious.txt", "Tidy up"),
        {"tool": agent.shell, "args": {agent.argument: approve, "description": "Say yes"}},
        {"tool": agent.shell, "args": {agent.argument: f"script -qec '{approve}' /dev/null </dev/null; true", "description": "Say yes"}},
        {"say": "I could not"},
    )
    task_id = task_in(text)
    assert f"waiting for approval: {task_id}" in text and "I cannot approve it for you" in text
    assert text.count("Only a person can") >= 2, text[-3000:]
    assert precious.exists() and place.status(task_id)["status"] == "proposed"
    turns = len(agent.asked())
    a_person_types(place, "approve", task_id)
    _ended(place, task_id)
    assert not precious.exists()
    if isinstance(agent, OpenCode):
        wait_until(lambda: len(agent.asked()) > turns, "the plugin to wake the session", 60)
    assert notices_of(task_id, agent.turn({"say": "so it was allowed"})) == 1
    assert notices_of(task_id, agent.turn({"say": "nothing new"})) == agent.remembers


def test_what_needs_a_yes_waits_for_a_persons_with_the_inspector(home: Place, inspector: Mcpdo) -> None:
    precious = home.cwd / "precious.txt"
    precious.write_text("mine")
    asked = inspector.call("start_background_task", command="rm precious.txt", description="Tidy up")["structuredContent"]
    assert asked["status"] == "proposed" and asked["display"].startswith(f"waiting for approval: {asked['task_id']}")
    assert "notices" not in inspector.call("list_background_tasks")["structuredContent"] and precious.exists()
    a_person_types(home, "approve", asked["task_id"])
    _ended(home, asked["task_id"])
    assert not precious.exists()
    assert notices_of(asked["task_id"], inspector.call("list_background_tasks")["structuredContent"]["notices"]) == 1
    assert "notices" not in inspector.call("list_background_tasks")["structuredContent"]


# -- coming and going


def test_the_doctor_says_that_an_agent_is_wired_and_undoing_leaves_no_word_of_us(agent: Client) -> None:
    place, path = agent.place, {"PATH": agent.environ["PATH"]}
    agent.turn(start("echo hello"), {"tool": "backburner_wait_for_background_tasks", "args": {"task_ids": ["{{task_id}}"]}})
    agent.close()
    assert f"{agent.name}: is set up for Backburner" in place.ok("doctor", env=path)
    undone = json.loads(place.ok("install", agent.name, "--undo", "--yes", "--json", env=path))
    assert undone["changed"]
    for name in undone["changed"]:
        assert not os.path.exists(name) or "backburner" not in Path(name).read_text().lower(), name
    assert not list(agent.person.rglob("*.before-backburner"))
    assert f"{agent.name}: is not set up for Backburner" in place.ok("doctor", env=path)
    assert "nothing to undo" in place.ok("install", agent.name, "--undo", "--yes", env=path)


# -- agents of our own


def test_opencode_asks_an_agent_in_the_background_is_told_its_answer_and_talks_on_with_it(home: Place) -> None:
    with client(OpenCode, home) as agent, ScriptedModel() as other:
        home.configure(f'[models]\ndefault = "openai-chat:other"\nbase_url = "{other.url}/v1"\n')
        asked = f"Look around [[script: {json.dumps([{'say': 'The lamp is in the cellar.'}])}]]"
        task = {"tool": "backburner_background_task", "args": {"description": "Find the lamp", "prompt": asked}}
        task_id = task_in(agent.turn(task, {"say": "asked"}))
        wait_until(lambda: "[BACKGROUND TASK COMPLETED]" in agent.conversation(), "the plugin to wake the session", 60)
        assert "The lamp is in the cellar." in agent.conversation()
        again = f"And the key? [[script: {json.dumps([{'say': 'The key hangs beside it.'}])}]]"
        more = {"tool": "backburner_background_resume", "args": {"task_id": task_id, "message": again}}
        agent.turn(more, {"tool": "backburner_background_block", "args": {"task_ids": [task_id]}}, {"say": "good"})
        text = agent.turn({"tool": "backburner_background_output", "args": {"task_id": task_id}}, {"say": "read"})
        assert "The key hangs beside it." in text
        assert other.seen("The lamp is in the cellar."), "it had its whole conversation"
    home.stop_engine()
    wait_until(lambda: not [process.send(one, signal.SIGTERM) for one in home.processes()], "the agent process to leave")
