"""The webhook channel against a real HTTP endpoint on loopback: signed, told apart from others by its key, and tried again where that helps."""

import asyncio
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest
from conftest import wait_until

from backburner.core.ports import DeliveryFailed, OutgoingMessage
from backburner.integrations.channels.webhook import Webhook, open_channel

SECRET = "s3cret-for-signing"
LETTER = OutgoingMessage("bg-1a2b:ended", "bg-1a2b", "Nightly tests", "3 tests failed: 🐞 \x1b[31m\x00 ü", 1, 1_770_000_000_123, False)


class Request(NamedTuple):
    path: str
    headers: Message
    body: bytes


class Endpoint:
    """Answers each request with the next of `answers`, the last of them for ever; keeps what came in."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = [(204, {}, b"")]
        self.written = 0
        self.endless = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.requests.append(Request(self.path, self.headers, body))
                status, headers, said = endpoint.answers.pop(0) if len(endpoint.answers) > 1 else endpoint.answers[0]
                self.send_response(status)
                for name, value in {"Content-Length": str(len(said)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for start in range(0, len(said), 65_536):
                        self.wfile.write(said[start : start + 65_536])
                        endpoint.written += len(said[start : start + 65_536])
                except OSError:
                    endpoint.endless.set()
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/in/t0ken-in-path"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(5)


def _channel(endpoint: Endpoint) -> Webhook:
    settings = {"type": "webhook", "url": endpoint.url, "secret_env": "HOOK_SECRET"}
    return open_channel("ops", settings, {"HOOK_SECRET": SECRET})


async def _refused(channel: Webhook) -> DeliveryFailed:
    try:
        with pytest.raises(DeliveryFailed) as caught:
            await channel.send(LETTER)
    finally:
        await channel.close()
    assert "t0ken" not in str(caught.value) and SECRET not in str(caught.value)
    return caught.value


def _is_signed(request: Request, secret: str = SECRET) -> bool:
    signed = request.headers["Backburner-Timestamp"].encode() + b"." + request.body
    return request.headers["Backburner-Signature"] == "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


async def test_a_letter_is_posted_as_json_and_signed(endpoint: Endpoint) -> None:
    channel = _channel(endpoint)
    assert await channel.send(LETTER) is None
    await channel.close()
    [request] = endpoint.requests
    assert json.loads(request.body) == {
        "key": "bg-1a2b:ended",
        "task_id": "bg-1a2b",
        "title": "Nightly tests",
        "text": LETTER.text,
        "priority": 1,
        "created_at": "2026-02-02T02:40:00.123Z",
        "question": False,
    }
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Idempotency-Key"] == "bg-1a2b:ended"
    assert _is_signed(request) and not _is_signed(request, "another")


async def test_an_endpoint_that_fails_nine_times_gets_one_letter_under_one_key(endpoint: Endpoint) -> None:
    fails = [(status, {}, b"not now") for status in (500, 502, 503, 504, 429, 408, 425, 599, 500)]
    endpoint.answers = [*fails, (200, {}, b"ok")]
    channel, attempts = _channel(endpoint), 0
    while attempts < 20:
        attempts += 1
        try:
            await channel.send(LETTER)
            break
        except DeliveryFailed as error:
            assert not error.for_good and "not now" in str(error)
    await channel.close()
    assert attempts == 10 and len(endpoint.requests) == 10
    assert {request.headers["Idempotency-Key"] for request in endpoint.requests} == {LETTER.key}
    assert len({request.body for request in endpoint.requests}) == 1 and all(map(_is_signed, endpoint.requests))


async def test_a_letter_without_a_secret_is_not_signed(endpoint: Endpoint) -> None:
    channel = open_channel("ops", {"type": "webhook", "url": endpoint.url}, {"": "nonsense"})
    await channel.send(LETTER)
    await channel.close()
    assert "Backburner-Signature" not in endpoint.requests[0].headers


async def test_a_secret_that_is_named_but_not_set_sends_nothing_unsigned(endpoint: Endpoint) -> None:
    error = await _refused(open_channel("ops", {"url": endpoint.url, "secret_env": "HOOK_SECRET"}, {}))
    assert str(error) == "HOOK_SECRET is not set, which [channels.ops] names for its secret"
    assert not error.for_good and endpoint.requests == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 451])
async def test_what_the_other_side_will_never_take_is_given_up(endpoint: Endpoint, status: int) -> None:
    endpoint.answers = [(status, {"Retry-After": "5"}, b"no \x1b[2Jsuch\nthing")]
    error = await _refused(_channel(endpoint))
    assert error.for_good and error.retry_after is None
    assert str(error).endswith(f"answered {status}: no such thing")


def _in(seconds: int) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        (lambda: "7", 7, 7),
        (lambda: "0", 0, 0),
        (lambda: _in(120), 60, 121),
        (lambda: _in(-500), 0, 0),
        (lambda: "9" * 50, 86_400, 86_400),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_the_wait_that_the_other_side_asks_for_is_handed_on(
    endpoint: Endpoint, status: int, given: Callable[[], str], least: float, most: float
) -> None:
    endpoint.answers = [(status, {"Retry-After": given()}, b"")]
    error = await _refused(_channel(endpoint))
    assert not error.for_good and error.retry_after is not None and least <= error.retry_after <= most


@pytest.mark.parametrize("nonsense", ["soon", "-5", "1e9", "nan", ""])
async def test_a_wait_that_makes_no_sense_is_none(endpoint: Endpoint, nonsense: str) -> None:
    endpoint.answers = [(429, {"Retry-After": nonsense}, b"")]
    error = await _refused(_channel(endpoint))
    assert not error.for_good and error.retry_after is None


async def test_redirects_are_not_followed(endpoint: Endpoint) -> None:
    endpoint.answers = [(307, {"Location": endpoint.url + "/elsewhere"}, b""), (204, {}, b"")]
    error = await _refused(_channel(endpoint))
    assert len(endpoint.requests) == 1 and not error.for_good and "redirects are not followed" in str(error)


@pytest.mark.parametrize("status", [200, 500])
async def test_a_huge_answer_is_not_read(endpoint: Endpoint, status: int) -> None:
    endpoint.answers = [(status, {}, bytes(100_000_000))]
    channel = _channel(endpoint)
    if status == 200:
        await channel.send(LETTER)
        await channel.close()
    else:
        await _refused(channel)
    wait_until(endpoint.endless.is_set, "the endpoint to see that nobody listens", 5)
    assert endpoint.written < 40_000_000, "more than the buffers of the system hold"


async def test_an_endpoint_that_never_answers_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/in/t0ken-in-path"
        error = await _refused(Webhook("ops", url, seconds=0.2))
    assert not error.for_good and "did not answer within 0.2 seconds" in str(error)


async def test_an_endpoint_that_drips_its_answer_is_left_in_time() -> None:
    """Every byte comes before a client would lose its patience, the last of them never."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stop = threading.Event()

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                while not stop.wait(0.02):
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            error = await asyncio.wait_for(_refused(Webhook("ops", f"http://127.0.0.1:{listening.getsockname()[1]}/", seconds=0.3)), 5)
        finally:
            stop.set()
            thread.join(5)
    assert not error.for_good


async def test_an_endpoint_that_is_not_there_is_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    error = await _refused(Webhook("ops", f"http://user:t0ken@127.0.0.1:{port}/t0ken"))
    assert not error.for_good and f"127.0.0.1:{port} could not be reached" in str(error)


@pytest.mark.parametrize("url", ["", "t0ken", "ftp://127.0.0.1/t0ken", "http://", "http://[t0ken", "https:///t0ken", "file:///etc/passwd"])
async def test_a_url_that_is_none_is_given_up_in_one_sentence(url: str) -> None:
    error = await _refused(open_channel("ops", {"url": url}, {}))
    assert error.for_good and str(error) == "the url of [channels.ops] is not an http:// or https:// address"


async def test_nobody_answers_to_a_webhook(endpoint: Endpoint) -> None:
    channel = _channel(endpoint)
    assert [answer async for answer in channel.answers()] == []
    await channel.close()
    await channel.close()
