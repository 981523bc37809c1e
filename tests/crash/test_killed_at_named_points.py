"""Processes killed with SIGKILL at critical points: the commands are not affected, and their ends are reported correctly."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CONFIG, HomeCli, wait_until
from recorder import Job, JobRecorder, query, start_driver, wait_for_stable_engine, wait_until_killed

from backburner.core.models import ProcessId
from backburner.system import processes, wakeups
from backburner.system.home import is_locked
from backburner.system.run_files import exit_text

IN_THE_CLI = ["after insert", "after metadata", "before start", "after start"]
STARTING = ["folder made", "after prepare", "shim but no log writer", "after spawn"]
RECORDING = ["inside record", "after record"]
CLAIMING = ["inside claim", "after claim", *STARTING, "start requested", *RECORDING]  # the log writer is not asked for the first start
SETTLING = ["before settle", "before notice", "after notice", "inside settle", "after settle"]
TAKING_OVER = ["inside adopt", "after adopt", "after attach"]


@pytest.fixture
def recorder(home_cli: HomeCli) -> Iterator[JobRecorder]:
    yield JobRecorder(home_cli)
    wait_for_stable_engine(home_cli)


def two_at_a_time(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 2\n")


def submit_and_die(recorder: JobRecorder, *jobs: Job) -> None:
    """Command lines that die when their task is in the ledger, before any process was woken."""
    for job in jobs:
        wait_until_killed(
            start_driver(recorder.home_cli, "cli", "after insert", "run", "--yes", "--description", job.name, "--", *recorder.command(job))
        )


def start_engine(home_cli: HomeCli, point: str = "never") -> "subprocess.Popen[str]":
    """A listening engine that dies at a point."""
    driver = start_driver(home_cli, "engine", point)
    wait_until(
        lambda: driver.poll() is not None or (home_cli.engine and home_cli.engine.pid == driver.pid and _listens(home_cli)), "the engine"
    )
    return driver


def _listens(home_cli: HomeCli) -> bool:
    return wakeups.wake(home_cli.home.socket_dir, wakeups.ENGINE_SOCKET)


def kill_engine_and_keeper(home_cli: HomeCli) -> None:
    """Kill the engine and its keeper, so that it is not started again."""
    for keeper in home_cli.processes("backburner-keeper"):
        processes.send(keeper, signal.SIGKILL)
        wait_until(lambda keeper=keeper: not processes.is_alive(keeper), "the keeper to be dead")
    home_cli.kill_engine()


# -- command lines


@pytest.mark.parametrize("point", IN_THE_CLI)
def test_a_task_runs_although_its_command_line_was_killed_after_the_insert(recorder: JobRecorder, point: str) -> None:
    job = recorder.job("submitted", code=3)
    wait_until_killed(
        start_driver(recorder.home_cli, "cli", point, "run", "--yes", "--description", job.name, "--", *recorder.command(job))
    )
    assert recorder.row(job), "the task was in the ledger when its command line died"
    recorder.home_cli.ok("list", "--json")
    recorder.wait_for_ends([job])
    recorder.check([job])


def test_a_command_line_killed_inside_its_transaction_leaves_nothing(recorder: JobRecorder) -> None:
    job, later = recorder.job("never"), recorder.job("later")
    wait_until_killed(
        start_driver(recorder.home_cli, "cli", "inside submit", "run", "--yes", "--description", job.name, "--", *recorder.command(job))
    )
    assert recorder.home_cli.json("list") == []
    recorder.submit(later)
    recorder.finish([later])
    assert not recorder.has_started(job) and recorder.row(job) is None


def test_a_task_continues_although_the_waiting_command_line_was_killed(recorder: JobRecorder) -> None:
    job = recorder.job("watched", code=7, gated=True)
    words = ("run", "--yes", "--wait", "--description", job.name, "--", *recorder.command(job))
    client = start_driver(recorder.home_cli, "cli", "never", *words)
    wait_until(lambda: recorder.has_started(job), "the command")
    wait_until_killed(client, by_us=True)
    recorder.open_gate(job)
    recorder.wait_for_ends([job])
    recorder.check([job])


# -- the engine


@pytest.mark.parametrize("point", CLAIMING + SETTLING)
def test_an_engine_killed_at_a_point_loses_and_repeats_nothing(recorder: JobRecorder, point: str) -> None:
    two_at_a_time(recorder.home_cli)
    # A command that ends immediately is never recorded as running, and the log writer is asked only while another one runs.
    pause = 0.3 if point in (*RECORDING, "start requested") else 0
    jobs = [recorder.job(f"job{number}", lines=200, code=number % 2 * 5, pause=pause) for number in range(4)]
    submit_and_die(recorder, *jobs)
    wait_until_killed(start_driver(recorder.home_cli, "engine", point))
    recorder.finish(jobs)


@pytest.mark.parametrize("point", ["folder made", "inputs written", "after prepare"])
def test_a_run_that_is_started_again_gets_its_inputs(recorder: JobRecorder, point: str) -> None:
    home_cli = recorder.home_cli
    first = str(home_cli.finish("echo", "the number is 42")["task_id"])
    home_cli.stop_engine()
    words = (
        "--description",
        "second",
        "--after",
        first,
        "--shell",
        "--",
        'tail -n 1 "$BACKBURNER_AFTER_LOG"; wc -l <"$BACKBURNER_AFTER_RESULT"',
    )
    wait_until_killed(start_driver(home_cli, "cli", "after insert", "run", "--yes", *words))
    wait_until_killed(start_driver(home_cli, "engine", point))
    if point != "folder made":  # inputs that were copied already do not need the results
        shutil.rmtree(home_cli.folder(first))
    (second,) = [row.task_id for row in recorder.rows() if row.name == "second"]
    home_cli.cli("wait", second, "--timeout", "60")
    assert home_cli.log(second) == b"the number is 42\n10\n"


@pytest.mark.parametrize("point", TAKING_OVER)
def test_an_engine_killed_during_takeover_loses_and_repeats_nothing(recorder: JobRecorder, point: str) -> None:
    jobs = [recorder.job(f"job{number}", code=number, gated=True) for number in range(3)]
    submit_and_die(recorder, *jobs)
    first = start_driver(recorder.home_cli, "engine", "never")
    wait_until(lambda: all(map(recorder.has_started, jobs)), "the commands")
    wait_until_killed(first, by_us=True)
    recorder.open_gate(jobs[0])
    wait_until(lambda: exit_file(recorder, jobs[0]) == "0", "the end that nobody saw")
    wait_until_killed(start_driver(recorder.home_cli, "engine", point))
    for job in jobs[1:]:
        recorder.open_gate(job)
    recorder.finish(jobs)


def exit_file(recorder: JobRecorder, job: Job) -> str:
    row = recorder.row(job)
    assert row
    return exit_text(str(recorder.home_cli.folder(row.task_id)))


def test_a_command_that_ends_without_an_engine_is_reported_correctly(recorder: JobRecorder) -> None:
    """The engine is killed before the exit file is written."""
    job = recorder.job("alone", lines=3000, code=9, gated=True)
    recorder.submit(job)
    wait_until(lambda: recorder.has_started(job), "the command")
    kill_engine_and_keeper(recorder.home_cli)
    assert exit_file(recorder, job) == "s"
    recorder.open_gate(job)
    wait_until(lambda: exit_file(recorder, job) == "9", "the exit file")
    recorder.finish([job])


def test_an_engine_killed_after_the_exit_file_is_written_loses_no_end(recorder: JobRecorder) -> None:
    """The engine is stopped with SIGSTOP so that it does not see the end; then it is killed."""
    job = recorder.job("unseen", lines=3000, code=4, gated=True)
    recorder.submit(job)
    wait_until(lambda: recorder.has_started(job) and (row := recorder.row(job)) and row.state == "running", "the command")
    recorder.home_cli.freeze_engine()
    recorder.open_gate(job)
    wait_until(lambda: exit_file(recorder, job) == "4", "the exit file")
    row = recorder.row(job)
    assert row and row.state == "running", "the engine was held"
    kill_engine_and_keeper(recorder.home_cli)
    recorder.finish([job])


def test_a_killed_engine_is_restarted_by_its_keeper(recorder: JobRecorder) -> None:
    """No command is used after the kill: the keeper starts the next engine, which also runs the pending tasks."""
    two_at_a_time(recorder.home_cli)
    jobs = [recorder.job(f"job{number}", code=number, gated=number < 2) for number in range(5)]
    for job in jobs:
        recorder.submit(job)
    wait_until(lambda: all(map(recorder.has_started, jobs[:2])), "the commands")
    before = recorder.home_cli.engine
    recorder.home_cli.kill_engine()
    for job in jobs[:2]:
        recorder.open_gate(job)
    recorder.wait_for_ends(jobs)
    assert recorder.home_cli.engine and recorder.home_cli.engine != before
    recorder.check(jobs)


def test_crashes_with_more_than_ten_minutes_in_between_do_not_exhaust_the_keeper(home_cli: HomeCli, tmp_path: Path) -> None:
    clock, program = tmp_path / "clock", tmp_path / "bin" / "date"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nread -r now <{clock}; echo "$now"\n')
    program.chmod(0o755)
    home_cli.environ["PATH"] = f"{program.parent}:{home_cli.environ['PATH']}"
    task_id = home_cli.run("sleep", "1000")
    (keeper,) = home_cli.processes("backburner-keeper")
    engine = None
    for number in range(22):
        wait_until(lambda: home_cli.engine not in (None, engine), "the next engine")  # noqa: B023
        engine = home_cli.engine
        clock.write_text(f"{1_700_000_000 + number * 700}\n")
        home_cli.kill_engine()
    wait_until(lambda: home_cli.engine not in (None, engine), "the last engine")
    assert home_cli.processes("backburner-keeper") == [keeper]
    home_cli.ok("cancel", task_id)


def test_the_first_list_after_a_crash_is_correct(recorder: JobRecorder) -> None:
    """Engine and keeper are killed and the commands end unobserved: one `list` is enough."""
    recorder.home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 12\n")
    jobs = [recorder.job(f"job{number}", lines=2000, code=number, gated=True) for number in range(12)]
    ids = [recorder.submit(job) for job in jobs]
    wait_until(lambda: all(map(recorder.has_started, jobs)), "the commands")
    kill_engine_and_keeper(recorder.home_cli)
    for job in jobs:
        recorder.open_gate(job)
    wait_until(lambda: all(exit_file(recorder, job) == str(job.code) for job in jobs), "the ends that nobody saw")
    shown = recorder.home_cli.json("list")
    assert isinstance(shown, list)
    assert {one["task_id"]: one["exit_code"] for one in shown} == dict(zip(ids, range(12), strict=True))
    recorder.check(jobs)


def test_status_is_correct_after_engine_and_keeper_were_killed(recorder: JobRecorder) -> None:
    job, other = recorder.job("ended", lines=5000, code=6, gated=True), recorder.job("running", gated=True)
    task_id, other_id = recorder.submit(job), recorder.submit(other)
    wait_until(lambda: recorder.has_started(job) and recorder.has_started(other), "the commands")
    kill_engine_and_keeper(recorder.home_cli)
    recorder.open_gate(job)
    wait_until(lambda: exit_file(recorder, job) == "6", "the end that nobody saw")
    assert recorder.home_cli.status(task_id)["exit_code"] == 6
    assert recorder.home_cli.status(other_id)["status"] == "running"
    recorder.open_gate(other)
    recorder.finish([job, other])


def test_the_first_status_waits_for_a_log_that_takes_long_to_close(recorder: JobRecorder) -> None:
    """Summarizing a large log takes time: the small task next to it must not end the wait early."""
    home_cli, small, gate = recorder.home_cli, recorder.job("small", code=1, gated=True), recorder.home_cli.cwd / "gate"
    os.mkfifo(gate)
    recorder.submit(small)
    large = home_cli.run(
        f"yes 12345 | head -c 60000000; echo printed >{home_cli.cwd}/printed; read x <{gate}; exit 3", options=("--shell",)
    )
    wait_until(lambda: recorder.has_started(small) and (home_cli.cwd / "printed").exists(), "the commands")
    kill_engine_and_keeper(home_cli)
    recorder.open_gate(small)
    gate.write_text("open\n")
    wait_until(lambda: exit_text(str(home_cli.folder(large))) == "3" and exit_file(recorder, small) == "1", "the ends")
    assert home_cli.status(large)["exit_code"] == 3
    recorder.finish([small])


# -- cancelling


def check_cancelled(recorder: JobRecorder, job: Job) -> None:
    """Check that a job is cancelled, with one notice, and that no process of it is left."""
    row = recorder.row(job)
    assert row and (row.state, row.notices, row.starts, row.ends) == ("cancelled", 1, 1, 1), row
    assert recorder.start_count(job) == 1
    assert not processes.members(None, process_tag_of(recorder, job))


def process_tag_of(recorder: JobRecorder, job: Job) -> str:
    return str(
        query(recorder.home_cli, "SELECT r.process_tag FROM runs r JOIN tasks t ON t.task_id = r.task_id WHERE description = ?", job.name)[
            0
        ][0]
    )


def test_a_cancel_is_executed_although_its_command_line_was_killed(recorder: JobRecorder) -> None:
    """The command line is killed when the request is in the ledger, before any process was woken: the next command is enough."""
    job = recorder.job("unwanted", gated=True)
    task_id = recorder.submit(job)
    wait_until(lambda: recorder.has_started(job), "the command")
    wait_until_killed(start_driver(recorder.home_cli, "cli", "after cancel", "cancel", task_id))
    recorder.home_cli.ok("list")
    recorder.wait_for_ends([job], 15)
    check_cancelled(recorder, job)


def test_a_cancel_reaches_an_embedding_program_after_a_kill(recorder: JobRecorder) -> None:
    job = recorder.job("unwanted", gated=True)
    embedder = embed(recorder, "never", 1, [job])
    wait_until(lambda: recorder.has_started(job), "the command")
    row = recorder.row(job)
    assert row
    wait_until_killed(start_driver(recorder.home_cli, "cli", "after cancel", "cancel", row.task_id))
    recorder.home_cli.ok("list")
    try:
        recorder.wait_for_ends([job], 15)
    finally:
        wait_until_killed(embedder, by_us=True)
    check_cancelled(recorder, job)


@pytest.mark.parametrize("point", SETTLING)
def test_a_cancelled_run_is_reported_once_although_its_engine_was_killed(recorder: JobRecorder, point: str) -> None:
    job = recorder.job("unwanted", gated=True)
    engine = start_engine(recorder.home_cli, point)
    task_id = recorder.submit(job)
    wait_until(lambda: recorder.has_started(job), "the command")
    wait_until_killed(start_driver(recorder.home_cli, "cli", "after cancel", "cancel", task_id))
    assert _listens(recorder.home_cli)
    wait_until_killed(engine)
    recorder.home_cli.cli("wait", task_id, "--timeout", "20")
    check_cancelled(recorder, job)


def test_a_cancel_is_executed_by_the_next_engine(recorder: JobRecorder) -> None:
    """The engine is stopped when the cancel is requested, and killed before it could act."""
    job = recorder.job("unwanted", gated=True)
    task_id = recorder.submit(job)
    wait_until(lambda: recorder.has_started(job), "the command")
    recorder.home_cli.freeze_engine()
    wait_until_killed(start_driver(recorder.home_cli, "cli", "after cancel", "cancel", task_id))
    kill_engine_and_keeper(recorder.home_cli)
    recorder.home_cli.ok("list")
    recorder.wait_for_ends([job], 15)
    check_cancelled(recorder, job)


STUBBORN = "trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.05; done"


def start_stubborn_command(home_cli: HomeCli) -> str:
    """A running command that only SIGKILL ends, together with its shim; returns its id."""
    task_id = home_cli.run(STUBBORN, options=("--shell",))
    log = home_cli.folder(task_id) / "output.log"
    wait_until(lambda: log.exists() and b"ready" in log.read_bytes(), "the trap")
    return task_id


def check_stopped(home_cli: HomeCli, task_id: str) -> None:
    """Check that a task is cancelled and that no process of it is left."""
    done = home_cli.status(task_id)
    assert (done["status"], done["result"], done["exit_code"], done["error"]) == ("cancelled", "signal", 137, None)
    assert not processes.members(None, str(query(home_cli, "SELECT process_tag FROM runs WHERE task_id = ?", task_id)[0][0]))
    wait_for_stable_engine(home_cli)


def test_a_killed_run_is_cancelled_although_the_engine_died_before_recording(home_cli: HomeCli) -> None:
    """The engine dies after its SIGKILL and before it wrote the end."""
    home_cli.configure(CONFIG + "[commands]\ncancel_grace_seconds = 0.1\n")
    engine = start_engine(home_cli, "before settle")
    task_id = start_stubborn_command(home_cli)
    wait_until_killed(start_driver(home_cli, "cli", "after cancel", "cancel", task_id))
    assert _listens(home_cli)
    wait_until_killed(engine)
    assert exit_code_file(home_cli, task_id) == "s", "no code was left behind"
    home_cli.cli("wait", task_id, "--timeout", "20")
    check_stopped(home_cli, task_id)


def test_a_run_lost_in_a_reboot_before_its_cancel_is_not_cancelled(home_cli: HomeCli) -> None:
    """Another boot id simulates the reboot: no process ended the command."""
    engine = start_engine(home_cli)
    task_id = start_stubborn_command(home_cli)
    wait_until(lambda: home_cli.status(task_id)["pid"], "the shim's pid in the ledger")
    home_cli.freeze_engine()
    wait_until_killed(start_driver(home_cli, "cli", "after cancel", "cancel", task_id))
    wait_until_killed(engine, by_us=True)
    home_cli.environ["BACKBURNER_BOOT_ID"] = "b" * 32
    home_cli.cli("wait", task_id, "--timeout", "20")
    done = home_cli.status(task_id)
    home_cli.stop_engine()
    assert (done["status"], done["result"]) == ("failed", "lost")
    assert processes.end_all(None, str(query(home_cli, "SELECT process_tag FROM runs WHERE task_id = ?", task_id)[0][0])), "it never knew"


def exit_code_file(home_cli: HomeCli, task_id: str) -> str:
    return exit_text(str(home_cli.folder(task_id)))


def test_no_process_is_left_if_the_engine_dies_between_sigterm_and_sigkill(home_cli: HomeCli) -> None:
    home_cli.configure(CONFIG + "[commands]\ncancel_grace_seconds = 0.5\n")
    task_id = start_stubborn_command(home_cli)
    log = home_cli.folder(task_id) / "output.log"
    wait_until_killed(start_driver(home_cli, "cli", "after cancel", "cancel", task_id))
    home_cli.cli("run", "--", "true")  # wakes the engine
    wait_until(lambda: b"got TERM" in log.read_bytes(), "the first signal")
    kill_engine_and_keeper(home_cli)
    home_cli.cli("wait", task_id, "--timeout", "20")
    check_stopped(home_cli, task_id)


# -- a program that embeds the library


def embed(recorder: JobRecorder, point: str, cap: int, jobs: list[Job]) -> "subprocess.Popen[str]":
    return start_driver(recorder.home_cli, "embed", point, str(cap), feed=[[job.name, recorder.command(job), "user"] for job in jobs])


def test_runs_of_a_killed_embedding_program_are_adopted(recorder: JobRecorder) -> None:
    jobs = [recorder.job(f"job{number}", lines=300, code=number, gated=number < 3) for number in range(8)]
    embedder = embed(recorder, "never", 3, jobs)
    wait_until(lambda: all(map(recorder.has_started, jobs[:3])) and len(recorder.rows()) == 8, "the commands")
    wait_until_killed(embedder, by_us=True)
    assert [row.state for row in recorder.rows()] == ["running"] * 3 + ["pending"] * 5
    for job in jobs[:3]:
        recorder.open_gate(job)
    shown = recorder.home_cli.json("list")
    assert isinstance(shown, list) and len(shown) == 8
    recorder.finish(jobs)


def test_a_running_engine_adopts_from_a_killed_embedding_program(recorder: JobRecorder) -> None:
    """No command is used after the kill."""
    keeps = recorder.job("keeps the engine", gated=True)
    recorder.submit(keeps)
    wait_until(lambda: recorder.has_started(keeps), "the engine's own command")
    jobs = [recorder.job(f"job{number}", code=number, gated=number < 2) for number in range(5)]
    embedder = embed(recorder, "never", 2, jobs)
    wait_until(lambda: all(map(recorder.has_started, jobs[:2])) and len(recorder.rows()) == 6, "the embedder's commands")
    wait_until_killed(embedder, by_us=True)
    for job in (*jobs[:2], keeps):
        recorder.open_gate(job)
    recorder.wait_for_ends([*jobs, keeps])
    recorder.check([*jobs, keeps])


@pytest.mark.parametrize("point", RECORDING)
def test_an_embedding_program_killed_while_recording_loses_nothing(recorder: JobRecorder, point: str) -> None:
    jobs = [recorder.job(f"job{number}", code=number, pause=0.3) for number in range(2)]
    wait_until_killed(embed(recorder, point, 2, jobs))
    recorder.finish(jobs)


@pytest.mark.parametrize("point", ["after insert", *STARTING])
def test_an_embedding_program_killed_at_its_first_command_loses_nothing(recorder: JobRecorder, point: str) -> None:
    job, second = recorder.job("first", code=2), recorder.job("second")
    wait_until_killed(embed(recorder, point, 2, [job, second]))
    recorder.finish([job])
    assert recorder.row(second) is None and not recorder.has_started(second)


@pytest.mark.parametrize("point", SETTLING)
def test_an_embedding_program_killed_while_settling_loses_nothing(recorder: JobRecorder, point: str) -> None:
    jobs = [recorder.job(f"job{number}", code=number) for number in range(6)]
    wait_until_killed(embed(recorder, point, 3, jobs))
    recorder.finish(jobs)


def test_an_engine_killed_after_releasing_a_queue_loses_nothing(recorder: JobRecorder) -> None:
    jobs = [recorder.job(f"job{number}", code=number, gated=number == 0) for number in range(4)]
    embedder = embed(recorder, "never", 1, jobs)
    wait_until(lambda: recorder.has_started(jobs[0]) and len(recorder.rows()) == 4, "the embedder's commands")
    wait_until_killed(embedder, by_us=True)
    wait_until_killed(start_driver(recorder.home_cli, "engine", "after release"))
    recorder.open_gate(jobs[0])
    recorder.finish(jobs)


# -- the shim


def shim_of(recorder: JobRecorder, job: Job) -> ProcessId:
    row = recorder.row(job)
    assert row
    wait_until(lambda: recorder.home_cli.status(row.task_id)["pid"], "the shim's pid in the ledger")
    found = processes.identify(int(str(recorder.home_cli.status(row.task_id)["pid"])))
    assert found
    return found


@pytest.mark.parametrize("engine_too", [False, True], ids=["the engine lives", "the engine is killed first"])
def test_a_command_continues_without_its_shim_and_is_reported_as_lost(recorder: JobRecorder, engine_too: bool) -> None:
    job = recorder.job("shimless", lines=500, gated=True)
    task_id = recorder.submit(job)
    log = str(recorder.home_cli.folder(task_id) / "output.log")
    wait_until(lambda: recorder.has_started(job) and is_locked(log), "the command and the log writer")
    shim = shim_of(recorder, job)
    if engine_too:
        kill_engine_and_keeper(recorder.home_cli)
    processes.send(shim, signal.SIGKILL)
    wait_until(lambda: not processes.is_alive(shim), "the shim to be dead")
    for _ in range(2):
        assert recorder.home_cli.status(task_id)["status"] == "running", "its end must not be reported before it happens"
    assert recorder.start_count(job) == 1
    recorder.open_gate(job)
    recorder.wait_for_ends([job])
    row = recorder.row(job)
    assert row and (row.state, row.result, row.exit_code, row.notices, row.ends) == ("failed", "lost", None, 1, 1)
    assert recorder.start_count(job) == 1, "what is lost is never run again"
    assert recorder.output(task_id) == recorder.expected_output(job)
    notices = recorder.home_cli.json("inbox")
    assert isinstance(notices, list) and len(notices) == 1 and "not observed" in notices[0]["text"]


# -- a log that is being cut


def test_an_engine_killed_after_rewriting_a_log_leaves_a_correct_marker(home_cli: HomeCli) -> None:
    """The next engine finds a finished log that is slightly longer than the cap: it must not cut it again."""
    home_cli.configure(CONFIG + "[commands]\noutput_cap_mb = 1\n")
    gate = home_cli.cwd / "gate"
    os.mkfifo(gate)
    driver = start_engine(home_cli, "log rewritten")
    slowly = "i=0; while [ $i -lt 30 ]; do yes 123456789 | head -c 1000000; sleep 0.03; i=$((i + 1)); done"
    task_id = home_cli.run(f"{slowly}; read n <{gate}; yes | head -c $n", options=("--shell",))
    log = home_cli.folder(task_id) / "output.log"
    wait_until((home_cli.folder(task_id) / ".capped").exists, "the cut")
    header = sum(len(line) + 1 for line in log.read_bytes()[:4096].split(b"\n", 4)[:4])
    more = 8191 - (header + 30_000_000) % 4096  # the most that can follow the last complete block
    gate.write_text(f"{more}\n")
    wait_until_killed(driver)
    home_cli.ok("wait", task_id)
    before, _, rest = home_cli.log(task_id).partition(b"\n[backburner: ")
    left_out, _, behind = rest.partition(b" bytes of output left out here]\n")
    assert len(before) + int(left_out.replace(b",", b"")) + len(behind) == 30_000_000 + more
