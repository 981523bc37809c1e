"""The board with long lists, with progress, and without an answer of the server, in a real browser."""

# ruff: noqa: F811 - fixtures are imported by their names

import sys

from browser_fixture import ServedHome, Watched, chromium, modules, page, served, settled, watched  # noqa: F401
from conftest import wait_until
from playwright.sync_api import Page, expect

from backburner import BackburnerSync

MANY = 230
TOGETHER = 12  # tasks that end within a moment
RUNNING = 5  # how many run at the same time by default; the others are queued
HEAR = """() => {
  window.heard = [];
  const region = document.getElementById("announcements");
  new MutationObserver(() => heard.push(region.textContent)).observe(region, {childList: true});
}"""
# Draws one list after another and returns the keys of the elements that were added or removed, in the order of the document.
CHANGED_BY = """async ([before, after]) => {
  const {h, patch} = await import("/dom.js");
  const list = document.body.appendChild(document.createElement("div"));
  const draw = (keys) => patch(list, keys.map((key) => h("p", {key, "data-key": key}, key)));
  draw(before);
  const observer = new MutationObserver(() => {});
  observer.observe(list, {childList: true});
  draw(after);
  const touched = observer.takeRecords().flatMap((record) => [...record.addedNodes, ...record.removedNodes]);
  const drawn = [...list.children].map((element) => element.dataset.key);
  list.remove();
  return [[...new Set(touched.map((element) => element.dataset.key))].sort(), drawn];
}"""


def test_elements_that_stay_are_not_touched_when_others_come_and_go(modules: Page) -> None:
    for before, after, touched in (
        ("abcdef", "cdefgh", "abgh"),  # a list that is scrolled down
        ("cdefgh", "abcdef", "abgh"),  # and up
        ("abcdef", "xabcdef", "x"),  # a new row
        ("abcdef", "abdef", "c"),
        ("abc", "xyz", "abcxyz"),
    ):
        assert modules.evaluate(CHANGED_BY, [list(before), list(after)]) == [list(touched), list(after)], (before, after)


def test_a_row_shows_the_progress_of_its_command(page: Page, served: ServedHome) -> None:
    gate = served.home.cwd / "half"
    code = (
        "import os, time\nprint('25%', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)\n"
        "print('75%', flush=True)\ntime.sleep(600)"
    )
    task = served.home.run(sys.executable, "-c", code, options=("--description", "counts"))
    page.goto(served.address)
    bar = page.locator(".row", has_text="counts").get_by_role("img")
    expect(bar).to_have_attribute("aria-label", "25 percent")
    gate.touch()
    expect(bar).to_have_attribute("aria-label", "75 percent")
    served.home.ok("cancel", task)
    expect(bar).to_have_count(0)


def test_ends_of_many_tasks_are_announced_as_a_number(page: Page, served: ServedHome) -> None:
    page.goto(served.address)
    expect(page.locator(".connection")).to_contain_text("live")
    page.evaluate(HEAR)
    served.home.run("sleep", "600", options=("--description", "a single one"))
    alone = page.locator(".row.running", has_text="a single one")
    expect(alone).to_be_visible()
    served.home.ok("cancel", "last")
    page.wait_for_function("() => heard.length")
    assert page.evaluate("heard") == ["a single one: cancelled."]
    page.evaluate("heard.length = 0")
    gate = served.home.cwd / "gate"
    with BackburnerSync.open(served.home.root) as library:
        for number in range(TOGETHER):
            script = f"while ! [ -e {gate} ]; do sleep 0.05; done; exit {int(number == 0)}"
            library.submit(["sh", "-c", script], cwd=served.home.cwd, approved=True)
    expect(page.locator(".section.queued")).to_contain_text(str(TOGETHER - RUNNING))
    gate.touch()
    page.wait_for_function("count => heard.reduce((sum, text) => sum + (parseInt(text) || 1), 0) >= count", arg=TOGETHER)
    heard = page.evaluate("heard")
    assert heard[0].endswith(" tasks ended, 1 of them failed.") and len(heard) < TOGETHER / 2, heard


def test_a_hidden_tab_only_changes_its_title_until_it_is_shown(page: Page, served: ServedHome) -> None:
    page.goto(served.address)
    expect(page.locator(".connection")).to_contain_text("live")
    expect(page).to_have_title("Now · Backburner")
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.isHidden, configurable: true}), window.isHidden = true")
    served.home.cli("run", "--", "touch", "made")
    expect(page).to_have_title("(1) Now · Backburner")
    row = page.locator(".row", has_text="touch made")
    expect(row).to_have_count(0)
    page.evaluate("window.isHidden = false, document.dispatchEvent(new Event('visibilitychange'))")
    expect(row).to_be_visible()


def test_long_lists_are_cut_or_loaded_while_scrolling(page: Page, served: ServedHome) -> None:
    with BackburnerSync.open(served.home.root) as library:
        tasks = [
            library.submit(["sleep", "600"], cwd=served.home.cwd, description=f"long list {n}", approved=True).task.task_id
            for n in range(MANY)
        ]
        page.goto(served.address)
        expect(page.locator(".section.queued .num")).to_have_text(str(MANY - RUNNING))
        page.evaluate("scrollTo(0, 200 * 36)")
        expect(page.locator(".board p")).to_have_text(f"and {MANY - RUNNING - 200} more")
        served.home.ok("cancel", *tasks)
        library.wait(*tasks)
    page.goto(served.address)
    expect(page.locator(".row", has_text="long list").first).to_be_visible()
    assert page.locator(".row").count() < 60
    found: set[str] = set()

    def scrolled_through() -> bool:
        found.update(page.locator(".row .what", has_text="long list").all_inner_texts())
        page.mouse.wheel(0, 500)
        settled(page)
        return len(found) == MANY

    page.mouse.move(640, 400)
    wait_until(scrolled_through, "all tasks to be shown", 60)
    assert found == {f"long list {n}" for n in range(MANY)}
    assert page.locator(".row").count() < 60 and page.evaluate("shifts") == []


def test_a_board_that_cannot_be_loaded_says_why_and_what_to_do(watched: Watched, page: Page, served: ServedHome) -> None:
    watched.expect("ERR_FAILED", "/api/v1/board")
    page.route("**/api/v1/board*", lambda route: route.abort())
    page.goto(served.address)
    expect(page.get_by_role("alert").filter(has_text="The server cannot be reached.")).to_be_visible()
    expect(page.locator("main")).to_contain_text("backburner doctor")
