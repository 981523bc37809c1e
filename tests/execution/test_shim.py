"""The shell script that runs a command: exit code, start marker, limits, input, and arguments that a shell could misread."""

import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_until

from backburner.core.errors import BadInput
from backburner.execution import shim
from backburner.execution.log_writer import COMPLETE, OPEN
from backburner.system.processes import INSIDE, is_inside
from backburner.system.run_files import EXIT, INPUT, exit_code, output_state
from backburner.system.stdin_pipe import close_stdin, write_stdin
from backburner.testing import records

SHOW = (sys.executable, "-c", "import json, os, sys; print(json.dumps([list(os.fsencode(word)) for word in sys.argv[1:]]))")


def prepare(
    folder: Path, command: tuple[str, ...], environment: dict[str, str], shell: bool = False, umask: int | None = None, **more: Any
) -> dict[str, str]:
    """Prepare the shim for a task with this command."""
    task = records.task("t", command, shell=shell, umask=umask, **more)
    script, environment = shim.prepare(str(folder), task, environment, 1 << 20, 1024)
    os.close(script)
    return environment


def start(
    folder: Path,
    *command: str,
    shell: bool = False,
    env: dict[str, str] | None = None,
    before: Callable[[], None] | None = None,
    **more: Any,
) -> "subprocess.Popen[bytes]":
    """Start the shim as the executor does, with a log writer that has already answered; `before` is called in its process first."""
    given = prepare(folder, command, dict(os.environ) if env is None else env, shell, **more)
    ours, theirs = socket.socketpair()
    ours.sendall(b"e\n")
    with open(folder / EXIT, "rb") as script, ours, theirs:
        return subprocess.Popen(
            ["sh", "-s", "backburner"], executable="/bin/sh", stdin=script, stdout=subprocess.PIPE, stderr=theirs,
            cwd=folder, env=given, preexec_fn=before
        )  # fmt: skip


def run(folder: Path, *command: str, **more: Any) -> bytes:
    """Run the shim to its end; returns the output of the command."""
    child = start(folder, *command, **more)
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 0
    return output


@pytest.mark.parametrize("code", [0, 1, 2, 77, 126, 127, 255])
def test_the_exit_code_is_written(tmp_path: Path, code: int) -> None:
    run(tmp_path, "sh", "-c", f"exit {code}")
    assert exit_code(str(tmp_path)) == code


def test_a_command_killed_by_a_signal_has_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    run(tmp_path, "sh", "-c", "kill -9 $$")
    assert exit_code(str(tmp_path)) == 137


def test_a_missing_command_has_exit_code_127(tmp_path: Path) -> None:
    run(tmp_path, "no-such-command-anywhere")
    assert exit_code(str(tmp_path)) == 127


def test_a_prepared_command_has_not_started_and_has_no_exit_code(tmp_path: Path) -> None:
    prepare(tmp_path, ("true",), {})
    assert not shim.has_begun(str(tmp_path))
    assert exit_code(str(tmp_path)) is None


def test_an_unprepared_folder_has_not_started(tmp_path: Path) -> None:
    assert not shim.has_begun(str(tmp_path))
    assert exit_code(str(tmp_path)) is None


def test_a_running_command_has_started_and_has_no_exit_code(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    child = start(tmp_path, "sh", "-c", "read x <gate; exit 3")
    wait_until(lambda: shim.has_begun(str(tmp_path)), "the command to begin")
    assert exit_code(str(tmp_path)) is None
    (tmp_path / "gate").write_text("go\n")
    child.communicate(timeout=30)
    assert child.returncode == 0
    assert exit_code(str(tmp_path)) == 3


def test_a_signal_to_the_shim_does_not_lose_the_exit_code(tmp_path: Path) -> None:
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
def test_every_argument_arrives_unchanged(tmp_path: Path, words: tuple[str, ...]) -> None:
    received = json.loads(run(tmp_path, *SHOW, *words))
    assert [bytes(word) for word in received] == [os.fsencode(word) for word in words]
    assert exit_code(str(tmp_path)) == 0


@pytest.mark.parametrize("name", ['it\'s a "folder"', "new\nline", "$HOME;exit 9", "-n", "naïve"])
def test_the_exit_code_is_found_in_a_folder_with_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    run(folder, "sh", "-c", "exit 4")
    assert exit_code(str(folder)) == 4


@pytest.mark.parametrize("name", ["A=b", "it's", "-x", "exit", "#x"])
def test_a_program_with_any_name_is_run(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\nexit 6\n")
    program.chmod(0o700)
    run(tmp_path, f"./{name}")
    assert exit_code(str(tmp_path)) == 6


def test_a_shell_command_is_run_by_a_shell(tmp_path: Path) -> None:
    assert run(tmp_path, "echo a | tr a b; (exit 3) || exit 8", shell=True) == b"b\n"
    assert exit_code(str(tmp_path)) == 8


def test_the_command_does_not_read_the_script_of_the_shim(tmp_path: Path) -> None:
    assert run(tmp_path, "cat") == b""
    assert exit_code(str(tmp_path)) == 0


def test_the_command_has_default_signal_handlers(tmp_path: Path) -> None:
    run(tmp_path, "sh", "-c", "kill -TERM $$; exit 0")
    assert exit_code(str(tmp_path)) == 143


def test_the_command_is_not_in_the_command_line_of_the_shim(tmp_path: Path) -> None:
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
def test_every_variable_arrives_unchanged(tmp_path: Path, env: dict[str, str]) -> None:
    received = json.loads(run(tmp_path, *ENV, env={"PATH": os.defpath, **env}))
    arrived = {os.fsdecode(bytes.fromhex(name)): os.fsdecode(bytes.fromhex(value)) for name, value in received.items()}
    assert {name: arrived.get(name) for name in env} == env
    assert arrived.keys() - env.keys() <= {"PATH", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}


def test_the_command_has_the_umask_of_the_caller(tmp_path: Path) -> None:
    given = prepare(tmp_path, ("sh", "-c", "umask"), dict(os.environ), umask=0o137)
    with open(tmp_path / EXIT, "rb") as script:
        output = subprocess.run(["/bin/sh", "-s"], stdin=script, capture_output=True, env=given, timeout=30).stdout
    assert int(output, 8) == 0o137


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a limit of file locks")
def test_the_shim_marks_the_command_even_if_its_parent_is_not_marked(tmp_path: Path) -> None:
    assert not is_inside()
    assert run(tmp_path, sys.executable, "-c", "import resource; print(*resource.getrlimit(10))").split() == [str(INSIDE).encode()] * 2


def test_files_of_a_run_are_private(tmp_path: Path) -> None:
    prepare(tmp_path, ("true",), {"a.b": "secret"})
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {"0o600"}


# -- limits

LIMITED = (sys.executable, "-Ic", "import os, resource as r; print(os.nice(0), *r.getrlimit(r.RLIMIT_CPU), *r.getrlimit(r.RLIMIT_DATA))")
FREE = [resource.RLIM_INFINITY] * 2
ODD_NAME = {"a.b": "1"}  # is handled in another way by the shim


@pytest.mark.parametrize("more", [{}, ODD_NAME], ids=["plain", "odd names"])
@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, [0, *FREE, *FREE]),
        ({"nice": 7}, [7, *FREE, *FREE]),
        ({"nice": 0}, [0, *FREE, *FREE]),
        ({"cpu_seconds": 90}, [0, 90, 95, *FREE]),
        ({"memory_mb": 256}, [0, *FREE, 256 << 20, 256 << 20]),
        ({"memory_mb": 256, "cpu_seconds": 1, "nice": 19}, [19, 1, 6, 256 << 20, 256 << 20]),
    ],
    ids=str,
)
def test_a_command_runs_with_its_limits(tmp_path: Path, limits: dict[str, int], wanted: list[int], more: dict[str, str]) -> None:
    nice, *others = map(int, run(tmp_path, *LIMITED, env={**os.environ, **more}, limits=limits).split())
    assert [nice - os.nice(0), *others] == wanted
    assert exit_code(str(tmp_path)) == 0


@pytest.mark.parametrize("path", ["", "/nowhere", "."])
def test_nice_does_not_depend_on_the_path_of_the_command(tmp_path: Path, path: str) -> None:
    trap = tmp_path / "nice"
    trap.write_text("#!/bin/sh\necho caught\n")
    trap.chmod(0o700)
    assert run(tmp_path, "/bin/echo", "hi", env={"PATH": path}, limits={"nice": 1}) == b"hi\n"
    assert exit_code(str(tmp_path)) == 0


def test_a_command_cannot_allocate_more_than_its_memory_limit(tmp_path: Path) -> None:
    greedy = (sys.executable, "-Ic", "print(len(bytearray(300 << 20)))")
    assert run(tmp_path, *greedy, limits={"memory_mb": 1000}) == b"314572800\n"
    assert b"MemoryError" in run(tmp_path, *greedy, limits={"memory_mb": 100})
    assert exit_code(str(tmp_path)) == 1


def test_a_command_over_its_cpu_limit_is_killed_with_that_signal(tmp_path: Path) -> None:
    run(tmp_path, "sh", "-c", "while :; do :; done", limits={"cpu_seconds": 1})
    assert exit_code(str(tmp_path)) == 128 + signal.SIGXCPU


def test_a_lower_existing_limit_does_not_prevent_a_start(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (50, 50))
        resource.setrlimit(resource.RLIMIT_DATA, (500 << 20, 500 << 20))

    output = run(tmp_path, *LIMITED, limits={"cpu_seconds": 90, "memory_mb": 900}, before=limit)
    assert list(map(int, output.split()))[1:] == [50, 50, 500 << 20, 500 << 20]
    assert exit_code(str(tmp_path)) == 0


# -- input


@pytest.mark.parametrize("stdin", [False, True])
def test_a_command_inherits_only_its_three_streams(tmp_path: Path, stdin: bool) -> None:
    count = "import os; print([fd for fd in range(3, 100) if os.path.exists(f'/proc/self/fd/{fd}')])"
    assert run(tmp_path, sys.executable, "-Ic", count, stdin=stdin) == b"[]\n"


@pytest.mark.parametrize("more", [{}, ODD_NAME], ids=["plain", "odd names"])
def test_an_input_stays_open_until_the_command_has_ended(tmp_path: Path, more: dict[str, str]) -> None:
    child = start(tmp_path, "sh", "-c", 'read a; echo "$a" >seen; read b; echo "$b$a"', env={**os.environ, **more}, stdin=True)
    wait_until(lambda: shim.has_begun(str(tmp_path)), "the command to begin")
    write_stdin(str(tmp_path), b"one\n", "task_x")
    wait_until((tmp_path / "seen").exists, "the first line to be read")
    write_stdin(str(tmp_path), b"two\nthree\n", "task_x")
    output, _ = child.communicate(timeout=30)
    assert (output, exit_code(str(tmp_path))) == (b"twoone\n", 0)
    with pytest.raises(BadInput, match="has closed its input"):
        write_stdin(str(tmp_path), b"four\n", "task_x")


def test_an_input_ends_when_it_is_closed(tmp_path: Path) -> None:
    child = start(tmp_path, "cat", stdin=True)
    write_stdin(str(tmp_path), b"one\n", "task_x", starting=True)
    close_stdin(str(tmp_path), "task_x")
    output, _ = child.communicate(timeout=30)
    assert (output, exit_code(str(tmp_path))) == (b"one\n", 0)
    with pytest.raises(BadInput, match="has closed its input"):
        close_stdin(str(tmp_path), "task_x")


def test_an_input_ends_when_the_shim_is_killed(tmp_path: Path) -> None:
    child = start(tmp_path, "sh", "-c", "touch started; exec cat", stdin=True)
    write_stdin(str(tmp_path), b"one\n", "task_x", starting=True)
    wait_until((tmp_path / "started").exists, "the command")
    child.kill()
    assert child.communicate(timeout=30)[0] == b"one\n"


def test_an_input_is_private_and_reused_by_a_retried_start(tmp_path: Path) -> None:
    for _ in range(2):
        prepare(tmp_path, ("cat",), {}, stdin=True)
        found = os.lstat(tmp_path / INPUT)
        assert stat.S_ISFIFO(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o600


def test_without_a_log_writer_the_shim_ends_when_its_output_is_in_the_log(tmp_path: Path) -> None:
    given = prepare(tmp_path, ("sh", "-c", "seq 1000; sleep 0.3 & exit 3"), dict(os.environ))
    log = tmp_path / "output.log"
    log.write_bytes(b"header\n")
    reader, writer = os.pipe()
    ours, theirs = socket.socketpair()
    ours.close()
    with open(tmp_path / EXIT, "rb") as script, theirs:
        child = subprocess.Popen(["/bin/sh", "-s"], stdin=script, stdout=writer, stderr=theirs, cwd=tmp_path, env=given)
    os.close(reader)
    os.close(writer)
    assert child.wait(timeout=30) == 0
    assert log.read_bytes() == b"header\n" + b"".join(b"%d\n" % n for n in range(1, 1001))
    assert (exit_code(str(tmp_path)), output_state(str(tmp_path))) == (3, OPEN), "a descendant still holds the pipe"
    wait_until(lambda: output_state(str(tmp_path)) == COMPLETE, "the descendant to end")
