"""The MCP server with real clients: over stdio, in both kinds of protocol versions, with approval and notices."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import HomeCli, wait_until
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_client import Raw

from backburner.agent_tools.registry import toolset
from backburner.core.notice_text import NOTICE_PREFIX
from backburner.interfaces.mcp.protocol import Outgoing
from backburner.interfaces.mcp.tool_list import set_names, tool_list

ERAS = ["legacy", "2026-07-28"]


def _client(home_cli: HomeCli, mode: str, **options: Any) -> Client:
    server = StdioServerParameters(command=sys.executable, args=["-m", "backburner", "mcp"], env=home_cli.environ, cwd=home_cli.cwd)
    return Client(stdio_client(server), mode=mode, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_starts_waits_for_and_reads_a_task(home_cli: HomeCli, era: str) -> None:
    (home_cli.cwd / "notes.txt").write_text("".join(f"line {n}\n" for n in range(100)))
    seen: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None, text: str | None) -> None:
        seen.append((done, total, text))

    async with _client(home_cli, era) as client:
        started = (await client.call_tool("start_background_task", {"command": "cat notes.txt", "description": "Read"})).structured_content
        assert started and started["status"] in ("pending", "running")
        slow = (await client.call_tool("start_background_task", {"command": "sleep 4", "description": "Nap"})).structured_content
        assert slow
        both = [started["task_id"], slow["task_id"]]
        waited = (await client.call_tool("wait_for_background_tasks", {"task_ids": both}, progress_callback=progress)).structured_content
        assert waited and waited["running"] == [] and [task["status"] for task in waited["tasks"]] == ["completed"] * 2
        assert len(seen) >= 2 and [one[0] for one in seen] == sorted({one[0] for one in seen}), "progress only grows"
        first = (await client.call_tool("read_background_output", {"task_id": both[0], "max_characters": 100})).structured_content
        assert first and first["more"] and first["output"].startswith("line 0\n") and len(first["output"]) <= 100
        rest = (await client.call_tool("read_background_output", {"task_id": both[0], "cursor": first["cursor"]})).structured_content
        assert rest and first["output"] + rest["output"] == (home_cli.cwd / "notes.txt").read_text() and not rest["more"]


async def test_a_result_contains_the_output_only_once(home_cli: HomeCli) -> None:
    (home_cli.cwd / "notes.txt").write_text("one\n\nRecent output of mine\n    two\n")
    async with _client(home_cli, "legacy") as client:
        started = (await client.call_tool("start_background_task", {"command": "cat notes.txt", "description": "Read"})).structured_content
        assert started
        known = {"task_id": started["task_id"]}
        await client.call_tool("wait_for_background_tasks", {"task_ids": [started["task_id"]]})
        looked = await client.call_tool("check_task_status", known)
        shown = looked.structured_content
        assert shown and shown["output"] == "one\n\nRecent output of mine\n    two\n"
        assert shown["display"].startswith("Task: ") and "Exit code: 0" in shown["display"] and "Recent output" not in shown["display"]
        assert "\n    two\n" in looked.content[0].text  # type: ignore[union-attr]
        assert "Recent output (last 4 lines):" in looked.content[0].text and "Full output: " in looked.content[0].text  # type: ignore[union-attr]
        read = (await client.call_tool("read_background_output", known)).structured_content
        assert read and read["output"] == shown["output"] and read["display"] == ""


async def test_the_tools_describe_themselves(home_cli: HomeCli) -> None:
    async with _client(home_cli, "legacy") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == list(toolset("commands,tasks,memory,inbox")), "agents are only offered where there is a model for them"
    assert all(tool.description and tool.output_schema is None for tool in tools.values())
    read_only = {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint}
    assert "check_task_status" in read_only and "start_background_task" not in read_only
    assert tools["start_background_task"].input_schema["required"] == ["command", "description"]


@pytest.mark.parametrize(("sets", "most"), [("commands,agents,tasks,memory,inbox", 12_000), ("commands", 4_500)])
def test_the_list_of_tools_is_short_because_every_model_pays_for_it_with_every_request(sets: str, most: int) -> None:
    listed = {"jsonrpc": "2.0", "id": 1, "result": {"tools": tool_list(set_names(sets))}}
    assert len(Outgoing(listed).encode()) <= most


def test_only_the_requested_tool_sets_are_offered(home_cli: HomeCli) -> None:
    with Raw(home_cli, "--tools", "commands") as client:
        assert len(client.request("tools/list")["result"]["tools"]) == 9
    done = home_cli.cli("mcp", "--tools", "cooking")
    assert done.returncode == 2 and "Unknown tool set 'cooking'. Available: commands, agents, tasks, memory, inbox." in done.stderr


def test_with_an_invalid_config_file_every_call_says_what_is_wrong_with_it(home_cli: HomeCli) -> None:
    settings = (home_cli.root / "config.toml").read_text()
    home_cli.configure("this is not TOML")
    with Raw(home_cli) as client:
        assert client.request("tools/list")["result"]["tools"]
        failed = client.call("list_background_tasks")
        assert failed["isError"] and "config.toml" in failed["content"][0]["text"]
        assert "config.toml" in client.request("resources/list")["error"]["message"]
        home_cli.configure(settings)
        assert client.value("list_background_tasks")["count"] == 0, "the next call tries it again"


def test_a_started_task_is_described_without_commands_of_the_chat(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        started = client.value("start_background_task", command="echo x", description="Quick")
        assert started["task_id"] in started["display"] and "/status" not in started["display"]
        wait_until(lambda: home_cli.status(started["task_id"])["status"] == "completed", "the task to end")


def test_a_notice_is_attached_once_to_the_next_result(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        task_id = client.ended()
        told = client.call("list_background_tasks")
        assert (
            f"<task-id>{task_id}</task-id>" in told["structuredContent"]["notices"]
            and NOTICE_PREFIX in told["structuredContent"]["notices"]
        )
        assert NOTICE_PREFIX in told["content"][0]["text"]
        assert "notices" not in client.value("list_background_tasks")


@pytest.mark.parametrize("tool", ["check_task_status", "wait_for_background_tasks"])
def test_a_result_that_reports_an_end_acknowledges_its_notice(home_cli: HomeCli, tool: str) -> None:
    with Raw(home_cli) as client:
        task_id = client.ended()
        arguments = {"task_ids": [task_id]} if tool.startswith("wait") else {"task_id": task_id}
        assert "notices" not in client.value(tool, **arguments)
        assert "notices" not in client.value("list_background_tasks")


def test_two_clients_of_one_home_each_get_their_own_notices_once(home_cli: HomeCli) -> None:
    with Raw(home_cli, env={"CLAUDE_CODE_SESSION_ID": "one"}) as first, Raw(home_cli, env={"CLAUDE_CODE_SESSION_ID": "two"}) as second:
        answers: dict[Raw, list[dict[str, Any]]] = {first: [], second: []}
        for n in range(5):
            for client, given in answers.items():
                given.append(client.value("start_background_task", command=f"echo {n}", description="x"))
        mine = {client: [answer["task_id"] for answer in given] for client, given in answers.items()}
        everything = mine[first] + mine[second]
        wait_until(lambda: all(home_cli.status(task_id)["status"] == "completed" for task_id in everything), "all to end")
        for client, given in answers.items():
            given += [client.value("list_background_tasks"), client.value("list_background_tasks")]
            told = re.findall("<task-id>(.*)</task-id>", "".join(answer.get("notices", "") for answer in given))
            assert sorted(told) == sorted(mine[client]), "its own, each once"
            assert "notices" not in given[-1]


def _told(client: Raw) -> list[str]:
    """The tasks of the notices in the next result."""
    return re.findall("<task-id>(.*)</task-id>", client.value("list_background_tasks").get("notices", ""))


def test_two_connections_of_one_client_process_are_two_sessions(home_cli: HomeCli) -> None:
    with Raw(home_cli) as first, Raw(home_cli) as second:
        tasks = first.ended(), second.ended()
        assert (_told(first), _told(second)) == ([tasks[0]], [tasks[1]])
        assert _told(first) == _told(second) == []


def test_a_restarted_server_gets_the_notices_of_the_one_before_it(home_cli: HomeCli) -> None:
    with Raw(home_cli) as first, Raw(home_cli) as second:
        tasks = first.ended(), second.ended()
        first.process.kill()
        first.process.wait()
        with Raw(home_cli) as restarted:
            assert _told(restarted) == [tasks[0]]
        assert _told(second) == [tasks[1]]


def test_memory_inbox_and_brief_are_tools(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        client.call("memory_set", key="colour", value="teal")
        assert client.value("memory_list")["keys"] == ["colour"]
        assert client.value("memory_get", key="colour") == {"key": "colour", "value": "teal", "display": ""}
        assert client.call("memory_get", key="colour")["content"][0]["text"] == "teal"
        client.call("memory_set", key="colour", value="")
        assert "value" not in client.value("memory_get", key="colour")
        task_id = client.ended()
        assert client.value("inbox")["inbox"] == [], "its notice is in the same answer"
        of_user = home_cli.run("true")
        wait_until(lambda: home_cli.status(of_user)["status"] == "completed", "the task to end")
        assert [notice["task_id"] for notice in client.value("inbox")["inbox"]] == [task_id, of_user]
        assert [notice["task_id"] for notice in home_cli.json("inbox")] == [of_user], "it is still unread"  # type: ignore[union-attr, index, call-overload]
        assert task_id in client.value("brief")["display"]


def test_threads_of_one_client_are_separate_sessions(home_cli: HomeCli) -> None:
    with Raw(home_cli, "--client", "codex") as client:
        thread = {name: {"x-codex-turn-metadata": {"thread_id": name, "session_id": name}} for name in ("a", "b")}
        task_id = client.ended(thread["a"])
        assert "notices" not in client.value("list_background_tasks", thread["b"])
        assert task_id in client.value("list_background_tasks", thread["a"])["notices"]


def test_the_opencode_plugin_passes_its_session_id(home_cli: HomeCli) -> None:
    with Raw(home_cli, "--client", "opencode") as client:
        task_id = client.ended(_session="ses_1")
        assert "notices" not in client.value("list_background_tasks", _session="ses_2")
        assert task_id in client.value("list_background_tasks", _session="ses_1")["notices"]


def test_notices_of_a_session_reach_the_inbox_after_the_session_ends(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        task_id = client.ended()
        assert home_cli.json("inbox") == []
    # The process of the session is this test, which is alive; after a later boot it is not.
    later = home_cli.cli("inbox", "--json", env={"BACKBURNER_BOOT_ID": "another"})
    assert task_id in later.stdout


def test_a_command_that_needs_approval_does_not_run_before_it(home_cli: HomeCli) -> None:
    victim = home_cli.cwd / "precious"
    victim.write_text("x")
    with Raw(home_cli) as client:
        asked = client.value("start_background_task", command="rm precious", description="Tidy up")
        assert asked["status"] == "proposed" and asked["display"].startswith(f"waiting for approval: {asked['task_id']}")
        assert f"approve {asked['task_id']}" in asked["display"] and "I cannot approve it for you" in asked["display"]
        waited = client.value("wait_for_background_tasks", task_ids=[asked["task_id"]], timeout_seconds=20)
        assert "is waiting for approval" in waited["display"] and victim.exists()
        names = {tool["name"] for tool in client.request("tools/list")["result"]["tools"]}
        assert not any(re.search("approve|trust|yes|allow", name) for name in names)
        home_cli.ok("approve", asked["task_id"])
        done = client.value("wait_for_background_tasks", task_ids=[asked["task_id"]])
        assert done["tasks"][0]["status"] == "completed" and not victim.exists()


def test_the_session_is_notified_of_its_rejected_command(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        asked = client.value("start_background_task", command="rm -r x", description="Tidy up")
        home_cli.ok("reject", asked["task_id"], "--reason", "x is not yours\x1b[2J")
        told = client.value("list_background_tasks")["notices"]
        assert "was rejected by a person" in told and "Do not try to do the same thing in another way" in told
        waited = client.value("wait_for_background_tasks", task_ids=[asked["task_id"]])["display"]
        assert "Their reason: x is not yours" in told and "Their reason: x is not yours" in waited and "\x1b" not in told


def test_a_key_returns_the_existing_task(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        first = client.value("start_background_task", command="sleep 30", description="x", key="once")
        second = client.value("start_background_task", command="sleep 30", description="x", key="once")
        assert first["task_id"] == second["task_id"] and "not started again" in second["display"]
        assert client.value("cancel_background_task", task_id=first["task_id"])["status"] == "cancelled"


def test_a_task_accepts_input_and_can_be_restarted_and_cleared(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        task_id = client.value("start_background_task", command="head -n 1", description="Echo", stdin=True)["task_id"]
        client.value("send_to_background_task", task_id=task_id, text="hello there")
        assert client.value("wait_for_background_tasks", task_ids=[task_id])["running"] == []
        assert client.value("read_background_output", task_id=task_id)["output"] == "hello there\n"
        again = client.value("restart_background_task", task_id=task_id)["task_id"]
        assert again != task_id
        assert "closed its input" in client.value("send_to_background_task", task_id=again, text="", eof=True)["display"]
        assert client.value("wait_for_background_tasks", task_ids=[again])["running"] == []
        assert sorted(client.value("clear_background_tasks", task_ids=[task_id, again])["cleared"]) == sorted([task_id, again])


def test_a_wait_returns_before_the_client_times_out(home_cli: HomeCli) -> None:
    home_cli.configure((home_cli.root / "config.toml").read_text() + "[mcp]\nmax_wait_seconds = 1\n")
    with Raw(home_cli) as client:
        task_id = client.value("start_background_task", command="sleep 60", description="Nap")["task_id"]
        waited = client.value("wait_for_background_tasks", task_ids=[task_id], timeout_seconds=600)
        assert waited["running"] == [task_id] and "Call again" in waited["display"]
        client.value("cancel_background_task", task_id=task_id)


def test_tasks_over_the_capacity_are_pending(home_cli: HomeCli) -> None:
    home_cli.configure((home_cli.root / "config.toml").read_text() + "[commands]\nmax_concurrent = 1\n")
    with Raw(home_cli) as client:
        first = client.value("start_background_task", command="sleep 60", description="Nap")
        wait_until(lambda: home_cli.status(first["task_id"])["status"] == "running", "the first to run")
        second = client.value("start_background_task", command="sleep 60", description="Nap")
        assert second["status"] == "pending" and "starts automatically" in second["display"]
        for one in (second, first):
            client.value("cancel_background_task", task_id=one["task_id"])


def test_a_command_gets_the_servers_environment_without_the_clients_key(home_cli: HomeCli) -> None:
    env = {"MY_SETTING": "seen", "CLAUDE_CODE_MESSAGING_TOKEN": "secret-token"}
    with Raw(home_cli, env=env) as client:
        task_id = client.value("start_background_task", command="python3 -c 'import os; print(os.environ)'", description="x")["task_id"]
        home_cli.cli("approve", task_id)
        client.value("wait_for_background_tasks", task_ids=[task_id])
        output = client.value("read_background_output", task_id=task_id)["output"]
    assert "'MY_SETTING': 'seen'" in output and "secret-token" not in output
    assert b"secret-token" not in (home_cli.root / "ledger.db").read_bytes()


def test_tasks_and_outputs_are_resources_that_can_be_subscribed_to(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        task_id = client.value("start_background_task", command="head -n 2", description="x", stdin=True)["task_id"]
        uris = [f"task://{task_id}", f"output://{task_id}"]
        assert [one["uri"] for one in client.request("resources/list")["result"]["resources"]] == uris[:1]
        assert len(client.request("resources/templates/list")["result"]["resourceTemplates"]) == 2
        wait_until(
            lambda: '"status": "running"' in client.request("resources/read", {"uri": uris[0]})["result"]["contents"][0]["text"],
            "the start",
        )
        for uri in uris:
            client.request("resources/subscribe", {"uri": uri})
        client.notes.clear()
        for text in ("one", "two"):
            client.value("send_to_background_task", task_id=task_id, text=text)
        heard: set[str] = set()
        while heard != set(uris):
            heard |= {note["params"]["uri"] for note in client.notes if note["method"] == "notifications/resources/updated"}
            client.notes.clear()
            client.notes.append(client.read()) if heard != set(uris) else None
        wait_until(
            lambda: client.request("resources/read", {"uri": uris[1]})["result"]["contents"][0]["text"] == "one\ntwo\n", "the output"
        )
        for uri in uris:
            client.request("resources/unsubscribe", {"uri": uri})
        for uri in ("task://nothing", "output://", "file:///etc/passwd", "task://x/../y", "\x00", "task://" + "x" * 10_000):
            assert client.request("resources/read", {"uri": uri})["error"]["code"] == -32602


async def test_a_modern_client_receives_resource_updates(home_cli: HomeCli) -> None:
    async with _client(home_cli, "2026-07-28") as client:
        started = await client.call_tool("start_background_task", {"command": "head -n 1", "description": "x", "stdin": True})
        task_id = started.structured_content["task_id"]  # type: ignore[index]
        wanted, heard = {f"task://{task_id}", f"output://{task_id}"}, set()
        async with client.listen(resource_subscriptions=sorted(wanted)) as stream, asyncio.timeout(20):
            await client.call_tool("send_to_background_task", {"task_id": task_id, "text": "one"})
            async for event in stream:
                heard.add(str(event.uri))  # type: ignore[union-attr]
                if heard == wanted:
                    break


def test_the_server_exits_with_its_client(home_cli: HomeCli) -> None:
    client = Raw(home_cli)
    client.value("start_background_task", command="sleep 30", description="x")
    client.process.kill()
    client.__exit__()
    wait_until(lambda: bool(home_cli.json("list", "running")), "the task to run: it continues")
    home_cli.cli("cancel", "last")


def test_the_server_exits_at_the_end_of_its_input(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        number = client.send("tools/call", {"name": "wait_for_background_tasks", "arguments": {"task_ids": ["x"]}})
        client.answer(number)
    assert client.process.returncode == 0 and client.errors == b""


def test_ctrl_c_in_the_clients_terminal_does_not_stop_the_server(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        os.kill(client.process.pid, signal.SIGINT)
        for _ in range(5):
            assert client.value("list_background_tasks")["count"] == 0


def test_without_the_extra_the_server_runs_over_stdio_and_http_names_it(home_cli: HomeCli, tmp_path: Path) -> None:
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text("import sys; sys.modules['mcp'] = sys.modules['uvicorn'] = None")
    with Raw(home_cli, env={"PYTHONPATH": str(tmp_path / "hide")}) as client:
        assert client.value("list_background_tasks")["count"] == 0
    done = home_cli.cli("serve", "--http", "0", env={"PYTHONPATH": str(tmp_path / "hide")})
    assert done.returncode == 2 and "pip install 'backburner[web]'" in done.stderr
