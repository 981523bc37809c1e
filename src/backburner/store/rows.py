"""The ledger's rows as records, and records as rows: JSON for what has parts, text for identities."""

import json

from backburner.core.formatting import iso
from backburner.core.masking import masked_line
from backburner.core.models import Entry, Notice, ProcessId, Run, Span, Task
from backburner.core.recipients import RecipientKind
from backburner.core.states import NoticeKind, PauseKind, Result, RunState, TaskState

TASK = ", ".join(f"t.{field}" for field in Task._fields)
RUN = ", ".join(f"r.{field}" for field in Run._fields)
WIDTH = len(Task._fields)
# A one-shot task shows its run's state, a standing one its own.
STATUS = "CASE WHEN t.schedule = '{}' THEN coalesce(r.state, t.state) ELSE t.state END"
ENTRY = f"SELECT {TASK}, {RUN} FROM tasks t LEFT JOIN runs r ON r.task_id = t.task_id AND r.n = t.run_count"
# Through the small index of what is live, whatever the planner thinks of it: the cost must not grow with history.
LIVE_RUNS = "seq IN (SELECT seq FROM runs WHERE ended_at IS NULL)"
NOTICE = ", ".join(Notice._fields)
TO_CHANNEL = f"recipient = '{RecipientKind.CHANNEL}'"  # the notices that leave for a channel
OUTGOING = f"told_at IS NULL AND dead_at IS NULL AND {TO_CHANNEL}"  # word for word as in the index of that


def plain(value: object) -> object:
    """A field as the ledger keeps it."""
    kind = type(value)
    if kind is str or kind is int or value is None:
        return value
    match value:
        case bool():
            return int(value)
        case ProcessId():
            return str(value)
        case tuple() | dict():
            return json.dumps(value) if value else "[]" if isinstance(value, tuple) else "{}"
        case str():
            return str(value)
        case _:
            return value


def _list(text: object) -> list[str]:
    return json.loads(str(text)) if text != "[]" else []


def _table(text: object) -> dict:
    return json.loads(str(text)) if text != "{}" else {}


def task_of(row: tuple) -> Task:
    task = Task._make(row)
    return task._replace(
        state=TaskState(task.state),
        command=tuple(_list(task.command)),
        shell=bool(task.shell),
        env=_table(task.env),
        reasons=tuple(_list(task.reasons)),
        after=tuple(_list(task.after)),
        limits=_table(task.limits),
        budget=_table(task.budget),
        schedule=_table(task.schedule),
        terms=_table(task.terms),
        channels=tuple(_list(task.channels)),
        source=_table(task.source),
        stdin=bool(task.stdin),
        pause_kind=PauseKind(task.pause_kind) if task.pause_kind else None,
        chat=bool(task.chat),
    )


def run_of(row: tuple) -> Run:
    run = Run._make(row)
    return run._replace(
        state=RunState(run.state),
        result=Result(run.result) if run.result else None,
        blocked=bool(run.blocked),
        usage=_table(run.usage),
        owner=ProcessId.parse(str(run.owner)) if run.owner else None,
        process=ProcessId.parse(str(run.process)) if run.process else None,
    )


def notice_of(row: tuple) -> Notice:
    notice = Notice._make(row)
    return notice._replace(kind=NoticeKind(notice.kind))


def entry_of(row: tuple) -> Entry:
    return Entry(task_of(row[:WIDTH]), run_of(row[WIDTH:]) if row[WIDTH] is not None else None)


def span_of_task(task: Task) -> Span:
    """A task being asked for: until it was approved, at once or by a person."""
    return Span(
        span_id=task.span_id,
        trace_id=task.trace_id,
        parent_span_id=task.parent_span_id,
        name="background_task_start",
        task_id=task.task_id,
        run_id=None,
        started_at=task.created_at,
        ended_at=task.approved_at,
        status=str(task.state),
        attributes=_attributes(task, str(task.state)),
    )


def span_of_run(task: Task, run: Run) -> Span:
    """A run of a task."""
    more = {"task.pid": run.process.pid if run.process else None, "task.exit_code": run.exit_code, "task.run": run.n}
    return Span(
        span_id=run.span_id,
        trace_id=run.trace_id,
        parent_span_id=task.span_id or None,
        name="background_task_execute",
        task_id=task.task_id,
        run_id=run.run_id,
        started_at=run.started_at,
        ended_at=run.ended_at,
        status=str(run.state),
        attributes=_attributes(task, str(run.state)) | {name: value for name, value in more.items() if value is not None},
    )


def _attributes(task: Task, status: str) -> dict[str, object]:
    command = masked_line(task.command, task.shell)
    about = {"task.id": task.task_id, "task.command": command, "task.status": status}
    if task.approved_by:
        about |= {"task.approved_by": task.approved_by, "task.approved_at": iso(task.approved_at) or ""}
    return about
