"""The tools an agent calls: plain async functions over the services, which return dicts with a `display` for people.

`ctx.deps` is the `ToolContext`: who calls, from where, and how long a call may take. Their docstrings are the published schema.
Output is given in bounded pieces with a cursor. None of them can say yes for a person.
"""

import os

from backburner.agent_tools.context import Context, ToolContext, until
from backburner.agent_tools.results import Cleared, Done, Listed, Output, Started, Status, Waited, outcome, started, status, summary
from backburner.core import task_text as render
from backburner.core.command_words import words_of
from backburner.core.errors import BadInput
from backburner.core.models import Caller, Entry, Submission
from backburner.core.task_spec import CommandSpec, Order, TaskSpec
from backburner.core.terminal_text import readable, shortened
from backburner.services.app import App, now_ms
from backburner.system.caller_identity import environment_for_commands
from backburner.system.log_file import Piece
from backburner.system.processes import umask

_PIECE = 8000  # characters of output in one reading, where nothing else is asked for
_LONGEST_PIECE = 50_000
_MOST_LISTED = 50
_MOST_AWAITED = 500
_STOPPING_SECONDS = 15  # beside the grace, until a cancelled task is given up on for this call


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
    """Start a command in the background and return at once with its task_id.

    Use it for whatever takes longer than a few seconds: tests, builds, installs, servers, long searches. The command goes on when
    this conversation ends, and its whole output is kept. Go on with other work; you are told when it has ended. To need its result
    now, call wait_for_background_tasks.
    If status is "proposed", nothing has started: a person has to allow the command first. Say so to the user, word for word as
    `display` has it, and go on; do not try the same in another way.

    Args:
        command: The command line, such as "pytest -q". Without shell=true it is split into words and run as it is.
        description: What it is for, in a few words; shown to the user.
        working_directory: Where to run it (default: the project).
        shell: Run it with /bin/sh. Needed for pipes, redirects, && and $variables.
        batch: A label that groups tasks, to wait for or list together.
        key: A name for this piece of work. A second call with the same key gives the first task instead of starting another.
        name: A short label that can be used instead of the id.
        after: Ids of tasks that must complete first.
        timeout_seconds: Stop it after this long (default: never).
        stdin: Keep its input open for send_to_background_task.
        ready_when: For servers: a port, or a regular expression for the line that says it is ready.
    """
    context = ctx.deps
    argv = (command,) if shell else words_of(command)
    timeout_ms = None if timeout_seconds is None else int(min(timeout_seconds, 1e9) * 1000)

    def start(app: App) -> tuple[Entry, bool]:
        submission = Submission(
            spec=TaskSpec(
                cwd=folder_of(context, working_directory),
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
        known = app.submissions.find_by_key(submission)
        return known or app.submissions.submit(submission, context.caller), known is not None

    entry, again = await context.call(start)
    return await started(context, entry, again=again)


async def check_task_status(ctx: Context, task_id: str, include_output: bool = True) -> Status:
    """Say how a background task stands: status, exit code, duration, progress, and its last lines of output. Never waits.

    Do not call this in a loop: wait_for_background_tasks waits, and you are told of the end in any case. For all of the output
    call read_background_output.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
        include_output: Include the last 20 lines of output.
    """
    context = ctx.deps

    def look(app: App) -> tuple[Status, str, Entry]:
        entry = command_task(app, context.caller, task_id)
        return *status(app, entry, include_output), entry

    found, context.brief, entry = await context.call(look)
    context.tells(entry)
    return found


async def cancel_background_task(ctx: Context, task_id: str) -> Done:
    """Stop a background task and everything it started. Returns when nothing of it is left.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
    """
    context = ctx.deps
    entry = await context.call(lambda app: app.tasks.cancel(command_task(app, context.caller, task_id).task.task_id, context.caller))
    grace = await context.call(lambda app: app.config.number("commands.cancel_grace_seconds"))
    (entry,) = await until(context, [entry.task.task_id], min(grace + _STOPPING_SECONDS, context.longest_wait), lambda one: one.has_ended)
    context.tells(entry)
    known = entry.task.task_id
    if entry.status in ("cancelled", "rejected"):
        display = f"Task {known} cancelled."
    elif entry.is_live:
        display = f"Task {known} is being stopped; not all of it is gone yet."
    else:
        display = f"Task {known} had ended before (status: {entry.status})."
    return Done(task_id=known, status=entry.status, display=display)


async def list_background_tasks(ctx: Context, status_filter: str | None = None, batch: str | None = None) -> Listed:
    """List the background tasks of this project, newest first, at most 50.

    Args:
        status_filter: Only tasks of one status: pending, running, completed, failed, cancelled, proposed, waiting.
        batch: Only the tasks of a batch.
    """
    context = ctx.deps
    entries = await context.call(
        lambda app: app.queries.list(
            context.caller, status=status_filter, batch=batch, everywhere=context.cwd is None, limit=_MOST_LISTED + 1
        )
    )
    shown, now = [entry for entry in entries[:_MOST_LISTED] if entry.task.spec.agent_name is None], now_ms()
    display = render.table(shown, now, plain=True) if shown else "No background tasks."
    if len(entries) > _MOST_LISTED:
        display += f"\nThe newest {_MOST_LISTED}; there are more."
    return Listed(tasks=[summary(entry, now) for entry in shown], count=len(shown), display=display)


async def wait_for_background_tasks(
    ctx: Context, task_ids: list[str] | None = None, batch: str | None = None, timeout_seconds: float = 25, ready: bool = False
) -> Waited:
    """Wait until background tasks have ended, and say how. Returns earlier when the time is up: `running` then names what goes on.

    Use it when you need the result to go on. If tasks are still running, do something else or call it again; nothing is lost.

    Args:
        task_ids: Ids (or unique parts, or labels) of tasks.
        batch: Wait for all tasks of a batch instead.
        timeout_seconds: How long to wait at the most. A call may return earlier than that; call again.
        ready: Wait only until they are ready, for servers that were started with ready_when.
    """
    context = ctx.deps

    def meant(app: App) -> list[str]:
        if not task_ids and batch is None:
            raise BadInput("Say what to wait for: task_ids, or a batch.")
        named = [command_task(app, context.caller, reference).task.task_id for reference in task_ids or ()]
        of_batch = app.queries.list(context.caller, batch=batch, limit=_MOST_AWAITED + 1) if batch is not None else ()
        known = list(dict.fromkeys([*named, *(entry.task.task_id for entry in of_batch)]))
        if len(known) > _MOST_AWAITED:
            raise BadInput(f"Wait for at most {_MOST_AWAITED} tasks at once; you are told of each end anyway.")
        return known

    def done(entry: Entry) -> bool:
        return not entry.is_live or entry.status == "waiting" or (ready and entry.is_ready)

    known = await context.call(meant)
    patience = min(max(timeout_seconds, 0.0), context.longest_wait)
    entries = await until(context, known, patience, done)
    context.tells(*entries[:_MOST_LISTED])
    now = now_ms()
    running = [entry.task.task_id for entry in entries if not done(entry)]
    lines = [outcome(context, entry) for entry in entries[:_MOST_LISTED]]
    if running:
        lines.append(f"Still running after {patience:g} s: {_named(running)}. Call again, or go on; you will be told.")
    return Waited(tasks=[summary(entry, now) for entry in entries[:_MOST_LISTED]], running=running[:_MOST_LISTED], display="\n".join(lines))


async def read_background_output(
    ctx: Context,
    task_id: str,
    cursor: str | None = None,
    tail: int | None = None,
    containing: str | None = None,
    max_characters: int = _PIECE,
) -> Output:
    """Read a task's output piece by piece: from its start, from a cursor of an earlier reading, or its last lines. Never waits.

    Prefer tail or containing to reading everything. While `more` is true, call again with the `cursor` of the answer.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
        cursor: Go on where an earlier reading ended.
        tail: Only the last so many lines.
        containing: Only lines that hold this text, whatever their case.
        max_characters: How much at the most (up to 50000).
    """
    context = ctx.deps
    most = min(max(max_characters, 100), _LONGEST_PIECE)

    def read(app: App) -> tuple[Entry, Piece]:
        entry = command_task(app, context.caller, task_id)
        return entry, app.runs.read(entry, cursor, most=most, tail=tail, containing=containing)

    entry, piece = await context.call(read)
    text = readable(piece.data.decode("utf-8", "replace"))
    known = entry.task.task_id
    note = f'\n[more: read_background_output("{known}", cursor="{piece.cursor}")]' if piece.more else ""
    display = f"{text}{note}" if text else f"No {'more ' if cursor else ''}output{' yet' if entry.is_live else ''}."
    return Output(task_id=known, status=entry.status, output=text, cursor=piece.cursor, more=piece.more, display=display)


async def send_to_background_task(ctx: Context, task_id: str, text: str, newline: bool = True) -> Done:
    """Write to the input of a task that was started with stdin=true, such as the answer to a question it asks.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
        text: What to write.
        newline: End it with a newline, as Enter would.
    """
    data = text.encode("utf-8", "replace") + b"\n" * newline
    context = ctx.deps
    entry = await context.call(lambda app: app.tasks.send(command_task(app, context.caller, task_id).task.task_id, data, context.caller))
    return Done(task_id=entry.task.task_id, status=entry.status, display=f"Sent {len(data)} bytes to {entry.task.task_id}.")


async def restart_background_task(ctx: Context, task_id: str) -> Started:
    """Run the command of an ended task again, as a new task with an id of its own. Returns at once.

    Args:
        task_id: The task's id, a unique part of it, its label, or "last".
    """
    context = ctx.deps

    def again(app: App) -> Entry:
        before = command_task(app, context.caller, task_id)
        if not before.has_ended:
            raise BadInput(f"Task {before.task.task_id} is {before.status}; only what has ended can be run again.")
        environment = environment_for_commands(context.environ)
        return app.submissions.submit(app.submissions.copy_of(before, environment, context.caller), context.caller)

    return await started(context, await context.call(again))


async def clear_background_tasks(ctx: Context, task_ids: list[str]) -> Cleared:
    """Forget tasks that have ended, with their output. What is running is never touched. Old tasks go by themselves.

    Args:
        task_ids: Ids (or unique parts, or labels) of ended tasks.
    """
    context = ctx.deps
    gone = await context.call(lambda app: app.tasks.clear(task_ids, context.caller))
    return Cleared(cleared=list(gone), display=f"Cleared {len(gone)} task{'s' * (len(gone) != 1)}.")


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
    """The command's task that is meant."""
    entry = app.queries.find(reference, caller)
    if entry.task.spec.agent_name is not None:
        raise BadInput(f"Task {entry.task.task_id} is an agent's; use background_output and its like for it.")
    return entry


def _named(task_ids: list[str]) -> str:
    more = len(task_ids) - _MOST_LISTED
    return ", ".join(task_ids[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def folder_of(context: ToolContext, wanted: str | None) -> str:
    """Where a call works."""
    if context.cwd is None and (wanted is None or not os.path.isabs(wanted)):
        raise BadInput("Say where to run it: working_directory must be an absolute path here.")
    return os.path.normpath(os.path.join(context.cwd or "/", os.path.expanduser(wanted or ".")))
