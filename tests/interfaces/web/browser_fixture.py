"""A real browser and a served home for the tests of the page. Errors on the console, refused content and failed requests fail the test."""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import CONFIG, HomeCli, wait_until
from playwright.sync_api import Browser, BrowserContext, CDPSession, Page, Request, Route, expect, sync_playwright
from terminal import Terminal

import backburner.interfaces.web
from backburner.core.models import ProcessId
from backburner.system import processes

STATIC = Path(backburner.interfaces.web.__file__).parent / "static"
DESK, TABLET, PHONE = (1280, 800), (800, 1000), (390, 844)
# Without this switch the page says that a program controls the browser, and shows no buttons to answer with.
AS_A_PERSON = "--disable-blink-features=AutomationControlled"
_TIMEOUT = 30_000  # milliseconds
expect.set_options(timeout=_TIMEOUT)
_WATCH = """
addEventListener('securitypolicyviolation', event => console.error('refused by CSP:', event.violatedDirective, event.blockedURI));
window.shifts = [];  // what moved although nobody pressed anything
new PerformanceObserver(list => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) for (const source of entry.sources) shifts.push(source.node?.outerHTML?.slice(0, 120) ?? String(source.node?.data));
}).observe({type: 'layout-shift', buffered: true});
"""
_MODULE_TYPES = {".js": "text/javascript", ".css": "text/css"}


def browser_path() -> str:
    """The browser that `scripts/browser` finds or installs."""
    for name in (os.environ.get("BACKBURNER_BROWSER"), "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        if name and (found := shutil.which(name)):
            return found
    message = "The tests of the web interface need Chromium: run scripts/browser."
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def started_browser(*switches: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=list(switches or (AS_A_PERSON,)))
        yield browser
        browser.close()


class Watched:
    """A fresh context of the browser. Collects everything that must not happen."""

    def __init__(self, browser: Browser, size: tuple[int, int] = DESK, *, state: Any = None, phone: bool = False, **options: Any) -> None:
        width, height = size
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": height},
            storage_state=state,
            has_touch=phone,
            is_mobile=phone,
            reduced_motion="reduce",
            **options,
        )
        self.problems: list[str] = []
        self._expected: tuple[str, ...] = ()
        self.context.set_default_timeout(_TIMEOUT)
        self.context.on(
            "console", lambda message: self._note(f"{message.type}: {message.text}") if message.type in ("error", "warning") else None
        )
        self.context.on("weberror", lambda error: self._note(f"error: {error.error}"))
        self.context.on("requestfailed", self._failed)
        self.context.add_init_script(_WATCH)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])

    def _note(self, problem: str) -> None:
        if not any(part in problem for part in self._expected):
            self.problems.append(problem)

    def _failed(self, request: Request) -> None:
        # A page that is left, and a stream that is opened again for another log, abort their requests.
        if "ERR_ABORTED" not in (request.failure or ""):
            self._note(f"request: {request.url} {request.failure}")

    def expect(self, *parts: str) -> None:
        """Problems whose text has one of these parts belong to the test."""
        self._expected += parts

    def close(self) -> None:
        self.context.close()
        assert not self.problems, self.problems


@contextmanager
def module_page(browser: Browser) -> Iterator[Page]:
    """A page that can import the modules of the page without a server."""
    watched = Watched(browser)

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix("http://page.test/")
        file = STATIC / path
        if path and file.is_file():
            route.fulfill(body=file.read_bytes(), content_type=_MODULE_TYPES[file.suffix])
        else:
            route.fulfill(body="<!doctype html><title>test</title><body>", content_type="text/html")

    watched.context.route("**/*", answer)
    page = watched.context.new_page()
    page.goto("http://page.test/")
    yield page
    watched.close()


class Authenticator:
    """A passkey device that says yes to everything, as the finger of a person would."""

    def __init__(self, page: Page, credentials: list[Any] | None = None, transport: str = "internal") -> None:
        self._cdp: CDPSession = page.context.new_cdp_session(page)
        self._cdp.send("WebAuthn.enable")
        options = {
            "protocol": "ctap2",
            "transport": transport,
            "hasResidentKey": True,
            "hasUserVerification": True,
            "isUserVerified": True,
        }
        answer = self._cdp.send("WebAuthn.addVirtualAuthenticator", {"options": {**options, "automaticPresenceSimulation": True}})
        self._id = answer["authenticatorId"]
        for credential in credentials or []:
            self._cdp.send("WebAuthn.addCredential", {"authenticatorId": self._id, "credential": credential})

    @property
    def credentials(self) -> list[Any]:
        return self._cdp.send("WebAuthn.getCredentials", {"authenticatorId": self._id})["credentials"]

    def unplug(self) -> list[Any]:
        """Take it away; returns its credentials, with which it can be plugged in again."""
        credentials = self.credentials
        self._cdp.send("WebAuthn.removeVirtualAuthenticator", {"authenticatorId": self._id})
        return credentials

    def refuse(self) -> None:
        """From now on nobody touches it."""
        self._cdp.send("WebAuthn.setUserVerified", {"authenticatorId": self._id, "isUserVerified": False})


class ServedHome:
    """`backburner web` at a terminal, and a browser that is paired with it."""

    def __init__(self, home: HomeCli) -> None:
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.address = f"http://backburner.localhost:{self.port}"
        self.state: Any = None
        self.credentials: list[Any] = []
        self.terminal = self._start()

    def _start(self) -> Terminal:
        terminal = Terminal(
            [sys.executable, "-m", "backburner", "web", "--no-open", "--port", str(self.port)],
            cwd=self.home.cwd,
            env=self.home.environ,
            columns=160,
        )
        terminal.wait("To pair a browser", 60)
        return terminal

    def pair(self, page: Page) -> None:
        """Pair a page as a person does: type the number that it shows at the terminal."""
        page.goto(self.address)
        number = page.locator(".number").inner_text().replace(" ", "").replace("\n", "")
        self.terminal.wait("type the number")
        self.terminal.type(f"{number}\r")
        page.locator("nav.rail").wait_for()
        self.state = page.context.storage_state(indexed_db=True)

    def add_passkey(self, page: Page) -> None:
        """Register the first passkey of the home, and confirm it at the terminal."""
        authenticator = Authenticator(page)
        page.goto(f"{self.address}/settings")
        page.get_by_role("button", name="Add a passkey").click()
        number = page.locator(".pairing .number").inner_text().replace(" ", "").replace("\n", "")
        self.terminal.wait("asks to approve with a passkey")
        self.terminal.type(f"{number}\r")
        page.get_by_role("button", name="Add another passkey").wait_for()
        self.credentials = authenticator.credentials

    def authenticator(self, page: Page) -> Authenticator:
        """The registered passkey, for another page. Its counter must only grow."""
        for credential in self.credentials:
            credential["signCount"] += 100
        return Authenticator(page, self.credentials)

    def propose(self, *command: str) -> str:
        """A command that waits for approval; returns its ID."""
        done = self.home.cli("run", "--json", "--", *command)
        waiting = [task for task in self.home.json("list") if task["status"] == "proposed"]  # type: ignore[union-attr, index, call-overload]
        assert waiting, (done.stdout, done.stderr)
        return str(waiting[0]["task_id"])

    def servers(self) -> list[ProcessId]:
        """The processes that serve the pages."""
        return self.home.hosts("web.server") or self.home.hosts("interfaces/web")

    def kill_server(self) -> None:
        """Kill the serving process; the command at the terminal starts another."""
        for server in self.servers():
            processes.send(server, signal.SIGKILL)

    def restart(self) -> None:
        """Stop the command at the terminal and start it again."""
        self.terminal.__exit__()
        wait_until(lambda: not self.servers(), "the server to exit")
        self.terminal = self._start()

    def stop(self) -> None:
        self.terminal.__exit__()
        self.home.stop_all()
        wait_until(lambda: not self.home.processes(), "all processes of the home to exit")


def settled(page: Page) -> None:
    """Wait until what changed is drawn."""
    page.evaluate("() => new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for the tests of a file; every test has a context of its own."""
    with started_browser() as started:
        yield started


@pytest.fixture
def modules(chromium: Browser) -> Iterator[Page]:
    """A page that can import the modules of the page without a server."""
    with module_page(chromium) as page:
        yield page


@pytest.fixture(scope="module")
def served(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHome]:
    """A home with a web interface, a paired browser and its passkey, for the tests of a file."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "project").mkdir()
    home = HomeCli(folder / "home", folder / "project")
    home.configure(CONFIG)
    here = ServedHome(home)
    try:
        watched = Watched(chromium)
        page = watched.context.new_page()
        here.pair(page)
        here.add_passkey(page)
        watched.close()
        yield here
    finally:
        here.stop()


@pytest.fixture
def watched(chromium: Browser, served: ServedHome) -> Iterator[Watched]:
    """A fresh context of the paired browser."""
    fresh = Watched(chromium, DESK, state=served.state)
    yield fresh
    fresh.close()


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.context.new_page()


@pytest.fixture
def another(chromium: Browser, served: ServedHome) -> Iterator[Callable[..., Page]]:
    """Further pages of the paired browser, with other sizes and colours."""
    opened: list[Watched] = []

    def open_page(**options: object) -> Page:
        opened.append(Watched(chromium, state=served.state, **options))  # type: ignore[arg-type]
        return opened[-1].context.new_page()

    yield open_page
    for one in opened:
        one.close()
