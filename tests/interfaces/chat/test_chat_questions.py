"""Approval questions in the chat: when they appear, which input answers them, and what an answer applies to."""

# ruff: noqa: F811 - fixtures are imported by their names
import os
import shutil
import signal

import pytest
from chat_fixture import Chats, chat_home, chat_session, chats, line_of, wait_for_question  # noqa: F401
from conftest import caller

from backburner.services.app import open_app
from backburner.testing.records import request

ESC, CTRL_C, CTRL_R = "\x1b", "\x03", "\x12"


def test_text_being_typed_does_not_answer_a_question(chats: Chats) -> None:
    home_cli = chats.home_cli
    (home_cli.cwd / "precious").write_text("x")
    chats.replies["tidy"] = [{"hang": 1.0, "tool": "run_command", "args": {"command": "rm precious"}}, {"say": "done"}]
    with chats.open() as terminal:
        terminal.type("tidy up\r")
        count = 0
        while count < 15 or "1 waiting for approval" not in terminal.text:  # type y while the question appears
            assert count < 90, f"the question does not appear; the screen is:\n{terminal.text}"
            terminal.type("y")
            terminal.read(0.2)
            count += 1
        terminal.wait(lambda t: line_of(t) == f"› {'y' * count}")  # all of them are in the input line
        assert (home_cli.cwd / "precious").exists()
        terminal.type(CTRL_C)
        terminal.wait("Start in background? [y/n")
        terminal.type("y")  # pressed right after the question appeared, so it goes to the input line
        terminal.wait(lambda t: line_of(t) == "› y")
        terminal.type("\x7f")
        terminal.wait(lambda t: [line for line in t.lines if line][-2].startswith("Start in background?"))
        terminal.read(0.8)
        terminal.type("maybe\r")
        terminal.wait("Please answer y or n.")
        terminal.wait(lambda t: line_of(t) == "› maybe")
        terminal.type(CTRL_C)
        terminal.wait(lambda t: [line for line in t.lines if line][-2].startswith("Start in background?"))
        terminal.read(0.8)
        terminal.type("n\r")
        terminal.wait("done")
        assert (home_cli.cwd / "precious").exists()


def test_a_postponed_question_can_be_answered_later(chats: Chats) -> None:
    home_cli = chats.home_cli
    (home_cli.cwd / "precious").write_text("x")
    chats.replies["tidy"] = [{"tool": "run_command", "args": {"command": "rm precious"}}, {"say": "All tidy."}]
    with chats.open() as terminal:
        terminal.type("tidy up\r")
        terminal.wait("Start in background? [y/n")
        terminal.read(0.8)
        terminal.type(ESC)
        terminal.wait("Postponed. Answer with /approve")
        terminal.type("/tasks proposed\r")
        terminal.wait("proposed")
        terminal.type("/approve\r")
        terminal.wait(lambda t: t.history.count("Command requires approval:") == 2)
        terminal.read(1.6)
        terminal.type("y\r")
        terminal.wait("All tidy.")
        assert not (home_cli.cwd / "precious").exists()


def test_a_file_edit_of_the_agent_needs_approval_in_the_chat(chats: Chats) -> None:
    (chats.home_cli.cwd / "a.txt").write_text("old")
    chats.replies["change"] = [{"tool": "write_file", "args": {"path": "a.txt", "content": "new"}}, {"say": "Changed."}]
    with chats.open() as terminal:
        terminal.type("change it\r")
        terminal.wait("Allow this step? [y/n]")
        assert "The agent asks for approval: it wants to write a.txt" in terminal.history
        terminal.read(0.8)
        terminal.type("y\r")
        terminal.wait("Changed.")
        assert (chats.home_cli.cwd / "a.txt").read_text() == "new"


def test_an_approval_applies_only_to_the_step_that_was_shown(chats: Chats) -> None:
    here = chats.home_cli.cwd
    for name in ("a.txt", "b.txt"):
        (here / name).write_text("old")
    calls = [{"tool": "write_file", "args": {"path": name, "content": text}} for name, text in (("a.txt", "harmless"), ("b.txt", "EVIL"))]
    chats.replies["both"] = [{"tools": calls}, {"say": "done both"}]
    with chats.open() as one:
        one.type("both\r")
        wait_for_question(one)
        os.kill(one.pid, signal.SIGSTOP)  # like a laptop that sleeps
        with chats.open("--resume") as two:
            wait_for_question(two)
            two.type("y\r")
            two.wait(lambda t: "write b.txt" in t.history)
            one.type("y\r")
            os.kill(one.pid, signal.SIGCONT)
            one.wait(lambda t: "already answered" in t.history or "answered elsewhere" in t.history)
            wait_for_question(two)
            two.type("n\r")
            two.wait("done both")
            assert (here / "a.txt").read_text() == "harmless" and (here / "b.txt").read_text() == "old"


def test_typing_in_the_history_search_answers_no_question(chats: Chats) -> None:
    (chats.home_cli.cwd / "precious").write_text("x")
    chats.replies["tidy"] = [{"hang": 1.0, "tool": "run_command", "args": {"command": "rm precious"}}, {"say": "All tidy."}]
    with chats.open() as terminal:
        terminal.type("say hi\r")
        terminal.wait("You said: say hi")
        terminal.type("tidy\r")
        terminal.wait("Esc stops")
        terminal.type(CTRL_R + "y")
        terminal.wait("1 waiting for approval")
        terminal.read(1.5)
        assert "Start in background?" not in terminal.text
        terminal.type("\r")
        terminal.read(1)
        assert (chats.home_cli.cwd / "precious").exists()
        terminal.type(CTRL_C)
        wait_for_question(terminal)
        terminal.type("n\r")
        terminal.wait("All tidy.")


def test_text_typed_before_a_question_is_no_answer_in_a_plain_terminal(chats: Chats) -> None:
    (chats.home_cli.cwd / "precious").write_text("x")
    chats.replies["tidy"] = [
        {"hang": 1.5, "say": "\x1b[2JI tidy.", "tool": "run_command", "args": {"command": "rm precious"}},
        {"say": "All tidy."},
    ]
    with chats.open(env={"TERM": "dumb"}) as terminal:
        terminal.type("tidy\n")
        terminal.read(0.5)
        terminal.type("y\n")
        terminal.wait("Start in background? [y/n]")
        terminal.read(1.5)
        assert (chats.home_cli.cwd / "precious").exists() and b"\x1b" not in terminal.raw
        terminal.type("n\n")
        terminal.wait("All tidy.")
        terminal.type(CTRL_C)
        terminal.ended()


def test_no_output_appears_between_a_question_and_its_prompt(chats: Chats) -> None:
    fake = "─" * 40 + "\nCommand requires approval:\n  ls -l\n" + "─" * 40
    add = {"name": "tidy", "description": "x", "command": "rm -rf precious", "kind": "scheduled", "interval": "1h"}
    chats.replies["add it"] = [{"tool": "task_add", "args": add}, {"hang": 3, "say": "filler\n\n" * 40 + fake}]
    with chats.open() as terminal:
        terminal.type("add it\r")
        wait_for_question(terminal)
        terminal.read(3.5)
        assert "rm -rf precious" in terminal.text and "ls -l" not in terminal.text
        terminal.type("n\r")
        terminal.wait("ls -l")


def test_notices_appear_while_a_question_has_no_directory_any_more(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = chats.home_cli.cwd / "sub"
    gone.mkdir()
    monkeypatch.chdir(chats.home_cli.cwd)
    with chats.open() as terminal:
        terminal.type("hello\r")
        terminal.wait("You said: hello")
        with open_app(str(chats.home_cli.root), dict(chats.home_cli.environ)) as app:
            app.submissions.submit(request(command=("rm", "x"), cwd=str(gone), environment={}, session=chat_session(chats)), caller(app))
        wait_for_question(terminal)
        terminal.type(ESC)
        terminal.wait("Postponed")
        shutil.rmtree(gone)
        chats.home_cli.ok("run", "--", "echo", "something ended")
        terminal.wait("something ended")
    with chats.open("--resume") as terminal:
        terminal.wait("You said: hello")
        wait_for_question(terminal)
        terminal.type("n\r")
        terminal.wait("Not started.")


def test_requests_in_other_directories_and_of_sub_agents_are_asked_here(chats: Chats) -> None:
    other = chats.home_cli.cwd.parent / "elsewhere"
    other.mkdir()
    arguments = {"command": "rm x", "description": "x", "working_directory": str(other)}
    chats.replies["there"] = [{"tool": "start_background_task", "args": arguments}, {"say": "It was refused."}]
    script = '[[script: [{"tool": "run_command", "args": {"command": "rm y"}}, {"say": "sub done"}]]]'
    chats.replies["ask one"] = [
        {"tool": "background_task", "args": {"description": "x", "prompt": script, "agent": "default"}},
        {"say": "asked"},
    ]
    with chats.open() as terminal:
        for words, said in (("there", "It was refused."), ("ask one", "sub done")):
            terminal.type(f"{words}\r")
            wait_for_question(terminal)
            assert "1 waiting for approval" in terminal.text
            terminal.type("n\r")
            terminal.wait(said)


def test_a_later_step_is_asked_for_after_an_earlier_one_was_postponed(chats: Chats) -> None:
    for name in ("first", "second"):
        (chats.home_cli.cwd / name).write_text("old")
        chats.replies[f"{name} one"] = [{"tool": "write_file", "args": {"path": name, "content": "new"}}, {"say": f"done {name}"}]
    with chats.open() as terminal:
        terminal.type("first one\r")
        wait_for_question(terminal)
        terminal.type(ESC)
        terminal.wait("Postponed. Use /approve to show it again.")
        terminal.type("/approve\r")
        wait_for_question(terminal)
        terminal.type("y\r")
        terminal.wait("done first")
        terminal.type("second one\r")
        wait_for_question(terminal)
        assert "it wants to write second" in terminal.history
        terminal.type("n\r")
        terminal.wait("done second")
