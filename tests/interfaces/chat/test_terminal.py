"""The pseudo-terminal that the tests of the chat are done in."""

import os
import sys
from pathlib import Path

import pytest
from terminal import Terminal

PROMPT = """
import sys
from prompt_toolkit import PromptSession
session = PromptSession("say> ")
while (said := session.prompt()) != "end":
    print(f"<{said!r}>")
sys.exit(7)
"""
SIZES = """
import os, signal, sys
def told(*_):
    size = os.get_terminal_size()
    print(f"now {size.columns}x{size.lines}", flush=True)
signal.signal(signal.SIGWINCH, told)
for n in range(12):
    print(f"line {n}")
print("ready", flush=True)
while True:
    signal.pause()
"""


def started(program: str, tmp_path: Path, **options: int) -> Terminal:
    return Terminal([sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "LC_ALL": "C.UTF-8"}, **options)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_typed_text_shows_and_the_exit_code_is_given(tmp_path: Path) -> None:
    with started(PROMPT, tmp_path) as terminal:
        terminal.wait("say>")
        terminal.type("hello 日本")
        terminal.wait("say> hello 日本")
        terminal.type("\r")
        terminal.wait("<'hello 日本'>")
        terminal.type("end\r")
        assert terminal.ended() == 7
        assert b"\x1b[6n" in terminal.raw and "CPR" not in terminal.history


def test_a_paste_of_three_lines_does_not_submit(tmp_path: Path) -> None:
    with started(PROMPT, tmp_path) as terminal:
        terminal.wait("say>")
        terminal.paste("one\ntwo\nthree")
        terminal.wait("three")
        assert "<" not in terminal.text
        terminal.type("\r")
        terminal.wait(r"<'one\ntwo\nthree'>")


def test_a_new_size_is_noticed(tmp_path: Path) -> None:
    with started(SIZES, tmp_path) as terminal:
        terminal.wait("ready")
        terminal.resize(60, 20)
        terminal.wait("now 60x20")
        assert len(terminal.lines) == 20


def test_what_scrolled_off_is_in_the_history(tmp_path: Path) -> None:
    with started("for n in range(500): print(f'line {n};')", tmp_path, rows=10) as terminal:
        assert terminal.ended() == 0
        terminal.wait("line 499;")
        assert "line 3;" not in terminal.text and terminal.history.count("line ") == 500


def test_much_is_typed_to_a_program_that_echoes_it(tmp_path: Path) -> None:
    program = "import sys\nfor line in sys.stdin: print(len(line), flush=True)"
    with started(program, tmp_path) as terminal:
        terminal.type(("x" * 1000 + "\r") * 100)
        terminal.wait(lambda t: t.raw.count(b"1001") == 100)


def test_what_is_waited_for_in_vain_shows_the_screen(tmp_path: Path) -> None:
    with started(SIZES, tmp_path) as terminal:
        terminal.wait("ready")
        with pytest.raises(AssertionError, match="line 11"):
            terminal.wait("never", 0.2)
        with pytest.raises(AssertionError, match="line 11"):
            terminal.ended(0.2)


def test_nothing_is_left_of_a_program_that_ignores_the_hang_up(tmp_path: Path) -> None:
    with started("import signal\nsignal.signal(1, signal.SIG_IGN)\nprint('ready', flush=True)\nsignal.pause()", tmp_path) as terminal:
        terminal.wait("ready")
        assert is_there(terminal.pid)
    assert not is_there(terminal.pid)


def test_lines_that_a_lower_screen_has_no_room_for_are_in_the_history(tmp_path: Path) -> None:
    with started(SIZES, tmp_path) as terminal:
        terminal.wait("ready")
        terminal.resize(100, 15)
        terminal.wait("now 100x15")
        assert terminal.lines[:2] == ["line 0", "line 1"]
        terminal.resize(100, 5)
        terminal.wait("now 100x5")
        assert terminal.history.count("line ") == 12


def test_text_after_a_joined_emoji_is_shown(tmp_path: Path) -> None:
    with started(r"print('👩\u200d💻 and more')", tmp_path) as terminal:
        terminal.wait("and more")


def test_the_cursor_is_told_as_it_was_when_the_program_asked(tmp_path: Path) -> None:
    program = r"""
import os, sys, tty
tty.setraw(0)
os.write(1, b"abc\x1b[6ndefghi\r\n")
told = b""
while not told.endswith(b"R"):
    told += os.read(0, 1)
print(repr(told), flush=True)
"""
    with started(program, tmp_path) as terminal:
        terminal.wait(r"b'\x1b[1;4R'")


def test_a_program_that_never_stops_writing_does_not_keep_its_reader(tmp_path: Path) -> None:
    with started("while True: print('y' * 99)", tmp_path) as terminal:
        terminal.read()
        terminal.wait("yyy")
        assert terminal.raw
