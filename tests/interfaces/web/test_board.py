"""Now: the board of the page, in a real browser."""

# ruff: noqa: F811 - fixtures are imported by their names

import sys

from browser_fixture import ServedHome, another, chromium, page, served, settled, watched  # noqa: F401
from playwright.sync_api import Page, expect

HOSTILE = "<img src=x onerror=alert(1)> \u202egnp.exe \u200b'\"</script>"


def open_board(page: Page, served: ServedHome, query: str = "") -> None:
    page.goto(f"{served.address}/{query}")
    expect(page.locator(".connection")).to_contain_text("live")


def test_an_empty_home_shows_commands_to_copy(page: Page, served: ServedHome) -> None:
    open_board(page, served)
    expect(page.get_by_text("Nothing ran yet.")).to_be_visible()
    page.get_by_role("button", name="Copy backburner run -- make test").click()
    assert page.evaluate("navigator.clipboard.readText()") == "backburner run -- make test"


def test_tasks_appear_and_end_without_a_reload(page: Page, served: ServedHome) -> None:
    open_board(page, served)
    gate = served.home.cwd / "gate"
    task = served.home.run(
        sys.executable,
        "-c",
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)",
        options=("--description", "waits for a file"),
    )
    row = page.locator(".row", has_text="waits for a file")
    expect(row.locator(".state.running")).to_be_visible()
    gate.touch()
    served.home.ok("wait", task)
    expect(row.locator(".state.done")).to_be_visible()
    assert page.evaluate("shifts") == []


def test_filters_are_in_the_address_and_survive_a_reload(page: Page, served: ServedHome) -> None:
    served.home.finish("echo", "apples")
    served.home.finish("echo", "pears")
    open_board(page, served)
    page.keyboard.press("/")
    page.keyboard.type("pears")
    expect(page.get_by_role("link", name="echo apples")).to_have_count(0)
    assert page.url.endswith("?q=pears")
    page.reload()
    expect(page.get_by_role("searchbox", name="Filter tasks")).to_have_value("pears")
    expect(page.get_by_role("link", name="echo pears")).to_be_visible()
    expect(page.get_by_role("link", name="echo apples")).to_have_count(0)
    page.get_by_role("searchbox", name="Filter tasks").fill("nothing has this name")
    page.get_by_role("button", name="Show all tasks").click()
    expect(page.get_by_role("link", name="echo apples")).to_be_visible()


def test_a_task_is_opened_with_the_keyboard_alone(page: Page, served: ServedHome) -> None:
    served.home.finish("echo", "keyboard")
    open_board(page, served, "?q=keyboard")
    expect(page.locator(".row")).to_have_count(1)
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="echo keyboard")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="echo keyboard")).to_be_visible()
    expect(page.locator(".log-line .t")).to_have_text(["keyboard"])
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", name="Now")).to_be_visible()


def test_the_focus_stays_on_a_row_while_others_appear(page: Page, served: ServedHome) -> None:
    served.home.finish("echo", "first")
    open_board(page, served)
    row = page.get_by_role("link", name="echo first")
    expect(row).to_be_visible()
    page.keyboard.press("j")
    expect(row).to_be_focused()
    before = row.bounding_box()
    served.home.finish("echo", "second")
    expect(page.get_by_role("button", name="new ↑")).to_be_visible()
    assert row.bounding_box() == before
    expect(row).to_be_focused()
    page.keyboard.press(".")
    expect(page.get_by_role("link", name="echo second")).to_be_visible()
    expect(row).to_be_focused()


def test_hostile_text_is_shown_and_does_nothing(page: Page, served: ServedHome) -> None:
    task = served.home.finish("printf", "%s", f"{HOSTILE}\n\x1b]0;title\x07\x1b[2J", options=("--description", HOSTILE))
    open_board(page, served)
    row = page.locator(".row", has_text="onerror").first
    expect(row).to_contain_text("<img src=x onerror=alert(1)> ⟨U+202E⟩gnp.exe ⟨U+200B⟩")
    page.goto(f"{served.address}/t/{task['task_id']}")
    expect(page.locator(".log-line .t").first).to_contain_text("onerror=alert(1)> ⟨U+202E⟩gnp.exe")
    page.goto(f"{served.address}/t/{task['task_id']}?tab=details")
    expect(page.get_by_role("tabpanel")).to_contain_text("onerror=alert(1)")


def test_commands_are_found_in_the_palette(page: Page, served: ServedHome) -> None:
    task = served.home.finish("echo", "palette")["task_id"]
    open_board(page, served)
    page.keyboard.press("Control+k")
    page.keyboard.type("echo palette")
    expect(page.locator(".palette li").first).to_contain_text("echo palette")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{served.address}/t/{task}")
    expect(page.get_by_role("tab", name="Output")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Search in the output")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_seven_tabs_use_one_stream(watched: "Watched", served: ServedHome) -> None:  # type: ignore[name-defined]  # noqa: F821
    pages = [watched.context.new_page() for _ in range(7)]
    streams: list[str] = []
    for each in pages:
        each.on("request", lambda request: streams.append(request.url) if "/stream?" in request.url else None)
        open_board(each, served)
    served.home.finish("echo", "to all tabs")
    for each in pages:
        expect(each.get_by_role("link", name="echo 'to all tabs'")).to_be_visible()
    assert len(streams) == 1
    pages[0].close()
    served.home.finish("echo", "after the first closed")
    for each in pages[1:]:
        expect(each.get_by_role("link", name="echo 'after the first closed'")).to_be_visible()
