"""Turns of the chat: stopping them, several chats at once, and chats that are killed, resumed or ended."""

# ruff: noqa: F811 - fixtures are imported by their names
import os
import re
import signal
import sys

from chat_fixture import Chats, chat_home, chat_session, chats, idle, line_of, type_and_wait  # noqa: F401
from conftest import HomeCli, wait_until
from terminal import Terminal

ESC, CTRL_D = "\x1b", "\x04"


def test_a_turn_can_be_stopped_repeatedly(chats: Chats) -> None:
    chats.replies["hang"] = [{"hang": 30, "say": "late"}]
    with chats.open() as terminal:
        for number in range(12):
            terminal.type(f"hang {number}\r")
            terminal.wait(lambda t: "Esc stops the answer" in t.text)
            terminal.type(ESC)
            terminal.wait(lambda t, number=number: t.history.count("Stopped.") == number + 1 and idle(t))
        terminal.type(CTRL_D)
        assert terminal.ended() == 0


def test_two_chats_answer_at_the_same_time(chats: Chats) -> None:
    chats.replies["slowly"] = [{"hang": 1.5, "tool": "run_command", "args": {"command": "echo hi"}}, {"say": "Finished slowly."}]
    with chats.open() as one, chats.open() as two:
        one.type("slowly one\r")
        two.type("slowly two\r")
        one.wait("Finished slowly.")
        two.wait("Finished slowly.")


def test_a_chat_ended_by_another_process_starts_a_new_conversation(chats: Chats) -> None:
    chats.replies["hang"] = [{"hang": 20, "say": "late"}]
    with chats.open() as terminal:
        terminal.type("hang\r")
        terminal.wait("Esc stops")
        chats.home_cli.ok("sessions", "end", chat_session(chats))
        terminal.read(3)
        terminal.type("hello again\r")
        terminal.wait("You said: hello again")
        assert terminal.history.count("not found") <= 2
        terminal.wait(idle)
        task_id = chats.home_cli.json("list", "completed")[0]["task_id"]  # type: ignore[index]
        chats.home_cli.ok("clear", task_id)
        terminal.type("and again\r")
        terminal.wait("You said: and again")


def test_a_long_answer_is_shown_completely(chats: Chats) -> None:
    chats.replies["flood"] = [{"say": "\n\n".join(f"paragraph {n} {'word ' * 20}" for n in range(15_000)) + "\n\nTHE END"}]
    with chats.open() as terminal:
        terminal.type("flood\r")
        terminal.wait(lambda t: "THE END" in t.text, 120)
        assert len(set(re.findall(rb"paragraph \d+", terminal.raw))) == 15_000


def test_escape_stops_the_answer_but_not_background_tasks(chats: Chats) -> None:
    chats.replies["hang"] = [
        {"tool": "start_background_task", "args": {"command": "sleep 30", "description": "x"}},
        {"hang": 30, "say": "late"},
    ]
    with chats.open() as terminal:
        terminal.type("please hang\r")
        terminal.wait("start_background_task")
        terminal.wait("1 running")
        type_and_wait(terminal, "a draft")
        terminal.type(ESC)
        terminal.wait("Stopped.")
        terminal.wait(lambda t: line_of(t) == "› a draft")
        terminal.type("\r")
        terminal.wait("You said: a draft")
        (task,) = chats.home_cli.json("list", "running")  # type: ignore[misc]
        chats.home_cli.ok("cancel", task["task_id"])


def test_a_slow_command_of_the_agent_continues_in_the_background(chats: Chats) -> None:
    chats.replies["slow"] = [{"tool": "run_command", "args": {"command": "sleep 6"}}, {"say": "It goes on without us: {task_id}."}]
    with chats.open() as terminal:
        terminal.type("something slow\r")
        terminal.wait("It goes on without us: task_")
        terminal.wait("completed")


def test_a_chat_killed_during_a_turn_is_resumed_without_loss(chats: Chats) -> None:
    chats.replies["twice"] = [
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
    assert "sleep 8" in [" ".join(task["command"] or ()) for task in chats.home_cli.json("list", "running")]  # type: ignore[union-attr, index, call-overload]
    with chats.open("--resume") as terminal:
        terminal.wait("› do it twice")
        terminal.wait("First I look.")
        terminal.wait("And this is the answer.")
        assert terminal.history.count("First I look.") == 1 and terminal.history.count("do it twice") == 1
        terminal.type("and now?\r")
        terminal.wait("You said: and now?")
        terminal.wait("completed")
    with chats.open("--resume") as terminal:
        terminal.wait("You said: and now?")
        assert "And this is the answer." in terminal.history
    assert sum("do it twice" in str(request["messages"][-1]) for request in chats.model.requests) == 1, "the message was sent once"


def test_without_a_model_slash_commands_work_and_help_is_shown(home_cli: HomeCli) -> None:
    command = [sys.executable, "-m", "backburner", "chat"]
    with Terminal(command, cwd=home_cli.cwd, env=home_cli.environ) as terminal:
        terminal.wait("No model is configured for agents.")
        terminal.type("hello?\r")
        terminal.wait(lambda t: t.history.count("No model is configured for agents.") == 2)
        terminal.type("/background echo works\r")
        terminal.wait("completed: works")
        terminal.type("/quit\r")
        assert terminal.ended() == 0
    home_cli.stop_all()


def test_quit_with_end_cancels_and_deletes_the_tasks_of_therun_chat(chats: Chats) -> None:
    with chats.open() as terminal:
        terminal.type("/background sleep 60\r")
        terminal.wait("Started background task")
        terminal.type("hello\r")
        terminal.wait("You said: hello")
        terminal.type("/quit --end\r")
        assert terminal.ended() == 0
    wait_until(lambda: chats.home_cli.json("list") == [], "its tasks to be deleted")
    with chats.open("--resume") as terminal:  # the session still exists, without messages
        terminal.type("hello again\r")
        terminal.wait("You said: hello again")
        assert "› hello\n" not in terminal.history
