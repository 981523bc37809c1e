"""The cards of the other questions (a step of an agent, a budget, a recurring task, one that expired), changes of an agent, and files."""

# ruff: noqa: F811 - fixtures are imported by their names

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_fixture import DESK, PHONE, TABLET, ServedHome, Watched, chromium, page, settled, watched  # noqa: F401
from conftest import CONFIG, HomeCli, wait_until
from playwright.sync_api import Browser, Page, expect

from backburner.testing.scripted_model import ScriptedModel

HOSTILE = "<img src=x onerror=alert(1)>.txt"


@pytest.fixture(scope="module")
def served(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHome]:
    """A home with an agent that follows scripts, in a project with a repository."""
    folder = tmp_path_factory.mktemp("cards")
    project = folder / "project"
    project.mkdir()
    with ScriptedModel() as model:
        home = HomeCli(folder / "home", project)
        home.configure(f'{CONFIG}[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n')
        for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "x"]):
            (project / "a.txt").write_text("one two three\n")
            subprocess.run(["git", *command], cwd=project, check=True, env=home.environ)
        here = ServedHome(home)
        here.model = model  # type: ignore[attr-defined]
        try:
            watched = Watched(chromium)
            first = watched.context.new_page()
            here.pair(first)
            here.add_passkey(first)
            watched.close()
            yield here
        finally:
            here.stop()


def ask(served: ServedHome, *steps: object, options: tuple[str, ...] = ()) -> str:
    return served.home.ok("ask", *options, f"Do it. [[script: {json.dumps(steps)}]]").strip()


def wait_for(served: ServedHome, task: str, status: str) -> None:
    wait_until(lambda: served.home.status(task)["status"] == status, f"{task} to be {status}", 60)


def open_card(page: Page, served: ServedHome, task: str) -> None:
    page.goto(f"{served.address}/ask/{task}")
    expect(page.locator(".connection")).to_contain_text("live")
    expect(page.locator(".card")).to_be_visible()


def assert_accessible(page: Page) -> None:
    """What the page shows now has no accessibility error, in both themes at three widths, and is not wider than the window."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        for width, height in (TABLET, PHONE, DESK):
            page.set_viewport_size({"width": width, "height": height})
            settled(page)
            found = Axe().run(page).response["violations"]
            assert not found, (theme, width, [(one["id"], [node["html"][:160] for node in one["nodes"]][:3]) for one in found])
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (theme, width)
    page.emulate_media(color_scheme="light")


def test_a_step_of_an_agent_is_rejected_or_approved(page: Page, served: ServedHome) -> None:
    edit = {"tool": "edit_file", "args": {"path": "a.txt", "old": "two", "new": "TWO"}}
    task = ask(served, edit, {"say": "Then I leave it."})
    wait_for(served, task, "waiting")
    served.authenticator(page)
    open_card(page, served, task)
    expect(page.locator(".card .question")).to_contain_text("change a.txt")
    assert_accessible(page)
    page.get_by_role("button", name="Reject").click()
    wait_for(served, task, "completed")
    assert (served.home.cwd / "a.txt").read_text() == "one two three\n"
    task = ask(served, edit, {"say": "Done."})
    wait_for(served, task, "waiting")
    page.goto(f"{served.address}/ask/{task}")
    page.locator("#approve").click()
    wait_for(served, task, "completed")
    assert (served.home.cwd / "a.txt").read_text() == "one TWO three\n"


def test_a_budget_that_is_used_up_is_extended(page: Page, served: ServedHome) -> None:
    steps = [{"tool": "memory_list", "args": {}} for _ in range(3)] + [{"say": "done"}]
    task = ask(served, *steps, options=("--budget", "tool_calls=2"))
    wait_for(served, task, "waiting")
    served.authenticator(page)
    open_card(page, served, task)
    expect(page.locator(".card")).to_contain_text("2 of 2 tool calls")
    expect(page.locator(".card h2")).to_contain_text("needs more budget")
    assert_accessible(page)
    page.locator("#approve").click()
    wait_for(served, task, "completed")


def test_a_proposed_recurring_task_has_buttons_to_approve_and_reject(page: Page, served: ServedHome) -> None:
    served.authenticator(page)
    for name, button, status in (("nightly", "#approve", "active"), ("hourly", "#reject", "rejected")):
        served.home.cli("propose", name, "--cron", "0 2 * * *", "--", "true")
        task = next(str(one["task_id"]) for one in served.home.json("list", "proposed") if one["name"] == name)  # type: ignore[union-attr, index, call-overload]
        open_card(page, served, task)
        facts = page.locator(".facts")
        expect(facts).to_contain_text("02:00")
        expect(facts.locator("li.num")).to_have_count(5)  # the next five times
        assert_accessible(page)
        page.locator(button).click()
        wait_for(served, task, status)
        expect(page.locator(".card .notice")).to_be_visible()
        assert_accessible(page)


def test_the_agent_that_asked_reads_the_reason_of_a_rejection(page: Page, served: ServedHome) -> None:
    task = ask(served, {"tool": "run_command", "args": {"command": "rm a.txt"}}, {"say": "Then I leave it."})
    wait_for(served, task, "waiting")
    proposal = next(str(one["task_id"]) for one in served.home.json("list", "proposed"))  # type: ignore[union-attr, index, call-overload]
    open_card(page, served, proposal)
    page.get_by_label("Why not?").fill("It is still needed.")
    page.locator("#reject").click()
    expect(page.locator(".card")).to_contain_text("Rejected")
    expect(page.locator(".card .notice")).to_contain_text("It is still needed.")
    assert_accessible(page)
    wait_for(served, task, "completed")
    assert served.model.seen("Their reason: It is still needed.")  # type: ignore[attr-defined]


def test_a_question_that_nobody_answered_in_time_says_so(page: Page, served: ServedHome) -> None:
    config = Path(served.home.root) / "config.toml"
    before = config.read_text()
    config.write_text(before.replace("[approval]\n", "[approval]\nproposal_expiry_hours = 0.0001\n", 1))
    try:
        task = served.propose("touch", "too-late")
    except AssertionError:
        task = ""  # it had expired before it was listed
    finally:
        config.write_text(before)
    task = task or next(str(one["task_id"]) for one in served.home.json("list", "expired"))  # type: ignore[union-attr, index, call-overload]
    wait_for(served, task, "expired")
    open_card(page, served, task)
    expect(page.locator(".card .notice")).to_contain_text("Expired")
    expect(page.locator("#approve, #reject")).to_have_count(0)
    assert_accessible(page)


def test_the_changes_of_an_agent_are_shown_file_by_file(page: Page, served: ServedHome) -> None:
    steps = [
        {"tool": "write_file", "args": {"path": HOSTILE, "content": "new <b>file</b>\n"}},
        {"tool": "edit_file", "args": {"path": "a.txt", "old": "three", "new": "four"}},
        {"say": "done"},
    ]
    task = ask(served, *steps, options=("--worktree",))
    wait_for(served, task, "completed")
    page.goto(f"{served.address}/t/{task}?tab=changes")
    files = page.locator(".diff details.file")
    expect(files).to_have_count(2)
    expect(page.locator(".diff-head")).to_contain_text("2 files changed")
    expect(files.filter(has_text="a.txt").filter(has_not_text="img")).to_contain_text("four")
    expect(files.filter(has_text=HOSTILE)).to_contain_text("new <b>file</b>")
    assert page.locator(".diff img").count() == 0
    assert_accessible(page)


def test_the_files_of_a_run_are_downloaded_as_they_are(page: Page, served: ServedHome) -> None:
    task = str(served.home.finish("true")["task_id"])
    folder = Path(served.home.root) / "tasks" / task / "work"
    folder.mkdir(exist_ok=True)
    content = bytes(range(256)) * 1000
    (folder / HOSTILE).write_bytes(content)
    page.goto(f"{served.address}/t/{task}?tab=artifacts")
    row = page.locator(".tab-panel li", has_text=HOSTILE)
    expect(row).to_be_visible()
    assert_accessible(page)
    with page.expect_download() as download:
        row.get_by_role("button", name="Download").click()
    assert Path(download.value.path()).read_bytes() == content


def test_a_project_is_trusted_with_the_passkey(page: Page, served: ServedHome) -> None:
    served.home.finish("true")
    served.authenticator(page)
    page.goto(f"{served.address}/settings")
    project = str(served.home.cwd)
    page.get_by_role("button", name=f"Trust {project}").click()
    trusted = page.locator("section.group", has_text="Allowed without asking").locator("li", has_text=project)
    expect(trusted).to_contain_text("Trusted project")
    assert_accessible(page)
    trusted.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("button", name=f"Trust {project}")).to_be_visible()
