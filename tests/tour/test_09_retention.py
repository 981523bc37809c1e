"""Chapter 9: how long ended tasks are kept, and how to remove them."""

import asyncio
from pathlib import Path

from conftest import HomeCli, wait_until

from backburner import TaskRunner, TaskStatus, TaskStorage


def test_clear_removes_ended_tasks_with_their_folders(home_cli: HomeCli) -> None:
    """A running task is never removed."""
    ended = str(home_cli.finish("true")["task_id"])
    running = home_cli.run("sleep", "600")
    assert home_cli.json("clear", "--ended") == {"cleared": [ended]}
    assert not home_cli.folder(ended).exists() and home_cli.cli("status", ended).returncode == 4
    assert home_cli.cli("clear", running).returncode == 2 and home_cli.folder(running).exists()
    home_cli.ok("cancel", running)


def test_compact_removes_old_runs_of_recurring_tasks_except_the_latest(home_cli: HomeCli) -> None:
    """The task itself stays active."""
    home_cli.ok("add", "job", "--every", "1h", "--", "true")
    for count in (1, 2, 3):
        home_cli.ok("run-now", "job")
        wait_until(lambda count=count: _completed_runs(home_cli) == count, f"run {count}")
    home_cli.ok("compact", "job", "--days", "0")
    assert _completed_runs(home_cli) == 1 and len(list((home_cli.root / "tasks").iterdir())) == 1
    assert home_cli.status("job")["status"] == "active"


async def test_an_embedded_runner_removes_tasks_older_than_a_number_of_days(tmp_path: Path) -> None:
    """The engine does the same automatically after `commands.retention_days`, unless `commands.auto_cleanup` is off."""
    runner = TaskRunner(TaskStorage(tmp_path / "tasks"))
    task_id = await runner.start_task(["true"], str(tmp_path), "Short", approved_by="user")
    async with asyncio.timeout(20):
        while runner.get_status(task_id).status in (TaskStatus.PENDING, TaskStatus.RUNNING):
            await asyncio.sleep(0.01)
    assert await runner.cleanup(retention_days=7) == 0
    assert await runner.cleanup(retention_days=0) == 1
    assert not runner.list_tasks()
    await runner.close()


def _completed_runs(home_cli: HomeCli) -> int:
    runs = home_cli.status("job")["runs"]
    assert isinstance(runs, list)
    return sum(run["status"] == "completed" for run in runs)
