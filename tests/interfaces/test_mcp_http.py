"""The MCP server over HTTP: with real clients, and with requests that are not as they should be."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from conftest import HomeCli, wait_until
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_client import HELLO
from test_mcp import ERAS

VERSION = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": VERSION, "io.modelcontextprotocol/clientCapabilities": {}}


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
        await client.call_tool("memory_set", {"key": "colour", "value": "teal", **where})
        assert (await client.call_tool("memory_list", where)).structured_content["keys"] == ["colour"]  # type: ignore[index]
        added = {"name": "look", "description": "x", "interval": "1h", "command": "true", **where}
        assert not (await client.call_tool("task_add", added)).is_error
        home_cli.ok("cancel", "look")


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


class Post:
    """Sends single messages; `session` is the session that `initialize` has opened."""

    def __init__(self, home_cli: HomeCli, url: str) -> None:
        self.http = httpx2.Client(headers={"Authorization": f"Bearer {_token(home_cli)}"}, timeout=40)
        self._url, self.session = url, {}

    def __call__(self, message: object, headers: dict[str, str] | None = None) -> Any:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        accept = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        return self.http.post(self._url, content=body, headers={**accept, **self.session, **(headers or {})})

    def initialize(self, version: str = "2025-06-18") -> None:
        done = self(_request(0, "initialize", {**HELLO, "protocolVersion": version}))
        assert done.json()["result"]["protocolVersion"] == version
        self.session = {"Mcp-Session-Id": done.headers["mcp-session-id"]}

    def modern(self, method: str, params: dict[str, Any] | None = None, **headers: str) -> Any:
        message = _request(1, method, {**(params or {}), "_meta": META})
        return self(message, {"Mcp-Protocol-Version": VERSION, "Mcp-Method": method, **headers})


def _request(number: int, method: str, params: object = None) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": method, **({"params": params} if params is not None else {})}


@pytest.fixture
def post(home_cli: HomeCli, server_url: str) -> Iterator[Post]:
    post = Post(home_cli, server_url)
    with post.http:
        yield post


def test_over_http_a_session_begins_with_initialize_and_ends_with_delete(post: Post, server_url: str) -> None:
    assert post(_request(1, "tools/list")).status_code == 400
    post.initialize()
    assert post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202
    listed = post(_request(1, "tools/list"), {"Mcp-Protocol-Version": "2025-06-18"})
    assert listed.headers["content-type"] == "application/json" and listed.json()["result"]["tools"]
    assert post.http.delete(server_url, headers=post.session).status_code == 200
    assert post(_request(2, "tools/list")).status_code == 404
    assert post.http.put(server_url).status_code == 405 and post.http.get(f"{server_url}/other").status_code == 404


def test_over_http_invalid_and_long_messages_are_refused(post: Post) -> None:
    post.initialize()
    assert (done := post(b"{")).status_code == 400 and done.json()["error"]["code"] == -32700
    assert (done := post(b"[]")).status_code == 400 and done.json()["error"]["code"] == -32600
    assert post(b" " * (5 << 20)).status_code == 413
    assert (done := post(_request(1, "no/such/method"))).status_code == 200 and done.json()["error"]["code"] == -32601


def test_over_http_a_batch_is_answered_with_a_list(post: Post) -> None:
    post.initialize("2025-03-26")
    done = post([_request(1, "ping"), _request(2, "tools/call", {"name": "brief"})])
    assert [answer["id"] for answer in done.json()] == [1, 2]


def test_over_http_headers_of_the_newest_version_must_match_the_body(post: Post) -> None:
    assert post.modern("server/discover").json()["result"]["supportedVersions"] == [VERSION]
    call = {"name": "brief", "arguments": {}}
    assert "result" in post.modern("tools/call", call, **{"Mcp-Name": "brief"}).json()
    assert "result" in post.modern("tools/call", call, **{"Mcp-Name": "=?base64?YnJpZWY=?="}).json()
    for headers in ({}, {"Mcp-Name": "inbox"}, {"Mcp-Name": "brief", "Mcp-Method": "tools/list"}):
        done = post.modern("tools/call", call, **headers)
        assert done.status_code == 400 and done.json()["error"]["code"] == -32020, headers
    done = post(_request(1, "tools/list"), {"Mcp-Protocol-Version": "2099-01-01", "Mcp-Method": "tools/list"})
    assert done.status_code == 400
    done = post.modern("no/such/method")
    assert done.status_code == 404 and done.json()["error"]["code"] == -32601


def test_over_http_updates_of_resources_arrive_on_the_stream_of_the_session(home_cli: HomeCli, post: Post, server_url: str) -> None:
    post.initialize()
    task_id = home_cli.run("head", "-n", "1", options=("--stdin",))
    with post.http.stream("GET", server_url, headers={**post.session, "Accept": "text/event-stream"}) as stream:
        assert stream.status_code == 200
        assert post.http.get(server_url, headers={**post.session, "Accept": "text/event-stream"}).status_code == 409
        assert post(_request(1, "resources/subscribe", {"uri": f"task://{task_id}"})).json()["result"] == {}
        home_cli.ok("send", task_id, "x")
        line = next(line for line in stream.iter_lines() if line.startswith("data: "))
        assert json.loads(line.removeprefix("data: "))["params"] == {"uri": f"task://{task_id}"}


def test_over_http_a_long_call_reports_its_progress_and_can_be_cancelled(home_cli: HomeCli, post: Post, server_url: str) -> None:
    post.initialize()
    task_id = home_cli.run("sleep", "60")
    params = {"name": "wait_for_background_tasks", "arguments": {"task_ids": [task_id]}, "_meta": {"progressToken": 5}}
    headers = {**post.session, "Accept": "application/json, text/event-stream"}
    with post.http.stream("POST", server_url, json=_request(7, "tools/call", params), headers=headers) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        assert json.loads(next(lines).removeprefix("data: "))["params"]["progressToken"] == 5
        assert post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}).status_code == 202
        assert not [line for line in lines if '"result"' in line]
    home_cli.ok("cancel", task_id)
