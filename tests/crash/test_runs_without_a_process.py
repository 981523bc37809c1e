"""A run in the state running has a process, or an owner that watches it; a run with neither is found and ended."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HomeCli, caller, wait_until
from recorder import JobRecorder, change, query, wait_for_stable_engine

from backburner.core.claims import ClaimedRun
from backburner.core.models import Entry
from backburner.execution.command import Command, CommandExecutor
from backburner.execution.runner import Runner
from backburner.services.app import now_ms, open_app
from backburner.system import processes
from backburner.system.home import Home
from backburner.testing.records import request


@pytest.fixture
def recorder(home_cli: HomeCli) -> Iterator[JobRecorder]:
    yield JobRecorder(home_cli)
    wait_for_stable_engine(home_cli)


def test_an_event_during_a_run_gets_its_own_run(home_cli: HomeCli) -> None:
    gate, watched = home_cli.cwd / "gate", home_cli.cwd / "status.txt"
    os.mkfifo(gate)
    watched.write_text("one\n")
    home_cli.ok("add", "watch", "--on", f"file:{watched}", "--", "cat", str(gate))

    def seen() -> int:
        return query(home_cli, "SELECT count(*) FROM events WHERE kind = 'source_event'")[0][0]

    def states() -> list[str]:
        return [row[0] for row in query(home_cli, "SELECT state FROM runs ORDER BY seq")]

    def opened() -> bool:
        """Release a process that waits at the gate; False if none does."""
        try:
            descriptor = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        os.close(descriptor)
        return True

    wait_until(lambda: query(home_cli, "SELECT 1 FROM source_states WHERE state <> '{}'"), "the source to be watched", 60)
    watched.write_text("two\n")
    wait_until(lambda: states() == ["running"], "the first run", 60)
    watched.write_text("three, while it runs\n")
    wait_until(lambda: seen() == 2, "the second event", 60)
    wait_until(opened, "the first run at its gate")
    wait_until(lambda: states() == ["completed", "running"], "the run of the event that waited", 60)
    wait_until(opened, "the second run at its gate")
    wait_until(lambda: states() == ["completed", "completed"], "its end", 60)
    home_cli.ok("cancel", "watch")
    home_cli.stop_all()


class FailingExecutor(CommandExecutor):
    """Fails with an unexpected error, before or after the command was started."""

    before = after = False

    def launch(self, work: ClaimedRun) -> Command:
        if self.before:
            raise RuntimeError("unexpected error")
        command = super().launch(work)
        if self.after:
            raise RuntimeError("unexpected error")
        return command


async def run_to_the_end(tmp_path: Path, line: str, *, before: bool = False, after: bool = False) -> Entry:
    """Run one command with a failing executor; returns its task."""
    home, changed = Home(str(tmp_path / "home")), asyncio.Event()
    mine = f"{processes.myself()}:failing"
    with open_app(home, runner=mine) as app:
        executor = FailingExecutor(home, 1 << 20)
        executor.before, executor.after = before, after
        owner = processes.myself()
        runner = Runner(
            app._ledger.runs, app._ledger.queries, executor, home, now_ms, runner=mine, owner=owner, cap=1, grace=1.0, changed=changed.set
        )
        asked = request((line,), str(tmp_path), dict(os.environ), shell=True)
        entry = app.submissions.submit(asked, caller(app), approved_via="library")
        runner.tick()
        async with asyncio.timeout(20):
            while runner.busy:
                changed.clear()
                await changed.wait()
        await runner.stop()
        executor.close()
        return app.queries.find(entry.task.task_id, caller(app))


async def test_an_unexpected_error_at_the_start_ends_the_run_with_its_text(tmp_path: Path) -> None:
    done = await run_to_the_end(tmp_path, f"echo ran >{tmp_path}/proof", before=True)
    assert done.run and (done.status, done.run.end.result) == ("failed", "unstarted")
    assert "unexpected error" in str(done.run.error)
    assert not (tmp_path / "proof").exists()


async def test_a_command_started_before_an_error_is_watched_to_its_end(tmp_path: Path) -> None:
    done = await run_to_the_end(tmp_path, f"echo ran >>{tmp_path}/proof; exit 3", after=True)
    assert done.run and (done.status, done.run.end.result, done.run.end.exit_code) == ("failed", "exit", 3)
    assert (tmp_path / "proof").read_text() == "ran\n"


@pytest.mark.parametrize("begun", [True, False], ids=["it had begun", "it never began"])
def test_an_unwatched_run_of_this_engine_is_found_in_the_next_pass(recorder: JobRecorder, begun: bool) -> None:
    """The row of a delayed run is changed so that the running engine seems to own it."""
    home_cli = recorder.home_cli
    keeps, forgotten = recorder.job("keeps the engine", gated=True), recorder.job("forgotten")
    recorder.submit(keeps)
    wait_until(lambda: recorder.has_started(keeps), "the engine's own command")
    task_id = home_cli.run(*recorder.command(forgotten), options=("--description", forgotten.name, "--in", "1h"))
    if begun:
        home_cli.folder(task_id).mkdir(exist_ok=True)
        (home_cli.folder(task_id) / ".exit").write_text("s   ")
    owned = "state = 'running', owner = ?, started_at = created_at, due_at = NULL"
    change(home_cli, f"UPDATE runs SET {owned} WHERE task_id = ?", str(home_cli.engine), task_id)
    home_cli.run("true")  # wakes the engine
    recorder.wait_for_ends([forgotten])
    row = recorder.row(forgotten)
    assert row and (row.state, row.result) == (("failed", "lost") if begun else ("completed", "exit"))
    assert recorder.start_count(forgotten) == (0 if begun else 1)
    recorder.open_gate(keeps)
    recorder.finish([keeps])
