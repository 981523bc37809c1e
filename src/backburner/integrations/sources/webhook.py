"""The receiver of webhooks: an ASGI app that takes signed `POST /hooks/NAME` and hands on what they say as happenings.

Nothing is believed before its signature is checked, no more than 1 MiB of a body is ever held, and a caller cannot tell an unknown
hook from a wrong signature. It logs nothing, and of a request only the body (and GitHub's name of the event) becomes part of a payload.
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

MOST_BYTES = 1 << 20
WINDOW_SECONDS = 300
EVENT = "X-GitHub-Event"
_PATH = re.compile(r"/hooks/([^/\x00-\x1f\x7f]{1,200})")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[^\s:\[\]]{1,253})(?::[0-9]{1,5})?")
_TIMESTAMP = re.compile(rb"[0-9]{1,12}")
_ID = re.compile(rb"[!-~]{1,200}")
_UNSIGNED = "The signature is missing, wrong or too old."  # for every 401: it must not tell which hooks there are


class Hook(NamedTuple):
    """Where webhooks may come in, and how whoever sends them signs."""

    name: str
    secret: str
    style: Literal["backburner", "github"]


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """What `Backburner-Signature` says: the HMAC of `timestamp.body`."""
    return _signed(secret, timestamp.encode() + b".", body).decode()


def receiver(
    hooks: Callable[[str], Awaitable[Hook | None]],
    deliver: Callable[[str, str, TriggerEvent], Awaitable[bool]],
    now: Callable[[], float] = time.time,
    *,
    hosts: Collection[str] = (),
    body_seconds: float = 10.0,
) -> App:
    """The ASGI app. `hooks` knows the hooks by name; `deliver(name, ids, happening)` keeps one and is False where any of its ids,
    a line each, was there before.

    `now` is in seconds. A request must be addressed to loopback or to one of `hosts` (names, with or without a port): pages of a browser
    reach this machine under names of their own.

    202 taken · 401 not signed, or too long ago · 404 and 405 something else · 408 too slow · 409 was here before · 413 too large ·
    421 another host.
    """
    return _Receiver(hooks, deliver, now, frozenset(host.lower() for host in hosts), body_seconds)


class _Refused(Exception):
    """Why a request is not taken, and the status that says so."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Gone(Exception):
    """Whoever asked went away before the end of the question."""


class _Receiver:
    def __init__(
        self,
        hooks: Callable[[str], Awaitable[Hook | None]],
        deliver: Callable[[str, str, TriggerEvent], Awaitable[bool]],
        now: Callable[[], float],
        hosts: frozenset[str],
        body_seconds: float,
    ) -> None:
        self._hooks, self._deliver, self._now, self._hosts, self._body_seconds = hooks, deliver, now, hosts, body_seconds
        self._nobodys = secrets.token_hex(32)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "lifespan":
                await _live(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        headers, body = _Headers(scope["headers"]), None
        try:
            name = self._addressed(scope, headers)
            body = await self._body(headers, receive)
            status, said = 202, {"delivery": await self._taken(name, headers, body)}
        except _Refused as refused:
            status, said = refused.status, {"error": str(refused)}
        except _Gone:
            return
        # Without the close a server would read on, to the end of a body that nobody wants.
        await _respond(send, status, said, close=body is None)

    def _addressed(self, scope: Message, headers: "_Headers") -> str:
        """The name of the hook that a request is for."""
        host = (headers.only(b"host") or b"").decode("latin-1").lower()
        found = _HOST.fullmatch(host)
        if not found or not (_is_loopback(found[1]) or self._hosts & {host, found[1]}):
            raise _Refused(421, "This is not the address of Backburner.")
        path = _PATH.fullmatch(scope["path"])
        if not path:
            raise _Refused(404, "There is nothing here; hooks are at /hooks/NAME.")
        if scope["method"] != "POST":
            raise _Refused(405, "A hook takes POST.")
        return path[1]

    async def _body(self, headers: "_Headers", receive: Receive) -> bytes:
        """The whole body; refused by its announced length before anything is read, by its true one as soon as it is too much."""
        announced = (headers.only(b"content-length") or b"0").lstrip(b"0")
        if len(announced) > 9 or (announced.isdigit() and int(announced) > MOST_BYTES):
            raise _Refused(413, "A body may have 1 MiB.")
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(self._body_seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    piece, more = message.get("body", b""), message.get("more_body", False)
                    if len(body) + len(piece) > MOST_BYTES:
                        raise _Refused(413, "A body may have 1 MiB.")
                    body += piece
        except TimeoutError:
            raise _Refused(408, "The body took too long.") from None
        return bytes(body)

    async def _taken(self, name: str, headers: "_Headers", body: bytes) -> str:
        """Check a request, hand it on, and say under which id."""
        hook = await self._hooks(name)
        if hook is None or not hook.secret:
            hook = Hook(name, self._nobodys, "backburner")  # nothing fits it, and finding that out takes as long
        match hook.style:
            case "backburner":
                stamp = self._checked_ours(hook, headers, body)
                content = stamp + b"." + body
                delivery = _id(headers.only(b"backburner-delivery"), content)
                payload = _payload(body)
                happening = TriggerEvent(_line(f"webhook {name}", _gist(payload)), payload)
            case "github":
                self._check(hook, headers.only(b"x-hub-signature-256"), b"", body)
                content = body
                delivery = _id(headers.only(b"x-github-delivery"), content)
                happening = _from_github(headers, body)
            case other:
                assert_never(other)
        # A sender's id is not signed: the same content under another one is no other delivery.
        if not await self._deliver(name, f"{delivery}\n{_id(None, content)}", happening):
            raise _Refused(409, "This delivery was received before.")
        return delivery

    def _checked_ours(self, hook: Hook, headers: "_Headers", body: bytes) -> bytes:
        """The timestamp of a request that is signed as ours are, and was so just now."""
        stamp = headers.only(b"backburner-timestamp") or b""
        self._check(hook, headers.only(b"backburner-signature"), stamp + b".", body)
        if not _TIMESTAMP.fullmatch(stamp) or abs(self._now() - int(stamp)) > WINDOW_SECONDS:
            raise _Refused(401, _UNSIGNED)
        return stamp

    def _check(self, hook: Hook, given: bytes | None, before: bytes, body: bytes) -> None:
        if not hmac.compare_digest(_signed(hook.secret, before, body), (given or b"").lower()):
            raise _Refused(401, _UNSIGNED)


class _Headers:
    """The headers of a request; one that comes twice counts as none, as nobody knows which of them is meant."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[bytes, list[bytes]] = {}
        for name, value in raw:
            self._values.setdefault(name.lower(), []).append(value.strip())

    def only(self, name: bytes) -> bytes | None:
        values = self._values.get(name, [])
        return values[0] if len(values) == 1 else None


def _signed(secret: str, before: bytes, body: bytes) -> bytes:
    code = hmac.new(secret.encode("utf-8", "surrogateescape"), before, hashlib.sha256)
    code.update(body)
    return b"sha256=" + code.hexdigest().encode()


def _is_loopback(host: str) -> bool:
    if host.removesuffix(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _id(given: bytes | None, content: bytes) -> str:
    """What a delivery is known by: as its sender calls it, where that is fit to be kept."""
    if given and _ID.fullmatch(given):
        return given.decode("ascii")
    return "sha256:" + hashlib.sha256(given or content).hexdigest()


def _payload(body: bytes) -> dict[str, object]:
    """A JSON object as it is; anything else as a text. Either can be written as UTF-8 and as JSON again."""
    try:
        found = json.loads(body.decode(), parse_constant=_no_number)
        if isinstance(found, dict):
            # Half a surrogate pair is allowed in JSON and nowhere else.
            return json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        pass
    return {"text": body.decode("utf-8", "replace")}


def _no_number(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


def _from_github(headers: _Headers, body: bytes) -> TriggerEvent:
    if (headers.only(b"content-type") or b"").lower().startswith(b"application/x-www-form-urlencoded"):
        fields = parse_qs(body.decode("utf-8", "replace")) if body.count(b"&") < 10 else {}
        body = fields.get("payload", [""])[0].encode() or body
    event = shortened(clean((headers.only(EVENT.lower().encode()) or b"").decode("latin-1")), longest=100)
    payload = _payload(body)
    repository = payload.get("repository")
    where = repository.get("full_name") if isinstance(repository, dict) else None
    words = [event or "event", payload.get("action"), *(["in", where] if isinstance(where, str) else [])]
    return TriggerEvent(_line("GitHub", " ".join(word for word in words if isinstance(word, str))), {**payload, EVENT: event})


def _gist(payload: dict[str, object]) -> str:
    """The words of a payload that most likely say what it is about."""
    for key in ("summary", "title", "text", "message"):
        if isinstance(value := payload.get(key), str) and value.strip():
            return value[:1000]
    return ", ".join(list(payload)[:10])


def _line(origin: str, words: str) -> str:
    return shortened(clean(f"{origin}: {words}" if words else origin))


async def _live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def _respond(send: Send, status: int, said: dict[str, str], *, close: bool) -> None:
    body = json.dumps(said).encode() + b"\n"
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close")] if close else []
    headers += [(b"allow", b"POST")] if status == 405 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
