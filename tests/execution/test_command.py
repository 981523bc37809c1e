"""The executor of commands on its own."""

import os
from pathlib import Path

import pytest

from backburner.core.claims import ClaimedRun
from backburner.core.ports import StartLater
from backburner.execution.command import CommandExecutor
from backburner.execution.output_pipe import LogWriterProcess, OutputPipe, ShimStart
from backburner.system import processes
from backburner.system.home import Home
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
    with pytest.raises(StartLater, match="the log writer was killed before it started the command"):
        await command.ended()
    assert pipes[0].reader < 0 and not executor.log_writer._pipes
    executor.close()
