"""The MCP server beside an empty one on the same SDK: until it answers `initialize`, and what a call costs."""

import contextlib
import json
import statistics
import subprocess
import time
from collections.abc import Iterator

from bench.place import LAUNCHER, PYTHON, Place, scratch
from bench.turns import Figures, take_turns

EMPTY = """
import anyio, mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
async def tools(ctx, params):
    return types.ListToolsResult(tools=[types.Tool(name="nothing", input_schema={"type": "object"})])
async def call(ctx, params):
    return types.CallToolResult(content=[types.TextContent(type="text", text="ok")], structured_content={"ok": True})
async def main():
    server = Server("empty", on_list_tools=tools, on_call_tool=call)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
anyio.run(main)
"""
_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
_CALLS = 200


def measure(rounds: int, calls: int = _CALLS) -> list[Figures]:
    """Milliseconds until the first answer, and of a call that only 5 in 100 are slower than."""
    with scratch() as folder, Place(folder) as place:
        place.cli("run", "--wait", "--", "echo", "hello")

        def ours() -> Figures:
            return _visit(place, [LAUNCHER, "mcp"], "check_task_status", {"task_id": "last"}, "ours", calls)

        def empty() -> Figures:
            return _visit(place, [PYTHON, "-c", EMPTY], "nothing", {}, "empty", calls)

        return take_turns({"ours": ours, "empty": empty}, rounds)


def _visit(place: Place, command: list[str], tool: str, arguments: dict[str, str], name: str, calls: int) -> Figures:
    start = time.perf_counter()
    with _server(place, command) as server:
        _ask(server, 1, "initialize", _HELLO)
        first = time.perf_counter() - start
        _tell(server, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        took = []
        for number in range(calls):
            before = time.perf_counter()
            done = _ask(server, number + 2, "tools/call", {"name": tool, "arguments": arguments})
            took.append(time.perf_counter() - before)
            if "result" not in done or done["result"].get("isError"):
                raise RuntimeError(f"{name}: {done}")
    return {
        f"{name} initialize": first * 1000,
        f"{name} call": statistics.median(took) * 1000,
        f"{name} call p95": statistics.quantiles(took, n=20)[-1] * 1000,
    }


@contextlib.contextmanager
def _server(place: Place, command: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
    server = subprocess.Popen(command, cwd=place.cwd, env=place.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield server
    finally:
        assert server.stdin and server.stdout
        server.stdin.close()
        server.wait(20)
        server.stdout.close()


def _tell(server: "subprocess.Popen[bytes]", message: dict[str, object]) -> None:
    assert server.stdin
    server.stdin.write(json.dumps(message).encode() + b"\n")
    server.stdin.flush()


def _ask(server: "subprocess.Popen[bytes]", number: int, method: str, params: object) -> dict[str, dict[str, object]]:
    _tell(server, {"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    assert server.stdout
    while (answer := json.loads(server.stdout.readline())).get("id") != number:
        pass
    return answer
