"""The Apprise channel against real receivers on loopback: an SMTP server and a JSON endpoint."""

import email
import email.policy
import json
import logging
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from email.message import EmailMessage, Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from backburner.core.ports import DeliveryFailed, OutgoingMessage
from backburner.integrations.channels.apprise import AppriseChannel, open_channel

pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # a dependency of an Apprise service
PASSWORD = "hunter2-and-more"
TEXT = "3 tests failed:\n\n<b>ü 🐞</b> & 100% :smile: \\n\nlast line"
MESSAGE = OutgoingMessage("bg-1a2b:ended", "bg-1a2b", "Nightly tests", TEXT, 1, 1_770_000_000_123, False)


class SmtpServer(socketserver.ThreadingTCPServer):
    """A minimal SMTP server that receives mails. It rejects the SMTP command named by `rejected_command`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.port = self.server_address[1]
        self.mails: list[EmailMessage] = []
        self.logins: list[bytes] = []
        self.rejected_command = ""

    @property
    def url(self) -> str:
        return f"mailto://me:{PASSWORD}@example.org:{self.port}/?smtp=127.0.0.1&mode=insecure&to=you@example.net"


class _Smtp(socketserver.StreamRequestHandler):
    timeout = 10
    server: Any  # an SmtpServer

    def handle(self) -> None:
        self._reply("220 ready")
        while line := self.rfile.readline():
            command = line.split()[0].upper().decode() if line.split() else ""
            if command == self.server.rejected_command:
                self._reply("535 5.7.8 rejected")
            elif command == "EHLO":
                self._reply("250-localhost\r\n250 AUTH PLAIN")
            elif command == "AUTH":
                self.server.logins.append(line)
                self._reply("235 accepted")
            elif command == "DATA":
                self._reply("354 continue")
                self._receive_mail()
                self._reply("250 accepted")
            elif command == "QUIT":
                self._reply("221 bye")
                return
            else:
                self._reply("250 ok")

    def _receive_mail(self) -> None:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        mail = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        assert isinstance(mail, EmailMessage)
        self.server.mails.append(mail)

    def _reply(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")


class Endpoint(ThreadingHTTPServer):
    """Answers each POST with the next of `statuses` and repeats the last one. Keeps all requests in `posts`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Json)
        self.port = self.server_address[1]
        self.statuses = [200]
        self.posts: list[tuple[Message, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"json://me:{PASSWORD}@127.0.0.1:{self.port}/t0ken-in-path?+X-Key=t0ken-in-header"


class _Json(BaseHTTPRequestHandler):
    server: Any  # an Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.headers, json.loads(body)))
        self.send_response(self.server.statuses.pop(0) if len(self.server.statuses) > 1 else self.server.statuses[0])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _serve(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def smtp() -> Iterator[SmtpServer]:
    server = SmtpServer()
    for _ in _serve(server):
        yield server


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Endpoint()
    for _ in _serve(server):
        yield server


@pytest.fixture(autouse=True)
def _no_secret_is_logged() -> Iterator[None]:
    """Check that no log record of any logger contains a secret."""
    lines: list[str] = []
    handler, root = logging.Handler(), logging.getLogger()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    before = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield
    root.removeHandler(handler)
    root.setLevel(before)
    assert not [line for line in lines for secret in (PASSWORD, "t0ken") if secret in line]


async def _send_and_fail(channel: AppriseChannel, message: OutgoingMessage = MESSAGE) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as caught:
        await channel.send(message)
    assert not any(secret in str(caught.value) for secret in (PASSWORD, "hunter2", "t0ken", "example"))
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 400
    return caught.value


async def test_a_message_arrives_as_one_mail(smtp: SmtpServer) -> None:
    channel = open_channel("mail", {"type": "apprise", "url": smtp.url}, {})
    assert await channel.send(MESSAGE) is None
    await channel.close()
    [mail] = smtp.mails
    assert mail["Subject"] == "Nightly tests" and "you@example.net" in mail["To"] and mail["X-Application"] == "Backburner"
    assert mail["Idempotency-Key"] == "bg-1a2b:ended" and len(mail.get_all("Message-ID", [])) == 1
    body = mail.get_body(("plain",))
    assert body and body.get_content().replace("\r\n", "\n").strip() == TEXT, "the text is unchanged"
    assert len(smtp.logins) == 1


async def test_mails_arrive_in_order_with_their_own_keys(smtp: SmtpServer) -> None:
    channel = open_channel("mail", {"type": "apprise", "url_env": "MAIL_URL"}, {"MAIL_URL": smtp.url})
    for number in range(5):
        await channel.send(MESSAGE._replace(key=f"key-{number}", title=f"Message {number}"))
    await channel.close()
    assert [(mail["Subject"], mail["Idempotency-Key"]) for mail in smtp.mails] == [(f"Message {n}", f"key-{n}") for n in range(5)]


async def test_a_title_cannot_add_headers_to_a_mail(smtp: SmtpServer) -> None:
    channel = AppriseChannel("mail", smtp.url)
    await channel.send(MESSAGE._replace(title="Done\r\nBcc: all@example.org\n\nhello \ud800 \x1b[31m", text="half \udc00 a pair \x00"))
    [mail] = smtp.mails
    assert mail["Bcc"] is None and mail["Subject"].startswith("Done") and "Bcc: all@example.org" in mail["Subject"]


@pytest.mark.parametrize(("command", "expected"), [("AUTH", "535"), ("MAIL", "535"), ("RCPT", "535"), ("DATA", "535")])
async def test_a_rejected_mail_is_a_temporary_error_with_its_reason(smtp: SmtpServer, command: str, expected: str) -> None:
    smtp.rejected_command = command
    error = await _send_and_fail(AppriseChannel("mail", smtp.url))
    assert not error.permanent and expected in str(error) and smtp.mails == []
    smtp.rejected_command = ""
    await AppriseChannel("mail", smtp.url).send(MESSAGE)
    assert len(smtp.mails) == 1


async def test_an_unreachable_server_is_a_temporary_error(smtp: SmtpServer) -> None:
    url = smtp.url.replace(f":{smtp.port}", ":1")
    error = await _send_and_fail(AppriseChannel("mail", url))
    assert not error.permanent and "refused" in str(error).lower()


async def test_retries_to_a_failing_json_endpoint_use_one_key(endpoint: Endpoint) -> None:
    endpoint.statuses = [500, 503, 429, 404, 500, 500, 500, 500, 500, 200]
    channel, attempts = AppriseChannel("json", endpoint.url), 0
    while attempts < 20:
        attempts += 1
        try:
            await channel.send(MESSAGE)
            break
        except DeliveryFailed as error:
            assert not error.permanent and "error=" in str(error) and "t0ken" not in str(error)
    assert attempts == 10 and len(endpoint.posts) == 10
    assert {headers["Idempotency-Key"] for headers, _ in endpoint.posts} == {MESSAGE.key}
    headers, posted = endpoint.posts[-1]
    assert posted["title"] == "Nightly tests" and posted["message"] == TEXT and headers["X-Key"] == "t0ken-in-header"


async def test_a_message_too_long_for_a_service_is_split(endpoint: Endpoint) -> None:
    text = "\n".join(f"line {number} of many" for number in range(500))
    channel = AppriseChannel("chat", f"mmost://127.0.0.1:{endpoint.port}/t0ken-of-chat")
    for _ in range(2):
        await channel.send(MESSAGE._replace(text=text))
    parts = [posted["text"] for _, posted in endpoint.posts]
    assert len(parts) == 6 and all(len(part) <= 4000 for part in parts)
    assert [line for part in parts for line in part.splitlines() if "line" in line] == text.splitlines() * 2


async def test_secrets_are_masked_in_every_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    error = await _send_and_fail(AppriseChannel("json", "json://127.0.0.1:1/pä t0ken/t0k%65n%2Bplus/x%20t0ken"))
    assert "***" in str(error) and "p%C3%A4" not in str(error) and "plus" not in str(error)


async def test_an_option_in_the_url_cannot_hide_a_failure(endpoint: Endpoint) -> None:
    endpoint.statuses = [500]
    error = await _send_and_fail(AppriseChannel("json", endpoint.url + "&optional=yes"))
    assert not error.permanent and len(endpoint.posts) == 1


async def test_a_message_without_text_is_sent_with_its_title_as_text(endpoint: Endpoint) -> None:
    await AppriseChannel("json", endpoint.url).send(MESSAGE._replace(text=" \n"))
    assert endpoint.posts[0][1]["message"] == "Nightly tests"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "t0ken",
        "t0ken://hunter2@t0ken-host/x",
        f"mailto://me:{PASSWORD}@",
        f"mailto://me:{PASSWORD}@example.org?mode=t0ken-mode",
        f"mailto://:{PASSWORD}@example.org?from=t0ken",
        f"json://me:{PASSWORD}@127.0.0.1/?method=t0ken",
        "slack://t0ken",
        "tgram://t0ken",
        "https://example.org/t0ken",
        "json://127.0.0.1/t0ken, json://127.0.0.1/t0ken",
    ],
)
async def test_an_invalid_url_is_a_permanent_error(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    error = await _send_and_fail(open_channel("phone", {"url": url}, {}))
    assert error.permanent and str(error).startswith("the url of [channels.phone] cannot be used: ")
    printed = "".join(capfd.readouterr())
    assert "t0ken" not in printed and PASSWORD not in printed


async def test_an_environment_variable_that_is_not_set_is_named(smtp: SmtpServer) -> None:
    error = await _send_and_fail(open_channel("phone", {"url_env": "PHONE_URL"}, {}))
    assert str(error) == "environment variable PHONE_URL is not set (url of [channels.phone])" and not error.permanent
    error = await _send_and_fail(open_channel("phone", {"url_env": "PHONE_URL"}, {"PHONE_URL": "t0ken://x"}))
    assert str(error).startswith("the url in PHONE_URL of [channels.phone] cannot be used: ")


async def test_there_are_no_replies(smtp: SmtpServer) -> None:
    assert [reply async for reply in AppriseChannel("mail", smtp.url).replies()] == []


def test_opening_a_channel_does_not_import_the_library() -> None:
    code = "import sys; from backburner.integrations.channels import apprise; apprise.open_channel('x', {}, {}); print('apprise' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "False"
