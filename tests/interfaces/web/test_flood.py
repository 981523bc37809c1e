"""Several hundred tasks while pages are open: in the end, every page shows what the ledger has."""

# ruff: noqa: F811 - fixtures are imported by their names

from collections.abc import Callable
from typing import Any

import pytest
from browser_fixture import ServedHome, Watched, another, chromium, page, served, watched  # noqa: F401
from conftest import wait_until
from playwright.sync_api import Page, Route, expect

from backburner import BackburnerSync

MANY = 300  # more than what is kept for later
RESET = "new BroadcastChannel('bb-stream').postMessage({kind: 'message', message: {event: 'reset', data: {}}})"
# Scrolls through the whole list, and returns which rows it has and whether they are shown as completed.
ALL_ROWS = """async () => {
  const found = {};
  scrollTo(0, 0);
  for (let atEnd = 0; atEnd < 20; atEnd++) {
    await new Promise(requestAnimationFrame);
    await new Promise(requestAnimationFrame);
    for (const row of document.querySelectorAll('.row')) found[row.dataset.key] = row.querySelector('.state.done') !== null;
    if (scrollY + innerHeight < document.documentElement.scrollHeight - 2) atEnd = 0;
    scrollBy(0, 400);
  }
  scrollTo(0, 0);
  return found;
}"""


def open_board(page: Page, served: ServedHome, query: str = "") -> Page:
    page.goto(f"{served.address}/{query}")
    expect(page.locator(".connection")).to_contain_text("live")
    return page


def flood(served: ServedHome, count: int, **options: Any) -> list[str]:
    """Run commands that end at once, and wait for all."""
    with BackburnerSync.open(served.home.root) as library:
        task_ids = [library.submit(["true"], cwd=served.home.cwd, approved=True, **options).task.task_id for _ in range(count)]
        library.wait(*task_ids)
    return task_ids


@pytest.mark.parametrize("count", [60, MANY])
def test_boards_show_every_task_of_a_flood_in_the_end(count: int, page: Page, another: Callable[..., Page], served: ServedHome) -> None:
    name = f"flood-{count}"
    filtered = open_board(another(), served, f"?q={name}")
    open_board(page, served)
    task_ids = set(flood(served, count, description=name))
    expected = dict.fromkeys(task_ids, True)
    wait_until(lambda: filtered.evaluate(ALL_ROWS) == expected, "the filtered board to show all tasks as completed")
    everything = {str(task["task_id"]): True for task in served.home.json("list", "--all", "--limit", "1000")}  # type: ignore[union-attr, index, call-overload]
    assert task_ids <= everything.keys()
    wait_until(lambda: page.evaluate(ALL_ROWS) == everything, "the board to show all tasks as completed")
    assert page.evaluate("shifts") == filtered.evaluate("shifts") == []


def test_the_page_of_a_task_shows_its_end_during_a_flood(page: Page, served: ServedHome) -> None:
    gate = served.home.run("sh", "-c", "until [ -e go ]; do sleep 0.05; done")
    task = served.home.run("true", options=("--after", gate))
    page.goto(f"{served.address}/t/{task}")
    expect(page.locator("main .state, main .badge").first).to_be_visible()
    (served.home.cwd / "go").touch()
    flood(served, MANY)
    served.home.ok("wait", task)
    expect(page.locator("main")).to_contain_text("completed")


def test_a_task_whose_change_comes_later_is_read_by_its_page(page: Page, served: ServedHome) -> None:
    task = served.home.finish("true")["task_id"]
    page.goto(f"{served.address}/t/{task}")
    expect(page.locator("main")).to_contain_text("completed")
    for message in ({"event": "rows", "data": {"later": [task], "more": True}}, {"event": "reset", "data": {}}):
        with page.expect_response(f"**/api/v1/tasks/{task}"):
            page.evaluate("message => new BroadcastChannel('bb-stream').postMessage({kind: 'message', message})", message)


def test_pages_that_were_loaded_by_scrolling_stay_when_the_board_is_loaded_again(page: Page, served: ServedHome) -> None:
    flood(served, MANY)
    open_board(page, served)
    before = page.evaluate(ALL_ROWS)
    assert len(before) >= MANY
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    last = page.locator(".row").last
    expect(last).to_be_visible()
    place = page.evaluate("scrollY")
    with page.expect_response("**/api/v1/tasks?*"):
        page.evaluate(RESET)
    newest = served.home.finish("echo", "after the reset")["task_id"]
    wait_until(lambda: page.evaluate("scrollY") >= place, "the place in the list")
    wait_until(lambda: page.evaluate(ALL_ROWS) == {**before, str(newest): True}, "all rows")


def test_a_row_that_comes_while_the_board_is_loaded_is_kept(page: Page, served: ServedHome) -> None:
    open_board(page, served)
    held: list[tuple[Route, dict[str, Any]]] = []

    def hold(route: Route) -> None:
        headers = {**route.request.headers, "host": f"backburner.localhost:{served.port}"}
        held.append((route, route.fetch(url=f"http://127.0.0.1:{served.port}/api/v1/board", headers=headers).json()))

    page.route("**/api/v1/board*", hold)
    page.evaluate(RESET)
    wait_until(lambda: page.evaluate("1") and held, "the request for the board")
    served.home.finish("echo", "newer than the answer")
    newer = page.get_by_role("link", name="echo 'newer than the answer'")
    expect(newer).to_be_visible()
    (route, board) = held[0]
    board["recent"].insert(0, {**board["recent"][0], "task_id": "task_in_answer", "description": "in the answer"})
    route.fulfill(json=board)
    expect(page.get_by_role("link", name="in the answer")).to_be_visible()
    expect(newer).to_be_visible()


def test_a_filter_that_changes_while_its_tasks_are_loaded_is_loaded_too(page: Page, served: ServedHome) -> None:
    served.home.finish("echo", "first-word")
    flood(served, MANY)  # so that the board does not have it
    held: list[Route] = []
    page.route("**/api/v1/tasks?q=first&*", lambda route: held.append(route))
    open_board(page, served, "?q=first")
    wait_until(lambda: page.evaluate("1") and held, "the request for the first filter")
    with page.expect_response("**/api/v1/tasks?q=first-word&*"):
        page.get_by_role("searchbox", name="Filter tasks").fill("first-word")
        held[0].continue_()
    expect(page.get_by_role("link", name="echo first-word")).to_be_visible()
