"""The MCP server: handles the requests of `protocol` with the tools and services of one home. The transports are `stdio` and `http`.

Tasks and outputs are resources with subscriptions. Every error of a call is one sentence in its result, never a traceback.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from backburner.agent_tools.context import ToolContext
from backburner.agent_tools.dispatcher import ToolDispatcher
from backburner.agent_tools.registry import toolset
from backburner.core import task_text
from backburner.core.errors import BackburnerError, TaskNotFound
from backburner.core.models import Entry, ProcessId
from backburner.core.terminal_text import readable
from backburner.interfaces.mcp.about import OUTPUT, TASK, OfferedTools
from backburner.interfaces.mcp.connections import take_connection_number
from backburner.interfaces.mcp.protocol import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Connection,
    Message,
    Outgoing,
    ProtocolError,
    Request,
    resource_updated,
)
from backburner.services.app import App, now_ms
from backburner.services.async_app import AsyncApp
from backburner.system.caller_identity import ancestors, caller_session, current_caller, session_name
from backburner.system.processes import myself

_PAGE_SIZE = 50  # resources
_MAX_OUTPUT = 50_000  # bytes
_OUTPUT_POLL_INTERVAL = 1.0  # seconds
_MAX_SUBSCRIPTIONS = 1000  # of one client
# Metadata in which clients name the conversation of a call: key, client, and the field of an object.
_META = {"x-codex-turn-metadata": ("codex", "thread_id"), "agent-session-id": ("goose", None)}
_SESSION_ARGUMENT = "_session"  # added by the plugin for OpenCode

Send = Callable[[Outgoing], Awaitable[None]]


class Channel(Protocol):
    """Where the messages for a request go: `send` those that belong to it, and `push` those that the client gets at any time."""

    async def send(self, outgoing: Outgoing) -> None: ...
    async def push(self, outgoing: Outgoing) -> None: ...


class McpServer:
    """The MCP server of one home, which is opened when it is first needed.

    `client` is the name that `install` gave the client. Without a `cwd`, every call must name its working directory.
    """

    def __init__(
        self,
        open_home: Callable[[], App],
        tools: OfferedTools,
        *,
        environ: dict[str, str],
        cwd: str | None,
        command: str = "backburner",
        client: str | None = None,
    ) -> None:
        self._open_home, self._environ, self._cwd, self._client, self._command = open_home, environ, cwd, client, command
        self._caller = current_caller("tool", environ)
        self._dispatcher = ToolDispatcher(toolset(",".join(tools.names)))
        self._process = _client_process(client) if cwd is not None else None
        self._opening = asyncio.Lock()
        self._opened: AsyncApp | None = None
        self._longest_wait = 0.0
        # The subscriptions of clients that began with `initialize`, and the open streams of others.
        self._subscribers: dict[Connection | Request, _Subscriber] = {}
        self._watching: asyncio.Task[None] | None = None
        self._last_event = -1  # the last event that subscribers were told of

    async def handle(self, request: Request, channel: Channel) -> Outgoing | None:
        """Handle a request and return the response."""
        try:
            match request.method:
                case "tools/call":
                    return await self._call_tool(request, channel)
                case "resources/list":
                    return request.answer(await self._list_resources(request))
                case "resources/read":
                    return request.answer(await self._read_resource(request.params["uri"]))
                case "resources/subscribe":
                    await self._subscribe(request, channel.push)
                    return request.answer({})
                case "resources/unsubscribe":
                    await self._unsubscribe(request)
                    return request.answer({})
                case _:
                    await self._listen(request, channel.send)
                    return request.answer({"_meta": request.subscription_meta})
        except ProtocolError as error:
            return request.fail(error)
        except BackburnerError as error:
            return request.fail(ProtocolError(INTERNAL_ERROR, str(error)))
        except Exception as error:  # an internal error: one sentence for the client, the traceback in the log
            logging.exception("%s failed", request.method)
            return request.fail(ProtocolError(INTERNAL_ERROR, _internal_error(error)))

    async def disconnect(self, connection: Connection) -> None:
        """Forget the subscriptions of a client that is gone."""
        if (subscriber := self._subscribers.pop(connection, None)) and subscriber.task:
            subscriber.task.cancel()

    async def close(self) -> None:
        """Close the home."""
        if self._watching:
            self._watching.cancel()
        if self._opened:
            await self._opened.__aexit__()
            self._opened = None

    async def _app(self) -> AsyncApp:
        async with self._opening:
            if self._opened is None:
                app = AsyncApp(self._open_home)
                await app.__aenter__()
                self._longest_wait = await app.call(lambda app: app.config.number("mcp.max_wait_seconds"))
                self._opened = app
            return self._opened

    # -- tools

    async def _call_tool(self, request: Request, channel: Channel) -> Outgoing | None:
        name, arguments = request.params["name"], dict(request.params.get("arguments") or {})

        async def report(progress: float, total: float | None, text: str) -> None:
            if outgoing := request.progress(progress, total, text):
                await channel.send(outgoing)

        try:
            app = await self._app()
            session = self._session(request, arguments.pop(_SESSION_ARGUMENT, None))
            if self._client == "gemini":
                session = await app.call(self._session_from_hook) or session
            context = ToolContext(
                app,
                session=session,
                cwd=self._cwd,
                command=self._command,
                max_wait_seconds=self._longest_wait,
                report=report,
                message=_turn_id(request),
                opened=self._cwd,
            )
            answer = await self._dispatcher.answer(context, name, arguments, self._process)
        except BackburnerError as error:  # the home cannot be opened
            failure = {"error": {"code": error.code, "message": str(error)}, "display": str(error)}
            return request.answer(_tool_result(str(error), failure, failed=True))
        except Exception as error:
            logging.exception("%s failed", name[:100])
            text = _internal_error(error)
            if outgoing := request.log("error", f"{name[:100]}: {text}"):
                await channel.send(outgoing)
            return request.answer(_tool_result(text, None, failed=True))
        # Clients show the model either the text or the structure, so each is complete and contains the output once.
        result = _tool_result(answer.text, {**answer.result, "display": answer.brief}, failed=answer.failed)
        return request.answer(result, (answer.delivered,))

    def _session(self, request: Request, argument: object) -> str | None:
        """The session of the caller, or None if the client gives nothing that distinguishes two callers."""
        if isinstance(argument, str) and argument and self._client == "opencode":
            return session_name(self._client, argument)
        for key, (client, inner) in _META.items():
            found = request.meta.get(key)
            if isinstance(found, str) and inner:
                with contextlib.suppress(ValueError):
                    found = json.loads(found)
            if inner and isinstance(found, dict):
                found = found.get(inner) or found.get("session_id")
            if isinstance(found, str) and found:
                return session_name(client, found)
        if (session := caller_session(self._environ)) and self._cwd is not None:
            return session
        client = self._client or request.client_name or "client"
        if self._process is not None:
            return session_name(client, f"{self._process.pid}-{self._process.started}{self._connection_suffix}")
        header = request.headers.get("backburner-session") or request.headers.get("mcp-session-id")
        return session_name(client, header) if header else None

    @cached_property
    def _connection_suffix(self) -> str:
        """Distinguishes the connections of one client process. A restarted server gets the number, and so the notices, of its predecessor.

        It is determined by the first call: when a client restarts a server, the old one may still be exiting while the new one starts.
        """
        assert self._process is not None and self._opened is not None
        number = take_connection_number(self._opened.root, self._process)
        return f"-{number}" if number else ""

    def _session_from_hook(self, app: App) -> str | None:
        """The session that a hook of the same client process registered last. It stays the same when the client is restarted."""
        return next((session.session_id for session in app.sessions.list(self._client) if session.process == self._process), None)

    # -- resources

    async def _list_resources(self, request: Request) -> Message:
        cursor = request.params.get("cursor") or "0"
        if not cursor.isdecimal() or len(cursor) > 9:
            raise ProtocolError(INVALID_PARAMS, "The cursor is not one that this server has sent.")
        start, app = int(cursor), await self._app()
        end = start + _PAGE_SIZE
        entries = await app.call(lambda app: app.queries.list(self._caller, everywhere=self._cwd is None, limit=end + 1))
        resources = [
            {
                "uri": f"{TASK}://{task.task_id}",
                "name": task.task_id,
                "description": task.spec.description,
                "mimeType": "application/json",
            }
            for task, _ in entries[start:end]
        ]
        return {"resources": resources, **({"nextCursor": str(end)} if len(entries) > end else {})}

    async def _read_resource(self, uri: str) -> Message:
        kind, task_id, cursor = _parse_uri(uri)

        def read(app: App) -> tuple[str, str]:
            entry = app.queries.find(task_id, self._caller)
            if kind == TASK:
                return "application/json", json.dumps(
                    {**task_text.as_json(entry, now_ms()), **task_text.inspection_json(app.runs.inspect(entry))}
                )
            piece = app.runs.read(entry, cursor, most=_MAX_OUTPUT)
            more = f"\n[more: {OUTPUT}://{entry.task.task_id}?cursor={piece.cursor}]" if piece.more else ""
            return "text/plain", readable(piece.data.decode("utf-8", "replace")) + more

        app = await self._app()
        try:
            mime_type, text = await app.call(read)
        except BackburnerError as error:
            raise ProtocolError(INVALID_PARAMS, str(error), {"uri": uri[:200]}) from None
        return {"contents": [{"uri": uri, "mimeType": mime_type, "text": text}]}

    async def _subscribe(self, request: Request, push: Send) -> None:
        requested = request.params["uri"]
        uri = await self._exact_uri(requested)
        await self._watch_changes()
        subscriber = self._subscribers.get(request.connection)
        if subscriber is None:
            subscriber = self._subscribers[request.connection] = _Subscriber()
            subscriber.task = asyncio.create_task(subscriber.run(lambda uri: push(resource_updated(uri))))
        subscriber.uris[uri] = requested
        while len(subscriber.uris) > _MAX_SUBSCRIPTIONS:
            subscriber.uris.pop(next(iter(subscriber.uris)))

    async def _unsubscribe(self, request: Request) -> None:
        uri = await self._exact_uri(request.params["uri"])
        if subscriber := self._subscribers.get(request.connection):
            subscriber.uris.pop(uri, None)
            if not subscriber.uris:
                await self.disconnect(request.connection)

    async def _listen(self, request: Request, send: Send) -> None:
        """Send the changes of the wanted resources until the client cancels the request."""
        uris = (request.params["notifications"].get("resourceSubscriptions") or [])[:_MAX_SUBSCRIPTIONS]
        await self._watch_changes()
        subscriber = self._subscribers[request] = _Subscriber()
        subscriber.uris = {uri: uri for uri in uris}
        try:
            await send(request.acknowledge_subscription(uris))
            await subscriber.run(lambda uri: send(resource_updated(uri, request)))
        finally:
            self._subscribers.pop(request, None)

    async def _exact_uri(self, uri: str) -> str:
        """The URI with the complete id of its task."""
        kind, task_id, _ = _parse_uri(uri)
        app = await self._app()
        try:
            entry: Entry = await app.call(lambda app: app.queries.find(task_id, self._caller))
        except BackburnerError as error:
            raise ProtocolError(INVALID_PARAMS, str(error), {"uri": uri[:200]}) from None
        return f"{kind}://{entry.task.task_id}"

    async def _watch_changes(self) -> None:
        """Tell subscribers of changes from now on, for as long as there are any."""
        app = await self._app()
        if self._watching is None or self._watching.done():
            self._last_event = await app.call(lambda app: max((event.event_id for event in app.queries.events(-1)), default=0))
            if self._watching is None or self._watching.done():
                self._watching = asyncio.create_task(self._publish_changes(app))

    async def _publish_changes(self, app: AsyncApp) -> None:
        """Tell subscribers of changes: tasks are compared by their events, outputs by their size."""
        sizes: dict[str, int] = {}
        has_begun = False
        async for _ in app.changes(lambda: _OUTPUT_POLL_INTERVAL if self._subscribed_uris(OUTPUT) else None):
            if has_begun and not self._subscribers:
                return
            has_begun = True
            try:
                events = await app.call(lambda app: app.queries.events(self._last_event))
                self._last_event = max((event.event_id for event in events), default=self._last_event)
                changed = {f"{TASK}://{event.task_id}" for event in events if event.task_id}
                changed |= {uri for uri in self._subscribed_uris(OUTPUT) if await self._has_grown(app, uri, sizes)}
            except (BackburnerError, OSError):
                continue
            for subscriber in list(self._subscribers.values()):
                subscriber.add(changed)

    def _subscribed_uris(self, kind: str) -> set[str]:
        return {uri for subscriber in self._subscribers.values() for uri in subscriber.uris if uri.startswith(f"{kind}://")}

    async def _has_grown(self, app: AsyncApp, uri: str, sizes: dict[str, int]) -> bool:
        def size(app: App) -> int:
            entry = app.queries.find(_parse_uri(uri)[1], self._caller)
            if entry.run is None:
                return 0
            with app.runs.open_log(entry) as log:
                return log.size

        try:
            now = await app.call(size)
        except (OSError, TaskNotFound, ProtocolError):
            return False
        before, sizes[uri] = sizes.get(uri, 0), now
        return now != before


class _Subscriber:
    """The resources whose changes a client wants, by exact URI with the URI as it was requested. A slow client gets each change once."""

    def __init__(self) -> None:
        self.uris: dict[str, str] = {}
        self.task: asyncio.Task[None] | None = None
        self._changed: dict[str, None] = {}
        self._woken = asyncio.Event()

    def add(self, changed: set[str]) -> None:
        """Note that these resources have changed."""
        self._changed |= {self.uris[uri]: None for uri in changed if uri in self.uris}
        if self._changed:
            self._woken.set()

    async def run(self, tell: Callable[[str], Awaitable[None]]) -> None:
        """Tell the client of changes until this is cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._changed:
                uri = next(iter(self._changed))
                del self._changed[uri]
                await tell(uri)


def _tool_result(text: str, structure: Message | None, *, failed: bool) -> Message:
    result: Message = {"content": [{"type": "text", "text": text}], "isError": failed}
    return result if structure is None else {**result, "structuredContent": structure}


def _internal_error(error: Exception) -> str:
    return f"Internal error: {type(error).__name__}. Details are in the log of Backburner."


def _turn_id(request: Request) -> str | None:
    """The id of the conversation turn of a call, if the client sends it."""
    metadata: Any = request.meta.get("x-codex-turn-metadata")
    if isinstance(metadata, str):
        with contextlib.suppress(ValueError):
            metadata = json.loads(metadata)
    found = metadata.get("turn_id") if isinstance(metadata, dict) else None
    return found[:100] if isinstance(found, str) and found.isprintable() else None


def _parse_uri(uri: str) -> tuple[str, str, str | None]:
    """The kind of a resource, its task id, and the cursor."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(uri)
        if parts.scheme in (TASK, OUTPUT) and parts.netloc and parts.path in ("", "/"):
            return parts.scheme, parts.netloc, parse_qs(parts.query).get("cursor", [None])[0]
    raise ProtocolError(INVALID_PARAMS, f"There is no resource '{uri[:200]}'. Use task://ID or output://ID.")


def _client_process(client: str | None) -> ProcessId | None:
    """The process of the client that started this server. Codex has one process for many windows, so there this server is used."""
    return myself() if client == "codex" else next(ancestors(), None)
