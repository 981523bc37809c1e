"""The executor of commands on its own."""

import os
import signal
from pathlib import Path

import pytest

from backburner.core.claims import ClaimedRun
from backburner.core.ports import StartLater
from backburner.core.states import Result
from backburner.execution.command import CommandExecutor
from backburner.execution.output_pipe import LogWriterProcess, OutputPipe, ShimStart
from backburner.system import processes
from backburner.system.home import Home
from backburner.system.run_files import exit_text
from backburner.testing import records


async def test_the_pipe_of_a_start_that_never_happened_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipes: list[OutputPipe] = []

    def start(self: LogWriterProcess, pipe: OutputPipe, *_: object) -> bool:
        """Accept the request as a log writer does that is killed then."""
        self._pipes[pipe.inode], pipe.start = pipe, ShimStart()
        pipes.append(pipe)
        return True

    monkeypatch.setattr(LogWriterProcess, "start", start)
    executor = CommandExecutor(Home(str(tmp_path / "home")).make(), 1 << 20)
    run = records.run(folder="tasks/task_x", process_tag="x", trace_id="1" * 32, span_id="2" * 16, owner=processes.myself())
    command = executor.launch(ClaimedRun(records.task("task_x", ("true",), cwd=str(tmp_path)), run, {"PATH": os.defpath}))
    executor.log_writer._on_end()
    with pytest.raises(StartLater, match="a process of Backburner was killed before it had started the command"):
        await command.ended()
    assert pipes[0].reader < 0 and not executor.log_writer._pipes
    executor.close()


async def test_a_command_whose_shim_is_killed_before_it_has_begun_is_started_again(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home")).make()
    for number in range(500):  # the shim may be faster
        executor = CommandExecutor(home, 1 << 20)  # without a log writer yet, so that it starts the shim itself
        task_id, started = f"task_{number}", tmp_path / f"started{number}"
        run = records.run(folder=f"tasks/{task_id}", process_tag=task_id, trace_id="1" * 32, span_id="2" * 16, owner=processes.myself())
        command = executor.launch(ClaimedRun(records.task(task_id, ("touch", str(started)), cwd=str(tmp_path)), run, {"PATH": os.defpath}))
        assert command.process
        os.kill(command.process.pid, signal.SIGKILL)
        try:
            assert (await command.ended()).result in (Result.EXIT, Result.LOST) and exit_text(executor.folder(run))
        except StartLater:
            assert not exit_text(executor.folder(run)) and not started.exists()
            return
        finally:
            executor.close()
    pytest.fail("every shim had begun")
