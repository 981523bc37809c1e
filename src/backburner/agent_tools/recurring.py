"""The `task_*` tools: recurring tasks. They follow the same rules as the tools in `commands`."""

import json
from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

from backburner.agent_tools.commands import resolve_working_directory
from backburner.agent_tools.context import Context, ToolContext
from backburner.agent_tools.results import Done, Started, started
from backburner.core import formatting
from backburner.core.command_words import words_of
from backburner.core.errors import BadInput
from backburner.core.models import Caller, Entry, Submission
from backburner.core.states import TaskState
from backburner.core.task_spec import AgentSpec, CommandSpec, TaskSpec
from backburner.core.terminal_text import readable, shortened, visible
from backburner.services.app import App
from backburner.services.schedule_requests import parse_schedule
from backburner.system.caller_identity import environment_for_commands
from backburner.system.processes import umask

_MAX_LISTED_TASKS = 50
_OPEN = (TaskState.PROPOSED, TaskState.ACTIVE, TaskState.PAUSED)
RecurringAction = Callable[[App, Caller, str], Entry]


class RecurringTask(TypedDict):
    task_id: str
    name: str
    status: str
    kind: str
    when: str
    description: str
    notify: str
    run_count: int
    next_run_at: str | None
    last_run_at: str | None
    last_result: NotRequired[str]
    paused_because: NotRequired[str]


class RecurringTaskList(TypedDict):
    tasks: list[RecurringTask]
    count: int
    display: str


async def task_add(
    ctx: Context,
    name: str,
    description: str,
    prompt: str | None = None,
    command: str | None = None,
    kind: str = "scheduled",
    interval: str | None = None,
    cron: str | None = None,
    timezone: str | None = None,
    at: str | None = None,
    notify: str = "on_change",
    max_runs: int | None = None,
    until: str | None = None,
    after: str | None = None,
    event_source: str | None = None,
    event_config: dict[str, Any] | None = None,
    channels: list[str] | None = None,
    shell: bool = False,
    working_directory: str | None = None,
) -> Started:
    """Run something repeatedly, or once later: a command, a prompt for an agent, or both (then the agent runs when the output changed).

    For what the user wants watched, checked or repeated. A command alone uses no model. A prompt must be complete: the agent cannot see this
    conversation. Status "proposed": the user must approve first; show `display` word for word.

    Args:
        name: Unique in the project, such as "watch-ci".
        description: Shown to the user and the agent.
        kind: "scheduled", "oneshot" (now, or `at`) or "event".
        interval: "30s", "5m", "2h", "1d".
        cron: Instead of interval: "0 9 * * 1-5".
        timezone: Of cron.
        at: "18:30" or "2026-02-09 18:30".
        notify: "always", "on_change", "on_failure" or "never".
        until: Time of the end.
        after: Run when this task completes, with its result.
        event_source: file:PATH, command:LINE, github:OWNER/REPO or webhook:NAME.
        event_config: Such as {"events": "ci_failed", "branch": "main"}.
        channels: Also send notices there.
        shell: Use /bin/sh.
        working_directory: Default: the project.
    """
    return await _add_task(ctx.deps, locals(), proposed=False)


async def task_propose(
    ctx: Context,
    name: str,
    description: str,
    prompt: str | None = None,
    command: str | None = None,
    kind: str = "scheduled",
    interval: str | None = None,
    cron: str | None = None,
    timezone: str | None = None,
    at: str | None = None,
    notify: str = "on_change",
    max_runs: int | None = None,
    until: str | None = None,
    after: str | None = None,
    event_source: str | None = None,
    event_config: dict[str, Any] | None = None,
    channels: list[str] | None = None,
    shell: bool = False,
    working_directory: str | None = None,
) -> Started:
    """Propose work that the user did not ask for; parameters as for task_add. Nothing runs until the user approves.

    Args:
        description: What you noticed and offer, in one sentence.
    """
    return await _add_task(ctx.deps, locals(), proposed=True)


async def _add_task(context: ToolContext, arguments: dict[str, Any], *, proposed: bool) -> Started:
    name, description, prompt, command = arguments["name"], arguments["description"], arguments["prompt"], arguments["command"]
    kind, interval, cron, at, max_runs, after = (arguments[key] for key in ("kind", "interval", "cron", "at", "max_runs", "after"))
    shell, source = arguments["shell"], arguments["event_source"]
    if kind not in ("scheduled", "oneshot", "event"):
        raise BadInput(f"Invalid kind '{kind[:40]}'. Use scheduled, oneshot or event.")
    if (kind == "event") != bool(source):
        raise BadInput('event_source is required for kind "event" and not allowed for other kinds.')
    if kind == "oneshot" and (interval or cron or max_runs):
        raise BadInput('kind "oneshot" runs once: interval, cron and max_runs are not allowed.')
    if at and kind != "oneshot":
        raise BadInput('`at` is only allowed for kind "oneshot".')
    if not prompt and not command:
        raise BadInput("Specify a prompt, a command, or both.")

    def store(app: App) -> Entry:
        submission = Submission(
            spec=TaskSpec(
                cwd=resolve_working_directory(context, arguments["working_directory"]),
                command=CommandSpec(
                    words=() if not command else (command,) if shell else words_of(command), shell=shell and bool(command), umask=umask()
                ),
                agent=AgentSpec("default", prompt or "") if prompt else None,
                name=name,
                description=shortened(description, longest=500),
                channels=tuple(arguments["channels"] or ()),
            ),
            environment=environment_for_commands(context.environ),
            session=context.session,
            opened=context.opened,
            proposed=proposed,
        )
        start_at = "now" if kind == "oneshot" and not at and not after else at
        return app.submissions.submit(
            parse_schedule(
                app.queries,
                submission,
                context.caller,
                app.now(),
                notify=arguments["notify"],
                every_=interval,
                cron_=cron,
                zone=arguments["timezone"],
                at=start_at,
                after=after,
                on=source,
                about=_source_options(arguments["event_config"]),
                until=arguments["until"],
                max_runs=max_runs,
            ),
            context.caller,
        )

    entry = await context.call(store)
    watcher = await context.call(lambda app: app.recurring.watcher_of(entry.task))
    if watcher and watcher.status == "proposed" and entry.status != "proposed":
        waiting = await started(context, watcher)
        display = (
            f"Recurring task {entry.task.task_id} ({visible(name)}) runs only when its watch command is approved.\n{waiting['display']}"
        )
        return Started(task_id=entry.task.task_id, status="proposed", reasons=waiting["reasons"], display=display)
    if not entry.task.is_recurring or entry.status == "proposed":
        return await started(context, entry)
    when = await context.call(lambda app: app.recurring.explain(entry.task))
    display = f"Recurring task {entry.task.task_id} ({visible(name)}): {when}. Notify: {entry.task.spec.notify}."
    return Started(task_id=entry.task.task_id, status=entry.status, display=display)


async def task_list(ctx: Context, status: str | None = None) -> RecurringTaskList:
    """Open recurring tasks with schedule and last result.

    Args:
        status: proposed, active, paused, done, failed or cancelled.
    """
    context = ctx.deps
    states = [str(state) for state in TaskState]
    if status is not None and status not in states:
        raise BadInput(f"Invalid status '{status[:40]}'. Use one of: {', '.join(states)}.")

    def read(app: App) -> list[RecurringTask]:
        entries = app.queries.list(context.caller, everywhere=context.cwd is None, recurring=True, limit=500)
        listed = [entry for entry in entries if (entry.status in _OPEN if status is None else entry.status == status)]
        return [_describe(app, entry) for entry in listed[:_MAX_LISTED_TASKS]]

    tasks = await context.call(read)
    lines = [visible(f"{task['task_id']} {task['status']}: {task['when']}. {task['description']}") for task in tasks]
    return RecurringTaskList(tasks=tasks, count=len(tasks), display="\n".join(lines) or "No recurring tasks.")


async def task_pause(ctx: Context, task_id: str) -> Done:
    """Pause a recurring task."""
    return await _apply(ctx.deps, task_id, lambda app, caller, full_id: app.recurring.pause(full_id, caller), "is paused")


async def task_resume(ctx: Context, task_id: str) -> Done:
    """Resume a paused recurring task."""
    return await _apply(ctx.deps, task_id, lambda app, caller, full_id: app.recurring.unpause(full_id, caller), "is resumed")


async def task_cancel(ctx: Context, task_id: str) -> Done:
    """End a recurring task for good."""
    return await _apply(ctx.deps, task_id, lambda app, caller, full_id: app.tasks.cancel(full_id, caller), "is cancelled")


async def task_run_now(ctx: Context, task_id: str) -> Done:
    """Run a recurring task now as well."""
    return await _apply(ctx.deps, task_id, lambda app, caller, full_id: app.recurring.run_now(full_id, caller), "runs now")


TASKS = (task_add, task_propose, task_list, task_pause, task_resume, task_cancel, task_run_now)


def _source_options(config: dict[str, Any] | None) -> dict[str, str]:
    """The options of an event source. Values that are not strings are passed as JSON text."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in (config or {}).items()}


async def _apply(context: ToolContext, task_id: str, action: RecurringAction, result: str) -> Done:
    entry = await context.call(lambda app: action(app, context.caller, _find_recurring_task(app, context.caller, task_id).task.task_id))
    return Done(task_id=entry.task.task_id, status=entry.status, display=f"{entry.task.task_id} {result}.")


def _find_recurring_task(app: App, caller: Caller, reference: str) -> Entry:
    entry = app.queries.find(reference, caller)
    if not entry.task.is_recurring:
        other_tool = "check_task_status" if entry.task.spec.agent_name is None else "background_output"
        raise BadInput(f"Task {entry.task.task_id} is not a recurring task. Use {other_tool} instead.")
    return entry


def _describe(app: App, entry: Entry) -> RecurringTask:
    task, run = entry
    described = RecurringTask(
        task_id=task.task_id,
        name=visible(task.spec.name or ""),
        status=entry.status,
        kind=task.kind,
        when=app.recurring.explain(task, upcoming=entry.status == TaskState.ACTIVE),
        description=shortened(task.spec.description, longest=200),
        notify=task.spec.notify or "",
        run_count=task.run_count,
        next_run_at=formatting.iso(task.recurring.next_run_at),
        last_run_at=formatting.iso(run.started_at) if run else None,
    )
    if run and (run.end.summary or run.error):
        described["last_result"] = shortened(readable(f"{run.state}: {run.error or run.end.summary}"), longest=500)
    if task.recurring.paused_because and entry.status == "paused":
        described["paused_because"] = task.recurring.paused_because
    return described
