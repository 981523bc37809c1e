"""`add`, `propose`, `edit`, `pause`, `unpause`, `run-now` and `compact`: recurring tasks on the command line."""

import argparse
import os
import sys

from backburner.core import formatting, task_text
from backburner.core.errors import ApprovalRequired, BadInput
from backburner.core.models import Caller, Entry, Submission
from backburner.core.sessions import SessionId
from backburner.core.states import WaitKind
from backburner.core.task_spec import AgentSpec, CommandSpec, TaskSpec, budget_from, options_from
from backburner.core.terminal_text import readable
from backburner.interfaces.cli.run import approval_of, cwd, milliseconds, parse_amounts, parse_env, placed, shell_line, submit
from backburner.interfaces.cli.tasks import acknowledge, hint
from backburner.services.app import App, now_ms
from backburner.services.schedule_requests import edit_schedule, parse_schedule
from backburner.system.caller_identity import client_process, environment_for_commands
from backburner.system.paths import project_of
from backburner.system.processes import umask

_SHOWN_SLOTS = 5
_SEARCHED_RUNS = 50  # among which the run that was waited for is found


def propose(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Store a recurring task as a proposal, even if the gate would allow it."""
    if args.dry_run:
        return _dry_run(app, _submission(app, caller, args), args)
    entry = app.submissions.submit(_submission(app, caller, args)._replace(proposed=True), caller)
    if args.json:
        task_text.print_json(task_text.as_json(entry, now_ms()))
        return 0
    print(entry.task.task_id)
    hint(f"Waiting for approval. To approve: backburner approve {entry.task.task_id}")
    return 0


def add(app: App, caller: Caller, args: argparse.Namespace) -> int:
    submission, watcher = _submission(app, caller, args), None
    if args.dry_run:
        return _dry_run(app, submission, args)
    if watch := app.submissions.watcher_of(submission):
        watcher = submit(app, caller, watch, args.yes)  # its command is approved separately
        entry = app.submissions.submit_watched(submission, watcher, lambda watched: submit(app, caller, watched, args.yes))
    else:
        entry = submit(app, caller, submission, args.yes)
    if submission.session is not None:
        client = SessionId.parse(submission.session).client
        app.sessions.register(submission.session, client, project_of(caller.cwd), client_process(caller.environ))
    task_id = entry.task.task_id
    proposals = [found.task for found in (entry, watcher) if found and found.status == "proposed"]
    if proposals:
        if not args.json:
            print(task_id)
        if len(proposals) > 1:
            hint(f"Its watch command needs approval too: backburner approve {proposals[1].task_id}")
        raise ApprovalRequired(task_id=proposals[0].task_id, reason="; ".join(proposals[0].decision.reasons))
    when = app.recurring.explain(entry.task) if entry.task.is_recurring else ""
    if args.json:
        task_text.print_json({**task_text.as_json(entry, now_ms()), "when": when})
        return 0
    print(task_id)
    hint(f"{when[:1].upper()}{when[1:]}" if when else f"Waiting for {app.runs.pending_reason(entry)}.")
    if not app.config.flag("tasks.enabled"):
        hint("Recurring tasks are disabled ([tasks] enabled = false): this task will not run.")
    return 0


def _dry_run(app: App, submission: Submission, args: argparse.Namespace) -> int:
    """Print when a task would run and whether it needs approval. Stores nothing."""
    from backburner.core.schedule import moment, upcoming

    app.submissions.check(submission)
    schedule, when = submission.spec.schedule, app.recurring.explain(submission, upcoming=False)
    slots = upcoming(schedule, now_ms(), _SHOWN_SLOTS)
    commands = [found for found in (submission, app.submissions.watcher_of(submission)) if found and found.spec.command.words]
    verdicts = [(formatting.command_line(found.spec.command.words, found.spec.command.shell), app.gate.check(found)) for found in commands]
    if args.json:
        judged = [{"command": line, "verdict": verdict.decision, "reasons": list(verdict.reasons)} for line, verdict in verdicts]
        task_text.print_json({"when": when, "next_runs": [formatting.iso(slot) for slot in slots], "commands": judged})
        return 0
    print(f"{when[:1].upper()}{when[1:]}")
    for number, slot in enumerate(slots):
        print(f"{'Next: ' if number == 0 else '      '}{moment(slot, schedule.zone)}")
    for line, verdict in verdicts:
        needs = "needs approval" if verdict.decision == "ask" else f"verdict: {verdict.decision}"
        print(f"{line}: {needs} ({'; '.join(verdict.reasons)})")
    hint("Dry run: nothing was added.")
    return 0


def _submission(app: App, caller: Caller, args: argparse.Namespace) -> Submission:
    """The submission that the arguments describe."""
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if prompt is None and not args.command:
        raise BadInput("Nothing to run: use --prompt TEXT or write a command after `--`.")
    if prompt is None and (args.wake or args.field or args.recall or args.last_result or args.tools):
        raise BadInput("--wake, --field, --recall, --last-result and --tools require --prompt.")
    agent_options: dict[str, object] = {
        **({"wake": args.wake} if args.wake else {}),
        **({"fields": args.field} if args.field else {}),
        **({"memory": args.recall} if args.recall else {}),
        **({"last_result": True} if args.last_result else {}),
        **({"tools": args.tools} if args.tools else {}),
    }
    submission = Submission(
        spec=TaskSpec(
            cwd=os.path.normpath(os.path.join(cwd(), args.cwd or ".")),
            command=CommandSpec(
                words=(shell_line(args.command) if args.shell else tuple(args.command)) if args.command else (),
                shell=args.shell,
                umask=umask(),
            ),
            agent=AgentSpec(args.agent, prompt or "", options_from(agent_options)) if prompt is not None else None,
            env=parse_env(args.env),
            name=args.name,
            description=args.description or "",
            timeout_ms=milliseconds(args.timeout),
            channels=tuple(args.to),
            budget=budget_from(
                {
                    **parse_amounts("--budget", args.budget),
                    **{f"day_{name}": n for name, n in parse_amounts("--per-day", args.per_day).items()},
                }
            ),
        ),
        environment=environment_for_commands(caller.environ),
        session=caller.session,
        opened=cwd(),
    )
    submission = parse_schedule(
        app.queries,
        submission,
        caller,
        now_ms(),
        notify=args.notify,
        every_=args.every,
        cron_=args.cron,
        zone=args.tz,
        at=args.at,
        in_=args.in_,
        after=args.after,
        on=args.on,
        about=_pairs("--with", args.with_),
        until=args.until,
        max_runs=args.max_runs,
        missed=args.missed,
        window=args.window,
        jitter=args.jitter,
    )
    return placed(app, submission, args)


def edit(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Change what the options name; everything else stays as it is."""
    task = app.queries.find(args.id, caller).task
    spec, prompt = task.spec, sys.stdin.read() if args.prompt == "-" else args.prompt
    app.submissions.edited(task, spec)  # refuses a task that cannot be edited
    if args.command:
        if not spec.command.words:
            raise BadInput(f"Task {task.task_id} has a prompt and no command.")
        words = shell_line(args.command) if args.shell else tuple(args.command)
        spec = spec._replace(command=spec.command._replace(words=words, shell=args.shell))
    if prompt is not None:
        if spec.agent is None:
            raise BadInput(f"Task {task.task_id} has a command and no prompt.")
        spec = spec._replace(agent=spec.agent._replace(prompt=prompt))
    schedule = edit_schedule(
        spec.schedule,
        caller,
        now_ms(),
        every_=args.every,
        cron_=args.cron,
        zone=args.tz,
        at=args.at,
        in_=args.in_,
        until=args.until,
        max_runs=args.max_runs,
        missed=args.missed,
        window=args.window,
        jitter=args.jitter,
    )
    assert spec.recurrence is not None
    spec = spec._replace(
        recurrence=spec.recurrence._replace(schedule=schedule, notify=args.notify or spec.notify),
        description=spec.description if args.description is None else args.description,
        timeout_ms=milliseconds(args.timeout) or spec.timeout_ms,
        channels=tuple(args.to) or spec.channels,
    )
    changed = app.submissions.edited(task, spec)
    approved_via, seen = approval_of(app, caller, changed, args.yes) if args.command else (None, None)
    return _print_states(app, args, [app.submissions.edit(task, spec, caller, approved_via=approved_via, seen=seen)])


def pause(app: App, caller: Caller, args: argparse.Namespace) -> int:
    task_ids = [app.queries.find(reference, caller).task.task_id for reference in args.id]  # find all before pausing any
    return _print_states(app, args, [app.recurring.pause(task_id, caller) for task_id in task_ids])


def unpause(app: App, caller: Caller, args: argparse.Namespace) -> int:
    task_ids = [app.queries.find(reference, caller).task.task_id for reference in args.id]
    return _print_states(app, args, [app.recurring.unpause(task_id, caller) for task_id in task_ids])


def _print_states(app: App, args: argparse.Namespace, entries: list[Entry]) -> int:
    if args.json:
        task_text.print_json([task_text.as_json(entry, now_ms()) for entry in entries])
        return 0
    for entry in entries:
        when = f": {app.recurring.explain(entry.task)}" if entry.status == "active" else ""
        print(f"{entry.task.task_id} {entry.status}{when}")
    return 0


def run_now(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Start a manual run; with --wait, print its output and return 1 if it did not complete."""
    entry = app.recurring.run_now(args.id, caller)
    run_id = entry.run.run_id if entry.run else ""
    if not args.wait:
        if args.json:
            task_text.print_json(task_text.as_json(entry, now_ms()))
        else:
            print(run_id)
        return 0
    task_id = entry.task.task_id
    for (entry,) in app.waiting.watch([task_id], None):
        run = entry.run
        if run and run.state == "waiting" and run.wait_kind is not WaitKind.INTERACTIVE:
            raise ApprovalRequired(task_id=task_id, reason=run.error)
        if not entry.is_live or (run and run.run_id != run_id):  # a retry is a new run
            break
    if entry.run and entry.run.run_id != run_id:
        run = next((run for run in app.queries.history(entry, _SEARCHED_RUNS) if run.run_id == run_id), entry.run)
        entry = entry._replace(run=run)
    output = readable(app.runs.tail(entry, 1 << 30, longest=8 << 20).decode("utf-8", "replace"))
    if args.json:
        task_text.print_json({**task_text.as_json(entry, now_ms()), "output": output})
    else:
        sys.stdout.write(output)
        if entry.run and entry.run.state != "completed":
            hint(task_text.ended_line(entry, now_ms()))
    acknowledge(app, caller, [task_id])
    return 0 if entry.run and entry.run.state == "completed" else 1


def compact(app: App, caller: Caller, args: argparse.Namespace) -> int:
    task_ids = [app.queries.find(reference, caller).task.task_id for reference in args.id]
    count = app.retention.compact(task_ids, args.days)
    if args.json:
        task_text.print_json({"compacted": count})
    else:
        print(f"Deleted {'1 run' if count == 1 else f'{count} runs'}.")
    return 0


def _pairs(option: str, pairs: list[str]) -> dict[str, str]:
    values = dict(pair.partition("=")[::2] for pair in pairs)
    if any("=" not in pair for pair in pairs):
        raise BadInput(f"{option} takes NAME=VALUE, such as branch=main.")
    return values
