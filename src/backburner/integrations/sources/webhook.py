"""The webhook source: an ASGI app that accepts signed `POST /hooks/NAME` requests and passes them on as trigger events.

The signature of a request is verified before anything else in it is used. At most 1 MiB of a body is held in memory. The response to an
unknown hook is the same as to a wrong signature. The app logs nothing; only the body and GitHub's event name become part of a payload.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from typing import Any, Literal, NamedTuple, TypeAlias, assert_never
from urllib.parse import parse_qs

from backburner.core.ports import TriggerEvent
from backburner.core.terminal_text import clean, shortened

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 1 << 20
MAX_TIMESTAMP_AGE = 300  # seconds
GITHUB_EVENT_HEADER = "X-GitHub-Event"
_PATH = re.compile(r"/hooks/([^/\x00-\x1f\x7f]{1,200})")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[^\s:\[\]]{1,253})(?::[0-9]{1,5})?")
_TIMESTAMP = re.compile(rb"[0-9]{1,12}")
_ID = re.compile(rb"[!-~]{1,200}")
_UNSIGNED = "The signature is missing, wrong or too old."  # the same for every 401, so that a caller cannot find out which hooks exist
_BODY_TOO_LARGE = "The body is larger than 1 MiB."


class Hook(NamedTuple):
    """A hook that accepts requests, and how its sender signs them."""

    name: str
    secret: str
    style: Literal["backburner", "github"]


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the value of the header `Backburner-Signature`: the HMAC of `timestamp.body`."""
    return _hmac(secret, timestamp.encode() + b".", body).decode()


def receiver(
    find_hook: Callable[[str], Awaitable[Hook | None]],
    deliver: Callable[[str, str, TriggerEvent], Awaitable[bool]],
    now: Callable[[], float] = time.time,
    *,
    hosts: Collection[str] = (),
    body_timeout: float = 10.0,
) -> App:
    """Return the ASGI app.

    `find_hook` returns a hook by name. `deliver(name, ids, event)` stores an event and returns False if any of its ids, one per line, is
    already stored. `now` is in seconds.

    The Host header of a request must name loopback or one of `hosts` (with or without a port): a web page in a browser could reach this
    port through a host name of its own.

    Statuses: 202 accepted, 401 not signed or too old, 404 wrong path, 405 wrong method, 408 body too slow, 409 duplicate,
    413 body too large, 421 wrong host.
    """
    return _Receiver(find_hook, deliver, now, frozenset(host.lower() for host in hosts), body_timeout)


class _Rejected(Exception):
    """A request is not accepted. The message is the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _ClientDisconnected(Exception):
    """The client closed the connection before the end of the request."""


class _Receiver:
    def __init__(
        self,
        find_hook: Callable[[str], Awaitable[Hook | None]],
        deliver: Callable[[str, str, TriggerEvent], Awaitable[bool]],
        now: Callable[[], float],
        hosts: frozenset[str],
        body_timeout: float,
    ) -> None:
        self._find_hook, self._deliver, self._now, self._hosts, self._body_timeout = find_hook, deliver, now, hosts, body_timeout
        self._unused_secret = secrets.token_hex(32)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await _handle_lifespan(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        headers, body = _Headers(scope["headers"]), None
        try:
            name = self._hook_name(scope, headers)
            body = await self._read_body(headers, receive)
            status, content = 202, {"delivery": await self._accept(name, headers, body)}
        except _Rejected as rejected:
            status, content = rejected.status, {"error": str(rejected)}
        except _ClientDisconnected:
            return
        # If the body was not read, close the connection: otherwise the server would read it to its end.
        await _respond(send, status, content, close=body is None)

    def _hook_name(self, scope: Message, headers: "_Headers") -> str:
        """Return the name of the hook in the path of a request."""
        host = (headers.only(b"host") or b"").decode("latin-1").lower()
        matched = _HOST.fullmatch(host)
        if not matched or not (_is_loopback(matched[1]) or self._hosts & {host, matched[1]}):
            raise _Rejected(421, "Backburner does not accept requests for this host.")
        path = _PATH.fullmatch(scope["path"])
        if not path:
            raise _Rejected(404, "Not found; hooks are at /hooks/NAME.")
        if scope["method"] != "POST":
            raise _Rejected(405, "Hooks accept POST only.")
        return path[1]

    async def _read_body(self, headers: "_Headers", receive: Receive) -> bytes:
        """Return the whole body. Rejects a too large Content-Length before reading, and a too large body while reading."""
        declared = (headers.only(b"content-length") or b"0").lstrip(b"0")
        if len(declared) > 9 or (declared.isdigit() and int(declared) > MAX_BODY_BYTES):
            raise _Rejected(413, _BODY_TOO_LARGE)
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self._body_timeout):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientDisconnected
                    piece, more = message.get("body", b""), message.get("more_body", False)
                    if len(body) + len(piece) > MAX_BODY_BYTES:
                        raise _Rejected(413, _BODY_TOO_LARGE)
                    body += piece
        except TimeoutError:
            raise _Rejected(408, "The body took too long.") from None
        return bytes(body)

    async def _accept(self, name: str, headers: "_Headers", body: bytes) -> str:
        """Verify a request, pass it on, and return its delivery id."""
        hook = await self._find_hook(name)
        if hook is None or not hook.secret:
            # An unknown hook gets a secret that nobody has, so that the check fails and takes as long as for a known one.
            hook = Hook(name, self._unused_secret, "backburner")
        match hook.style:
            case "backburner":
                timestamp = self._verify_timestamp(hook, headers, body)
                content = timestamp + b"." + body
                delivery = _delivery_id(headers.only(b"backburner-delivery"), content)
                payload = _payload(body)
                event = TriggerEvent(_summary(f"webhook {name}", _topic(payload)), payload)
            case "github":
                self._verify_signature(hook, headers.only(b"x-hub-signature-256"), b"", body)
                content = body
                delivery = _delivery_id(headers.only(b"x-github-delivery"), content)
                event = _github_event(headers, body)
            case other:
                assert_never(other)
        # The id from the sender is not signed, so the same content with another id is a duplicate, too.
        if not await self._deliver(name, f"{delivery}\n{_delivery_id(None, content)}", event):
            raise _Rejected(409, "This delivery was received before.")
        return delivery

    def _verify_timestamp(self, hook: Hook, headers: "_Headers", body: bytes) -> bytes:
        """Verify Backburner's own signature and return its timestamp, which must be at most five minutes off."""
        timestamp = headers.only(b"backburner-timestamp") or b""
        self._verify_signature(hook, headers.only(b"backburner-signature"), timestamp + b".", body)
        if not _TIMESTAMP.fullmatch(timestamp) or abs(self._now() - int(timestamp)) > MAX_TIMESTAMP_AGE:
            raise _Rejected(401, _UNSIGNED)
        return timestamp

    def _verify_signature(self, hook: Hook, received: bytes | None, prefix: bytes, body: bytes) -> None:
        if not hmac.compare_digest(_hmac(hook.secret, prefix, body), (received or b"").lower()):
            raise _Rejected(401, _UNSIGNED)


class _Headers:
    """The headers of a request. A header that occurs more than once is ambiguous and counts as missing."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[bytes, list[bytes]] = {}
        for name, value in raw:
            self._values.setdefault(name.lower(), []).append(value.strip())

    def only(self, name: bytes) -> bytes | None:
        values = self._values.get(name, [])
        return values[0] if len(values) == 1 else None


def _hmac(secret: str, prefix: bytes, body: bytes) -> bytes:
    code = hmac.new(secret.encode("utf-8", "surrogateescape"), prefix, hashlib.sha256)
    code.update(body)
    return b"sha256=" + code.hexdigest().encode()


def _is_loopback(host: str) -> bool:
    if host.removesuffix(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _delivery_id(sender_id: bytes | None, content: bytes) -> str:
    """Return the id of a delivery: the id from the sender if it is valid, otherwise a hash."""
    if sender_id and _ID.fullmatch(sender_id):
        return sender_id.decode("ascii")
    return "sha256:" + hashlib.sha256(sender_id or content).hexdigest()


def _payload(body: bytes) -> dict[str, object]:
    """Parse a JSON object; any other body becomes `{"text": …}`. The result can always be written as JSON in UTF-8."""
    try:
        parsed = json.loads(body.decode(), parse_constant=_reject_constant)
        if isinstance(parsed, dict):
            # JSON allows unpaired surrogates, which UTF-8 cannot encode.
            return json.loads(json.dumps(parsed, ensure_ascii=False).encode("utf-8", "replace"), parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        pass
    return {"text": body.decode("utf-8", "replace")}


def _reject_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def _github_event(headers: _Headers, body: bytes) -> TriggerEvent:
    if (headers.only(b"content-type") or b"").lower().startswith(b"application/x-www-form-urlencoded"):
        fields = parse_qs(body.decode("utf-8", "replace")) if body.count(b"&") < 10 else {}
        body = fields.get("payload", [""])[0].encode() or body
    name = shortened(clean((headers.only(GITHUB_EVENT_HEADER.lower().encode()) or b"").decode("latin-1")), longest=100)
    payload = _payload(body)
    repository = payload.get("repository")
    repository_name = repository.get("full_name") if isinstance(repository, dict) else None
    words = [name or "event", payload.get("action"), *(["in", repository_name] if isinstance(repository_name, str) else [])]
    summary = _summary("GitHub", " ".join(word for word in words if isinstance(word, str)))
    return TriggerEvent(summary, {**payload, GITHUB_EVENT_HEADER: name})


def _topic(payload: dict[str, object]) -> str:
    """Return the text of a payload that most likely describes it."""
    for key in ("summary", "title", "text", "message"):
        if isinstance(value := payload.get(key), str) and value.strip():
            return value[:1000]
    return ", ".join(list(payload)[:10])


def _summary(origin: str, text: str) -> str:
    return shortened(clean(f"{origin}: {text}" if text else origin))


async def _handle_lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _respond(send: Send, status: int, content: dict[str, str], *, close: bool) -> None:
    body = json.dumps(content).encode() + b"\n"
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close")] if close else []
    headers += [(b"allow", b"POST")] if status == 405 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
