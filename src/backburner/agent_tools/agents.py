"""The `background_*` tools: run agents in the background. They follow the same rules as the tools in `commands`.

These tools report a failed run as `error`, and a run that waits for capacity as `running` with `queued`.
"""

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from backburner.agent_tools.commands import resolve_working_directory
from backburner.agent_tools.context import Context, ToolContext, wait_until
from backburner.agent_tools.results import Cleared, cleared, describe_outcome
from backburner.core import formatting
from backburner.core.errors import BadInput, NotRunning, TaskNotFound
from backburner.core.models import Caller, Entry, Submission
from backburner.core.states import RUNNING_STATES
from backburner.core.task_spec import AgentSpec, CommandSpec, Order, TaskSpec, options_from
from backburner.core.terminal_text import readable, shortened
from backburner.services.app import App, now_ms
from backburner.system.caller_identity import environment_for_commands
from backburner.system.log_file import Piece
from backburner.system.processes import umask

_PIECE_CHARACTERS = 8000
_BLOCK_PIECE_CHARACTERS = 2000  # of each answer
_MAX_BLOCK_CHARACTERS = 16_000  # of all answers together
_MAX_LISTED_TASKS = 50
_MAX_BLOCK_MS = 600_000
_CANCEL_TIMEOUT_SECONDS = 20.0


class StartedAgent(TypedDict):
    task_id: str
    status: str
    display: str
    queued: NotRequired[bool]


class AgentOutput(TypedDict):
    task_id: str
    status: str
    display: str
    result: NotRequired[str]
    error: NotRequired[str]
    cursor: NotRequired[str]
    more: NotRequired[bool]
    tool_calls: NotRequired[int]
    recent_tools: NotRequired[list[str]]
    last_update: NotRequired[str]


class AgentTaskSummary(TypedDict):
    task_id: str
    status: str
    agent: str
    description: str
    resume_count: int
    duration_seconds: float | None
    result: NotRequired[str]
    cursor: NotRequired[str]


class AgentTaskList(TypedDict):
    tasks: list[AgentTaskSummary]
    count: int
    display: str
    running: NotRequired[list[str]]


async def background_task(
    ctx: Context,
    description: str,
    prompt: str,
    agent: str = "default",
    batch_id: str | None = None,
    key: str | None = None,
    worktree: bool = False,
    working_directory: str | None = None,
) -> StartedAgent:
    """Start a background agent for independent work; returns its task_id at once. You are notified when it ends.

    It works in this project with files and commands, and cannot see this conversation: the prompt must be complete.

    Args:
        description: Shown to the user.
        agent: Or, if installed: opencode, claude, codex, gemini, goose, qwen.
        batch_id: Label for a group of tasks.
        key: Idempotency key: a second call returns the first task.
        worktree: Work in a git worktree; changes come back as a branch and a diff.
        working_directory: Default: the project.
    """
    context = ctx.deps

    def start(app: App) -> tuple[Entry, bool]:
        submission = Submission(
            spec=TaskSpec(
                cwd=resolve_working_directory(context, working_directory),
                command=CommandSpec(umask=umask()),
                agent=AgentSpec(agent, prompt, options_from({"worktree": True} if worktree else {})),
                description=shortened(description, longest=500),
                order=Order(batch=batch_id or context.message, key=key),
            ),
            environment=environment_for_commands(context.environ),
            session=context.session,
            message=context.message,
            opened=context.opened,
        )
        existing = app.submissions.find_by_key(submission)
        return existing or app.submissions.submit(submission, context.caller), existing is not None

    entry, already_started = await context.call(start)
    task_id = entry.task.task_id
    display = (
        f"Background task started: {task_id} ({agent}): {entry.task.spec.description}\n"
        "You will be notified when it finishes; background_output reads its answer."
    )
    if already_started:
        display = f"Already started with this key: {_line(context, entry)}"
    if entry.status == "proposed":
        display = (
            f"waiting for approval: {task_id}\nNothing has started. Tell the user: {'; '.join(entry.task.decision.reasons)}. In a terminal of your own"
            f" run:\nbackburner approve {task_id}  (or: backburner reject {task_id}). I cannot approve it for you."
        )
    result = StartedAgent(task_id=task_id, status=status_of(entry), display=display)
    if entry.status == "pending":
        result["queued"] = True
    return result


async def background_output(ctx: Context, task_id: str, cursor: str | None = None) -> AgentOutput:
    """Answer or progress of an agent. Never waits.

    Args:
        cursor: From the previous piece.
    """
    context = ctx.deps

    def read(app: App) -> tuple[Entry, Piece | None, dict[str, object]]:
        entry = agent_task(app, context.caller, task_id)
        if not entry.has_ended:
            return entry, None, app.runs.activity(entry)
        app.conversations.mark_retrieved(entry)
        start = cursor or f"{entry.task.run_count}:0"
        return entry, app.runs.read(entry, start, most=_PIECE_CHARACTERS), app.runs.activity(entry)

    entry, piece, activity = await context.call(read)
    context.mark_reported(entry)
    output = AgentOutput(task_id=entry.task.task_id, status=status_of(entry), display="")
    output["tool_calls"] = int(str(activity.get("tools", 0)))
    recent = activity.get("recent")
    output["recent_tools"] = [str(name) for name in recent] if isinstance(recent, list) else []
    if isinstance(at := activity.get("at"), int):
        output["last_update"] = formatting.iso(at) or ""
    if piece is None:
        tools = f", {output['tool_calls']} tool calls ({', '.join(output['recent_tools'])})" if output["tool_calls"] else ""
        output["display"] = f"{_line(context, entry)}{tools}"
        return output
    text = readable(piece.data.decode("utf-8", "replace"))
    if entry.run and entry.run.error:
        output["error"] = entry.run.error
    output |= {"result": text, "cursor": piece.cursor, "more": piece.more}  # type: ignore[typeddict-item]
    output["display"] = f"{_line(context, entry)}\n\n{text}{_rest_of(entry.task.task_id, piece)}".rstrip()
    return output


async def background_block(
    ctx: Context, task_ids: list[str] | None = None, batch_id: str | None = None, timeout: int = 60_000
) -> AgentTaskList:
    """Wait for agents and return their answers (2000 characters of each). May return early: call again.

    Args:
        batch_id: Instead of task_ids.
        timeout: Milliseconds, up to 600000.
    """
    context = ctx.deps
    resolved_ids = await context.call(lambda app: _resolve_task_ids(app, context.caller, task_ids, batch_id))
    timeout_seconds = min(max(timeout, 0), _MAX_BLOCK_MS) / 1000

    def is_done(entry: Entry) -> bool:
        return not entry.is_live or entry.status == "waiting"

    entries = await wait_until(context, resolved_ids, min(timeout_seconds, context.max_wait_seconds), is_done)
    running = [entry.task.task_id for entry in entries if not is_done(entry)]
    result = _task_list(context, entries)
    still_running = ""
    if running:
        result["running"] = running[:_MAX_LISTED_TASKS]
        still_running = (
            f"\nStill running: {', '.join(running[:_MAX_LISTED_TASKS])}. Call again, or do something else; you will be notified."
        )
    ended = [entry for entry in entries[:_MAX_LISTED_TASKS] if entry.has_ended]
    pieces = await context.call(lambda app: _first_pieces(app, ended)) if ended else {}
    # The notice of a task whose answer did not fit is still delivered.
    context.mark_reported(*(entry for entry in ended if entry.task.task_id in pieces))
    context.brief = result["display"] + still_running
    answers = []
    for summary in result["tasks"]:
        if (piece := pieces.get(summary["task_id"])) and piece.data:
            summary["result"] = readable(piece.data.decode("utf-8", "replace"))
            if piece.more:
                summary["cursor"] = piece.cursor
            answers.append(f"\n\nAnswer of {summary['task_id']}:\n{summary['result'].rstrip()}{_rest_of(summary['task_id'], piece)}")
    result["display"] += "".join(answers) + ("\n" if answers and still_running else "") + still_running
    return result


async def background_resume(ctx: Context, task_id: str, message: str) -> StartedAgent:
    """Send a message to a finished agent, which keeps its history. Returns at once."""
    context = ctx.deps

    def resume(app: App) -> Entry:
        return app.conversations.resume(agent_task(app, context.caller, task_id).task.task_id, message, context.caller)

    entry = await context.call(resume)
    display = f"Resumed {entry.task.task_id} (resume {entry.task.run_count - 1}). "
    if entry.task.session == context.session:
        display += "A notice is sent when it finishes; background_block waits for it."
    else:
        display += "The session that started it is notified, this one is not: background_block waits for its answer."
    return StartedAgent(task_id=entry.task.task_id, status="resumed", display=display)


async def background_cancel(ctx: Context, task_id: str | None = None, batch_id: str | None = None) -> AgentTaskList:
    """Stop an agent, or all of a batch."""
    context = ctx.deps

    def cancel(app: App) -> list[str]:
        resolved_ids = _resolve_task_ids(app, context.caller, [task_id] if task_id else None, batch_id)
        live_ids = [resolved_id for resolved_id in resolved_ids if not app.queries.get(resolved_id).has_ended]
        if task_id and not live_ids:
            raise NotRunning(task_id=resolved_ids[0], status=status_of(app.queries.get(resolved_ids[0])))
        return [app.tasks.cancel(live_id, context.caller).task.task_id for live_id in live_ids]

    cancelled_ids = await context.call(cancel)
    entries: Sequence[Entry] = []
    if cancelled_ids:
        timeout_seconds = min(_CANCEL_TIMEOUT_SECONDS, context.max_wait_seconds)
        entries = await wait_until(context, cancelled_ids, timeout_seconds, lambda entry: entry.has_ended, quiet=True)
    context.mark_reported(*entries[:_MAX_LISTED_TASKS])
    return _task_list(context, entries)


async def background_list(ctx: Context, status: str | None = None, batch_id: str | None = None) -> AgentTaskList:
    """The newest 50 agents of this project.

    Args:
        status: running, completed, error, cancelled or resumed.
    """
    context = ctx.deps
    if status is not None and status not in ("running", "completed", "error", "cancelled", "resumed", "waiting"):
        raise BadInput(f"Invalid status '{status}'. Use one of: running, completed, error, cancelled, resumed, waiting.")
    entries = await context.call(lambda app: app.queries.list(context.caller, batch=batch_id, everywhere=context.cwd is None, limit=500))
    shown = [entry for entry in entries if _is_agent_task(entry) and status in (None, status_of(entry))]
    return _task_list(context, shown[:_MAX_LISTED_TASKS])


async def background_clear(ctx: Context, task_ids: list[str] | None = None, batch_id: str | None = None) -> Cleared:
    """Delete ended agents and their conversations: these, a batch, or all of this project."""
    context = ctx.deps

    def clear(app: App) -> Sequence[str]:
        if task_ids or batch_id is not None:
            resolved_ids = _resolve_task_ids(app, context.caller, task_ids, batch_id)
        else:
            entries = app.queries.list(context.caller, everywhere=context.cwd is None)
            resolved_ids = [entry.task.task_id for entry in entries if _is_agent_task(entry)]
        return app.tasks.clear([resolved_id for resolved_id in resolved_ids if app.queries.get(resolved_id).has_ended], context.caller)

    return cleared(await context.call(clear))


AGENTS = (background_task, background_output, background_block, background_resume, background_cancel, background_list, background_clear)


def status_of(entry: Entry) -> str:
    """The status of a task as these tools name it."""
    if entry.status == "failed":
        return "error"
    if entry.status == "pending":
        return "resumed" if entry.run and entry.run.n > 1 else "running"
    return entry.status


def agent_task(app: App, caller: Caller, reference: str) -> Entry:
    """Find an agent task by its id, a part of it, its label or "last". BadInput if it is a command or a recurring task."""
    try:
        entry = app.queries.find(reference, caller)
    except TaskNotFound:
        raise AgentTaskNotFound(task_id=reference) from None
    if entry.task.spec.agent_name is None:
        raise BadInput(f"Task {entry.task.task_id} is a command. Use check_task_status (or another tool for commands).")
    if entry.task.is_recurring:
        raise BadInput(f"Task {entry.task.task_id} is a recurring task. Use task_list (or another task_* tool).")
    return entry


class AgentTaskNotFound(TaskNotFound):
    """Task not found: {task_id}"""


def _resolve_task_ids(app: App, caller: Caller, task_ids: list[str] | None, batch_id: str | None) -> list[str]:
    if not task_ids and batch_id is None:
        raise BadInput("Specify task_ids or batch_id.")
    given_ids = [agent_task(app, caller, reference).task.task_id for reference in task_ids or ()]
    batch_entries = app.queries.list(caller, batch=batch_id, limit=500) if batch_id is not None else ()
    return list(dict.fromkeys([*given_ids, *(entry.task.task_id for entry in batch_entries if _is_agent_task(entry))]))


def _first_pieces(app: App, entries: Sequence[Entry]) -> dict[str, Piece]:
    """The beginning of the answer of each ended task, by task id, as far as they fit into one result."""
    pieces: dict[str, Piece] = {}
    for entry in entries:
        if sum(len(piece.data) for piece in pieces.values()) + _BLOCK_PIECE_CHARACTERS > _MAX_BLOCK_CHARACTERS:
            break
        pieces[entry.task.task_id] = app.runs.read(entry, f"{entry.task.run_count}:0", most=_BLOCK_PIECE_CHARACTERS)
    return pieces


def _rest_of(task_id: str, piece: Piece) -> str:
    """How to read what comes after a piece of an answer; empty at its end."""
    return f'\n[more: background_output("{task_id}", cursor="{piece.cursor}")]' if piece.more else ""


def _is_agent_task(entry: Entry) -> bool:
    return entry.task.spec.agent_name is not None and not entry.task.is_recurring


def _task_list(context: ToolContext, entries: Sequence[Entry]) -> AgentTaskList:
    now, tasks = now_ms(), []
    for entry in entries[:_MAX_LISTED_TASKS]:
        took = formatting.elapsed(entry, now)
        tasks.append(
            AgentTaskSummary(
                task_id=entry.task.task_id,
                status=status_of(entry),
                agent=entry.task.spec.agent_name or "",
                description=shortened(entry.task.spec.description, longest=200),
                resume_count=max(0, entry.task.run_count - 1),
                duration_seconds=None if took is None else took / 1000,
            )
        )
    lines = [_line(context, entry) for entry in entries[:_MAX_LISTED_TASKS]]
    return AgentTaskList(tasks=tasks, count=len(tasks), display="\n".join(lines) or "No background tasks.")


def _line(context: ToolContext, entry: Entry) -> str:
    if entry.status == "waiting":
        return describe_outcome(context, entry)
    took = formatting.elapsed(entry, now_ms())
    duration = f" ({formatting.duration(took)})" if took is not None else ""
    error = f": {entry.run.error}" if entry.run and entry.run.error and entry.run.state not in RUNNING_STATES else ""
    return f"{entry.task.task_id} {status_of(entry)}{duration} {shortened(entry.task.spec.description)}{error}"
