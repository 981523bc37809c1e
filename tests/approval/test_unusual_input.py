"""Unusual input gets a decision quickly and without errors."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from approval.command_world import PATH, context_for, make_project_with_traps, verdict
from backburner.approval.policy import judge
from backburner.testing.records import request


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def raise_timeout(*_: object) -> None:
        raise TimeoutError(f"no decision within {seconds} s")

    previous = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


COMMANDS = {
    "no command": (),
    "an empty name": ("",),
    "a directory": ("/",),
    "a null byte in a path": ("cat", "a\0b"),
    "a null byte in the name": ("a/\0b",),
    "a null byte after a tilde": ("cat", "~\0/x"),
    "a lone surrogate": ("cat", "\ud800"),
    "a byte that is not UTF-8": ("cat", "\udcff"),
    "backslashes": ("sed", "s/" + "\\" * 80 + "x"),
    "spaces for sed": ("sed", " " * 20000 + "x"),
    "spaces for awk": ("awk", " " * 20000 + "x"),
    "a long path": ("cat", "a/" * 20000),
    "a long name": ("cat", "credential" * 5000 + "/x"),
    "many directories": ";".join(["cd src"] * 30),
    "many brackets": "(" * 30000,
    "many substitutions": "$(" * 20000,
    "many wrappers": tuple(["env"] * 2000),
    "many commands": "ls;" * 2000,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_unusual_input_gets_a_decision_within_two_seconds(project: Path, command: str | tuple[str, ...]) -> None:
    with time_limit(2):
        assert verdict(project, command).decision in ("allow", "ask")


def test_an_empty_line_requires_approval(project: Path) -> None:
    assert judge(request((), str(project), {}, shell=True), context_for(project, {"PATH": PATH})).decision == "ask"


def test_a_command_without_a_shell_is_checked_without_loading_the_parser(project: Path) -> None:
    code = (
        "import sys; from backburner.approval.policy import judge; from backburner.testing.records import request; "
        "from backburner.system.command_context import LocalCommandContext; p = sys.argv[1];"
        "context = LocalCommandContext(p, {'PATH': sys.argv[2]}, project=p);"
        "print(judge(request(('ls', '-la'), p, {}), context).decision, 'tree_sitter' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(project), PATH], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["allow", "False"]


def test_a_repeated_check_takes_less_than_a_millisecond(project: Path) -> None:
    context = context_for(project, {"PATH": PATH})
    submission = request(("cd src && ls && git log --oneline -5",), str(project), {}, shell=True)
    judge(submission, context)
    durations = []
    for _ in range(20):
        started = time.perf_counter()
        judge(submission, context)
        durations.append(time.perf_counter() - started)
    assert sorted(durations)[len(durations) // 2] < 0.001


def test_a_character_that_crashes_the_parser_is_not_given_to_it(tmp_path: Path) -> None:
    project = make_project_with_traps(tmp_path)
    for line in ("echo {\U000ad564w", "echo {12\U000ad564", "echo {1..\U0010f882}", "ls; {\u2603; }"):
        assert verdict(project, line).decision == "ask", line
