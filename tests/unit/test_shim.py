"""The few lines of sh, run for real: the exit code, the mark of the beginning, and words that a shell could misread."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_until

from backburner.executors import shim
from backburner.folders import exit_code
from backburner.lifecycle import TaskState
from backburner.models import Task

SHOW = (sys.executable, "-c", "import json, os, sys; print(json.dumps([list(os.fsencode(word)) for word in sys.argv[1:]]))")


def prepare(
    folder: Path, command: tuple[str, ...], environment: dict[str, str], shell: bool = False, umask: int | None = None, **more: Any
) -> dict[str, str]:
    """A task of these words, as the ledger would have it."""
    columns = {"task_id": "t", "state": TaskState.ACTIVE, "command": command, "shell": shell, "umask": umask, **more}
    task = Task(**{**dict.fromkeys(Task._fields[: Task._fields.index("run_count") + 1]), **columns})
    return shim.prepare(str(folder), task, environment)


def start(folder: Path, *command: str, shell: bool = False, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start the shim as the executor does."""
    given = prepare(folder, command, dict(os.environ) if env is None else env, shell)
    with open(folder / shim.SCRIPT, "rb") as script:
        return subprocess.Popen(
            ["sh", "-s", "backburner"], executable="/bin/sh", stdin=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, env=given
        )  # fmt: skip


def run(folder: Path, *command: str, shell: bool = False, env: dict[str, str] | None = None) -> bytes:
    """Run the shim to its end; what the command wrote."""
    child = start(folder, *command, shell=shell, env=env)
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 0
    return output


@pytest.mark.parametrize("code", [0, 1, 2, 77, 126, 127, 255])
def test_the_exit_code_is_written_down(tmp_path: Path, code: int) -> None:
    run(tmp_path, "sh", "-c", f"exit {code}")
    assert exit_code(str(tmp_path)) == code


def test_a_command_that_kills_itself_leaves_the_code_a_shell_would_give(tmp_path: Path) -> None:
    run(tmp_path, "sh", "-c", "kill -9 $$")
    assert exit_code(str(tmp_path)) == 137


def test_a_command_that_is_not_there_leaves_127(tmp_path: Path) -> None:
    run(tmp_path, "no-such-command-anywhere")
    assert exit_code(str(tmp_path)) == 127


def test_before_the_shim_runs_nothing_has_begun_and_there_is_no_code(tmp_path: Path) -> None:
    prepare(tmp_path, ("true",), {})
    assert not shim.has_begun(str(tmp_path))
    assert exit_code(str(tmp_path)) is None


def test_a_folder_that_was_never_prepared_has_not_begun_either(tmp_path: Path) -> None:
    assert not shim.has_begun(str(tmp_path))
    assert exit_code(str(tmp_path)) is None


def test_while_the_command_runs_it_has_begun_and_has_no_code(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    child = start(tmp_path, "sh", "-c", "read x <gate; exit 3")
    wait_until(lambda: shim.has_begun(str(tmp_path)), "the command to begin")
    assert exit_code(str(tmp_path)) is None
    (tmp_path / "gate").write_text("go\n")
    child.communicate(timeout=30)
    assert child.returncode == 0
    assert exit_code(str(tmp_path)) == 3


def test_a_signal_to_the_shim_alone_does_not_lose_the_code(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    child = start(tmp_path, "sh", "-c", "read x <gate; exit 5")
    wait_until(lambda: shim.has_begun(str(tmp_path)), "the command to begin")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        child.send_signal(number)
    (tmp_path / "gate").write_text("go\n")
    child.communicate(timeout=30)
    assert child.returncode == 0
    assert exit_code(str(tmp_path)) == 5


NASTY = {
    "empty": ("",),
    "spaces": ("a  b", " ", "\t"),
    "quotes": ("'", '"', "it's", '"$HOME"', "''\\''"),
    "newlines": ("a\nb", "\n", "\r\n", "a\n#b\nexit 9"),
    "expansion": ("$HOME", "${x}", "$(exit 9)", "`exit 9`", "$((1+1))", "~", "*", "?", "[a]", "{a,b}", "!x"),
    "operators": (";", "&", "|", "&&", "exit 9; echo", ">x", "<x", ")", "(", "#", "\\", "\\n"),
    "assignments": ("A=b", "=x", "PATH=/tmp"),
    "options": ("-", "--", "-c", "-e"),
    "percent": ("%s", "%n", "%%"),
    "text": ("naïve", "日本語", "\u2028", "\x01\x7f\x1b[2J"),
    "bytes": (b"\xff\xfe\x80".decode("utf-8", "surrogateescape"),),
    "many": tuple("x" * n for n in range(300)),
    "long": ("x" * 100_000, "'" * 20_000),
}


@pytest.mark.parametrize("words", NASTY.values(), ids=NASTY)
def test_every_word_arrives_as_it_was_given(tmp_path: Path, words: tuple[str, ...]) -> None:
    told = json.loads(run(tmp_path, *SHOW, *words))
    assert [bytes(word) for word in told] == [os.fsencode(word) for word in words]
    assert exit_code(str(tmp_path)) == 0


@pytest.mark.parametrize("name", ['it\'s a "folder"', "new\nline", "$HOME;exit 9", "-n", "naïve"])
def test_the_code_is_found_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    run(folder, "sh", "-c", "exit 4")
    assert exit_code(str(folder)) == 4


@pytest.mark.parametrize("name", ["A=b", "it's", "-x", "exit", "#x"])
def test_a_program_of_any_name_is_run_as_a_program(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\nexit 6\n")
    program.chmod(0o700)
    run(tmp_path, f"./{name}")
    assert exit_code(str(tmp_path)) == 6


def test_a_shell_line_is_a_shell_line(tmp_path: Path) -> None:
    assert run(tmp_path, "echo a | tr a b; (exit 3) || exit 8", shell=True) == b"b\n"
    assert exit_code(str(tmp_path)) == 8


def test_the_command_does_not_read_the_shims_own_script(tmp_path: Path) -> None:
    assert run(tmp_path, "cat") == b""
    assert exit_code(str(tmp_path)) == 0


def test_the_command_gets_signals_as_any_other_would(tmp_path: Path) -> None:
    run(tmp_path, "sh", "-c", "kill -TERM $$; exit 0")
    assert exit_code(str(tmp_path)) == 143


def test_the_words_of_the_command_are_not_in_the_shims_command_line(tmp_path: Path) -> None:
    output = run(tmp_path, "sh", "-c", "tr '\\0' ' ' </proc/$PPID/cmdline", "unlikely-word")
    assert output and b"unlikely-word" not in output


ENVIRONMENTS = {
    "plain": {"A": "b", "EMPTY": "", "QUOTES": "'\"$(exit 9)`", "LINES": "a\nb\n", "EQUALS": "a=b=c"},
    "odd names": {"a.b": "1", "with space": "2", "1st": "3", "é": "4", "BASH_FUNC_x%%": "() { echo pwned; }", "-x": "5"},
    "the shell's own": {"IFS": ":", "PPID": "1", "OPTIND": "7", "LINENO": "8", "PS1": "$", "ENV": "/nowhere", "HOME": "/nowhere"},
    "bytes": {"RAW": os.fsdecode(b"\xff\xfe")},
}
ENV = (sys.executable, "-Ic", "import json, os; print(json.dumps({k.hex(): v.hex() for k, v in os.environb.items()}))")


@pytest.mark.parametrize("env", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_every_variable_arrives_as_it_was_given(tmp_path: Path, env: dict[str, str]) -> None:
    told = json.loads(run(tmp_path, *ENV, env={"PATH": os.defpath, **env}))
    arrived = {os.fsdecode(bytes.fromhex(name)): os.fsdecode(bytes.fromhex(value)) for name, value in told.items()}
    assert {name: arrived.get(name) for name in env} == env
    assert arrived.keys() - env.keys() <= {"PATH", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}


def test_the_command_has_the_umask_of_who_asked(tmp_path: Path) -> None:
    given = prepare(tmp_path, ("sh", "-c", "umask"), dict(os.environ), umask=0o137)
    with open(tmp_path / shim.SCRIPT, "rb") as script:
        output = subprocess.run(["/bin/sh", "-s"], stdin=script, capture_output=True, env=given, timeout=30).stdout
    assert int(output, 8) == 0o137


def test_files_of_a_run_are_private(tmp_path: Path) -> None:
    prepare(tmp_path, ("true",), {"a.b": "secret"})
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {"0o600"}
