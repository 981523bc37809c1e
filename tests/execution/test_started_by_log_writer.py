"""Commands that the log writer starts: all that are not alone. A stopped log writer shows what happens in between."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import NO_TERMINAL, HomeCli, wait_until

from backburner.core.models import ProcessId
from backburner.system import processes
from backburner.system.home import is_locked


@pytest.fixture(autouse=True)
def another_command(home_cli: HomeCli) -> Iterator[None]:
    """A command that runs, and a log writer."""
    task_id = home_cli.run("sleep", "600")
    wait_until(lambda: home_cli.status(task_id)["pid"] and home_cli.log_writers, "a log writer")
    yield
    home_cli.ok("cancel", task_id)


@contextmanager
def stopped_log_writer(home_cli: HomeCli) -> Iterator[ProcessId]:
    (log_writer,) = home_cli.log_writers
    processes.send(log_writer, signal.SIGSTOP)
    try:
        yield log_writer
    finally:
        processes.send(log_writer, signal.SIGCONT)


def wait_for_request(home_cli: HomeCli, task_id: str) -> None:
    """Wait until the log writer was asked to start a command: only the request still holds the lock of its exit file."""
    path = str(home_cli.folder(task_id) / ".exit")

    def is_open(descriptor: str) -> bool:
        try:
            return os.readlink(descriptor) == path
        except FileNotFoundError:
            return False  # closed meanwhile

    def is_requested() -> bool:
        engine = home_cli.engine
        assert engine
        folder = f"/proc/{engine.pid}/fd"
        return is_locked(path) and not any(is_open(f"{folder}/{name}") for name in os.listdir(folder))

    wait_until(is_requested, "the request to the log writer")


def submit_to_stopped(home_cli: HomeCli, *words: str) -> str:
    """Submit a command that appends a line to the file `runs`, and wait until the log writer was asked to start it."""
    task_id = home_cli.run("echo x >> runs", options=("--shell", *words))
    wait_for_request(home_cli, task_id)
    return task_id


def runs(home_cli: HomeCli) -> list[str]:
    path = home_cli.cwd / "runs"
    return path.read_text().splitlines() if path.exists() else []


def parent_of(home_cli: HomeCli, task_id: str) -> int:
    wait_until(lambda: home_cli.status(task_id)["pid"], "its process")
    with open(f"/proc/{home_cli.status(task_id)['pid']}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("PPid:"))


def sandboxed(home_cli: HomeCli, level: str, lines: str) -> str:
    """Start a script that nobody approved: it appends a line to the file `runs` of its sandbox, tries to read a secret, and goes on."""
    home_cli.configure(f'{NO_TERMINAL}[sandbox]\nlevel = "{level}"\n')
    (home_cli.root / "secret").write_text("CANARY\n")
    (home_cli.cwd / "run.sh").write_text(f'echo x >> "$TMPDIR/runs"\ncat {home_cli.root}/secret 2>&1\n{lines}\n')
    task_id = home_cli.ok("run", "--", "sh", "run.sh").strip()
    assert home_cli.status(task_id)["sandbox"].startswith(level)  # type: ignore[union-attr]
    return task_id


def sandboxed_runs(home_cli: HomeCli) -> list[str]:
    return [line for path in (home_cli.root / "sandbox" / "tmp").glob("*/runs") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("level", ["full", "partial"])
def test_it_starts_commands_in_their_sandbox(home_cli: HomeCli, level: str) -> None:
    task_id = sandboxed(home_cli, level, "sleep 60")
    assert [parent_of(home_cli, task_id)] == [found.pid for found in home_cli.log_writers]
    wait_until(lambda: b"secret" in home_cli.log(task_id), "its attempt to read the secret")
    assert b"CANARY" not in home_cli.log(task_id) and sandboxed_runs(home_cli) == ["x"]
    home_cli.ok("cancel", task_id)
    assert home_cli.status(task_id)["status"] == "cancelled"


@pytest.mark.parametrize("level", ["full", "partial"])
def test_killed_before_it_starts_a_sandboxed_command(home_cli: HomeCli, level: str) -> None:
    with stopped_log_writer(home_cli) as log_writer:
        task_id = sandboxed(home_cli, level, "exit 7")
        wait_for_request(home_cli, task_id)
        processes.send(log_writer, signal.SIGKILL)
    home_cli.cli("wait", task_id, "--timeout", "30")
    assert (home_cli.status(task_id)["exit_code"], sandboxed_runs(home_cli)) == (7, ["x"])
    assert b"secret" in home_cli.log(task_id) and b"CANARY" not in home_cli.log(task_id)


def test_it_is_the_parent_of_a_second_command(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sleep", "60")
    assert [parent_of(home_cli, task_id)] == [found.pid for found in home_cli.log_writers]
    shim = home_cli.status(task_id)["pid"]
    with open(f"/proc/{shim}/limits") as file:
        soft, hard = next(line.split()[3:5] for line in file if line.startswith("Max open files"))
    assert soft != hard or soft == str(os.sysconf("SC_OPEN_MAX")), "the log writer's own limit"
    home_cli.ok("cancel", task_id)


def test_a_log_writer_that_is_killed_before_it_starts_a_command(home_cli: HomeCli) -> None:
    with stopped_log_writer(home_cli) as log_writer:
        task_id = submit_to_stopped(home_cli)
        processes.send(log_writer, signal.SIGKILL)
    home_cli.cli("wait", task_id, "--timeout", "30")
    found = home_cli.status(task_id)
    assert (found["status"], found["error"], runs(home_cli)) == ("completed", None, ["x"])


def test_an_engine_that_is_killed_before_its_log_writer_starts_a_command(home_cli: HomeCli) -> None:
    with stopped_log_writer(home_cli):
        task_id = submit_to_stopped(home_cli)
        home_cli.kill_engine()
        home_cli.cli("status", task_id)
    home_cli.cli("wait", task_id, "--timeout", "30")
    assert (home_cli.status(task_id)["status"], runs(home_cli)) == ("completed", ["x"])


def test_output_is_written_while_it_runs_after_such_a_kill(home_cli: HomeCli) -> None:
    gate = home_cli.cwd / "gate"
    os.mkfifo(gate)
    with stopped_log_writer(home_cli):
        task_id = home_cli.run(f"seq 100000; read x <{gate}", options=("--shell",))
        wait_for_request(home_cli, task_id)
        home_cli.kill_engine()
        home_cli.cli("status", task_id)
    wait_until(lambda: home_cli.log(task_id).endswith(b"\n100000\n"), "more output than a pipe can hold")
    gate.write_text("open\n")
    home_cli.cli("wait", task_id, "--timeout", "30")
    assert home_cli.status(task_id)["status"] == "completed"


def test_a_command_that_is_cancelled_before_it_was_started(home_cli: HomeCli) -> None:
    with stopped_log_writer(home_cli):
        task_id = home_cli.run("sleep", "600")
        wait_for_request(home_cli, task_id)
        cancel = threading.Thread(target=home_cli.cli, args=("cancel", task_id))
        cancel.start()
        wait_until(lambda: "cancel_requested" in home_cli.ok("events"), "the request")
    cancel.join(30)
    assert home_cli.status(task_id)["status"] == "cancelled"  # the fixture checks that no process is left


def test_a_folder_that_is_removed_before_the_start(home_cli: HomeCli) -> None:
    folder = home_cli.cwd / "removed"
    folder.mkdir()
    with stopped_log_writer(home_cli):
        task_id = submit_to_stopped(home_cli, "--cwd", str(folder))
        folder.rmdir()
    home_cli.cli("wait", task_id, "--timeout", "30")
    found = home_cli.status(task_id)
    assert (found["status"], found["error"]) == ("failed", "echo x >> runs could not be started: No such file or directory")


def test_an_environment_that_is_too_large_for_a_request(home_cli: HomeCli) -> None:
    found = home_cli.finish("echo ${#LARGE}", options=("--shell", "--env", f"LARGE={'x' * 120_000}"))
    assert home_cli.log(str(found["task_id"])) == b"120000\n"
