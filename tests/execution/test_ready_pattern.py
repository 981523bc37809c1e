"""Detecting the line that says a server is ready, in any output and with any pattern."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_writing import HEADER, LimitedLog, numbered

from backburner.execution import output_limit
from backburner.execution.ready_pattern import ReadyPattern

ENDLESS = "(a+)+$"  # tries every way to split a row of a's


def log(folder: Path, data: bytes = b"") -> Path:
    with open(folder / "output.log", "ab") as file:
        file.write(data)
    return folder


def check_all(lines: ReadyPattern) -> bool | None:
    """Check all output so far."""
    while (found := lines.check()) is False and lines.more:
        pass
    return found


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """A SIGVTALRM timer of the surrounding program, as a program with a TaskRunner may have; returns the signals it received."""
    received: list[int] = []
    before = signal.signal(signal.SIGVTALRM, lambda number, _: received.append(number))
    yield received
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
def test_a_matching_line_is_found_in_the_first_4096_bytes_of_each_line(tmp_path: Path, output: bytes, pattern: str, found: bool) -> None:
    assert check_all(ReadyPattern(str(log(tmp_path, HEADER + output)), pattern)) is found


@pytest.mark.parametrize("pattern", ["Background task", "echo hi", "# Started"])
def test_the_header_of_the_log_is_not_searched(tmp_path: Path, pattern: str) -> None:
    lines = ReadyPattern(str(log(tmp_path, HEADER)), pattern)
    assert check_all(lines) is False
    log(tmp_path, HEADER)
    assert check_all(lines) is True


def test_output_is_searched_as_it_arrives(tmp_path: Path) -> None:
    lines = ReadyPattern(str(tmp_path), "^listening on [0-9]+$")
    assert (check_all(lines), lines.more) == (False, False), "there is no log yet"
    for piece in (HEADER, b"liste", b"ning", b" on ", b"port\n", b"x\nlistening o", b"n "):
        assert check_all(ReadyPattern(str(log(tmp_path, piece)), "^listening on [0-9]+$")) is check_all(lines) is False
    log(tmp_path, b"8080\n")
    assert (check_all(lines), check_all(lines)) == (True, False), "a line is looked at once"


def test_a_pattern_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    lines = ReadyPattern(str(log(tmp_path, HEADER + b"a" * 60 + b"!\n")), ENDLESS)
    assert check_all(lines) is None
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_a_slow_pattern_still_finds_a_matching_line(tmp_path: Path) -> None:
    assert check_all(ReadyPattern(str(log(tmp_path, HEADER + b"b\n" * 1000 + b"aaaa\n")), ENDLESS)) is True


@pytest.mark.parametrize("pattern", ["ready", ENDLESS])
def test_the_timer_of_the_surrounding_program_is_restored(tmp_path: Path, alarms: list[int], pattern: str) -> None:
    theirs = signal.getsignal(signal.SIGVTALRM)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1000, 500)
    check_all(ReadyPattern(str(log(tmp_path, HEADER + b"a" * 60 + b"!\n")), pattern))
    left, again = signal.getitimer(signal.ITIMER_VIRTUAL)
    assert signal.getsignal(signal.SIGVTALRM) is theirs and alarms == []
    assert left > 0 and again == 500


@pytest.mark.parametrize("holes", [True, False])
def test_a_line_is_found_after_earlier_output_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool) -> None:
    if not holes:
        monkeypatch.setattr(output_limit, "_punch", lambda *_: False)
    lines, limited = ReadyPattern(str(tmp_path), "ready"), LimitedLog(tmp_path, 64 * 1024)
    limited.append(HEADER + numbered(0, 20_000))
    assert os.stat(tmp_path / "output.log").st_blocks * 512 <= 64 * 1024 + 4096
    assert check_all(lines) is False
    limited.append(numbered(20_000, 40_000))
    assert check_all(lines) is False
    limited.append(b"ready\n")
    assert check_all(lines) is True
