"""`backburner mcp`: the MCP server on standard input and output, for clients that start it themselves.

A result counts as delivered when it was written to the client's pipe. The server exits when the client closes its end.
"""

import argparse
import asyncio
import json
import logging
import os
import re
import shlex
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from backburner.agent_tools.dispatcher import Answer
from backburner.agent_tools.registry import available_toolsets, toolset
from backburner.core.errors import BackburnerError
from backburner.core.optional_dependencies import need
from backburner.interfaces.cli.run import cwd
from backburner.services.app import open_app
from backburner.services.async_app import AsyncApp
from backburner.system.caller_identity import current_caller

_MAX_LINE = 16 << 20  # bytes
_MAX_OPEN_REQUESTS = 256
_READ_SIZE = 1 << 16  # bytes
_RESPONSE = re.compile(r'\{"jsonrpc":"2\.0","id":("(?:[^"\\]|\\.)*"|-?\d+),"(result|error)"')


def mcp(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Serve until the client closes the connection."""
    need("mcp", "The MCP server needs")
    from backburner.interfaces.mcp.server import McpServer

    toolset(args.tools)  # reports a wrong name before anything is opened
    logging.basicConfig(format="backburner: %(levelname)s %(message)s", level=logging.ERROR, stream=sys.stderr)
    if not sys.stdin.isatty():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal of the client is meant for the client
    environ, directory = dict(os.environ), cwd()
    transport = StdioTransport()

    async def serve() -> None:
        from mcp.server.stdio import stdio_server

        from backburner.interfaces.client_setup.wiring import own_command

        async with AsyncApp(lambda: open_app(args.home, environ, flags)) as app:
            max_wait = await app.call(lambda app: app.config.number("mcp.max_wait_seconds"))
            sets = args.tools or await app.call(lambda app: available_toolsets(app, current_caller("tool", environ)))
            server = McpServer(
                app,
                toolset(sets),
                longest_wait=max_wait,
                cwd=directory,
                command=shlex.join(own_command(environ, args.home)),
                client=args.client,
                environ=environ,
                deliver=transport.deliver,
            )
            async with stdio_server(cast(Any, transport), cast(Any, transport)) as (reading, writing):
                await server.server.run(reading, writing, server.server.create_initialization_options())

    try:
        asyncio.run(serve())
    except* (BrokenPipeError, ConnectionError):
        pass  # the client has exited
    except* BackburnerError as group:
        raise group.exceptions[0] from None
    finally:
        sys.stdout = sys.stderr
    sys.stderr.flush()
    os._exit(0)  # a thread may still be blocked on a client that neither reads nor writes


class StdioTransport:
    """The two pipes of a client, in the form that the SDK expects. Anything printed by accident goes to stderr."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self._threads = ThreadPoolExecutor(2, "pipe")
        self._pollable = {descriptor: _is_pollable(descriptor) for descriptor in (self._in, self._out)}
        self._text = ""
        self._open_requests: set[int | str | None] = set()
        self._write_lock = asyncio.Lock()
        self._deliveries: dict[int | str | None, Callable[[], Awaitable[None]]] = {}
        self._background: set[asyncio.Future[None]] = set()

    async def deliver(self, ctx: object, answer: Answer) -> None:
        """Call `answer.delivered` when the response to this request has been written."""
        self._deliveries[_request_id(getattr(ctx, "request_id", None))] = answer.delivered
        while len(self._deliveries) > 4 * _MAX_OPEN_REQUESTS:  # of requests that were never answered
            self._deliveries.pop(next(iter(self._deliveries)))

    async def __aiter__(self) -> AsyncIterator[str]:
        rest, skipping = bytearray(), False
        while piece := await self._read():
            *lines, last = piece.split(b"\n")
            for line in lines:
                complete, rest = bytes(rest) + line, bytearray()
                if skipping:
                    skipping = False
                    yield "this line is too long"  # the server answers it with a parse error
                elif complete.strip() and await self._accept(complete):
                    yield complete.decode("utf-8", "replace")
            if not skipping:
                rest += last
            if len(rest) > _MAX_LINE:
                skipping, rest = True, bytearray()

    async def _accept(self, line: bytes) -> bool:
        """Whether to pass a line to the server. Rejects requests of a client that has too many open ones."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return True  # the server reports the error
        if not isinstance(message, dict) or "method" not in message:
            return True
        if message["method"] == "notifications/cancelled" and isinstance(params := message.get("params"), dict):
            self._open_requests.discard(_request_id(params.get("requestId")))  # cancelled requests get no response
        if (request_id := _request_id(message.get("id"))) is None:
            return True
        if len(self._open_requests) < _MAX_OPEN_REQUESTS:
            self._open_requests.add(request_id)
            return True
        refusal = {"code": -32000, "message": f"There are already {_MAX_OPEN_REQUESTS} open calls; wait until some of them have finished."}
        async with self._write_lock:
            await self._send(json.dumps({"jsonrpc": "2.0", "id": request_id, "error": refusal}) + "\n")
        return False

    async def _read(self) -> bytes:
        if not self._pollable[self._in]:
            return await asyncio.get_running_loop().run_in_executor(self._threads, os.read, self._in, _READ_SIZE)
        while True:
            try:
                return os.read(self._in, _READ_SIZE)
            except BlockingIOError:
                await _wait_ready(self._in, asyncio.get_running_loop().add_reader, asyncio.get_running_loop().remove_reader)

    async def write(self, text: str) -> None:
        self._text += text

    async def flush(self) -> None:
        text, self._text = self._text, ""
        async with self._write_lock:
            await self._send(text)
        if response := _RESPONSE.match(text):
            request_id = json.loads(response[1])
            self._open_requests.discard(request_id)
            delivered = self._deliveries.pop(request_id, None)
            if delivered and response[2] == "result":
                task = asyncio.ensure_future(delivered())
                self._background.add(task)
                task.add_done_callback(self._background.discard)

    async def _send(self, text: str) -> None:
        view = memoryview(text.encode())
        while view:
            view = view[await self._write(view) :]

    async def _write(self, view: memoryview) -> int:
        if not self._pollable[self._out]:
            return await asyncio.get_running_loop().run_in_executor(self._threads, os.write, self._out, view)
        while True:
            try:
                return os.write(self._out, view)
            except BlockingIOError:
                await _wait_ready(self._out, asyncio.get_running_loop().add_writer, asyncio.get_running_loop().remove_writer)


def _request_id(value: object) -> int | str | None:
    """The id of a request, or None if the value is not a valid id."""
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _is_pollable(descriptor: int) -> bool:
    """Make a pipe or socket non-blocking; False for other files, which must be read in a thread."""
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return False
    os.set_blocking(descriptor, False)
    return True


async def _wait_ready(descriptor: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
    ready = asyncio.get_running_loop().create_future()
    add(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        remove(descriptor)
