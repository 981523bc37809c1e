"""The `task_*` tools: standing tasks for an agent's user, as functions over the services like those of `tools`."""

import json
from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

from backburner.agent_tools.commands import folder_of
from backburner.agent_tools.context import Context, ToolContext
from backburner.agent_tools.results import Done, Started, started
from backburner.core import formatting as words
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

_MOST = 50
Act = Callable[[App, Caller, str], Entry]


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
    """Have something done again and again in the background, or once later: a prompt for an agent, or a command, or both.

    Use it when the user wants something watched, checked or repeated ("check CI every 30 minutes", "tell me when the deploy is done").
    Where a command can tell by itself whether anything happened, give the command alone: it costs no model. With a command and a prompt
    the agent is only asked when the output of the command has changed. A prompt must say all that is to be done each time: the agent
    knows nothing of this conversation. You, or the user, are told as `notify` says. If status is "proposed", a person has to allow the
    command first: say so to the user, word for word as `display` has it.

    Args:
        name: What it is called, such as "watch-ci-main". No two standing tasks of a project have the same name.
        description: What it is for; the user sees it, and so does the agent.
        prompt: What an agent is to do each time.
        command: A command line to run each time, such as "gh run list --limit 5".
        kind: "scheduled" to repeat it, "oneshot" for once (now, or at a time).
        interval: How often: "30s", "5m", "2h", "1d", "1w".
        cron: Or five fields of cron, such as "0 9 * * 1-5".
        timezone: The zone of cron, such as "Europe/Berlin" (default: that of this machine).
        at: For a oneshot, when: "18:30", "2026-02-09 18:30" or "2026-02-09T18:30:00Z".
        notify: When to tell: "always", "on_change", "on_failure" or "never".
        max_runs: How often at the most.
        until: Not after this time.
        after: The id or name of another task: run it each time that has completed, with its result.
        event_source: For kind event, what sets it off: "file:PATH", "command:LINE", "github:OWNER/REPO" or "webhook:NAME".
        event_config: More about that as JSON, such as {"events": "ci_failed", "branch": "main"}.
        channels: Channels of the user's settings to tell besides.
        shell: Run the command with /bin/sh. Needed for pipes, redirects, && and $variables.
    """
    return await _added(ctx.deps, locals(), proposed=False)


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
    """Propose background work that the user did not ask for. Nothing runs until they say yes; what they reject is not proposed again for a day.

    Use it where you notice something worth watching or doing ("PR #42 was discussed but not merged: shall I watch it?"). Say in the
    description, in a sentence to the user, what you noticed and what you offer. For what the user asked for, use task_add.

    Args:
        name: What it is called, such as "watch-pr-42".
        description: What you noticed, and what you offer; the user reads it.
        prompt: What an agent is to do each time.
        command: A command line to run each time.
        kind: "scheduled" to repeat it, "oneshot" for once, "event" with an event_source.
        interval: How often: "30s", "5m", "2h", "1d", "1w".
        cron: Or five fields of cron, such as "0 9 * * 1-5".
        timezone: The zone of cron, such as "Europe/Berlin".
        at: For a oneshot, when.
        notify: When to tell: "always", "on_change", "on_failure" or "never".
        max_runs: How often at the most.
        until: Not after this time.
        after: The id or name of another task: run it each time that has completed.
        event_source: For kind event: "file:PATH", "command:LINE", "github:OWNER/REPO" or "webhook:NAME".
        event_config: More about that as JSON.
        channels: Channels of the user's settings to tell besides.
        shell: Run the command with /bin/sh.
    """
    return await _added(ctx.deps, locals(), proposed=True)


async def _added(context: ToolContext, asked: dict[str, Any], *, proposed: bool) -> Started:
    name, description, prompt, command = asked["name"], asked["description"], asked["prompt"], asked["command"]
    kind, interval, cron, at, max_runs, after = (asked[key] for key in ("kind", "interval", "cron", "at", "max_runs", "after"))
    shell, source = asked["shell"], asked["event_source"]
    if kind not in ("scheduled", "oneshot", "event"):
        raise BadInput(f"kind is scheduled, oneshot or event, not '{kind[:40]}'.")
    if (kind == "event") != bool(source):
        raise BadInput("An event_source is for kind event, which needs one.")
    if kind == "oneshot" and (interval or cron or max_runs):
        raise BadInput("A oneshot runs once: it takes no interval, no cron and no max_runs.")
    if at and kind != "oneshot":
        raise BadInput("A time is for kind oneshot.")
    if not prompt and not command:
        raise BadInput("Say what to do: a prompt, a command, or both.")

    def store(app: App) -> Entry:
        submission = Submission(
            spec=TaskSpec(
                cwd=folder_of(context, None),
                command=CommandSpec(
                    words=() if not command else (command,) if shell else words_of(command), shell=shell and bool(command), umask=umask()
                ),
                agent=AgentSpec("default", prompt or "") if prompt else None,
                name=name,
                description=shortened(description, longest=500),
                channels=tuple(asked["channels"] or ()),
            ),
            environment=environment_for_commands(context.environ),
            session=context.session,
            opened=context.opened,
            proposed=proposed,
        )
        at_once = "now" if kind == "oneshot" and not at and not after else at
        return app.submissions.submit(
            parse_schedule(
                app.queries,
                submission,
                context.caller,
                app.now(),
                notify=asked["notify"],
                every_=interval,
                cron_=cron,
                zone=asked["timezone"],
                at=at_once,
                after=after,
                on=source,
                about=_config(asked["event_config"]),
                until=asked["until"],
                max_runs=max_runs,
            ),
            context.caller,
        )

    entry = await context.call(store)
    if not entry.task.is_recurring or entry.status == "proposed":
        return await started(context, entry)
    when = await context.call(lambda app: app.recurring.explain(entry.task))
    display = f"Standing task {entry.task.task_id} ({visible(name)}): {when}. Tells: {entry.task.spec.notify}."
    return Started(task_id=entry.task.task_id, status=entry.status, display=display)


async def task_list(ctx: Context, status: str | None = None) -> RecurringTaskList:
    """List the standing tasks of this project with their schedules, next runs and last results, newest first, at most 50.

    Args:
        status: Only those of one status: proposed, active, paused, done, failed, cancelled.
    """
    context = ctx.deps
    known = [str(state) for state in TaskState]
    if status is not None and status not in known:
        raise BadInput(f"There is no status '{status[:40]}'; there are {', '.join(known)}.")

    def look(app: App) -> list[RecurringTask]:
        entries = app.queries.list(context.caller, everywhere=context.cwd is None, standing=True, limit=500)
        return [_planned(app, entry) for entry in entries if status in (None, entry.status)][:_MOST]

    tasks = await context.call(look)
    lines = [visible(f"{one['task_id']} {one['status']}: {one['when']}. {one['description']}") for one in tasks]
    return RecurringTaskList(tasks=tasks, count=len(tasks), display="\n".join(lines) or "No standing tasks.")


async def task_pause(ctx: Context, task_id: str) -> Done:
    """Run a standing task no more until task_resume. A run that is at work goes on.

    Args:
        task_id: The task's id, a unique part of it, or its name.
    """
    return await _done(ctx.deps, task_id, lambda app, caller, known: app.recurring.pause(known, caller), "is paused")


async def task_resume(ctx: Context, task_id: str) -> Done:
    """Let a paused standing task go on. One that has used up its budget of the day only goes on by the user's own word.

    Args:
        task_id: The task's id, a unique part of it, or its name.
    """
    return await _done(ctx.deps, task_id, lambda app, caller, known: app.recurring.unpause(known, caller), "goes on")


async def task_cancel(ctx: Context, task_id: str) -> Done:
    """End a standing task for good, and stop its run if one is at work. Its history stays.

    Args:
        task_id: The task's id, a unique part of it, or its name.
    """
    return await _done(ctx.deps, task_id, lambda app, caller, known: app.tasks.cancel(known, caller), "is cancelled")


async def task_run_now(ctx: Context, task_id: str) -> Done:
    """Run a standing task once, out of turn; its schedule stays as it is. You are told of the result as the task says.

    Args:
        task_id: The task's id, a unique part of it, or its name.
    """
    return await _done(ctx.deps, task_id, lambda app, caller, known: app.recurring.run_now(known, caller), "runs now")


TASKS = (task_add, task_propose, task_list, task_pause, task_resume, task_cancel, task_run_now)


def _config(text: str | None) -> dict[str, str]:
    """What else was said of a source."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadInput('event_config is a JSON object, such as {"branch": "main"}.')
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}


async def _done(context: ToolContext, task_id: str, act: Act, how: str) -> Done:
    entry = await context.call(lambda app: act(app, context.caller, _standing(app, context.caller, task_id).task.task_id))
    return Done(task_id=entry.task.task_id, status=entry.status, display=f"{entry.task.task_id} {how}.")


def _standing(app: App, caller: Caller, reference: str) -> Entry:
    entry = app.queries.find(reference, caller)
    if not entry.task.is_recurring:
        other = "check_task_status" if entry.task.spec.agent_name is None else "background_output"
        raise BadInput(f"Task {entry.task.task_id} has no schedule; use {other} and its like for it.")
    return entry


def _planned(app: App, entry: Entry) -> RecurringTask:
    task, run = entry
    planned = RecurringTask(
        task_id=task.task_id,
        name=visible(task.spec.name or ""),
        status=entry.status,
        kind=task.kind,
        when=app.recurring.explain(task),
        description=shortened(task.spec.description, longest=200),
        notify=task.spec.notify or "",
        run_count=task.run_count,
        next_run_at=words.iso(task.recurring.next_run_at),
        last_run_at=words.iso(run.started_at) if run else None,
    )
    if run and (run.end.summary or run.error):
        planned["last_result"] = shortened(readable(f"{run.state}: {run.error or run.end.summary}"), longest=500)
    if task.recurring.paused_because and entry.status == "paused":
        planned["paused_because"] = task.recurring.paused_because
    return planned
