"""Makes the pictures of the web interface: `.venv/bin/python docs/web_pictures.py [FOLDER]` (default: docs/).

Starts a home with a few real tasks and agents (with a scripted model), pairs Chromium with it, and takes a picture of each screen.
Without a folder, only the pictures that the documentation shows are taken; with one, every screen in light, dark and phone width.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/interfaces/web")]

from browser_fixture import DESK, PHONE, ServedHome, Watched, started_browser  # noqa: E402
from conftest import HomeCli, is_development_variable  # noqa: E402
from playwright.sync_api import Page  # noqa: E402

from backburner.testing.scripted_model import ScriptedModel  # noqa: E402

SHOWN = {
    "web-board": ("now", DESK, "light"),
    "web-approval": ("ask", DESK, "light"),
    "web-output": ("run", DESK, "dark"),
    "web-agent": ("agent", DESK, "light"),
    "web-phone": ("ask", PHONE, "light"),
}
TESTS = r"""
import sys, time
for n in range(1, 248):
    print(f"tests/test_gate.py::test_rule_{n} \033[32mPASSED\033[0m" if n % 41 else f"tests/test_gate.py::test_rule_{n} \033[31mFAILED\033[0m", flush=True)
    if n > 131:
        time.sleep(30)
"""


EDITED = "def close(listener, queue):\n    queue.drain()\n    listener.close()\n    return True\n"
STEPS = [
    {"say": "I look at the module first.", "tool": "read_file", "args": {"path": "wake.py"}},
    {"tool": "write_file", "args": {"path": "wake.py", "content": EDITED}},
    {"say": "The listener was closed before the queue was drained, so the last wake-up could be lost.\n\nNow the queue is drained first."},
]


def think(turns: list[tuple[str, str]]) -> dict[str, object]:
    """The next step of the agent in the pictures."""
    return STEPS[min(len(STEPS) - 1, sum(role == "tool" for role, _ in turns))]


@contextmanager
def demo() -> Iterator[tuple[ServedHome, dict[str, str]]]:
    """A home with work of several clients; yields it with the addresses of its screens."""
    with tempfile.TemporaryDirectory(prefix="bb.") as folder, ScriptedModel(think) as model:
        for name in list(os.environ):
            if is_development_variable(name):
                del os.environ[name]
        api = Path(folder) / "api"
        for name in ("api", "web", "core"):
            project = Path(folder) / name
            project.mkdir()
            (project / "Makefile").write_text(
                "dist: build\n\tpython -m build\n\nlint:\n\t@echo 'src/app.py:12: E501 line too long'; exit 2\n"
            )
            (project / "wake.py").write_text("def close(listener, queue):\n    listener.close()\n    return queue.empty()\n")
            for words in (
                ["init", "-q", "-b", "main"],
                ["add", "."],
                ["-c", "user.name=Ada", "-c", "user.email=a@b.c", "commit", "-qm", "Start"],
            ):
                subprocess.run(["git", *words], cwd=project, check=True)
        home = HomeCli(Path(folder) / "home", api)
        home.configure(
            "[approval]\nyes_without_terminal = true\n"
            f'[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n[tasks]\nmax_concurrent = 5\n'
        )
        home.environ["HOME"] = folder
        clients = {"claude": {"CLAUDE_CODE_SESSION_ID": "7f3c2a91"}, "codex": {"CODEX_THREAD_ID": "0198ab"}, "you": {}}

        def call(project: str, client: str, *words: str) -> str:
            return home.cli(*words, env=clients[client], cwd=Path(folder) / project).stdout.strip()

        served = ServedHome(home)
        try:
            (api / "run_tests.py").write_text(TESTS)
            for project, client, words in (
                ("core", "you", ["git", "log", "--oneline"]),
                ("api", "claude", ["make", "lint"]),
                ("web", "codex", ["echo", "compiled 214 modules"]),
                ("api", "claude", ["git", "status", "--short"]),
            ):
                call(project, "you" if client == "you" else client, "run", "--wait", "--", *words)
            call("api", "you", "add", "ci", "--every", "5m", "--yes", "--", "git", "fetch")
            call("core", "you", "add", "report", "--cron", "0 9 * * 1-5", "--yes", "--", "make", "report")
            running = call("api", "you", "run", "--yes", "--description", "Run the tests", "--", sys.executable, "run_tests.py")
            call(
                "web", "you", "run", "--yes", "--description", "Development server", "--", "sh", "-c", "echo ready on port 5173; sleep 600"
            )
            agent = call("api", "you", "ask", "--worktree", "Fix wake.py, its test fails one time in twenty.")
            home.cli("wait", agent, "--timeout", "60")
            call("core", "codex", "run", "--", "pip", "install", "pytest-repeat")
            call("api", "claude", "run", "--shell", "--", "rm -rf dist && make dist && twine upload dist/*")
            asked = next(task["task_id"] for task in home.json("list") if task["status"] == "proposed" and task["shell"])  # type: ignore[union-attr, index, call-overload]
            yield (
                served,
                {
                    "now": "/",
                    "ask": f"/ask/{asked}",
                    "run": f"/t/{running}",
                    "agent": f"/t/{agent}",
                    "changes": f"/t/{agent}?tab=changes",
                    "details": f"/t/{running}?tab=details",
                    "inbox": "/inbox",
                    "audit": "/audit",
                    "settings": "/settings",
                },
            )
        finally:
            home.cli("cancel", *(task["task_id"] for task in home.json("list", "--all") if task["status"] == "running"))  # type: ignore[union-attr, index, call-overload]
            served.stop()


def take(page: Page, served: ServedHome, address: str, path: Path) -> None:
    served.authenticator(page)
    page.goto(served.address + address)
    page.locator(".connection.done").wait_for()
    page.wait_for_timeout(1200)
    page.screenshot(path=path)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with started_browser() as chromium, demo() as (served, addresses):
        watched = Watched(chromium)
        page = watched.context.new_page()
        served.pair(page)
        served.add_passkey(page)
        watched.close()
        wanted = SHOWN
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            looks = (("light", DESK, "light"), ("dark", DESK, "dark"), ("phone", PHONE, "light"), ("phone-dark", PHONE, "dark"))
            wanted = {f"{screen}-{name}": (screen, size, theme) for screen in addresses for name, size, theme in looks}
        for name, (screen, size, theme) in wanted.items():
            watched = Watched(chromium, size, state=served.state, phone=size is PHONE, color_scheme=theme)
            take(watched.context.new_page(), served, addresses[screen], (folder or ROOT / "docs") / f"{name}.png")
            watched.close()


if __name__ == "__main__":
    main()
