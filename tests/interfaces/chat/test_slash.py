"""Slash commands in a real terminal. The names of the tests `test_slash_…` are prescribed by the design (tests 14 to 18)."""

# ruff: noqa: F811 - fixtures are imported by their names
import json
import re

import pytest
from chat_fixture import Chats, chat_home, chats, task_in  # noqa: F401
from conftest import HomeCli, caller, wait_until
from terminal import Terminal

from backburner.interfaces.tui.chat import slash_commands as commands
from backburner.services.app import open_app


def _tasks(home_cli: HomeCli) -> list[dict[str, object]]:
    found = home_cli.json("list")
    assert isinstance(found, list)
    return found


def _started_id(terminal: Terminal) -> str:
    """The id of the task that the chat started last."""
    return task_in(terminal, r"Started background task {}\. Use")


def test_slash_background(chats: Chats) -> None:
    """Run /background echo hello, verify task created."""
    with chats.open() as terminal:
        terminal.type("/background echo hello\r")
        terminal.wait("Started background task")
        terminal.wait("completed: hello")
        (task,) = _tasks(chats.home_cli)
        assert task["command"] == ["echo", "hello"]
        assert f"Use /status {task['task_id']} to check progress." in terminal.history.replace("\n", " ")


def test_slash_background_approval(chats: Chats) -> None:
    """Run /background rm -rf, verify approval prompt."""
    home_cli = chats.home_cli
    (home_cli.cwd / "junk").mkdir()
    with chats.open() as terminal:
        terminal.type("/background rm -rf junk\r")
        terminal.wait("Start in background? [y/n")
        for words in ("Command requires approval:", "rm -rf junk", f"Directory: {home_cli.cwd}"):
            assert words in terminal.history.replace("\n", "")
        assert (home_cli.cwd / "junk").exists()
        terminal.type("y\r")  # a question that a command of the user led to takes the first key
        terminal.wait("Started background task")
        wait_until(lambda: not (home_cli.cwd / "junk").exists(), "the directory to be deleted")
        (task,) = _tasks(home_cli)
        assert task["approved_by"] == "user"
        with open_app(str(home_cli.root), dict(home_cli.environ)) as app:
            assert app.queries.find(str(task["task_id"]), caller(app)).task.decision.via == "chat"


def test_approve_without_an_id_asks_about_everything_that_waits_in_the_project(chats: Chats) -> None:
    home_cli = chats.home_cli
    assert home_cli.cli("run", "--", "rm", "-rf", "junk").returncode == 3
    with chats.open() as terminal:
        terminal.wait("1 waiting for approval")
        terminal.type("/approve\r")
        terminal.wait("Start in background? [y/n")
        terminal.type("n\r")
        terminal.wait("Not started.")
        terminal.wait(lambda t: "waiting for approval" not in t.text)
        terminal.type("/approve\r")
        terminal.wait("Nothing is waiting for approval.")


def test_help_and_sent_lines_break_between_words(chats: Chats) -> None:
    words = "some words of a message that is longer than a line of this narrow terminal"
    with chats.open(columns=60) as terminal:
        terminal.type("/help\r")
        terminal.wait("Ctrl-D exits")
        terminal.type(f"{words}\r")
        terminal.wait("You said:")
        shown = " ".join(terminal.history.split())
        assert words in shown and "list recurring tasks, or add one (like `backburner add`)" in shown
        assert "put --shell before it to use a shell" in shown


def test_slash_tasks_list(chats: Chats) -> None:
    """Run /tasks, verify table output."""
    home_cli = chats.home_cli
    with chats.open(columns=120) as terminal:
        terminal.type("/tasks\r")
        terminal.wait("No background tasks in this project.")
        for name in ("Task 1", "Task 2"):
            home_cli.ok("run", "--wait", "--description", name, "--", "echo", name)
        terminal.type("/tasks completed\r")
        row = r"task_\S+ +completed +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +\d+m?s +Task"
        table = rf"^ID +Status +Started +Duration +Description\n[─ ]+\n{row} 1\n{row} 2$"
        terminal.wait(lambda t: re.search(table, t.history, re.MULTILINE))
        terminal.type("/tasks cooking\r")
        terminal.wait("Unknown status 'cooking'")


def test_a_table_is_emitted_as_one_block(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a notice could appear between its lines."""
    for name in ("Task 1", "Task 2"):
        chats.home_cli.ok("run", "--description", name, "--", "echo", name)
    monkeypatch.chdir(chats.home_cli.cwd)
    emitted = list[str]()
    commands.call("tasks", "", str(chats.home_cli.root), emitted.append, session_id="chat", terminal=False)
    (table,) = emitted
    assert [line.rpartition("\t")[2] for line in table.split("\n")] == ["Task 2", "Task 1"], table


def test_slash_status(chats: Chats) -> None:
    """Run /status <id>, verify detailed output."""
    with chats.open(rows=40) as terminal:
        terminal.type("/background echo test output\r")
        terminal.wait("completed: test output")
        task_id = _started_id(terminal)
        terminal.type(f"/status {task_id}\r")
        terminal.wait("Trace: ")  # its last line
        for words in (
            f"Task: {task_id}",
            "Status: completed",
            "Command: echo test output",
            "Exit code: 0",
            "Recent output (last 1 line):",
            "Full output: ",
        ):
            assert words in terminal.history
        terminal.type("/status nonsense\r")
        terminal.wait("Task nonsense not found.")


def test_slash_cancel(chats: Chats) -> None:
    """Run /cancel <id>, verify cancellation."""
    with chats.open() as terminal:
        terminal.type("/background sleep 100\r")
        task_id = _started_id(terminal)
        terminal.type(f"/cancel {task_id}\r")
        terminal.wait(f"Cancelling task {task_id}...")
        terminal.wait(f"Task {task_id} cancelled.")
        assert chats.home_cli.status(task_id)["status"] == "cancelled"
        terminal.type(f"/cancel {task_id}\r")
        terminal.wait(f"Task {task_id} is not running (status: cancelled).")
        terminal.type("/cancel nonsense\r")
        terminal.wait("Task nonsense not found.")


def test_all_other_slash_commands(chats: Chats) -> None:
    home_cli = chats.home_cli
    with chats.open(columns=120, rows=50) as terminal:
        terminal.type("/help\r")
        terminal.wait("/schedule [NAME")
        terminal.type("/nonsense\r")
        terminal.wait("Unknown command /nonsense.")
        terminal.type("/background echo one | tail\r")
        terminal.wait("needs a shell")
        terminal.type("/background --shell echo one | tail -n 1\r")
        terminal.wait("completed: one")
        first = _started_id(terminal)
        terminal.type(f"/logs {first}\r")
        terminal.wait(lambda t: re.search(r"/logs .*\n(.*\n)?one\n", t.history))
        terminal.type(f"/restart {first}\r")
        wait_until(lambda: len(_tasks(home_cli)) == 2, "the restarted task")
        terminal.type("/schedule\r")
        terminal.wait("No recurring tasks in this project.")
        terminal.type("/schedule look --every 1h -- git status\r")
        wait_until(lambda: any(task["name"] == "look" for task in _tasks(home_cli)), "the recurring task")
        terminal.type("/schedule\r")
        terminal.wait("next in")
        terminal.type("/model\r")
        terminal.wait("Model: openai-chat:scripted.")
        terminal.type("/model nonsense\r")
        terminal.wait("Unknown agent 'nonsense'")
        started = home_cli.ok("run", "--stdin", "--", "cat").strip()
        wait_until(lambda: home_cli.status(started)["status"] == "running", "it to run")
        terminal.type(f"/send {started} two   words 'as they are'\r")
        terminal.wait(lambda _: home_cli.log(started) == b"two   words 'as they are'\n")
        terminal.type(f"/cancel {started}\r")
        terminal.wait(f"Task {started} cancelled.")
        proposed = json.loads(home_cli.cli("run", "--json", "--", "rm", "x").stderr)["error"]["task_id"]
        terminal.wait("1 waiting for approval")
        terminal.type(f"/reject {proposed}\r")
        terminal.wait(f"Task {proposed} rejected.")
        home_cli.ok("cancel", "look")
        terminal.type("/quit\r")
        assert terminal.ended() == 0


def test_options_that_would_block_the_chat_are_rejected(chats: Chats) -> None:
    with chats.open() as terminal:
        for line, usage in (("/send x", "/send ID TEXT"), ("/inbox -f", "/inbox"), ("/restart x --wait", "/restart ID")):
            terminal.type(f"{line}\r")
            terminal.wait(f"Usage: {usage}")
        terminal.type("\x04")
        assert terminal.ended() == 0
