"""The Model Context Protocol, without input or output: lines come in, and messages to send and requests to handle come out.

Each client has one `Connection`. It answers what needs no home (`initialize`, `ping`, the list of tools) and checks everything else,
so that a `Request` has a known method and valid parameters. Imports little, because `initialize` must be answered at once.

The versions up to 2025-11-25 begin with `initialize`. From 2026-07-28 there is no such start: every request names its version in
`_meta`. Over stdio the first request of a client decides which of the two it uses.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

INITIALIZED_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"
MAX_MESSAGE_BYTES = 16 << 20
MAX_OPEN_REQUESTS = 256
_BATCH_VERSION = "2025-03-26"  # the only version with batches
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32700, -32600, -32601, -32602, -32603
SERVER_ERROR, HEADER_MISMATCH, UNSUPPORTED_VERSION = -32000, -32020, -32022
_META = "io.modelcontextprotocol/"
VERSION_KEY, CAPABILITIES_KEY = f"{_META}protocolVersion", f"{_META}clientCapabilities"
_CLIENT_KEY, _SERVER_KEY, _LEVEL_KEY, _SUBSCRIPTION_KEY = (
    f"{_META}{name}" for name in ("clientInfo", "serverInfo", "logLevel", "subscriptionId")
)
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_CACHED_METHODS = {"server/discover", "tools/list", "resources/list", "resources/templates/list", "resources/read"}
_CAPABILITIES = {"logging": {}, "resources": {"listChanged": False, "subscribe": True}, "tools": {"listChanged": False}}

Message = dict[str, Any]
RequestId = int | str


class Outgoing(NamedTuple):
    """A message to send: a dict, or a list as the answer to a batch. After it was written, each of `delivered` must be awaited."""

    message: Message | list[Message]
    delivered: tuple[Callable[[], Any], ...] = ()

    def encode(self) -> bytes:
        return json.dumps(self.message, separators=(",", ":")).encode()


class Cancelled(NamedTuple):
    """The client no longer waits for a request. It gets no answer."""

    request: "Request"


class Description(NamedTuple):
    """What a server tells about itself."""

    name: str
    version: str
    instructions: str
    tools: Callable[[], Sequence[Message]]
    resource_templates: Sequence[Message]


class ProtocolError(Exception):
    """The error that a request is answered with."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data

    def as_json(self) -> Message:
        return {"code": self.code, "message": str(self), **({} if self.data is None else {"data": self.data})}


class Request:
    """A valid request that the server must answer, with `answer` or `fail`. Both return None if there is nothing to send (yet)."""

    def __init__(self, connection: "Connection", request_id: RequestId, method: str, params: Message, version: str) -> None:
        self.connection, self.request_id, self.method, self.params, self.version = connection, request_id, method, params, version
        meta = params.get("_meta")
        self.meta: Message = meta if isinstance(meta, dict) else {}
        self.headers: Mapping[str, str] = {}  # of the HTTP request
        self._batch: _Batch | None = None

    @property
    def client_name(self) -> str | None:
        """The name that the client gives itself."""
        about = self.meta.get(_CLIENT_KEY) if self.version == MODERN_VERSION else self.connection.client_info
        name = about.get("name") if isinstance(about, dict) else None
        return name if isinstance(name, str) else None

    def answer(self, result: Message, delivered: tuple[Callable[[], Any], ...] = ()) -> Outgoing | None:
        """The response with this result. `delivered` is awaited after it was written."""
        if self.version == MODERN_VERSION:
            about = {"name": self.connection.about.name, "version": self.connection.about.version}
            caching = {"cacheScope": "private", "ttlMs": 0} if self.method in _CACHED_METHODS else {}
            result = {**caching, **result, "resultType": "complete", "_meta": {**result.get("_meta", {}), _SERVER_KEY: about}}
        return self._finish({"jsonrpc": "2.0", "id": self.request_id, "result": result}, delivered)

    def fail(self, error: ProtocolError) -> Outgoing | None:
        """The response with this error."""
        return self._finish({"jsonrpc": "2.0", "id": self.request_id, "error": error.as_json()}, ())

    def progress(self, progress: float, total: float | None, text: str) -> Outgoing | None:
        """A notification about the progress, if the client wants them for this request."""
        token = self.meta.get("progressToken")
        if not _is_id(token) or self.connection.get(self.request_id) is not self:
            return None
        return notification("notifications/progress", {"progressToken": token, "progress": progress, "total": total, "message": text})

    def log(self, level: str, text: str) -> Outgoing | None:
        """A log message, if the client has asked for messages of this level."""
        wanted = self.meta.get(_LEVEL_KEY) if self.version == MODERN_VERSION else self.connection.log_level
        if wanted not in _LEVELS or _LEVELS.index(level) < _LEVELS.index(wanted):
            return None
        return notification("notifications/message", {"level": level, "logger": self.connection.about.name, "data": text})

    def acknowledge_subscription(self, uris: Sequence[str]) -> Outgoing:
        """The first message of a subscription stream: what it will send."""
        wanted = {"resourceSubscriptions": list(uris)} if uris else {}
        return notification("notifications/subscriptions/acknowledged", {"_meta": self.subscription_meta, "notifications": wanted})

    @property
    def subscription_meta(self) -> Message:
        """Marks the messages of the subscription stream that this request has opened."""
        return {_SUBSCRIPTION_KEY: self.request_id}

    def _finish(self, response: Message, delivered: tuple[Callable[[], Any], ...]) -> Outgoing | None:
        if not self.connection.close_request(self):
            return None  # cancelled
        return self._batch.add(response, delivered) if self._batch else Outgoing(response, delivered)


def resource_updated(uri: str, request: Request | None = None) -> Outgoing:
    """The notification that a resource has changed; `request` has opened the stream that it is sent on, if any."""
    return notification("notifications/resources/updated", {"uri": uri, **({"_meta": request.subscription_meta} if request else {})})


def notification(method: str, params: Message) -> Outgoing:
    return Outgoing({"jsonrpc": "2.0", "method": method, "params": params})


class _Batch:
    """The responses to the requests of one batch. They are sent together, when the last one is there."""

    def __init__(self) -> None:
        self.missing = 0
        self._responses: list[Message] = []
        self._delivered: tuple[Callable[[], Any], ...] = ()

    def add(self, response: Message, delivered: tuple[Callable[[], Any], ...]) -> Outgoing | None:
        self._responses.append(response)
        self._delivered += delivered
        return self.settle()

    def settle(self) -> Outgoing | None:
        self.missing -= 1
        return Outgoing(self._responses, self._delivered) if self.missing == 0 and self._responses else None


class Connection:
    """The state of one client: its version, and the requests that have no answer yet."""

    def __init__(self, about: Description, *, is_modern: bool | None = None) -> None:
        self.about = about
        self.client_info: Message | None = None
        self.log_level: str | None = None
        self._is_modern, self._version = is_modern, ""
        self._open: dict[RequestId, Request] = {}

    def get(self, request_id: RequestId) -> Request | None:
        """The open request with this id."""
        return self._open.get(request_id)

    def close_request(self, request: Request) -> bool:
        """Remove an open request; False if it was not open, because the client has cancelled it."""
        return self._open.get(request.request_id) is request and self._open.pop(request.request_id) is request

    def receive(self, data: bytes | None) -> Iterator[Outgoing | Request | Cancelled]:
        """What follows from one message of the client: answers to send, requests to handle, and requests to stop. None: it was too long."""
        try:
            message = _parse(data)
            if not isinstance(message, list):
                yield from self._receive_message(message, None)
                return
            if self._version != _BATCH_VERSION or not message:
                raise ProtocolError(
                    INVALID_REQUEST, f"Only version {_BATCH_VERSION} of the protocol has batches; send one message per line."
                )
        except ProtocolError as error:
            yield Outgoing({"jsonrpc": "2.0", "id": None, "error": error.as_json()})
            return
        batch = _Batch()
        batch.missing = 1 + len(message)  # one more, so that it is not complete before all of its messages were read
        events: list[Outgoing | Request | Cancelled] = []
        for item in message:
            events += self._receive_message(item, batch)
        yield from events
        if complete := batch.settle():
            yield complete

    def _receive_message(self, message: object, batch: _Batch | None) -> Iterator[Outgoing | Request | Cancelled]:
        request_id: RequestId | None = None
        try:
            request_id, method, params = _check_message(message)
            if request_id is None:
                yield from self._receive_notification(method, params)
                if batch and (complete := batch.settle()):
                    yield complete
                return
            request = self._check_request(request_id, method, params)
        except ProtocolError as error:
            refusal = {"jsonrpc": "2.0", "id": request_id, "error": error.as_json()}
            if answer := batch.add(refusal, ()) if batch else Outgoing(refusal):
                yield answer
            return
        self._open[request_id], request._batch = request, batch
        result = self._answer_immediately(request)
        if result is None:
            yield request
        elif answer := request.answer(result):
            yield answer

    def _receive_notification(self, method: str, params: Message) -> Iterator[Outgoing | Cancelled]:
        if method != "notifications/cancelled" or not _is_id(request_id := params.get("requestId")):
            return
        if request := self._open.pop(request_id, None):
            yield Cancelled(request)
            if request._batch and (complete := request._batch.settle()):
                yield complete

    def _check_request(self, request_id: RequestId, method: str, params: Message) -> Request:
        """The request, if it has a known method, valid parameters, and the version that this connection uses."""
        meta = params.get("_meta")
        names_version = isinstance(meta, dict) and VERSION_KEY in meta
        if self._is_modern is None:
            self._is_modern = names_version and method != "initialize"
        if self._is_modern:
            if method == "initialize":
                message = f"This connection uses version {MODERN_VERSION}, which has no `initialize`."
                raise ProtocolError(UNSUPPORTED_VERSION, message, _supported(params.get("protocolVersion")))
            version = _check_envelope(meta)
        elif names_version and method != "initialize":
            message = f"This connection has begun with `initialize`; requests of version {MODERN_VERSION} are not accepted on it."
            raise ProtocolError(INVALID_REQUEST, message)
        else:
            version = self._version
        if (check := (_MODERN_METHODS if self._is_modern else _INITIALIZED_METHODS).get(method)) is None:
            raise ProtocolError(METHOD_NOT_FOUND, "There is no such method.", method[:200])
        if not check(params) or not (meta is None or isinstance(meta, dict)) or not _is_valid_token(meta):
            raise ProtocolError(INVALID_PARAMS, f"The parameters of {method} are not valid.", "")
        if not self._is_modern and not version and method not in ("initialize", "ping"):
            raise ProtocolError(INVALID_PARAMS, "The first request must be `initialize`.", "")
        if request_id in self._open:
            raise ProtocolError(INVALID_REQUEST, f"The id {json.dumps(request_id)[:100]} already belongs to an open request.")
        if len(self._open) >= MAX_OPEN_REQUESTS:
            message = f"There are already {MAX_OPEN_REQUESTS} open calls; wait until some of them have finished."
            raise ProtocolError(SERVER_ERROR, message)
        return Request(self, request_id, method, params, version)

    def _answer_immediately(self, request: Request) -> Message | None:
        """The result of a request that needs no home; None for others."""
        about = self.about
        match request.method:
            case "initialize":
                wanted = request.params["protocolVersion"]
                self._version = wanted if wanted in INITIALIZED_VERSIONS else INITIALIZED_VERSIONS[-1]
                self.client_info = request.params["clientInfo"]
                info = {"name": about.name, "version": about.version}
                result = {"protocolVersion": self._version, "capabilities": _CAPABILITIES, "serverInfo": info}
                return {**result, "instructions": about.instructions}
            case "server/discover":
                return {"supportedVersions": [MODERN_VERSION], "capabilities": _CAPABILITIES, "instructions": about.instructions}
            case "ping":
                return {}
            case "logging/setLevel":
                self.log_level = request.params["level"]
                return {}
            case "tools/list":
                return {"tools": about.tools()}
            case "resources/templates/list":
                return {"resourceTemplates": about.resource_templates}
        return None


class LineBuffer:
    """Splits the input into lines. A line above the limit is dropped, and None takes its place."""

    def __init__(self) -> None:
        self._rest, self._is_too_long = bytearray(), False

    def feed(self, piece: bytes) -> Iterator[bytes | None]:
        """The lines that are complete with this piece, without empty ones."""
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line, self._rest = bytes(self._rest) + end, bytearray()
            if self._is_too_long:
                self._is_too_long = False
                yield None
            elif line.strip():
                yield line
        if not self._is_too_long:
            self._rest += rest
            if len(self._rest) > MAX_MESSAGE_BYTES:
                self._is_too_long, self._rest = True, bytearray()


def _parse(data: bytes | None) -> object:
    if data is None:
        raise ProtocolError(INVALID_REQUEST, f"A message may have at most {MAX_MESSAGE_BYTES} bytes.")
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise ProtocolError(PARSE_ERROR, "The message is not valid JSON.") from None


def _check_message(message: object) -> tuple[RequestId | None, str, Message]:
    """The id of a message (None for a notification), its method and its parameters. A response has no method; we send no requests."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ProtocolError(INVALID_REQUEST, "The message is not a JSON-RPC 2.0 object.")
    if "method" not in message and ("result" in message or "error" in message):
        return None, "", {}
    method, params = message.get("method"), message.get("params")
    if not isinstance(method, str) or not ("id" not in message or _is_id(message["id"])):
        raise ProtocolError(INVALID_REQUEST, "A request needs a method, and an id that is a string or an integer.")
    if not (params is None or isinstance(params, dict)):
        raise ProtocolError(INVALID_REQUEST, "The parameters of a message must be an object.")
    return message.get("id"), method, params or {}


def _check_envelope(meta: object) -> str:
    """The version that a request names in its `_meta`."""
    missing = [key for key in (VERSION_KEY, CAPABILITIES_KEY) if not isinstance(meta, dict) or key not in meta]
    if missing:
        raise ProtocolError(INVALID_PARAMS, f"`_meta` of a request needs: {', '.join(missing)}.")
    assert isinstance(meta, dict)
    version = meta[VERSION_KEY]
    if not isinstance(version, str):
        raise ProtocolError(INVALID_PARAMS, f"{VERSION_KEY} must be a string.")
    if version != MODERN_VERSION:
        raise ProtocolError(UNSUPPORTED_VERSION, "This version of the protocol is not supported.", _supported(version))
    return version


def _supported(requested: object) -> Message:
    return {"supported": [MODERN_VERSION], **({"requested": requested[:100]} if isinstance(requested, str) else {})}


def _is_id(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _is_valid_token(meta: object) -> bool:
    return not isinstance(meta, dict) or meta.get("progressToken") is None or _is_id(meta["progressToken"])


def _has_name_and_version(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("version"), str)


def _is_initialize(params: Message) -> bool:
    is_valid = isinstance(params.get("protocolVersion"), str) and isinstance(params.get("capabilities"), dict)
    return is_valid and _has_name_and_version(params.get("clientInfo"))


def _is_call(params: Message) -> bool:
    return isinstance(params.get("name"), str) and isinstance(params.get("arguments"), dict | None)


def _has_uri(params: Message) -> bool:
    return isinstance(params.get("uri"), str)


def _is_list(params: Message) -> bool:
    return isinstance(params.get("cursor"), str | None)


def _is_level(params: Message) -> bool:
    return params.get("level") in _LEVELS


def _is_listen(params: Message) -> bool:
    wanted = params.get("notifications")
    uris = wanted.get("resourceSubscriptions") if isinstance(wanted, dict) else ()
    return isinstance(wanted, dict) and (uris is None or (isinstance(uris, list) and all(isinstance(uri, str) for uri in uris)))


def _is_anything(_params: Message) -> bool:
    return True


def _in_envelope(check: Callable[[Message], bool]) -> Callable[[Message], bool]:
    """The same check, and whether the client's description of itself in `_meta` is valid."""

    def check_both(params: Message) -> bool:
        meta = params["_meta"]
        client = meta.get(_CLIENT_KEY)
        return isinstance(meta[CAPABILITIES_KEY], dict) and (client is None or _has_name_and_version(client)) and check(params)

    return check_both


_SHARED_METHODS: dict[str, Callable[[Message], bool]] = {
    "tools/list": _is_list,
    "tools/call": _is_call,
    "resources/list": _is_list,
    "resources/templates/list": _is_list,
    "resources/read": _has_uri,
}
_INITIALIZED_METHODS = {
    **_SHARED_METHODS,
    "initialize": _is_initialize,
    "ping": _is_anything,
    "resources/subscribe": _has_uri,
    "resources/unsubscribe": _has_uri,
    "logging/setLevel": _is_level,
}
_MODERN_METHODS = {
    method: _in_envelope(check)
    for method, check in {**_SHARED_METHODS, "server/discover": _is_anything, "subscriptions/listen": _is_listen}.items()
}
