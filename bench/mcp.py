"""The MCP server: time until `initialize` is answered, compared with the bare interpreter; time of a call, compared with an empty server on
the `mcp` SDK; memory of a server that was used, and the size of the list of tools.
"""

import contextlib
import json
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.home import LAUNCHER, PYTHON, BenchHome, scratch_folder
from bench.rounds import Figures, run_rounds

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
_INITIALIZE_PARAMS = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
_CALLS = 200


def measure(rounds: int, calls: int = _CALLS) -> list[Figures]:
    """Return the milliseconds until the first response, the median and the 95th percentile of a call, memory in MB, and bytes of tools."""
    with scratch_folder() as folder, BenchHome(folder) as home:
        home.cli("run", "--wait", "--", "echo", "hello")

        def backburner() -> Figures:
            return _measure_server(home, [LAUNCHER, "mcp"], "check_task_status", {"task_id": "last"}, "backburner", calls)

        def empty() -> Figures:
            return _measure_server(home, [PYTHON, "-c", EMPTY], "nothing", {}, "empty", calls)

        def bare_python() -> float:
            start = time.perf_counter()
            subprocess.run([PYTHON, "-IS", "-c", "pass"], cwd=home.cwd, check=True, stdin=subprocess.DEVNULL, capture_output=True)
            return (time.perf_counter() - start) * 1000

        candidates = {
            "python -IS -c pass": bare_python,
            "backburner": backburner,
            "empty": empty,
            "used": lambda: _measure_used_server(home),
        }
        return run_rounds(candidates, rounds)


def _measure_used_server(home: BenchHome) -> Figures:
    """The memory of a server after ten calls of a client, and the size of the list of tools."""
    figures = {"command tools": _listed_bytes(home, "commands"), "all tools": _listed_bytes(home, "commands,agents,tasks,memory,inbox")}
    with _server(home, [LAUNCHER, "mcp"]) as server:
        _request(server, 1, "initialize", _INITIALIZE_PARAMS)
        command = {"command": "echo hello | cat", "shell": True, "description": "Say hello"}
        started = _request(server, 2, "tools/call", {"name": "start_background_task", "arguments": command})
        task_id = started["result"]["structuredContent"]["task_id"]
        calls = {
            "wait_for_background_tasks": {"task_ids": [task_id]},
            "check_task_status": {"task_id": task_id},
            "list_background_tasks": {},
        }
        for number, (tool, arguments) in enumerate(3 * list(calls.items())):
            _request(server, 3 + number, "tools/call", {"name": tool, "arguments": arguments})
        used = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text())
        assert used
        return {**figures, "MB": int(used[1]) / 1024}


def _listed_bytes(home: BenchHome, sets: str) -> float:
    with _server(home, [LAUNCHER, "mcp", "--tools", sets]) as server:
        _request(server, 1, "initialize", _INITIALIZE_PARAMS)
        return float(len(json.dumps(_request(server, 2, "tools/list", {}), separators=(",", ":"))))


def _measure_server(home: BenchHome, command: list[str], tool: str, arguments: dict[str, str], name: str, calls: int) -> Figures:
    start = time.perf_counter()
    with _server(home, command) as server:
        _request(server, 1, "initialize", _INITIALIZE_PARAMS)
        first = time.perf_counter() - start
        _send(server, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        times = []
        for number in range(calls):
            before = time.perf_counter()
            response = _request(server, number + 2, "tools/call", {"name": tool, "arguments": arguments})
            times.append(time.perf_counter() - before)
            if "result" not in response or response["result"].get("isError"):
                raise RuntimeError(f"{name}: {response}")
    return {
        f"{name} initialize": first * 1000,
        f"{name} call": statistics.median(times) * 1000,
        f"{name} call p95": statistics.quantiles(times, n=20)[-1] * 1000,
    }


@contextlib.contextmanager
def _server(home: BenchHome, command: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
    server = subprocess.Popen(command, cwd=home.cwd, env=home.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield server
    finally:
        assert server.stdin and server.stdout
        server.stdin.close()
        server.wait(20)
        server.stdout.close()


def _send(server: "subprocess.Popen[bytes]", message: dict[str, object]) -> None:
    assert server.stdin
    server.stdin.write(json.dumps(message).encode() + b"\n")
    server.stdin.flush()


def _request(server: "subprocess.Popen[bytes]", number: int, method: str, params: object) -> dict[str, dict[str, Any]]:
    _send(server, {"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    assert server.stdout
    while (response := json.loads(server.stdout.readline())).get("id") != number:
        pass
    return response
