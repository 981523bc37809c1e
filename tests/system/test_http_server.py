"""The HTTP server with clients that do not finish their requests: their connections are closed, and others are served."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from backburner.system.http_server import http_server

HALF = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WHOLE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Streaming:
    """An app that answers immediately, except at /stream: there with one chunk now and another one on demand."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"transfer-encoding", b"chunked")]})
        if scope["path"] == "/stream":
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            await self.finish.wait()
        await send({"type": "http.response.body", "body": b"last"})


class Served:
    def __init__(self, app: Streaming, port: int) -> None:
        self.app, self.port = app, port

    async def connect(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        return reader, writer


@pytest.fixture
async def serve() -> AsyncGenerator[Callable[..., Any]]:
    async with contextlib.AsyncExitStack() as stack:

        @contextlib.asynccontextmanager
        async def served(**limits: Any) -> AsyncGenerator[Served]:
            listening = socket.create_server(("127.0.0.1", 0))
            app = Streaming()
            server = http_server(app, lifespan="off", **limits)
            setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010 - those of the tests stay
            running = asyncio.create_task(server.serve([listening]))
            yield Served(app, listening.getsockname()[1])
            app.finish.set()
            server.should_exit = True
            await running

        async def start(**limits: Any) -> Served:
            return await stack.enter_async_context(served(**limits))

        yield start


async def closed(reader: asyncio.StreamReader) -> bytes:
    """The data received until the connection was closed."""
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionResetError:
        return b""


async def answer(served: Served) -> bytes:
    """The status line of the answer to a request on a new connection."""
    reader, writer = await served.connect(WHOLE)
    async with asyncio.timeout(30):
        line = await reader.readline()
    writer.close()
    return line


async def test_incomplete_requests_are_closed_and_long_answers_are_not(serve: Any) -> None:
    served = await serve(header_timeout=0.5)
    stream, writer = await served.connect(WHOLE.replace(b"/ ", b"/stream ", 1))
    assert b"200 OK" in await stream.readline()
    half = [await served.connect(HALF) for _ in range(50)]
    silent = await served.connect()
    assert b"200 OK" in await answer(served)
    for reader, its_writer in [*half, silent]:
        assert await closed(reader) == b""
        its_writer.close()
    served.app.finish.set()
    assert (await asyncio.wait_for(stream.readuntil(b"last"), 30)).count(b"first") == 1
    writer.close()


async def test_a_connection_with_a_slow_header_is_closed(serve: Any) -> None:
    served = await serve(header_timeout=0.5)
    reader, writer = await served.connect(HALF)
    ended = asyncio.create_task(closed(reader))
    with contextlib.suppress(ConnectionError):
        while not ended.done():
            writer.write(b"X: y\r\n")
            await writer.drain()
            await asyncio.wait({ended}, timeout=0.05)
    assert await ended == b""
    writer.close()


@pytest.mark.parametrize(
    "first, then",
    [
        (WHOLE, b"POST"),  # the second request of a connection
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n", b"1"),  # a body that nobody waits for
    ],
)
async def test_a_reused_connection_with_an_incomplete_request_is_closed(serve: Any, first: bytes, then: bytes) -> None:
    served = await serve(header_timeout=0.5, timeout_keep_alive=3600)
    reader, writer = await served.connect(first)
    await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 30)
    writer.write(then)
    assert await closed(reader) == b""
    writer.close()


async def test_at_the_limit_the_oldest_incomplete_connection_is_replaced(serve: Any) -> None:
    served = await serve(header_timeout=3600, max_connections=10)
    half = [await served.connect(HALF) for _ in range(40)]
    assert b"200 OK" in await answer(served)
    for reader, _ in half[:30]:
        assert await closed(reader) == b""
    for _, writer in half:
        writer.close()


async def test_at_the_limit_a_new_connection_gets_503_if_all_are_active(serve: Any) -> None:
    served = await serve(max_connections=3)
    streams = [await served.connect(WHOLE.replace(b"/ ", b"/stream ", 1)) for _ in range(3)]
    for reader, _ in streams:
        await asyncio.wait_for(reader.readuntil(b"first"), 30)
    reader, writer = await served.connect()
    assert b"503" in await closed(reader)
    writer.close()
    served.app.finish.set()
    for reader, writer in streams:
        assert b"last" in await asyncio.wait_for(reader.readuntil(b"last"), 30)
        writer.close()
