"""The MCP server with real clients: over stdio and HTTP, in both protocol versions, with approval and notices."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from conftest import HomeCli, wait_until
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_client import Raw

from backburner.agent_tools.registry import toolset
from backburner.core.notice_text import NOTICE_PREFIX

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
        assert started and started["status"] == "running"
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
    (home_cli.cwd / "notes.txt").write_text("one\n\nRecent output of mine\ntwo\n")
    async with _client(home_cli, "legacy") as client:
        started = (await client.call_tool("start_background_task", {"command": "cat notes.txt", "description": "Read"})).structured_content
        assert started
        known = {"task_id": started["task_id"]}
        await client.call_tool("wait_for_background_tasks", {"task_ids": [started["task_id"]]})
        looked = await client.call_tool("check_task_status", known)
        shown = looked.structured_content
        assert shown and shown["output"] == "one\n\nRecent output of mine\ntwo\n"
        assert shown["display"].startswith("Task: ") and "Exit code: 0" in shown["display"] and "Recent output" not in shown["display"]
        assert "Recent output (last 4 lines):" in looked.content[0].text and "Full output: " in looked.content[0].text  # type: ignore[union-attr]
        read = (await client.call_tool("read_background_output", known)).structured_content
        assert read and read["output"] == shown["output"] and read["display"] == ""


async def test_the_tools_describe_themselves(home_cli: HomeCli) -> None:
    async with _client(home_cli, "legacy") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == list(toolset("commands,tasks")), "agents are only offered where there is a model for them"
    for name, tool in tools.items():
        about = tool.input_schema["properties"]
        assert all(len(about[parameter]["description"]) > 10 for parameter in about), name
        assert tool.description and tool.output_schema and "display" in tool.output_schema["properties"]
        assert tool.annotations is not None
    hints = {name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint) for name, tool in tools.items() if tool.annotations}
    assert hints["check_task_status"] == (True, False) and hints["cancel_background_task"] == (False, True)
    assert tools["start_background_task"].input_schema["required"] == ["command", "description"]


def test_only_the_requested_tool_sets_are_offered(home_cli: HomeCli) -> None:
    with Raw(home_cli, "--tools", "commands") as client:
        assert len(client.request("tools/list")["result"]["tools"]) == 9
    done = home_cli.cli("mcp", "--tools", "cooking")
    assert done.returncode == 2 and "Unknown tool set 'cooking'. Available: commands, agents, tasks." in done.stderr


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
        home_cli.ok("reject", asked["task_id"])
        told = client.value("list_background_tasks")["notices"]
        assert "was rejected by a person" in told and "Do not try to do the same thing in another way" in told


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
        client.value("cancel_background_task", task_id=again)
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
        task_id = client.value("start_background_task", command="env", description="x")["task_id"]
        home_cli.cli("approve", task_id)
        client.value("wait_for_background_tasks", task_ids=[task_id])
        output = client.value("read_background_output", task_id=task_id)["output"]
    assert "MY_SETTING=seen" in output and "secret-token" not in output
    assert b"secret-token" not in (home_cli.root / "ledger.db").read_bytes()


def test_tasks_and_outputs_are_resources_that_can_be_subscribed_to(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        task_id = client.value("start_background_task", command="head -n 2", description="x", stdin=True)["task_id"]
        uris = [f"task://{task_id}", f"output://{task_id}"]
        assert [one["uri"] for one in client.request("resources/list")["result"]["resources"]] == uris[:1]
        assert len(client.request("resources/templates/list")["result"]["resourceTemplates"]) == 2
        about = client.request("resources/read", {"uri": uris[0]})["result"]["contents"][0]["text"]
        assert '"status": "running"' in about
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


# -- over HTTP


@pytest.fixture
def server_url(home_cli: HomeCli) -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "backburner", "serve", "--http", "0"],
        cwd=home_cli.cwd,
        env=home_cli.environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    line = server.stderr.readline()
    yield line.split()[3].rstrip(",")
    server.send_signal(signal.SIGTERM)
    server.wait(20)
    server.stderr.close()


def _token(home_cli: HomeCli) -> str:
    path = home_cli.root / "token"
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text().strip()


@pytest.mark.parametrize("era", ERAS)
async def test_over_http_a_client_with_the_token_can_use_everything(home_cli: HomeCli, server_url: str, era: str) -> None:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {_token(home_cli)}", "Backburner-Session": "mine"}, timeout=40) as http,
        Client(streamable_http_client(server_url, http_client=http), mode=era) as client,
    ):
        refused = await client.call_tool("start_background_task", {"command": "ls", "description": "x"})
        assert refused.is_error and "absolute path" in refused.content[0].text  # type: ignore[union-attr]
        where = {"working_directory": str(home_cli.cwd)}
        started = await client.call_tool("start_background_task", {"command": "echo over http", "description": "x", **where})
        task_id = started.structured_content["task_id"]  # type: ignore[index]
        waited = await client.call_tool("wait_for_background_tasks", {"task_ids": [task_id]})
        assert waited.structured_content["tasks"][0]["status"] == "completed"  # type: ignore[index]
        reads = {"command": "cat gate", "description": "x", **where}
        asked = (await client.call_tool("start_background_task", reads)).structured_content
        assert asked and asked["status"] == "proposed", "over HTTP no folder is the project, but for those that a person trusted"
        home_cli.ok("trust")
        os.mkfifo(home_cli.cwd / "gate")  # so that it does not end before its own start is answered, with its notice on that answer
        other = (await client.call_tool("start_background_task", reads)).structured_content
        assert other and other["status"] != "proposed"
        (home_cli.cwd / "gate").write_text("x")
        wait_until(lambda: home_cli.status(other["task_id"])["status"] == "completed", "the task to end")  # type: ignore[index]
        assert other["task_id"] in (await client.call_tool("list_background_tasks", {})).structured_content["notices"]  # type: ignore[index]


async def test_over_http_a_notice_in_an_unread_response_is_not_acknowledged(home_cli: HomeCli, server_url: str) -> None:
    headers = {"Authorization": f"Bearer {_token(home_cli)}", "Backburner-Session": "mine"}
    where = {"description": "x", "working_directory": str(home_cli.cwd)}
    async with httpx2.AsyncClient(headers=headers, timeout=40) as http:
        async with Client(streamable_http_client(server_url, http_client=http), mode="legacy") as client:
            slow = (await client.call_tool("start_background_task", {"command": "sleep 60", **where})).structured_content["task_id"]  # type: ignore[index]
            quick = (await client.call_tool("start_background_task", {"command": "sleep 1", **where})).structured_content["task_id"]  # type: ignore[index]
            waiting = asyncio.create_task(client.call_tool("wait_for_background_tasks", {"task_ids": [slow], "timeout_seconds": 3}))
            await asyncio.sleep(0.5)
            waiting.cancel()  # it hangs up
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
        await asyncio.sleep(4)
        async with Client(streamable_http_client(server_url, http_client=http), mode="legacy") as client:
            for _ in range(40):  # once it is certain that it did not arrive
                told = (await client.call_tool("list_background_tasks", {})).structured_content.get("notices", "")  # type: ignore[union-attr]
                if told:
                    break
                await asyncio.sleep(1)
            assert quick in told
            await client.call_tool("cancel_background_task", {"task_id": slow})


def test_over_http_a_half_sent_request_is_closed(home_cli: HomeCli, server_url: str) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(server_url).port or 0), timeout=40) as half:
        half.sendall(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert httpx2.post(server_url).status_code == 401
        assert half.recv(1) == b""


def test_over_http_a_wrong_token_host_or_origin_is_refused(home_cli: HomeCli, server_url: str) -> None:
    right = {"Authorization": f"Bearer {_token(home_cli)}"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}

    def status(**headers: str) -> int:
        return httpx2.post(server_url, json=body, headers={"Accept": "application/json, text/event-stream", **headers}).status_code

    assert status() == 401
    assert status(Authorization="Bearer wrong") == 401
    assert status(Authorization=_token(home_cli)) == 401
    assert status(**right, Host="evil.example") == 421
    assert status(**right, Host="evil.example:80") == 421
    assert status(**right, Origin="http://evil.example") == 403
    assert status(**right, Origin="null") == 403
    assert status(**right, Origin=server_url.removesuffix("/mcp")) not in (401, 403, 421)


@pytest.mark.parametrize(
    ("where", "said"),
    [("x", "is not a port"), ("99999", "is not a port"), ("0.0.0.0:80", "loopback only"), ("127.0.0.1:", "is not a port")],
)
def test_an_invalid_listen_address_is_refused(home_cli: HomeCli, where: str, said: str) -> None:
    done = home_cli.cli("serve", "--http", where)
    assert done.returncode == 2 and said in done.stderr


def test_the_server_exits_with_its_client(home_cli: HomeCli) -> None:
    client = Raw(home_cli)
    client.value("start_background_task", command="sleep 30", description="x")
    client.process.kill()
    client.__exit__()
    assert home_cli.json("list", "running"), "its task continues"
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


def test_without_the_extra_a_sentence_says_what_to_install(home_cli: HomeCli, tmp_path: Path) -> None:
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text("import sys; sys.modules['mcp'] = None")
    done = home_cli.cli("mcp", env={"PYTHONPATH": str(tmp_path / "hide")})
    assert done.returncode == 2 and "pip install 'backburner[mcp]'" in done.stderr
