"""A pid is not a process: a recycled one is never signalled or waited for, and after a reboot nothing of before is alive."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from conftest import Place, wait_until
from recorder import Witness, calm, change, drive, killed

from backburner.core.models import ProcessId
from backburner.system import processes as process


@pytest.fixture
def witness(place: Place) -> Iterator[Witness]:
    yield Witness(place)
    calm(place)


@pytest.fixture
def stranger() -> Iterator[ProcessId]:
    """A living process that has nothing to do with us: it leads a session and a group of its own, as a daemon would."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, env={})
    found = process.identify(child.pid)
    assert found
    yield found
    child.kill()
    child.wait()


def forgotten(witness: Witness, name: str) -> str:
    """A task at work whose engine, shim and command are all dead and whose end nobody saw; its id."""
    job = witness.job(name, gated=True)
    task_id = witness.submit(job)
    wait_until(lambda: witness.began(job) and witness.place.status(task_id)["pid"], "the command")
    shim = process.identify(int(str(witness.place.status(task_id)["pid"])))
    assert shim
    for keeper in witness.place.processes("backburner-keeper"):
        process.send(keeper, signal.SIGKILL)
    witness.place.kill_engine()
    os.killpg(shim.pid, signal.SIGKILL)
    wait_until(lambda: not [one for one in witness.place.processes() if one.pid != os.getpid()], "everything to be dead")
    return task_id


def earlier(stranger: ProcessId) -> ProcessId:
    """What the ledger would hold had the stranger got a recycled pid: the one who had it before began before."""
    return stranger._replace(started=str(int(stranger.started) - 1000))


def later(stranger: ProcessId) -> ProcessId:
    return stranger._replace(started=str(int(stranger.started) + 1000))


def of_another_boot(stranger: ProcessId) -> ProcessId:
    return stranger._replace(boot="f" * 32)


@pytest.mark.parametrize("forge", [earlier, later, of_another_boot])
def test_a_recycled_pid_is_never_signalled(witness: Witness, stranger: ProcessId, forge: Callable[[ProcessId], ProcessId]) -> None:
    task_id = forgotten(witness, "recycled")
    change(witness.place, "UPDATE runs SET process = ? WHERE task_id = ?", str(forge(stranger)), task_id)
    done = witness.place.cli("cancel", task_id)
    assert process.is_alive(stranger), "the cancel hit a process that is none of ours"
    assert witness.place.status(task_id)["status"] in ("cancelled", "failed"), (done.stdout, done.stderr)


def test_a_recycled_pid_is_not_waited_for(witness: Witness, stranger: ProcessId) -> None:
    task_id = forgotten(witness, "recycled")
    change(witness.place, "UPDATE runs SET process = ? WHERE task_id = ?", str(earlier(stranger)), task_id)
    witness.place.cli("wait", task_id, "--timeout", "10")
    done = witness.place.status(task_id)
    assert (done["status"], done["result"]) == ("failed", "lost")
    assert process.is_alive(stranger)


def test_an_owner_whose_pid_was_recycled_is_dead(witness: Witness, stranger: ProcessId) -> None:
    """Somebody else with the pid of the engine must not keep the run from being taken over, nor be hurt by it."""
    task_id = forgotten(witness, "recycled")
    change(witness.place, "UPDATE runs SET owner = ? WHERE task_id = ?", str(earlier(stranger)), task_id)
    witness.place.cli("wait", task_id, "--timeout", "10")
    assert witness.place.status(task_id)["result"] == "lost"
    assert process.is_alive(stranger)


def test_a_lock_file_with_a_recycled_pid_keeps_no_engine_from_starting(place: Place, stranger: ProcessId) -> None:
    (place.root / "engine.lock").write_text(f"{earlier(stranger)}\n")
    assert place.finish("echo", "hello")["status"] == "completed"
    assert place.engine and place.engine.pid != stranger.pid and process.is_alive(stranger)


def test_what_ran_when_the_machine_went_down_is_lost_and_told(witness: Witness) -> None:
    """Another boot id stands for the reboot. What had ended by then is told truly, what was pending runs."""
    place = witness.place
    place.configure("[approval]\nyes_without_terminal = true\n[commands]\nmax_concurrent = 2\n")
    cut, done, queued = witness.job("cut", gated=True), witness.job("done", code=5, gated=True), witness.job("queued", lines=10)
    ids = {job.name: witness.submit(job) for job in (cut, done, queued)}
    wait_until(lambda: witness.began(cut) and witness.began(done), "the commands")
    for keeper in place.processes("backburner-keeper"):
        process.send(keeper, signal.SIGKILL)
    place.kill_engine()
    witness.open_gate(done)
    wait_until(lambda: (place.folder(ids["done"]) / ".exit").read_text().strip() == "5", "the end that nobody saw")
    still_there = place.processes()
    place.environ["BACKBURNER_BOOT_ID"] = "b" * 32
    try:
        shown = place.json("inbox")
        place.cli("wait", *ids.values(), "--timeout", "30")
        shown = shown + place.json("inbox", "--read")  # type: ignore[operator]
        lost = place.status(ids["cut"])
    finally:
        for one in place.processes(str(place.root)):
            process.send(one, signal.SIGKILL)  # the engine of the pretended boot, and its keeper
    assert (lost["status"], lost["result"], lost["exit_code"]) == ("failed", "lost", None)
    assert "was restarted" in str(lost["error"])
    assert any(notice["task_id"] == ids["cut"] and "was restarted" in notice["text"] for notice in shown)
    row = witness.row(cut)
    assert row and (row.notices, row.ends) == (1, 1) and witness.signatures(cut) == 1, "what is lost is never run again"
    witness.testify([done, queued])
    assert still_there and all(map(process.is_alive, still_there)), "nothing is signalled on the word of another boot"
    witness.open_gate(cut)
    wait_until(lambda: not any(map(process.is_alive, still_there)), "the command that never knew")


def test_what_was_claimed_when_the_machine_went_down_is_lost_and_never_started_again(witness: Witness) -> None:
    """Whether it had begun is not known: what the shim wrote of that may not have reached the disk."""
    place, job = witness.place, witness.job("claimed")
    words = ("run", "--yes", "--description", job.name, "--", *witness.command(job))
    killed(drive(place, "door", "after insert", *words))
    killed(drive(place, "engine", "after claim"))
    place.environ["BACKBURNER_BOOT_ID"] = "b" * 32
    place.ok("list")
    witness.wait_for_the_ledger([job])
    place.stop_engine()
    row = witness.row(job)
    assert row and (row.state, row.result, row.notices) == ("failed", "lost", 1) and not witness.began(job)
