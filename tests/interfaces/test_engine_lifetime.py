"""When the engine exits, how it is found again, and what it records about commands that outlived it."""

import os
import signal

from conftest import HomeCli, wait_until

from backburner.system import processes


def test_the_engine_exits_after_its_last_task(home_cli: HomeCli) -> None:
    home_cli.configure("[engine]\nidle_exit_seconds = 0.2\n")
    home_cli.ok("run", "--wait", "--", "true")
    wait_until(lambda: home_cli.engine is None, "the engine to exit")


def test_a_running_engine_is_found_again_after_its_sockets_are_deleted(home_cli: HomeCli) -> None:
    home_cli.ok("run", "--wait", "--", "true")
    for socket in (home_cli.root / "sockets").iterdir():
        socket.unlink()
    (home_cli.root / "sockets").rmdir()
    assert home_cli.ok("run", "--wait", "--", "echo", "found") == "found\n"


def test_a_command_that_outlived_the_engine_has_its_real_end_time(home_cli: HomeCli) -> None:
    gate = home_cli.cwd / "gate"
    task_id = home_cli.run(f"while [ ! -e {gate} ]; do sleep 0.02; done", options=("--shell",))
    wait_until(lambda: home_cli.status(task_id)["pid"], "it to run")
    engine = home_cli.engine
    assert engine
    for keeper in home_cli.processes("backburner-keeper"):
        processes.send(keeper, signal.SIGKILL)
    home_cli.kill_engine()
    gate.touch()
    code = home_cli.folder(task_id) / ".exit"
    wait_until(lambda: code.read_text().startswith("0   e"), "the exit file")
    os.utime(code, (gate.stat().st_mtime + 100, gate.stat().st_mtime + 100))
    took = home_cli.status(task_id)["duration_seconds"]
    assert isinstance(took, float) and took >= 99


def test_a_stopped_command_is_cancelled_without_the_grace_period(home_cli: HomeCli) -> None:
    home_cli.configure("[approval]\nyes_without_terminal = true\n[commands]\ncancel_grace_seconds = 30\n")
    task_id = home_cli.run("sleep", "600")
    wait_until(lambda: home_cli.status(task_id)["pid"], "it to run")
    os.killpg(int(str(home_cli.status(task_id)["pid"])), signal.SIGSTOP)
    home_cli.ok("cancel", task_id)
    assert home_cli.status(task_id)["result"] == "exit"
