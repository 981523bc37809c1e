"""The little of a web framework that the web interface needs: requests, answers and routes, over ASGI.

Importing a framework would take longer than everything else at the start, and this is all of it that would be used.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl


class Request:
    """A request after its header; `path` are the parts of its path that the route names."""

    def __init__(self, scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]], path: Mapping[str, str]) -> None:
        self._scope, self._receive, self.path = scope, receive, path
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.client: str = (scope.get("client") or ("",))[0]

    @property
    def query(self) -> list[tuple[str, str]]:
        """The parameters after the question mark."""
        return parse_qsl(self._scope["query_string"].decode("latin-1"), keep_blank_values=True)

    async def body(self, limit: int) -> bytes | None:
        """The whole body; None if it is longer than `limit`."""
        content = b""
        while True:
            message = await self._receive()
            content += message.get("body", b"")
            if len(content) > limit:
                return None
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return content


class Response(NamedTuple):
    """An answer. A body that is a generator is sent piece by piece, with at most `send_timeout` seconds for each."""

    status: int = 200
    body: bytes | Generator[bytes] | AsyncGenerator[bytes] = b""
    headers: Mapping[str, str] = {}
    send_timeout: float | None = None

    def with_headers(self, headers: Mapping[str, str]) -> "Response":
        """The same answer with further headers; those that it has stay."""
        return self._replace(headers={**headers, **self.headers})

    async def send(self, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        """Send it, and stop if the client goes. The server leaves out the body of an answer to HEAD."""
        headers = dict(self.headers)
        if isinstance(self.body, bytes) and self.status not in (204, 304):
            headers["content-length"] = str(len(self.body))
        start = {
            "type": "http.response.start",
            "status": self.status,
            "headers": [(n.encode(), v.encode("latin-1")) for n, v in headers.items()],
        }
        await send(start)
        if isinstance(self.body, bytes):
            await send({"type": "http.response.body", "body": self.body})
            return
        sending = asyncio.ensure_future(self._send_pieces(_pieces(self.body), send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await sending

    async def _send_pieces(self, pieces: AsyncGenerator[bytes], send: Callable[[Any], Awaitable[None]]) -> None:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                async with asyncio.timeout(self.send_timeout):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _pieces(body: Generator[bytes] | AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    if isinstance(body, AsyncGenerator):
        async with contextlib.aclosing(body):
            async for piece in body:
                yield piece
        return

    def following() -> bytes | None:
        return next(body, None)

    while (piece := await asyncio.to_thread(following)) is not None:
        yield piece


async def _disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


Endpoint = Callable[[Request], Awaitable[Response]]


class Routes:
    """Endpoints by method and path. A part of a path in braces has any value, and `{name:path}` also contains slashes."""

    def __init__(self, routes: Iterable[tuple[str, str, Endpoint]]) -> None:
        self._routes: dict[str, list[tuple[list[str], Endpoint]]] = {}
        # A path of words comes before one with a parameter in the same place.
        for method, path, endpoint in sorted(routes, key=lambda route: "{" in route[1]):
            self._routes.setdefault(method, []).append((path.split("/"), endpoint))

    def find(self, method: str, path: str) -> tuple[Endpoint, Mapping[str, str]] | None:
        """The endpoint of a request and the values in its path; None if there is none."""
        parts = path.split("/")
        for pattern, endpoint in self._routes.get("GET" if method == "HEAD" else method, []):
            if (values := _matched(pattern, parts)) is not None:
                return endpoint, values
        return None

    def has(self, path: str) -> bool:
        """Whether the path is used with any method."""
        return any(self.find(method, path) for method in self._routes)


def _matched(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    if pattern[-1].endswith(":path}"):
        parts = [*parts[: len(pattern) - 1], "/".join(parts[len(pattern) - 1 :])] if len(parts) >= len(pattern) else []
    if len(parts) != len(pattern):
        return None
    values = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{") and part:
            values[wanted[1:-1].removesuffix(":path")] = part
        elif wanted != part:
            return None
    return values
