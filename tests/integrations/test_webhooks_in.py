"""The webhook source behind a real uvicorn server on loopback: it accepts only signed, new, small and fast requests."""

import asyncio
import hashlib
import hmac
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
import uvicorn
from conftest import wait_until
from uvicorn.protocols.http.h11_impl import H11Protocol

from backburner.core.ports import OutgoingMessage, TriggerEvent
from backburner.integrations.sources.webhook import MAX_BODY_BYTES, Hook, receiver

SECRET = "s3cret-of-the-hook"
NOW = 1_770_000_000
HOOKS = {hook.name: hook for hook in (Hook("ours", SECRET, "backburner"), Hook("hub", SECRET, "github"), Hook("bare", "", "backburner"))}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: dict[str, str]


class WebhookServer:
    """A receiver, the events it delivered, and the number of bytes it read from the network."""

    def __init__(self) -> None:
        self.reset()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        webhooks = self

        class CountingProtocol(H11Protocol):
            def data_received(self, data: bytes) -> None:
                webhooks.bytes_read += len(data)
                super().data_received(data)

        app = receiver(self._find_hook, self._deliver, lambda: NOW, hosts={"Hooks.Example.org", "proxy.example:8443"}, body_timeout=1.0)
        self.server = uvicorn.Server(uvicorn.Config(app, http=CountingProtocol, ws="none", log_config=None, access_log=False))

    def reset(self) -> None:
        self.delivered: dict[tuple[str, str], TriggerEvent] = {}
        self.known_ids: set[tuple[str, str]] = set()
        self.bytes_read = 0
        self.ledger_fails = False

    async def _find_hook(self, name: str) -> Hook | None:
        return HOOKS.get(name)

    async def _deliver(self, name: str, delivery_id: str, event: TriggerEvent) -> bool:
        if self.ledger_fails:
            raise OSError("the ledger is full")
        ids = {(name, line) for line in delivery_id.split("\n")}
        if ids & self.known_ids:
            return False
        self.known_ids |= ids
        self.delivered[name, delivery_id.split("\n")[0]] = event
        return True

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def request(
        self, path: str, body: bytes, headers: dict[str, str] | None = None, *, method: str = "POST", host: str | None = None
    ) -> Reply:
        """Send one request on a new connection."""
        lines = {"Host": f"127.0.0.1:{self.port}" if host is None else host, "Content-Length": str(len(body)), **(headers or {})}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
        with self.connect() as connection:
            connection.sendall(head.encode("latin-1") + body)
            return read_response(connection)

    def post(self, body: bytes, *, hook: str = "ours", secret: str = SECRET, at: int = NOW, **headers: str) -> Reply:
        """Send a request with Backburner's own signature. `headers` are added or replace the defaults."""
        signed = {"Backburner-Timestamp": str(at), "Backburner-Signature": sign(secret, f"{at}.".encode() + body)}
        return self.request(f"/hooks/{hook}", body, {**signed, **{name.replace("_", "-"): value for name, value in headers.items()}})

    def github(self, body: bytes, *, secret: str = SECRET, **headers: str) -> Reply:
        defaults = {"X-Hub-Signature-256": sign(secret, body), "X-GitHub-Event": "issues", "X-GitHub-Delivery": "72d3162e-cc78-11e3"}
        return self.request("/hooks/hub", body, {**defaults, **{name.replace("_", "-"): value for name, value in headers.items()}})

    @property
    def event(self) -> TriggerEvent:
        [event] = self.delivered.values()
        return event


def sign(secret: str, signed: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def read_response(connection: socket.socket) -> Reply:
    """Read one response. The server may close the connection after it."""
    data = b""
    while not (b"\r\n\r\n" in data and len(data.partition(b"\r\n\r\n")[2]) >= _length(data)):
        piece = connection.recv(65_536)
        assert piece, data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    is_json = headers.get("content-type") == "application/json"
    return Reply(int(status.split()[1]), headers, json.loads(body) if is_json and body else {})


def _length(data: bytes) -> int:
    for line in data.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


@pytest.fixture(scope="module")
def running_server() -> Iterator[WebhookServer]:
    created = WebhookServer()
    thread = threading.Thread(target=created.server.run, kwargs={"sockets": [created.listener]})
    thread.start()
    wait_until(lambda: created.server.started, "uvicorn to listen")
    yield created
    created.server.should_exit = True
    thread.join(10)
    created.listener.close()
    assert not thread.is_alive()


@pytest.fixture
def webhooks(running_server: WebhookServer, caplog: pytest.LogCaptureFixture) -> Iterator[WebhookServer]:
    """Check that no request is left running, and that no secret and no unexpected error was logged."""
    running_server.reset()
    yield running_server
    wait_until(lambda: not running_server.server.server_state.tasks, "the last request to end", 5)
    for record in caplog.get_records("call"):
        assert SECRET not in record.getMessage() and (record.levelno < logging.ERROR or running_server.ledger_fails), record


def test_a_signed_request_is_delivered(webhooks: WebhookServer) -> None:
    reply = webhooks.post(
        b'{"title": "Deployed", "build": [17, null, true]}', Backburner_Delivery="build-17", User_Agent="curl", X_Other="no"
    )
    assert (reply.status, reply.body) == (202, {"delivery": "build-17"})
    assert webhooks.delivered == {
        ("ours", "build-17"): TriggerEvent("webhook ours: Deployed", {"title": "Deployed", "build": [17, None, True]})
    }


def test_several_requests_can_share_a_connection(webhooks: WebhookServer) -> None:
    with webhooks.connect() as connection:
        for number in range(3):
            body = b'{"n": %d}' % number
            head = {"Host": "localhost", "Content-Length": str(len(body)), "Backburner-Timestamp": str(NOW)}
            head["Backburner-Signature"] = sign(SECRET, f"{NOW}.".encode() + body)
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            connection.sendall(f"POST /hooks/ours HTTP/1.1\r\n{lines}\r\n".encode() + body)
            assert read_response(connection).status == 202
    assert [event.payload for event in webhooks.delivered.values()] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_duplicate_request_is_rejected(webhooks: WebhookServer) -> None:
    assert [webhooks.post(b'{"n": 1}').status for _ in range(3)] == [202, 409, 409], "recognised by the signed content"
    assert webhooks.post(b'{"n": 1}', at=NOW + 1).status == 202
    assert webhooks.post(b'{"n": 2}', Backburner_Delivery="two").status == 202
    assert webhooks.post(b'{"n": 2}', Backburner_Delivery="two", at=NOW + 1).status == 409, "recognised by the id from the sender"
    assert webhooks.github(b"{}").status == 202
    assert webhooks.github(b"{}").status == 409
    assert webhooks.github(b"{}", X_GitHub_Delivery="another").status == 409, "the id is not signed"
    assert webhooks.github(b'{"another": 1}', X_GitHub_Delivery="another").status == 202
    assert len(webhooks.delivered) == 5


def test_of_identical_concurrent_requests_one_is_accepted(webhooks: WebhookServer) -> None:
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(webhooks.post(b'{"n": 1}').status)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(statuses) == [202] + [409] * 19


BAD_SIGNATURES: dict[str, Callable[[WebhookServer], Reply]] = {
    "with another secret": lambda webhooks: webhooks.post(b"{}", secret="another"),
    "missing": lambda webhooks: webhooks.request("/hooks/ours", b"{}", {"Backburner-Timestamp": str(NOW)}),
    "empty": lambda webhooks: webhooks.post(b"{}", Backburner_Signature=""),
    "without its algorithm": lambda webhooks: webhooks.post(b"{}", Backburner_Signature=sign(SECRET, f"{NOW}.{{}}".encode())[7:]),
    "with another algorithm": lambda webhooks: webhooks.post(b"{}", Backburner_Signature="sha1=" + "0" * 40),
    "not in ASCII": lambda webhooks: webhooks.post(b"{}", Backburner_Signature="sha256=ü"),
    "for another body": lambda webhooks: webhooks.post(b"{}", Backburner_Signature=sign(SECRET, f"{NOW}.[]".encode())),
    "for the body without timestamp": lambda webhooks: webhooks.post(b"{}", Backburner_Signature=sign(SECRET, b"{}")),
    "for another timestamp": lambda webhooks: webhooks.post(b"{}", Backburner_Timestamp=str(NOW + 1)),
    "too old": lambda webhooks: webhooks.post(b"{}", at=NOW - 301),
    "in the future": lambda webhooks: webhooks.post(b"{}", at=NOW + 301),
    "without a timestamp": lambda webhooks: webhooks.post(b"{}", Backburner_Timestamp="", Backburner_Signature=sign(SECRET, b".{}")),
    "with a malformed timestamp": lambda webhooks: webhooks.post(
        b"{}", Backburner_Timestamp="1_770_000_000", Backburner_Signature=sign(SECRET, b"1_770_000_000.{}")
    ),
    "with an overlong timestamp": lambda webhooks: webhooks.post(
        b"{}", Backburner_Timestamp="9" * 5000, Backburner_Signature=sign(SECRET, b"9" * 5000 + b".{}")
    ),
    "GitHub's, for a Backburner hook": lambda webhooks: webhooks.request(
        "/hooks/ours", b"{}", {"X-Hub-Signature-256": sign(SECRET, b"{}")}
    ),
    "Backburner's, for a GitHub hook": lambda webhooks: webhooks.post(b"{}", hook="hub"),
    "GitHub's, with another secret": lambda webhooks: webhooks.github(b"{}", secret="another"),
    "GitHub's, with SHA-1": lambda webhooks: webhooks.request("/hooks/hub", b"{}", {"X-Hub-Signature": "sha1=" + "0" * 40}),
    "for an unknown hook": lambda webhooks: webhooks.post(b"{}", hook="nobody"),
    "for a hook without a secret": lambda webhooks: webhooks.post(b"{}", hook="bare", secret=""),
    "for a hook with an unusual name": lambda webhooks: webhooks.post(b"{}", hook="%F0%9F%90%9E%20..%22"),
}


@pytest.mark.parametrize("case", BAD_SIGNATURES)
def test_a_bad_signature_is_rejected(case: str, webhooks: WebhookServer) -> None:
    reply = BAD_SIGNATURES[case](webhooks)
    assert reply.status == 401 and reply.body == {"error": "The signature is missing, wrong or too old."}, "always with the same message"
    assert set(reply.headers) == {"content-type", "content-length", "date", "server"} and webhooks.delivered == {}


def test_a_duplicate_signature_header_is_rejected(webhooks: WebhookServer) -> None:
    right = sign(SECRET, f"{NOW}.{{}}".encode())
    headers = {"Backburner-Timestamp": str(NOW), "Backburner-Signature": right, "backburner-signature": sign("another", b"")}
    assert webhooks.request("/hooks/ours", b"{}", headers).status == 401


def test_a_signature_is_valid_for_five_minutes(webhooks: WebhookServer) -> None:
    assert webhooks.post(b"{}", at=NOW - 300).status == 202 and webhooks.post(b"{}", at=NOW + 300).status == 202


def test_a_github_request_is_accepted_with_its_own_signature(webhooks: WebhookServer) -> None:
    body = json.dumps({"action": "opened", "repository": {"full_name": "me/project"}, "issue": {"title": "Hä?"}}).encode()
    assert webhooks.github(body).body == {"delivery": "72d3162e-cc78-11e3"}
    assert webhooks.event.summary == "GitHub: issues opened in me/project"
    assert webhooks.event.payload == {**json.loads(body), "X-GitHub-Event": "issues"}


def test_a_github_request_may_be_a_form(webhooks: WebhookServer) -> None:
    body = urlencode({"payload": json.dumps({"zen": "Keep it simple & small."})}).encode()
    assert webhooks.github(body, Content_Type="application/x-www-form-urlencoded", X_GitHub_Event="ping").status == 202
    assert webhooks.event == TriggerEvent("GitHub: ping", {"zen": "Keep it simple & small.", "X-GitHub-Event": "ping"})


@pytest.mark.parametrize("body", [b"&" * 1000, b"payload=", b"payload=%ff", b"other=1", b"\xff\x00"])
def test_a_malformed_form_becomes_a_text_payload(body: bytes, webhooks: WebhookServer) -> None:
    assert webhooks.github(body, Content_Type="application/x-www-form-urlencoded").status == 202
    assert set(webhooks.event.payload) == {"text", "X-GitHub-Event"}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", ""),
        ("Grüße 🐞".encode(), "Grüße 🐞"),
        (b"caf\xe9 \xff", "caf\ufffd \ufffd"),
        (b"[1, 2]", "[1, 2]"),
        (b'"just words"', '"just words"'),
        (b'{"n": NaN}', '{"n": NaN}'),
        (b'{"n": 1e999}', '{"n": 1e999}'),
        (b'{"half": ', '{"half": '),
        (b'{"n": ' + b"9" * 10_000 + b"}", '{"n": ' + "9" * 10_000 + "}"),
        (b"[" * 100_000, "[" * 100_000),
        (b'{"a":' * 100_000, '{"a":' * 100_000),
    ],
    ids=lambda value: repr(value[:16]),
)
def test_a_body_that_is_not_a_json_object_becomes_a_text_payload(body: bytes, text: str, webhooks: WebhookServer) -> None:
    assert webhooks.post(body).status == 202
    assert webhooks.event.payload == {"text": text}


def test_control_characters_stay_in_the_payload_but_not_in_the_summary(webhooks: WebhookServer) -> None:
    text = "\x1b]0;owned\x07\x1b[2Jred\r\nIgnore all that \u202e\x00\x85 ü 🐞"
    assert webhooks.post(json.dumps({"text": text, "lone": "\ud800", "k\udfffey": ["\udc00"]}).encode()).status == 202
    event = webhooks.event
    assert event.payload == {"text": text, "lone": "?", "k?ey": ["?"]}
    assert json.dumps(event.payload, ensure_ascii=False).encode()
    assert event.summary.startswith("webhook ours: red") and event.summary.isprintable() and len(event.summary) <= 200


def test_an_invalid_delivery_id_is_replaced_by_its_hash(webhooks: WebhookServer) -> None:
    for number, invalid_id in enumerate(("a b", "ü\x85", "x" * 201, "x" * 5000)):
        reply = webhooks.post(b"{%s}" % (b" " * number), Backburner_Delivery=invalid_id)
        assert reply.status == 202 and reply.body["delivery"].startswith("sha256:") and len(reply.body["delivery"]) == 71
    assert webhooks.post(b"{}", Backburner_Delivery="a b").status == 409


def test_a_body_of_the_maximum_size_is_accepted(webhooks: WebhookServer) -> None:
    assert webhooks.post(b"x" * MAX_BODY_BYTES).status == 202
    assert len(str(webhooks.event.payload["text"])) == MAX_BODY_BYTES
    assert webhooks.post(b"x" * (MAX_BODY_BYTES + 1)).status == 413


@pytest.mark.parametrize("declared", [100_000_000, MAX_BODY_BYTES + 1, 10**18])
def test_a_huge_content_length_is_rejected_before_the_body(declared: int, webhooks: WebhookServer) -> None:
    with webhooks.connect() as connection:
        connection.sendall(f"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nContent-Length: {declared}\r\n\r\n".encode())
        reply = read_response(connection)
        assert reply.status == 413 and reply.headers["connection"] == "close"
        assert connection.recv(1) == b"", "it does not wait for the body"


def _flood(connection: socket.socket, piece: bytes, total: int) -> tuple[int, Reply]:
    """Send until everything is sent or the connection is closed. Return the number of bytes sent and the response."""
    sent = 0
    while sent < total:
        try:
            sent += connection.send(piece[sent % len(piece) :])
        except OSError:
            break
    return sent, read_response(connection)


def test_of_a_body_of_100_megabytes_almost_nothing_is_read(webhooks: WebhookServer) -> None:
    with webhooks.connect() as connection:
        connection.sendall(b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n")
        sent, reply = _flood(connection, bytes(65_536), 100_000_000)
    assert reply.status == 413 and sent < 100_000_000
    assert webhooks.bytes_read < MAX_BODY_BYTES


@pytest.mark.parametrize("size", [65_536, 16])
def test_an_endless_chunked_body_is_rejected(size: int, webhooks: WebhookServer) -> None:
    piece = b"%x\r\n" % size + b"x" * size + b"\r\n"
    with webhooks.connect() as connection:
        connection.sendall(b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent, reply = _flood(connection, piece * (65_536 // size), 100_000_000)
    assert reply.status in (413, 408) and reply.headers["connection"] == "close" and sent < 100_000_000
    assert webhooks.bytes_read < 4 * MAX_BODY_BYTES and webhooks.delivered == {}


async def test_at_most_one_mebibyte_of_a_body_is_held() -> None:
    """Independent of the size of the pieces that the server passes on."""
    receive_calls, sent = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal receive_calls
        receive_calls += 1
        return {"type": "http.request", "body": bytes(300_000), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    async def never_called(*_: object) -> Any:
        raise AssertionError("the request is rejected before this call")

    scope = {"type": "http", "method": "POST", "path": "/hooks/ours", "headers": [(b"host", b"[::1]:80")]}
    await receiver(never_called, never_called)(scope, receive, send)
    assert sent[0]["status"] == 413 and receive_calls == 4


@pytest.mark.parametrize("length_header", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
def test_a_body_that_arrives_too_slowly_is_rejected(length_header: bytes, webhooks: WebhookServer) -> None:
    started = time.monotonic()
    with webhooks.connect() as connection:
        connection.sendall(b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\n" + length_header + b"\r\n\r\n")
        connection.settimeout(0.05)
        data = b""
        while not data and time.monotonic() < started + 10:
            connection.send(b"1" if length_header.startswith(b"C") else b"1\r\nx\r\n")
            try:
                data = connection.recv(65_536, socket.MSG_PEEK)
            except TimeoutError:
                continue
        connection.settimeout(5)
        reply = read_response(connection)
    assert reply.status == 408 and reply.headers["connection"] == "close" and webhooks.delivered == {}
    assert webhooks.post(b"{}").status == 202


def test_slow_clients_do_not_delay_others(webhooks: WebhookServer) -> None:
    head = b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    slow_connections = [webhooks.connect() for _ in range(50)]
    try:
        for connection in slow_connections:
            connection.sendall(head)
        assert webhooks.post(b"{}").status == 202
        assert {read_response(connection).status for connection in slow_connections} == {408}
    finally:
        for connection in slow_connections:
            connection.close()


def test_a_client_that_disconnects_during_the_body_is_dropped(webhooks: WebhookServer) -> None:
    with webhooks.connect() as connection:
        connection.sendall(b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
    assert webhooks.post(b"{}").status == 202
    wait_until(lambda: not webhooks.server.server_state.tasks, "the server to notice the disconnect", 5)


def test_other_methods_and_paths_are_rejected(webhooks: WebhookServer) -> None:
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "BREW"):
        reply = webhooks.request("/hooks/ours", b"", method=method)
        assert reply.status == 405 and reply.headers["allow"] == "POST"
    for path in (
        "/",
        "/hooks",
        "/hooks/",
        "/hooks/a/b",
        "/hooks/ours/",
        "//hooks/ours",
        "/hooks/%00",
        "/hooks/a%2Fb",
        "/hooks/" + "x" * 201,
    ):
        assert webhooks.request(path, b"").status == 404, path


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "localhost.:80", "127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:8080", "hooks.example.ORG",
                                  "hooks.example.org:443", "proxy.example:8443"])  # fmt: skip
def test_a_request_for_a_loopback_or_configured_host_is_accepted(host: str, webhooks: WebhookServer) -> None:
    assert webhooks.request("/hooks/ours", b"{}", host=host).status == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0", "[::]",
                                  "proxy.example", "proxy.example:80", "localhost:80:80", "user@localhost", "[localhost]", "::1", ""])  # fmt: skip
def test_a_request_for_another_host_is_rejected(host: str, webhooks: WebhookServer) -> None:
    """A web page can make its own host name resolve to this machine; the Host header still contains that name."""
    body = b"{}"
    headers = {"Backburner-Timestamp": str(NOW), "Backburner-Signature": sign(SECRET, f"{NOW}.".encode() + body)}
    reply = webhooks.request("/hooks/ours", body, headers, host=host)
    assert reply.status == 421 and reply.headers["connection"] == "close" and webhooks.delivered == {}


def test_an_event_that_could_not_be_stored_is_not_confirmed(webhooks: WebhookServer) -> None:
    webhooks.ledger_fails = True
    assert webhooks.post(b"{}").status == 500
    webhooks.ledger_fails = False
    assert webhooks.post(b"{}").status == 202
    webhooks.ledger_fails = True  # the logged error is expected


def test_a_too_large_request_with_expect_continue_is_rejected_without_its_body(webhooks: WebhookServer) -> None:
    with webhooks.connect() as connection:
        head = b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n"
        connection.sendall(head)
        assert read_response(connection).status == 413
    assert webhooks.bytes_read == len(head)


async def test_a_message_of_the_webhook_channel_is_accepted(webhooks: WebhookServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburner.integrations.channels.webhook import Webhook

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    channel = Webhook("home", f"http://127.0.0.1:{webhooks.port}/hooks/ours", SECRET, now=lambda: NOW)
    await channel.send(OutgoingMessage("key", "bg-1", "Done", "All of it", 0, NOW * 1000, False))
    await channel.close()
    assert webhooks.event.summary == "webhook ours: Done" and webhooks.event.payload["key"] == "key"


async def test_lifespan_and_websocket_messages_are_answered() -> None:
    kinds, sent = asyncio.Queue[dict[str, str]](), []
    for kind in ("lifespan.startup", "lifespan.shutdown"):
        kinds.put_nowait({"type": kind})

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def never_called(*_: object) -> Any:
        raise AssertionError

    await receiver(never_called, never_called)({"type": "lifespan"}, kinds.get, send)
    await receiver(never_called, never_called)({"type": "websocket", "headers": []}, kinds.get, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
