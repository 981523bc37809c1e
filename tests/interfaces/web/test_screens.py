"""Inbox, audit, settings, pairing and the page of an agent; and every screen without accessibility errors, at three widths in both themes."""

# ruff: noqa: F811 - fixtures are imported by their names

import json
import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_fixture import DESK, PHONE, TABLET, ServedHome, Watched, another, chromium, page, watched  # noqa: F401
from conftest import CONFIG, HomeCli
from playwright.sync_api import Browser, Page, expect

from backburner.testing.scripted_model import ScriptedModel

SCREENS = ("now", "ask", "run", "agent", "tools", "details", "why", "events", "inbox", "audit", "settings")
HOSTILE = "</title><img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def served(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHome]:
    """A home with something on every screen, also hostile names."""
    folder = tmp_path_factory.mktemp("screens")
    (folder / "project").mkdir()
    with ScriptedModel() as model:
        home = HomeCli(folder / "home", folder / "project")
        home.configure(f'{CONFIG}[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n')
        here = ServedHome(home)
        try:
            watched = Watched(chromium)
            first = watched.context.new_page()
            here.pair(first)
            here.add_passkey(first)
            watched.close()
            here.run = str(home.finish("sh", "-c", "echo hello; echo problem >&2; exit 3", options=("--description", HOSTILE))["task_id"])
            (home.cwd / "notes.txt").write_text(HOSTILE)
            steps = [{"say": "I read it.", "tool": "read_file", "args": {"path": "notes.txt"}}, {"say": f"It says {HOSTILE}"}]
            here.agent = home.ok("ask", f"What do the notes say? [[script: {json.dumps(steps)}]]").strip()
            home.ok("wait", here.agent, "--timeout", "60")
            home.ok("add", "nightly", "--cron", "0 2 * * *", "--yes", "--", "true")
            here.asks = here.propose("rm", "-rf", HOSTILE)
            yield here
        finally:
            here.stop()


def address(served: ServedHome, screen: str) -> str:
    task = {"ask": f"/ask/{served.asks}", "run": f"/t/{served.run}", "agent": f"/t/{served.agent}", "tools": f"/t/{served.agent}?tab=tools"}
    tabs = {
        "details": f"/t/{served.run}?tab=details",
        "why": f"/t/{served.run}?tab=why",
        "events": f"/t/{served.run}?tab=events",
        "now": "/",
    }
    return served.address + ({**task, **tabs}.get(screen) or f"/{screen}")


def show(page: Page, served: ServedHome, screen: str) -> None:
    page.goto(address(served, screen))
    expect(page.locator(".connection")).to_contain_text("live")
    shown = {
        "now": ".row",
        "ask": ".card",
        "run": ".log-line",
        "agent": ".message",
        "tools": ".tool",
        "details": ".facts",
        "why": ".why",
        "events": ".events li",
    }
    expect(page.locator(shown.get(screen, "main h2, main .rows li, main .panel")).first).to_be_visible()


@pytest.mark.parametrize("size", [DESK, TABLET, PHONE], ids=["desk", "tablet", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_screen_has_an_accessibility_error(another, served: ServedHome, theme: str, size: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    page = another(size=size, color_scheme=theme, phone=size is PHONE)
    axe = Axe()
    for screen in SCREENS:
        show(page, served, screen)
        found = axe.run(page).response["violations"]
        assert not found, (screen, [(one["id"], [node["html"][:160] for node in one["nodes"]][:3]) for one in found])


def test_the_description_of_the_api_has_no_accessibility_error(another, served: ServedHome) -> None:  # type: ignore[no-untyped-def]
    page = another(size=PHONE, color_scheme="dark", phone=True)
    page.goto(f"{served.address}/api")
    expect(page.get_by_role("heading", name="The API of Backburner")).to_be_visible()
    assert not Axe().run(page).response["violations"] and page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_every_screen_fits_a_narrow_window(another, served: ServedHome) -> None:  # type: ignore[no-untyped-def]
    page = another(size=(320, 700), phone=True)
    for screen in SCREENS:
        show(page, served, screen)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, screen


def test_nothing_jumps_while_a_screen_is_drawn(page: Page, served: ServedHome) -> None:
    for screen in SCREENS:
        show(page, served, screen)
        assert page.evaluate("shifts") == [], screen


def test_the_conversation_of_an_agent_shows_messages_and_tools(page: Page, served: ServedHome) -> None:
    show(page, served, "agent")
    expect(page.locator(".message.you")).to_contain_text("What do the notes say?")
    expect(page.locator(".message.agent").last).to_contain_text("It says </title><img src=x onerror=alert(1)>⟨U+202E⟩")
    page.locator(".tool summary", has_text="read_file").click()
    expect(page.locator(".tool pre").first).to_contain_text("notes.txt")
    page.get_by_role("textbox", name="Message to the agent").fill('And? [[script: [{"say": "Nothing more."}]]]')
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".message.agent").last).to_contain_text("Nothing more.", timeout=60_000)


def test_the_inbox_shows_notices_and_marks_them_as_read(page: Page, served: ServedHome) -> None:
    page.goto(f"{served.address}/inbox?show=all")
    expect(page.locator(".rows li").first).to_be_visible()
    page.goto(f"{served.address}/inbox")
    mark = page.get_by_role("button", name="Mark all as read")
    expect(mark.or_(page.get_by_text("Nothing new."))).to_be_visible()
    if mark.count():
        mark.click()
    expect(page.get_by_text("Nothing new.")).to_be_visible()


def test_the_audit_shows_who_decided_and_filters(page: Page, served: ServedHome) -> None:
    page.goto(f"{served.address}/audit")
    expect(page.locator(".audit li", has_text="passkey added")).to_be_visible()
    page.get_by_role("button", name="Approved").click()
    expect(page.locator(".audit li", has_text="passkey added")).to_have_count(0)
    assert page.url.endswith("decision=approved")


def test_the_theme_and_the_density_are_kept(page: Page, served: ServedHome) -> None:
    show(page, served, "settings")
    page.get_by_role("button", name="Dark").click()
    page.get_by_role("button", name="Compact").click()
    page.goto(served.address)
    expect(page.locator(".row").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert page.locator(".row").first.evaluate("element => element.offsetHeight") == 28


def test_a_browser_that_is_not_paired_shows_only_the_number(chromium: Browser, served: ServedHome) -> None:
    watched = Watched(chromium)
    page = watched.context.new_page()
    page.goto(f"{served.address}/t/{served.run}")
    expect(page.locator(".number")).to_be_visible()
    assert "hello" not in page.content()
    assert Axe().run(page).violations_count == 0
    watched.close()


def test_a_revoked_browser_must_be_paired_again(chromium: Browser, served: ServedHome) -> None:
    watched = Watched(chromium)
    page = watched.context.new_page()
    state = served.state
    served.pair(page)
    served.state = state
    page.goto(f"{served.address}/settings")
    watched.expect("401")
    page.get_by_role("button", name="Unpair").click()
    page.get_by_role("dialog").get_by_role("button", name="Unpair").click()
    expect(page.get_by_role("heading", name="Pair this browser")).to_be_visible()
    watched.close()


def test_a_view_that_cannot_be_loaded_says_so_and_is_loaded_later(watched: Watched, page: Page, served: ServedHome) -> None:
    watched.expect("ERR_FAILED", "records.js")
    page.route("**/views/records.js", lambda route: route.abort())
    page.goto(f"{served.address}/inbox")
    expect(page.locator("main .panel")).to_contain_text("could not be loaded")
    page.unroute("**/views/records.js")
    page.get_by_role("link", name="Back to the board").click()
    expect(page.locator(".row").first).to_be_visible()
    page.get_by_role("link", name="Inbox").click()
    expect(page.locator("main").get_by_role("button", name="All", exact=True)).to_be_visible()


def test_the_first_paint_of_the_board_needs_four_requests(watched: Watched, page: Page, served: ServedHome) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url.removeprefix(served.address)))
    show(page, served, "now")
    first = [re.sub(r"/_/\w+/", "", url) for url in requests[:4]]
    assert first == ["/", "app.css", "app.js", "/api/v1/board?home=true"]
