"""The results of the tools: dicts with stable keys, and a `display` with the same facts as text for people."""

import contextlib
from collections.abc import Sequence
from typing import NotRequired, TypedDict

from backburner.agent_tools.context import ToolContext, wait_until
from backburner.core import formatting, task_text
from backburner.core.errors import BackburnerError
from backburner.core.ids import outside_id
from backburner.core.masking import masked_line
from backburner.core.models import SANDBOX, Entry, Task
from backburner.core.sessions import is_chat
from backburner.core.terminal_text import readable, shortened, visible
from backburner.services.app import App, now_ms

RECENT_LINES = 20
_MAX_RECENT_CHARACTERS = 4000
_START_TIMEOUT_SECONDS = 0.5


class Started(TypedDict):
    task_id: str
    status: str
    display: str
    reasons: NotRequired[list[str]]


class Status(TypedDict):
    task_id: str
    status: str
    description: str
    duration_seconds: float | None
    exit_code: int | None
    display: str
    summary: NotRequired[str]
    progress: NotRequired[str]
    ports: NotRequired[list[int]]
    files: NotRequired[list[str]]
    output: NotRequired[str]


class Summary(TypedDict):
    task_id: str
    status: str
    duration_seconds: float | None
    exit_code: int | None
    description: str
    summary: NotRequired[str]


class Listed(TypedDict):
    tasks: list[Summary]
    count: int
    display: str


class Waited(TypedDict):
    tasks: list[Summary]
    running: list[str]
    display: str


class Output(TypedDict):
    task_id: str
    status: str
    output: str
    cursor: str
    more: bool
    display: str


class Done(TypedDict):
    task_id: str
    status: str
    display: str


class Cleared(TypedDict):
    cleared: list[str]
    display: str


def _sandbox_offer(context: ToolContext, entry: Entry) -> str:
    """What to tell the user about a command that may have failed because of the sandbox."""
    if entry.run is None or entry.run.end.problem != SANDBOX:
        return ""
    return (
        f"\nTell the user: {entry.run.error}. To run it without the sandbox, run in a terminal of your own:"
        f" {context.command} approve {outside_id(entry.task.task_id)}. I cannot approve it for you."
    )


async def started(context: ToolContext, entry: Entry, *, already_started: bool = False) -> Started:
    """The result of starting a task. Waits briefly for the engine to start it. `already_started`: the key belonged to this task before."""
    task, task_id = entry.task, entry.task.task_id
    if entry.status == "pending" and entry.run and not entry.run.blocked and entry.run.due_at is None:
        with contextlib.suppress(BackburnerError):  # the task is stored even if it could not be started
            (entry,) = await wait_until(context, [task_id], _START_TIMEOUT_SECONDS, lambda entry: entry.status != "pending", quiet=True)
    if entry.run is None and entry.status == "proposed":
        display = (
            f"waiting for approval: {task_id}\nNothing has started. Tell the user: "
            f"{_what_waits(task)} needs your approval ({'; '.join(task.decision.reasons)}). In a terminal of your own run: {context.command} approve {task_id}"
            f"  (or: {context.command} reject {task_id}). I cannot approve it for you."
        )
        return Started(task_id=task_id, status=entry.status, reasons=list(task.decision.reasons), display=shortened(display, longest=4000))
    if already_started or (entry.has_ended and entry.status != "completed"):
        context.mark_reported(entry)
        prefix = "Already started with this key, not started again: " if already_started else ""
        return Started(task_id=task_id, status=entry.status, display=prefix + describe_outcome(context, entry))
    description = f": {task.spec.description}" if task.spec.description else ""
    if entry.status in ("pending", "waiting"):
        display = f"Background task {task_id}{description}\n{describe_outcome(context, entry)}"
        if entry.status == "pending":
            display += ": it starts automatically."
        return Started(task_id=task_id, status=entry.status, display=display)
    # A task that has already completed is reported as running; its end is announced by a notice as usual.
    how_to_check = f"Check status: /status {task_id}" if is_chat(context.session) else "You will be notified when it ends."
    return Started(task_id=task_id, status="running", display=f"Started background task {task_id}{description}\n{how_to_check}")


def _what_waits(task: Task) -> str:
    """What a person is asked to approve: the command, or the prompt of an agent with the name of its task."""
    if task.spec.command.words:
        return f"`{shortened(formatting.command_line(task.spec.command.words, task.spec.command.shell), longest=400)}`"
    name = f"{visible(task.spec.name)}, " if task.spec.name else ""
    return f"{name}the prompt `{shortened(visible(task.spec.prompt), longest=400)}` for {task.spec.agent_name},"


def cleared(task_ids: Sequence[str]) -> Cleared:
    """The result of deleting tasks."""
    noun = "task" if len(task_ids) == 1 else "tasks"
    return Cleared(cleared=list(task_ids), display=f"Cleared {len(task_ids)} {noun}.")


def status(app: App, entry: Entry, include_output: bool) -> tuple[Status, str]:
    """The status of a task, and its display without the output."""
    app.runs.repair_metadata(entry)
    inspection, now = app.runs.inspect(entry), now_ms()
    output = app.runs.tail(entry, RECENT_LINES, longest=4 * _MAX_RECENT_CHARACTERS) if entry.run and include_output else b""
    text = readable(output.decode("utf-8", "replace"))[-_MAX_RECENT_CHARACTERS:]
    took = formatting.elapsed(entry, now)
    task_id = entry.task.task_id
    status = Status(
        task_id=task_id,
        status=entry.status,
        description=entry.task.spec.description,
        duration_seconds=None if took is None else took / 1000,
        exit_code=entry.run.end.exit_code if entry.run else None,
        display="",
    )
    if entry.run and entry.run.end.summary:
        status["summary"] = entry.run.end.summary
    if inspection.progress:
        status["progress"] = inspection.progress.text
    if inspection.ports:
        status["ports"] = list(inspection.ports)
    if inspection.artifacts:
        status["files"] = list(inspection.artifacts)
    if include_output:
        status["output"] = text
    details = task_text.details(entry, now, text.encode(), app.runs.log_path(entry), inspection)
    status["display"] = readable(str(details) + rejection_reason(app, entry))
    return status, readable(details.about)


def summary(entry: Entry, now: int) -> Summary:
    task, run = entry
    took = formatting.elapsed(entry, now)
    summary = Summary(
        task_id=task.task_id,
        status=entry.status,
        duration_seconds=None if took is None else took / 1000,
        exit_code=run.end.exit_code if run else None,
        description=shortened(task.spec.description or masked_line(task.spec.command.words, task.spec.command.shell), longest=200),
    )
    if run and run.end.summary:
        summary["summary"] = run.end.summary
    return summary


def rejection_reason(app: App, entry: Entry) -> str:
    """The reason that a person gave for rejecting a task, as a line of its own; empty if there is none."""
    event = app.queries.rejection(entry)
    return f"\nTheir reason: {event.data['reason']}" if event and event.data.get("reason") else ""


def describe_outcome(context: ToolContext, entry: Entry) -> str:
    """The state of a task in one line."""
    if entry.has_ended:
        return task_text.ended_line(entry, now_ms()) + _sandbox_offer(context, entry)
    if entry.status in ("proposed", "waiting"):
        reason = "; ".join(entry.task.decision.reasons) if entry.run is None else entry.run.error
        if entry.run and entry.run.wait and not entry.run.wait.is_for_person:
            return f"{entry.task.task_id} is waiting: {reason}"
        return f"{entry.task.task_id} is waiting for approval ({reason}): {context.command} approve {entry.task.task_id}"
    return f"{entry.task.task_id} {'ready' if entry.is_ready else entry.status}"
