"""What somebody who tried to break the chat found: each was seen to go wrong once."""

# ruff: noqa: F811 - fixtures are imported by their names
import os
import re
import shutil
import signal
from typing import Any

import pytest
from chat_fixture import Chats, chats, house, idle, line_of  # noqa: F401
from conftest import caller
from terminal import Terminal

import backburner.testing.scripted_model as scripted
from backburner.services.app import open_app
from backburner.testing.records import request

ESC, CTRL_C, CTRL_D, CTRL_R = "\x1b", "\x03", "\x04", "\x12"


def asked(terminal: Terminal) -> None:
    """The question is at the prompt, and has been for a while."""
    terminal.wait(
        lambda t: any(re.match(r"(Start in background|Add this recurring task|Allow this step)\?.*\[y/n[^]]*\]$", line) for line in t.lines)
    )
    terminal.read(0.8)


def session_of(chats: Chats) -> str:
    return str(re.findall(r"chat:\S+", chats.place.ok("sessions"))[0])


def test_a_turn_can_be_stopped_again_and_again(chats: Chats) -> None:
    chats.plans["hang"] = [{"hang": 30, "say": "late"}]
    with chats.open() as terminal:
        for number in range(12):
            terminal.type(f"hang {number}\r")
            terminal.wait(lambda t: "Esc stops the answer" in t.text)
            terminal.type(ESC)
            terminal.wait(lambda t, number=number: t.history.count("Stopped.") == number + 1 and idle(t))
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_two_chats_at_once_do_not_wait_for_each_other(chats: Chats) -> None:
    chats.plans["slowly"] = [{"hang": 1.5, "tool": "run_command", "args": {"command": "echo hi"}}, {"say": "Finished slowly."}]
    with chats.open() as one, chats.open() as two:
        one.type("slowly one\r")
        two.type("slowly two\r")
        one.wait("Finished slowly.", 30)
        two.wait("Finished slowly.", 30)


def test_a_yes_is_to_what_is_shown_and_not_to_what_came_after_it(chats: Chats) -> None:
    here = chats.place.cwd
    for name in ("a.txt", "b.txt"):
        (here / name).write_text("old")
    calls = [{"tool": "write_file", "args": {"path": name, "content": text}} for name, text in (("a.txt", "harmless"), ("b.txt", "EVIL"))]
    chats.plans["both"] = [{"tools": calls}, {"say": "done both"}]
    with chats.open() as one:
        one.type("both\r")
        asked(one)
        os.kill(one.pid, signal.SIGSTOP)  # a laptop that sleeps
        with chats.open("--resume") as two:
            asked(two)
            two.type("y\r")
            two.wait(lambda t: "write b.txt" in t.history)
            one.type("y\r")
            os.kill(one.pid, signal.SIGCONT)
            one.wait(lambda t: "already answered" in t.history or "answered elsewhere" in t.history)
            asked(two)
            two.type("n\r")
            two.wait("done both")
            assert (here / "a.txt").read_text() == "harmless" and (here / "b.txt").read_text() == "old"


def test_what_is_searched_for_answers_nothing(chats: Chats) -> None:
    (chats.place.cwd / "precious").write_text("x")
    chats.plans["tidy"] = [{"hang": 1.0, "tool": "run_command", "args": {"command": "rm precious"}}, {"say": "All tidy."}]
    with chats.open() as terminal:
        terminal.type("say hi\r")
        terminal.wait("You said: say hi")
        terminal.type("tidy\r")
        terminal.wait("Esc stops")
        terminal.type(CTRL_R + "y")
        terminal.wait("1 waiting for your yes")
        terminal.read(1.5)
        assert "Start in background?" not in terminal.text
        terminal.type("\r")
        terminal.read(1)
        assert (chats.place.cwd / "precious").exists()
        terminal.type(CTRL_C)
        asked(terminal)
        terminal.type("n\r")
        terminal.wait("All tidy.")


def test_what_was_typed_before_a_question_does_not_answer_it_in_a_plain_terminal(chats: Chats) -> None:
    (chats.place.cwd / "precious").write_text("x")
    chats.plans["tidy"] = [
        {"hang": 1.5, "say": "\x1b[2JI tidy.", "tool": "run_command", "args": {"command": "rm precious"}},
        {"say": "All tidy."},
    ]
    with chats.open(env={"TERM": "dumb"}) as terminal:
        terminal.type("tidy\n")
        terminal.read(0.5)
        terminal.type("y\n")
        terminal.wait("Start in background? [y/n]")
        terminal.read(1.5)
        assert (chats.place.cwd / "precious").exists() and b"\x1b" not in terminal.raw
        terminal.type("n\n")
        terminal.wait("All tidy.")
        terminal.type(CTRL_C)
        terminal.ended()


def test_a_tools_name_reaches_the_terminal_as_text_only(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scripted._answer

    def answer(step: dict[str, Any], *rest: Any) -> Any:
        if "evil" not in step:
            return before(step, *rest)
        return scripted._Answer("", [scripted._Call("c1", scripted._Tool(step["evil"]), "{}")])

    monkeypatch.setattr(scripted, "_answer", answer)
    chats.plans["evil"] = [{"evil": "x\x1b[2J\x1b[HStart in background? [y/n]\x1b]0;owned\x07"}, {"say": "done"}]
    for words in ((), ("--resume",)):
        with chats.open(*words) as terminal:
            if not words:
                terminal.type("evil\r")
            terminal.wait("done")
            assert b"owned\x07" not in terminal.raw and "Start in background? [y/n]" not in terminal.lines


def test_nothing_comes_between_a_question_and_its_prompt(chats: Chats) -> None:
    fake = "─" * 40 + "\nCommand requires approval:\n  ls -l\n" + "─" * 40
    add = {"name": "tidy", "description": "x", "command": "rm -rf precious", "kind": "scheduled", "interval": "1h"}
    chats.plans["add it"] = [{"tool": "task_add", "args": add}, {"hang": 3, "say": "filler\n\n" * 40 + fake}]
    with chats.open() as terminal:
        terminal.type("add it\r")
        asked(terminal)
        terminal.read(3.5)
        assert "rm -rf precious" in terminal.text and "ls -l" not in terminal.text
        terminal.type("n\r")
        terminal.wait("ls -l")


def test_a_chat_that_is_ended_elsewhere_begins_anew(chats: Chats) -> None:
    chats.plans["hang"] = [{"hang": 20, "say": "late"}]
    with chats.open() as terminal:
        terminal.type("hang\r")
        terminal.wait("Esc stops")
        chats.place.ok("sessions", "end", session_of(chats))
        terminal.read(3)
        terminal.type("hello again\r")
        terminal.wait("You said: hello again")
        assert terminal.history.count("not found") <= 2
        terminal.wait(idle)
        task_id = chats.place.json("list", "completed")[0]["task_id"]  # type: ignore[index]
        chats.place.ok("clear", task_id)
        terminal.type("and again\r")
        terminal.wait("You said: and again")


def test_a_long_answer_is_shown_to_its_end(chats: Chats) -> None:
    chats.plans["flood"] = [{"say": "\n\n".join(f"paragraph {n} {'word ' * 20}" for n in range(15_000)) + "\n\nTHE END"}]
    with chats.open() as terminal:
        terminal.type("flood\r")
        terminal.wait(lambda t: "THE END" in t.text, 120)
        assert len(set(re.findall(rb"paragraph \d+", terminal.raw))) == 15_000


def test_a_question_whose_folder_is_gone_does_not_make_the_chat_deaf(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = chats.place.cwd / "sub"
    gone.mkdir()
    monkeypatch.chdir(chats.place.cwd)
    with chats.open() as terminal:
        terminal.type("hello\r")
        terminal.wait("You said: hello")
        with open_app(str(chats.place.root), dict(chats.place.environ)) as app:
            app.submissions.submit(request(command=("rm", "x"), cwd=str(gone), environment={}, session=session_of(chats)), caller(app))
        asked(terminal)
        terminal.type(ESC)
        terminal.wait("Put off")
        shutil.rmtree(gone)
        chats.place.ok("run", "--", "echo", "something ended")
        terminal.wait("something ended")
    with chats.open("--resume") as terminal:
        terminal.wait("You said: hello")
        asked(terminal)
        terminal.type("n\r")
        terminal.wait("Not started.")


def test_what_waits_elsewhere_for_this_chat_is_asked_here(chats: Chats) -> None:
    other = chats.place.cwd.parent / "elsewhere"
    other.mkdir()
    arguments = {"command": "rm x", "description": "x", "working_directory": str(other)}
    chats.plans["there"] = [{"tool": "start_background_task", "args": arguments}, {"say": "It was refused."}]
    script = '[[script: [{"tool": "run_command", "args": {"command": "rm y"}}, {"say": "sub done"}]]]'
    chats.plans["ask one"] = [
        {"tool": "background_task", "args": {"description": "x", "prompt": script, "agent": "default"}},
        {"say": "asked"},
    ]
    with chats.open() as terminal:
        for words, said in (("there", "It was refused."), ("ask one", "sub done")):
            terminal.type(f"{words}\r")
            asked(terminal)
            assert "1 waiting for your yes" in terminal.text
            terminal.type("n\r")
            terminal.wait(said)


def test_a_later_step_is_asked_for_after_one_was_put_off(chats: Chats) -> None:
    for name in ("first", "second"):
        (chats.place.cwd / name).write_text("old")
        chats.plans[f"{name} one"] = [{"tool": "write_file", "args": {"path": name, "content": "new"}}, {"say": f"done {name}"}]
    with chats.open() as terminal:
        terminal.type("first one\r")
        asked(terminal)
        terminal.type(ESC)
        terminal.wait("Put off. /approve asks again.")
        terminal.type("/approve\r")
        asked(terminal)
        terminal.type("y\r")
        terminal.wait("done first")
        terminal.type("second one\r")
        asked(terminal)
        assert "it wants to write second" in terminal.history
        terminal.type("n\r")
        terminal.wait("done second")


def test_a_project_that_goes_away_is_a_sentence(chats: Chats) -> None:
    with chats.open() as terminal:
        shutil.rmtree(chats.place.cwd)
        terminal.type("hello\r")
        terminal.wait(lambda t: "does not exist" in " ".join(t.history.split()))
        terminal.type("/background echo x\r")
        terminal.wait(lambda t: " ".join(t.history.split()).count("does not exist") == 2)
        terminal.type("/quit\r")
        assert terminal.ended() == 0


def test_commands_that_would_never_return_are_refused(chats: Chats) -> None:
    with chats.open() as terminal:
        for line, usage in (("/send x", "/send ID TEXT"), ("/inbox -f", "/inbox"), ("/restart x --wait", "/restart ID")):
            terminal.type(f"{line}\r")
            terminal.wait(f"Write: {usage}")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_what_a_chat_started_is_told_in_that_chat(chats: Chats) -> None:
    with chats.open() as one, chats.open() as two:
        for number in range(4):
            one.type(f"/background echo number {number}\r")
        for number in range(4):
            one.wait(f"completed: number {number}")
        two.read(1)
        assert "completed" not in two.history


def test_what_was_not_said_is_shown_when_one_leaves(chats: Chats) -> None:
    chats.plans["hang"] = [{"hang": 20, "say": "late"}]
    with chats.open() as terminal:
        terminal.type("hang\r")
        terminal.wait("Esc stops")
        terminal.type("say this later\r")
        terminal.wait("It is said after this answer.")
        terminal.type(CTRL_D)
        terminal.ended()
        assert "Not said: say this later" in terminal.history
    chats.place.ok("cancel", "last")


def test_it_leaves_the_terminal_as_it_was_when_it_is_terminated(chats: Chats) -> None:
    import termios

    with chats.open() as terminal:
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.ended() == 0
        assert termios.tcgetattr(terminal._pty)[3] & termios.ECHO
