"""Completion in a real bash: what is offered at each place of a command line."""

import shlex
import subprocess
import sys

import pytest
from conftest import HomeCli

from backburner.interfaces.cli.completion import script


def offered(home_cli: HomeCli, *words: str) -> list[str]:
    """What bash offers for the last word; the words before it are complete."""
    line = shlex.join(["backburner", *words])
    lines = [
        script("bash"),
        f'backburner() {{ {shlex.quote(sys.executable)} -m backburner "$@"; }}',
        f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; COMPREPLY=(); _backburner",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)], env=home_cli.environ, cwd=home_cli.cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


def test_commands_options_and_values_are_offered(home_cli: HomeCli) -> None:
    assert offered(home_cli, "sta") == ["status"]
    assert offered(home_cli, "run", "--pri") == ["--priority"]
    assert offered(home_cli, "run", "--priority", "") == ["high", "normal", "low"]
    assert offered(home_cli, "run", "--name", "") == []
    assert offered(home_cli, "list", "comp") == ["completed"]
    assert offered(home_cli, "install", "")[-4:] == ["claude", "codex", "gemini", "opencode"]


def test_task_ids_and_labels_are_offered_where_an_id_is_expected(home_cli: HomeCli) -> None:
    task_id = home_cli.run("true", options=("--name", "tests", "--batch", "release"))
    home_cli.run("true", options=("--name", "$(touch made-by-completion)"))
    home_cli.ok("wait", "--batch", "release")
    assert offered(home_cli, "status", "te") == ["tests"]
    assert task_id in offered(home_cli, "logs", "-f", "task_")
    assert offered(home_cli, "run", "--after", "te") == ["tests"]
    assert offered(home_cli, "wait", "--batch", "") == ["release"]
    assert "tests" in offered(home_cli, "cancel", "")
    assert not (home_cli.cwd / "made-by-completion").exists()


@pytest.mark.parametrize("before", [("run", "--"), ("run",), ("check", "--"), ("add", "nightly", "--every", "1h", "--")])
def test_commands_are_offered_where_a_command_is_expected(home_cli: HomeCli, before: tuple[str, ...]) -> None:
    assert "basename" in offered(home_cli, *before, "basen")
    assert offered(home_cli, *before, "ls", "--pri") == [] or "--" not in before
