"""`ask`, `resume`, `agents` and `sessions`: agent tasks and sessions on the command line."""

import argparse
import os
import sys

from backburner.core import formatting, task_text
from backburner.core.errors import ApprovalRequired, BackburnerError, BadInput, WaitTimedOut
from backburner.core.models import PRIORITIES, Caller, Entry, Submission
from backburner.core.optional_dependencies import need
from backburner.core.task_spec import AgentSpec, Order, TaskSpec, budget_from, options_from
from backburner.core.terminal_text import readable, shortened, visible
from backburner.interfaces.cli.run import cwd, milliseconds, parse_amounts, placed
from backburner.interfaces.cli.tasks import acknowledge, hint
from backburner.services.app import App, now_ms
from backburner.system.caller_identity import environment_for_commands
from backburner.system.processes import is_alive


def ask(app: App, caller: Caller, args: argparse.Namespace) -> int:
    prompt, timeout = _text_and_timeout(args.prompt, args.wait, "prompt")
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
    return _print_started(app, caller, app.submissions.submit(placed(app, submission, args), caller), args, timeout)


def resume(app: App, caller: Caller, args: argparse.Namespace) -> int:
    message, timeout = _text_and_timeout(args.message, args.wait, "message")
    return _print_started(app, caller, app.conversations.resume(args.id, message, caller), args, timeout)


def _text_and_timeout(text: str | None, wait: str | bool | None, what: str) -> tuple[str, float | None]:
    """The text for an agent, and how many seconds to wait (None: no limit). The word after `--wait` is the text if there is no other."""
    if text is None and isinstance(wait, str):
        text, wait = wait, True
    if text is None:
        raise BadInput(f"No {what} given.")
    timeout = None
    if isinstance(wait, str):
        try:
            timeout = float(wait)
        except ValueError:
            raise BadInput(f"'{wait}' is not a number of seconds. Put a {what} of several words in quotes.") from None
    return sys.stdin.read() if text == "-" else text, timeout


def _print_started(app: App, caller: Caller, entry: Entry, args: argparse.Namespace, timeout: float | None) -> int:
    """Print the task ID, or with `--wait` the answer."""
    task_id = entry.task.task_id
    if entry.status == "proposed":
        raise ApprovalRequired(task_id=task_id, reason="; ".join(entry.task.decision.reasons))
    if not args.wait:
        if args.json:
            task_text.print_json(task_text.as_json(entry, now_ms()))
            return 0
        print(task_id)
        if sys.stderr.isatty():
            hint(f"Started in the background. To see the answer: backburner wait {task_id}; backburner logs {task_id}")
        return 0
    with app.sessions.interactive(entry.task.lane, task_id):
        for (entry,) in app.waiting.watch([task_id], timeout):
            if entry.run and entry.status == "waiting":
                raise ApprovalRequired(task_id=task_id, reason=entry.run.error)
            if not entry.is_live:
                break
    if entry.is_live:
        raise WaitTimedOut(seconds=timeout, task_ids=task_id)
    output = readable(app.runs.tail(entry, 1 << 30, longest=8 << 20).decode("utf-8", "replace"))
    if args.json:
        task_text.print_json({**task_text.as_json(entry, now_ms()), "answer": output})
    else:
        sys.stdout.write(output)
        if entry.status != "completed":
            hint(task_text.ended_line(entry, now_ms()))
    acknowledge(app, caller, [task_id])
    return 0 if entry.status == "completed" else 1


def agents(app: App, caller: Caller, args: argparse.Namespace) -> int:
    names = sorted({"default", *app.config.agents, *app.agents.installed(caller)})
    if len(names) > 1 and "default" not in app.config.agents and not app.config.text("models.default"):
        names.remove("default")  # no model is set for it, and other agents are available
    rows = [_agent_row(app, name) for name in names]
    if args.check:
        need("agent", "Agents need")
        from backburner.agents.health import check_agent

        for row, name in zip(rows, names, strict=True):
            if not row["problem"]:
                row["problem"] = check_agent(app.home, app.agents.settings(name), caller.environ) or ""
    if args.json:
        task_text.print_json(rows)
    else:
        for row in rows:
            note = row["problem"] or ("answers" if args.check else row["description"])
            print(f"{row['name']:14} {row['model'] or row['command'] or '-':36} {note}")
    return 0 if not args.check or not any(row["problem"] for row in rows) else 1


def _agent_row(app: App, name: str) -> dict[str, str]:
    try:
        settings = app.agents.settings(name)
    except BackburnerError as error:
        return {"name": name, "type": "", "model": "", "command": "", "description": "", "problem": str(error)}
    command = settings.get("url") or settings["command"] if settings["type"] else ""
    row = {"name": name, "type": settings["type"], "model": settings["model"], "command": command}
    return {**row, "description": settings.get("description", ""), "problem": ""}


def sessions(app: App, caller: Caller, args: argparse.Namespace) -> int:
    if args.what == "end":
        if not args.session:
            raise BadInput("No session given. Usage: backburner sessions end SESSION")
        cleared = app.tasks.end_session(args.session)
        if args.json:
            task_text.print_json({"session": args.session, "cleared": cleared})
        else:
            print(f"Session {visible(args.session)} ended; {len(cleared)} tasks deleted.")
        return 0
    sessions = app.sessions.list()
    if args.json:
        task_text.print_json(
            [
                {
                    **session._asdict(),
                    "process": str(session.process) if session.process else None,
                    "seen_at": formatting.iso(session.seen_at),
                    "created_at": formatting.iso(session.created_at),
                }
                for session in sessions
            ]
        )
        return 0
    for session in sessions:
        state = "-"
        if session.process:
            state = "active" if is_alive(session.process) else "closed"
        elif session.host != app.host_id:
            state = f"on host {app.hosts.name_of(session.host)}"
        print(f"{session.session_id}  {state}  last seen {formatting.local_time(session.seen_at)}  {visible(session.project)}")
    if not sessions:
        hint("No sessions.")
    return 0
