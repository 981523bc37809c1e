"""Unusual commands, run through the real command line: large output, binary data, ignored signals, long arguments and paths."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CONFIG, HomeCli, wait_until

from backburner.core import trace_context
from backburner.system import processes


def test_a_single_line_of_50_megabytes_is_logged_completely(home_cli: HomeCli) -> None:
    done = home_cli.finish(sys.executable, "-c", "import sys; sys.stdout.write('x' * 50_000_000)")
    assert (done["status"], done["exit_code"]) == ("completed", 0)
    output = home_cli.log(str(done["task_id"]))
    assert len(output) == 50_000_000 and set(output) == {ord("x")}


def test_binary_output_without_a_final_newline_is_logged_unchanged(home_cli: HomeCli) -> None:
    wanted = bytes(range(256)) * 3 + b"end"
    done = home_cli.finish(sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 3 + b'end')")
    assert home_cli.log(str(done["task_id"])) == wanted


def test_a_script_that_reopens_stderr_does_not_truncate_the_log(home_cli: HomeCli) -> None:
    script = "i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done; echo x > /dev/stderr"
    done = home_cli.finish(script, options=("--shell",))
    assert home_cli.log(str(done["task_id"])).decode().splitlines() == [f"line {i}" for i in range(1000)] + ["x"]


def test_a_background_process_with_open_output_does_not_delay_the_end(home_cli: HomeCli, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = home_cli.finish(f"(read x <{pipe}; echo late) & echo started", options=("--shell",))
    assert (done["status"], done["exit_code"]) == ("completed", 0)
    pipe.write_text("go\n")
    wait_until(lambda: b"late" in home_cli.log(str(done["task_id"])), "the line of the background process")


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace_period(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\ncancel_grace_seconds = 0.3\n")
    task_id = home_cli.run("trap '' TERM; echo ready; while :; do sleep 0.05; done", options=("--shell",))
    wait_until(lambda: b"ready" in home_cli.log(task_id), "the trap")
    home_cli.ok("cancel", task_id)
    done = home_cli.status(task_id)
    assert (done["status"], done["result"], done["exit_code"]) == ("cancelled", "signal", 137)


def test_cancel_ends_a_process_that_left_the_session(home_cli: HomeCli, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    daemon = f"import os,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nopen({str(pid_file)!r},'w').write(str(os.getpid()))\ntime.sleep(600)"
    task_id = home_cli.run(f'"{sys.executable}" -c "$CODE"; sleep 600', options=("--shell", "--env", f"CODE={daemon}"))
    wait_until(lambda: pid_file.exists() and pid_file.read_text(), "the daemon")
    escaped = processes.identify(int(pid_file.read_text()))
    assert escaped
    home_cli.ok("cancel", task_id)
    assert not processes.is_alive(escaped)
    assert home_cli.status(task_id)["status"] == "cancelled"


def test_a_missing_program_fails_with_exit_code_127(home_cli: HomeCli) -> None:
    done = home_cli.finish("no-such-program-here")
    assert (done["status"], done["exit_code"], done["result"]) == ("failed", 127, "unstarted")
    assert "command not found" in str(done["error"]) and b"command not found" in home_cli.log(str(done["task_id"]))


def test_a_file_that_is_not_executable_fails_with_exit_code_126(home_cli: HomeCli) -> None:
    (home_cli.cwd / "plain.txt").write_text("hello")
    assert home_cli.finish("./plain.txt")["exit_code"] == 126


def test_a_working_directory_deleted_before_the_start_is_reported(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 1\n")
    gone = home_cli.cwd / "gone"
    gone.mkdir()
    blocker = home_cli.run("sleep", "600")
    task_id = home_cli.run("echo", "hi", options=("--cwd", str(gone)))
    gone.rmdir()
    home_cli.ok("cancel", blocker)
    home_cli.cli("wait", task_id)
    done = home_cli.status(task_id)
    assert done["status"] == "failed" and "no longer exists" in str(done["error"])


def test_an_argument_of_100_kilobytes_reaches_the_command(home_cli: HomeCli) -> None:
    done = home_cli.finish(sys.executable, "-c", "import sys; print(len(sys.argv[1]))", "y" * 100_000)
    assert home_cli.log(str(done["task_id"])).strip() == b"100000"


def test_an_argument_that_is_too_long_is_rejected_before_anything_is_stored(home_cli: HomeCli) -> None:
    from backburner import BackburnerSync, BadInput

    with BackburnerSync.open(home_cli.root) as bb:
        with pytest.raises(BadInput, match="longer than"):
            bb.submit(["echo", "z" * 200_000], cwd=home_cli.cwd)
        assert not bb.list()


def test_every_byte_of_an_argument_reaches_the_command(home_cli: HomeCli) -> None:
    word = bytes(range(1, 256))
    environ = {**home_cli.environ}
    code = "import os,sys; sys.stdout.buffer.write(os.fsencode(sys.argv[1]))"
    started = subprocess.run(
        [sys.executable, "-m", "backburner", "run", "--yes", "--wait", "--", sys.executable, "-c", code, word],
        cwd=home_cli.cwd, env=environ, capture_output=True, timeout=60,
    )  # fmt: skip
    assert started.stdout == word, started.stderr


def test_a_home_with_a_path_of_200_characters_works(tmp_path: Path) -> None:
    root = tmp_path / ("h" * 100) / ("o" * 98)
    here = HomeCli(root, tmp_path)
    here.configure(CONFIG)
    try:
        assert len(str(root)) > 200
        assert here.finish("echo", "deep")["status"] == "completed"
    finally:
        here.stop_engine()


def test_a_command_gets_the_environment_of_the_caller(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--", "true")  # the engine starts without the variable
    task_id = home_cli.ok("run", "--yes", "--env", "GIVEN=1", "--", "env", env={"FROM_CALLER": "yes"}).strip()
    home_cli.ok("wait", task_id)
    seen = dict(line.split("=", 1) for line in home_cli.log(task_id).decode().splitlines())
    mark = seen.pop("BACKBURNER_MARK")
    parent = trace_context.parse(seen.pop("TRACEPARENT"))
    folder = home_cli.folder(task_id)
    ours = {"BACKBURNER_TASK_ID": task_id, "BACKBURNER_RUN_ID": task_id, "BACKBURNER_HOME": str(home_cli.root)}
    ours |= {"BACKBURNER_RUN_DIR": str(folder / "work"), "BACKBURNER_PROGRESS": str(folder / "work" / "progress.jsonl")}
    assert len(mark) == 16
    assert parent and parent.span_id == home_cli.status(task_id)["span_id"]
    expected = {**home_cli.environ, "FROM_CALLER": "yes", "GIVEN": "1", "PWD": str(home_cli.cwd), "PYTHONUNBUFFERED": "1"}
    assert seen == {**expected, **ours}


@pytest.mark.parametrize("option", [("--env", "PYTHONUNBUFFERED="), ()])
def test_a_callers_buffering_of_python_is_kept(home_cli: HomeCli, option: tuple[str, ...]) -> None:
    words = ("run", "--yes", *option, "--", "printenv", "PYTHONUNBUFFERED")
    task_id = home_cli.ok(*words, env={} if option else {"PYTHONUNBUFFERED": ""}).strip()
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"\n"


def test_lines_of_a_python_program_are_in_the_log_when_they_are_printed(home_cli: HomeCli) -> None:
    gate = home_cli.cwd / "gate"
    os.mkfifo(gate)
    task_id = home_cli.run(sys.executable, "-c", f"print('first'); open({str(gate)!r}).read(); print('second')")
    wait_until(lambda: home_cli.log(task_id) == b"first\n", "the first line")
    gate.write_text("go")
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"first\nsecond\n"


def test_a_command_with_tty_runs_in_a_terminal(home_cli: HomeCli) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && stty size && echo done; exit 7"
    task = home_cli.finish(script, options=("--tty", "--shell"))
    assert home_cli.log(str(task["task_id"])) == b"24 80\ndone\n"
    assert (task["exit_code"], task["tty"]) == (7, True)
    plain = home_cli.finish("test -t 1 || echo no terminal", options=("--shell",))
    assert home_cli.log(str(plain["task_id"])) == b"no terminal\n" and plain["tty"] is False


def test_a_command_with_tty_is_cancelled_and_killed_like_any_other(home_cli: HomeCli) -> None:
    task_id = home_cli.run("trap 'echo stopped; exit 5' TERM; echo on; while :; do sleep 0.05; done", options=("--tty", "--shell"))
    wait_until(lambda: home_cli.log(task_id) == b"on\n", "the first line")
    home_cli.ok("cancel", task_id)
    done = home_cli.status(task_id)
    assert (done["status"], done["exit_code"]) == ("cancelled", 5) and home_cli.log(task_id).endswith(b"stopped\n")
    killed = home_cli.finish("kill -9 $$", options=("--tty", "--shell"))
    missing = home_cli.finish("no-such-program-here || exit $?", options=("--tty", "--shell"))
    assert (killed["exit_code"], missing["exit_code"]) == (137, 127)


def test_a_command_with_tty_ends_although_a_descendant_keeps_the_terminal_open(home_cli: HomeCli) -> None:
    done = home_cli.finish("trap '' HUP; echo one; (sleep 600 &) ; echo two", options=("--tty", "--shell"))
    assert (done["status"], home_cli.log(str(done["task_id"]))) == ("completed", b"one\ntwo\n")
    for left in home_cli.processes("600"):
        processes.send(left, signal.SIGKILL)


def test_input_reaches_a_command_with_tty(home_cli: HomeCli) -> None:
    task_id = home_cli.run("stty -echo; echo ready; read x; echo got $x", options=("--tty", "--stdin", "--shell"))
    wait_until(lambda: home_cli.log(task_id) == b"ready\n", "it to read")
    home_cli.ok("send", task_id, "hello")
    home_cli.ok("wait", task_id)
    assert home_cli.log(task_id) == b"ready\ngot hello\n"


def test_the_arguments_of_the_shim_do_not_contain_the_command(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sleep", "599", options=("--name", "findme"))
    wait_until(lambda: home_cli.status(task_id)["pid"], "the process")
    pid = home_cli.status(task_id)["pid"]
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"sleep" not in arguments and b"findme" not in arguments and b"599" not in arguments
    home_cli.ok("cancel", task_id)
