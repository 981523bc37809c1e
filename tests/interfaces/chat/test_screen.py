"""The chat in a terminal: the line being typed, questions, keys in every state, narrow and plain terminals, and what dies."""

# ruff: noqa: F811 - fixtures are imported by their names
import os
import re
import signal
import subprocess
import sys

import pytest
from chat_fixture import CONFIG, Chats, chats, house, idle, line_of  # noqa: F401
from conftest import Place, caller, wait_until
from terminal import Terminal

from backburner.services.app import now_ms, open_app
from backburner.store.notice_writer import NoticeWriter
from backburner.system import wakeups as wake
from backburner.testing.records import request

ESC, CTRL_C, CTRL_D, ALT_ENTER = "\x1b", "\x03", "\x04", "\x1b\r"


def typed(terminal: Terminal, text: str) -> None:
    terminal.type(text)
    terminal.wait(lambda t: line_of(t).endswith(text.strip()))


def test_what_ends_is_shown_above_the_line_being_typed_which_stays_as_it_is(chats: Chats) -> None:
    with chats.open() as terminal:
        typed(terminal, "half a line")
        chats.place.ok("run", "--", "echo", "something ended")
        terminal.wait("completed: something ended")
        terminal.wait(lambda t: line_of(t) == "› half a line")
        terminal.type(" and the rest\r")
        terminal.wait("You said: half a line and the rest")


def test_what_is_typed_before_there_is_a_prompt_is_not_lost(chats: Chats) -> None:
    with chats.open(early=True) as terminal:
        terminal.type("early bird\r")
        terminal.wait("You said: early bird")


def test_many_notices_at_once_are_gathered_and_typing_goes_on(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(chats.place.cwd)
    with chats.open() as terminal, open_app(str(chats.place.root), dict(chats.place.environ)) as app:
        typed(terminal, "before")
        known = app.submissions.submit(request(command=("true",), cwd=str(chats.place.cwd)), caller(app))
        app.waiting.wait([known.task.task_id], 60)
        database = app._ledger.database
        with database.transaction():
            for number in range(200):
                NoticeWriter(database).write(known.task, known.run, f"Background task {number}: x.", now_ms(), again=True)
        wake.wake_all(app.home.socket_dir)
        terminal.wait(lambda t: re.search(r"\d+ notices: \d+ completed. /inbox shows them.", t.history))
        typed(terminal, " after")
        assert line_of(terminal) == "› before after" and len(terminal.history.split("\n")) < 60
        terminal.wait(lambda t: re.search("(199|20[01]) unread", t.text))
        terminal.type(f"{CTRL_C}/inbox\r")
        terminal.wait("Background task 199: x.", 30)
        terminal.wait(lambda t: "unread" not in t.text)


@pytest.mark.parametrize("columns", [60, 30])
def test_a_narrow_terminal(chats: Chats, columns: int) -> None:
    chats.plans["explain"] = [
        {"say": "A **sentence** that is longer than the terminal is wide, and is wrapped at its words.\n\n- and a list"}
    ]
    with chats.open(columns=columns, rows=24) as terminal:
        terminal.type("explain\r")
        terminal.wait("• and a list")
        terminal.type("/tasks\r")
        chats.place.ok("run", "--description", "A long description of something", "--", "echo", "x")
        terminal.wait("completed: x")
        assert all(len(line) <= columns for line in terminal.lines)
        assert "is wide, and is" in terminal.history.replace("\n", " ")


def test_without_colours(chats: Chats) -> None:
    chats.plans["explain"] = [{"say": "A **bold** word, and `code`."}]
    with chats.open(env={"NO_COLOR": "1"}) as terminal:
        terminal.type("explain\r")
        terminal.wait("A bold word, and `code`.")
        assert not re.findall(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m", terminal.raw)


def test_a_terminal_that_can_only_print(chats: Chats) -> None:
    with chats.open(env={"TERM": "dumb"}) as terminal:
        terminal.type("hello\n")
        terminal.wait("You said: hello")
        terminal.type("/background rm -r nothing\n")
        terminal.wait("Start in background? [y/n")
        terminal.type("n\n")
        terminal.wait("Not started.")
        terminal.type("/tasks\n")
        assert b"\x1b" not in terminal.raw
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_a_resize_in_the_middle_of_an_answer(chats: Chats) -> None:
    words = " ".join(f"word{n}" for n in range(60))
    chats.plans["at length"] = [{"say": f"{words}\n\nthe end", "drip": 1.5}]
    with chats.open(columns=60, rows=40) as terminal:
        terminal.type("at length\r")
        terminal.wait("Esc stops")
        typed(terminal, "my line")
        terminal.resize(90, 44)  # wider: the emulator cuts off what a narrower one has no room for
        terminal.wait("the end")
        terminal.wait(lambda t: line_of(t) == "› my line")
        terminal.wait(lambda t: all(f"word{n}" in t.history for n in range(60)))


def test_escape_stops_the_answer_and_not_the_background_work(chats: Chats) -> None:
    chats.plans["hang"] = [
        {"tool": "start_background_task", "args": {"command": "sleep 30", "description": "x"}},
        {"hang": 30, "say": "late"},
    ]
    with chats.open() as terminal:
        terminal.type("please hang\r")
        terminal.wait("start_background_task")
        terminal.wait("1 running")
        typed(terminal, "a draft")
        terminal.type(ESC)
        terminal.wait("Stopped.")
        terminal.wait(lambda t: line_of(t) == "› a draft")
        terminal.type("\r")
        terminal.wait("You said: a draft")
        (task,) = chats.place.json("list", "running")  # type: ignore[misc]
        chats.place.ok("cancel", task["task_id"])


def test_a_slow_command_of_the_agent_goes_on_in_the_background_by_itself(chats: Chats) -> None:
    chats.plans["slow"] = [{"tool": "run_command", "args": {"command": "sleep 6"}}, {"say": "It goes on without us: {task_id}."}]
    with chats.open() as terminal:
        terminal.type("something slow\r")
        terminal.wait("It goes on without us: task_")
        terminal.wait("completed", 20)


def test_keys_in_every_state(chats: Chats) -> None:
    chats.plans["hang"] = [{"hang": 30, "say": "late"}]
    with chats.open() as terminal:
        typed(terminal, "some text")
        terminal.type(CTRL_C)
        terminal.wait(lambda t: line_of(t) == "›")
        terminal.type(CTRL_C)
        terminal.wait("Ctrl-C again, Ctrl-D or /quit leaves")
        terminal.read(2.2)
        terminal.type("hang\r")
        terminal.wait("Esc stops the answer")
        terminal.type("later\r")
        terminal.wait("It is said after this answer.")
        terminal.type(CTRL_C)
        terminal.wait("Not said: later")
        terminal.wait("Stopped.")
        terminal.type("one" + ALT_ENTER + "two\r")
        terminal.wait(lambda t: "You said: one" in t.history and "two" in t.history.split("You said:")[1])
        terminal.type("three\\\rfour\r")
        terminal.wait(lambda t: "You said: three" in t.history and "four" in t.history.split("You said: three")[1])
        terminal.wait(idle)
        terminal.type("ab" + CTRL_D)
        terminal.wait(lambda t: line_of(t) == "› ab")
        terminal.type(CTRL_C + "hang\r")
        terminal.wait("Esc stops the answer")
        terminal.type(CTRL_D)
        assert terminal.ended() == 0
        assert "The answer goes on without you" in terminal.history
    chats.place.ok("cancel", "last")


def test_what_is_sent_off_in_the_moment_of_leaving_is_said(chats: Chats) -> None:
    chats.plans["hang"] = [{"hang": 30, "say": "late"}]
    with chats.open() as terminal:
        terminal.type("hello\r")
        terminal.wait("You said: hello")
        terminal.wait(idle)
        terminal.type(f"hang\r{CTRL_D}")
        assert terminal.ended() == 0
        assert "The answer goes on without you" in terminal.history
    with chats.open("--resume") as terminal:
        terminal.wait("› hang")
        terminal.wait("Esc stops the answer")
    chats.place.ok("cancel", "last")


def test_what_is_sent_off_before_the_home_is_open_is_not_lost_in_silence(chats: Chats) -> None:
    with chats.open() as terminal:
        terminal.type(f"hello there\r{CTRL_D}")
        assert terminal.ended() == 0
        assert "Not said: hello there" in terminal.history or "The answer goes on without you" in terminal.history


def test_a_question_is_not_answered_by_what_is_being_typed(chats: Chats) -> None:
    place = chats.place
    (place.cwd / "precious").write_text("x")
    chats.plans["tidy"] = [{"hang": 1.0, "tool": "run_command", "args": {"command": "rm precious"}}, {"say": "done"}]
    with chats.open() as terminal:
        terminal.type("tidy up\r")
        count = 0
        while count < 15 or "1 waiting for your yes" not in terminal.text:  # somebody types y's while the question comes
            assert count < 90, f"it does not come; the screen is:\n{terminal.text}"
            terminal.type("y")
            terminal.read(0.2)
            count += 1
        terminal.wait(lambda t: line_of(t) == f"› {'y' * count}")  # the line has them all
        assert (place.cwd / "precious").exists()
        terminal.type(CTRL_C)
        terminal.wait("Start in background? [y/n")
        terminal.type("y")  # at once: that was not meant for the question
        terminal.wait(lambda t: line_of(t) == "› y")
        terminal.type("\x7f")
        terminal.wait(lambda t: [line for line in t.lines if line][-2].startswith("Start in background?"))
        terminal.read(0.8)
        terminal.type("maybe\r")
        terminal.wait("That is not an answer")
        terminal.wait(lambda t: line_of(t) == "› maybe")
        terminal.type(CTRL_C)
        terminal.wait(lambda t: [line for line in t.lines if line][-2].startswith("Start in background?"))
        terminal.read(0.8)
        terminal.type("n\r")
        terminal.wait("done")
        assert (place.cwd / "precious").exists()


def test_a_question_can_be_put_off_and_answered_later(chats: Chats) -> None:
    place = chats.place
    (place.cwd / "precious").write_text("x")
    chats.plans["tidy"] = [{"tool": "run_command", "args": {"command": "rm precious"}}, {"say": "All tidy."}]
    with chats.open() as terminal:
        terminal.type("tidy up\r")
        terminal.wait("Start in background? [y/n")
        terminal.read(0.8)
        terminal.type(ESC)
        terminal.wait("Put off. Answer with /approve")
        terminal.type("/tasks proposed\r")
        terminal.wait("proposed")
        terminal.type("/approve\r")
        terminal.wait(lambda t: t.history.count("Command requires approval:") == 2)
        terminal.read(1.6)
        terminal.type("y\r")
        terminal.wait("All tidy.")
        assert not (place.cwd / "precious").exists()


def test_a_change_of_a_file_is_asked_for_in_the_chat(chats: Chats) -> None:
    (chats.place.cwd / "a.txt").write_text("old")
    chats.plans["change"] = [{"tool": "write_file", "args": {"path": "a.txt", "content": "new"}}, {"say": "Changed."}]
    with chats.open() as terminal:
        terminal.type("change it\r")
        terminal.wait("Allow this step? [y/n]")
        assert "The agent asks for approval: it wants to write a.txt" in terminal.history
        terminal.read(0.8)
        terminal.type("y\r")
        terminal.wait("Changed.")
        assert (chats.place.cwd / "a.txt").read_text() == "new"


def test_a_paste_of_a_megabyte(chats: Chats) -> None:
    text = "".join(f"line {n} of what was pasted, and some more words to make it long\r" for n in range(16_000))
    assert len(text) > 1 << 20
    with chats.open() as terminal:
        terminal.wait("/help")
        terminal.paste("three\rlines\rpasted")
        terminal.wait("pasted")
        assert "You said" not in terminal.history
        terminal.type(CTRL_C)
        terminal.paste(text)
        terminal.wait(f"[pasted {len(text):,} characters #1]", 30)
        terminal.type(" is too long\r")
        terminal.wait("You said: line 0 of what was pasted", 30)
        assert chats.requests("line 15999 of what was pasted"), "all of it was said"


def test_killed_in_the_middle_of_a_turn_it_is_resumed_with_all_of_it(chats: Chats) -> None:
    chats.plans["twice"] = [
        {"say": "First I look.", "tool": "run_command", "args": {"command": "echo looked"}},
        {"hang": 3, "say": "And this is the answer."},
    ]
    with chats.open() as terminal:
        terminal.type("/background sleep 8\r")
        terminal.wait("Started background task")
        terminal.type("do it twice\r")
        terminal.wait("First I look.")
        os.kill(terminal.pid, signal.SIGKILL)
        terminal.ended()
    assert "sleep 8" in [" ".join(task["command"] or ()) for task in chats.place.json("list", "running")]  # type: ignore[union-attr, index, call-overload]
    with chats.open("--resume") as terminal:
        terminal.wait("› do it twice")
        terminal.wait("First I look.")
        terminal.wait("And this is the answer.")
        assert terminal.history.count("First I look.") == 1 and terminal.history.count("do it twice") == 1
        terminal.type("and now?\r")
        terminal.wait("You said: and now?")
        terminal.wait("completed", 15)
    with chats.open("--resume") as terminal:
        terminal.wait("You said: and now?")
        assert "And this is the answer." in terminal.history
    assert sum("do it twice" in str(request["messages"][-1]) for request in chats.model.requests) == 1, "it was asked once"


def test_without_a_model_it_says_how_to_get_one_and_commands_work(place: Place) -> None:
    command = [sys.executable, "-m", "backburner", "chat"]
    with Terminal(command, cwd=place.cwd, env=place.environ) as terminal:
        terminal.wait("There is no model for agents yet.")
        terminal.type("hello?\r")
        terminal.wait(lambda t: t.history.count("There is no model for agents yet.") == 2)
        terminal.type("/background echo works\r")
        terminal.wait("completed: works")
        terminal.type("/quit\r")
        assert terminal.ended() == 0
    place.stop_all()


def _chat(chats: Chats, *words: str, given: str | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "backburner", "chat", *words],
        cwd=chats.place.cwd,
        env={**chats.place.environ, **env},
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_one_message_and_piped_input(chats: Chats) -> None:
    done = _chat(chats, "-m", "just this")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: just this\n", "")
    done = _chat(chats, given="from a pipe\n")
    assert (done.returncode, done.stdout) == (0, "You said: from a pipe\n")
    done = _chat(chats, "-m", "look at this:", given="piped text\n")
    assert done.stdout == "You said: look at this:\n\npiped text\n"
    done = _chat(chats, "--resume", "-m", "and more")
    assert done.stdout == "You said: and more\n" and "look at this" in str(chats.requests("and more")[-1])
    done = _chat(chats, given="/background echo x\n/tasks\n")
    assert done.returncode == 0 and "Started background task" in done.stderr
    done = _chat(chats, given="")
    assert done.returncode == 2 and "There is nothing to say" in done.stderr
    chats.plans["broken"] = [{"error": 400, "times": 9}]
    done = _chat(chats, "-m", "broken")
    assert done.returncode == 1 and "It failed:" in done.stderr
    done = _chat(chats, "--resume", "-m", "talk on")
    assert done.stdout == "You said: talk on\n", "a turn that failed does not end the conversation"
    chats.plans["delete"] = [{"tool": "run_command", "args": {"command": "rm x"}}, {"say": "gone"}]
    done = _chat(chats, "-m", "delete it")
    assert done.returncode == 3 and "is waiting for approval" in done.stderr
    done = _chat(chats, "--resume", "no-such-chat", "-m", "x")
    assert done.returncode == 2 and "There is no chat 'no-such-chat' here." in done.stderr
    for task in chats.place.json("list", "proposed"):  # type: ignore[union-attr, attr-defined]
        chats.place.ok("reject", task["task_id"])


def test_a_chat_that_is_ended_takes_its_work_with_it(chats: Chats) -> None:
    with chats.open() as terminal:
        terminal.type("/background sleep 60\r")
        terminal.wait("Started background task")
        terminal.type("hello\r")
        terminal.wait("You said: hello")
        terminal.type("/quit --end\r")
        assert terminal.ended() == 0
    wait_until(lambda: chats.place.json("list") == [], "its work to be gone")
    with chats.open("--resume") as terminal:  # the place is still there, and empty
        terminal.type("hello again\r")
        terminal.wait("You said: hello again")
        assert "› hello\n" not in terminal.history


def test_commands_and_ids_are_completed_and_lines_come_back(chats: Chats) -> None:
    task_id = chats.place.ok("run", "--", "echo", "x").strip()
    with chats.open() as terminal:
        terminal.wait("completed: x")
        terminal.type("/sta")
        terminal.wait("how a task is, with the end of its output")
        terminal.type("\t")
        terminal.wait(lambda t: line_of(t) == "› /status")
        terminal.type(" ech")
        terminal.wait(lambda t: any(re.match(rf" +{task_id}$", line) for line in t.lines))
        terminal.type("\t")
        terminal.wait(lambda t: line_of(t) == f"› /status {task_id}")
        terminal.type("\r")
        terminal.wait("Command: echo x")
        terminal.type("\x1b[A")
        terminal.wait(lambda t: line_of(t) == f"› /status {task_id}")
        terminal.type(CTRL_C)
        terminal.wait(lambda t: line_of(t) == "›")
        terminal.type("\x12")
        terminal.wait("search")
        terminal.type("echo")
        terminal.wait(lambda t: f"› /status {task_id}" in t.lines)
        terminal.type("\r")
        terminal.wait(lambda t: "search" not in t.text and line_of(t) == f"› /status {task_id}")
