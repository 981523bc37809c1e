"""`backburner mcp`: the MCP server on standard input and output, for clients that start it themselves.

An answer counts as given once it was written to the client's pipe. Ends when the client closes its side.
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

_LONGEST_LINE = 16 << 20
_MOST_UNANSWERED = 256
_PIECE = 1 << 16
_ANSWER = re.compile(r'\{"jsonrpc":"2\.0","id":("(?:[^"\\]|\\.)*"|-?\d+),"(result|error)"')


def mcp(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Serve until the client goes."""
    need("mcp", "The MCP server needs")
    from backburner.interfaces.mcp.server import McpServer

    toolset(args.tools)  # a wrong name is said before anything is opened
    logging.basicConfig(format="backburner: %(levelname)s %(message)s", level=logging.ERROR, stream=sys.stderr)
    if not sys.stdin.isatty():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the client's terminal is for the client
    environ, here = dict(os.environ), cwd()
    wire = StdioTransport()

    async def serve() -> None:
        from mcp.server.stdio import stdio_server

        from backburner.interfaces.client_setup.wiring import own_command

        async with AsyncApp(lambda: open_app(args.home, environ, flags)) as home:
            longest = await home.call(lambda app: app.config.number("mcp.max_wait_seconds"))
            sets = args.tools or await home.call(lambda app: available_toolsets(app, current_caller("tool", environ)))
            made = McpServer(
                home,
                toolset(sets),
                longest_wait=longest,
                cwd=here,
                command=shlex.join(own_command(environ, args.home)),
                client=args.client,
                environ=environ,
                deliver=wire.deliver,
            )
            async with stdio_server(cast(Any, wire), cast(Any, wire)) as (reading, writing):
                await made.server.run(reading, writing, made.server.create_initialization_options())

    try:
        asyncio.run(serve())
    except* (BrokenPipeError, ConnectionError):
        pass  # the client is gone
    except* BackburnerError as group:
        raise group.exceptions[0] from None
    finally:
        sys.stdout = sys.stderr
    sys.stderr.flush()
    os._exit(0)  # a thread may still wait for a client that neither reads nor writes


class StdioTransport:
    """The two pipes of a client, in the form that the SDK wants. What is printed by mistake goes to stderr."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._threads = ThreadPoolExecutor(2, "pipe")
        self._quick = {descriptor: _quick(descriptor) for descriptor in (self._in, self._out)}
        self._text = ""
        self._unanswered: set[int | str | None] = set()
        self._writing = asyncio.Lock()
        self._deliveries: dict[int | str | None, Callable[[], Awaitable[None]]] = {}
        self._background: set[asyncio.Future[None]] = set()

    async def deliver(self, ctx: object, answer: Answer) -> None:
        """Have `answer.delivered` called once the answer to this request was written."""
        self._deliveries[_number(getattr(ctx, "request_id", None))] = answer.delivered
        while len(self._deliveries) > 4 * _MOST_UNANSWERED:  # answers nobody wanted any more
            self._deliveries.pop(next(iter(self._deliveries)))

    async def __aiter__(self) -> AsyncIterator[str]:
        rest, skipping = bytearray(), False
        while piece := await self._read():
            *lines, last = piece.split(b"\n")
            for line in lines:
                whole, rest = bytes(rest) + line, bytearray()
                if skipping:
                    skipping = False
                    yield "this line is too long"  # answered as a parse error
                elif whole.strip() and await self._taken(whole):
                    yield whole.decode("utf-8", "replace")
            if not skipping:
                rest += last
            if len(rest) > _LONGEST_LINE:
                skipping, rest = True, bytearray()

    async def _taken(self, line: bytes) -> bool:
        """Whether a line is for the server. One who asks without end and does not wait for answers is refused."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return True  # it says so itself
        if not isinstance(message, dict) or "method" not in message:
            return True
        if message["method"] == "notifications/cancelled" and isinstance(about := message.get("params"), dict):
            self._unanswered.discard(_number(about.get("requestId")))  # those are never answered
        if (number := _number(message.get("id"))) is None:
            return True
        if len(self._unanswered) < _MOST_UNANSWERED:
            self._unanswered.add(number)
            return True
        refusal = {"code": -32000, "message": f"There are {_MOST_UNANSWERED} calls under way already; wait for some of them."}
        async with self._writing:
            await self._send(json.dumps({"jsonrpc": "2.0", "id": number, "error": refusal}) + "\n")
        return False

    async def _read(self) -> bytes:
        if not self._quick[self._in]:
            return await asyncio.get_running_loop().run_in_executor(self._threads, os.read, self._in, _PIECE)
        while True:
            try:
                return os.read(self._in, _PIECE)
            except BlockingIOError:
                await _ready(self._in, asyncio.get_running_loop().add_reader, asyncio.get_running_loop().remove_reader)

    async def write(self, text: str) -> None:
        self._text += text

    async def flush(self) -> None:
        text, self._text = self._text, ""
        async with self._writing:
            await self._send(text)
        if answered := _ANSWER.match(text):
            number = json.loads(answered[1])
            self._unanswered.discard(number)
            delivered = self._deliveries.pop(number, None)
            if delivered and answered[2] == "result":
                task = asyncio.ensure_future(delivered())
                self._background.add(task)
                task.add_done_callback(self._background.discard)

    async def _send(self, text: str) -> None:
        view = memoryview(text.encode())
        while view:
            view = view[await self._write(view) :]

    async def _write(self, view: memoryview) -> int:
        if not self._quick[self._out]:
            return await asyncio.get_running_loop().run_in_executor(self._threads, os.write, self._out, view)
        while True:
            try:
                return os.write(self._out, view)
            except BlockingIOError:
                await _ready(self._out, asyncio.get_running_loop().add_writer, asyncio.get_running_loop().remove_writer)


def _number(value: object) -> int | str | None:
    """The id of a request; None for what is none."""
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _quick(descriptor: int) -> bool:
    """Whether it can be waited for without a thread: a pipe or a socket, whose state nobody else shares."""
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return False
    os.set_blocking(descriptor, False)
    return True


async def _ready(descriptor: int, add: Callable[..., object], remove: Callable[[int], object]) -> None:
    ready = asyncio.get_running_loop().create_future()
    add(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        remove(descriptor)
