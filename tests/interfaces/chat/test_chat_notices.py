"""Notices in the chat: above the input line, combined when there are many, and only in the chat they belong to."""

# ruff: noqa: F811 - fixtures are imported by their names
import re

import pytest
from chat_fixture import Chats, chat_home, chats, line_of, type_and_wait  # noqa: F401
from conftest import caller

from backburner.services.app import now_ms, open_app
from backburner.store.notice_writer import NoticeWriter
from backburner.system import wakeups
from backburner.testing.records import request

CTRL_C = "\x03"


def test_notices_appear_above_the_input_line_and_do_not_change_it(chats: Chats) -> None:
    with chats.open() as terminal:
        type_and_wait(terminal, "half a line")
        chats.home_cli.ok("run", "--", "echo", "something ended")
        terminal.wait("completed: something ended")
        terminal.wait(lambda t: line_of(t) == "› half a line")
        terminal.type(" and the rest\r")
        terminal.wait("You said: half a line and the rest")


def test_a_notice_of_a_recurring_task_is_shown_in_a_box(chats: Chats) -> None:
    with chats.open() as terminal:
        type_and_wait(terminal, "half a line")
        chats.home_cli.ok("add", "check-ci", "--every", "1h", "--", "echo", "CI failed")
        chats.home_cli.ok("run-now", "check-ci")
        terminal.wait("check-ci: CI failed")
        terminal.wait(lambda t: line_of(t) == "› half a line")
        lines = [line.rstrip() for line in terminal.lines]
        at = lines.index("check-ci: CI failed")
        assert lines[at - 1].startswith("─── background: check-ci ─────") and set(lines[at + 1]) == {"─"}


def test_of_a_long_notice_the_first_lines_are_shown(chats: Chats) -> None:
    with chats.open() as terminal:
        type_and_wait(terminal, "half a line")
        task_id = chats.home_cli.ok("run", "--", "seq", "100").strip()
        terminal.wait(f"… 82 more lines: backburner logs {task_id}")
        assert line_of(terminal) == "› half a line" and "\n  18\n" in terminal.text


def test_many_notices_are_combined_into_one_line_while_the_user_types(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(chats.home_cli.cwd)
    with chats.open() as terminal, open_app(str(chats.home_cli.root), dict(chats.home_cli.environ)) as app:
        type_and_wait(terminal, "before")
        known = app.submissions.submit(request(command=("true",), cwd=str(chats.home_cli.cwd)), caller(app))
        app.waiting.wait([known.task.task_id], 60)
        database = app._ledger.database
        with database.transaction():
            for number in range(200):
                NoticeWriter(database).write(known.task, known.run, f"Background task {number}: x.", now_ms(), again=True)
        wakeups.wake_all(app.home.socket_dir)
        terminal.wait(lambda t: re.search(r"\d+ notices: \d+ completed. /inbox shows them.", t.history))
        type_and_wait(terminal, " after")
        assert line_of(terminal) == "› before after" and len(terminal.history.split("\n")) < 60
        terminal.wait(lambda t: re.search("(199|20[01]) unread", t.text))
        terminal.type(f"{CTRL_C}/inbox\r")
        terminal.wait("Background task 199: x.")
        terminal.wait(lambda t: "unread" not in t.text)


def test_notices_about_tasks_of_a_chat_appear_only_in_thatrun_chat(chats: Chats) -> None:
    with chats.open() as one, chats.open() as two:
        for number in range(4):
            one.type(f"/background echo number {number}\r")
        for number in range(4):
            one.wait(f"completed: number {number}")
        two.read(1)
        assert "completed" not in two.history
