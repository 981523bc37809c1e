"""The `background_*` tools: agents in the background, as functions over the services like those of `tools`.

At this door a failed run is an `error`, and one that waits for a seat is `running` with `queued`.
"""

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from backburner.agent_tools.commands import folder_of
from backburner.agent_tools.context import Context, ToolContext, until
from backburner.agent_tools.results import Cleared, outcome
from backburner.core import formatting as words
from backburner.core.errors import BadInput, NotRunning, TaskNotFound
from backburner.core.models import Caller, Entry, Submission
from backburner.core.states import RUNNING_STATES
from backburner.core.task_spec import AgentSpec, CommandSpec, Order, TaskSpec, options_from
from backburner.core.terminal_text import readable, shortened
from backburner.services.app import App, now_ms
from backburner.system.caller_identity import environment_for_commands
from backburner.system.log_file import Piece
from backburner.system.processes import umask

_PIECE = 8000
_MOST = 50
_LONGEST_BLOCK_MS = 600_000


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
) -> StartedAgent:
    """Ask an agent in the background and return at once with the task's id. Its answer comes to you as a notice when it is done.

    Use it for work that another can do alone while you go on: research, reviews, a change in another part of the code. The agent knows
    nothing of this conversation: say all it needs in the prompt. It works in this project, with files and commands; what needs the
    user's approval makes it wait. Read its answer with background_output, wait with background_block, follow up with background_resume.

    Args:
        description: What it is for, in a few words; shown to the user.
        prompt: All that the agent is to know and to do.
        agent: Which agent; "default" where none is named. Where the user has them: opencode, claude, codex, gemini, goose, qwen.
        batch_id: A label that groups tasks, to wait for or cancel together.
        key: A name for this piece of work. A second call with the same key gives the first task instead of asking again.
        worktree: Have it work in a git worktree of its own: the files here stay as they are, and its changes come as a branch and a diff.
    """
    context = ctx.deps

    def ask(app: App) -> tuple[Entry, bool]:
        submission = Submission(
            spec=TaskSpec(
                cwd=folder_of(context, None),
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
        known = app.submissions.find_by_key(submission)
        return known or app.submissions.submit(submission, context.caller), known is not None

    entry, again = await context.call(ask)
    known = entry.task.task_id
    before = "This was asked before, under the same key, and is not asked again: " if again else ""
    display = f"{before}Background task started: {known} ({agent}): {entry.task.spec.description}\nIts answer comes as a notice; background_output reads it."
    if entry.status == "proposed":
        display = (
            f"waiting for approval: {known}\nNothing has started. Tell the user: {'; '.join(entry.task.decision.reasons)}. In a terminal of your own"
            f" run:\nbackburner approve {known}  (or: backburner reject {known}). I cannot approve it for you."
        )
    asked = StartedAgent(task_id=known, status=status_of(entry), display=display)
    if entry.status == "pending":
        asked["queued"] = True
    return asked


async def background_output(ctx: Context, task_id: str, cursor: str | None = None) -> AgentOutput:
    """Give the answer of a background agent, or how far it is. Never waits. A long answer comes in pieces with a cursor.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
        cursor: Go on where an earlier piece ended.
    """
    context = ctx.deps

    def read(app: App) -> tuple[Entry, Piece | None, dict[str, object]]:
        entry = agents_task(app, context.caller, task_id)
        if not entry.has_ended:
            return entry, None, app.runs.activity(entry)
        app.conversations.mark_retrieved(entry)
        start = cursor or f"{entry.task.run_count}:0"
        return entry, app.runs.read(entry, start, most=_PIECE), app.runs.activity(entry)

    entry, piece, activity = await context.call(read)
    context.tells(entry)
    answered = AgentOutput(task_id=entry.task.task_id, status=status_of(entry), display="")
    answered["tool_calls"] = int(str(activity.get("tools", 0)))
    recent = activity.get("recent")
    answered["recent_tools"] = [str(name) for name in recent] if isinstance(recent, list) else []
    if isinstance(at := activity.get("at"), int):
        answered["last_update"] = words.iso(at) or ""
    if piece is None:
        tools = f", {answered['tool_calls']} tool calls ({', '.join(answered['recent_tools'])})" if answered["tool_calls"] else ""
        answered["display"] = f"{_line(context, entry)}{tools}"
        return answered
    text = readable(piece.data.decode("utf-8", "replace"))
    if entry.run and entry.run.error:
        answered["error"] = entry.run.error
    answered |= {"result": text, "cursor": piece.cursor, "more": piece.more}  # type: ignore[typeddict-item]
    note = f'\n[more: background_output("{entry.task.task_id}", cursor="{piece.cursor}")]' if piece.more else ""
    answered["display"] = f"{_line(context, entry)}\n\n{text}{note}".rstrip()
    return answered


async def background_block(
    ctx: Context, task_ids: list[str] | None = None, batch_id: str | None = None, timeout: int = 60_000
) -> AgentTaskList:
    """Wait until background agents have answered, and say how each stands. Returns earlier when the time is up; call it again then.

    Args:
        task_ids: Ids (or unique parts, or labels) of tasks.
        batch_id: Wait for all tasks of a batch instead.
        timeout: How long to wait at the most, in milliseconds (up to 600000). A call may return earlier than that.
    """
    context = ctx.deps
    known = await context.call(lambda app: _meant(app, context.caller, task_ids, batch_id))
    patience = min(max(timeout, 0), _LONGEST_BLOCK_MS) / 1000

    def done(entry: Entry) -> bool:
        return not entry.is_live or entry.status == "waiting"

    entries = await until(context, known, min(patience, context.longest_wait), done)
    context.tells(*entries[:_MOST])
    running = [entry.task.task_id for entry in entries if not done(entry)]
    many = _many(context, entries)
    if running:
        many["running"] = running[:_MOST]
        many["display"] += f"\nStill running: {', '.join(running[:_MOST])}. Call again, or go on; you will be told."
    return many


async def background_resume(ctx: Context, task_id: str, message: str) -> StartedAgent:
    """Talk on with an agent that has answered: it has its whole conversation. Returns at once; the answer comes as a notice.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
        message: What to say to it.
    """
    context = ctx.deps

    def resume(app: App) -> Entry:
        return app.conversations.resume(agents_task(app, context.caller, task_id).task.task_id, message, context.caller)

    entry = await context.call(resume)
    display = (
        f"Resumed {entry.task.task_id} (resume {entry.task.run_count - 1}). Its answer comes as a notice; background_block waits for it."
    )
    return StartedAgent(task_id=entry.task.task_id, status="resumed", display=display)


async def background_cancel(ctx: Context, task_id: str | None = None, batch_id: str | None = None) -> AgentTaskList:
    """Stop a background agent, or all of a batch. Returns when they have stopped.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
        batch_id: Stop all tasks of a batch instead.
    """
    context = ctx.deps

    def cancel(app: App) -> list[str]:
        known = _meant(app, context.caller, [task_id] if task_id else None, batch_id)
        live = [one for one in known if not app.queries.get(one).has_ended]
        if task_id and not live:
            raise NotRunning(task_id=known[0], status=status_of(app.queries.get(known[0])))
        return [app.tasks.cancel(one, context.caller).task.task_id for one in live]

    asked = await context.call(cancel)
    entries = await until(context, asked, min(20.0, context.longest_wait), lambda one: one.has_ended, quiet=True) if asked else []
    context.tells(*entries[:_MOST])
    return _many(context, entries)


async def background_list(ctx: Context, status: str | None = None, batch_id: str | None = None) -> AgentTaskList:
    """List the background agents of this project, newest first, at most 50.

    Args:
        status: Only tasks of one status: running, completed, error, cancelled, resumed.
        batch_id: Only the tasks of a batch.
    """
    context = ctx.deps
    if status is not None and status not in ("running", "completed", "error", "cancelled", "resumed", "waiting"):
        raise BadInput(f"There is no status '{status}'; there are running, completed, error, cancelled, resumed, waiting.")
    entries = await context.call(lambda app: app.queries.list(context.caller, batch=batch_id, everywhere=context.cwd is None, limit=500))
    shown = [entry for entry in entries if _is_agents(entry) and status in (None, status_of(entry))]
    return _many(context, shown[:_MOST])


async def background_clear(ctx: Context, task_ids: list[str] | None = None, batch_id: str | None = None) -> Cleared:
    """Forget background agents that have ended, with their conversations: some, a batch, or all of this project.

    Args:
        task_ids: Ids (or unique parts, or labels) of ended tasks.
        batch_id: Forget those of a batch.
    """
    context = ctx.deps

    def clear(app: App) -> Sequence[str]:
        if task_ids or batch_id is not None:
            known = _meant(app, context.caller, task_ids, batch_id)
        else:
            known = [entry.task.task_id for entry in app.queries.list(context.caller, everywhere=context.cwd is None) if _is_agents(entry)]
        return app.tasks.clear([one for one in known if app.queries.get(one).has_ended], context.caller)

    gone = await context.call(clear)
    return Cleared(cleared=list(gone), display=f"Cleared {len(gone)} task{'s' * (len(gone) != 1)}.")


AGENTS = (background_task, background_output, background_block, background_resume, background_cancel, background_list, background_clear)


def status_of(entry: Entry) -> str:
    """A status in the words of these tools."""
    if entry.status == "failed":
        return "error"
    if entry.status == "pending":
        return "resumed" if entry.run and entry.run.n > 1 else "running"
    return entry.status


def agents_task(app: App, caller: Caller, reference: str) -> Entry:
    """The agent's task that is meant."""
    try:
        entry = app.queries.find(reference, caller)
    except TaskNotFound:
        raise AgentTaskNotFound(task_id=reference) from None
    if entry.task.spec.agent_name is None:
        raise BadInput(f"Task {entry.task.task_id} is a command; use check_task_status and its like for it.")
    if entry.task.is_recurring:
        raise BadInput(f"Task {entry.task.task_id} is a standing task; use task_list and its like for it.")
    return entry


class AgentTaskNotFound(TaskNotFound):
    """Task not found: {task_id}"""


def _meant(app: App, caller: Caller, task_ids: list[str] | None, batch_id: str | None) -> list[str]:
    if not task_ids and batch_id is None:
        raise BadInput("Say which: task_ids, or a batch_id.")
    named = [agents_task(app, caller, reference).task.task_id for reference in task_ids or ()]
    of_batch = app.queries.list(caller, batch=batch_id, limit=500) if batch_id is not None else ()
    return list(dict.fromkeys([*named, *(entry.task.task_id for entry in of_batch if _is_agents(entry))]))


def _is_agents(entry: Entry) -> bool:
    return entry.task.spec.agent_name is not None and not entry.task.is_recurring


def _many(context: ToolContext, entries: Sequence[Entry]) -> AgentTaskList:
    now, tasks = now_ms(), []
    for entry in entries[:_MOST]:
        took = words.elapsed(entry, now)
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
    lines = [_line(context, entry) for entry in entries[:_MOST]]
    return AgentTaskList(tasks=tasks, count=len(tasks), display="\n".join(lines) or "No background tasks.")


def _line(context: ToolContext, entry: Entry) -> str:
    if entry.status == "waiting":
        return outcome(context, entry)
    took = words.elapsed(entry, now_ms())
    long = f" ({words.duration(took)})" if took is not None else ""
    error = f": {entry.run.error}" if entry.run and entry.run.error and entry.run.state not in RUNNING_STATES else ""
    return f"{entry.task.task_id} {status_of(entry)}{long} {shortened(entry.task.spec.description)}{error}"
