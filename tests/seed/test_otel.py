"""The telemetry test of the design: the span is in the ledger, linked, with its attributes."""

import asyncio
from pathlib import Path

from backburner import BackburnerSync, TaskRunner, TaskStatus, TaskStorage


async def test_background_task_with_otel(tmp_path: Path) -> None:
    """Start task, verify span created and linked."""
    storage = TaskStorage(base_path=tmp_path)
    runner = TaskRunner(storage=storage, max_concurrent=5)
    task_id = await runner.start_task(["echo", "hello"], str(tmp_path), "OTel task", "user")
    async with asyncio.timeout(20):
        while runner.get_status(task_id).status != TaskStatus.COMPLETED:
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    await runner.close()

    span_id = runner.get_status(task_id).span_id
    assert (tmp_path / task_id / "span_id.txt").read_text().strip() == span_id
    with BackburnerSync.open(tmp_path) as bb:
        start, execute = bb.trace(task_id)
    assert execute.ended_at is not None
    assert (start.name, execute.name) == ("background_task_start", "background_task_execute")
    assert (execute.span_id, execute.parent_span_id, execute.trace_id) == (span_id, start.span_id, start.trace_id)
    about = execute.attributes
    assert (about["task.id"], about["task.command"], about["task.status"]) == (task_id, "echo hello", "completed")
    assert about["task.exit_code"] == 0 and isinstance(about["task.pid"], int)
    assert about["task.approved_by"] == "user"
