"""`ask`, `resume`, `agents` and `sessions`: agents in the background, from the command line."""

import argparse
import os
import sys

from backburner.core import formatting as words
from backburner.core import task_text as render
from backburner.core.errors import ApprovalRequired, BackburnerError, BadInput
from backburner.core.models import PRIORITIES, Caller, Entry, Submission
from backburner.core.optional_dependencies import need
from backburner.core.states import Result
from backburner.core.task_spec import AgentSpec, Order, TaskSpec, budget_from, options_from
from backburner.core.terminal_text import readable, shortened, visible
from backburner.interfaces.cli.run import cwd, milliseconds, parse_amounts
from backburner.interfaces.cli.tasks import acknowledge, hint
from backburner.services.app import App, now_ms
from backburner.system.caller_identity import environment_for_commands
from backburner.system.processes import is_alive


def ask(app: App, caller: Caller, args: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    here = os.path.normpath(os.path.join(cwd(), args.cwd or "."))
    submission = Submission(
        spec=TaskSpec(
            cwd=here,
            agent=AgentSpec(args.agent, prompt, options_from({"worktree": True} if args.worktree else {})),
            name=args.name,
            description=args.description or shortened(" ".join(prompt.split()), longest=80),
            timeout_ms=milliseconds(args.timeout),
            order=Order(batch=args.batch, key=args.key, priority=PRIORITIES["high" if args.wait else "normal"], after=tuple(args.after)),
            budget=budget_from(parse_amounts("--budget", args.budget)),
        ),
        environment=environment_for_commands(caller.environ),
        session=caller.session,
        opened=cwd(),
    )
    return _asked(app, caller, app.submissions.submit(submission, caller), args)


def resume(app: App, caller: Caller, args: argparse.Namespace) -> int:
    message = sys.stdin.read() if args.message == "-" else args.message
    return _asked(app, caller, app.conversations.resume(args.id, message, caller), args)


def _asked(app: App, caller: Caller, entry: Entry, args: argparse.Namespace) -> int:
    task_id = entry.task.task_id
    if entry.status == "proposed":
        raise ApprovalRequired(task_id=task_id, reason="; ".join(entry.task.decision.reasons))
    if not args.wait:
        render.print_json(render.as_json(entry, now_ms())) if args.json else print(task_id)
        if sys.stderr.isatty() and not args.json:
            hint(f"Asked in the background. Its answer: backburner wait {task_id}; backburner logs {task_id}")
        return 0
    with app.sessions.interactive(entry.task.lane, task_id):
        for (entry,) in app.waiting.watch([task_id], None):
            if entry.run and entry.status == "waiting":
                raise ApprovalRequired(task_id=task_id, reason=entry.run.error)
            if not entry.is_live:
                break
    output = readable(app.runs.tail(entry, 1 << 30, longest=8 << 20).decode("utf-8", "replace"))
    if args.json:
        render.print_json({**render.as_json(entry, now_ms()), "answer": output})
    else:
        sys.stdout.write(output)
        if entry.status != "completed":
            why = f": {entry.run.error}" if entry.run and entry.run.end.result == Result.EXIT and entry.run.error else ""
            hint(f"{render.ended_line(entry, now_ms())}{why}")
    acknowledge(app, caller, [task_id])
    return 0 if entry.status == "completed" else 1


def agents(app: App, caller: Caller, args: argparse.Namespace) -> int:
    names = sorted({"default", *app.config.agents, *app.agents.installed(caller)})
    if len(names) > 1 and "default" not in app.config.agents and not app.config.text("models.default"):
        names.remove("default")  # there are others to ask
    rows = [_about(app, name) for name in names]
    if args.check:
        need("agent", "Agents need")
        from backburner.agents.health import check_agent

        for row, name in zip(rows, names, strict=True):
            if not row["problem"]:
                row["problem"] = check_agent(app.home, app.agents.settings(name), caller.environ) or ""
    if args.json:
        render.print_json(rows)
    for row in rows if not args.json else ():
        print(f"{row['name']:14} {row['model'] or row['command'] or '-':36} {row['problem'] or row['description']}")
    return 0 if not args.check or not any(row["problem"] for row in rows) else 1


def _about(app: App, name: str) -> dict[str, str]:
    try:
        settings = app.agents.settings(name)
    except BackburnerError as error:
        return {"name": name, "type": "", "model": "", "command": "", "description": "", "problem": str(error)}
    command = settings.get("url") or settings["command"] if settings["type"] else ""
    about = {"name": name, "type": settings["type"], "model": settings["model"], "command": command}
    return {**about, "description": settings.get("description", ""), "problem": ""}


def sessions(app: App, caller: Caller, args: argparse.Namespace) -> int:
    if args.what == "end":
        if not args.session:
            raise BadInput("Say which: backburner sessions end SESSION")
        ended = app.tasks.end_session(args.session)
        render.print_json({"session": args.session, "cleared": ended}) if args.json else print(
            f"Session {visible(args.session)} ended; {len(ended)} tasks went with it."
        )
        return 0
    found = app.sessions.list()
    if args.json:
        render.print_json(
            [
                {
                    **one._asdict(),
                    "process": str(one.process) if one.process else None,
                    "seen_at": words.iso(one.seen_at),
                    "created_at": words.iso(one.created_at),
                }
                for one in found
            ]
        )
        return 0
    for one in found:
        here = "here" if is_alive(one.process) else "gone" if one.process else "-"
        print(f"{one.session_id}  {here}  last seen {words.local_time(one.seen_at)}  {visible(one.project)}")
    if not found:
        hint("No agent has asked for anything yet.")
    return 0
