"""The chat on a terminal: keys, pastes, completion, narrow terminals, colours and resizing."""

# ruff: noqa: F811 - fixtures are imported by their names
import re
from typing import Any

import pytest
from chat_fixture import Chats, chat_home, chats, idle, line_of, type_and_wait  # noqa: F401

import backburner.testing.scripted_model as scripted

CTRL_C, CTRL_D, ALT_ENTER = "\x03", "\x04", "\x1b\r"


def test_text_typed_before_the_prompt_appears_is_not_lost(chats: Chats) -> None:
    with chats.open(early=True) as terminal:
        terminal.type("early bird\r")
        terminal.wait("You said: early bird")


@pytest.mark.parametrize("columns", [60, 30])
def test_lines_fit_a_narrow_terminal(chats: Chats, columns: int) -> None:
    chats.replies["explain"] = [
        {"say": "A **sentence** that is longer than the terminal is wide, and is wrapped at its words.\n\n- and a list"}
    ]
    with chats.open(columns=columns, rows=24) as terminal:
        terminal.type("explain\r")
        terminal.wait("• and a list")
        terminal.type("/tasks\r")
        chats.home_cli.ok("run", "--description", "A long description of something", "--", "echo", "x")
        terminal.wait("completed: x")
        assert all(len(line) <= columns for line in terminal.lines)
        assert "is wide, and is" in terminal.history.replace("\n", " ")


def test_no_color_turns_colours_off(chats: Chats) -> None:
    chats.replies["explain"] = [{"say": "A **bold** word, and `code`."}]
    with chats.open(env={"NO_COLOR": "1"}) as terminal:
        terminal.type("explain\r")
        terminal.wait("A bold word, and `code`.")
        assert not re.findall(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m", terminal.raw)


def test_escape_sequences_in_a_tool_name_do_not_reach_the_terminal(chats: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scripted._answer

    def answer(step: dict[str, Any], *rest: Any) -> Any:
        if "evil" not in step:
            return before(step, *rest)
        return scripted._Answer("", [scripted._Call("c1", scripted._Tool(step["evil"]), "{}")])

    monkeypatch.setattr(scripted, "_answer", answer)
    chats.replies["evil"] = [{"evil": "x\x1b[2J\x1b[HStart in background? [y/n]\x1b]0;owned\x07"}, {"say": "done"}]
    for words in ((), ("--resume",)):
        with chats.open(*words) as terminal:
            if not words:
                terminal.type("evil\r")
            terminal.wait("done")
            assert b"owned\x07" not in terminal.raw and "Start in background? [y/n]" not in terminal.lines


def test_a_resize_during_an_answer_loses_no_text(chats: Chats) -> None:
    words = " ".join(f"word{n}" for n in range(60))
    chats.replies["at length"] = [{"say": f"{words}\n\nthe end", "drip": 1.5}]
    with chats.open(columns=60, rows=40) as terminal:
        terminal.type("at length\r")
        terminal.wait("Esc stops")
        type_and_wait(terminal, "my line")
        terminal.resize(90, 44)  # wider, because the emulator drops text when it gets narrower
        terminal.wait("the end")
        terminal.wait(lambda t: line_of(t) == "› my line")
        terminal.wait(lambda t: all(f"word{n}" in t.history for n in range(60)))


def test_keys_in_every_state(chats: Chats) -> None:
    chats.replies["hang"] = [{"hang": 30, "say": "late"}]
    with chats.open() as terminal:
        type_and_wait(terminal, "some text")
        terminal.type(CTRL_C)
        terminal.wait(lambda t: line_of(t) == "›")
        terminal.type(CTRL_C)
        terminal.wait("Press Ctrl-C again or Ctrl-D, or type /quit, to exit.")
        terminal.read(2.2)
        terminal.type("hang\r")
        terminal.wait("Esc stops the answer")
        terminal.type("later\r")
        terminal.wait("Queued; it is sent after this answer.")
        terminal.type(CTRL_C)
        terminal.wait("Not sent: later")
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
        assert "The agent continues in the background" in terminal.history
    chats.cancel_turn()


def test_a_paste_of_a_megabyte_is_shown_short_and_sent_whole(chats: Chats) -> None:
    text = "".join(f"line {n} of what was pasted, and some more words to make it long\r" for n in range(16_000))
    assert len(text) > 1 << 20
    with chats.open() as terminal:
        terminal.wait("/help")
        terminal.paste("three\rlines\rpasted")
        terminal.wait("pasted")
        assert "You said" not in terminal.history
        terminal.type(CTRL_C)
        terminal.paste(text)
        terminal.wait(f"[pasted {len(text):,} characters #1]")
        terminal.type(" is too long\r")
        terminal.wait("You said: line 0 of what was pasted")
        assert chats.requests("line 15999 of what was pasted"), "the whole text was sent"


def test_commands_and_ids_are_completed_and_history_can_be_searched(chats: Chats) -> None:
    task_id = chats.home_cli.ok("run", "--", "echo", "x").strip()
    with chats.open() as terminal:
        terminal.wait("completed: x")
        terminal.type("/sta")
        terminal.wait("show the status of a task and the end of its output")
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
