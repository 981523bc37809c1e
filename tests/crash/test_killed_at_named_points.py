"""Everything of ours killed with SIGKILL where it hurts most: the commands never notice, and their ends are told truly."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest
from conftest import Place, wait_until
from recorder import Job, Witness, calm, drive, killed, query

from backburner.core.models import ProcessId
from backburner.system import processes as process
from backburner.system import wakeups as wake

AT_THE_DOOR = ["after insert", "after metadata", "before start", "after start"]
STARTING, RECORDING = ["folder made", "after prepare", "cat but no shim", "after spawn"], ["inside record", "after record"]
CLAIMING = ["inside claim", "after claim", *STARTING, *RECORDING]
SETTLING = ["before settle", "before notice", "after notice", "inside settle", "after settle"]
TAKING_OVER = ["inside adopt", "after adopt", "after attach"]


@pytest.fixture
def witness(place: Place) -> Iterator[Witness]:
    yield Witness(place)
    calm(place)


def two_at_a_time(place: Place) -> None:
    place.configure("[approval]\nyes_without_terminal = true\n[commands]\nmax_concurrent = 2\n")


def insert(witness: Witness, *jobs: Job) -> None:
    """Doors that die when their task is in the ledger, before anybody was woken."""
    for job in jobs:
        killed(drive(witness.place, "door", "after insert", "run", "--yes", "--description", job.name, "--", *witness.command(job)))


def serving(place: Place, point: str = "never") -> "subprocess.Popen[str]":
    """An engine that dies at a point, up and listening."""
    driver = drive(place, "engine", point)
    wait_until(lambda: driver.poll() is not None or (place.engine and place.engine.pid == driver.pid and _listens(place)), "the engine")
    return driver


def _listens(place: Place) -> bool:
    return wake.wake(place.home.socket_dir, wake.ENGINE_SOCKET)


def kill_all_of_the_engine(place: Place) -> None:
    """The engine and its keeper, so that nobody starts it again."""
    for keeper in place.processes("backburner-keeper"):
        process.send(keeper, signal.SIGKILL)
        wait_until(lambda keeper=keeper: not process.is_alive(keeper), "the keeper to be dead")
    place.kill_engine()


# -- doors


@pytest.mark.parametrize("point", AT_THE_DOOR)
def test_a_command_whose_door_was_killed_after_the_insert_still_runs(witness: Witness, point: str) -> None:
    job = witness.job("orphan", code=3)
    killed(drive(witness.place, "door", point, "run", "--yes", "--description", job.name, "--", *witness.command(job)))
    assert witness.row(job), "the task was in the ledger when its door died"
    witness.place.ok("list", "--json")
    witness.wait_for_the_ledger([job])
    witness.testify([job])


def test_a_door_killed_inside_its_transaction_leaves_nothing(witness: Witness) -> None:
    job, later = witness.job("never"), witness.job("later")
    killed(drive(witness.place, "door", "inside submit", "run", "--yes", "--description", job.name, "--", *witness.command(job)))
    assert witness.place.json("list") == []
    witness.submit(later)
    witness.finish([later])
    assert not witness.began(job) and witness.row(job) is None


def test_a_door_killed_while_it_waits_takes_nothing_with_it(witness: Witness) -> None:
    job = witness.job("watched", code=7, gated=True)
    words = ("run", "--yes", "--wait", "--description", job.name, "--", *witness.command(job))
    door = drive(witness.place, "door", "never", *words)
    wait_until(lambda: witness.began(job), "the command")
    killed(door, by_us=True)
    witness.open_gate(job)
    witness.wait_for_the_ledger([job])
    witness.testify([job])


# -- the engine


@pytest.mark.parametrize("point", CLAIMING + SETTLING)
def test_an_engine_killed_at_a_point_loses_and_doubles_nothing(witness: Witness, point: str) -> None:
    two_at_a_time(witness.place)
    pause = 0.3 if point in RECORDING else 0  # what ends at once is never written down as running
    jobs = [witness.job(f"job{number}", lines=200, code=number % 2 * 5, pause=pause) for number in range(4)]
    insert(witness, *jobs)
    killed(drive(witness.place, "engine", point))
    witness.finish(jobs)


@pytest.mark.parametrize("point", ["folder made", "inputs written", "after prepare"])
def test_a_run_that_is_started_anew_is_handed_what_it_depends_on(witness: Witness, point: str) -> None:
    place = witness.place
    first = str(place.finish("echo", "the number is 42")["task_id"])
    place.stop_engine()
    words = (
        "--description",
        "second",
        "--after",
        first,
        "--shell",
        "--",
        'tail -n 1 "$BACKBURNER_AFTER_LOG"; wc -l <"$BACKBURNER_AFTER_RESULT"',
    )
    killed(drive(place, "door", "after insert", "run", "--yes", *words))
    killed(drive(place, "engine", point))
    if point != "folder made":  # what was handed on already does not need the results any more
        shutil.rmtree(place.folder(first))
    (second,) = [row.task_id for row in witness.rows() if row.name == "second"]
    place.cli("wait", second, "--timeout", "60")
    assert place.log(second) == b"the number is 42\n10\n"


@pytest.mark.parametrize("point", TAKING_OVER)
def test_an_engine_killed_while_it_takes_over_loses_and_doubles_nothing(witness: Witness, point: str) -> None:
    jobs = [witness.job(f"job{number}", code=number, gated=True) for number in range(3)]
    insert(witness, *jobs)
    first = drive(witness.place, "engine", "never")
    wait_until(lambda: all(map(witness.began, jobs)), "the commands")
    killed(first, by_us=True)
    witness.open_gate(jobs[0])
    wait_until(lambda: exit_file(witness, jobs[0]) == "0", "the end that nobody saw")
    killed(drive(witness.place, "engine", point))
    for job in jobs[1:]:
        witness.open_gate(job)
    witness.finish(jobs)


def exit_file(witness: Witness, job: Job) -> str:
    row = witness.row(job)
    assert row
    return (witness.place.folder(row.task_id) / ".exit").read_text().strip()


def test_a_command_that_ends_while_no_engine_lives_is_told_truly(witness: Witness) -> None:
    """Killed before the exit file is written."""
    job = witness.job("alone", lines=3000, code=9, gated=True)
    witness.submit(job)
    wait_until(lambda: witness.began(job), "the command")
    kill_all_of_the_engine(witness.place)
    assert exit_file(witness, job) == "s"
    witness.open_gate(job)
    wait_until(lambda: exit_file(witness, job) == "9", "the exit file")
    witness.finish([job])


def test_an_engine_killed_after_the_exit_file_was_written_has_not_lost_the_end(witness: Witness) -> None:
    """Held with SIGSTOP, the engine cannot see the end; then it is killed."""
    job = witness.job("unseen", lines=3000, code=4, gated=True)
    witness.submit(job)
    wait_until(lambda: witness.began(job), "the command")
    engine = witness.place.engine
    assert engine
    process.send(engine, signal.SIGSTOP)
    witness.open_gate(job)
    wait_until(lambda: exit_file(witness, job) == "4", "the exit file")
    row = witness.row(job)
    assert row and row.state == "running", "the engine was held"
    kill_all_of_the_engine(witness.place)
    witness.finish([job])


def test_a_killed_engine_comes_back_by_itself(witness: Witness) -> None:
    """No door is opened after the kill: the keeper starts the next engine, which runs what was pending too."""
    two_at_a_time(witness.place)
    jobs = [witness.job(f"job{number}", code=number, gated=number < 2) for number in range(5)]
    for job in jobs:
        witness.submit(job)
    wait_until(lambda: all(map(witness.began, jobs[:2])), "the commands")
    before = witness.place.engine
    witness.place.kill_engine()
    for job in jobs[:2]:
        witness.open_gate(job)
    witness.wait_for_the_ledger(jobs)
    assert witness.place.engine and witness.place.engine != before
    witness.testify(jobs)


def test_the_first_look_after_a_crash_shows_the_truth(witness: Witness) -> None:
    """Engine and keeper killed, the commands end unseen: one `list` and one `status` are enough."""
    witness.place.configure("[approval]\nyes_without_terminal = true\n[commands]\nmax_concurrent = 12\n")
    jobs = [witness.job(f"job{number}", lines=2000, code=number, gated=True) for number in range(12)]
    ids = [witness.submit(job) for job in jobs]
    wait_until(lambda: all(map(witness.began, jobs)), "the commands")
    kill_all_of_the_engine(witness.place)
    for job in jobs:
        witness.open_gate(job)
    wait_until(lambda: all(exit_file(witness, job) == str(job.code) for job in jobs), "the ends that nobody saw")
    shown = witness.place.json("list")
    assert isinstance(shown, list)
    assert {one["task_id"]: one["exit_code"] for one in shown} == dict(zip(ids, range(12), strict=True))
    witness.testify(jobs)


def test_status_is_true_at_once_when_engine_and_keeper_are_killed(witness: Witness) -> None:
    job, other = witness.job("ended", lines=5000, code=6, gated=True), witness.job("running", gated=True)
    task_id, other_id = witness.submit(job), witness.submit(other)
    wait_until(lambda: witness.began(job) and witness.began(other), "the commands")
    kill_all_of_the_engine(witness.place)
    witness.open_gate(job)
    wait_until(lambda: exit_file(witness, job) == "6", "the end that nobody saw")
    assert witness.place.status(task_id)["exit_code"] == 6
    assert witness.place.status(other_id)["status"] == "running"
    witness.open_gate(other)
    witness.finish([job, other])


def test_the_first_look_waits_for_a_log_that_takes_long_to_close(witness: Witness) -> None:
    """A large log is summed up in its own time: the small task beside it must not make the door look too early."""
    place, small, gate = witness.place, witness.job("small", code=1, gated=True), witness.place.cwd / "gate"
    os.mkfifo(gate)
    witness.submit(small)
    large = place.run(f"yes 12345 | head -c 60000000; echo printed >{place.cwd}/printed; read x <{gate}; exit 3", options=("--shell",))
    wait_until(lambda: witness.began(small) and (place.cwd / "printed").exists(), "the commands")
    kill_all_of_the_engine(place)
    witness.open_gate(small)
    gate.write_text("open\n")
    wait_until(lambda: (place.folder(large) / ".exit").read_text().strip() == "3" and exit_file(witness, small) == "1", "the ends")
    assert place.status(large)["exit_code"] == 3
    witness.finish([small])


# -- a cancel that is under way


def cancelled(witness: Witness, job: Job) -> None:
    """It is said to be cancelled, once, and nothing of it is left."""
    row = witness.row(job)
    assert row and (row.state, row.notices, row.starts, row.ends) == ("cancelled", 1, 1, 1), row
    assert witness.signatures(job) == 1
    assert not process.members(None, mark_of(witness, job))


def mark_of(witness: Witness, job: Job) -> str:
    return str(
        query(witness.place, "SELECT r.mark FROM runs r JOIN tasks t ON t.task_id = r.task_id WHERE description = ?", job.name)[0][0]
    )


def test_a_cancel_is_carried_out_although_its_door_was_killed(witness: Witness) -> None:
    """Killed when the wish was in the ledger and nobody was woken: the next look at the home is enough."""
    job = witness.job("unwanted", gated=True)
    task_id = witness.submit(job)
    wait_until(lambda: witness.began(job), "the command")
    killed(drive(witness.place, "door", "after cancel", "cancel", task_id))
    witness.place.ok("list")
    witness.wait_for_the_ledger([job], 15)
    cancelled(witness, job)


def test_a_cancel_reaches_an_embedder_although_its_door_was_killed(witness: Witness) -> None:
    job = witness.job("unwanted", gated=True)
    embedder = embed(witness, "never", 1, [job])
    wait_until(lambda: witness.began(job), "the command")
    row = witness.row(job)
    assert row
    killed(drive(witness.place, "door", "after cancel", "cancel", row.task_id))
    witness.place.ok("list")
    try:
        witness.wait_for_the_ledger([job], 15)
    finally:
        killed(embedder, by_us=True)
    cancelled(witness, job)


@pytest.mark.parametrize("point", SETTLING)
def test_a_cancel_is_told_as_one_although_its_engine_was_killed(witness: Witness, point: str) -> None:
    job = witness.job("unwanted", gated=True)
    engine = serving(witness.place, point)
    task_id = witness.submit(job)
    wait_until(lambda: witness.began(job), "the command")
    killed(drive(witness.place, "door", "after cancel", "cancel", task_id))
    assert _listens(witness.place)
    killed(engine)
    witness.place.cli("wait", task_id, "--timeout", "20")
    cancelled(witness, job)


def test_a_cancel_is_carried_out_by_the_engine_that_takes_over(witness: Witness) -> None:
    """The engine is held when the cancel comes, and killed before it could do anything about it."""
    job = witness.job("unwanted", gated=True)
    task_id = witness.submit(job)
    wait_until(lambda: witness.began(job), "the command")
    engine = witness.place.engine
    assert engine
    process.send(engine, signal.SIGSTOP)
    killed(drive(witness.place, "door", "after cancel", "cancel", task_id))
    kill_all_of_the_engine(witness.place)
    witness.place.ok("list")
    witness.wait_for_the_ledger([job], 15)
    cancelled(witness, job)


STUBBORN = "trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.05; done"


def stubborn(place: Place) -> str:
    """A command at work that only SIGKILL ends, which takes its shim too; its id."""
    task_id = place.run(STUBBORN, options=("--shell",))
    log = place.folder(task_id) / "output.log"
    wait_until(lambda: log.exists() and b"ready" in log.read_bytes(), "the trap")
    return task_id


def stopped(place: Place, task_id: str) -> None:
    """It is said to be cancelled, and nothing of it is left."""
    done = place.status(task_id)
    assert (done["status"], done["result"], done["exit_code"], done["error"]) == ("cancelled", "signal", 137, None)
    assert not process.members(None, str(query(place, "SELECT mark FROM runs WHERE task_id = ?", task_id)[0][0]))
    calm(place)


def test_a_cancel_that_was_carried_out_is_cancelled_when_the_engine_died_in_between(place: Place) -> None:
    """The engine dies after its SIGKILL and before it wrote the end."""
    place.configure("[approval]\nyes_without_terminal = true\n[commands]\ncancel_grace_seconds = 0.1\n")
    engine = serving(place, "before settle")
    task_id = stubborn(place)
    killed(drive(place, "door", "after cancel", "cancel", task_id))
    assert _listens(place)
    killed(engine)
    assert exit_code_file(place, task_id) == "s", "no code was left behind"
    place.cli("wait", task_id, "--timeout", "20")
    stopped(place, task_id)


def test_a_cancel_that_a_reboot_came_before_is_not_told_as_carried_out(place: Place) -> None:
    """Another boot id stands for the reboot: nobody ended the command."""
    engine = serving(place)
    task_id = stubborn(place)
    wait_until(lambda: place.status(task_id)["pid"], "the shim's pid in the ledger")
    process.send(process.identify(engine.pid), signal.SIGSTOP)  # type: ignore[arg-type]
    killed(drive(place, "door", "after cancel", "cancel", task_id))
    killed(engine, by_us=True)
    place.environ["BACKBURNER_BOOT_ID"] = "b" * 32
    place.cli("wait", task_id, "--timeout", "20")
    done = place.status(task_id)
    place.stop_engine()
    assert (done["status"], done["result"]) == ("failed", "lost")
    assert process.end_all(None, str(query(place, "SELECT mark FROM runs WHERE task_id = ?", task_id)[0][0])), "it never knew"


def exit_code_file(place: Place, task_id: str) -> str:
    return (place.folder(task_id) / ".exit").read_text().strip()


def test_an_engine_killed_between_sigterm_and_sigkill_leaves_nothing_alive(place: Place) -> None:
    place.configure("[approval]\nyes_without_terminal = true\n[commands]\ncancel_grace_seconds = 0.5\n")
    task_id = stubborn(place)
    log = place.folder(task_id) / "output.log"
    killed(drive(place, "door", "after cancel", "cancel", task_id))
    place.cli("run", "--", "true")  # rings the engine
    wait_until(lambda: b"got TERM" in log.read_bytes(), "the first signal")
    kill_all_of_the_engine(place)
    place.cli("wait", task_id, "--timeout", "20")
    stopped(place, task_id)


# -- a program that embeds the library


def embed(witness: Witness, point: str, cap: int, jobs: list[Job]) -> "subprocess.Popen[str]":
    return drive(witness.place, "embed", point, str(cap), feed=[[job.name, witness.command(job)] for job in jobs])


def test_what_a_killed_embedder_ran_and_queued_is_adopted(witness: Witness) -> None:
    jobs = [witness.job(f"job{number}", lines=300, code=number, gated=number < 3) for number in range(8)]
    embedder = embed(witness, "never", 3, jobs)
    wait_until(lambda: all(map(witness.began, jobs[:3])) and len(witness.rows()) == 8, "the commands")
    killed(embedder, by_us=True)
    assert [row.state for row in witness.rows()] == ["running"] * 3 + ["pending"] * 5
    for job in jobs[:3]:
        witness.open_gate(job)
    shown = witness.place.json("list")
    assert isinstance(shown, list) and len(shown) == 8
    witness.finish(jobs)


def test_an_engine_at_hand_adopts_from_a_killed_embedder_by_itself(witness: Witness) -> None:
    """No door is opened after the kill."""
    keeps = witness.job("keeps the engine", gated=True)
    witness.submit(keeps)
    wait_until(lambda: witness.began(keeps), "the engine's own command")
    jobs = [witness.job(f"job{number}", code=number, gated=number < 2) for number in range(5)]
    embedder = embed(witness, "never", 2, jobs)
    wait_until(lambda: all(map(witness.began, jobs[:2])) and len(witness.rows()) == 6, "the embedder's commands")
    killed(embedder, by_us=True)
    for job in (*jobs[:2], keeps):
        witness.open_gate(job)
    witness.wait_for_the_ledger([*jobs, keeps])
    witness.testify([*jobs, keeps])


@pytest.mark.parametrize("point", RECORDING)
def test_an_embedder_killed_while_it_writes_down_what_runs_loses_and_doubles_nothing(witness: Witness, point: str) -> None:
    jobs = [witness.job(f"job{number}", code=number, pause=0.3) for number in range(2)]
    killed(embed(witness, point, 2, jobs))
    witness.finish(jobs)


@pytest.mark.parametrize("point", ["after insert", *STARTING])
def test_an_embedder_killed_at_its_first_command_loses_and_doubles_nothing(witness: Witness, point: str) -> None:
    job, second = witness.job("first", code=2), witness.job("second")
    killed(embed(witness, point, 2, [job, second]))
    witness.finish([job])
    assert witness.row(second) is None and not witness.began(second)


@pytest.mark.parametrize("point", SETTLING)
def test_an_embedder_killed_while_it_settles_loses_and_doubles_nothing(witness: Witness, point: str) -> None:
    jobs = [witness.job(f"job{number}", code=number) for number in range(6)]
    killed(embed(witness, point, 3, jobs))
    witness.finish(jobs)


def test_an_engine_killed_after_it_freed_an_embedders_queue_loses_nothing(witness: Witness) -> None:
    jobs = [witness.job(f"job{number}", code=number, gated=number == 0) for number in range(4)]
    embedder = embed(witness, "never", 1, jobs)
    wait_until(lambda: witness.began(jobs[0]) and len(witness.rows()) == 4, "the embedder's commands")
    killed(embedder, by_us=True)
    killed(drive(witness.place, "engine", "after release"))
    witness.open_gate(jobs[0])
    witness.finish(jobs)


# -- the shim


def shim_of(witness: Witness, job: Job) -> ProcessId:
    row = witness.row(job)
    assert row
    wait_until(lambda: witness.place.status(row.task_id)["pid"], "the shim's pid in the ledger")
    found = process.identify(int(str(witness.place.status(row.task_id)["pid"])))
    assert found
    return found


@pytest.mark.parametrize("engine_too", [False, True], ids=["the engine lives", "the engine is killed first"])
def test_a_command_lives_on_without_its_shim_and_is_told_as_lost(witness: Witness, engine_too: bool) -> None:
    job = witness.job("shimless", lines=500, gated=True)
    task_id = witness.submit(job)
    wait_until(lambda: witness.began(job), "the command")
    shim = shim_of(witness, job)
    if engine_too:
        kill_all_of_the_engine(witness.place)
    process.send(shim, signal.SIGKILL)
    wait_until(lambda: not process.is_alive(shim), "the shim to be dead")
    for _ in range(2):
        assert witness.place.status(task_id)["status"] == "running", "its end cannot be told before it came"
    assert witness.signatures(job) == 1
    witness.open_gate(job)
    witness.wait_for_the_ledger([job])
    row = witness.row(job)
    assert row and (row.state, row.result, row.exit_code, row.notices, row.ends) == ("failed", "lost", None, 1, 1)
    assert witness.signatures(job) == 1, "what is lost is never run again"
    assert witness.output(task_id) == witness.undisturbed(job)
    told = witness.place.json("inbox")
    assert isinstance(told, list) and len(told) == 1 and "not observed" in told[0]["text"]


# -- a log that was being cut


def test_an_engine_killed_right_after_it_rewrote_a_log_leaves_its_marker_true(place: Place) -> None:
    """The next engine finds a log that is in its final form already, a little longer than the cap: it must not cut again."""
    place.configure("[approval]\nyes_without_terminal = true\n[commands]\noutput_cap_mb = 1\n")
    gate = place.cwd / "gate"
    os.mkfifo(gate)
    driver = serving(place, "log rewritten")
    slowly = "i=0; while [ $i -lt 30 ]; do yes 123456789 | head -c 1000000; sleep 0.03; i=$((i + 1)); done"
    task_id = place.run(f"{slowly}; read n <{gate}; yes | head -c $n", options=("--shell",))
    log = place.folder(task_id) / "output.log"
    wait_until((place.folder(task_id) / ".capped").exists, "the cut")
    header = sum(len(line) + 1 for line in log.read_bytes()[:4096].split(b"\n", 4)[:4])
    more = 8191 - (header + 30_000_000) % 4096  # as much behind the last whole block as there can be
    gate.write_text(f"{more}\n")
    killed(driver)
    place.ok("wait", task_id)
    before, _, rest = place.log(task_id).partition(b"\n[backburner: ")
    left_out, _, behind = rest.partition(b" bytes of output left out here]\n")
    assert len(before) + int(left_out.replace(b",", b"")) + len(behind) == 30_000_000 + more
