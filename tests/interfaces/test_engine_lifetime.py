"""When the engine exits, how it is found again, and what it records about commands that outlived it."""

import os
import signal

from conftest import Place, wait_until

from backburner.system import processes


def test_the_engine_exits_after_its_last_task(place: Place) -> None:
    place.configure("[engine]\nidle_exit_seconds = 0.2\n")
    place.ok("run", "--wait", "--", "true")
    wait_until(lambda: place.engine is None, "the engine to exit")


def test_a_running_engine_is_found_again_after_its_sockets_are_deleted(place: Place) -> None:
    place.ok("run", "--wait", "--", "true")
    for socket in (place.root / "sockets").iterdir():
        socket.unlink()
    (place.root / "sockets").rmdir()
    assert place.ok("run", "--wait", "--", "echo", "found") == "found\n"


def test_a_command_that_outlived_the_engine_has_its_real_end_time(place: Place) -> None:
    gate = place.cwd / "gate"
    task_id = place.run(f"while [ ! -e {gate} ]; do sleep 0.02; done", options=("--shell",))
    wait_until(lambda: place.status(task_id)["pid"], "it to run")
    engine = place.engine
    assert engine
    for keeper in place.processes("backburner-keeper"):
        processes.send(keeper, signal.SIGKILL)
    place.kill_engine()
    gate.touch()
    code = place.folder(task_id) / ".exit"
    wait_until(lambda: code.read_text().strip() == "0", "the exit file")
    os.utime(code, (gate.stat().st_mtime + 100, gate.stat().st_mtime + 100))
    took = place.status(task_id)["duration_seconds"]
    assert isinstance(took, float) and took >= 99


def test_a_stopped_command_is_cancelled_without_the_grace_period(place: Place) -> None:
    place.configure("[approval]\nyes_without_terminal = true\n[commands]\ncancel_grace_seconds = 30\n")
    task_id = place.run("sleep", "600")
    wait_until(lambda: place.status(task_id)["pid"], "it to run")
    os.killpg(int(str(place.status(task_id)["pid"])), signal.SIGSTOP)
    place.ok("cancel", task_id)
    assert place.status(task_id)["result"] == "exit"
