"""A phone that reaches the web interface through an HTTPS proxy: it is paired, its passkey is confirmed with the first one, and it approves.

The proxy is the one of a tunnel: it ends TLS and passes on what it gets. Its certificate is made here."""

import asyncio
import base64
import contextlib
import datetime
import hashlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_fixture import AS_A_PERSON, PHONE, Authenticator, ServedHome, Watched, started_browser
from conftest import CONFIG, HomeCli, wait_until
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from playwright.sync_api import Browser, Page, expect

NAME = "laptop.example"


class HttpsProxy:
    """Ends TLS on a port of its own and passes all bytes on to the web interface."""

    def __init__(self, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
            .sign(key, hashes.SHA256())
        )
        public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.key_hash = base64.b64encode(hashlib.sha256(public).digest()).decode()
        encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        (folder / "key.pem").write_bytes(key.private_bytes(encoding, private, serialization.NoEncryption()))
        (folder / "certificate.pem").write_bytes(certificate.public_bytes(encoding))
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        self.port, self.target = 0, 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(30)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._serving = asyncio.current_task()
        self._open: set[asyncio.StreamWriter] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not self._serving), return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError, ssl.SSLError):
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            self._open.add(back)
            await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer), return_exceptions=True)
            self._open.discard(back)
        self._open.discard(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()
        finally:
            writer.transport.abort()

    def stop(self) -> None:
        assert self._serving is not None
        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join(30)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpsProxy]:
    started = HttpsProxy(tmp_path_factory.mktemp("proxy"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def chromium(proxy: HttpsProxy) -> Iterator[Browser]:
    """A browser that finds the proxy by its name and accepts its certificate."""
    accept = f"--ignore-certificate-errors-spki-list={proxy.key_hash}"
    with started_browser(AS_A_PERSON, accept, f"--host-resolver-rules=MAP {NAME} 127.0.0.1") as started:
        yield started


@pytest.fixture(scope="module")
def served(chromium: Browser, proxy: HttpsProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHome]:
    """A home that is also reached through the proxy, and a first browser with a passkey."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "project").mkdir()
    home = HomeCli(folder / "home", folder / "project")
    home.configure(f'{CONFIG}\n[web]\norigin = "https://{NAME}:{proxy.port}"\n')
    here = ServedHome(home)
    try:
        proxy.target = here.port
        watched = Watched(chromium)
        page = watched.context.new_page()
        here.pair(page)
        here.add_passkey(page)
        watched.close()
        yield here
    finally:
        here.stop()


def test_a_phone_is_paired_through_https_and_approves_with_its_own_passkey(
    chromium: Browser, served: ServedHome, proxy: HttpsProxy
) -> None:
    computer, phone = Watched(chromium, state=served.state), Watched(chromium, PHONE, phone=True)
    first, second = computer.context.new_page(), phone.context.new_page()
    served.authenticator(first)
    authenticator = Authenticator(second)
    outside = f"https://{NAME}:{proxy.port}"
    second.goto(outside)
    number = second.locator(".number").inner_text().replace(" ", "").replace("\n", "")
    served.terminal.type(f"{number}\r")
    second.locator("nav.rail").wait_for()

    # The new passkey does nothing before the first one has confirmed it.
    second.goto(f"{outside}/settings")
    second.get_by_role("button", name="Add a passkey").click()
    shown = second.locator(".pairing .number").inner_text().replace(" ", "").replace("\n", "")
    task = served.propose("touch", "approved-on-the-phone")
    first.goto(f"{served.address}/settings")
    waiting = first.locator("li", has_text=f"New passkey {shown}")
    waiting.get_by_role("button", name="Confirm").click()
    second.get_by_role("button", name="Add another passkey").wait_for()
    assert len(authenticator.credentials) == 1 and authenticator.credentials[0]["rpId"] == NAME

    second.goto(f"{outside}/ask/{task}")
    expect(second.locator(".command")).to_contain_text("touch approved-on-the-phone")
    second.locator("#approve").click()
    expect(second.locator(".card")).to_contain_text("Approved")
    wait_until((served.home.cwd / "approved-on-the-phone").exists, "the command to run")

    # The audit of the other browser shows which device it was, and verifies the signature for the other origin.
    first.goto(f"{served.address}/audit?decision=approved&verify=true")
    row = first.locator(".audit li", has_text="touch approved-on-the-phone")
    expect(row).to_contain_text("with a passkey")
    expect(row).to_contain_text("verified")
    computer.close()
    phone.close()


def test_a_second_passkey_is_confirmed_with_the_first_one_and_approves(chromium: Browser, served: ServedHome) -> None:
    watched = Watched(chromium, state=served.state)
    page = watched.context.new_page()
    page.goto(f"{served.address}/settings")
    key = page.locator("section.group", has_text="Passkey of this browser").locator("li")
    expect(key).to_have_count(1)
    security_key = Authenticator(page, transport="usb")
    page.get_by_role("button", name="Add another passkey").click()
    confirm = page.get_by_role("button", name="Confirm with the passkey that is here")
    expect(confirm).to_be_visible()
    credentials = security_key.unplug()
    first = served.authenticator(page)
    confirm.click()
    expect(key).to_have_count(2)
    # The first one is removed; the second approves alone.
    first.unplug()
    key.first.get_by_role("button", name="Remove").click()
    expect(key).to_have_count(1)
    credentials[0]["signCount"] += 100
    Authenticator(page, credentials, transport="usb")
    task = served.propose("touch", "approved-with-the-second")
    page.goto(f"{served.address}/ask/{task}")
    page.locator("#approve").click()
    expect(page.locator(".card")).to_contain_text("Approved")
    wait_until((served.home.cwd / "approved-with-the-second").exists, "the command to run")
    watched.close()


def test_the_proxy_is_not_a_way_around_the_guard(chromium: Browser, served: ServedHome, proxy: HttpsProxy) -> None:
    """Through the proxy, only the origin of the settings is answered, and a page elsewhere reads nothing."""
    watched = Watched(chromium, PHONE, phone=True)
    watched.expect("Failed to load resource", "connect-src", "Content Security Policy")
    page: Page = watched.context.new_page()
    page.goto(f"https://{NAME}:{proxy.port}/")
    status = "address => fetch(address, {headers: {authorization: 'Bearer x'}}).then(answer => answer.status, () => 'refused')"
    assert page.evaluate(status, "/api/v1/board") == 401
    assert page.evaluate(status, f"{served.address}/api/v1/board") == "refused"
    watched.close()
