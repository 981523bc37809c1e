"""Real clients with Backburner: they list tools, start, wait and read, get each notice once, run commands in the sandbox, and cannot
approve anything.
"""

import contextlib
import json
import os
import signal
import socket
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
    approve_in_users_terminal,
    client,
    has_started,
    notices_of,
    prompt,
    questions_in,
    said,
    shown,
    start,
    task_in,
    wait_for,
)
from real import CLIENTS, PATIENCE, Gate, HomeCli, wait_until

from backburner.agent_tools.registry import toolset
from backburner.interfaces.client_setup.wiring import own_command
from backburner.system import processes
from backburner.testing.scripted_model import ScriptedModel

ERAS = ["legacy", "modern"]
CLIENTS_WITH_HOOKS = ["claude", "codex", "gemini"]  # OpenCode has a plugin instead


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest, home: HomeCli) -> Iterator[Any]:
    """Each coding agent in turn, set up with its own home."""
    with client(AGENTS[request.param], home) as instance:
        yield instance


@pytest.fixture(params=ERAS)
def inspector(request: pytest.FixtureRequest, home: HomeCli) -> Iterator[Mcpdo]:
    """MCP Inspector with a permanent connection, for each era of the protocol."""
    instance = Mcpdo(home, request.param)
    try:
        yield instance
    finally:
        instance.close()


def _wait_completed(home_cli: HomeCli, task_id: str) -> None:
    wait_until(lambda: home_cli.status(task_id)["status"] == "completed", f"{task_id} to complete", 60)


# -- starting, waiting, reading


def test_an_agent_lists_tools_starts_a_command_waits_and_reads_its_output(agent: Client) -> None:
    gate = Gate(agent.home_cli.cwd)
    script = (
        start(gate.command),
        {"tool": "backburner_wait_for_background_tasks", "args": {"task_ids": ["{{task_id}}"]}},
        *agent.search_steps("read_background_output"),
        {"tool": "backburner_read_background_output", "args": {"task_id": "{{task_id}}"}},
        {"say": "read it"},
    )
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(agent.turn, *script)
        wait_until(lambda: has_started(agent.conversation()) or turn.done(), "it to be started", PATIENCE)
        gate.open()
        text = turn.result()
    task_id = task_in(text)
    assert f"{task_id} completed (exit 0" in text, "the call waited"
    assert text.count(gate.line) >= 2, "once in the summary of the wait, once in the output"
    assert all(name in agent.offered_tools() for name in toolset("commands"))
    assert notices_of(task_id, text) == 0, "a caller that waited gets no notice"
    assert agent.home_cli.status(task_id)["status"] == "completed"
    assert agent.home_cli.json("inbox") == []


def test_a_command_outlives_opencode_run_and_the_next_run_gets_the_notice(home: HomeCli) -> None:
    gate = Gate(home.cwd)
    with client(OpenCode, home) as agent:
        task_id = task_in(agent.run_once(start(gate.command), {"say": "started"}))
        gate.open()
        _wait_completed(home, task_id)
        agent.run_once({"say": "hm"}, {"say": "I see"})
        text = agent.run_once({"say": "and?"})
        assert notices_of(task_id, text) == 1 and gate.line in text


@pytest.mark.parametrize("era", ERAS)
def test_the_inspector_lists_tools_starts_a_command_waits_and_reads_its_output(home: HomeCli, era: str) -> None:
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
    assert listed == list(toolset()), "the clients on the PATH are available as agents"
    task_id = call("start_background_task", command="cat notes.txt", description="Read")["task_id"]
    assert call("wait_for_background_tasks", task_ids=[task_id])["tasks"][0]["status"] == "completed"
    assert call("read_background_output", task_id=task_id)["output"] == "the ninth wave\n"


@contextlib.contextmanager
def _busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.parametrize("busy", [0, 8])
def test_claude_as_installed_has_the_tools_in_its_first_turn(home: HomeCli, busy: int) -> None:
    with client(Claude, home) as agent, _busy_loops(busy):
        for name in ("MCP_CONNECTION_NONBLOCKING", "MCP_CONNECT_TIMEOUT_MS"):
            del agent.environ[name]  # `install` sets neither
        offered = []
        for _ in range(10):
            agent.model.requests.clear()
            agent.session = None
            agent.turn({"say": "hello"})
            offered.append("mcp__backburner__start_background_task" in [tool["name"] for tool in agent.requests()[0]["tools"]])
        assert offered == [True] * 10


# -- notices


@pytest.mark.parametrize("agent", CLIENTS_WITH_HOOKS, indirect=True)
def test_an_agent_gets_one_notice_of_a_task_that_ended_between_turns(agent: Client) -> None:
    gate = Gate(agent.home_cli.cwd)
    task_id = task_in(agent.turn(start(gate.command), {"say": "started, and not waited for"}))
    gate.open()
    _wait_completed(agent.home_cli, task_id)
    text = agent.turn({"say": "so it has ended"})
    assert notices_of(task_id, text) == 1 and gate.line in text
    later = agent.turn({"tool": "backburner_list_background_tasks", "args": {}}, {"say": "nothing new"})
    assert notices_of(task_id, later) == agent.keeps_hook_output, "only the earlier notice, in the history"
    assert agent.home_cli.json("inbox") == []


def test_only_the_idle_opencode_session_that_started_a_task_is_woken_once(home: HomeCli) -> None:
    gate = Gate(home.cwd)
    with client(OpenCode, home) as agent:
        agent.turn({"say": "hello"})
        first, agent.session = agent.session, None
        task_id = task_in(agent.turn(start(gate.command), {"say": "started, and not waited for"}))
        turns = len(agent.requests())
        gate.open()
        wait_until(lambda: len(agent.requests()) > turns, "the plugin to wake the session", 60)
        assert notices_of(task_id, agent.conversation()) == 1 and gate.line in agent.conversation()
        assert notices_of(task_id, agent.turn({"tool": "backburner_list_background_tasks", "args": {}}, {"say": "nothing new"})) == 1
        agent.session = first
        assert notices_of(task_id, agent.turn({"tool": "backburner_list_background_tasks", "args": {}})) == 0, (
            "the task belongs to another session"
        )


@pytest.mark.parametrize("agent", CLIENTS_WITH_HOOKS, indirect=True)
def test_an_agent_that_would_stop_continues_when_a_task_has_ended(agent: Client) -> None:
    gate = Gate(agent.home_cli.cwd)
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(agent.turn, start(gate.command), {"hang": 8, "say": "I think I am done"}, {"say": "oh, it ended"})
        wait_until(lambda: has_started(agent.conversation()) or turn.done(), "it to be started", PATIENCE)
        gate.open()
        text = turn.result()
    task_id = task_in(text)
    *_, before, after = [notices_of(task_id, said(request)) for request in agent.requests()]
    assert (before, after) == (0, 1), "the turn would have ended, and the model got one more request"
    assert notices_of(task_id, agent.turn({"say": "nothing new"})) == 1


def test_codex_without_trusted_hooks_gets_the_notice_with_the_next_result(home: HomeCli) -> None:
    gate = Gate(home.cwd)
    with client(Codex, home) as agent:
        agent.hooks_are_trusted = False
        task_id = task_in(agent.turn(start(gate.command), {"say": "started"}))
        gate.open()
        _wait_completed(home, task_id)
        text = agent.turn(
            {"tool": "backburner_list_background_tasks", "args": {}}, {"tool": "backburner_list_background_tasks", "args": {}}
        )
        assert notices_of(task_id, text) == 1


def test_an_idle_claude_session_is_woken_once_by_its_stop_hook(home: HomeCli) -> None:
    gate = Gate(home.cwd)

    def hooks() -> int:
        return sum(b"--hook" in Path(f"/proc/{found.pid}/cmdline").read_bytes() for found in home.processes())

    def type_prompt(*script: dict[str, Any]) -> None:
        turns = len(agent.requests())
        terminal.type(f"\x1b[200~{prompt(list(script))}\x1b[201~")
        terminal.type("\r")
        wait_until(lambda: len(agent.requests()) > turns, "a request to the model", PATIENCE)

    with client(Claude, home) as agent:
        terminal = Terminal(["claude", prompt([{"say": "hello"}])], agent.environ, home.cwd)
        try:
            wait_until(agent.requests, "the first turn", PATIENCE)
            for _ in range(20):
                if "mcp__backburner__start_background_task" in shown(agent.requests()[-1]["tools"]):
                    break
                type_prompt({"say": "its servers are not all there yet"})
            type_prompt(start(gate.command), {"say": "started"}, {"say": "oh, it ended"})
            wait_until(lambda: has_started(agent.conversation()), "it to be started", PATIENCE)
            turns, task_id = len(agent.requests()), task_in(agent.conversation())
            wait_until(hooks, "the Stop hook to keep running", 60)
            gate.open()
            wait_until(lambda: len(agent.requests()) > turns, "the session to be woken", 60)
            assert notices_of(task_id, agent.conversation()) == 1
            wait_until(lambda: not hooks(), "the hooks to exit", 60)
            type_prompt({"say": "nothing new"})
            assert notices_of(task_id, agent.conversation()) == 1 and len(agent.requests()) == turns + 2, "woken once"
        finally:
            terminal.process.terminate()
            terminal.end(60)


def test_the_inspector_gets_the_notice_once_with_the_next_result(home: HomeCli, inspector: Mcpdo) -> None:
    gate = Gate(home.cwd)
    task_id = inspector.call("start_background_task", command=gate.command, description="x")["structuredContent"]["task_id"]
    gate.open()
    _wait_completed(home, task_id)
    result = inspector.call("list_background_tasks")
    assert notices_of(task_id, result["structuredContent"]["notices"]) == notices_of(task_id, result["content"][0]["text"]) == 1
    assert gate.line in result["structuredContent"]["notices"]
    assert "notices" not in inspector.call("list_background_tasks")["structuredContent"]


def test_concurrent_clients_of_one_home_each_get_only_their_own_notice(home: HomeCli) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        agents = [stack.enter_context(client(kind, home)) for kind in (Claude, Claude, Codex)]
        gates = [Gate(home.cwd, f"gate{number}") for number in range(3)]
        texts = list(pool.map(lambda agent, gate: agent.turn(start(gate.command), {"say": "started"}), agents, gates))
        tasks = [task_in(text) for text in texts]
        for gate, task_id in zip(gates, tasks, strict=True):
            gate.open()
            _wait_completed(home, task_id)
        list(pool.map(lambda agent: agent.turn({"say": "so it has ended"}), agents))
        texts = list(
            pool.map(lambda agent: agent.turn({"tool": "backburner_list_background_tasks", "args": {}}, {"say": "nothing new"}), agents)
        )
        assert len(set(tasks)) == 3
        counts = [[notices_of(task_id, text) for task_id in tasks] for text in texts]
        assert counts == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


# -- the sandbox


def test_a_command_that_nobody_approved_runs_at_once_in_the_sandbox(agent: Client) -> None:
    home_cli = agent.home_cli
    (home_cli.cwd / "product.py").write_text("open('made.txt', 'w').close()\nprint(6 * 7 * 1000003)\n")
    text = agent.turn(
        start("python3 product.py"),
        wait_for("{{task_id}}"),
        *agent.search_steps("check_task_status"),
        {"tool": "backburner_check_task_status", "args": {"task_id": "{{task_id}}"}},
        {"say": "read it"},
    )
    found = home_cli.status(task_in(text))
    assert (found["status"], found["approved_by"], found["rule"]) == ("completed", "auto", "sandbox")
    assert "42000126" in text and "rule: sandbox" in text
    assert not (home_cli.cwd / "made.txt").exists(), "it changed a copy of the project"
    assert questions_in(text) == set() and _proposals(home_cli) == set()


def _start_to_fail_in_sandbox(agent: Client, gate: Gate, server: socket.socket) -> tuple[str, str, str]:
    """Have the model start a command that a sandbox stops, once the gate is open; returns its line, the task of the gate, and its own."""
    line = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5)\""
    text = agent.turn(start(gate.command), start(line, after=["{{task_id}}"]), {"say": "started both"})
    task_id = task_in(text)
    (first,) = agent.home_cli.status(task_id)["after"]
    assert questions_in(text) == set()
    return line, first, task_id


def test_a_command_that_failed_because_of_the_sandbox_comes_back_as_one_question(agent: Client) -> None:
    home_cli, gate = agent.home_cli, Gate(agent.home_cli.cwd)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        line, first, task_id = _start_to_fail_in_sandbox(agent, gate, server)
        turns = len(agent.requests())
        turn = pool.submit(agent.turn, wait_for(first, task_id), {"say": "I ask the user"})
        wait_until(lambda: len(agent.requests()) > turns or turn.done(), "the model to wait for them", PATIENCE)
        gate.open()
        text = turn.result()
        found = home_cli.status(task_id)
        assert (found["status"], found["approved_by"], found["rule"]) == ("failed", "auto", "sandbox")
        assert "Tell the user: it may have failed because of the sandbox" in text and "run in a terminal of your own" in text
        assert questions_in(text) == _proposals(home_cli) == {f"{task_id}_outside"}
        text = agent.turn(start(line), {"say": "I ask the user again"})
        assert f"waiting for approval: {task_id}_outside" in text
        assert questions_in(text) == _proposals(home_cli) == {f"{task_id}_outside"}, "still one question"
        assert home_cli.status(f"{task_id}_outside")["run_count"] == 0, "it is not tried in the sandbox again"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nothing has connected
            server.accept()


def test_the_notice_of_a_failure_because_of_the_sandbox_is_one_question_and_a_yes_runs_the_command(agent: Client) -> None:
    home_cli, gate = agent.home_cli, Gate(agent.home_cli.cwd)
    with socket.create_server(("127.0.0.1", 0)) as server:
        _, _, task_id = _start_to_fail_in_sandbox(agent, gate, server)
        outside = f"{task_id}_outside"
        gate.open()
        wait_until(lambda: home_cli.status(task_id)["status"] == "failed", "it to fail", 60)
        if isinstance(agent, OpenCode):
            wait_until(lambda: notices_of(task_id, agent.conversation()), "the plugin to wake the session", 60)
        text = agent.turn({"say": "I ask the user"})
        assert notices_of(task_id, text) == 1 and "it may have failed because of the sandbox" in text
        assert questions_in(text) == _proposals(home_cli) == {outside}
        turns = len(agent.requests())
        approve_in_users_terminal(home_cli, outside)
        _wait_completed(home_cli, outside)
        server.settimeout(10)
        server.accept()[0].close()
        if isinstance(agent, OpenCode):
            wait_until(lambda: len(agent.requests()) > turns, "the plugin to wake the session", 60)
        text = agent.turn({"say": "so it was allowed"})
        assert notices_of(outside, text) == 1 and _proposals(home_cli) == set()


def _proposals(home_cli: HomeCli) -> set[str]:
    """The ids of all tasks that wait for an approval."""
    return {task["task_id"] for task in home_cli.json("list", "proposed")}


# -- approval


def test_a_dangerous_command_needs_a_users_approval_and_no_agent_can_give_it(agent: Client) -> None:
    home_cli, precious = agent.home_cli, agent.home_cli.cwd.parent / "precious.txt"
    precious.write_text("mine")
    approve = " ".join([*own_command(home_cli.environ), "approve", "{{task_id}}"])
    text = agent.turn(
        start("rm ../precious.txt", "Tidy up"),
        {"tool": agent.shell, "args": {agent.argument: approve, "description": "Approve"}},
        {"tool": agent.shell, "args": {agent.argument: f"script -qec '{approve}' /dev/null </dev/null; true", "description": "Approve"}},
        {"say": "I could not"},
    )
    task_id = task_in(text)
    assert f"waiting for approval: {task_id}" in text and "I cannot approve it for you" in text
    assert text.count("Only a person can") >= 2, text[-3000:]
    assert precious.exists() and home_cli.status(task_id)["status"] == "proposed"
    turns = len(agent.requests())
    approve_in_users_terminal(home_cli, task_id)
    _wait_completed(home_cli, task_id)
    assert not precious.exists()
    if isinstance(agent, OpenCode):
        wait_until(lambda: len(agent.requests()) > turns, "the plugin to wake the session", 60)
    assert notices_of(task_id, agent.turn({"say": "so it was allowed"})) == 1
    assert notices_of(task_id, agent.turn({"say": "nothing new"})) == agent.keeps_hook_output


def test_a_dangerous_command_needs_a_users_approval_with_the_inspector(home: HomeCli, inspector: Mcpdo) -> None:
    precious = home.cwd.parent / "precious.txt"
    precious.write_text("mine")
    proposed = inspector.call("start_background_task", command="rm ../precious.txt", description="Tidy up")["structuredContent"]
    assert proposed["status"] == "proposed" and proposed["display"].startswith(f"waiting for approval: {proposed['task_id']}")
    assert "notices" not in inspector.call("list_background_tasks")["structuredContent"] and precious.exists()
    approve_in_users_terminal(home, proposed["task_id"])
    _wait_completed(home, proposed["task_id"])
    assert not precious.exists()
    assert notices_of(proposed["task_id"], inspector.call("list_background_tasks")["structuredContent"]["notices"]) == 1
    assert "notices" not in inspector.call("list_background_tasks")["structuredContent"]


# -- setup and removal


def test_doctor_reports_the_setup_and_undo_removes_every_entry(agent: Client) -> None:
    home_cli, path = agent.home_cli, {"PATH": agent.environ["PATH"]}
    agent.turn(start("echo hello"), {"tool": "backburner_wait_for_background_tasks", "args": {"task_ids": ["{{task_id}}"]}})
    agent.close()
    assert f"{agent.name}: is set up for Backburner" in home_cli.ok("doctor", env=path)
    undone = json.loads(home_cli.ok("install", agent.name, "--undo", "--yes", "--json", env=path))
    assert undone["changed"]
    for name in undone["changed"]:
        assert not os.path.exists(name) or "backburner" not in Path(name).read_text().lower(), name
    assert not list(agent.user_home.rglob("*.before-backburner"))
    assert f"{agent.name}: is not set up for Backburner" in home_cli.ok("doctor", env=path)
    assert "nothing to undo" in home_cli.ok("install", agent.name, "--undo", "--yes", env=path)


# -- the built-in agent


def test_opencode_starts_an_agent_task_gets_its_answer_and_continues_it(home: HomeCli) -> None:
    with client(OpenCode, home) as agent, ScriptedModel() as other:
        home.configure(f'[models]\ndefault = "openai-chat:other"\nbase_url = "{other.url}/v1"\n')
        question = f"Look around [[script: {json.dumps([{'say': 'The lamp is in the cellar.'}])}]]"
        task = {"tool": "backburner_background_task", "args": {"description": "Find the lamp", "prompt": question}}
        task_id = task_in(agent.turn(task, {"say": "asked"}))
        wait_until(lambda: "[BACKGROUND TASK COMPLETED]" in agent.conversation(), "the plugin to wake the session", 60)
        assert "The lamp is in the cellar." in agent.conversation()
        again = f"And the key? [[script: {json.dumps([{'say': 'The key hangs beside it.'}])}]]"
        more = {"tool": "backburner_background_resume", "args": {"task_id": task_id, "message": again}}
        agent.turn(more, {"tool": "backburner_background_block", "args": {"task_ids": [task_id]}}, {"say": "good"})
        text = agent.turn({"tool": "backburner_background_output", "args": {"task_id": task_id}}, {"say": "read"})
        assert "The key hangs beside it." in text
        assert other.seen("The lamp is in the cellar."), "the agent had its whole conversation"
    home.stop_engine()
    wait_until(lambda: not [processes.send(found, signal.SIGTERM) for found in home.processes()], "the agent process to exit")
