"""The design's own tests 1 to 13, word for word but for this import line."""

import asyncio
from datetime import datetime, timedelta

import pytest

from backburner import TaskMetadata, TaskRunner, TaskStatus, TaskStorage


def test_create_task_metadata(tmp_path):
    """Create task, verify metadata.json written."""
    storage = TaskStorage(base_path=tmp_path)
    metadata = TaskMetadata(
        task_id="task_test_001",
        created_at=datetime.now(),
        status=TaskStatus.PENDING,
        command=["echo", "hello"],
        cwd="/tmp",
        description="Test task",
        approved_by="user",
        approved_at=datetime.now(),
    )
    task_dir = storage.create_task("task_test_001", metadata)

    # Assertions
    assert task_dir.exists()
    assert (task_dir / "metadata.json").exists()

    # Read back metadata
    loaded = storage.get_task("task_test_001")
    assert loaded.task_id == "task_test_001"
    assert loaded.status == TaskStatus.PENDING
    assert loaded.command == ["echo", "hello"]


def test_update_task_metadata(tmp_path):
    """Update status, verify persistence."""
    storage = TaskStorage(base_path=tmp_path)
    metadata = TaskMetadata(
        task_id="task_test_002",
        created_at=datetime.now(),
        status=TaskStatus.PENDING,
        command=["sleep", "1"],
        cwd="/tmp",
        description="Test task",
        approved_by="user",
        approved_at=datetime.now(),
    )
    storage.create_task("task_test_002", metadata)

    # Update status
    storage.update_task("task_test_002", status=TaskStatus.RUNNING, pid=12345)

    # Read back
    loaded = storage.get_task("task_test_002")
    assert loaded.status == TaskStatus.RUNNING
    assert loaded.pid == 12345


def test_list_tasks_all(tmp_path):
    """List all tasks."""
    storage = TaskStorage(base_path=tmp_path)

    # Create 3 tasks
    for i in range(3):
        metadata = TaskMetadata(
            task_id=f"task_test_{i:03d}",
            created_at=datetime.now(),
            status=TaskStatus.PENDING,
            command=["echo", str(i)],
            cwd="/tmp",
            description=f"Test task {i}",
            approved_by="user",
            approved_at=datetime.now(),
        )
        storage.create_task(f"task_test_{i:03d}", metadata)

    # List all
    tasks = storage.list_tasks()
    assert len(tasks) == 3


def test_list_tasks_filtered(tmp_path):
    """List tasks by status."""
    storage = TaskStorage(base_path=tmp_path)

    # Create tasks with different statuses
    for i, status in enumerate([TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.COMPLETED]):
        metadata = TaskMetadata(
            task_id=f"task_test_{i:03d}",
            created_at=datetime.now(),
            status=status,
            command=["echo", str(i)],
            cwd="/tmp",
            description=f"Test task {i}",
            approved_by="user",
            approved_at=datetime.now(),
        )
        storage.create_task(f"task_test_{i:03d}", metadata)

    # Filter by running
    running = storage.list_tasks(status=TaskStatus.RUNNING)
    assert len(running) == 1
    assert running[0].status == TaskStatus.RUNNING


def test_delete_task(tmp_path):
    """Delete task directory."""
    storage = TaskStorage(base_path=tmp_path)
    metadata = TaskMetadata(
        task_id="task_test_005",
        created_at=datetime.now(),
        status=TaskStatus.COMPLETED,
        command=["echo", "hello"],
        cwd="/tmp",
        description="Test task",
        approved_by="user",
        approved_at=datetime.now(),
    )
    task_dir = storage.create_task("task_test_005", metadata)
    assert task_dir.exists()

    # Delete
    storage.delete_task("task_test_005")
    assert not task_dir.exists()


def test_cleanup_old_tasks(tmp_path):
    """Create old completed tasks, run cleanup, verify deletion."""
    storage = TaskStorage(base_path=tmp_path)

    # Create task completed 10 days ago
    old_time = datetime.now() - timedelta(days=10)
    metadata = TaskMetadata(
        task_id="task_old",
        created_at=old_time,
        status=TaskStatus.COMPLETED,
        command=["echo", "old"],
        cwd="/tmp",
        description="Old task",
        approved_by="user",
        approved_at=old_time,
        completed_at=old_time,
    )
    storage.create_task("task_old", metadata)

    # Create recent task
    metadata = TaskMetadata(
        task_id="task_new",
        created_at=datetime.now(),
        status=TaskStatus.COMPLETED,
        command=["echo", "new"],
        cwd="/tmp",
        description="New task",
        approved_by="user",
        approved_at=datetime.now(),
        completed_at=datetime.now(),
    )
    storage.create_task("task_new", metadata)

    # Cleanup (retention: 7 days)
    deleted_count = storage.cleanup_old_tasks(retention_days=7)
    assert deleted_count == 1

    # Verify old task deleted, new task kept
    assert storage.get_task("task_old") is None
    assert storage.get_task("task_new") is not None


@pytest.mark.asyncio
async def test_start_task_simple(tmp_path):
    """Start simple command, verify completion."""
    storage = TaskStorage(base_path=tmp_path)
    runner = TaskRunner(storage=storage, max_concurrent=5)

    task_id = await runner.start_task(
        command=["echo", "hello"],
        cwd="/tmp",
        description="Simple task",
        approved_by="user",
    )

    # Wait for completion (should be fast)
    await asyncio.sleep(0.5)

    # Check status
    metadata = runner.get_status(task_id)
    assert metadata.status == TaskStatus.COMPLETED
    assert metadata.exit_code == 0


@pytest.mark.asyncio
async def test_start_task_with_output(tmp_path):
    """Start command with output, verify output.log."""
    storage = TaskStorage(base_path=tmp_path)
    runner = TaskRunner(storage=storage, max_concurrent=5)

    task_id = await runner.start_task(
        command=["echo", "test output"],
        cwd="/tmp",
        description="Task with output",
        approved_by="user",
    )

    # Wait for completion
    await asyncio.sleep(0.5)

    # Read output.log
    task_dir = tmp_path / task_id
    output = (task_dir / "output.log").read_text()
    assert "test output" in output


@pytest.mark.asyncio
async def test_task_failure(tmp_path):
    """Start failing command, verify exit_code != 0."""
    storage = TaskStorage(base_path=tmp_path)
    runner = TaskRunner(storage=storage, max_concurrent=5)

    task_id = await runner.start_task(
        command=["false"],  # Always exits with 1
        cwd="/tmp",
        description="Failing task",
        approved_by="user",
    )

    # Wait for completion
    await asyncio.sleep(0.5)

    # Check status
    metadata = runner.get_status(task_id)
    assert metadata.status == TaskStatus.FAILED
    assert metadata.exit_code != 0


@pytest.mark.asyncio
async def test_cancel_running_task(tmp_path):
    """Start long command, cancel, verify SIGTERM sent."""
    storage = TaskStorage(base_path=tmp_path)
    runner = TaskRunner(storage=storage, max_concurrent=5)

    task_id = await runner.start_task(
        command=["sleep", "10"],
        cwd="/tmp",
        description="Long task",
        approved_by="user",
    )

    # Wait for task to start
    await asyncio.sleep(0.5)

    # Cancel
    success = await runner.cancel_task(task_id)
    assert success

    # Check status
    metadata = runner.get_status(task_id)
    assert metadata.status == TaskStatus.CANCELLED


@pytest.mark.asyncio
async def test_cancel_with_sigkill(tmp_path):
    """Start command that ignores SIGTERM, verify SIGKILL."""
    storage = TaskStorage(base_path=tmp_path)
    runner = TaskRunner(storage=storage, max_concurrent=5)

    # Script that ignores SIGTERM
    script = tmp_path / "ignore_sigterm.sh"
    script.write_text("""#!/bin/bash
trap '' SIGTERM  # Ignore SIGTERM
sleep 100
""")
    script.chmod(0o755)

    task_id = await runner.start_task(
        command=[str(script)],
        cwd="/tmp",
        description="Unresponsive task",
        approved_by="user",
    )

    # Wait for task to start
    await asyncio.sleep(0.5)

    # Cancel (should use SIGKILL after grace period)
    success = await runner.cancel_task(task_id)
    assert success

    # Check status
    metadata = runner.get_status(task_id)
    assert metadata.status == TaskStatus.CANCELLED


@pytest.mark.asyncio
async def test_concurrent_tasks(tmp_path):
    """Start 6 tasks with max_concurrent=5, verify 5 running + 1 pending."""
    storage = TaskStorage(base_path=tmp_path)
    runner = TaskRunner(storage=storage, max_concurrent=5)

    # Start 6 tasks
    task_ids = []
    for i in range(6):
        task_id = await runner.start_task(
            command=["sleep", "2"],
            cwd="/tmp",
            description=f"Task {i}",
            approved_by="user",
        )
        task_ids.append(task_id)

    # Check status immediately
    await asyncio.sleep(0.5)
    running = [t for t in task_ids if runner.get_status(t).status == TaskStatus.RUNNING]
    pending = [t for t in task_ids if runner.get_status(t).status == TaskStatus.PENDING]

    assert len(running) == 5
    assert len(pending) == 1


@pytest.mark.asyncio
async def test_monitor_task_completion(tmp_path):
    """Start task, verify status updates (pending → running → completed)."""
    storage = TaskStorage(base_path=tmp_path)
    runner = TaskRunner(storage=storage, max_concurrent=5)

    task_id = await runner.start_task(
        command=["sleep", "1"],
        cwd="/tmp",
        description="Monitored task",
        approved_by="user",
    )

    # Check status progression
    # Immediately after start: pending or running
    metadata = runner.get_status(task_id)
    assert metadata.status in [TaskStatus.PENDING, TaskStatus.RUNNING]

    # After 0.5s: should be running
    await asyncio.sleep(0.5)
    metadata = runner.get_status(task_id)
    assert metadata.status == TaskStatus.RUNNING

    # After 1.5s: should be completed
    await asyncio.sleep(1.5)
    metadata = runner.get_status(task_id)
    assert metadata.status == TaskStatus.COMPLETED
