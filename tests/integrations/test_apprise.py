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

pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")  # by a library that one of the services of Apprise needs
PASSWORD = "hunter2-and-more"
TEXT = "3 tests failed:\n\n<b>ü 🐞</b> & 100% :smile: \\n\nlast line"
LETTER = OutgoingMessage("bg-1a2b:ended", "bg-1a2b", "Nightly tests", TEXT, 1, 1_770_000_000_123, False)


class Postbox(socketserver.ThreadingTCPServer):
    """As much of an SMTP server as it takes to get a mail; with `wrong` set it answers that word of the protocol with a refusal."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.port = self.server_address[1]
        self.mails: list[EmailMessage] = []
        self.logins: list[bytes] = []
        self.wrong = ""

    @property
    def url(self) -> str:
        return f"mailto://me:{PASSWORD}@example.org:{self.port}/?smtp=127.0.0.1&mode=insecure&to=you@example.net"


class _Smtp(socketserver.StreamRequestHandler):
    timeout = 10
    server: Any  # a Postbox

    def handle(self) -> None:
        self._say("220 here")
        while line := self.rfile.readline():
            word = line.split()[0].upper().decode() if line.split() else ""
            if word == self.server.wrong:
                self._say("535 5.7.8 no, and not me either")
            elif word == "EHLO":
                self._say("250-here\r\n250 AUTH PLAIN")
            elif word == "AUTH":
                self.server.logins.append(line)
                self._say("235 hello")
            elif word == "DATA":
                self._say("354 go on")
                self._mail()
                self._say("250 thanks")
            elif word == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 fine")

    def _mail(self) -> None:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        mail = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        assert isinstance(mail, EmailMessage)
        self.server.mails.append(mail)

    def _say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")


class Endpoint(ThreadingHTTPServer):
    """Answers each POST with the next of `statuses`, the last of them for ever; keeps what came in."""

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


def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def postbox() -> Iterator[Postbox]:
    made = Postbox()
    for _ in _serving(made):
        yield made


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Endpoint()
    for _ in _serving(made):
        yield made


@pytest.fixture(autouse=True)
def _no_log_holds_a_secret() -> Iterator[None]:
    """Whoever listens to everything hears nothing of a URL."""
    heard: list[str] = []
    listening, root = logging.Handler(), logging.getLogger()
    listening.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    before = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(listening)
    yield
    root.removeHandler(listening)
    root.setLevel(before)
    assert not [line for line in heard for secret in (PASSWORD, "t0ken") if secret in line]


async def _refused(channel: AppriseChannel, letter: OutgoingMessage = LETTER) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as caught:
        await channel.send(letter)
    assert not any(secret in str(caught.value) for secret in (PASSWORD, "hunter2", "t0ken", "example"))
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 400
    return caught.value


async def test_a_letter_arrives_as_one_mail(postbox: Postbox) -> None:
    channel = open_channel("mail", {"type": "apprise", "url": postbox.url}, {})
    assert await channel.send(LETTER) is None
    await channel.close()
    [mail] = postbox.mails
    assert mail["Subject"] == "Nightly tests" and "you@example.net" in mail["To"] and mail["X-Application"] == "Backburner"
    assert mail["Idempotency-Key"] == "bg-1a2b:ended" and len(mail.get_all("Message-ID", [])) == 1
    body = mail.get_body(("plain",))
    assert body and body.get_content().replace("\r\n", "\n").strip() == TEXT, "as it was written, without a key or a mark of ours"
    assert len(postbox.logins) == 1


async def test_mails_arrive_in_order_and_each_under_its_own_key(postbox: Postbox) -> None:
    channel = open_channel("mail", {"type": "apprise", "url_env": "MAIL_URL"}, {"MAIL_URL": postbox.url})
    for number in range(5):
        await channel.send(LETTER._replace(key=f"key-{number}", title=f"Letter {number}"))
    await channel.close()
    assert [(mail["Subject"], mail["Idempotency-Key"]) for mail in postbox.mails] == [(f"Letter {n}", f"key-{n}") for n in range(5)]


async def test_a_title_cannot_add_headers_to_a_mail(postbox: Postbox) -> None:
    channel = AppriseChannel("mail", postbox.url)
    await channel.send(LETTER._replace(title="Done\r\nBcc: all@example.org\n\nhello \ud800 \x1b[31m", text="half \udc00 a pair \x00"))
    [mail] = postbox.mails
    assert mail["Bcc"] is None and mail["Subject"].startswith("Done") and "Bcc: all@example.org" in mail["Subject"]


@pytest.mark.parametrize(("word", "said"), [("AUTH", "535"), ("MAIL", "535"), ("RCPT", "535"), ("DATA", "535")])
async def test_a_mail_that_is_refused_says_why_and_is_tried_again(postbox: Postbox, word: str, said: str) -> None:
    postbox.wrong = word
    error = await _refused(AppriseChannel("mail", postbox.url))
    assert not error.for_good and said in str(error) and postbox.mails == []
    postbox.wrong = ""
    await AppriseChannel("mail", postbox.url).send(LETTER)
    assert len(postbox.mails) == 1


async def test_a_server_that_is_not_there_is_tried_again(postbox: Postbox) -> None:
    url = postbox.url.replace(f":{postbox.port}", ":1")
    error = await _refused(AppriseChannel("mail", url))
    assert not error.for_good and "refused" in str(error).lower()


async def test_a_json_endpoint_that_fails_nine_times_gets_one_letter_under_one_key(endpoint: Endpoint) -> None:
    endpoint.statuses = [500, 503, 429, 404, 500, 500, 500, 500, 500, 200]
    channel, attempts = AppriseChannel("json", endpoint.url), 0
    while attempts < 20:
        attempts += 1
        try:
            await channel.send(LETTER)
            break
        except DeliveryFailed as error:
            assert not error.for_good and "error=" in str(error) and "t0ken" not in str(error)
    assert attempts == 10 and len(endpoint.posts) == 10
    assert {headers["Idempotency-Key"] for headers, _ in endpoint.posts} == {LETTER.key}
    headers, posted = endpoint.posts[-1]
    assert posted["title"] == "Nightly tests" and posted["message"] == TEXT and headers["X-Key"] == "t0ken-in-header"


async def test_a_letter_that_is_too_long_for_a_service_comes_in_parts(endpoint: Endpoint) -> None:
    text = "\n".join(f"line {number} of many" for number in range(500))
    channel = AppriseChannel("chat", f"mmost://127.0.0.1:{endpoint.port}/t0ken-of-chat")
    for _ in range(2):
        await channel.send(LETTER._replace(text=text))
    parts = [posted["text"] for _, posted in endpoint.posts]
    assert len(parts) == 6 and all(len(part) <= 4000 for part in parts)
    assert [line for part in parts for line in part.splitlines() if "line" in line] == text.splitlines() * 2


async def test_a_secret_is_masked_however_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    error = await _refused(AppriseChannel("json", "json://127.0.0.1:1/pä t0ken/t0k%65n%2Bplus/x%20t0ken"))
    assert "***" in str(error) and "p%C3%A4" not in str(error) and "plus" not in str(error)


async def test_a_url_cannot_say_that_a_failure_does_not_count(endpoint: Endpoint) -> None:
    endpoint.statuses = [500]
    error = await _refused(AppriseChannel("json", endpoint.url + "&optional=yes"))
    assert not error.for_good and len(endpoint.posts) == 1


async def test_a_letter_without_text_is_sent_by_its_title(endpoint: Endpoint) -> None:
    await AppriseChannel("json", endpoint.url).send(LETTER._replace(text=" \n"))
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
async def test_a_url_that_is_none_is_given_up_in_one_sentence(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    error = await _refused(open_channel("phone", {"url": url}, {}))
    assert error.for_good and str(error).startswith("the url of [channels.phone] cannot be used: ")
    said = "".join(capfd.readouterr())
    assert "t0ken" not in said and PASSWORD not in said


async def test_a_variable_that_is_not_set_is_named(postbox: Postbox) -> None:
    error = await _refused(open_channel("phone", {"url_env": "PHONE_URL"}, {}))
    assert str(error) == "PHONE_URL is not set, which [channels.phone] names for its url" and not error.for_good
    error = await _refused(open_channel("phone", {"url_env": "PHONE_URL"}, {"PHONE_URL": "t0ken://x"}))
    assert str(error).startswith("the url in PHONE_URL of [channels.phone] cannot be used: ")


async def test_nobody_answers(postbox: Postbox) -> None:
    assert [answer async for answer in AppriseChannel("mail", postbox.url).answers()] == []


def test_the_library_is_loaded_with_the_first_letter_alone() -> None:
    code = "import sys; from backburner.integrations.channels import apprise; apprise.open_channel('x', {}, {}); print('apprise' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
