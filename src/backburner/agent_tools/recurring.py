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
    event_config: str | None = None,
    channels: list[str] | None = None,
    shell: bool = False,
) -> Started:
    """Run something repeatedly in the background, or once later: a prompt for an agent, a command, or both.

    Use it when the user wants something watched, checked or repeated ("check CI every 30 minutes", "tell me when the deploy is done").
    If the output of a command is enough, give only the command: it uses no model. With a command and a prompt, the agent runs only when
    the output of the command has changed. The agent cannot see this conversation, so the prompt must be complete. You, or the user, are
    notified according to `notify`. If status is "proposed", the user must approve the command first: show the user `display` word for word.

    Args:
        name: A name unique in the project, such as "watch-ci-main".
        description: What it is for; shown to the user and to the agent.
        prompt: The instructions for the agent in each run.
        command: A command line to run each time, such as "gh run list --limit 5".
        kind: "scheduled" to repeat it, "oneshot" to run it once (now, or at a time), "event" with an event_source.
        interval: How often: "30s", "5m", "2h", "1d", "1w".
        cron: Instead of interval: five cron fields, such as "0 9 * * 1-5".
        timezone: Time zone of cron, such as "Europe/Berlin" (default: the zone of this machine).
        at: Start time of a oneshot: "18:30", "2026-02-09 18:30" or "2026-02-09T18:30:00Z".
        notify: When to send a notice: "always", "on_change", "on_failure" or "never".
        max_runs: Maximum number of runs.
        until: No runs after this time.
        after: Id or name of another task: run each time that task completes, with its result.
        event_source: For kind event, the trigger: "file:PATH", "command:LINE", "github:OWNER/REPO" or "webhook:NAME".
        event_config: Options of the event source as JSON, such as {"events": "ci_failed", "branch": "main"}.
        channels: Also send notices to these channels of the user's settings.
        shell: Run the command with /bin/sh. Needed for pipes, redirects, && and $variables.
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
    event_config: str | None = None,
    channels: list[str] | None = None,
    shell: bool = False,
) -> Started:
    """Propose background work that the user did not ask for. Nothing runs until the user approves; a rejected proposal cannot be repeated for a day.

    Use it when you notice something worth watching or doing ("PR #42 was discussed but not merged: shall I watch it?"). In the
    description, tell the user in one sentence what you noticed and what you offer. For what the user asked for, use task_add.

    Args:
        name: A name unique in the project, such as "watch-pr-42".
        description: What you noticed and what you offer; shown to the user.
        prompt: The instructions for the agent in each run.
        command: A command line to run each time.
        kind: "scheduled" to repeat it, "oneshot" to run it once, "event" with an event_source.
        interval: How often: "30s", "5m", "2h", "1d", "1w".
        cron: Instead of interval: five cron fields, such as "0 9 * * 1-5".
        timezone: Time zone of cron, such as "Europe/Berlin".
        at: Start time of a oneshot.
        notify: When to send a notice: "always", "on_change", "on_failure" or "never".
        max_runs: Maximum number of runs.
        until: No runs after this time.
        after: Id or name of another task: run each time that task completes.
        event_source: For kind event: "file:PATH", "command:LINE", "github:OWNER/REPO" or "webhook:NAME".
        event_config: Options of the event source as JSON.
        channels: Also send notices to these channels of the user's settings.
        shell: Run the command with /bin/sh.
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
                cwd=resolve_working_directory(context, None),
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
                about=_parse_event_config(arguments["event_config"]),
                until=arguments["until"],
                max_runs=max_runs,
            ),
            context.caller,
        )

    entry = await context.call(store)
    if not entry.task.is_recurring or entry.status == "proposed":
        return await started(context, entry)
    when = await context.call(lambda app: app.recurring.explain(entry.task))
    display = f"Recurring task {entry.task.task_id} ({visible(name)}): {when}. Notify: {entry.task.spec.notify}."
    return Started(task_id=entry.task.task_id, status=entry.status, display=display)


async def task_list(ctx: Context, status: str | None = None) -> RecurringTaskList:
    """List the recurring tasks of this project with their schedules, next runs and last results, newest first, at most 50.

    Args:
        status: Only tasks with this status: proposed, active, paused, done, failed, cancelled.
    """
    context = ctx.deps
    states = [str(state) for state in TaskState]
    if status is not None and status not in states:
        raise BadInput(f"Invalid status '{status[:40]}'. Use one of: {', '.join(states)}.")

    def read(app: App) -> list[RecurringTask]:
        entries = app.queries.list(context.caller, everywhere=context.cwd is None, recurring=True, limit=500)
        return [_describe(app, entry) for entry in entries if status in (None, entry.status)][:_MAX_LISTED_TASKS]

    tasks = await context.call(read)
    lines = [visible(f"{task['task_id']} {task['status']}: {task['when']}. {task['description']}") for task in tasks]
    return RecurringTaskList(tasks=tasks, count=len(tasks), display="\n".join(lines) or "No recurring tasks.")


async def task_pause(ctx: Context, task_id: str) -> Done:
    """Pause a recurring task until task_resume. A current run continues.

    Args:
        task_id: The task's id, a unique part of it, or its name.
    """
    return await _apply(ctx.deps, task_id, lambda app, caller, full_id: app.recurring.pause(full_id, caller), "is paused")


async def task_resume(ctx: Context, task_id: str) -> Done:
    """Resume a paused recurring task. If its daily budget is used up, only the user can resume it.

    Args:
        task_id: The task's id, a unique part of it, or its name.
    """
    return await _apply(ctx.deps, task_id, lambda app, caller, full_id: app.recurring.unpause(full_id, caller), "is resumed")


async def task_cancel(ctx: Context, task_id: str) -> Done:
    """End a recurring task permanently, and stop its current run. Its history is kept.

    Args:
        task_id: The task's id, a unique part of it, or its name.
    """
    return await _apply(ctx.deps, task_id, lambda app, caller, full_id: app.tasks.cancel(full_id, caller), "is cancelled")


async def task_run_now(ctx: Context, task_id: str) -> Done:
    """Start a manual run of a recurring task; its schedule does not change. You are notified of the result according to the task's `notify`.

    Args:
        task_id: The task's id, a unique part of it, or its name.
    """
    return await _apply(ctx.deps, task_id, lambda app, caller, full_id: app.recurring.run_now(full_id, caller), "runs now")


TASKS = (task_add, task_propose, task_list, task_pause, task_resume, task_cancel, task_run_now)


def _parse_event_config(text: str | None) -> dict[str, str]:
    """Parse the options of an event source. Values that are not strings are passed as JSON text."""
    try:
        options = json.loads(text or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise BadInput('event_config must be a JSON object, such as {"branch": "main"}.')
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}


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
        when=app.recurring.explain(task),
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
