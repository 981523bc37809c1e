"""The library as used by a program: one `TaskRunner` in one event loop, which only runs during calls."""

import asyncio
import time
from pathlib import Path

from backburner import TaskRunner, TaskStatus, TaskStorage

_POLL_INTERVAL = 0.003  # seconds
_RARE_POLL_INTERVAL = 0.05  # seconds, where the time of day does not count


class Library:
    """Starts commands in one home and waits until they have ended."""

    def __init__(self, home: Path, cwd: Path, concurrent: int = 5, *, polls_rarely: bool = False) -> None:
        self._loop = asyncio.new_event_loop()
        self._storage = TaskStorage(home / "tasks")
        self._runner = TaskRunner(self._storage, max_concurrent=concurrent)
        self._cwd = str(cwd)
        self._interval = _RARE_POLL_INTERVAL if polls_rarely else _POLL_INTERVAL
        self.submitted_at = 0  # nanoseconds, of the last `run`

    def __enter__(self) -> "Library":
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._runner.close())
        self._loop.close()

    def run(self, command: list[str], count: int = 1, *, approved_by: str = "user") -> list[Path]:
        """Start a command `count` times and wait for all of them. Return their folders. With "auto" the gate decides."""
        return self._loop.run_until_complete(self._run(command, count, approved_by))

    def check(self, count: int) -> None:
        """Check that exactly `count` commands completed. Call this after the time measurement."""
        states = [str(task.status) for task in self._runner.list_tasks()]
        assert states == ["completed"] * count, states

    async def _run(self, command: list[str], count: int, approved_by: str) -> list[Path]:
        self.submitted_at = time.time_ns()
        started = [await self._runner.start_task(command, self._cwd, "", approved_by=approved_by) for _ in range(count)]
        folders = [self._storage.base_path / task_id for task_id in started]
        # The result file is written just before the row in the ledger. Polling it is cheaper than querying the ledger.
        for folder in folders:
            while not (folder / "result.json").exists():
                await asyncio.sleep(self._interval)
        while self._runner.list_tasks(TaskStatus.RUNNING) or self._runner.list_tasks(TaskStatus.PENDING):
            await asyncio.sleep(self._interval)
        return folders
