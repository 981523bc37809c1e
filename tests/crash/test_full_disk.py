"""A home on a full disk: commands continue and keep their exit codes, the ledger stays consistent, and ends are reported later."""

import asyncio
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from conftest import CONFIG, HomeCli, caller, wait_until
from recorder import JobRecorder, query, wait_for_stable_engine

from backburner.execution.command import CommandExecutor
from backburner.execution.runner import Runner
from backburner.services.app import now_ms, open_app
from backburner.system import processes
from backburner.system.home import Home
from backburner.system.run_files import exit_text
from backburner.testing.records import request

MEGABYTES = 8
BALLAST = 2 << 20
INODES = 400


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The home as a file system of eight megabytes. Request it before `home_cli`, which writes to it."""
    home = tmp_path / "home"
    home.mkdir()
    as_root = [] if os.getuid() == 0 else ["sudo", "-n"]
    options = f"size={MEGABYTES}m,nr_inodes={INODES},mode=700,uid={os.getuid()},gid={os.getgid()}"
    subprocess.run([*as_root, "mount", "-t", "tmpfs", "-o", options, "backburner-test", str(home)], check=True, timeout=30)
    yield home
    subprocess.run([*as_root, "umount", "-l", str(home)], check=True, timeout=30)  # lazily, because a failed test may have left it busy


@pytest.fixture
def recorder(small_disk: Path, home_cli: HomeCli) -> Iterator[JobRecorder]:
    yield JobRecorder(home_cli)
    wait_for_stable_engine(home_cli)


def free(home_cli: HomeCli) -> int:
    found = os.statvfs(home_cli.root)
    return found.f_bavail * found.f_frsize


def fill(path: Path) -> None:
    """Use all remaining space, to the last byte."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 16, 4096, 64, 1):
            while True:
                try:
                    os.write(descriptor, b"\0" * size)
                except OSError:
                    break
    finally:
        os.close(descriptor)


def use_up_inodes(folder: Path) -> None:
    """Create empty files until no more can be created."""
    folder.mkdir()
    for number in range(INODES):
        try:
            (folder / str(number)).touch()
        except OSError:
            return


def delayed(home_cli: HomeCli) -> list[str]:
    """Why claimed runs have not started yet."""
    return [row[0] for row in query(home_cli, "SELECT error FROM runs WHERE state = 'running' AND error IS NOT NULL")]


def test_a_command_that_fills_the_disk_waits_for_space_and_loses_nothing(recorder: JobRecorder) -> None:
    home_cli = recorder.home_cli
    ballast, proof = home_cli.root / "ballast", home_cli.cwd / "proof"
    ballast.write_bytes(b"\0" * 3 * BALLAST)
    line = f"yes 123456789 | head -c 4000000; echo $? >{proof}; echo the end; exit 7"
    task_id = home_cli.run(line, options=("--shell",))
    wait_until(lambda: free(home_cli) == 0, "the disk to be full")
    engine = home_cli.engine
    assert home_cli.status(task_id)["status"] == "running" and not proof.exists()
    ballast.unlink()
    home_cli.cli("wait", task_id, "--timeout", "30")
    done = home_cli.status(task_id)
    assert (done["status"], done["exit_code"], done["result"], done["error"]) == ("failed", 7, "exit", None)
    assert proof.read_text() == "0\n", "the command was cut off by a broken pipe"
    assert home_cli.log(task_id) == b"123456789\n" * 400_000 + b"the end\n"
    assert engine and home_cli.engine == engine, "the engine continued"
    assert query(home_cli, "PRAGMA integrity_check") == [("ok",)]
    assert query(home_cli, "SELECT count(*) FROM notices WHERE task_id = ?", task_id) == [(1,)]


def test_a_log_writer_killed_on_a_full_disk_loses_nothing(recorder: JobRecorder) -> None:
    home_cli = recorder.home_cli
    ballast = home_cli.root / "ballast"
    ballast.write_bytes(b"\0" * 3 * BALLAST)
    task_id = home_cli.run("yes 123456789 | head -c 4000000; echo the end", options=("--shell",))
    wait_until(lambda: free(home_cli) == 0, "the disk to be full")
    for _ in range(5):
        wait_until(lambda: home_cli.log_writers, "a log writer")
        for process_id in home_cli.log_writers:
            processes.send(process_id, signal.SIGKILL)
    home_cli.kill_engine()
    ballast.unlink()
    home_cli.cli("wait", task_id, "--timeout", "30")
    assert home_cli.status(task_id)["status"] == "completed"
    assert home_cli.log(task_id) == b"123456789\n" * 400_000 + b"the end\n"


def test_ends_on_a_full_disk_are_recorded_when_there_is_space(recorder: JobRecorder) -> None:
    home_cli = recorder.home_cli
    jobs = [recorder.job(f"job{number}", lines=20, code=number, gated=True) for number in range(4)]
    ids = [recorder.submit(job) for job in jobs]
    wait_until(lambda: all(map(recorder.has_started, jobs)), "the commands")
    fill(home_cli.root / "ballast")
    for job in jobs:
        recorder.open_gate(job)
    wait_until(lambda: all(exit_text(str(home_cli.folder(one))).isdigit() for one in ids), "the exit files")
    shown = home_cli.cli("list", "--json")
    assert shown.returncode in (0, 1) and "Traceback" not in shown.stderr
    (home_cli.root / "ballast").unlink()
    recorder.wait_for_ends(jobs)
    states = {row.name: (row.state, row.result, row.exit_code, row.notices, row.ends) for row in recorder.rows()}
    assert states == {job.name: ("failed" if job.code else "completed", "exit", job.code, 1, 1) for job in jobs}
    assert [recorder.start_count(job) for job in jobs] == [1] * 4
    assert query(home_cli, "PRAGMA integrity_check") == [("ok",)]


def test_an_engine_killed_on_a_full_disk_loses_no_exit_code(recorder: JobRecorder) -> None:
    home_cli = recorder.home_cli
    jobs = [recorder.job(f"job{number}", lines=0, code=number, gated=True) for number in range(3)]
    ids = [recorder.submit(job) for job in jobs]
    wait_until(lambda: all(map(recorder.has_started, jobs)), "the commands")
    fill(home_cli.root / "ballast")
    home_cli.kill_engine()
    for job in jobs:
        recorder.open_gate(job)
    wait_until(lambda: all(exit_text(str(home_cli.folder(one))).isdigit() for one in ids), "the exit files")
    shown = home_cli.cli("status", ids[0])
    assert "Traceback" not in shown.stderr
    (home_cli.root / "ballast").unlink()
    home_cli.cli("wait", *ids, "--timeout", "60")
    assert {row.name: (row.exit_code, row.notices) for row in recorder.rows()} == {job.name: (job.code, 1) for job in jobs}
    assert [recorder.start_count(job) for job in jobs] == [1] * 3


@pytest.mark.parametrize("room", [False, True], ids=["nothing fits", "only the ledger's rows fit"])
def test_a_submission_refused_on_a_full_disk_never_runs(recorder: JobRecorder, room: bool) -> None:
    """A refused submission leaves nothing behind, and a returned id stays in the ledger."""
    home_cli = recorder.home_cli
    for _ in range(4 if room else 1):
        home_cli.finish("true")
    if room:
        ledger = apsw.Connection(str(home_cli.root / "ledger.db"))
        ledger.execute("PRAGMA wal_checkpoint(RESTART)")  # so that the pages of the log, which are on disk already, are reused
        ledger.close()
    fill(home_cli.root / "ballast")
    jobs = [recorder.job(f"job{number}", lines=5) for number in range(5)]
    submissions = [home_cli.cli("run", "--yes", "--description", job.name, "--", *recorder.command(job)) for job in jobs]
    (home_cli.root / "ballast").unlink()
    after = recorder.job("after", lines=5)
    recorder.submit(after)
    recorder.wait_for_ends([after])
    home_cli.cli("wait", *(row.task_id for row in recorder.rows()), "--timeout", "30")
    for job, submission in zip(jobs, submissions, strict=True):
        assert "Traceback" not in submission.stderr, submission.stderr
        accepted = submission.returncode == 0
        assert (recorder.row(job) is not None) == accepted, (job.name, submission.returncode, submission.stderr)
        assert recorder.start_count(job) <= accepted, f"{job.name} was refused and ran all the same"
    assert query(home_cli, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("what", ["space", "inodes"])
def test_a_pending_run_on_a_full_disk_waits_and_then_runs_once(recorder: JobRecorder, what: str) -> None:
    home_cli = recorder.home_cli
    home_cli.configure(CONFIG + "[commands]\nmax_concurrent = 2\n")
    before = [recorder.job(f"before{number}", gated=True) for number in range(2)]
    jobs = [recorder.job(f"job{number}", lines=5, code=number % 2) for number in range(6)]
    for job in before:
        recorder.submit(job)
    wait_until(lambda: all(map(recorder.has_started, before)), "the commands")
    ids = [recorder.submit(job) for job in jobs]
    ballast = home_cli.root / "ballast"
    if what == "space":
        ledger = apsw.Connection(str(home_cli.root / "ledger.db"))
        ledger.execute("PRAGMA wal_checkpoint(RESTART)")  # so that the pages of the log, which are on disk already, are reused
        ledger.close()
        fill(ballast)
    else:
        use_up_inodes(ballast)
    for job in before:
        recorder.open_gate(job)
    wait_until(lambda: delayed(home_cli), "a start that has to wait")
    assert set(delayed(home_cli)) == {"No space left on device"}
    wait_until(lambda: query(home_cli, "SELECT 1 FROM events WHERE kind = 'run_delayed'"), "the event about it")
    first = query(home_cli, "SELECT task_id FROM events WHERE kind = 'run_delayed'")[0][0]
    assert "No space left on device" in str(home_cli.status(first)["waits_for"])
    assert "No space left on device" in str(home_cli.status(ids[-1])["waits_for"])
    found = home_cli.cli("doctor").stdout
    assert first in found and "No space left on device" in found and "without a process" not in found
    assert not any(map(recorder.has_started, jobs))
    home_cli.cli("cancel", ids[-1])  # it may fail to wait for the end without space, but the request is in the ledger
    home_cli.cli("cancel", first)
    if what == "space":
        ballast.unlink()
    else:
        shutil.rmtree(ballast)
    rest = [job for job, task_id in zip(jobs, ids, strict=True) if task_id not in (first, ids[-1])]
    recorder.wait_for_ends(jobs)
    recorder.check(rest)
    assert [recorder.start_count(job) for job in before] == [1, 1]
    assert {row.state for row in recorder.rows() if row.task_id in (first, ids[-1])} == {"cancelled"}
    assert query(home_cli, "SELECT channel FROM notices WHERE text LIKE '%No space left on device%'") == [("inbox",)]
    assert query(home_cli, "SELECT count(*) FROM events WHERE kind = 'run_delayed'") == [(1,)]


class ExecutorWithoutCapacity(CommandExecutor):
    """The system refuses to start a process, for a temporary reason."""

    number, tries = 0, 0

    def _spawn(self, *words: Any) -> Any:
        self.tries += 1
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        return super()._spawn(*words)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EAGAIN])
async def test_a_start_without_capacity_is_retried_for_one_run_at_a_time(tmp_path: Path, number: int) -> None:
    home, changed, mine = Home(str(tmp_path / "home")), asyncio.Event(), f"{processes.myself()}:room"
    with open_app(home, runner=mine) as app:
        executor = ExecutorWithoutCapacity(home, 1 << 20)
        executor.number = number
        runner = Runner(
            app._ledger.runs,
            app._ledger.queries,
            executor,
            home,
            now_ms,
            runner=mine,
            owner=processes.myself(),
            cap=3,
            grace=1.0,
            changed=changed.set,
        )
        line = request((f"echo ran >>{tmp_path}/proof",), str(tmp_path), dict(os.environ), shell=True, timeout_ms=60_000)
        ids = [app.submissions.submit(line, caller(app), approved_via="library").task.task_id for _ in range(5)]
        runner.tick()
        assert executor.tries == 3, "as many as there are places were claimed"
        async with asyncio.timeout(20):
            while executor.tries < 4:
                changed.clear()
                await changed.wait()
        runner.tick()
        assert executor.tries == 4, "one of them was tried again, and nothing else was claimed"
        executor.number = 0
        async with asyncio.timeout(20):
            while runner.busy:
                changed.clear()
                await changed.wait()
        await runner.stop()
        executor.close()
        assert [app.queries.find(task_id, caller(app)).status for task_id in ids] == ["completed"] * 5
    assert (tmp_path / "proof").read_text() == "ran\n" * 5
