"""The library as a program would use it: one `TaskRunner` in one event loop, which rests between two calls."""

import asyncio
from pathlib import Path

from backburner import TaskRunner, TaskStatus, TaskStorage

_LOOK_SECONDS = 0.003


class Library:
    """Starts commands below one home and waits for their ends."""

    def __init__(self, home: Path, cwd: Path, concurrent: int = 5) -> None:
        self._loop = asyncio.new_event_loop()
        self._storage = TaskStorage(home / "tasks")
        self._runner = TaskRunner(self._storage, max_concurrent=concurrent)
        self._cwd = str(cwd)

    def __enter__(self) -> "Library":
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._runner.close())
        self._loop.close()

    def run(self, command: list[str], count: int = 1) -> list[Path]:
        """Start a command so many times and see all of them to their ends; their folders."""
        return self._loop.run_until_complete(self._run(command, count))

    def check(self, count: int) -> None:
        """Nothing but so many commands that completed; to be asked after the clock was stopped."""
        states = [str(task.status) for task in self._runner.list_tasks()]
        assert states == ["completed"] * count, states

    async def _run(self, command: list[str], count: int) -> list[Path]:
        started = [await self._runner.start_task(command, self._cwd, "", approved_by="user") for _ in range(count)]
        folders = [self._storage.base_path / task_id for task_id in started]
        # The files of an end come just before its row: they say when it is worth while to ask the ledger.
        for folder in folders:
            while not (folder / "result.json").exists():
                await asyncio.sleep(_LOOK_SECONDS)
        while self._runner.list_tasks(TaskStatus.RUNNING) or self._runner.list_tasks(TaskStatus.PENDING):
            await asyncio.sleep(_LOOK_SECONDS)
        return folders
