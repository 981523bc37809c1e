"""`top`: the content of the board at any size, and the real program in a pseudo-terminal."""

import codecs
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import apsw
import pyte
import pytest
from conftest import HomeCli, caller, wait_until
from hypothesis import example, given
from hypothesis import strategies as st

from backburner.core import task_table
from backburner.core.models import Entry
from backburner.core.progress import Progress
from backburner.core.schedule import every
from backburner.core.states import Result, RunState, TaskState
from backburner.core.terminal_text import cells
from backburner.interfaces.cli.tasks import LIST_LIMIT
from backburner.interfaces.tui.board import Board, Row, Section, arranged, compose, page, section_of
from backburner.interfaces.tui.top_screen import STYLES
from backburner.services.app import open_app
from backburner.system import wakeups
from backburner.testing import records
from backburner.testing.records import request

NOW = 1_770_647_500_000
HOSTILE = "\x1b[2J\x1b]0;title\x07\x1b[8;1;1t\x9b31m\u202e\x00\r\t進捗\u0301🚀\ufe0f\x1bP+q\x1b\\"


def task(word: str, state: RunState | TaskState = RunState.RUNNING, n: int = 0, **fields: object) -> Entry:
    """A task in a state; `fields` go to the task or its run, by their names."""
    names = ("description", "command", "shell", "project", "after", "prompt", "agent", "schedule", "next_run_at")
    of_task = {name: fields.pop(name) for name in list(fields) if name in names}
    one = records.task(
        f"task_20260209_143022_{word}",
        **{"command": ("pytest", "-q"), "cwd": "/work/project", "reasons": ("it runs the code of this project",), **of_task},
        created_at=NOW - 90_000 + n,
    )
    if isinstance(state, TaskState):
        return Entry(one._replace(state=state), None)
    started = NOW - 73_000 + n if state not in (RunState.PENDING, RunState.WAITING) else None
    ended = NOW - 1000 + n if state in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.SKIPPED) else None
    result = Result.EXIT if ended else None
    return Entry(one, records.run(word, **{"state": state, "started_at": started, "ended_at": ended, "result": result, **fields}))


def board(entries: list[Entry], output: bytes = b"", progress: Progress | None = None, **fields: object) -> Board:
    selected = fields.pop("selected", entries[0].task.task_id if entries else None)
    asked = (lambda _: progress), (lambda _: "free capacity"), (lambda _, lines: output)
    return Board("~/project", entries, NOW, *asked, selected=selected, **fields)  # type: ignore[arg-type]


def lines(rows: list[Row]) -> list[str]:
    return ["".join(text for text, _ in row).rstrip() for row in rows]


def everything() -> list[Entry]:
    return arranged(
        [
            task("lint", RunState.COMPLETED, 1, summary="All checks passed!"),
            task("old", RunState.FAILED, 0, exit_code=2, summary="2 failed"),
            task("copy", TaskState.PROPOSED),
            task("later", RunState.PENDING),
            task("server", RunState.RUNNING, 2, ready_at=NOW),
            task("pytest", RunState.RUNNING, 1, summary=None),
        ],
        NOW,
    )


def test_each_task_is_in_its_section_with_the_relevant_columns() -> None:
    shown = lines(compose(board(everything(), b"one\ntwo\n", Progress(9, 20, 0.45, "9 of 20"), free=3), 130, 24))
    assert shown[0] == " backburner  ~/project" + shown[0][22:] and shown[0].endswith(
        "2 running · 1 pending · 1 waiting for approval · capacity for 3 more"
    )
    assert shown[1] == " Running 2"
    assert re.fullmatch(r" ████░░░░░░  45%   1m 12s task_20260209_143022_pytest pytest -q +9 of 20", shown[2])
    assert shown[4] == " Pending 1" and shown[5].split()[:2] == ["pending", "task_20260209_143022_later"]
    assert shown[5].endswith("waiting for free capacity")
    assert shown[6] == " Waiting for approval 1" and shown[7].endswith("it runs the code of this project")
    assert shown[8] == " Recent 2" and shown[9].startswith(" completed") and shown[9].endswith("All checks passed!")
    assert shown[10].startswith(" failed") and shown[10].endswith("exit 2 · 2 failed")
    assert shown[11].startswith("── task_20260209_143022_pytest · running 1m 12s · 9 of 20 · pytest -q ───")
    assert shown[12:14] == ["one", "two"] and set(shown[14:23]) == {""}
    assert shown[23].startswith(" c cancel  r restart") and shown[23].endswith("q quit")


def test_only_the_selected_row_is_reversed_over_the_full_width() -> None:
    entries = everything()
    rows = compose(board(entries, selected=entries[2].task.task_id), 100, 24)
    chosen = [row for row in rows if any(style == "selected" for _, style in row)]
    assert len(chosen) == 1 and "143022_later" in chosen[0][0][0] and cells(chosen[0][0][0]) == 100


def test_sections_have_their_own_sort_order() -> None:
    entries = [
        task("blocked", RunState.PENDING, 0, blocked=True),
        task("timed", RunState.PENDING, 0, due_at=NOW + 5000),
        task("second", RunState.PENDING, 5),
        task("first", RunState.PENDING, 1),
        task("urgent", RunState.PENDING, 9, priority=1),
        task("young", RunState.RUNNING, 5),
        task("aged", RunState.RUNNING, 1),
        task("just", RunState.CANCELLED, 9),
        task("before", RunState.COMPLETED, 1),
    ]
    words = [entry.task.task_id.rpartition("_")[2] for entry in arranged(entries, NOW)]
    assert words == ["aged", "young", "urgent", "first", "second", "timed", "blocked", "just", "before"]


def test_recurring_tasks_between_two_runs_are_scheduled_with_the_next_first() -> None:
    hourly = every(3_600_000, NOW)
    entries = [
        task("paused", TaskState.PAUSED, schedule=hourly),
        task("tomorrow", TaskState.ACTIVE, schedule=hourly, next_run_at=NOW + 86_400_000, command=(), agent="default", prompt="Look."),
        task("soon", RunState.COMPLETED, schedule=hourly, next_run_at=NOW + 60_000, summary="2 found"),
        task("now", RunState.RUNNING, schedule=hourly, next_run_at=NOW + 60_000),
        task("done", TaskState.DONE, schedule=hourly),
    ]
    shown = lines(compose(board(arranged(entries, NOW)), 130, 24))
    assert shown[1] == " Running 1" and "_now " in shown[2] and shown[3] == " Scheduled 3"
    assert re.fullmatch(r" active +1m 12s \S+_soon +pytest -q +next in 1m 0s · 2 found", shown[4]), shown[4]
    assert re.fullmatch(r" active +\S+_tomorrow +Look\. +next in 1d 0h", shown[5]), shown[5]
    assert re.fullmatch(r" paused +\S+_paused +pytest -q", shown[6]) and shown[7] == " Recent 1", shown[6:8]


def test_every_status_has_a_section() -> None:
    assert {section_of(task("x", state)) for state in RunState} == set(Section) - {Section.SCHEDULED}
    assert section_of(task("x", TaskState.PROPOSED)) is Section.WAITING
    assert {section_of(task("x", state)) for state in (TaskState.REJECTED, TaskState.EXPIRED)} == {Section.RECENT}


def test_a_narrow_board_drops_the_duration_first_and_then_the_description() -> None:
    entries = [task("pytest", description="All of the tests")]
    assert lines(compose(board(entries), 60, 12))[2] == " running     1m 13s 143022_pytest All of the tests"
    assert lines(compose(board(entries), 42, 12))[2] == " running   143022_pytest All of the tests"
    assert lines(compose(board(entries), 30, 12))[2] == " running   143022_pytest"
    pending = [task("later", RunState.PENDING, description="Much later")]
    assert lines(compose(board(pending), 60, 12))[2].endswith("143022_later for free capacity")


def test_a_board_of_few_lines_keeps_the_selected_task_and_the_keys() -> None:
    entries = arranged([task(f"t{n}", RunState.COMPLETED, n) for n in range(50)], NOW)
    selected = entries[30].task.task_id
    for height in range(3, 20):
        shown = lines(compose(board(entries, b"said\n", selected=selected), 100, height))
        assert any("143022_t19 " in line for line in shown[1:-1]) and shown[-1].endswith("q quit"), height
        assert ("said" in shown) == (height >= 8)
        assert 1 <= page(board(entries, selected=selected), height) < height


def test_the_output_is_shown_in_its_last_state_with_its_indentation() -> None:
    output = b"  indented\n\tbelow a tab\n10%\r20%\r30%\r\n\x1b[31m  red\x1b[0m\nunfinished"
    shown = lines(compose(board([task("x")], output, zoomed=True), 80, 9))
    assert shown[2:8] == ["  indented", "        below a tab", "30%", "  red", "unfinished", ""]


def test_a_zoomed_board_is_all_output() -> None:
    output = b"".join(b"line %d\n" % n for n in range(100))
    shown = lines(compose(board(everything(), output, zoomed=True), 80, 30))
    assert shown[1].startswith("── ") and shown[2:-1] == [f"line {n}" for n in range(73, 100)]


def test_proposals_and_an_empty_board_show_the_next_command() -> None:
    shown = lines(compose(board([task("copy", TaskState.PROPOSED)]), 100, 20))
    assert "Why it needs approval: it runs the code of this project" in shown
    assert "To approve: a. To reject: n." in shown and shown[-1].startswith(" a approve  n reject  o output")
    assert " No background tasks in this project." in lines(compose(board([]), 100, 20))


def test_a_question_and_the_help_replace_the_key_line() -> None:
    assert lines(compose(board(everything(), message="Cancel x? y/n"), 80, 20))[-1] == " Cancel x? y/n"
    assert any(
        line.strip() == "c          cancel the task, after confirmation" for line in lines(compose(board(everything(), help=True), 80, 20))
    )


def test_a_task_being_cancelled_is_marked() -> None:
    entries = [task("a"), task("x", cancel_requested_at=NOW)]
    assert ("stopping       ", "cancelled") in compose(board(entries), 100, 10)[3]


def test_colours_are_those_of_the_table() -> None:
    assert {STYLES[status] for status in ("completed", "done")} == {"ansigreen"} and STYLES["failed"] == "ansired"
    assert task_table.COLOURS.keys() < STYLES.keys() and STYLES["pending"] == "dim"


ANY_TEXT = st.one_of(st.text(max_size=60), st.just(HOSTILE), st.just("x" * 20_000), st.just("進" * 300), st.just("e" + "\u0301" * 500))
STATES = st.sampled_from([*RunState, TaskState.PROPOSED, TaskState.REJECTED, TaskState.EXPIRED])


@st.composite
def entries_of_any_kind(draw: st.DrawFn) -> list[Entry]:
    found = []
    for n in range(draw(st.integers(0, 12))):
        state = draw(STATES)
        fields: dict[str, object] = {"description": draw(ANY_TEXT), "command": (draw(ANY_TEXT),), "shell": True, "project": draw(ANY_TEXT)}
        if isinstance(state, RunState):
            fields |= {
                "summary": draw(st.none() | ANY_TEXT),
                "error": draw(st.none() | ANY_TEXT),
                "exit_code": draw(st.none() | st.integers(0, 255)),
            }
            fields |= {"due_at": draw(st.none() | st.just(NOW + 5000)), "cancel_requested_at": draw(st.none() | st.just(NOW))}
        word = draw(st.from_regex(r"[A-Za-z0-9._-]{1,32}", fullmatch=True))
        found.append(task(f"{word}_{n}", state, n, **fields))
    return arranged(found, NOW)


@st.composite
def boards(draw: st.DrawFn) -> Board:
    entries = draw(entries_of_any_kind())
    output = draw(st.one_of(st.binary(max_size=300), ANY_TEXT.map(lambda text: text.encode("utf-8", "replace"))))
    progress = draw(st.none() | st.builds(Progress, st.none(), st.none(), st.none() | st.floats(0, 1), ANY_TEXT))
    shown = board(entries, output, progress, everywhere=draw(st.booleans()), zoomed=draw(st.booleans()), help=draw(st.booleans()))
    selected = draw(st.sampled_from([entry.task.task_id for entry in entries])) if entries else None
    waits = draw(st.none() | ANY_TEXT)
    return shown._replace(selected=selected, where=draw(ANY_TEXT), message=draw(ANY_TEXT), pending_reason=lambda _: waits)


@given(boards(), st.integers(1, 250), st.integers(1, 80))
@example(board(everything(), HOSTILE.encode()), 1, 1)
@example(board([task("x", description=HOSTILE)], (HOSTILE * 1000).encode(), everywhere=True), 250, 80)
def test_no_board_exceeds_the_screen_or_contains_control_codes(shown: Board, width: int, height: int) -> None:
    rows = compose(shown, width, height)
    assert len(rows) == height
    for row in rows:
        text = "".join(text for text, _ in row)
        assert cells(text) <= width and text.isprintable()
        assert not re.search("[\ufe00-\ufe0f\u202a-\u202e]", text)


# -- in a terminal

# A character, or a sequence that a board may write: colours, moves of the cursor, erasing, and a few modes.
_TOKEN = re.compile(r"[^\x1b]|\x1b\[[\d;]*[mABCDHJK]|\x1b\[\?(?:1|7|12|25|1049|2004)[hl]", re.DOTALL)


class Screen(pyte.Screen):
    """A terminal with an alternate screen, which remembers whether a line ever ran over. A switch of screens clears it.

    One that was resized shows nothing before it is erased: what comes until then was drawn for another size.
    """

    def __init__(self, columns: int, lines: int) -> None:
        super().__init__(columns, lines)
        self._stream = pyte.Stream(self)
        self.alternate = self.wrapped = self.resized = False

    def feed(self, text: str) -> str:
        """Obey; what is left is the start of a sequence."""
        at = 0
        while found := _TOKEN.match(text, at):
            at = found.end()
            if self.resized and found[0] == "\x1b[J":
                self.resized = False
                self.cursor_position()
            if not self.resized:
                self._stream.feed(found[0])
        assert len(text) - at < 16, f"no terminal should get {text[at:]!r}"
        return text[at:]

    def draw(self, data: str) -> None:
        assert data.isprintable() or not self.alternate, f"no terminal should get {data!r}"
        self.wrapped = self.wrapped or (self.alternate and self.cursor.x + cells(data) > self.columns)
        super().draw(data)

    def set_mode(self, *modes: int, **options: bool) -> None:
        super().set_mode(*modes, **options)
        if 1049 in modes:
            self._switch(alternate=True)

    def reset_mode(self, *modes: int, **options: bool) -> None:
        super().reset_mode(*modes, **options)
        if 1049 in modes:
            self._switch(alternate=False)

    def _switch(self, *, alternate: bool) -> None:
        self.alternate = alternate
        self.erase_in_display(2)
        self.cursor_position()


class Terminal:
    """`backburner top`, or another command, in a pseudo-terminal."""

    def __init__(
        self,
        home_cli: HomeCli,
        *,
        words: tuple[str, ...] = ("top",),
        columns: int = 100,
        lines: int = 30,
        env: dict[str, str] | None = None,
        controlling: bool = True,
    ) -> None:
        self.raw, self._rest = b"", ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.screen = Screen(columns, lines)
        self.master, self.slave = pty.openpty()
        self._size(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "backburner", *words],
            cwd=home_cli.cwd,
            env={**home_cli.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLUMNS": "33", **(env or {})},
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controlling else None,
        )
        os.set_blocking(self.master, False)

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self.shown()
        self.screen.resize(lines, columns)
        self.screen.resized = True
        self._size(columns, lines)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def shown(self) -> list[str]:
        """The current lines of the screen."""
        with contextlib.suppress(BlockingIOError, OSError):
            while piece := os.read(self.master, 1 << 16):
                self.raw += piece
                self._rest = self.screen.feed(self._rest + self._decoder.decode(piece))
        return [line.rstrip() for line in self.screen.display]

    def wait_for(self, pattern: str) -> None:
        """Wait until a line on the screen matches."""
        wait_until(lambda: any(re.search(pattern, line) for line in self.shown()), f"{pattern!r} on the screen")

    def wait_for_exit(self) -> int:
        """Wait until the program exits; return its exit code."""
        wait_until(lambda: [self.shown(), self.process.poll()][1] is not None, "top to exit")
        self.shown()
        return self.process.returncode

    @property
    def is_restored(self) -> bool:
        """Whether the modes of the terminal are as before: screen, cursor, line wrapping, paste."""
        modes = ("1049l", "1049h"), ("25h", "25l"), ("7h", "7l"), ("2004l", "2004h")
        ended = all(self.raw.rfind(f"\x1b[?{off}".encode()) > self.raw.rfind(f"\x1b[?{on}".encode()) >= 0 for off, on in modes)
        return ended and not self.screen.alternate and termios.tcgetattr(self.slave) == self.before

    def hang_up(self) -> None:
        """Close the terminal, like closing its window does."""
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.master >= 0:
            self.hang_up()


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Terminals that are closed at the end of the test."""
    started: list[Terminal] = []
    yield started
    for terminal in started:
        terminal.close()


def top(terminals: list[Terminal], home_cli: HomeCli, **options: object) -> Terminal:
    terminals.append(Terminal(home_cli, **options))  # type: ignore[arg-type]
    return terminals[-1]


def test_the_board_shows_live_output_and_q_restores_the_terminal(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    gate = home_cli.cwd / "gate"
    task_id = home_cli.run(
        f"echo hello; while [ ! -e {gate} ]; do sleep 0.02; done; echo '3/4'; echo late; exec sleep 600", options=("--shell",)
    )
    terminal = top(terminals, home_cli)
    terminal.wait_for("1 running · 0 pending · capacity for 4 more")
    terminal.wait_for(rf"^── {task_id} · running")
    terminal.wait_for("^hello$")
    gate.touch()
    terminal.wait_for("^late$")
    terminal.wait_for(r"███████░░░  75%")
    terminal.type("q")
    assert terminal.wait_for_exit() == 0 and terminal.is_restored and not terminal.screen.wrapped
    assert home_cli.status(task_id)["status"] == "running"
    home_cli.ok("cancel", task_id)


def test_c_then_y_cancels_the_selected_task_and_other_keys_do_not(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    first, second = home_cli.run("sleep", "600"), home_cli.run("sleep", "601")
    terminal = top(terminals, home_cli)
    terminal.wait_for("2 running")
    terminal.type("jc")
    terminal.wait_for("Cancel .*sleep(_2)?[?] y/n")
    terminal.type("n")
    terminal.wait_for("q quit")
    terminal.type("kc")
    terminal.wait_for("y/n")
    terminal.type("y")
    terminal.wait_for(rf"^── {first} · cancelled")  # the selection stays with its task
    terminal.type("c")
    terminal.wait_for("is not running")
    terminal.type("\x03")
    assert terminal.wait_for_exit() == 0 and terminal.is_restored
    assert (home_cli.status(first)["status"], home_cli.status(second)["status"]) == ("cancelled", "running")
    home_cli.ok("cancel", second)


def test_restart_prompts_on_the_normal_screen_and_shows_the_new_task(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    first = home_cli.finish("install", "-d", "made")["task_id"]
    terminal = top(terminals, home_cli)
    terminal.wait_for(f"^── {first} · completed")
    terminal.type("r")
    terminal.wait_for("Start in background[?]")
    assert not terminal.screen.alternate
    terminal.type("n\n")
    terminal.wait_for("Not started: you rejected it")
    terminal.type("\n")
    terminal.wait_for(f"^── {first} · completed")
    terminal.type("r")
    terminal.wait_for("Start in background[?]")
    terminal.type("y\n")
    terminal.wait_for("Press Enter to return")
    terminal.type("\n")
    terminal.wait_for("Recent 2")
    found = home_cli.json("list")
    assert isinstance(found, list) and found[0]["restarted_from"] == first
    terminal.wait_for(f"^── {found[0]['task_id']} · ")
    terminal.type("\x1b")
    assert terminal.wait_for_exit() == 0 and terminal.is_restored


def test_a_approves_and_n_rejects_the_selected_proposal(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    first = home_cli.cli("run", "--", "install", "-d", "first").stdout.strip()
    second = home_cli.cli("run", "--", "install", "-d", "second").stdout.strip()
    terminal = top(terminals, home_cli)
    terminal.wait_for("2 waiting")
    terminal.wait_for("a approve  n reject")
    selected = next(task_id for task_id in (first, second) if any(line.startswith(f"── {task_id} ") for line in terminal.shown()))
    other = second if selected == first else first
    terminal.type("n")
    terminal.wait_for("Reject .*install(_2)?[?] y/n")
    terminal.type("y")
    terminal.wait_for("1 waiting")
    assert home_cli.status(selected)["status"] == "rejected"
    terminal.type("n")
    terminal.wait_for("is not waiting for approval [(]status: rejected[)]")
    terminal.type("k")
    terminal.wait_for(f"^── {other} · proposed")
    terminal.type("a")
    terminal.wait_for("Command requires approval")
    terminal.wait_for("y/n")
    assert not terminal.screen.alternate
    terminal.type("y\n")
    terminal.wait_for("Press Enter to return")
    terminal.type("\n")
    terminal.wait_for(f"^── {other} · completed")
    terminal.type("q")
    assert terminal.wait_for_exit() == 0


def test_l_follows_the_log_on_the_normal_screen_until_ctrl_c(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    task_id = home_cli.run("echo followed; exec sleep 600", options=("--shell",))
    terminal = top(terminals, home_cli)
    terminal.wait_for("followed")
    terminal.type("l")
    wait_until(lambda: terminal.shown() and not terminal.screen.alternate, "the plain screen")
    terminal.wait_for("^followed")
    terminal.type("\x03")
    terminal.wait_for("Press Enter to return")
    terminal.type("\n")
    terminal.wait_for(f"^── {task_id}")
    terminal.type("q")
    assert terminal.wait_for_exit() == 0 and terminal.is_restored
    home_cli.ok("cancel", task_id)


def test_control_codes_in_output_and_names_do_not_reach_the_board(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    attacks = [
        "\x1b]0;owned\x07", "\x1b[8;1;1t", "\x1b[6n", "\x1b[?1000h", "\x1bP+q544e\x1b\\", "\x1b[5;31;1m", "\x1b[3;3H", "\x1bc",
        "\x9b31m", "\u202e", "\x0e", "\x1b]52;c;b3duZWQ=\x07", "\x1b[38;2;1;2;3m", "\x1b[999B", "\x1b_owned\x1b\\",
    ]  # fmt: skip
    payload = home_cli.cwd / "payload"
    payload.write_bytes(b"x" * 1_000_000 + b"\n" + "".join(f"{attack}after\n" for attack in attacks).encode() + b"\xff\xfe\x00\nend\n")
    evil = "\x1b]0;owned\x07\x1b[3;3Hname\u202e"
    task_id = home_cli.run(f"cat {payload}; exec sleep 600", options=("--shell", "--description", evil, "--name", "evil\x1b[2J"))
    terminal = top(terminals, home_cli, columns=80, lines=40)
    terminal.wait_for("^end$")
    terminal.wait_for("^x{79}…$")
    assert sum(line.endswith("after") for line in terminal.shown()) == len(attacks)
    terminal.type("o")
    terminal.type("\x0cq")
    assert terminal.wait_for_exit() == 0 and terminal.is_restored and not terminal.screen.wrapped
    for attack in attacks:
        assert attack.encode() not in terminal.raw
    assert b"owned" not in terminal.raw.replace(b"\\x1b]0;owned", b"") and b"\x1b]" not in terminal.raw
    home_cli.ok("cancel", task_id)


def test_the_board_follows_the_size_of_the_terminal(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    task_id = home_cli.run("sleep", "600", options=("--description", "進捗を示す🚀", "--name", "wide"))
    terminal = top(terminals, home_cli)
    terminal.wait_for(f"^── {task_id}")
    for columns, height in ((200, 50), (60, 20), (40, 8), (12, 3), (2, 1), (1, 1), (100, 30)):
        terminal.resize(columns, height)
        wait_until(lambda: terminal.shown() and not terminal.screen.resized, "the board to be drawn anew")
        if columns >= 40:
            terminal.wait_for(r" \d+_wide +進捗を示" if columns < 120 else f"{task_id} +進捗を示す🚀")
            terminal.wait_for("q quit")
        elif columns > 2:
            terminal.wait_for(r"\S")
    terminal.type("q")
    assert terminal.wait_for_exit() == 0 and terminal.is_restored and not terminal.screen.wrapped
    home_cli.ok("cancel", task_id)


def test_new_tasks_appear_and_p_shows_all_projects(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    elsewhere = home_cli.cwd.parent / "elsewhere"
    elsewhere.mkdir()
    terminal = top(terminals, home_cli)
    terminal.wait_for("No background tasks in this project")
    home_cli.ok("run", "--wait", "--", "echo", "there", cwd=elsewhere)
    home_cli.ok("run", "--wait", "--", "echo", "here")
    terminal.wait_for("Recent 1")
    terminal.wait_for("^here$")
    terminal.type("p")
    terminal.wait_for("Recent 2")
    terminal.wait_for("elsewhere")
    terminal.type("\x1bOB")
    terminal.wait_for("^there$")
    terminal.type("?")
    terminal.wait_for("cancel the task, after confirmation")
    terminal.type("jq")
    assert terminal.wait_for_exit() == 0


def test_live_tasks_are_shown_even_if_many_newer_tasks_exist(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    submission = request(command=("install", "-d", "made"), cwd=str(home_cli.cwd), environment={"PATH": os.environ["PATH"]})
    with open_app(home_cli.home, home_cli.environ) as app:
        ids = [app.submissions.submit(submission, caller(app)).task.task_id for _ in range(LIST_LIMIT + 5)]
    terminal = top(terminals, home_cli)
    terminal.wait_for(f"{LIST_LIMIT + 5} waiting for approval")
    terminal.type("\x1bOF")
    terminal.wait_for(f"^── {ids[-1]} · proposed")
    terminal.type("\x1b[5~\x1b[5~k\x1bOHj")
    terminal.wait_for(f"^── {ids[1]} · proposed")
    terminal.type("q")
    assert terminal.wait_for_exit() == 0


def test_a_ledger_error_is_shown_and_the_board_recovers(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    home_cli.finish("true")
    terminal = top(terminals, home_cli, columns=200)
    terminal.wait_for("Recent 1")
    ledger = apsw.Connection(home_cli.home.ledger)
    ledger.execute("ALTER TABLE tasks RENAME TO elsewhere")
    wakeups.wake_all(home_cli.home.socket_dir)
    terminal.wait_for("^ Cannot use the ledger .*: no such table: tasks")
    terminal.wait_for("Recent 1")
    ledger.execute("ALTER TABLE elsewhere RENAME TO tasks")
    ledger.close()
    wakeups.wake_all(home_cli.home.socket_dir)
    terminal.wait_for("q quit")
    terminal.type("q")
    assert terminal.wait_for_exit() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)])
def test_a_board_ended_by_a_signal_restores_the_terminal(home_cli: HomeCli, terminals: list[Terminal], number: int, code: int) -> None:
    terminal = top(terminals, home_cli)
    terminal.wait_for("No background tasks in this project")
    terminal.process.send_signal(number)
    assert terminal.wait_for_exit() == code and terminal.is_restored


@pytest.mark.parametrize("controlling", [True, False])
def test_a_board_whose_terminal_closes_exits(home_cli: HomeCli, terminals: list[Terminal], controlling: bool) -> None:
    terminal = top(terminals, home_cli, controlling=controlling)  # only where it is the controlling one there is a signal
    terminal.wait_for("No background tasks in this project")
    terminal.hang_up()
    assert terminal.process.wait(20) == 0


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_an_internal_error_is_printed_after_the_terminal_is_restored(home_cli: HomeCli, terminals: list[Terminal], where: str) -> None:
    folder = home_cli.cwd.parent / where if where == "elsewhere" else home_cli.cwd
    folder.mkdir(exist_ok=True)
    home_cli.ok("run", "--wait", "--", "true", cwd=folder)
    terminal = top(terminals, home_cli)
    terminal.wait_for("Recent 1" if where == "here" else "No background tasks in this project")
    ledger = apsw.Connection(home_cli.home.ledger)
    ledger.execute("UPDATE tasks SET command = '['")
    ledger.close()
    if where == "here":
        wakeups.wake_all(home_cli.home.socket_dir)
    else:
        terminal.type("p")
    assert terminal.wait_for_exit() == 1 and terminal.is_restored
    assert b"Internal error: JSONDecodeError" in terminal.raw.rpartition(b"\x1b[?1049l")[2]


def test_unknown_keys_and_pasted_text_do_nothing(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    first, second = home_cli.run("sleep", "600"), home_cli.run("sleep", "601")
    terminal = top(terminals, home_cli)
    terminal.wait_for("2 running")

    def goes_on(key: str, selected: str) -> bool:
        terminal.type(key)  # again and again: what comes together with a key that is not known is ignored with it
        return any(line.startswith(f"── {selected} ") for line in terminal.shown())

    for keys in ("\x1bq", "\x1b[?62;22c", "\x1b[200~cyq\x1b[201~", "\x1b[200~", "cyq\x1b[201~", "ü"):
        terminal.type(keys)
        if keys != "\x1b[200~":
            wait_until(lambda: goes_on("j", second), "the second task to be selected")
            wait_until(lambda: goes_on("k", first), "the first task to be selected")
    assert b"y/n" not in terminal.raw
    terminal.type("q")
    assert terminal.wait_for_exit() == 0 and terminal.is_restored
    home_cli.ok("cancel", first, second)


def test_ctrl_l_removes_the_output_of_another_program(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    task_id = home_cli.run("sleep", "600")
    terminal = top(terminals, home_cli)
    terminal.wait_for("1 running")
    os.write(terminal.slave, b"\n\n\nwritten by another program")
    terminal.wait_for("written by")
    terminal.type("?")
    terminal.wait_for("cancel the task, after confirmation")
    assert terminal.shown()[2].strip() == "Keys"
    terminal.type("?")
    terminal.wait_for("Running 1")
    os.write(terminal.slave, b"\n\n\nwritten by another program")
    terminal.wait_for("written by")
    terminal.type("\x0c")
    wait_until(lambda: not any("written by" in line for line in terminal.shown()), "it to be removed")
    terminal.wait_for("q quit")
    assert terminal.shown()[0].startswith(" backburner ") and terminal.shown()[1] == " Running 1"
    terminal.type("q")
    assert terminal.wait_for_exit() == 0 and terminal.is_restored
    home_cli.ok("cancel", task_id)


def test_a_tiny_terminal_shows_the_selected_task_and_the_quit_key(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    home_cli.finish("true")
    terminal = top(terminals, home_cli, columns=10, lines=3)
    terminal.wait_for("^ q quit$")
    assert terminal.shown()[1] == " complete…"
    terminal.type("c")
    terminal.wait_for("^ Task tas…$")
    terminal.type("q")
    assert terminal.wait_for_exit() == 0 and terminal.is_restored and not terminal.screen.wrapped


def test_the_board_applies_changed_settings(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    terminal = top(terminals, home_cli)
    terminal.wait_for("capacity for 5 more")
    home_cli.configure("[commands]\nmax_concurrent = 7\n")
    wakeups.wake_all(home_cli.home.socket_dir)
    terminal.wait_for("capacity for 7 more")
    home_cli.configure("[commands]\nmax_concurrent = many\n")
    wakeups.wake_all(home_cli.home.socket_dir)
    home_cli.configure("[commands]\nmax_concurrent = 6\n")
    wakeups.wake_all(home_cli.home.socket_dir)
    terminal.wait_for("capacity for 6 more")
    terminal.type("q")
    assert terminal.wait_for_exit() == 0


def test_no_colour_setting_disables_colours(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    home_cli.finish("false")
    colour = re.compile(rb"\x1b\[[\d;]*3[1-7][;m]")
    plain, coloured = top(terminals, home_cli, env={"NO_COLOR": "1"}), top(terminals, home_cli)
    for terminal in (plain, coloured):
        terminal.wait_for("failed .*exit 1")
        terminal.type("q")
        assert terminal.wait_for_exit() == 0
    assert not colour.search(plain.raw) and colour.search(coloured.raw)


def test_an_ascii_terminal_gets_ascii_characters(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    home_cli.finish("echo", "進", options=("--description", "進捗"))
    terminal = top(terminals, home_cli, env={"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    terminal.wait_for(r"^-- task_\d+_\d+_echo - completed \d+m?s - \?\? -")
    terminal.type("q")
    assert terminal.wait_for_exit() == 0 and terminal.raw.isascii()


def test_an_unknown_terminal_type_gets_the_board(home_cli: HomeCli, terminals: list[Terminal]) -> None:
    terminal = top(terminals, home_cli, env={"TERM": "xterm-of-tomorrow"})
    terminal.wait_for("No background tasks in this project")
    terminal.type("q")
    assert terminal.wait_for_exit() == 0 and terminal.is_restored


@pytest.mark.parametrize("term", ["dumb", "", "unknown"])
def test_an_unsupported_terminal_gets_one_error_line(home_cli: HomeCli, terminals: list[Terminal], term: str) -> None:
    terminal = top(terminals, home_cli, env={"TERM": term})
    assert terminal.wait_for_exit() == 2
    assert terminal.raw.decode() == "`top` needs a terminal; `backburner list` works without one.\r\n"


def test_without_a_terminal_top_is_an_error_and_its_json_is_that_of_list(home_cli: HomeCli) -> None:
    home_cli.finish("true")
    done = home_cli.cli("top")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "`top` needs a terminal; `backburner list` works without one.\n"
    assert json.loads(home_cli.ok("top", "--json")) == home_cli.json("list")


@pytest.mark.parametrize("words", [("top",), ("chat", "-m", "hello")])
@pytest.mark.parametrize("module", ["prompt_toolkit", "wcwidth"])
def test_without_the_extra_a_sentence_says_what_to_install(
    home_cli: HomeCli, terminals: list[Terminal], module: str, words: tuple[str, ...]
) -> None:
    hidden = home_cli.cwd / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(f"import sys; sys.modules['{module}'] = None")
    terminal = top(terminals, home_cli, words=words, env={"PYTHONPATH": str(hidden)})
    assert terminal.wait_for_exit() == 2
    what = "`top` needs" if words == ("top",) else "A chat needs"
    assert terminal.raw.decode() == f"{what} the extra `tui`: pip install 'backburner[tui]'.\r\n"
