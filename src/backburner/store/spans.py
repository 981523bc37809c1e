"""Spans of a trace, built from tasks and runs."""

from backburner.core.events import Span
from backburner.core.formatting import iso
from backburner.core.masking import masked_line
from backburner.core.models import Run, Task


def span_of_task(task: Task) -> Span:
    """The span of a request for a task: it ends when the task is approved."""
    return Span(
        span_id=task.trace.span_id,
        trace_id=task.trace.trace_id,
        parent_span_id=task.trace.parent_span_id,
        name="background_task_start",
        task_id=task.task_id,
        run_id=None,
        started_at=task.created_at,
        ended_at=task.decision.at,
        status=str(task.state),
        attributes=_attributes(task, str(task.state)),
    )


def span_of_run(task: Task, run: Run) -> Span:
    """A run of a task."""
    more = {"task.pid": run.process.pid if run.process else None, "task.exit_code": run.end.exit_code, "task.run": run.n}
    return Span(
        span_id=run.span_id,
        trace_id=run.trace_id,
        parent_span_id=task.trace.span_id or None,
        name="background_task_execute",
        task_id=task.task_id,
        run_id=run.run_id,
        started_at=run.started_at,
        ended_at=run.ended_at,
        status=str(run.state),
        attributes=_attributes(task, str(run.state)) | {name: value for name, value in more.items() if value is not None},
    )


def _attributes(task: Task, status: str) -> dict[str, object]:
    command = masked_line(task.spec.command.words, task.spec.command.shell)
    attributes = {"task.id": task.task_id, "task.command": command, "task.status": status}
    if task.decision.by:
        attributes |= {"task.approved_by": task.decision.by, "task.approved_at": iso(task.decision.at) or ""}
    return attributes
