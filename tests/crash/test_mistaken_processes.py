"""A reused pid is never signalled or waited for, and after a reboot no process of the previous boot is considered alive."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from conftest import CONFIG, HomeCli, wait_until
from recorder import JobRecorder, change, start_driver, wait_for_stable_engine, wait_until_killed

from backburner.core.models import ProcessId
from backburner.system import processes
from backburner.system.home import is_locked
from backburner.system.run_files import exit_text


@pytest.fixture
def recorder(home_cli: HomeCli) -> Iterator[JobRecorder]:
    yield JobRecorder(home_cli)
    wait_for_stable_engine(home_cli)


@pytest.fixture
def stranger() -> Iterator[ProcessId]:
    """An unrelated running process that leads its own session and group, as a daemon would."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, env={})
    found = processes.identify(child.pid)
    assert found
    yield found
    child.kill()
    child.wait()


def create_unobserved_task(recorder: JobRecorder, name: str) -> str:
    """A running task whose engine, shim and command are dead and whose end was not observed; returns its id."""
    job = recorder.job(name, gated=True)
    task_id = recorder.submit(job)
    wait_until(lambda: recorder.has_started(job) and recorder.home_cli.status(task_id)["pid"], "the command")
    shim = processes.identify(int(str(recorder.home_cli.status(task_id)["pid"])))
    assert shim
    for keeper in recorder.home_cli.processes("backburner-keeper"):
        processes.send(keeper, signal.SIGKILL)
    recorder.home_cli.kill_engine()
    os.killpg(shim.pid, signal.SIGKILL)
    wait_until(lambda: not [one for one in recorder.home_cli.processes() if one.pid != os.getpid()], "everything to be dead")
    return task_id


def earlier(stranger: ProcessId) -> ProcessId:
    """The identity that the ledger would hold if the stranger had a reused pid: the previous process started earlier."""
    return stranger._replace(started=str(int(stranger.started) - 1000))


def later(stranger: ProcessId) -> ProcessId:
    return stranger._replace(started=str(int(stranger.started) + 1000))


def of_another_boot(stranger: ProcessId) -> ProcessId:
    return stranger._replace(boot="f" * 32)


@pytest.mark.parametrize("forge", [earlier, later, of_another_boot])
def test_a_reused_pid_is_never_signalled(recorder: JobRecorder, stranger: ProcessId, forge: Callable[[ProcessId], ProcessId]) -> None:
    task_id = create_unobserved_task(recorder, "recycled")
    change(recorder.home_cli, "UPDATE runs SET process = ? WHERE task_id = ?", str(forge(stranger)), task_id)
    done = recorder.home_cli.cli("cancel", task_id)
    assert processes.is_alive(stranger), "the cancel killed an unrelated process"
    assert recorder.home_cli.status(task_id)["status"] in ("cancelled", "failed"), (done.stdout, done.stderr)


def test_a_reused_pid_is_not_waited_for(recorder: JobRecorder, stranger: ProcessId) -> None:
    task_id = create_unobserved_task(recorder, "recycled")
    change(recorder.home_cli, "UPDATE runs SET process = ? WHERE task_id = ?", str(earlier(stranger)), task_id)
    recorder.home_cli.cli("wait", task_id, "--timeout", "10")
    done = recorder.home_cli.status(task_id)
    assert (done["status"], done["result"]) == ("failed", "lost")
    assert processes.is_alive(stranger)


def test_an_owner_with_a_reused_pid_is_dead(recorder: JobRecorder, stranger: ProcessId) -> None:
    """Another process with the pid of the engine must not prevent the takeover, and must not be signalled."""
    task_id = create_unobserved_task(recorder, "recycled")
    change(recorder.home_cli, "UPDATE runs SET owner = ? WHERE task_id = ?", str(earlier(stranger)), task_id)
    recorder.home_cli.cli("wait", task_id, "--timeout", "10")
    assert recorder.home_cli.status(task_id)["result"] == "lost"
    assert processes.is_alive(stranger)


def test_a_lock_file_with_a_reused_pid_does_not_prevent_a_start(home_cli: HomeCli, stranger: ProcessId) -> None:
    (home_cli.root / "engine.lock").write_text(f"{earlier(stranger)}\n")
    assert home_cli.finish("echo", "hello")["status"] == "completed"
    assert home_cli.engine and home_cli.engine.pid != stranger.pid and processes.is_alive(stranger)


def test_a_run_interrupted_by_a_reboot_is_reported_as_lost(recorder: JobRecorder) -> None:
    """Another boot id simulates the reboot. Commands that had ended are reported correctly, and pending ones run."""
    home_cli = recorder.home_cli
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 2\n")
    cut, done, queued = recorder.job("cut", gated=True), recorder.job("done", code=5, gated=True), recorder.job("queued", lines=10)
    ids = {job.name: recorder.submit(job) for job in (cut, done, queued)}
    wait_until(lambda: recorder.has_started(cut) and recorder.has_started(done), "the commands")
    for keeper in home_cli.processes("backburner-keeper"):
        processes.send(keeper, signal.SIGKILL)
    home_cli.kill_engine()
    recorder.open_gate(done)
    wait_until(lambda: exit_text(str(home_cli.folder(ids["done"]))) == "5", "the end that nobody saw")
    wait_until(lambda: not is_locked(str(home_cli.folder(ids["done"]) / ".exit")), "the end of its shim")
    still_there = [one for one in home_cli.processes() if one not in home_cli.log_writers]
    home_cli.environ["BACKBURNER_BOOT_ID"] = "b" * 32
    try:
        shown = home_cli.json("inbox")
        home_cli.cli("wait", *ids.values(), "--timeout", "30")
        shown = shown + home_cli.json("inbox", "--read")  # type: ignore[operator]
        lost = home_cli.status(ids["cut"])
    finally:
        for one in home_cli.processes(str(home_cli.root)):
            processes.send(one, signal.SIGKILL)  # the engine of the simulated boot, and its keeper
    assert (lost["status"], lost["result"], lost["exit_code"]) == ("failed", "lost", None)
    assert "was restarted" in str(lost["error"])
    assert any(notice["task_id"] == ids["cut"] and "was restarted" in notice["text"] for notice in shown)
    row = recorder.row(cut)
    assert row and (row.notices, row.ends) == (1, 1) and recorder.start_count(cut) == 1, "what is lost is never run again"
    recorder.check([done, queued])
    assert still_there and all(map(processes.is_alive, still_there)), "nothing is signalled on the word of another boot"
    recorder.open_gate(cut)
    wait_until(lambda: not any(map(processes.is_alive, still_there)), "the command that never knew")


def test_a_run_claimed_before_a_reboot_is_lost_and_not_started_again(recorder: JobRecorder) -> None:
    """It is unknown whether it had started: what the shim wrote may not have reached the disk."""
    home_cli, job = recorder.home_cli, recorder.job("claimed")
    words = ("run", "--yes", "--description", job.name, "--", *recorder.command(job))
    wait_until_killed(start_driver(home_cli, "cli", "after insert", *words))
    wait_until_killed(start_driver(home_cli, "engine", "after claim"))
    home_cli.environ["BACKBURNER_BOOT_ID"] = "b" * 32
    home_cli.ok("list")
    recorder.wait_for_ends([job])
    home_cli.stop_engine()
    row = recorder.row(job)
    assert row and (row.state, row.result, row.notices) == ("failed", "lost", 1) and not recorder.has_started(job)
