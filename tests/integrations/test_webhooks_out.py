"""The webhook channel against a real HTTP endpoint on loopback: signatures, idempotency keys, and temporary and permanent errors."""

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
MESSAGE = OutgoingMessage("bg-1a2b:ended", "bg-1a2b", "Nightly tests", "3 tests failed: 🐞 \x1b[31m\x00 ü", 1, 1_770_000_000_123, False)


class Request(NamedTuple):
    path: str
    headers: Message
    body: bytes


class Endpoint:
    """Answers each request with the next of `responses` and repeats the last one. Keeps all requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.responses: list[tuple[int, dict[str, str], bytes]] = [(204, {}, b"")]
        self.written = 0
        self.client_disconnected = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.requests.append(Request(self.path, self.headers, body))
                status, headers, content = endpoint.responses.pop(0) if len(endpoint.responses) > 1 else endpoint.responses[0]
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for start in range(0, len(content), 65_536):
                        self.wfile.write(content[start : start + 65_536])
                        endpoint.written += len(content[start : start + 65_536])
                except OSError:
                    endpoint.client_disconnected.set()
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/in/t0ken-in-path"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    created = Endpoint()
    thread = threading.Thread(target=created.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield created
    created.server.shutdown()
    created.server.server_close()
    thread.join(5)


def _channel(endpoint: Endpoint) -> Webhook:
    settings = {"type": "webhook", "url": endpoint.url, "secret_env": "HOOK_SECRET"}
    return open_channel("ops", settings, {"HOOK_SECRET": SECRET})


async def _send_and_fail(channel: Webhook) -> DeliveryFailed:
    try:
        with pytest.raises(DeliveryFailed) as caught:
            await channel.send(MESSAGE)
    finally:
        await channel.close()
    assert "t0ken" not in str(caught.value) and SECRET not in str(caught.value)
    return caught.value


def _is_signed(request: Request, secret: str = SECRET) -> bool:
    signed = request.headers["Backburner-Timestamp"].encode() + b"." + request.body
    return request.headers["Backburner-Signature"] == "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


async def test_a_message_is_posted_as_signed_json(endpoint: Endpoint) -> None:
    channel = _channel(endpoint)
    assert await channel.send(MESSAGE) is None
    await channel.close()
    [request] = endpoint.requests
    assert json.loads(request.body) == {
        "key": "bg-1a2b:ended",
        "task_id": "bg-1a2b",
        "title": "Nightly tests",
        "text": MESSAGE.text,
        "priority": 1,
        "created_at": "2026-02-02T02:40:00.123Z",
        "question": False,
    }
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Idempotency-Key"] == "bg-1a2b:ended"
    assert _is_signed(request) and not _is_signed(request, "another")


async def test_retries_to_a_failing_endpoint_use_one_key(endpoint: Endpoint) -> None:
    failures = [(status, {}, b"not now") for status in (500, 502, 503, 504, 429, 408, 425, 599, 500)]
    endpoint.responses = [*failures, (200, {}, b"ok")]
    channel, attempts = _channel(endpoint), 0
    while attempts < 20:
        attempts += 1
        try:
            await channel.send(MESSAGE)
            break
        except DeliveryFailed as error:
            assert not error.permanent and "not now" in str(error)
    await channel.close()
    assert attempts == 10 and len(endpoint.requests) == 10
    assert {request.headers["Idempotency-Key"] for request in endpoint.requests} == {MESSAGE.key}
    assert len({request.body for request in endpoint.requests}) == 1 and all(map(_is_signed, endpoint.requests))


async def test_without_a_secret_messages_are_not_signed(endpoint: Endpoint) -> None:
    channel = open_channel("ops", {"type": "webhook", "url": endpoint.url}, {"": "unused"})
    await channel.send(MESSAGE)
    await channel.close()
    assert "Backburner-Signature" not in endpoint.requests[0].headers


async def test_nothing_is_sent_if_the_secret_variable_is_not_set(endpoint: Endpoint) -> None:
    error = await _send_and_fail(open_channel("ops", {"url": endpoint.url, "secret_env": "HOOK_SECRET"}, {}))
    assert str(error) == "environment variable HOOK_SECRET is not set (secret of [channels.ops])"
    assert not error.permanent and endpoint.requests == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422, 451])
async def test_a_4xx_status_is_a_permanent_error(endpoint: Endpoint, status: int) -> None:
    endpoint.responses = [(status, {"Retry-After": "5"}, b"no \x1b[2Jsuch\nthing")]
    error = await _send_and_fail(_channel(endpoint))
    assert error.permanent and error.retry_after is None
    assert str(error).endswith(f"answered {status}: no such thing")


def _in(seconds: int) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("header", "minimum", "maximum"),
    [
        (lambda: "7", 7, 7),
        (lambda: "0", 0, 0),
        (lambda: _in(120), 60, 121),
        (lambda: _in(-500), 0, 0),
        (lambda: "9" * 50, 86_400, 86_400),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_reported(endpoint: Endpoint, status: int, header: Callable[[], str], minimum: float, maximum: float) -> None:
    endpoint.responses = [(status, {"Retry-After": header()}, b"")]
    error = await _send_and_fail(_channel(endpoint))
    assert not error.permanent and error.retry_after is not None and minimum <= error.retry_after <= maximum


@pytest.mark.parametrize("value", ["soon", "-5", "1e9", "nan", ""])
async def test_an_invalid_retry_after_is_ignored(endpoint: Endpoint, value: str) -> None:
    endpoint.responses = [(429, {"Retry-After": value}, b"")]
    error = await _send_and_fail(_channel(endpoint))
    assert not error.permanent and error.retry_after is None


async def test_redirects_are_not_followed(endpoint: Endpoint) -> None:
    endpoint.responses = [(307, {"Location": endpoint.url + "/elsewhere"}, b""), (204, {}, b"")]
    error = await _send_and_fail(_channel(endpoint))
    assert len(endpoint.requests) == 1 and not error.permanent and "redirects are not followed" in str(error)


@pytest.mark.parametrize("status", [200, 500])
async def test_a_huge_response_is_not_read(endpoint: Endpoint, status: int) -> None:
    endpoint.responses = [(status, {}, bytes(100_000_000))]
    channel = _channel(endpoint)
    if status == 200:
        await channel.send(MESSAGE)
        await channel.close()
    else:
        await _send_and_fail(channel)
    wait_until(endpoint.client_disconnected.is_set, "the endpoint to see the closed connection", 5)
    assert endpoint.written < 40_000_000, "at most what socket buffers hold"


async def test_an_endpoint_that_never_answers_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        url = f"http://127.0.0.1:{server_socket.getsockname()[1]}/in/t0ken-in-path"
        error = await _send_and_fail(Webhook("ops", url, timeout=0.2))
    assert not error.permanent and "did not answer within 0.2 seconds" in str(error)


async def test_an_endpoint_that_answers_one_byte_at_a_time_times_out() -> None:
    """Every byte comes within the read timeout of the client, but the response never ends."""
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        stop = threading.Event()

        def send_slowly() -> None:
            connection, _ = server_socket.accept()
            with connection:
                while not stop.wait(0.02):
                    try:
                        connection.sendall(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=send_slowly)
        thread.start()
        try:
            error = await asyncio.wait_for(
                _send_and_fail(Webhook("ops", f"http://127.0.0.1:{server_socket.getsockname()[1]}/", timeout=0.3)), 5
            )
        finally:
            stop.set()
            thread.join(5)
    assert not error.permanent


async def test_an_unreachable_endpoint_is_a_temporary_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        port = server_socket.getsockname()[1]
    error = await _send_and_fail(Webhook("ops", f"http://user:t0ken@127.0.0.1:{port}/t0ken"))
    assert not error.permanent and f"127.0.0.1:{port} could not be reached" in str(error)


@pytest.mark.parametrize("url", ["", "t0ken", "ftp://127.0.0.1/t0ken", "http://", "http://[t0ken", "https:///t0ken", "file:///etc/passwd"])
async def test_an_invalid_url_is_a_permanent_error(url: str) -> None:
    error = await _send_and_fail(open_channel("ops", {"url": url}, {}))
    assert error.permanent and str(error) == "the url of [channels.ops] is not an http:// or https:// address"


async def test_a_webhook_has_no_replies(endpoint: Endpoint) -> None:
    channel = _channel(endpoint)
    assert [reply async for reply in channel.replies()] == []
    await channel.close()
    await channel.close()
