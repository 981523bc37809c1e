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
    rejection_reason,
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
    """Start a command in the background; returns its task_id at once.

    For what takes longer than a few seconds: tests, builds, servers. It continues after this conversation. Go on; you are notified when it
    ends.
    Status "proposed": nothing runs until the user approves. Show the user `display` word for word; do not try another way.
    Unapproved commands run in a sandbox: no network, home or secrets; in an untrusted project, a copy. If one fails because of that, the
    result says how the user can allow it; do not retry.

    Args:
        command: Such as "pytest -q"; run without a shell.
        description: Shown to the user.
        working_directory: Default: the project.
        shell: Use /bin/sh, for pipes, redirects, && and $variables.
        batch: Label for a group of tasks.
        key: Idempotency key: a second call returns the first task.
        name: Label, usable as task_id.
        after: Ids that must complete first.
        stdin: Keep input open for send_to_background_task.
        ready_when: For servers: port, or regex of the output line that says it is ready.
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
    """State, exit code, progress and last 20 lines of output. Never waits. Do not poll: you are notified.

    Args:
        task_id: Id, unique part of it, label, or "last".
    """
    context = ctx.deps

    def read(app: App) -> tuple[Status, str, Entry]:
        entry = command_task(app, context.caller, task_id)
        return *status(app, entry, include_output), entry

    result, context.brief, entry = await context.call(read)
    context.mark_reported(entry)
    return result


async def cancel_background_task(ctx: Context, task_id: str) -> Done:
    """Stop a task and all its processes."""
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
    """The newest 50 tasks of this project.

    Args:
        status_filter: pending, running, completed, failed, cancelled, proposed or waiting.
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
    """Wait for tasks to end, when you cannot go on without their results. May return early: `running` lists the unfinished; call again.

    Args:
        batch: Instead of task_ids.
        ready: Only until servers are ready.
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
    shown = entries[:_MAX_LISTED_TASKS]
    reasons = await context.call(lambda app: [rejection_reason(app, entry) for entry in shown])
    lines = [describe_outcome(context, entry) + reason for entry, reason in zip(shown, reasons, strict=True)]
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
    """Read output in pieces. Prefer tail or containing. While `more` is true, call again with `cursor`.

    Args:
        tail: Only the last lines.
        containing: Only lines with this text.
        max_characters: Up to 50000.
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
    display += f"\n[{piece.note}]" if piece.note else ""
    return Output(task_id=full_id, status=entry.status, output=text, cursor=piece.cursor, more=piece.more, display=display)


async def send_to_background_task(ctx: Context, task_id: str, text: str, newline: bool = True, eof: bool = False) -> Done:
    """Write to the input of a task started with stdin=true.

    Args:
        newline: Append a newline.
        eof: Then close the input.
    """
    data = text.encode("utf-8", "replace") + b"\n" * (newline and bool(text or not eof))
    context = ctx.deps

    def send(app: App) -> Entry:
        return app.tasks.send(command_task(app, context.caller, task_id).task.task_id, data, context.caller, end=eof)

    entry = await context.call(send)
    closed = " and closed its input" if eof else ""
    return Done(task_id=entry.task.task_id, status=entry.status, display=f"Sent {len(data)} bytes to {entry.task.task_id}{closed}.")


async def restart_background_task(ctx: Context, task_id: str) -> Started:
    """Run an ended task's command again, as a new task."""
    context = ctx.deps

    def restart(app: App) -> Entry:
        previous = command_task(app, context.caller, task_id)
        if not previous.has_ended:
            raise BadInput(f"Task {previous.task.task_id} is {previous.status}; only an ended task can be restarted.")
        environment = environment_for_commands(context.environ)
        return app.submissions.submit(app.submissions.copy_of(previous, environment, context.caller), context.caller)

    return await started(context, await context.call(restart))


async def clear_background_tasks(ctx: Context, task_ids: list[str]) -> Cleared:
    """Delete ended tasks and their output. Old ones are deleted automatically."""
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
