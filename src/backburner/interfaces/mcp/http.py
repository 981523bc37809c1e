"""MCP over HTTP: `McpHttp` is an ASGI app, which the web server loads with the first request. That server checks token, Host and Origin."""

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import time
from collections.abc import Mapping
from typing import Any

from backburner.interfaces.client_setup.wiring import own_command
from backburner.interfaces.mcp.about import OfferedTools, describe
from backburner.interfaces.mcp.protocol import (
    HEADER_MISMATCH,
    INITIALIZED_VERSIONS,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    Cancelled,
    Connection,
    Description,
    Outgoing,
    ProtocolError,
    Request,
)
from backburner.interfaces.mcp.server import McpServer
from backburner.services.app import open_app
from backburner.system.home import Home
from backburner.system.paths import locate

PATH = "/mcp"
_MAX_BODY_BYTES = 4 << 20
_MAX_SESSIONS = 1000
_SESSION_TIMEOUT = 1800.0  # seconds without a request
_PING_INTERVAL = 15.0  # seconds; also how long an answer may take before it becomes a stream
_SESSION_HEADER = "mcp-session-id"
_VERSION_HEADER = "mcp-protocol-version"
# Headers that repeat a part of the body in version 2026-07-28: the parameter that `mcp-name` repeats, by method.
_NAMES = {"tools/call": "name", "resources/read": "uri"}
_STATUS = {
    **dict.fromkeys((PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, HEADER_MISMATCH, UNSUPPORTED_VERSION), 400),
    METHOD_NOT_FOUND: 404,
}
_SSE_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


class _Session:
    """A client that began with `initialize`. Messages that belong to no request go to its GET stream, if it has one."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.used_at = connection, time.monotonic()
        self.tasks: dict[Request, asyncio.Task[None]] = {}
        self.stream: _Exchange | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self.tasks) or self.stream is not None


class McpHttp:
    """The ASGI app. `await close()` when it is no longer used."""

    def __init__(self, server: McpServer, about: Description, path: str = PATH) -> None:
        self._server, self._about, self._path = server, about, path
        self._sessions: dict[str, _Session] = {}

    async def close(self) -> None:
        """End all sessions and close the home."""
        for session_id in list(self._sessions):
            await self._end_session(session_id)
        await self._server.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "http":
            exchange = _Exchange(scope, receive, send)
            if scope["path"] != self._path:
                await exchange.reject(404, "There is nothing at this path.")
                return
            try:
                await self._answer(exchange, scope["method"])
            finally:
                exchange.close()

    async def _run_lifespan(self, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, exchange: "_Exchange", method: str) -> None:
        version = exchange.headers.get(_VERSION_HEADER)
        is_modern = version is not None and version not in INITIALIZED_VERSIONS
        if method == "POST":
            if (body := await exchange.read_body()) is None:
                await exchange.reject(413, f"A request may have at most {_MAX_BODY_BYTES} bytes.")
            elif is_modern:
                await self._post_modern(exchange, body)
            else:
                await self._post(exchange, body)
        elif method in ("GET", "DELETE") and not is_modern:
            session_id = exchange.headers.get(_SESSION_HEADER)
            if session_id not in self._sessions:
                await exchange.reject(404 if session_id else 400, "There is no such session. Send `initialize` first.")
            elif method == "DELETE":
                await self._end_session(session_id)
                await exchange.respond(200)
            else:
                await self._stream(exchange, self._sessions[session_id])
        else:
            await exchange.respond(405, {"allow": "POST" if is_modern else "GET, POST, DELETE"})

    async def _post_modern(self, exchange: "_Exchange", body: bytes) -> None:
        """A request of version 2026-07-28: complete in itself. If the client closes the connection, it is cancelled."""
        if reason := _header_mismatch(exchange, body):
            await exchange.reject(400, reason, HEADER_MISMATCH)
            return
        connection = Connection(self._about, is_modern=True)
        tasks: dict[Request, asyncio.Task[None]] = {}
        events = list(connection.receive(body))
        try:
            self._start(exchange, events, tasks, on_disconnect=lambda: [task.cancel() for task in tasks.values()])
            await exchange.write_responses(status=next((_STATUS.get(error["code"], 200) for _, error in _errors(events)), 200))
        finally:
            for task in tasks.values():
                task.cancel()

    async def _post(self, exchange: "_Exchange", body: bytes) -> None:
        """A message of a version with `initialize`. A request continues if the client closes the connection; its answer is lost then."""
        session_id = exchange.headers.get(_SESSION_HEADER)
        if session_id is not None and session_id not in self._sessions:
            await exchange.reject(404, "There is no such session. Send `initialize` first.")
            return
        session = self._sessions[session_id] if session_id else _Session(Connection(self._about, is_modern=False))
        session.used_at = time.monotonic()
        events = list(session.connection.receive(body))
        status, headers = 200, {}
        if session_id is None and session.connection.client_info is None:
            status = 400
        elif session_id is None:
            session_id = secrets.token_hex(16)
            if not await self._admit(session_id, session):
                await exchange.reject(503, "There are too many sessions.")
                return
        if any(request_id is None for request_id, _ in _errors(events)):
            status = 400  # it was no valid message
        if session.connection.client_info is not None:
            headers = {_SESSION_HEADER: session_id or ""}
        self._start(exchange, events, session.tasks)
        await exchange.write_responses(headers, status)

    def _start(self, exchange: "_Exchange", events: list[Any], tasks: dict[Request, asyncio.Task[None]], on_disconnect: Any = None) -> None:
        """Start what follows from a message; the responses go to the exchange."""
        exchange.watch(on_disconnect)
        requests = [event for event in events if isinstance(event, Request)]
        exchange.missing = len(requests)
        for event in events:
            if isinstance(event, Outgoing):
                exchange.queue.put_nowait(event)
            elif isinstance(event, Cancelled) and (task := tasks.get(event.request)):
                task.cancel()
        for request in requests:
            request.headers = exchange.headers
            task = tasks[request] = asyncio.create_task(self._handle(request, exchange))
            task.add_done_callback(lambda _, request=request: tasks.pop(request, None))
        if not requests:
            exchange.queue.put_nowait(None)

    async def _handle(self, request: Request, exchange: "_Exchange") -> None:
        response = None
        try:
            response = await self._server.handle(request, _Channel(exchange, self._sessions.get(request.headers.get(_SESSION_HEADER, ""))))
        finally:
            exchange.finish(response)

    async def _admit(self, session_id: str, session: _Session) -> bool:
        """Store a new session. Sessions without requests for a long time are removed."""
        now = time.monotonic()
        for other_id, other in list(self._sessions.items()):
            if not other.is_busy and now - other.used_at > _SESSION_TIMEOUT:
                await self._end_session(other_id)
        if len(self._sessions) >= _MAX_SESSIONS:
            return False
        self._sessions[session_id] = session
        return True

    async def _end_session(self, session_id: str) -> None:
        session = self._sessions.pop(session_id)
        for task in list(session.tasks.values()):
            task.cancel()
        if session.stream:
            session.stream.queue.put_nowait(None)
        await self._server.disconnect(session.connection)

    async def _stream(self, exchange: "_Exchange", session: _Session) -> None:
        """The stream for messages that belong to no request, until the client closes it or ends the session."""
        if session.stream is not None:
            await exchange.reject(409, "This session already has a stream.")
            return
        session.stream = exchange
        exchange.watch(lambda: exchange.queue.put_nowait(None))
        try:
            await exchange.start_stream({_SESSION_HEADER: exchange.headers[_SESSION_HEADER]})
            await exchange.write_responses()
        finally:
            session.stream, session.used_at = None, time.monotonic()


class _Channel:
    """Where the messages for one request go: to its own response, or to the stream of its session."""

    def __init__(self, exchange: "_Exchange", session: _Session | None) -> None:
        self._exchange, self._session = exchange, session

    async def send(self, outgoing: Outgoing) -> None:
        await self._exchange.queue.put(outgoing)

    async def push(self, outgoing: Outgoing) -> None:
        if self._session and self._session.stream:
            await self._session.stream.queue.put(outgoing)


class _Exchange:
    """One HTTP request and its response: a JSON object, or a stream of events if there is more to send or it takes long.

    An answer counts as delivered when it was sent to a client that was still connected.
    """

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self._receive, self._send = receive, send
        self.all_headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        self.headers: Mapping[str, str] = dict(self.all_headers)
        self.queue: asyncio.Queue[Outgoing | None] = asyncio.Queue()  # None: the end
        self.missing = 0  # responses
        self._is_connected, self._is_streaming = True, False
        self._watcher: asyncio.Task[None] | None = None

    def watch(self, on_disconnect: Any = None) -> None:
        """Note when the client closes the connection."""

        async def wait() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._is_connected = False
            if on_disconnect:
                on_disconnect()

        self._watcher = asyncio.create_task(wait())

    def close(self) -> None:
        if self._watcher:
            self._watcher.cancel()

    async def read_body(self) -> bytes | None:
        """The body; None if it is too long."""
        body, more = bytearray(), True
        while more:
            message = await self._receive()
            body += message.get("body", b"")
            if len(body) > _MAX_BODY_BYTES:
                return None
            more = message.get("more_body", False)
        return bytes(body)

    def finish(self, response: Outgoing | None) -> None:
        """Add the response to a request; None if it was cancelled, or comes with that to another request of its batch."""
        self.missing -= 1
        if response:
            self.queue.put_nowait(response)
        if self.missing == 0:
            self.queue.put_nowait(None)

    async def write_responses(self, headers: Mapping[str, str] | None = None, status: int = 200) -> None:
        """Write what is put into the queue, until its end."""
        headers = headers or {}
        while True:
            try:
                async with asyncio.timeout(_PING_INTERVAL):
                    outgoing = await self.queue.get()
            except TimeoutError:
                await self.start_stream(headers)
                await self._write(b": ping\r\n\r\n")
                continue
            if outgoing is None:
                break
            if not self._is_streaming and self.missing == 0 and self.queue.qsize() == 1:  # only the end is left
                await self.respond(status, {"content-type": "application/json", **headers}, outgoing.encode())
                await self._confirm(outgoing)
                return
            await self.start_stream(headers)
            await self._write(b"event: message\r\ndata: " + outgoing.encode() + b"\r\n\r\n")
            await self._confirm(outgoing)
        if self._is_streaming:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await self.respond(202, headers)

    async def start_stream(self, headers: Mapping[str, str]) -> None:
        if not self._is_streaming:
            self._is_streaming = True
            await self._start_response(200, {**_SSE_HEADERS, **headers})

    async def respond(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        await self._start_response(status, {**(headers or {}), "content-length": str(len(body))})
        await self._send({"type": "http.response.body", "body": body})

    async def reject(self, status: int, reason: str, code: int = INVALID_REQUEST) -> None:
        body = {"jsonrpc": "2.0", "id": None, "error": ProtocolError(code, reason).as_json()}
        await self.respond(status, {"content-type": "application/json"}, json.dumps(body).encode())

    async def _start_response(self, status: int, headers: Mapping[str, str]) -> None:
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def _write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _confirm(self, outgoing: Outgoing) -> None:
        await asyncio.sleep(0)  # the connection may have been closed meanwhile
        if self._is_connected:
            for delivered in outgoing.delivered:
                await delivered()


def _errors(events: list[Any]) -> list[tuple[Any, Any]]:
    """The id and the error of each message that was refused."""
    messages = [event.message for event in events if isinstance(event, Outgoing) and isinstance(event.message, dict)]
    return [(message["id"], message["error"]) for message in messages if "error" in message]


def _header_mismatch(exchange: _Exchange, body: bytes) -> str | None:
    """What is wrong with the headers that repeat parts of the body; None if the body itself is invalid, which is reported later."""
    names = [name for name, _ in exchange.all_headers if name in (_VERSION_HEADER, "mcp-method", "mcp-name")]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        return f"The header {duplicate} is there more than once."
    message: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(body)
    params = message.get("params") if isinstance(message, dict) and "id" in message else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(meta, dict) or VERSION_KEY not in meta:
        return None
    method = message.get("method")
    name = params.get(_NAMES[method]) if method in _NAMES else None
    for header, value in ((_VERSION_HEADER, meta[VERSION_KEY]), ("mcp-method", method), ("mcp-name", name)):
        if (header != "mcp-name" or name is not None) and _decode_header(exchange.headers.get(header)) != value:
            return f"The header {header} does not match the body."
    return None


def _decode_header(value: str | None) -> str | None:
    """The value of a header that may be encoded as `=?base64?…?=`; None if that is invalid."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    import base64

    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except ValueError:
        return None


def mcp_app(home: Home, environ: dict[str, str]) -> McpHttp:
    """The ASGI app for a home, which is opened by the first request that needs it. Create it inside an event loop."""
    tools = OfferedTools(None, home.root, environ)
    command = shlex.join(own_command(environ, home.root if home.root != os.path.abspath(locate(None, {})) else None))
    server = McpServer(lambda: open_app(home, environ), tools, environ=environ, cwd=None, command=command)
    return McpHttp(server, describe(tools))
