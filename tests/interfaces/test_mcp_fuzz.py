"""The MCP server with misbehaving clients: no leaks, no tracebacks, and the server keeps running."""

import json
import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import LONG, HomeCli, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_client import Raw

from backburner.agent_tools.registry import Tool, toolset
from backburner.core.errors import BadInput

VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    float(2**70),
    "",
    "x",
    "../..",
    "\n\t",
    "é" * 50,
    "a" * 300_000,
    [],
    [1],
    ["a", None],
    {},
    {"a": {}},
]
TRACES = (b"Traceback", b'File "', b"Exception")


def _alive(client: Raw) -> None:
    assert client.value("list_background_tasks")["count"] >= 0


def test_invalid_arguments_get_one_error_message(home_cli: HomeCli) -> None:
    chance = random.Random(7)
    with Raw(home_cli) as client:
        tools = client.request("tools/list")["result"]["tools"]
        for _ in range(1500 if LONG else 150):
            tool = chance.choice(tools)
            names = [*tool["inputSchema"]["properties"], "unknown", "_session", ""]
            arguments = {chance.choice(names): chance.choice(VALUES) for _ in range(chance.randrange(4))}
            if tool["name"] == "start_background_task":
                arguments["command"] = chance.choice([3, "", "'", "a | b", "true", None])
            if tool["name"] == "wait_for_background_tasks":
                arguments["timeout_seconds"] = chance.choice([0, -5, 0.01, "x"])
            done = client.call(tool["name"], **arguments)
            text = done["content"][0]["text"]
            assert len(text) < 100_000 and not any(word.decode() in text for word in TRACES), (tool["name"], arguments, text)
            if done.get("isError"):
                assert done["structuredContent"]["error"]["message"] and (
                    text.endswith((".", "!")) or ": backburner " in text.splitlines()[-1]
                )
        _alive(client)
    assert not any(word in client.errors for word in TRACES), client.errors


@pytest.mark.parametrize("tool", list(toolset().values()), ids=lambda tool: tool.name)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_arguments_are_accepted_or_refused_with_a_message(tool: Tool, data: st.DataObject) -> None:
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    anything = st.recursive(leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3))
    arguments = data.draw(st.dictionaries(st.sampled_from([*tool.parameters, "other"]), anything))
    try:
        checked = tool.check(arguments)
    except BadInput as refused:
        assert tool.name in str(refused) and len(str(refused)) < 500
    else:
        assert set(checked) <= set(tool.parameters)


def test_invalid_messages_are_answered_and_do_not_stop_the_server(home_cli: HomeCli) -> None:
    bad = [b"", b"hello", b"{", b"[]", b"[1,2]", b"null", b"42", b'"x"', b"\xff\xfe\x00", b"{}" * 10, b'{"jsonrpc":"2.0"}']
    bad += [
        b'{"jsonrpc":"1.0","id":1,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":{},"method":"x"}',
        b'{"jsonrpc":"2.0","method":5,"id":9}',
    ]
    bad += [b'{"jsonrpc":"2.0","id":77,"result":{}}', b'{"jsonrpc":"2.0","id":78,"error":{"code":1,"message":"x"}}', b"[" * 100_000]
    with Raw(home_cli) as client:
        for line in bad:
            client.write(line)
        for method in ("nothing/here", "tools/callx", "resources/read", "tools/call", "logging/setLevel", "initialize"):
            for params in ({}, {"name": 5}, {"uri": []}, {"name": "x", "arguments": "y"}):
                done = client.request(method, params)
                assert "error" in done or "result" in done
        _alive(client)
    assert b"Traceback" not in client.errors.replace(b"backburner: ", b""), client.errors[-2000:]


def test_a_10_mb_line_is_accepted_and_an_endless_one_is_dropped(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        done = client.call("start_background_task", command="echo " + "x" * 10_000_000, description="big")
        assert done["isError"] and "longer than" in done["content"][0]["text"]
        client.write(b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":"' + b"y" * (40 << 20))
        _alive(client)
        used = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{client.process.pid}/status").read_text())
        assert used and int(used[1]) < 400_000, "what was let go does not stay in memory"


@pytest.mark.parametrize(
    "line",
    [
        {"jsonrpc": "2.0", "method": "notifications/x", "params": {"id": 1}},
        {"jsonrpc": "2.0", "id": None, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": {}, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 1.5, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 5, "method": 5},
        {"jsonrpc": "2.0", "id": 5, "result": {"method": "x"}},
        b'{"method": "id", "id": broken',
    ],
)
def test_messages_that_get_no_response_do_not_block_later_requests(home_cli: HomeCli, line: object) -> None:
    with Raw(home_cli) as client:
        for _ in range(600):
            client.write(line)
        _alive(client)


def test_a_cancel_is_processed_during_many_waits(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        task_id = client.value("start_background_task", command="sleep 60", description="x")["task_id"]
        waits = [client.send("tools/call", {"name": "wait_for_background_tasks", "arguments": {"task_ids": [task_id]}}) for _ in range(300)]
        refused = client.answer(waits[-1])
        assert "open calls" in refused["error"]["message"]
        for number in waits[:100]:
            client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        assert client.value("cancel_background_task", task_id=task_id)["status"] == "cancelled"


def test_cancelled_calls_close_their_listeners(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        task_id = client.value("start_background_task", command="sleep 60", description="x")["task_id"]
        for _ in range(50):
            number = client.send("tools/call", {"name": "wait_for_background_tasks", "arguments": {"task_ids": [task_id]}})
            client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        _alive(client)

        def listeners() -> int:
            return len([name for name in os.listdir(home_cli.home.socket_dir) if name.startswith(f"{client.process.pid}-")])

        wait_until(lambda: listeners() <= 1, "the listeners of cancelled waits to close")
        client.value("cancel_background_task", task_id=task_id)


def test_a_notice_on_a_cancelled_response_is_delivered_again(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        task_id = client.value("start_background_task", command="echo x", description="x")["task_id"]
        wait_until(lambda: home_cli.status(task_id)["status"] == "completed", "the task to end")
        answers = []
        for _ in range(20):
            number = client.send("tools/call", {"name": "list_background_tasks", "arguments": {}})
            client.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}})
        seen = json.dumps(client.value("list_background_tasks"))
        answers += [json.dumps(note) for note in client.notes]
        told = sum(f"<task-id>{task_id}" in text for text in (seen, *answers))
        if told == 0:  # its answer was cancelled on the way: it is offered again once that is certain
            wait_until(lambda: "notices" in client.value("list_background_tasks"), "the notice to come again")
        assert told <= 1
        assert "notices" not in client.value("list_background_tasks")


def test_the_server_stops_reading_from_a_client_that_never_reads(home_cli: HomeCli) -> None:
    client = Raw(home_cli)
    assert client.process.stdin is not None
    os.set_blocking(client.process.stdin.fileno(), False)
    line = json.dumps({"jsonrpc": "2.0", "id": 5, "method": "tools/list"}).encode() + b"\n"
    written, stuck = 0, 0
    while written < 50_000 and stuck < 200:
        try:
            written += os.write(client.process.stdin.fileno(), line * 10) // len(line)
            stuck = 0
        except BlockingIOError:
            stuck += 1
            signal.sigtimedwait([], 0.01)
    assert written < 50_000, "the server must stop reading from this client"
    client.__exit__()
    assert client.process.returncode is not None
    assert home_cli.json("list") == []


def test_a_closed_pipe_ends_the_server_quietly(home_cli: HomeCli) -> None:
    client = Raw(home_cli)
    assert client.process.stdout is not None and client.process.stderr is not None
    client.process.stdout.close()
    for _ in range(3):
        client.send("tools/list")
    client.process.wait(15)
    assert b"Traceback" not in client.process.stderr.read()
    client.__exit__()


def test_many_calls_at_once_are_all_answered(home_cli: HomeCli) -> None:
    with Raw(home_cli) as client:
        numbers = [client.send("tools/call", {"name": "list_background_tasks", "arguments": {}}) for _ in range(400)]
        answered = set()
        while len(answered) < len(numbers):
            answered.add(client.read()["id"])
        assert answered == set(numbers)
