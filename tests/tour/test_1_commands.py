"""A tour of background commands through the public API: read it from the top."""

import asyncio
from pathlib import Path

import pytest
from conftest import Place

from backburner import ApprovalRequired, Backburner, BackburnerSync, TaskRunner, TaskStatus, TaskStorage, WaitTimedOut


async def test_start_something_go_on_talking_and_be_told(place: Place) -> None:
    async with Backburner.open(place.root) as bb:
        entry = await bb.submit(["echo", "hello"], cwd=place.cwd, description="Say hello")
        assert entry.status == "pending"  # stored, on disk, and the engine has been woken

        (entry,) = await bb.wait(entry.task.task_id)
        assert entry.status == "completed" and entry.run and entry.run.end.exit_code == 0
        assert await bb.tail(entry.task.task_id) == "hello\n"

        (notice,) = await bb.notices()
        assert notice.text.startswith(f"Background task {entry.task.task_id} completed: hello.")
        await bb.acknowledge(notice.notice_id)
        assert not await bb.notices()


async def test_many_at_once_and_wait_for_all_of_them(place: Place) -> None:
    async with Backburner.open(place.root) as bb:
        entries = await asyncio.gather(*(bb.submit(["sleep", "0.1"], cwd=place.cwd) for _ in range(12)))
        ids = [entry.task.task_id for entry in entries]
        assert len(set(ids)) == 12
        assert {entry.status for entry in await bb.wait(*ids)} == {"completed"}


async def test_waiting_has_an_end(place: Place) -> None:
    async with Backburner.open(place.root) as bb:
        entry = await bb.submit(["sleep", "600"], cwd=place.cwd)
        with pytest.raises(WaitTimedOut):
            await bb.wait(entry.task.task_id, timeout=0.2)
        assert (await bb.cancel(entry.task.task_id)).status == "cancelled"  # and nothing of it is left


async def test_events_are_followed_as_they_happen(place: Place) -> None:
    async with Backburner.open(place.root) as bb:
        entry = await bb.submit(["true"], cwd=place.cwd)
        kinds = []
        async for event in bb.events():
            kinds.append(event.kind)
            if event.kind == "run_completed":
                break
        assert kinds == ["task_submitted", "run_started", "task_done", "run_completed"]
        assert (await bb.get(entry.task.task_id)).status == "completed"


def test_what_the_gate_does_not_know_waits_for_a_person(place: Place) -> None:
    with BackburnerSync.open(place.root) as bb:
        entry = bb.submit(["install", "-d", "made"], cwd=place.cwd)
        assert entry.status == "proposed" and not (place.cwd / "made").exists()
        bb.approve(entry.task.task_id)
        (entry,) = bb.wait(entry.task.task_id)
        assert entry.status == "completed" and (place.cwd / "made").exists()


def test_scripts_use_the_same_verbs_without_await(place: Place) -> None:
    with BackburnerSync.open(place.root) as bb:
        entry = bb.submit("echo 'two words'", cwd=place.cwd, name="greeting")
        bb.wait(entry.task.task_id)
        assert bb.tail("greeting") == "two words\n"
        assert bb.clear(ended=True) == [entry.task.task_id]
        assert not bb.list()


async def test_a_runner_inside_your_own_program(tmp_path: Path) -> None:
    runner = TaskRunner(TaskStorage(tmp_path / "tasks"), max_concurrent=2)
    task_id = await runner.start_task(["echo", "mine"], str(tmp_path), "In my own loop", approved_by="user")
    while runner.get_status(task_id).status in (TaskStatus.PENDING, TaskStatus.RUNNING):
        await asyncio.sleep(0.01)
    assert runner.get_status(task_id).exit_code == 0
    with pytest.raises(ApprovalRequired):
        await runner.start_task(["install", "-d", "made"], str(tmp_path), "Nobody asked a person", approved_by="auto")
    await runner.close()
