"""The receiver of webhooks behind a real uvicorn on loopback: only what is signed, new, small and quick gets in."""

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
from backburner.integrations.sources.webhook import MOST_BYTES, Hook, receiver

SECRET = "s3cret-of-the-hook"
NOW = 1_770_000_000
HOOKS = {hook.name: hook for hook in (Hook("ours", SECRET, "backburner"), Hook("hub", SECRET, "github"), Hook("bare", "", "backburner"))}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: dict[str, str]


class House:
    """A receiver, what it handed on, and how many bytes the server took from the network."""

    def __init__(self) -> None:
        self.forget()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        house = self

        class Counted(H11Protocol):
            def data_received(self, data: bytes) -> None:
                house.read += len(data)
                super().data_received(data)

        app = receiver(self._hook, self._deliver, lambda: NOW, hosts={"Hooks.Example.org", "proxy.example:8443"}, body_seconds=1.0)
        self.server = uvicorn.Server(uvicorn.Config(app, http=Counted, ws="none", log_config=None, access_log=False))

    def forget(self) -> None:
        self.taken: dict[tuple[str, str], TriggerEvent] = {}
        self.known: set[tuple[str, str]] = set()
        self.read = 0
        self.broken = False

    async def _hook(self, name: str) -> Hook | None:
        return HOOKS.get(name)

    async def _deliver(self, name: str, delivery_id: str, happening: TriggerEvent) -> bool:
        if self.broken:
            raise OSError("the ledger is full")
        ids = {(name, one) for one in delivery_id.split("\n")}
        if ids & self.known:
            return False
        self.known |= ids
        self.taken[name, delivery_id.split("\n")[0]] = happening
        return True

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def ask(self, path: str, body: bytes, headers: dict[str, str] | None = None, *, method: str = "POST", host: str | None = None) -> Reply:
        """One request on a connection of its own."""
        lines = {"Host": f"127.0.0.1:{self.port}" if host is None else host, "Content-Length": str(len(body)), **(headers or {})}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
        with self.connect() as connection:
            connection.sendall(head.encode("latin-1") + body)
            return answer_of(connection)

    def post(self, body: bytes, *, hook: str = "ours", secret: str = SECRET, at: int = NOW, **headers: str) -> Reply:
        """A request as our own senders sign it; `headers` are added, or replace what would be there."""
        signed = {"Backburner-Timestamp": str(at), "Backburner-Signature": sign(secret, f"{at}.".encode() + body)}
        return self.ask(f"/hooks/{hook}", body, {**signed, **{name.replace("_", "-"): value for name, value in headers.items()}})

    def github(self, body: bytes, *, secret: str = SECRET, **headers: str) -> Reply:
        given = {"X-Hub-Signature-256": sign(secret, body), "X-GitHub-Event": "issues", "X-GitHub-Delivery": "72d3162e-cc78-11e3"}
        return self.ask("/hooks/hub", body, {**given, **{name.replace("_", "-"): value for name, value in headers.items()}})

    @property
    def happened(self) -> TriggerEvent:
        [one] = self.taken.values()
        return one


def sign(secret: str, signed: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def answer_of(connection: socket.socket) -> Reply:
    """What the server says; the connection may be closed right behind it."""
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
def served() -> Iterator[House]:
    made = House()
    thread = threading.Thread(target=made.server.run, kwargs={"sockets": [made.listening]})
    thread.start()
    wait_until(lambda: made.server.started, "uvicorn to listen", 10)
    yield made
    made.server.should_exit = True
    thread.join(10)
    made.listening.close()
    assert not thread.is_alive()


@pytest.fixture
def house(served: House, caplog: pytest.LogCaptureFixture) -> Iterator[House]:
    """Nothing that a test does is left at work, and nothing of it was logged but what was meant to break."""
    served.forget()
    yield served
    wait_until(lambda: not served.server.server_state.tasks, "the last request to end", 5)
    for record in caplog.get_records("call"):
        assert SECRET not in record.getMessage() and (record.levelno < logging.ERROR or served.broken), record


def test_a_signed_delivery_is_handed_on(house: House) -> None:
    reply = house.post(b'{"title": "Deployed", "build": [17, null, true]}', Backburner_Delivery="build-17", User_Agent="curl", X_Other="no")
    assert (reply.status, reply.body) == (202, {"delivery": "build-17"})
    assert house.taken == {("ours", "build-17"): TriggerEvent("webhook ours: Deployed", {"title": "Deployed", "build": [17, None, True]})}


def test_several_deliveries_can_share_a_connection(house: House) -> None:
    with house.connect() as connection:
        for number in range(3):
            body = b'{"n": %d}' % number
            head = {"Host": "localhost", "Content-Length": str(len(body)), "Backburner-Timestamp": str(NOW)}
            head["Backburner-Signature"] = sign(SECRET, f"{NOW}.".encode() + body)
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            connection.sendall(f"POST /hooks/ours HTTP/1.1\r\n{lines}\r\n".encode() + body)
            assert answer_of(connection).status == 202
    assert [happening.payload for happening in house.taken.values()] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_repeated_delivery_is_refused(house: House) -> None:
    assert [house.post(b'{"n": 1}').status for _ in range(3)] == [202, 409, 409], "known by what was signed"
    assert house.post(b'{"n": 1}', at=NOW + 1).status == 202
    assert house.post(b'{"n": 2}', Backburner_Delivery="two").status == 202
    assert house.post(b'{"n": 2}', Backburner_Delivery="two", at=NOW + 1).status == 409, "known by how its sender calls it"
    assert house.github(b"{}").status == 202
    assert house.github(b"{}").status == 409
    assert house.github(b"{}", X_GitHub_Delivery="another").status == 409, "its id is not signed"
    assert house.github(b'{"another": 1}', X_GitHub_Delivery="another").status == 202
    assert len(house.taken) == 5


def test_of_many_at_once_one_is_taken(house: House) -> None:
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(house.post(b'{"n": 1}').status)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(statuses) == [202] + [409] * 19


BAD: dict[str, Callable[[House], Reply]] = {
    "of another secret": lambda house: house.post(b"{}", secret="another"),
    "missing": lambda house: house.ask("/hooks/ours", b"{}", {"Backburner-Timestamp": str(NOW)}),
    "empty": lambda house: house.post(b"{}", Backburner_Signature=""),
    "without its kind": lambda house: house.post(b"{}", Backburner_Signature=sign(SECRET, f"{NOW}.{{}}".encode())[7:]),
    "of another kind": lambda house: house.post(b"{}", Backburner_Signature="sha1=" + "0" * 40),
    "not in ASCII": lambda house: house.post(b"{}", Backburner_Signature="sha256=ü"),
    "of another body": lambda house: house.post(b"{}", Backburner_Signature=sign(SECRET, f"{NOW}.[]".encode())),
    "of the body alone": lambda house: house.post(b"{}", Backburner_Signature=sign(SECRET, b"{}")),
    "of another time": lambda house: house.post(b"{}", Backburner_Timestamp=str(NOW + 1)),
    "too old": lambda house: house.post(b"{}", at=NOW - 301),
    "of the future": lambda house: house.post(b"{}", at=NOW + 301),
    "of no time": lambda house: house.post(b"{}", Backburner_Timestamp="", Backburner_Signature=sign(SECRET, b".{}")),
    "of a strange time": lambda house: house.post(
        b"{}", Backburner_Timestamp="1_770_000_000", Backburner_Signature=sign(SECRET, b"1_770_000_000.{}")
    ),
    "of an endless time": lambda house: house.post(
        b"{}", Backburner_Timestamp="9" * 5000, Backburner_Signature=sign(SECRET, b"9" * 5000 + b".{}")
    ),
    "GitHub's, for ours": lambda house: house.ask("/hooks/ours", b"{}", {"X-Hub-Signature-256": sign(SECRET, b"{}")}),
    "ours, for GitHub": lambda house: house.post(b"{}", hook="hub"),
    "GitHub's of another secret": lambda house: house.github(b"{}", secret="another"),
    "GitHub's old kind": lambda house: house.ask("/hooks/hub", b"{}", {"X-Hub-Signature": "sha1=" + "0" * 40}),
    "for a hook that is not there": lambda house: house.post(b"{}", hook="nobody"),
    "for a hook without a secret": lambda house: house.post(b"{}", hook="bare", secret=""),
    "for a hook called strangely": lambda house: house.post(b"{}", hook="%F0%9F%90%9E%20..%22"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_signature_is_refused_when_it_is(case: str, house: House) -> None:
    reply = BAD[case](house)
    assert reply.status == 401 and reply.body == {"error": "The signature is missing, wrong or too old."}, "and always in the same words"
    assert set(reply.headers) == {"content-type", "content-length", "date", "server"} and house.taken == {}


def test_a_signature_that_comes_twice_is_none(house: House) -> None:
    right = sign(SECRET, f"{NOW}.{{}}".encode())
    headers = {"Backburner-Timestamp": str(NOW), "Backburner-Signature": right, "backburner-signature": sign("another", b"")}
    assert house.ask("/hooks/ours", b"{}", headers).status == 401


def test_a_signature_is_good_for_five_minutes(house: House) -> None:
    assert house.post(b"{}", at=NOW - 300).status == 202 and house.post(b"{}", at=NOW + 300).status == 202


def test_github_is_known_by_its_own_signature(house: House) -> None:
    body = json.dumps({"action": "opened", "repository": {"full_name": "me/project"}, "issue": {"title": "Hä?"}}).encode()
    assert house.github(body).body == {"delivery": "72d3162e-cc78-11e3"}
    assert house.happened.summary == "GitHub: issues opened in me/project"
    assert house.happened.payload == {**json.loads(body), "X-GitHub-Event": "issues"}


def test_github_may_send_a_form(house: House) -> None:
    body = urlencode({"payload": json.dumps({"zen": "Keep it simple & small."})}).encode()
    assert house.github(body, Content_Type="application/x-www-form-urlencoded", X_GitHub_Event="ping").status == 202
    assert house.happened == TriggerEvent("GitHub: ping", {"zen": "Keep it simple & small.", "X-GitHub-Event": "ping"})


@pytest.mark.parametrize("body", [b"&" * 1000, b"payload=", b"payload=%ff", b"other=1", b"\xff\x00"])
def test_a_strange_form_is_a_text(body: bytes, house: House) -> None:
    assert house.github(body, Content_Type="application/x-www-form-urlencoded").status == 202
    assert set(house.happened.payload) == {"text", "X-GitHub-Event"}


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
def test_what_is_not_a_json_object_is_a_text(body: bytes, text: str, house: House) -> None:
    assert house.post(body).status == 202
    assert house.happened.payload == {"text": text}


def test_control_characters_stay_data_and_never_reach_the_line_for_people(house: House) -> None:
    text = "\x1b]0;owned\x07\x1b[2Jred\r\nIgnore all that \u202e\x00\x85 ü 🐞"
    assert house.post(json.dumps({"text": text, "lone": "\ud800", "k\udfffey": ["\udc00"]}).encode()).status == 202
    happening = house.happened
    assert happening.payload == {"text": text, "lone": "?", "k?ey": ["?"]}
    assert json.dumps(happening.payload, ensure_ascii=False).encode()
    assert happening.summary.startswith("webhook ours: red") and happening.summary.isprintable() and len(happening.summary) <= 200


def test_a_strange_delivery_id_is_kept_as_its_hash(house: House) -> None:
    for number, strange in enumerate(("a b", "ü\x85", "x" * 201, "x" * 5000)):
        reply = house.post(b"{%s}" % (b" " * number), Backburner_Delivery=strange)
        assert reply.status == 202 and reply.body["delivery"].startswith("sha256:") and len(reply.body["delivery"]) == 71
    assert house.post(b"{}", Backburner_Delivery="a b").status == 409


def test_the_largest_body_is_taken(house: House) -> None:
    assert house.post(b"x" * MOST_BYTES).status == 202
    assert len(str(house.happened.payload["text"])) == MOST_BYTES
    assert house.post(b"x" * (MOST_BYTES + 1)).status == 413


@pytest.mark.parametrize("announced", [100_000_000, MOST_BYTES + 1, 10**18])
def test_a_huge_body_is_refused_before_it_is_sent(announced: int, house: House) -> None:
    with house.connect() as connection:
        connection.sendall(f"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nContent-Length: {announced}\r\n\r\n".encode())
        reply = answer_of(connection)
        assert reply.status == 413 and reply.headers["connection"] == "close"
        assert connection.recv(1) == b"", "it does not wait for the rest"


def _flood(connection: socket.socket, piece: bytes, total: int) -> tuple[int, Reply]:
    """Send until everything is gone or nobody takes any more; how much that was, and the answer."""
    sent = 0
    while sent < total:
        try:
            sent += connection.send(piece[sent % len(piece) :])
        except OSError:
            break
    return sent, answer_of(connection)


def test_of_100_megabytes_next_to_nothing_is_read(house: House) -> None:
    with house.connect() as connection:
        connection.sendall(b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n")
        sent, reply = _flood(connection, bytes(65_536), 100_000_000)
    assert reply.status == 413 and sent < 100_000_000
    assert house.read < MOST_BYTES


@pytest.mark.parametrize("size", [65_536, 16])
def test_a_flood_in_chunks_is_cut_off(size: int, house: House) -> None:
    piece = b"%x\r\n" % size + b"x" * size + b"\r\n"
    with house.connect() as connection:
        connection.sendall(b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent, reply = _flood(connection, piece * (65_536 // size), 100_000_000)
    assert reply.status in (413, 408) and reply.headers["connection"] == "close" and sent < 100_000_000
    assert house.read < 4 * MOST_BYTES and house.taken == {}


async def test_no_more_than_one_mebibyte_is_held_of_a_flood() -> None:
    """Whatever the server hands over at once."""
    asked, said = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": bytes(300_000), "more_body": True}

    async def send(message: Any) -> None:
        said.append(message)

    async def nothing(*_: object) -> Any:
        raise AssertionError("it is refused before")

    scope = {"type": "http", "method": "POST", "path": "/hooks/ours", "headers": [(b"host", b"[::1]:80")]}
    await receiver(nothing, nothing)(scope, receive, send)
    assert said[0]["status"] == 413 and asked == 4


@pytest.mark.parametrize("how", [b"Content-Length: 100", b"Transfer-Encoding: chunked"])
def test_a_body_that_comes_too_slowly_is_not_waited_for(how: bytes, house: House) -> None:
    began = time.monotonic()
    with house.connect() as connection:
        connection.sendall(b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\n" + how + b"\r\n\r\n")
        connection.settimeout(0.05)
        data = b""
        while not data and time.monotonic() < began + 10:
            connection.send(b"1" if how.startswith(b"C") else b"1\r\nx\r\n")
            try:
                data = connection.recv(65_536, socket.MSG_PEEK)
            except TimeoutError:
                continue
        connection.settimeout(5)
        reply = answer_of(connection)
    assert reply.status == 408 and reply.headers["connection"] == "close" and house.taken == {}
    assert house.post(b"{}").status == 202


def test_many_slow_callers_do_not_hold_up_others(house: House) -> None:
    head = b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    slow = [house.connect() for _ in range(50)]
    try:
        for connection in slow:
            connection.sendall(head)
        assert house.post(b"{}").status == 202
        assert {answer_of(connection).status for connection in slow} == {408}
    finally:
        for connection in slow:
            connection.close()


def test_who_goes_away_in_the_middle_is_forgotten(house: House) -> None:
    with house.connect() as connection:
        connection.sendall(b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
    assert house.post(b"{}").status == 202
    wait_until(lambda: not house.server.server_state.tasks, "the server to see it", 5)


def test_other_methods_and_paths_are_refused(house: House) -> None:
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "BREW"):
        reply = house.ask("/hooks/ours", b"", method=method)
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
        assert house.ask(path, b"").status == 404, path


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "localhost.:80", "127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:8080", "hooks.example.ORG",
                                  "hooks.example.org:443", "proxy.example:8443"])  # fmt: skip
def test_a_request_for_this_machine_is_taken(host: str, house: House) -> None:
    assert house.ask("/hooks/ours", b"{}", host=host).status == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0", "[::]",
                                  "proxy.example", "proxy.example:80", "localhost:80:80", "user@localhost", "[localhost]", "::1", ""])  # fmt: skip
def test_a_request_for_another_host_is_refused(host: str, house: House) -> None:
    """A page in a browser can bend a name of its own to this machine; the name then still says whose it is."""
    body = b"{}"
    headers = {"Backburner-Timestamp": str(NOW), "Backburner-Signature": sign(SECRET, f"{NOW}.".encode() + body)}
    reply = house.ask("/hooks/ours", body, headers, host=host)
    assert reply.status == 421 and reply.headers["connection"] == "close" and house.taken == {}


def test_what_could_not_be_kept_is_not_said_to_be_taken(house: House) -> None:
    house.broken = True
    assert house.post(b"{}").status == 500
    house.broken = False
    assert house.post(b"{}").status == 202
    house.broken = True  # what it logged is meant


def test_a_client_that_asks_before_it_sends_is_refused_without_its_body(house: House) -> None:
    with house.connect() as connection:
        head = b"POST /hooks/ours HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n"
        connection.sendall(head)
        assert answer_of(connection).status == 413
    assert house.read == len(head)


async def test_a_letter_of_our_own_channel_is_taken(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    from backburner.integrations.channels.webhook import Webhook

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    channel = Webhook("home", f"http://127.0.0.1:{house.port}/hooks/ours", SECRET, now=lambda: NOW)
    await channel.send(OutgoingMessage("key", "bg-1", "Done", "All of it", 0, NOW * 1000, False))
    await channel.close()
    assert house.happened.summary == "webhook ours: Done" and house.happened.payload["key"] == "key"


async def test_a_server_that_asks_how_it_is_gets_an_answer() -> None:
    kinds, said = asyncio.Queue[dict[str, str]](), []
    for kind in ("lifespan.startup", "lifespan.shutdown"):
        kinds.put_nowait({"type": kind})

    async def send(message: Any) -> None:
        said.append(message["type"])

    async def nothing(*_: object) -> Any:
        raise AssertionError

    await receiver(nothing, nothing)({"type": "lifespan"}, kinds.get, send)
    await receiver(nothing, nothing)({"type": "websocket", "headers": []}, kinds.get, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
