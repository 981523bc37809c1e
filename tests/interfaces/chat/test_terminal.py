"""Tests of the pseudo-terminal that the chat tests use."""

import os
import sys
from pathlib import Path

import pytest
from terminal import Terminal

PROMPT = """
import sys
from prompt_toolkit import PromptSession
session = PromptSession("say> ")
while (line := session.prompt()) != "end":
    print(f"<{line!r}>")
sys.exit(7)
"""
SIZES = """
import os, signal, sys
def print_size(*_):
    size = os.get_terminal_size()
    print(f"now {size.columns}x{size.lines}", flush=True)
signal.signal(signal.SIGWINCH, print_size)
for n in range(12):
    print(f"line {n}")
print("ready", flush=True)
while True:
    signal.pause()
"""


def start(program: str, tmp_path: Path, **options: int) -> Terminal:
    return Terminal([sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "LC_ALL": "C.UTF-8"}, **options)


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_typed_text_is_shown_and_the_exit_code_returned(tmp_path: Path) -> None:
    with start(PROMPT, tmp_path) as terminal:
        terminal.wait("say>")
        terminal.type("hello 日本")
        terminal.wait("say> hello 日本")
        terminal.type("\r")
        terminal.wait("<'hello 日本'>")
        terminal.type("end\r")
        assert terminal.ended() == 7
        assert b"\x1b[6n" in terminal.raw and "CPR" not in terminal.history


def test_a_paste_of_three_lines_does_not_submit(tmp_path: Path) -> None:
    with start(PROMPT, tmp_path) as terminal:
        terminal.wait("say>")
        terminal.paste("one\ntwo\nthree")
        terminal.wait("three")
        assert "<" not in terminal.text
        terminal.type("\r")
        terminal.wait(r"<'one\ntwo\nthree'>")


def test_the_program_is_notified_of_a_new_size(tmp_path: Path) -> None:
    with start(SIZES, tmp_path) as terminal:
        terminal.wait("ready")
        terminal.resize(60, 20)
        terminal.wait("now 60x20")
        assert len(terminal.lines) == 20


def test_lines_that_scrolled_off_are_in_the_history(tmp_path: Path) -> None:
    with start("for n in range(500): print(f'line {n};')", tmp_path, rows=10) as terminal:
        assert terminal.ended() == 0
        terminal.wait("line 499;")
        assert "line 3;" not in terminal.text and terminal.history.count("line ") == 500


def test_a_large_input_to_an_echoing_program_does_not_block(tmp_path: Path) -> None:
    program = "import sys\nfor line in sys.stdin: print(len(line), flush=True)"
    with start(program, tmp_path) as terminal:
        terminal.type(("x" * 1000 + "\r") * 100)
        terminal.wait(lambda t: t.raw.count(b"1001") == 100)


def test_a_failed_wait_reports_the_screen(tmp_path: Path) -> None:
    with start(SIZES, tmp_path) as terminal:
        terminal.wait("ready")
        with pytest.raises(AssertionError, match="line 11"):
            terminal.wait("never", 0.2)
        with pytest.raises(AssertionError, match="line 11"):
            terminal.ended(0.2)


def test_a_program_that_ignores_sighup_is_killed(tmp_path: Path) -> None:
    with start("import signal\nsignal.signal(1, signal.SIG_IGN)\nprint('ready', flush=True)\nsignal.pause()", tmp_path) as terminal:
        terminal.wait("ready")
        assert is_running(terminal.pid)
    assert not is_running(terminal.pid)


def test_lines_dropped_by_a_lower_screen_are_in_the_history(tmp_path: Path) -> None:
    with start(SIZES, tmp_path) as terminal:
        terminal.wait("ready")
        terminal.resize(100, 15)
        terminal.wait("now 100x15")
        assert terminal.lines[:2] == ["line 0", "line 1"]
        terminal.resize(100, 5)
        terminal.wait("now 100x5")
        assert terminal.history.count("line ") == 12


def test_text_after_a_joined_emoji_is_shown(tmp_path: Path) -> None:
    with start(r"print('👩\u200d💻 and more')", tmp_path) as terminal:
        terminal.wait("and more")


def test_the_reported_cursor_position_is_that_of_the_request(tmp_path: Path) -> None:
    program = r"""
import os, sys, tty
tty.setraw(0)
os.write(1, b"abc\x1b[6ndefghi\r\n")
report = b""
while not report.endswith(b"R"):
    report += os.read(0, 1)
print(repr(report), flush=True)
"""
    with start(program, tmp_path) as terminal:
        terminal.wait(r"b'\x1b[1;4R'")


def test_reading_returns_although_a_program_never_stops_writing(tmp_path: Path) -> None:
    with start("while True: print('y' * 99)", tmp_path) as terminal:
        terminal.read()
        terminal.wait("yyy")
        assert terminal.raw
