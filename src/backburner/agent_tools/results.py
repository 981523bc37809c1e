"""What the tools answer with: dicts with stable keys, and a `display` that says the same to people."""

import contextlib
from typing import NotRequired, TypedDict

from backburner.agent_tools.context import ToolContext, until
from backburner.core import formatting as words
from backburner.core import task_text as render
from backburner.core.errors import BackburnerError
from backburner.core.masking import masked_line
from backburner.core.models import Entry
from backburner.core.terminal_text import readable, shortened
from backburner.services.app import App, now_ms

RECENT_LINES = 20
_RECENT = 4000  # characters of recent output
_STARTING_SECONDS = 0.5


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


async def started(context: ToolContext, entry: Entry, *, again: bool = False) -> Started:
    """What became of it: the engine takes a moment to start what there is room for. `again` is one that was there before."""
    task, known = entry.task, entry.task.task_id
    if entry.status == "pending" and entry.run and not entry.run.blocked and entry.run.due_at is None:
        with contextlib.suppress(BackburnerError):  # it is stored, whatever keeps it from starting
            (entry,) = await until(context, [known], _STARTING_SECONDS, lambda one: one.status != "pending", quiet=True)
    if entry.run is None and entry.status == "proposed":
        line = shortened(words.command_line(task.spec.command.words, task.spec.command.shell), longest=400)
        display = (
            f"waiting for approval: {known}\nNothing has started. Tell the user: "
            f"`{line}` needs your yes ({'; '.join(task.decision.reasons)}). In a terminal of your own run: {context.command} approve {known}"
            f"  (or: {context.command} reject {known}). I cannot approve it for you."
        )
        return Started(task_id=known, status=entry.status, reasons=list(task.decision.reasons), display=shortened(display, longest=4000))
    if again or (entry.has_ended and entry.status != "completed"):
        context.tells(entry)
        before = "This was started before, under the same key, and is not started again: " if again else ""
        return Started(task_id=known, status=entry.status, display=before + outcome(context, entry))
    about = f": {task.spec.description}" if task.spec.description else ""
    if entry.status in ("pending", "waiting"):
        display = f"Background task {known}{about}\n{outcome(context, entry)}"
        return Started(task_id=known, status=entry.status, display=display + (": it starts by itself." * (entry.status == "pending")))
    # One that has completed already is told as every end is.
    return Started(task_id=known, status="running", display=f"Started background task {known}{about}\nCheck status: /status {known}")


def status(app: App, entry: Entry, include_output: bool) -> tuple[Status, str]:
    """How a task stands, and its display without the output."""
    app.runs.repair_metadata(entry)
    signs, now = app.runs.inspect(entry), now_ms()
    output = app.runs.tail(entry, RECENT_LINES, longest=4 * _RECENT) if entry.run and include_output else b""
    text = readable(output.decode("utf-8", "replace"))[-_RECENT:]
    took = words.elapsed(entry, now)
    known = entry.task.task_id
    status = Status(
        task_id=known,
        status=entry.status,
        description=entry.task.spec.description,
        duration_seconds=None if took is None else took / 1000,
        exit_code=entry.run.end.exit_code if entry.run else None,
        display="",
    )
    if entry.run and entry.run.end.summary:
        status["summary"] = entry.run.end.summary
    if signs.progress:
        status["progress"] = signs.progress.text
    if signs.ports:
        status["ports"] = list(signs.ports)
    if signs.artifacts:
        status["files"] = list(signs.artifacts)
    if include_output:
        status["output"] = text
    details = render.details(entry, now, text.encode(), app.runs.log_path(entry), signs)
    status["display"] = readable(str(details))
    return status, readable(details.about)


def summary(entry: Entry, now: int) -> Summary:
    task, run = entry
    took = words.elapsed(entry, now)
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


def outcome(context: ToolContext, entry: Entry) -> str:
    """How a task stands, in a line."""
    if entry.has_ended:
        return render.ended_line(entry, now_ms())
    if entry.status in ("proposed", "waiting"):
        reason = "; ".join(entry.task.decision.reasons) if entry.run is None else entry.run.error
        if entry.run and entry.run.wait and not entry.run.wait.is_for_person:
            return f"{entry.task.task_id} waits: {reason}"
        return f"{entry.task.task_id} waits for a person's approval ({reason}): {context.command} approve {entry.task.task_id}"
    return f"{entry.task.task_id} {'ready' if entry.is_ready else entry.status}"
