"""The web interface as one ASGI app: the guard in front, then the page and its files, the API, and MCP."""

import asyncio
import hmac
import inspect
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

from backburner.core.errors import BackburnerError, NotAPerson, TooManyRequests
from backburner.core.models import Caller
from backburner.core.sessions import SessionId
from backburner.core.version import VERSION
from backburner.interfaces.web.asgi import Endpoint, Request, Response, Routes
from backburner.interfaces.web.calls import Call, Reply, read_values
from backburner.interfaces.web.guard import (
    MAX_BODY_BYTES,
    Addresses,
    Kind,
    Rejection,
    bearer,
    is_device,
    rejection,
    security_headers,
    sent_headers,
)
from backburner.interfaces.web.logs import LogReader
from backburner.interfaces.web.operations import BASE, OPERATIONS, Operation, Who
from backburner.interfaces.web.page import SHELL_PATHS, assets, compressed, shell
from backburner.interfaces.web.stream import MAX_STREAMS, Hub, Stream, event_messages
from backburner.services.app import App
from backburner.services.async_app import AsyncApp
from backburner.system.home import Home

MCP_PATH = "/mcp"
_SEND_TIMEOUT_SECONDS = 10.0
_STATUS = {
    "task_not_found": 404,
    "no_tasks": 404,
    "batch_not_found": 404,
    "span_not_found": 404,
    "approval_denied": 422,
    "approval_required": 403,
    "not_a_person": 403,
    "not_your_task": 403,
    "no_passkey": 403,
    "pairing_closed": 403,
    "passkeys_not_here": 403,
    "proof_refused": 403,
    "web_approval_off": 403,
    "question_changed": 409,
    "changes_differ": 409,
    "illegal_transition": 409,
    "already_in_state": 409,
    "stale_run": 409,
    "stale_task": 409,
    "not_running": 409,
    "not_resumable": 409,
    "too_many_requests": 429,
    "engine_unavailable": 503,
    "ledger_unavailable": 503,
    "ledger_too_new": 503,
    "home_unusable": 503,
    "home_in_use": 503,
}


class Served(NamedTuple):
    """What the app is made of. `token` is the token of the home, `canonical` the address at which passkeys work."""

    home: Home
    environ: dict[str, str]
    token: str
    addresses: Addresses
    canonical: str


class WebApp:
    """The ASGI app. `async_app` opens the home in a thread of its own."""

    def __init__(self, async_app: AsyncApp, served: Served) -> None:
        self._app, self._served = async_app, served
        self.hub = Hub(async_app)
        self._logs = LogReader()
        self._assets = assets()
        about = {"version": VERSION, "assets": self._assets.hash}
        self._stream = Stream(async_app, self.hub, about)
        self._mcp: Any = None
        self._mcp_lock = asyncio.Lock()
        operations = [
            (operation.method, f"{BASE}{operation.path.replace('{name}', '{name:path}')}", self._endpoint(operation))
            for operation in OPERATIONS
        ]
        pages = [("GET", path, self._shell) for path in SHELL_PATHS]
        files = ("GET", "/_/{hash}/{path:path}", self._file)
        described = [("GET", "/api/openapi.json", self._openapi), ("GET", "/api", self._reader)]
        self._routes = Routes([*operations, *described, *pages, files])

    # -- ASGI

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._lifespan(receive, send)
            return
        method, path = scope["method"], scope["path"]
        if path == MCP_PATH:
            await self._serve_mcp(scope, receive, send)
            return
        kind = Kind.API if path.startswith(("/api", MCP_PATH)) else Kind.PAGE
        refused = rejection(method, kind, sent_headers(scope["headers"]), self._served.addresses)
        response = _error(refused) if refused else await self._handle(method, path, scope, receive)
        await response.with_headers(security_headers(kind)).send(receive, send)

    async def _handle(self, method: str, path: str, scope: Any, receive: Any) -> Response:
        if found := self._routes.find(method, path):
            endpoint, values = found
            return await endpoint(Request(scope, receive, values))
        if self._routes.has(path):
            return _error(Rejection(405, "method_not_allowed", f"{method} is not used at this path."))
        return _error(Rejection(404, "not_found", "There is nothing at this path."))

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def close(self) -> None:
        """Free what belongs to the app; the home is closed by who opened it."""
        self._logs.close()
        if self._mcp is not None:
            await self._mcp.close()

    async def _serve_mcp(self, scope: Any, receive: Any, send: Any) -> None:
        """MCP over HTTP: loaded with the first request that has the token, because it takes long and few need it."""
        sent = sent_headers(scope["headers"])
        refused = rejection("GET", Kind.API, sent, self._served.addresses)
        if refused is None and not self._is_token(bearer(sent.authorization)):
            refused = _NO_CREDENTIAL
        if refused is not None:
            await _error(refused).send(receive, send)
            return
        async with self._mcp_lock:
            if self._mcp is None:
                from backburner.interfaces.mcp.http import mcp_app

                self._mcp = mcp_app(self._served.home, self._served.environ)
        await self._mcp(scope, receive, send)

    # -- the page

    async def _shell(self, request: Request) -> Response:
        headers = {"content-type": _HTML, "cache-control": "no-cache", "etag": f'"{self._assets.hash}"'}
        return Response(200, shell(self._assets), headers)

    async def _file(self, request: Request) -> Response:
        found = self._assets.files.get(request.path["path"])
        if found is None or request.path["hash"] != self._assets.hash:
            return _error(Rejection(404, "not_found", "There is nothing at this path."))
        headers = {"cache-control": "public, max-age=31536000, immutable", "content-type": found.type, "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(200, compressed(found.content), {**headers, "content-encoding": "gzip"})
        return Response(200, found.content, headers)

    async def _reader(self, request: Request) -> Response:
        from backburner.interfaces.web.reader import reader_page

        return Response(200, reader_page(OPERATIONS, BASE, self._assets), {"content-type": _HTML})

    async def _openapi(self, request: Request) -> Response:
        if await self._caller(request) is None:
            return _error(_NO_CREDENTIAL)
        from backburner.interfaces.web.openapi import describe

        return _json(describe(OPERATIONS, BASE, VERSION))

    # -- the API

    def _endpoint(self, operation: Operation) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            try:
                return await self._answer(operation, request)
            except BackburnerError as error:
                return error_response(error)
            except UnicodeError:
                return _error(Rejection(400, "bad_input", "The input is not valid UTF-8."))

        return endpoint

    async def _answer(self, operation: Operation, request: Request) -> Response:
        caller = await self._caller(request)
        if caller is None:
            if operation.who is not Who.OPEN:
                return _error(_NO_CREDENTIAL)
            caller = self._token_caller()
        call = await self._call(operation, request, caller)
        if isinstance(call, Response):
            return call
        if operation.who in (Who.DEVICE, Who.PASSKEY) and caller.device is None:
            await self._refuse_token(operation, call)
        match operation.path:
            case "/stream":
                return await self._open_stream(request, call)
            case "/events" if call.accepts_stream:
                last = call.last_event_id or ""
                after = call.get("after", int(last) if last.isdecimal() else 0)
                return _event_stream(event_messages(self._app, after))
        verb = operation.verb
        if inspect.iscoroutinefunction(verb):
            return _response(await verb(self._logs, self._app, call))
        tag = None
        if operation.path in _WITH_ETAG and not call.get("home", False):
            tag = await self._app.call(lambda app: f'"{app.overview.last_event()}"')
            if request.headers.get("if-none-match") == tag:
                return Response(304, headers={"etag": tag})

        def run(app: App) -> Any:
            app.config_file.reload_if_changed()
            return verb(app, call)

        return _response(await self._app.call(run), tag)

    async def _call(self, operation: Operation, request: Request, caller: Caller) -> "Call | Response":
        if operation.method == "GET":
            sent: dict[str, Any] = {}
            for name, value in request.query:
                sent.setdefault(name, []).append(value)
            values = read_values(operation.takes, sent, text=True)
        else:
            body = await _body(request)
            if isinstance(body, Rejection):
                return _error(body)
            values = read_values(operation.takes, body, text=False)
        headers = request.headers
        origin = headers.get("origin") or self._origin_of(headers.get("host", ""))
        return Call(
            caller,
            request.path,
            values,
            origin=origin.lower(),
            address=request.client,
            key=headers.get("idempotency-key"),
            last_event_id=headers.get("last-event-id"),
            accepts_stream="text/event-stream" in headers.get("accept", ""),
            canonical=self._served.canonical,
        )

    def _origin_of(self, host: str) -> str:
        """The origin of a page that sent none, as with plain reads."""
        origins = self._served.addresses.origins
        return next((f"{scheme}://{host.lower()}" for scheme in ("http", "https") if f"{scheme}://{host.lower()}" in origins), "")

    async def _refuse_token(self, operation: Operation, call: Call) -> None:
        """Refuse a token where only a person may act. An attempt to approve is recorded."""
        reason = "a token proves nothing about who sends it; use a paired page with a passkey, or a terminal"
        if operation.path.startswith("/grants"):
            await self._app.call(lambda app: app.devices.refused(call.caller, reason, origin=call.origin))
            raise NotAPerson(reason=reason, do="backburner trust")
        if operation.path.startswith("/tasks/"):
            task_id = call.path["id"]

            def record(app: App) -> str:
                found = app.queries.find(task_id, call.caller).task.task_id
                app.devices.refused(call.caller, reason, task_id=found, origin=call.origin)
                return found

            task_id = await self._app.call(record)
            raise NotAPerson(reason=reason, do=f"backburner approve {task_id}")
        raise NotAPerson(reason=reason, do="backburner web")

    # -- who calls

    async def _caller(self, request: Request) -> Caller | None:
        """Who sends a request; None if its credential is missing, unknown or revoked."""
        return await self._caller_of(_credential(request))

    async def _caller_of(self, credential: str | None) -> Caller | None:
        if credential is None:
            return None
        if self._is_token(credential):
            return self._token_caller()
        if not is_device(credential):
            return None
        device = await self._app.call(lambda app: app.devices.authenticate(credential))
        return Caller("/", self._served.environ, f"web:{device.device_id}", None, device) if device else None

    def _token_caller(self) -> Caller:
        return Caller("/", self._served.environ, "api", str(SessionId("api", "token")))

    def _is_token(self, credential: str | None) -> bool:
        return credential is not None and hmac.compare_digest(credential.encode("utf-8", "replace"), self._served.token.encode())

    # -- streams

    async def _open_stream(self, request: Request, call: Call) -> Response:
        if self.hub.is_closed or len(self.hub.clients) >= MAX_STREAMS:
            raise TooManyRequests(seconds=5)
        client = await self._stream.open(call)
        credential = _credential(request)

        async def still_known() -> bool:
            return await self._caller_of(credential) is not None

        async def messages() -> AsyncGenerator[bytes]:
            try:
                async for message in self._stream.messages(client, still_known):
                    yield message
            finally:
                self.hub.remove(client)

        return _event_stream(messages())


_WITH_ETAG = frozenset({"/board", "/tasks", "/tasks/{id}"})
_NO_CREDENTIAL = Rejection(401, "unauthorized", "The credential is missing, unknown or revoked: send `Authorization: Bearer …`.")


_HTML = "text/html; charset=utf-8"


def _event_stream(messages: AsyncGenerator[bytes]) -> Response:
    """A stream of events. A client that does not read for ten seconds is dropped."""
    headers = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
    return Response(200, messages, headers, send_timeout=_SEND_TIMEOUT_SECONDS)


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer as JSON. Half a surrogate pair, as in a file name that is not UTF-8, is sent as its escape."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(status, text.encode("utf-8", "backslashreplace"), {"content-type": "application/json", **(headers or {})})


def _response(answer: Any, tag: str | None = None) -> Response:
    if not isinstance(answer, Reply):
        return _json(answer, headers={"etag": tag} if tag else None)
    if answer.status == 204:
        return Response(204)
    if answer.type != "application/json":
        return Response(answer.status, answer.body, {**answer.headers, "content-type": answer.type})
    return _json(answer.body, answer.status)


def _credential(request: Request) -> str | None:
    return bearer(request.headers.get("authorization"))


async def _body(request: Request) -> "dict[str, Any] | Rejection":
    """The body of a request as an object; empty if it has none."""
    if (content := await request.body(MAX_BODY_BYTES)) is None:
        return Rejection(413, "too_large", f"A request may have at most {MAX_BODY_BYTES:,} bytes.")
    if not content.strip():
        return {}
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return Rejection(400, "bad_input", "The body is not valid JSON.")
    return body if isinstance(body, dict) else Rejection(400, "bad_input", "The body must be a JSON object.")


def error_response(error: BackburnerError) -> Response:
    """An error of the services as an answer."""
    status = _STATUS.get(error.code, 400)
    fields = {name: value for name, value in error.fields.items() if name != "message" and isinstance(value, str | int | float | list)}
    headers = {"retry-after": str(error.fields["seconds"])} if status == 429 else {}
    content = {"error": {"code": error.code, "message": str(error), "fields": fields}}
    return _json(content, status, headers)


def _error(refused: Rejection) -> Response:
    headers = {"www-authenticate": "Bearer"} if refused.status == 401 else {}
    return _json({"error": {"code": refused.code, "message": refused.message, "fields": {}}}, refused.status, headers)
