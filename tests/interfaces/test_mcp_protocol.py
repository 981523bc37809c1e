"""The MCP protocol without input or output: what a message is answered with, in each version."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from backburner.interfaces.mcp.protocol import (
    INITIALIZED_VERSIONS,
    MAX_MESSAGE_BYTES,
    MAX_OPEN_REQUESTS,
    Cancelled,
    Connection,
    Description,
    LineBuffer,
    Outgoing,
    ProtocolError,
    Request,
)
from backburner.interfaces.mcp.stdio import _serve_without_home

ABOUT = Description("test", "1", "Be quick.", lambda: [{"name": "add", "inputSchema": {"type": "object"}}], [])
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


def receive(connection: Connection, *messages: object) -> list[Any]:
    """The events that follow from messages; an outgoing message is shown as itself."""
    events = [event for message in messages for event in connection.receive(json.dumps(message).encode())]
    return [event.message if isinstance(event, Outgoing) else event for event in events]


def request(request_id: Any, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, **({"params": params} if params else {})}


def initialized(version: str = "2025-06-18") -> Connection:
    connection = Connection(ABOUT)
    hello = request(0, "initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "me", "version": "1"})
    (answer,) = receive(connection, hello)
    assert answer["result"]["protocolVersion"] == version
    return connection


def call(request_id: Any, **meta: Any) -> dict[str, Any]:
    return request(request_id, "tools/call", name="add", arguments={"a": 1}, **({"_meta": meta} if meta else {}))


@pytest.mark.parametrize("version", INITIALIZED_VERSIONS)
def test_a_client_gets_the_version_that_it_asks_for(version: str) -> None:
    assert initialized(version).client_info == {"name": "me", "version": "1"}


def test_a_client_with_an_unknown_version_gets_the_newest_one_with_initialize() -> None:
    hello = request(0, "initialize", protocolVersion="2099-01-01", capabilities={}, clientInfo={"name": "me", "version": "1"})
    (answer,) = receive(Connection(ABOUT), hello)
    assert answer["result"]["protocolVersion"] == "2025-11-25"


def test_a_request_is_passed_on_and_its_answer_is_sent_once() -> None:
    (event,) = receive(initialized(), call(7))
    assert isinstance(event, Request) and (event.method, event.params["arguments"], event.client_name) == ("tools/call", {"a": 1}, "me")
    answer = event.answer({"ok": 1}, ("delivered",))  # type: ignore[arg-type]
    assert answer == Outgoing({"jsonrpc": "2.0", "id": 7, "result": {"ok": 1}}, ("delivered",))  # type: ignore[arg-type]
    assert event.answer({}) is None


def test_a_cancelled_request_gets_no_answer_and_no_progress() -> None:
    connection = initialized()
    (event,) = receive(connection, call("x", progressToken=1))
    assert event.progress(0.5, 1.0, "half").message["params"] == {"progressToken": 1, "progress": 0.5, "total": 1.0, "message": "half"}
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "x"}}
    assert receive(connection, cancel) == [Cancelled(event)]
    assert event.answer({}) is None and event.fail(ProtocolError(1, "x")) is None and event.progress(1.0, 1.0, "all") is None
    assert receive(connection, cancel) == []


def test_progress_is_only_sent_if_the_client_asks_for_it() -> None:
    (event,) = receive(initialized(), call(1))
    assert event.progress(0.5, 1.0, "half") is None


def test_log_messages_are_sent_from_the_level_that_the_client_has_set() -> None:
    connection = initialized()
    (event,) = receive(connection, call(1))
    assert event.log("error", "x") is None
    receive(connection, request(2, "logging/setLevel", level="warning"))
    assert event.log("info", "x") is None
    assert event.log("error", "x").message["params"] == {"level": "error", "logger": "test", "data": "x"}
    (modern,) = receive(Connection(ABOUT), call(1, **META, **{"io.modelcontextprotocol/logLevel": "error"}))
    assert modern.log("error", "x") and not modern.log("warning", "x")


def test_a_request_of_the_newest_version_needs_no_initialize_and_names_the_server() -> None:
    connection = Connection(ABOUT)
    (listed,) = receive(connection, request(1, "tools/list", _meta=META))
    about = {"io.modelcontextprotocol/serverInfo": {"name": "test", "version": "1"}}
    assert listed["result"] == {"tools": ABOUT.tools(), "ttlMs": 0, "cacheScope": "private", "resultType": "complete", "_meta": about}
    (event,) = receive(connection, call(2, **META, **{"io.modelcontextprotocol/clientInfo": {"name": "you", "version": "2"}}))
    assert event.client_name == "you"


def test_a_batch_is_answered_together_when_its_last_answer_is_there() -> None:
    connection = initialized("2025-03-26")
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    first, second = receive(connection, [request(1, "ping"), call(2), note, call(3), 5])
    assert first.answer({"a": 1}, ("told",)) is None
    assert second.answer({"b": 1}) == Outgoing(
        [
            {"jsonrpc": "2.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "The message is not a JSON-RPC 2.0 object."}},
            {"jsonrpc": "2.0", "id": 2, "result": {"a": 1}},
            {"jsonrpc": "2.0", "id": 3, "result": {"b": 1}},
        ],
        ("told",),  # type: ignore[arg-type]
    )


def test_a_cancelled_request_does_not_hold_back_its_batch() -> None:
    connection = initialized("2025-03-26")
    assert len(receive(connection, [request(1, "ping"), call(2)])) == 1
    cancelled, answer = receive(connection, {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
    assert isinstance(cancelled, Cancelled) and answer == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


@pytest.mark.parametrize("version", [version for version in INITIALIZED_VERSIONS if version != "2025-03-26"])
def test_other_versions_have_no_batches(version: str) -> None:
    (answer,) = receive(initialized(version), [request(1, "ping")])
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)


def test_a_client_has_a_limited_number_of_open_requests() -> None:
    connection = initialized()
    events = receive(connection, *(call(n) for n in range(MAX_OPEN_REQUESTS)))
    (refused,) = receive(connection, call("one more"))
    assert "open calls" in refused["error"]["message"]
    events[0].answer({})
    assert isinstance(receive(connection, call("one more"))[0], Request)


def test_an_id_can_be_used_again_after_its_answer_but_not_before() -> None:
    connection = initialized()
    (event,) = receive(connection, call(1))
    assert receive(connection, call(1))[0]["error"]["code"] == -32600
    event.answer({})
    assert isinstance(receive(connection, call(1))[0], Request)


def test_a_line_above_the_limit_is_dropped_and_reported() -> None:
    lines = LineBuffer()
    assert list(lines.feed(b"a\n\nb")) == [b"a"]
    assert list(lines.feed(b"c\n" + b"x" * MAX_MESSAGE_BYTES)) == [b"bc"]
    assert list(lines.feed(b"y")) == [] and list(lines.feed(b"z\nd\n")) == [None, b"d"]
    (refusal,) = Connection(ABOUT).receive(None)
    assert isinstance(refusal, Outgoing) and "at most" in refusal.message["error"]["message"]  # type: ignore[call-overload]


def test_tools_that_are_asked_for_together_with_resources_do_not_wait_for_the_home() -> None:
    (reading, to_server), (from_server, writing) = os.pipe(), os.pipe()
    lines = (
        call(1),
        request(2, "tools/list"),
        call(3),
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}},
    )
    os.write(to_server, "".join(json.dumps(line) + "\n" for line in lines).encode())
    requests = _serve_without_home(initialized(), LineBuffer(), reading, writing)
    assert [event.request_id for event in requests] == [1]
    assert json.loads(os.read(from_server, 1 << 16))["id"] == 2
    for descriptor in (reading, to_server, from_server, writing):
        os.close(descriptor)


def test_initialize_and_the_list_of_tools_are_answered_before_anything_heavy_is_imported() -> None:
    code = """
import sys
from backburner.interfaces.mcp.about import OfferedTools, describe
from backburner.interfaces.mcp import stdio
from backburner.interfaces.mcp.protocol import Connection
connection = Connection(describe(OfferedTools(None, sys.argv[1], {})))
for line in sys.stdin.buffer:
    for event in connection.receive(line):
        assert b'"result"' in event.encode()
print(sorted({"apsw", "asyncio", "logging", "pydantic", "mcp", "ssl", "tree_sitter", "backburner.services.app"} & set(sys.modules)))
"""
    hello = request(0, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "me", "version": "1"})
    lines = "\n".join(map(json.dumps, (hello, request(1, "tools/list"))))
    done = subprocess.run([sys.executable, "-c", code, "/nowhere"], input=lines, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
