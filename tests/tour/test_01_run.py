"""Chapter 1: start a command in the background, wait for it, and cancel it.

The tour is a tutorial: read the chapters from 01 to 09, and each from top to bottom. `home_cli` is a fresh home with a project folder;
`home_cli.ok(...)` runs `backburner ...` as a separate process and returns what it printed.
"""

import asyncio
from pathlib import Path

import pytest
from conftest import HomeCli, wait_until

from backburner import Backburner, BackburnerSync, TaskRunner, TaskStatus, TaskStorage, WaitTimedOut


def test_run_prints_the_task_id_and_wait_waits_for_the_end(home_cli: HomeCli) -> None:
    """`run` returns at once. Its only output is the ID of the new task, so that scripts can use it."""
    task_id = home_cli.ok("run", "--name", "greeting", "--", "echo", "hello").strip()
    assert task_id.startswith("task_") and task_id.endswith("_greeting")

    home_cli.ok("wait", "greeting")  # a label, a unique part of the ID, or `last` also identify a task
    status = home_cli.status(task_id)
    assert (status["status"], status["exit_code"]) == ("completed", 0)


def test_run_with_wait_prints_the_output_and_exits_with_the_exit_code_of_the_command(home_cli: HomeCli) -> None:
    """`run --wait` behaves like the command itself."""
    done = home_cli.cli("run", "--wait", "--yes", "--", "sh", "-c", "echo out; exit 7")
    assert (done.stdout, done.returncode) == ("out\n", 7)


def test_cancel_returns_when_no_process_of_the_command_is_left(home_cli: HomeCli) -> None:
    """Cancelling also ends the processes that the command started."""
    task_id = home_cli.run("sh", "-c", "sleep 601 & sleep 602")
    wait_until(lambda: home_cli.processes("601") and home_cli.processes("602"), "both processes to start")
    home_cli.ok("cancel", task_id)
    assert not home_cli.processes("601") and not home_cli.processes("602")
    assert home_cli.status(task_id)["status"] == "cancelled"


def test_a_command_keeps_running_when_the_engine_is_killed(home_cli: HomeCli) -> None:
    """The engine is the background process that starts commands. The next one takes running commands over."""
    task_id = home_cli.run("sh", "-c", "read answer; echo got $answer; exit 5", options=("--stdin",))
    wait_until(lambda: home_cli.status(task_id)["status"] == "running", "the command to run")
    home_cli.kill_engine()
    home_cli.ok("send", task_id, "yes")
    home_cli.cli("wait", task_id)
    status = home_cli.status(task_id)
    assert (status["status"], status["exit_code"], home_cli.log(task_id)) == ("failed", 5, b"got yes\n")


async def test_python_programs_use_the_same_operations(home_cli: HomeCli) -> None:
    """`Backburner` is for programs with an event loop."""
    async with Backburner.open(home_cli.root) as bb:
        entry = await bb.submit(["echo", "hello"], cwd=home_cli.cwd, description="Say hello")
        assert entry.status == "pending"  # stored on disk, and the engine was woken

        (entry,) = await bb.wait(entry.task.task_id)
        assert entry.status == "completed" and entry.run and entry.run.end.exit_code == 0
        assert await bb.tail(entry.task.task_id) == "hello\n"


async def test_many_tasks_can_be_started_at_once(home_cli: HomeCli) -> None:
    """Tasks above the limit of concurrent commands wait in order."""
    async with Backburner.open(home_cli.root) as bb:
        entries = await asyncio.gather(*(bb.submit(["sleep", "0.1"], cwd=home_cli.cwd) for _ in range(12)))
        ids = [entry.task.task_id for entry in entries]
        assert len(set(ids)) == 12
        assert {entry.status for entry in await bb.wait(*ids)} == {"completed"}


async def test_waiting_can_have_a_timeout(home_cli: HomeCli) -> None:
    """The timeout ends the waiting, not the command."""
    async with Backburner.open(home_cli.root) as bb:
        entry = await bb.submit(["sleep", "600"], cwd=home_cli.cwd)
        with pytest.raises(WaitTimedOut):
            await bb.wait(entry.task.task_id, timeout=0.2)
        assert (await bb.cancel(entry.task.task_id)).status == "cancelled"


async def test_events_can_be_followed(home_cli: HomeCli) -> None:
    """Every change of a task leaves an event."""
    async with Backburner.open(home_cli.root) as bb:
        entry = await bb.submit(["true"], cwd=home_cli.cwd)
        kinds = []
        async for event in bb.events():
            kinds.append(event.kind)
            if event.kind == "run_completed":
                break
        assert kinds == ["task_submitted", "run_started", "task_done", "run_completed"]
        assert (await bb.get(entry.task.task_id)).status == "completed"


def test_scripts_use_the_synchronous_client(home_cli: HomeCli) -> None:
    """`BackburnerSync` has the same methods without `await`."""
    with BackburnerSync.open(home_cli.root) as bb:
        entry = bb.submit("echo 'two words'", cwd=home_cli.cwd, name="greeting")
        bb.wait(entry.task.task_id)
        assert bb.tail("greeting") == "two words\n"
        assert bb.clear(ended=True) == [entry.task.task_id]
        assert not bb.list()


async def test_a_program_can_run_commands_without_an_engine(tmp_path: Path) -> None:
    """`TaskRunner` runs commands in the event loop of your own program."""
    runner = TaskRunner(TaskStorage(tmp_path / "tasks"), max_concurrent=2)
    task_id = await runner.start_task(["echo", "mine"], str(tmp_path), "In my own loop", approved_by="user")
    async with asyncio.timeout(20):
        while runner.get_status(task_id).status in (TaskStatus.PENDING, TaskStatus.RUNNING):
            await asyncio.sleep(0.01)
    assert runner.get_status(task_id).exit_code == 0
    await runner.close()
