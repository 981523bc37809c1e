"""The event loop of `backburner mcp`: handles many requests of one client at once, over its two pipes."""

import asyncio
import logging
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from backburner.interfaces.mcp.protocol import Cancelled, Connection, LineBuffer, Outgoing, Request
from backburner.interfaces.mcp.server import McpServer
from backburner.interfaces.mcp.stdio import READ_SIZE

_DELIVERY_TIMEOUT = 5.0  # seconds, for notices whose delivery is being stored when the client leaves


def serve(
    connection: Connection,
    lines: LineBuffer,
    requests: list[Request],
    pipes: tuple[int, int],
    create_server: Callable[[], McpServer],
) -> None:
    """Serve until the client closes its end, beginning with requests that were already read."""
    logging.basicConfig(format="backburner: %(levelname)s %(message)s", level=logging.ERROR, stream=sys.stderr)

    async def run() -> None:
        loop = _Loop(connection, lines, pipes, create_server())
        try:
            await loop.run(requests)
        finally:
            await loop.close()

    asyncio.run(run())


class _Loop:
    """One client. The answers that need no home are written before more is read, so a client that never reads is not read from either."""

    def __init__(self, connection: Connection, lines: LineBuffer, pipes: tuple[int, int], server: McpServer) -> None:
        self._connection, self._lines, self._server = connection, lines, server
        self._in, self._out = pipes
        self._pollable = {descriptor: _is_pollable(descriptor) for descriptor in pipes}
        self._threads = ThreadPoolExecutor(2, "pipe")
        self._write_lock = asyncio.Lock()
        self._tasks: dict[Request, asyncio.Task[None]] = {}
        self._deliveries: set[asyncio.Future[Any]] = set()
        self._closed = asyncio.Event()

    async def run(self, requests: list[Request]) -> None:
        """Serve until the client closes one of its ends."""
        for request in requests:
            self._start(request)
        reader = asyncio.create_task(self._read_all())
        closed = asyncio.create_task(self._closed.wait())
        done, others = await asyncio.wait((reader, closed), return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        if reader in done:
            reader.result()

    async def close(self) -> None:
        """Stop all requests, and store which notices were delivered."""
        for task in self._tasks.values():
            task.cancel()
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=_DELIVERY_TIMEOUT)
        await self._server.disconnect(self._connection)
        await self._server.close()

    async def send(self, outgoing: Outgoing) -> None:
        await asyncio.shield(self._send_line(outgoing.encode() + b"\n"))  # never a part of a line, even if the request is cancelled
        for delivered in outgoing.delivered:
            task = asyncio.ensure_future(delivered())
            self._deliveries.add(task)
            task.add_done_callback(self._deliveries.discard)

    push = send

    async def _send_line(self, line: bytes) -> None:
        async with self._write_lock:
            view = memoryview(line)
            while view:
                view = view[await self._write(view) :]

    async def _read_all(self) -> None:
        async for line in self._read_lines():
            await self._receive(line)

    async def _receive(self, line: bytes | None) -> None:
        for event in self._connection.receive(line):
            match event:
                case Request():
                    self._start(event)
                case Cancelled(request):
                    if task := self._tasks.get(request):
                        task.cancel()
                case Outgoing():
                    await self.send(event)

    def _start(self, request: Request) -> None:
        task = asyncio.create_task(self._handle(request))
        self._tasks[request] = task
        task.add_done_callback(lambda _: self._tasks.pop(request, None))

    async def _handle(self, request: Request) -> None:
        try:
            if response := await self._server.handle(request, self):
                await self.send(response)
        except ConnectionError:
            self._closed.set()

    async def _read_lines(self) -> AsyncIterator[bytes | None]:
        while piece := await self._read():
            for line in self._lines.feed(piece):
                yield line

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        if not self._pollable[self._in]:
            return await loop.run_in_executor(self._threads, os.read, self._in, READ_SIZE)
        while True:
            try:
                return os.read(self._in, READ_SIZE)
            except BlockingIOError:
                await _wait_ready(self._in, loop.add_reader, loop.remove_reader)

    async def _write(self, view: memoryview) -> int:
        loop = asyncio.get_running_loop()
        if not self._pollable[self._out]:
            return await loop.run_in_executor(self._threads, os.write, self._out, view)
        while True:
            try:
                return os.write(self._out, view)
            except BlockingIOError:
                await _wait_ready(self._out, loop.add_writer, loop.remove_writer)


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
