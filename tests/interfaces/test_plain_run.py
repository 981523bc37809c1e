"""`run` without options is parsed without argparse, with the same result."""

import subprocess
import sys

import hypothesis.strategies as some
import pytest
from conftest import HomeCli
from hypothesis import example, given

from backburner.core.errors import BackburnerError
from backburner.interfaces.cli.arguments import parse
from backburner.interfaces.cli.plain_run import parse_plain_run

_WORDS = [
    "run",
    "check",
    "true",
    "echo",
    "--",
    "-",
    "-x",
    "--wait",
    "--wait=3",
    "--json",
    "--name",
    "n",
    "5",
    "",
    "a b",
    "--env",
    "A=B",
    "é",
]

_SLOW = {"argparse", "asyncio", "dataclasses", "gettext", "importlib", "json", "re", "socket", "subprocess", "typing"}


@given(some.lists(some.sampled_from(_WORDS), max_size=6).map(lambda words: ["run", *words]))
@example(["run"])
@example(["run", "--"])
@example(["run", "--", "--", "true"])
@example(["run", "--", "run", "--", "--wait"])
@example(["run", "true", "--"])
@example(["run", "", "--wait"])
def test_what_is_parsed_without_argparse_has_the_same_result(argv: list[str]) -> None:
    if (plain := parse_plain_run(argv)) is None:
        return
    expected = vars(parse(argv))
    assert {name: list(value) if isinstance(value, tuple) else value for name, value in vars(plain).items()} == expected


@pytest.mark.parametrize(
    "argv", [["run", "--", "true"], ["run", "true"], ["run", "--", "echo", "--wait", "--"], ["run", "echo", "a b", "é"]]
)
def test_the_usual_arguments_are_parsed_without_argparse(argv: list[str]) -> None:
    assert parse_plain_run(argv) is not None


@pytest.mark.parametrize("argv", [["run"], ["run", "--"], ["run", "--wait", "--", "true"], ["run", "echo", "-x"], ["list"], []])
def test_other_arguments_are_left_to_argparse(argv: list[str]) -> None:
    assert parse_plain_run(argv) is None


def test_no_command_is_refused_in_the_same_words(home_cli: HomeCli) -> None:
    for words in (["run"], ["run", "--"]):
        done = home_cli.cli(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "No command to run. Write it after `--`: -- COMMAND ARG…\n"
    with pytest.raises(BackburnerError, match="could be an option"):
        parse(["run", "echo", "--wait"])


def test_a_plain_run_loads_no_slow_modules(home_cli: HomeCli) -> None:
    home_cli.configure("")
    home_cli.ok("run", "--wait", "--", "true")  # starts the engine
    script = (
        f"import sys; sys.path += {[path for path in sys.path if path]!r}; from backburner.interfaces.cli.main import main;"
        f"code = main(['run', '--', 'true']); print(*{_SLOW} & set(sys.modules)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-ISc", script], env=home_cli.environ, cwd=home_cli.cwd, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[1:] == [""]
