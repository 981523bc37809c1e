"""A clock that is changed while commands run: no run ends before its start, nothing is killed, every end is reported."""

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from conftest import HomeCli, caller, wait_until
from recorder import JobRecorder, change, query, wait_for_stable_engine

from backburner.execution.command import CommandExecutor
from backburner.execution.runner import Runner
from backburner.services.app import open_app
from backburner.system import processes
from backburner.system.home import Home
from backburner.testing.records import request

HOUR, DAY = 3_600_000, 86_400_000


class ShiftedClock:
    """A clock with an offset that a test can change."""

    def __init__(self) -> None:
        self.offset = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset


@pytest.mark.parametrize("jump", [-DAY, -1, HOUR, 400 * DAY], ids=["a day back", "a moment back", "an hour on", "a year on"])
async def test_no_run_ends_before_its_start_when_the_clock_changes(tmp_path: Path, jump: int) -> None:
    home, clock, changed = Home(str(tmp_path / "home")), ShiftedClock(), asyncio.Event()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    mine = f"{processes.myself()}:clock"
    with open_app(home, runner=mine) as app:
        app.clock = clock
        executor = CommandExecutor(home, 1 << 20)
        runner = Runner(
            app._ledger.runs,
            app._ledger.queries,
            executor,
            home,
            clock,
            runner=mine,
            owner=processes.myself(),
            cap=1,
            grace=1.0,
            changed=changed.set,
        )
        line = request((f"read x <{gate}; exit 3",), str(tmp_path), dict(os.environ), shell=True, timeout_ms=60_000)
        entry = app.submissions.submit(line, caller(app), approved_via="library")
        runner.tick()
        with open(await asyncio.to_thread(os.open, gate, os.O_WRONLY), "w") as opened:  # the command waits at its gate
            clock.offset = jump
            opened.write("open\n")
        async with asyncio.timeout(20):
            while runner.busy:
                changed.clear()
                await changed.wait()
        done = app._ledger.queries.get(entry.task.task_id)
        executor.close()
    assert done and done.run and done.run.started_at is not None and done.run.ended_at is not None
    assert (done.status, done.run.end.result, done.run.end.exit_code) == ("failed", "exit", 3), "the jump was taken for a timeout"
    assert done.run.ended_at >= done.run.started_at
    result = json.loads((Path(home.folder(done.run.folder)) / "result.json").read_text())
    assert result["duration_seconds"] >= 0
    if jump < -1000:
        assert result["duration_seconds"] == 0


def test_a_run_that_started_with_a_clock_ahead_ends_correctly(home_cli: HomeCli) -> None:
    """The clock was a day ahead when the run started, and was corrected while the engine was dead."""
    recorder = JobRecorder(home_cli)
    job = recorder.job("tomorrow", code=2, gated=True)
    task_id = recorder.submit(job)
    wait_until(lambda: recorder.has_started(job), "the command")
    home_cli.kill_engine()
    change(home_cli, "UPDATE runs SET created_at = created_at + ?, started_at = started_at + ? WHERE task_id = ?", DAY, DAY, task_id)
    recorder.open_gate(job)
    recorder.finish([job])
    ((started, ended, notices),) = query(
        home_cli, "SELECT started_at, ended_at, (SELECT count(*) FROM notices) FROM runs WHERE task_id = ?", task_id
    )
    assert ended == started and notices == 1
    shown = home_cli.status(task_id)
    assert (shown["status"], shown["exit_code"], shown["duration_seconds"]) == ("failed", 2, 0)
    assert home_cli.ok("list") and home_cli.ok("status", task_id)
    wait_for_stable_engine(home_cli)
