"""Leaving the chat: messages that were not sent, signals, and a project directory that was deleted."""

# ruff: noqa: F811 - fixtures are imported by their names
import os
import shutil
import signal
import termios

import apsw
from chat_fixture import Chats, chat_home, chats, idle  # noqa: F401

CTRL_D = "\x04"


def test_a_message_entered_right_before_exit_is_sent(chats: Chats) -> None:
    chats.replies["hang"] = [{"hang": 30, "say": "late"}]
    with chats.open() as terminal:
        terminal.type("hello\r")
        terminal.wait("You said: hello")
        terminal.wait(idle)
        terminal.type(f"hang\r{CTRL_D}")
        assert terminal.ended() == 0
        assert "The agent continues in the background" in terminal.history
    with chats.open("--resume") as terminal:
        terminal.wait("› hang")
        terminal.wait("Esc stops the answer")
    chats.cancel_turn()


def test_a_message_entered_before_the_home_is_open_is_sent_or_reported(chats: Chats) -> None:
    with chats.open() as terminal:
        terminal.type(f"hello there\r{CTRL_D}")
        assert terminal.ended() == 0
        assert "Not sent: hello there" in terminal.history or "The agent continues in the background" in terminal.history


def test_unsent_messages_are_shown_at_exit(chats: Chats) -> None:
    chats.replies["hang"] = [{"hang": 20, "say": "late"}]
    with chats.open() as terminal:
        terminal.type("hang\r")
        terminal.wait("Esc stops")
        terminal.type("say this later\r")
        terminal.wait("Queued; it is sent after this answer.")
        terminal.type(CTRL_D)
        terminal.ended()
        assert "Not sent: say this later" in terminal.history
    chats.cancel_turn()


def test_sigterm_restores_the_terminal(chats: Chats) -> None:
    with chats.open() as terminal:
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.ended() == 0
        assert termios.tcgetattr(terminal._pty)[3] & termios.ECHO


def test_a_chat_ends_soon_after_its_terminal_even_if_it_is_busy(chats: Chats) -> None:
    with chats.open() as terminal:
        terminal.type("hello\r")
        terminal.wait("You said: hello")
        terminal.wait(idle)
        other = apsw.Connection(str(chats.home_cli.root / "ledger.db"))
        try:
            other.execute("BEGIN IMMEDIATE")  # the chat cannot write, and tries for half a minute
            terminal.type("another message\r")
            terminal.wait("› another message")
            terminal.close_window()
        finally:
            other.close()


def test_a_deleted_project_directory_is_reported_and_the_chat_can_quit(chats: Chats) -> None:
    with chats.open() as terminal:
        shutil.rmtree(chats.home_cli.cwd)
        terminal.type("hello\r")
        terminal.wait(lambda t: "does not exist" in " ".join(t.history.split()))
        terminal.type("/background echo x\r")
        terminal.wait(lambda t: " ".join(t.history.split()).count("does not exist") == 2)
        terminal.type("/quit\r")
        assert terminal.ended() == 0
