"""The line by which a server says that it is ready, found in whatever it prints and whatever pattern somebody wrote."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_writing import HEADER, numbered, writing

from backburner.execution import output_limit as cap
from backburner.execution.output_limit import OutputLimit
from backburner.execution.ready_pattern import ReadyPattern

ENDLESS = "(a+)+$"  # tries every way to split a row of a's


def log(folder: Path, data: bytes = b"") -> Path:
    with open(folder / "output.log", "ab") as file:
        file.write(data)
    return folder


def look(lines: ReadyPattern) -> bool | None:
    """At everything there is so far."""
    while (found := lines.check()) is False and lines.more:
        pass
    return found


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """Who else uses the alarm of this process, as a program may that has a TaskRunner; the alarms that reached it."""
    rung: list[int] = []
    before = signal.signal(signal.SIGVTALRM, lambda number, _: rung.append(number))
    yield rung
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(
    ("output", "pattern", "found"),
    [
        (b"", "ready", False),
        (b"", "", False),
        (b"x", "", True),
        (b"starting\nready\n", "ready", True),
        (b"starting\nready\n", "^ready$", True),
        (b"starting\nready", "ready$", True),
        (b"not yet\n", "ready", False),
        (b"list\nening\n", "listening", False),
        (b"a\nb\n", "a\nb", False),
        (b"\xffready\n", "ready", True),
        ("bereit für Anfragen\n".encode(), "für", True),
        (b"x" * 4092 + b"ready\n", "ready", False),
        (b"x" * 4091 + b"ready\n", "ready", True),
        (b"x\n" * 3_000_000 + b"ready\n", "ready", True),
        (b"a" * 10_000_000 + b"ready\nmore\n", "ready", False),
        (b"ready" + b"a" * 10_000_000, "ready", True),
        (b"a" * 10_000_000 + b"\nready\n", "ready", True),
        (b"a" * 10_000_000 + b"\nready", "^ready$", True),
    ],
    ids=lambda one: repr(one)[:30],
)
def test_a_line_is_found_that_fits_and_only_the_beginning_of_a_very_long_one_is_looked_at(
    tmp_path: Path, output: bytes, pattern: str, found: bool
) -> None:
    assert look(ReadyPattern(str(log(tmp_path, HEADER + output)), pattern)) is found


@pytest.mark.parametrize("pattern", ["Background task", "echo hi", "# Started"])
def test_the_header_of_the_log_is_not_looked_at(tmp_path: Path, pattern: str) -> None:
    lines = ReadyPattern(str(log(tmp_path, HEADER)), pattern)
    assert look(lines) is False
    log(tmp_path, HEADER)
    assert look(lines) is True


def test_output_is_looked_at_as_it_comes(tmp_path: Path) -> None:
    lines = ReadyPattern(str(tmp_path), "^listening on [0-9]+$")
    assert (look(lines), lines.more) == (False, False), "there is no log yet"
    for piece in (HEADER, b"liste", b"ning", b" on ", b"port\n", b"x\nlistening o", b"n "):
        assert look(ReadyPattern(str(log(tmp_path, piece)), "^listening on [0-9]+$")) is look(lines) is False
    log(tmp_path, b"8080\n")
    assert (look(lines), look(lines)) == (True, False), "a line is looked at once"


def test_a_pattern_that_takes_for_ever_is_given_up(tmp_path: Path) -> None:
    lines = ReadyPattern(str(log(tmp_path, HEADER + b"a" * 60 + b"!\n")), ENDLESS)
    assert look(lines) is None
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_a_pattern_that_could_take_for_ever_still_finds_what_fits(tmp_path: Path) -> None:
    assert look(ReadyPattern(str(log(tmp_path, HEADER + b"b\n" * 1000 + b"aaaa\n")), ENDLESS)) is True


@pytest.mark.parametrize("pattern", ["ready", ENDLESS])
def test_the_alarm_of_the_program_around_it_is_left_as_it_was(tmp_path: Path, alarms: list[int], pattern: str) -> None:
    theirs = signal.getsignal(signal.SIGVTALRM)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1000, 500)
    look(ReadyPattern(str(log(tmp_path, HEADER + b"a" * 60 + b"!\n")), pattern))
    left, again = signal.getitimer(signal.ITIMER_VIRTUAL)
    assert signal.getsignal(signal.SIGVTALRM) is theirs and alarms == []
    assert left > 0 and again == 500


def test_a_line_is_found_after_output_before_it_was_cut_out(tmp_path: Path) -> None:
    lines, one = ReadyPattern(str(log(tmp_path, HEADER + numbered(0, 20_000))), "ready"), OutputLimit(str(tmp_path), 64 * 1024, None)
    assert look(lines) is False
    one.check()
    log(tmp_path, numbered(20_000, 40_000))
    one.check()
    assert look(lines) is False
    log(tmp_path, b"ready\n")
    assert look(lines) is True


def test_a_line_is_found_after_the_log_was_moved_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cap, "_punch", lambda *_: False)
    with writing(tmp_path) as (pid, append):
        lines, one = ReadyPattern(str(tmp_path), "ready"), OutputLimit(str(tmp_path), 64 * 1024, pid)
        append(HEADER + numbered(0, 20_000))
        assert look(lines) is False
        one.check()
        assert os.stat(tmp_path / "output.log").st_size < 64 * 1024
        append(b"ready\n")
        assert look(lines) is True
