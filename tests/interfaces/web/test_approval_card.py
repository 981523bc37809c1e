"""The approval card, in a real browser with a virtual authenticator."""

# ruff: noqa: F811 - fixtures are imported by their names

from browser_fixture import ServedHome, Watched, browser_path, chromium, page, served, watched  # noqa: F401
from conftest import wait_until
from playwright.sync_api import Browser, Page, expect


def open_card(page: Page, served: ServedHome, task: str) -> None:
    page.goto(f"{served.address}/ask/{task}")
    expect(page.locator(".connection")).to_contain_text("live")
    expect(page.locator(".card")).to_be_visible()


def test_approving_with_a_passkey_runs_the_command_and_is_in_the_audit(page: Page, served: ServedHome) -> None:
    task = served.propose("touch", "made-by-approval")
    served.authenticator(page)
    open_card(page, served, task)
    expect(page.locator(".command")).to_contain_text("touch made-by-approval")
    page.keyboard.press("a")
    expect(page.locator("#approve")).to_be_focused()
    assert served.home.status(task)["status"] == "proposed", "one key must not approve"
    page.keyboard.press("Enter")
    expect(page.locator(".card")).to_contain_text("Approved")
    wait_until((served.home.cwd / "made-by-approval").exists, "the command to run")
    page.goto(f"{served.address}/audit?decision=approved&verify=true")
    row = page.locator(".audit li", has_text="touch made-by-approval")
    expect(row).to_contain_text("with a passkey")
    expect(row).to_contain_text("Chromium")
    expect(row).to_contain_text("verified")


def test_a_double_click_runs_the_command_once(page: Page, served: ServedHome) -> None:
    task = served.propose("sh", "-c", "echo once >>runs")
    served.authenticator(page)
    open_card(page, served, task)
    page.locator("#approve").dblclick()
    expect(page.locator(".card")).to_contain_text("Approved")
    served.home.ok("wait", task, "--timeout", "60")
    assert (served.home.cwd / "runs").read_text() == "once\n"
    assert served.home.status(task)["run_count"] == 1


def test_a_script_that_changes_after_the_card_was_drawn_is_not_approved(page: Page, watched: Watched, served: ServedHome) -> None:
    script = served.home.cwd / "deploy.sh"
    script.write_text("echo first\n")
    task = served.propose("sh", "deploy.sh")
    served.authenticator(page)
    watched.expect("409")
    open_card(page, served, task)
    script.write_text("echo second\n")
    page.locator("#approve").click()
    expect(page.locator(".card")).to_contain_text("What would run has changed since you looked")
    assert served.home.status(task)["status"] == "proposed"
    page.get_by_text("deploy.sh").last.click()
    expect(page.locator(".card pre")).to_contain_text("echo second")
    page.locator("#approve").click()
    expect(page.locator(".card")).to_contain_text("Approved")
    served.home.ok("wait", task, "--timeout", "60")
    assert served.home.log(task) == b"second\n"


def test_without_a_touch_nothing_is_approved(page: Page, served: ServedHome) -> None:
    task = served.propose("touch", "never-made")
    served.authenticator(page).refuse()
    open_card(page, served, task)
    page.locator("#approve").click()
    expect(page.get_by_role("alert")).to_contain_text("The passkey was not used. Nothing was approved.")
    assert served.home.status(task)["status"] == "proposed"
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    expect(page.locator(".card")).to_contain_text("Rejected")
    assert served.home.status(task)["status"] == "rejected"


def test_an_answer_in_the_terminal_is_shown_on_the_open_card(page: Page, served: ServedHome) -> None:
    task = served.propose("touch", "answered-elsewhere")
    open_card(page, served, task)
    served.home.ok("approve", task)
    expect(page.locator(".card")).to_contain_text("Approved via a terminal")
    expect(page.locator("#approve")).to_have_count(0)


def test_a_page_without_the_passkey_shows_the_command_for_the_terminal(chromium: Browser, served: ServedHome) -> None:
    watched = Watched(chromium)
    page = watched.context.new_page()
    state = served.state
    served.pair(page)
    served.state = state
    task = served.propose("touch", "needs-a-terminal")
    open_card(page, served, task)
    expect(page.locator("#approve")).to_have_count(0)
    expect(page.locator(".answers .cli")).to_contain_text(f"backburner approve {task}")
    served.home.ok("reject", task)
    watched.close()


def test_a_browser_that_a_program_controls_shows_no_buttons(chromium: Browser, served: ServedHome) -> None:
    task = served.propose("touch", "by-automation")
    automated = chromium.browser_type.launch(executable_path=browser_path())
    watched = Watched(automated, state=served.state)
    page = watched.context.new_page()
    open_card(page, served, task)
    expect(page.locator(".answers")).to_contain_text("controlled by a program")
    expect(page.locator(".answers .buttons button")).to_have_count(0)
    watched.close()
    automated.close()
    served.home.ok("reject", task)


def test_buttons_are_disabled_while_the_server_cannot_be_reached(page: Page, watched: Watched, served: ServedHome) -> None:
    task = served.propose("touch", "offline")
    open_card(page, served, task)
    watched.expect("ERR_INTERNET_DISCONNECTED", "ERR_FAILED", "Failed to load resource")
    watched.context.set_offline(True)
    page.evaluate("() => fetch('/api/v1/home').catch(() => {})")
    served.restart()
    expect(page.locator("#approve")).to_be_disabled(timeout=30_000)
    watched.context.set_offline(False)
    expect(page.locator("#approve")).to_be_enabled(timeout=30_000)
    served.home.ok("reject", task)


def test_a_long_command_is_shown_whole(page: Page, served: ServedHome) -> None:
    words = ["echo", "x" * 8000, "\u202eend"]
    task = served.propose("touch", *words)
    open_card(page, served, task)
    text = page.locator(".command").inner_text()
    assert "x" * 8000 in text.replace("\n", "")
    assert "202e" in text.lower()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    served.home.ok("reject", task)
