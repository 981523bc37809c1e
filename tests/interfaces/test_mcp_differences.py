"""Our MCP protocol compared with the server of the `mcp` SDK: both get the same recorded sessions, in every version of the protocol.

A session in `mcp_sessions/` is what a client sends, one message per line; its name begins with the version. Those with the name of a
client were recorded (identifiers are replaced); the others use every method and make every mistake. Both servers have the same small
application. Whatever they answer differently must be one of the named differences.
"""

import asyncio
import contextlib
import json
import warnings
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.shared.subscriptions import ResourceUpdated

from backburner.interfaces.mcp.protocol import (
    INITIALIZED_VERSIONS,
    INVALID_PARAMS,
    MODERN_VERSION,
    Cancelled,
    Connection,
    Description,
    Outgoing,
    ProtocolError,
    Request,
    resource_updated,
)

SESSIONS = sorted((Path(__file__).parent / "mcp_sessions").glob("*.jsonl"))
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("add", "fail", "progress", "touch", "hold")]
TEMPLATES = [{"uriTemplate": "task://{task_id}", "name": "task", "description": "A task.", "mimeType": "application/json"}]
HELD = {"hold"}  # tools that never answer

Received = list[dict[str, Any]]


# The application: results as the protocol has them.


def _tool_result(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    text = {"type": "text", "text": f"{name} {json.dumps(arguments)}"}
    return {"content": [text], "isError": name == "fail", "structuredContent": {"arguments": arguments}}


def _resources(cursor: str | None) -> dict[str, Any] | None:
    if cursor not in (None, "50"):
        return None
    resource = {"uri": f"task://{cursor or 'a'}", "name": "a", "description": "", "mimeType": "application/json"}
    return {"resources": [resource], **({} if cursor else {"nextCursor": "50"})}


def _contents(uri: str) -> dict[str, Any] | None:
    return None if uri.endswith("none") else {"contents": [{"uri": uri, "mimeType": "text/plain", "text": "x"}]}


class Reference:
    """The SDK's low-level server."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self._subscribers: dict[str, Any] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # log levels are deprecated
            self.server = Server(
                "test",
                version="1",
                instructions="Be quick.",
                on_list_tools=self._list_tools,
                on_call_tool=self._call_tool,
                on_list_resources=self._list_resources,
                on_list_resource_templates=self._list_templates,
                on_read_resource=self._read_resource,
                on_subscribe_resource=self._subscribe,
                on_unsubscribe_resource=self._unsubscribe,
                on_set_logging_level=self._set_level,
                on_subscriptions_listen=ListenHandler(self._bus),
            )
        self.server.middleware.clear()

    async def _list_tools(self, _ctx: Any, _params: Any) -> Any:
        return types.ListToolsResult.model_validate({"tools": TOOLS})

    async def _list_templates(self, _ctx: Any, _params: Any) -> Any:
        return types.ListResourceTemplatesResult.model_validate({"resourceTemplates": TEMPLATES})

    async def _call_tool(self, ctx: Any, params: Any) -> Any:
        if params.name in HELD:
            await anyio.sleep_forever()
        if params.name == "progress":
            for done in (1.0, 2.0):
                await ctx.session.report_progress(done, 2.0, f"{done:g} of 2")
        if params.name == "touch":
            await self._bus.publish(ResourceUpdated(uri="task://a"))
            for uri, session in self._subscribers.items():
                await session.send_resource_updated(uri)
        return types.CallToolResult.model_validate(_tool_result(params.name, params.arguments or {}))

    async def _list_resources(self, _ctx: Any, params: Any) -> Any:
        if (result := _resources(params.cursor)) is None:
            raise MCPError(INVALID_PARAMS, "no such page")
        return types.ListResourcesResult.model_validate(result)

    async def _read_resource(self, _ctx: Any, params: Any) -> Any:
        if (result := _contents(params.uri)) is None:
            raise MCPError(INVALID_PARAMS, "no such resource", {"uri": params.uri})
        return types.ReadResourceResult.model_validate(result)

    async def _subscribe(self, ctx: Any, params: Any) -> Any:
        self._subscribers[params.uri] = ctx.session
        return types.EmptyResult()

    async def _unsubscribe(self, _ctx: Any, params: Any) -> Any:
        self._subscribers.pop(params.uri, None)
        return types.EmptyResult()

    async def _set_level(self, _ctx: Any, _params: Any) -> Any:
        return types.EmptyResult()

    async def replay(self, lines: list[str]) -> AsyncGenerator[Received]:
        """Yield what each line is answered with."""
        to_server, reading = anyio.create_memory_object_stream[SessionMessage | Exception](100)
        writing, from_server = anyio.create_memory_object_stream[SessionMessage](100)
        task = asyncio.create_task(self.server.run(reading, writing, self.server.create_initialization_options()))  # type: ignore[arg-type]

        async def send(line: str) -> None:
            try:
                await to_server.send(SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False)))
            except ValueError as error:
                await to_server.send(error)

        async def receive() -> dict[str, Any]:
            message = (await from_server.receive()).message
            return json.loads(message.model_dump_json(by_alias=True, exclude_unset=True))

        try:
            is_open = False
            for number, line in enumerate(lines):
                await send(line)
                wanted, received = _answer_to(line), []
                while wanted is not None and not (received and wanted(received[-1])):
                    received.append(await receive())
                if is_open := is_open or wanted is not None:
                    await send(json.dumps({"jsonrpc": "2.0", "id": f"probe {number}", "method": "probe"}))  # all before it was read
                    while (message := await receive()).get("id") != f"probe {number}":
                        received.append(message)
                yield received
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for stream in (to_server, reading, writing, from_server):
                stream.close()


class Ours:
    """Our protocol, with the same application."""

    def __init__(self) -> None:
        self._connection = Connection(Description("test", "1", "Be quick.", lambda: TOOLS, TEMPLATES))
        self._subscribers: dict[Any, Request | None] = {}

    def receive(self, line: str) -> Received:
        received: Received = []
        for event in self._connection.receive(line.encode()):
            match event:
                case Outgoing():
                    outgoing: list[Outgoing | None] = [event]
                case Cancelled(request):
                    self._subscribers.pop(request, None)
                    outgoing = []
                case Request():
                    outgoing = self._handle(event)
            for message in outgoing:
                if message:
                    decoded = json.loads(message.encode())
                    received += decoded if isinstance(decoded, list) else [decoded]
        return received

    def _handle(self, request: Request) -> list[Outgoing | None]:
        params = request.params
        match request.method:
            case "tools/call":
                return self._call_tool(request, params["name"], params.get("arguments") or {})
            case "resources/list":
                result = _resources(params.get("cursor"))
                return [request.answer(result) if result else request.fail(ProtocolError(INVALID_PARAMS, "no such page"))]
            case "resources/read":
                result, error = _contents(params["uri"]), ProtocolError(INVALID_PARAMS, "no such resource", {"uri": params["uri"]})
                return [request.answer(result) if result else request.fail(error)]
            case "resources/subscribe":
                self._subscribers[params["uri"]] = None
            case "resources/unsubscribe":
                self._subscribers.pop(params["uri"], None)
            case "subscriptions/listen":
                uris = params["notifications"].get("resourceSubscriptions") or []
                if uris:
                    self._subscribers[request] = request
                return [request.acknowledge_subscription(uris)]
        return [request.answer({})]

    def _call_tool(self, request: Request, name: str, arguments: dict[str, Any]) -> list[Outgoing | None]:
        if name in HELD:
            return []
        sent: list[Outgoing | None] = []
        if name == "progress":
            sent += [request.progress(done, 2.0, f"{done:g} of 2") for done in (1.0, 2.0)]
        if name == "touch":
            sent += [resource_updated("task://a", listener) for listener in self._subscribers.values()]
        return [*sent, request.answer(_tool_result(name, arguments))]


def _answer_to(line: str) -> Callable[[dict[str, Any]], bool] | None:
    """Recognizes the message that the SDK answers a line with; None if it sends none."""
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return None
    if not isinstance(message, types.JSONRPCRequest):
        return None
    if message.method == "tools/call" and (message.params or {}).get("name") in HELD:
        return None
    listens = message.method == "subscriptions/listen"
    return lambda received: (
        received.get("id") == message.id
        or (listens and received.get("params", {}).get("_meta", {}).get("io.modelcontextprotocol/subscriptionId") == message.id)
    )


# What may differ, by name: recognized by what was sent, by what the SDK sent, and by what we sent.


def _texts(message: Any) -> Any:
    return {**message, "error": {**message["error"], "message": ""}} if "error" in message else message


def _without_flags(message: Any) -> Any:
    text = json.dumps(message)
    for flag in ("true", "false"):
        text = text.replace(f'"listChanged": {flag}', '"listChanged": null')
    return json.loads(text)


def _without_list_changes(message: Any) -> Any:
    if message.get("method") != "notifications/subscriptions/acknowledged":
        return message
    wanted = {name: value for name, value in message["params"]["notifications"].items() if not name.endswith("ListChanged")}
    return {**message, "params": {**message["params"], "notifications": wanted}}


NORMALIZED: dict[str, Callable[[Any], Any]] = {
    "the texts of errors are our own": _texts,
    "a list that never changes is not announced as changing": _without_flags,
    "a subscription to lists that never change is not confirmed": _without_list_changes,
}


def _is_refusal(ours: Received) -> bool:
    return bool(ours) and all(message.get("error", {}).get("code") in (-32600, -32700) for message in ours)


ANSWERED: dict[str, Callable[[str, Received, Received], bool]] = {
    "what is no valid message is answered instead of dropped": lambda line, sdk, ours: sdk == [] and _is_refusal(ours),
    "a batch is answered in the version that has batches": lambda line, sdk, ours: sdk == [] and line.startswith("[{") and len(ours) > 1,
    "the id of an open request is refused": lambda line, sdk, ours: len(sdk) == 1 and "already belongs" in json.dumps(ours),
}


def _compare(line: str, sdk: Received, ours: Received) -> list[str]:
    """The names of the differences; AssertionError for one without a name."""
    for name, applies in ANSWERED.items():
        if applies(line, sdk, ours):
            return [name]
    differences = []
    for name, normalize in NORMALIZED.items():
        normal = [normalize(message) for message in sdk], [normalize(message) for message in ours]
        if normal != (sdk, ours) and sdk != ours:
            differences.append(name)
        sdk, ours = normal
    assert _by_kind(sdk) == _by_kind(ours), line
    return differences


def _by_kind(messages: Received) -> Any:
    """Notifications in their order, and responses: the order of the two against each other is not fixed."""
    notes = [message for message in messages if "method" in message]
    return notes, [message for message in messages if "method" not in message]


async def _differences(path: Path) -> list[str]:
    lines, ours, found = path.read_text().splitlines(), Ours(), []
    number = 0
    async with asyncio.timeout(60), contextlib.aclosing(Reference().replay(lines)) as replay:
        async for received in replay:
            found += _compare(lines[number], received, ours.receive(lines[number]))
            number += 1
    assert number == len(lines)
    return found


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
async def test_a_session_is_answered_as_the_sdk_answers_it(path: Path) -> None:
    await _differences(path)


async def test_every_version_is_replayed_and_every_named_difference_exists() -> None:
    assert {path.name[:10] for path in SESSIONS} == {*INITIALIZED_VERSIONS, MODERN_VERSION}
    found = {name for path in SESSIONS for name in await _differences(path)}
    assert found == {*NORMALIZED, *ANSWERED}
