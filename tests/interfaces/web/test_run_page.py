"""The page of a command and its output, in a real browser."""

# ruff: noqa: F811 - fixtures are imported by their names

import sys

from browser_fixture import ServedHome, Watched, chromium, page, served, watched  # noqa: F401
from conftest import wait_until
from playwright.sync_api import Page, expect

READ_ALL = """async () => {
    const box = document.querySelector('.log-box'), lines = new Map();
    const frame = () => new Promise(resolve => requestAnimationFrame(resolve));
    for (let top = 0; ; top += box.clientHeight / 2) {
        box.scrollTop = top;
        for (let frames = 0; frames < 4; frames++) await frame();
        for (let tries = 0; tries < 200; tries++) {
            await frame();
            if (![...document.querySelectorAll('.log-line .t')].some(line => line.textContent === '\\u00a0')) break;
        }
        for (const line of document.querySelectorAll('.log-line')) lines.set(Number(line.dataset.line), line.querySelector('.t').textContent);
        if (top >= box.scrollHeight) break;
    }
    return [...lines].sort((a, b) => a[0] - b[0]).map(line => line[1]);
}"""


def open_task(page: Page, served: ServedHome, task: str, rest: str = "") -> None:
    page.goto(f"{served.address}/t/{task}{rest}")
    expect(page.locator(".connection")).to_contain_text("live")


def test_a_long_log_opens_at_its_end_with_few_elements(page: Page, served: ServedHome) -> None:
    task = served.home.finish(sys.executable, "-c", "for n in range(1, 100_001): print(f'\\x1b[32mline\\x1b[0m {n}')")["task_id"]
    open_task(page, served, str(task))
    expect(page.locator(".log-line .t").last).to_have_text("line 100000")
    assert page.evaluate("document.querySelectorAll('.log *').length") < 400
    page.locator(".log-box").focus()
    page.keyboard.press("g")
    page.keyboard.press("g")
    expect(page.locator(".log-line .t").first).to_have_text("line 1")
    page.keyboard.press("G")
    expect(page.locator(".log-line .t").last).to_have_text("line 100000")
    open_task(page, served, str(task), "#L54321")
    expect(page.locator(".log-line.marked .t")).to_have_text("line 54321")


def test_search_finds_all_lines_and_goes_through_them(page: Page, served: ServedHome) -> None:
    task = served.home.finish(sys.executable, "-c", "for n in range(1, 3001): print('needle' if n % 1000 == 7 else 'hay', n)")["task_id"]
    open_task(page, served, str(task))
    expect(page.locator(".log-line .t").last).to_have_text("hay 3000")
    page.keyboard.press("Control+f")
    page.keyboard.type("needle")
    expect(page.locator(".log-bar [role=status]")).to_contain_text("of 3")
    page.keyboard.press("Enter")
    marked = page.locator(".log-line.marked .t")
    first = marked.inner_text()
    page.locator(".log-box").focus()
    page.keyboard.press("]")
    expect(marked).not_to_have_text(first)
    expect(marked).to_contain_text("needle")


def test_the_output_is_followed_until_somebody_scrolls_up(page: Page, served: ServedHome) -> None:
    more = served.home.cwd / "more"
    code = f"import os, time\nprint('\\n'.join(map(str, range(200))), flush=True)\nwhile not os.path.exists({str(more)!r}): time.sleep(0.05)\nprint('the end')"
    task = served.home.run(sys.executable, "-c", code)
    open_task(page, served, task)
    expect(page.locator(".log-line .t").last).to_have_text("199")
    page.locator(".log-box").hover()
    page.mouse.wheel(0, -1500)
    expect(page.get_by_role("button", name="Follow the end")).to_have_attribute("aria-pressed", "false")
    more.touch()
    expect(page.get_by_role("button", name="1 new line")).to_be_visible()
    page.keyboard.press("G")
    expect(page.locator(".log-line .t").last).to_have_text("the end")
    expect(page.locator(".badge.done").first).to_be_visible()


def test_wrapped_lines_are_all_reachable(page: Page, served: ServedHome) -> None:
    task = served.home.finish(sys.executable, "-c", "for n in range(300): print(n, 'wide ' * (n % 90), '漢字')")["task_id"]
    open_task(page, served, str(task))
    expect(page.locator(".log-line .t").last).to_contain_text("299")
    page.keyboard.press("s")
    expect(page.get_by_role("button", name="Wrap long lines")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(READ_ALL) == served.home.log(str(task)).decode().splitlines()


def test_ten_tabs_show_the_same_bytes_as_the_files_after_the_server_and_the_engine_were_killed(
    watched: Watched, served: ServedHome
) -> None:
    stop = served.home.cwd / "stop"
    code = f"import os, time, itertools\nfor n in itertools.count():\n  print('line', n, flush=True); time.sleep(0.05)\n  if os.path.exists({str(stop)!r}): break\nprint('last')"
    tasks = [served.home.run(sys.executable, "-c", code), served.home.run(sys.executable, "-c", code)]
    tabs = [(watched.context.new_page(), tasks[number % 2]) for number in range(10)]
    for tab, task in tabs:
        open_task(tab, served, task)
        expect(tab.locator(".log-line .t").first).to_contain_text("line")
    watched.expect(
        "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "Failed to load resource"
    )
    served.kill_server()
    served.home.kill_engine()
    for tab, _ in tabs:
        expect(tab.locator(".connection")).to_contain_text("live", timeout=60_000)
    before = {task: len(served.home.log(task).splitlines()) for task in tasks}
    wait_until(lambda: all(len(served.home.log(task).splitlines()) > before[task] + 20 for task in tasks), "more output after the kill", 60)
    served.kill_server()  # a second time, while the tabs follow
    stop.touch()
    served.home.ok("wait", *tasks, "--timeout", "60")
    written = {task: served.home.log(task).decode().splitlines() for task in tasks}
    for tab, task in tabs:
        expect(tab.locator(".log-line .t").last).to_have_text("last", timeout=60_000)
        assert tab.evaluate(READ_ALL) == written[task]


def test_a_line_of_ten_megabytes_does_not_stop_the_page(page: Page, served: ServedHome) -> None:
    go = served.home.cwd / "go"
    code = (
        "import os, sys, time\nprint('before', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        "for n in range(160): sys.stdout.write('\\x1b[31mred\\x1b[0mé' * 5000); sys.stdout.flush()\n"
        "print(flush=True)\nprint('after', flush=True)"
    )
    task = served.home.run(sys.executable, "-c", code)
    open_task(page, served, task)
    expect(page.locator(".log-line .t").last).to_have_text("before")
    page.get_by_role("button", name="Wrap long lines").click()
    go.touch()
    expect(page.locator(".log-line .t").last).to_have_text("after")
    page.get_by_role("button", name="Wrap long lines").click()
    open_task(page, served, task)
    expect(page.locator(".log-line .t").last).to_have_text("after")
    page.locator(".log-box").focus()
    page.keyboard.press("g")
    page.keyboard.press("g")
    expect(page.locator(".log-line .t").first).to_have_text("before")
    assert len(page.locator(".log-line .t").nth(1).inner_text()) <= 20_000


def test_a_task_is_cancelled_after_a_question(page: Page, served: ServedHome) -> None:
    task = served.home.run("sleep", "600")
    open_task(page, served, task)
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog", name="Cancel this task?")
    expect(dialog).to_contain_text(f"backburner cancel {task}")
    dialog.get_by_role("button", name="Cancel the task").click()
    expect(page.locator(".task-head .badge")).to_contain_text("cancelled")


def test_a_link_of_the_output_is_opened_after_it_was_shown(page: Page, served: ServedHome) -> None:
    task = served.home.finish("echo", "see https://example.com/a?b=1")["task_id"]
    open_task(page, served, str(task))
    page.locator(".log-line a.link").click()
    expect(page.get_by_role("dialog", name="Open this address?")).to_contain_text("https://example.com/a?b=1")


def test_states_without_output_say_why(page: Page, watched: Watched, served: ServedHome) -> None:
    quiet = served.home.finish("true")["task_id"]
    open_task(page, served, str(quiet))
    expect(page.locator(".log-note")).to_have_text("It wrote no output.")
    watched.expect("404")
    page.goto(f"{served.address}/t/task_of_nobody")
    expect(page.get_by_role("alert")).to_contain_text("not found")


def test_the_tabs_are_reached_with_the_arrow_keys(page: Page, served: ServedHome) -> None:
    task = served.home.finish("echo", "tabs")["task_id"]
    open_task(page, served, str(task))
    page.get_by_role("tab", name="Output").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Details")).to_be_focused()
    expect(page.get_by_role("tabpanel")).to_contain_text("echo tabs")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel")).to_contain_text("It completed.")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel")).to_contain_text("run started")
