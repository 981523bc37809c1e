"""When the engine exits, how it is found again, and what it records about commands that outlived it."""

import os
import signal
import time

import apsw
from conftest import CONFIG, HomeCli, wait_until

from backburner.coordination.launcher import rotate_log
from backburner.core.models import ENGINE, Approval
from backburner.store.ledger import open_ledger
from backburner.system import processes
from backburner.testing.records import request

_DAY_MS = 86_400_000


def query(home_cli: HomeCli, sql: str) -> list[tuple]:
    db = apsw.Connection(home_cli.home.ledger, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


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
    home_cli.configure(CONFIG + "[commands]\ncancel_grace_seconds = 30\n")
    task_id = home_cli.run("sleep", "600")
    wait_until(lambda: home_cli.status(task_id)["pid"], "it to run")
    os.killpg(int(str(home_cli.status(task_id)["pid"])), signal.SIGSTOP)
    home_cli.ok("cancel", task_id)
    assert home_cli.status(task_id)["result"] == "exit"


def test_commands_start_before_old_tasks_are_deleted(home_cli: HomeCli) -> None:
    home_cli.ok("list")
    now, ledger = time.time_ns() // 1_000_000, open_ledger(home_cli.home.ledger)
    approval, then = Approval("user", "cli", now), now - 40 * _DAY_MS
    for number in range(250):
        ledger.tasks.submit(
            request(("true",), str(home_cli.cwd), {}), project="/p", wanted_id=f"task_{number}", approval=approval, reasons=(),
            runner=ENGINE, folder="tasks", now=then, expires_at=None,
        )  # fmt: skip
        ledger.tasks.request_cancel(f"task_{number}", then)
    ledger.events.advance_cursor("retention_marks", 30)  # the engine was used on 30 days since then
    for number in range(30):
        ledger.events.advance_cursor(f"retention_mark_{number}", now - (31 - number) * _DAY_MS)
    ledger.close()
    home_cli.ok("run", "--wait", "--", "true")
    wait_until(lambda: query(home_cli, "SELECT count(*) FROM tasks") == [(1,)], "the old tasks to be deleted")
    (started,), (first,) = (
        query(home_cli, f"SELECT min(event_id) FROM events WHERE kind = '{kind}'")[0] for kind in ("run_started", "task_cleared")
    )
    assert started < first
    wait_until(lambda: query(home_cli, "SELECT count(*) FROM environments") == [(1,)], "the sweep to end")
    assert query(home_cli, "SELECT DISTINCT kind FROM events WHERE task_id LIKE 'task_1__'") == [("task_cleared",)]


def test_a_large_log_of_the_engine_is_rotated_while_it_is_open(home_cli: HomeCli) -> None:
    with open(home_cli.root / "engine.log", "ab") as log:
        log.write(b"x" * (2 << 20))
        log.flush()
        rotate_log(home_cli.home)
        rotate_log(home_cli.home)
        log.write(b"next")
    assert (home_cli.root / "engine.log").read_bytes() == b"next" and (home_cli.root / "engine.log.1").stat().st_size == 2 << 20


def seem_to_hang(home_cli: HomeCli) -> None:
    """Make the heartbeat of the engine look two minutes old."""
    then = time.monotonic_ns() - 120 * 10**9
    os.utime(home_cli.home.engine_lock, ns=(then, then))


def test_an_engine_that_hangs_is_replaced_and_its_commands_go_on(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sleep", "1000")
    wait_until(lambda: home_cli.status(task_id)["pid"], "it to run")
    pid, engine = home_cli.status(task_id)["pid"], home_cli.freeze_engine()
    seem_to_hang(home_cli)
    found = home_cli.cli("doctor").stdout
    assert f"engine: stopped (pid {engine.pid})" in found
    home_cli.ok("list")
    assert not processes.is_alive(engine)
    second = home_cli.run("echo", "again")
    home_cli.ok("wait", second)
    assert home_cli.engine not in (None, engine) and home_cli.status(task_id)["pid"] == pid
    assert f"the engine (pid {engine.pid}) did not respond for 12" in (home_cli.root / "engine.log").read_text()
    home_cli.ok("cancel", task_id)


def test_an_engine_that_was_only_slow_is_not_replaced(home_cli: HomeCli) -> None:
    task_id = home_cli.run("sleep", "1000")
    wait_until(lambda: home_cli.status(task_id)["pid"], "it to run")
    engine = home_cli.engine
    seem_to_hang(home_cli)
    home_cli.ok("list")
    assert home_cli.engine == engine and processes.heartbeat_age(home_cli.home) < 60
    home_cli.ok("cancel", task_id)
