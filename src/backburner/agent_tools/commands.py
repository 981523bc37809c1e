"""The tools for background commands: plain async functions over the services. Each returns a dict with a `display` text for people.

`ctx.deps` is the `ToolContext`: the caller, its directory, and the maximum duration of a call. The docstrings are the published schema.
Output is returned in pieces of limited size with a cursor. No tool can approve anything for a person.
"""

import os

from backburner.agent_tools.context import Context, ToolContext, wait_until
from backburner.agent_tools.results import (
    Cleared,
    Done,
    Listed,
    Output,
    Started,
    Status,
    Waited,
    cleared,
    describe_outcome,
    started,
    status,
    summary,
)
from backburner.core import task_text
from backburner.core.command_words import words_of
from backburner.core.errors import BadInput
from backburner.core.models import Caller, Entry, Submission
from backburner.core.task_spec import CommandSpec, Order, TaskSpec
from backburner.core.terminal_text import readable, shortened
from backburner.services.app import App, now_ms
from backburner.system.caller_identity import environment_for_commands
from backburner.system.log_file import Piece
from backburner.system.processes import umask

_DEFAULT_PIECE_CHARACTERS = 8000
_MAX_PIECE_CHARACTERS = 50_000
_MAX_LISTED_TASKS = 50
_MAX_WAITED_TASKS = 500
_STOP_TIMEOUT_SECONDS = 15  # how long a call waits for a cancelled task, in addition to the grace period


async def start_background_task(
    ctx: Context,
    command: str,
    description: str,
    working_directory: str | None = None,
    shell: bool = False,
    batch: str | None = None,
    key: str | None = None,
    name: str | None = None,
    after: list[str] | None = None,
    timeout_seconds: float | None = None,
    stdin: bool = False,
    ready_when: str | None = None,
) -> Started:
    """Start a command in the background and return its task_id immediately.

    Use it for anything that takes longer than a few seconds: tests, builds, installs, servers, long searches. The command keeps running
    when this conversation ends, and all its output is kept. Continue with other work; you are notified when it ends. If you need the
    result now, call wait_for_background_tasks.
    If status is "proposed", nothing has started: the user must approve the command first. Show the user `display` word for word and
    continue; do not try the same thing in another way.

    Args:
        command: The command line, such as "pytest -q". Without shell=true it is split into words and run without a shell.
        description: What it is for, in a few words; shown to the user.
        working_directory: Directory to run it in (default: the project).
        shell: Run it with /bin/sh. Needed for pipes, redirects, && and $variables.
        batch: A label for a group of tasks, to wait for or list together.
        key: Idempotency key. A second call with the same key returns the first task instead of starting another.
        name: A short label that can be used instead of the id.
        after: Ids of tasks that must complete first.
        timeout_seconds: Stop it after this many seconds (default: never).
        stdin: Keep its input open for send_to_background_task.
        ready_when: For servers: a port, or a regular expression that matches the output line printed when it is ready.
    """
    context = ctx.deps
    argv = (command,) if shell else words_of(command)
    timeout_ms = None if timeout_seconds is None else int(min(timeout_seconds, 1e9) * 1000)

    def start(app: App) -> tuple[Entry, bool]:
        submission = Submission(
            spec=TaskSpec(
                cwd=resolve_working_directory(context, working_directory),
                command=CommandSpec(words=argv, shell=shell, stdin=stdin, umask=umask(), ready_when=ready_when),
                name=name,
                description=shortened(description, longest=500),
                timeout_ms=timeout_ms,
                order=Order(batch=batch, key=key, after=tuple(after or ())),
            ),
            environment=environment_for_commands(context.environ),
            session=context.session,
            opened=context.opened,
        )
        existing = app.submissions.find_by_key(submission)
        return existing or app.submissions.submit(submission, context.caller), existing is not None

    entry, already_started = await context.call(start)
    return await started(context, entry, already_started=already_started)


async def check_task_status(ctx: Context, task_id: str, include_output: bool = True) -> Status:
    """Return the status of a background task: state, exit code, duration, progress, and last lines of output. Never waits.

    Do not call this in a loop: wait_for_background_tasks waits, and you are notified when the task ends. For the full output call
    read_background_output.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
        include_output: Include the last 20 lines of output.
    """
    context = ctx.deps

    def read(app: App) -> tuple[Status, str, Entry]:
        entry = command_task(app, context.caller, task_id)
        return *status(app, entry, include_output), entry

    result, context.brief, entry = await context.call(read)
    context.mark_reported(entry)
    return result


async def cancel_background_task(ctx: Context, task_id: str) -> Done:
    """Stop a background task and every process it started. Returns when all of them have ended.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
    """
    context = ctx.deps
    entry = await context.call(lambda app: app.tasks.cancel(command_task(app, context.caller, task_id).task.task_id, context.caller))
    grace = await context.call(lambda app: app.config.number("commands.cancel_grace_seconds"))
    full_id, timeout_seconds = entry.task.task_id, min(grace + _STOP_TIMEOUT_SECONDS, context.max_wait_seconds)
    (entry,) = await wait_until(context, [full_id], timeout_seconds, lambda entry: entry.has_ended)
    context.mark_reported(entry)
    if entry.status in ("cancelled", "rejected"):
        display = f"Task {full_id} cancelled."
    elif entry.is_live:
        display = f"Task {full_id} is being stopped; some of its processes are still running."
    else:
        display = f"Task {full_id} had already ended (status: {entry.status})."
    return Done(task_id=full_id, status=entry.status, display=display)


async def list_background_tasks(ctx: Context, status_filter: str | None = None, batch: str | None = None) -> Listed:
    """List the background tasks of this project, newest first, at most 50.

    Args:
        status_filter: Only tasks with this status: pending, running, completed, failed, cancelled, proposed, waiting.
        batch: Only the tasks of a batch.
    """
    context = ctx.deps
    entries = await context.call(
        lambda app: app.queries.list(
            context.caller, status=status_filter, batch=batch, everywhere=context.cwd is None, limit=_MAX_LISTED_TASKS + 1
        )
    )
    shown, now = [entry for entry in entries[:_MAX_LISTED_TASKS] if entry.task.spec.agent_name is None], now_ms()
    display = task_text.table(shown, now, plain=True) if shown else "No background tasks."
    if len(entries) > _MAX_LISTED_TASKS:
        display += f"\nOnly the newest {_MAX_LISTED_TASKS} are listed."
    return Listed(tasks=[summary(entry, now) for entry in shown], count=len(shown), display=display)


async def wait_for_background_tasks(
    ctx: Context, task_ids: list[str] | None = None, batch: str | None = None, timeout_seconds: float = 25, ready: bool = False
) -> Waited:
    """Wait until background tasks have ended, and return their results. On timeout it returns early: `running` lists unfinished tasks.

    Use it when you cannot continue without the result. If tasks are still running, do something else or call it again; nothing is lost.

    Args:
        task_ids: Task ids (or unique parts of them, or labels).
        batch: Wait for all tasks of a batch instead.
        timeout_seconds: Maximum wait. A call may return earlier; call again.
        ready: Wait only until they are ready, for servers started with ready_when.
    """
    context = ctx.deps

    def resolve_task_ids(app: App) -> list[str]:
        if not task_ids and batch is None:
            raise BadInput("Specify task_ids or batch.")
        given_ids = [command_task(app, context.caller, reference).task.task_id for reference in task_ids or ()]
        batch_entries = app.queries.list(context.caller, batch=batch, limit=_MAX_WAITED_TASKS + 1) if batch is not None else ()
        resolved_ids = list(dict.fromkeys([*given_ids, *(entry.task.task_id for entry in batch_entries)]))
        if len(resolved_ids) > _MAX_WAITED_TASKS:
            raise BadInput(f"Wait for at most {_MAX_WAITED_TASKS} tasks at once. You are notified when each task ends.")
        return resolved_ids

    def is_done(entry: Entry) -> bool:
        return not entry.is_live or entry.status == "waiting" or (ready and entry.is_ready)

    resolved_ids = await context.call(resolve_task_ids)
    timeout = min(max(timeout_seconds, 0.0), context.max_wait_seconds)
    entries = await wait_until(context, resolved_ids, timeout, is_done)
    context.mark_reported(*entries[:_MAX_LISTED_TASKS])
    now = now_ms()
    running = [entry.task.task_id for entry in entries if not is_done(entry)]
    lines = [describe_outcome(context, entry) for entry in entries[:_MAX_LISTED_TASKS]]
    if running:
        lines.append(f"Still running after {timeout:g} s: {_join_ids(running)}. Call again, or do something else; you will be notified.")
    return Waited(
        tasks=[summary(entry, now) for entry in entries[:_MAX_LISTED_TASKS]], running=running[:_MAX_LISTED_TASKS], display="\n".join(lines)
    )


async def read_background_output(
    ctx: Context,
    task_id: str,
    cursor: str | None = None,
    tail: int | None = None,
    containing: str | None = None,
    max_characters: int = _DEFAULT_PIECE_CHARACTERS,
) -> Output:
    """Read a task's output in pieces: from the start, from a cursor of an earlier call, or only the last lines. Never waits.

    Prefer tail or containing to reading everything. While `more` is true, call again with the returned `cursor`.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
        cursor: The `cursor` of an earlier call, to continue after it.
        tail: Only this many last lines.
        containing: Only lines that contain this text (case-insensitive).
        max_characters: Maximum characters to return (up to 50000).
    """
    context = ctx.deps
    limit = min(max(max_characters, 100), _MAX_PIECE_CHARACTERS)

    def read(app: App) -> tuple[Entry, Piece]:
        entry = command_task(app, context.caller, task_id)
        return entry, app.runs.read(entry, cursor, most=limit, tail=tail, containing=containing)

    entry, piece = await context.call(read)
    text = readable(piece.data.decode("utf-8", "replace"))
    full_id = entry.task.task_id
    note = f'\n[more: read_background_output("{full_id}", cursor="{piece.cursor}")]' if piece.more else ""
    display = f"{text}{note}" if text else f"No {'more ' if cursor else ''}output{' yet' if entry.is_live else ''}."
    return Output(task_id=full_id, status=entry.status, output=text, cursor=piece.cursor, more=piece.more, display=display)


async def send_to_background_task(ctx: Context, task_id: str, text: str, newline: bool = True) -> Done:
    """Write to the standard input of a task started with stdin=true, for example to answer its prompt.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
        text: The text to write.
        newline: Append a newline, like pressing Enter.
    """
    data = text.encode("utf-8", "replace") + b"\n" * newline
    context = ctx.deps
    entry = await context.call(lambda app: app.tasks.send(command_task(app, context.caller, task_id).task.task_id, data, context.caller))
    return Done(task_id=entry.task.task_id, status=entry.status, display=f"Sent {len(data)} bytes to {entry.task.task_id}.")


async def restart_background_task(ctx: Context, task_id: str) -> Started:
    """Run the command of an ended task again, as a new task with its own id. Returns immediately.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
    """
    context = ctx.deps

    def restart(app: App) -> Entry:
        previous = command_task(app, context.caller, task_id)
        if not previous.has_ended:
            raise BadInput(f"Task {previous.task.task_id} is {previous.status}; only an ended task can be restarted.")
        environment = environment_for_commands(context.environ)
        return app.submissions.submit(app.submissions.copy_of(previous, environment, context.caller), context.caller)

    return await started(context, await context.call(restart))


async def clear_background_tasks(ctx: Context, task_ids: list[str]) -> Cleared:
    """Delete ended tasks with their output. Running tasks are never deleted. Old tasks are deleted automatically.

    Args:
        task_ids: Ids (or unique parts of them, or labels) of ended tasks.
    """
    context = ctx.deps
    return cleared(await context.call(lambda app: app.tasks.clear(task_ids, context.caller)))


COMMANDS = (
    start_background_task,
    check_task_status,
    wait_for_background_tasks,
    read_background_output,
    list_background_tasks,
    cancel_background_task,
    send_to_background_task,
    restart_background_task,
    clear_background_tasks,
)


def command_task(app: App, caller: Caller, reference: str) -> Entry:
    """Find a command task by its id, a part of it, its label or "last". BadInput if it is an agent task."""
    entry = app.queries.find(reference, caller)
    if entry.task.spec.agent_name is not None:
        raise BadInput(f"Task {entry.task.task_id} is an agent task. Use background_output (or another background_* tool).")
    return entry


def _join_ids(task_ids: list[str]) -> str:
    more = len(task_ids) - _MAX_LISTED_TASKS
    return ", ".join(task_ids[:_MAX_LISTED_TASKS]) + (f" and {more} more" if more > 0 else "")


def resolve_working_directory(context: ToolContext, given: str | None) -> str:
    """The directory that a call works in, as an absolute path. BadInput if the call must name one and did not."""
    if context.cwd is None and (given is None or not os.path.isabs(given)):
        raise BadInput("working_directory must be an absolute path.")
    return os.path.normpath(os.path.join(context.cwd or "/", os.path.expanduser(given or ".")))
