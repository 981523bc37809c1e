"""`run` and `restart`: asking for work, and staying with it where `--wait` says so."""

import argparse
import os
import sys

from backburner.core import task_text as render
from backburner.core.errors import ApprovalDenied, ApprovalRequired, BadInput, NotAPerson
from backburner.core.ids import masked
from backburner.core.models import PRIORITIES, Caller, Entry, Submission
from backburner.core.sessions import SessionId
from backburner.core.states import Result
from backburner.core.task_spec import CommandSpec, Limits, Order, TaskSpec
from backburner.core.terminal_text import visible
from backburner.interfaces.cli.tasks import acknowledge, hint
from backburner.services.app import App, now_ms
from backburner.system.caller_identity import client_process, environment_for_commands
from backburner.system.home import project_of
from backburner.system.processes import umask

OURS_FAILED, TIMED_OUT = 125, 124
_RESTARTS = 10
# Variables that differ from call to call and mean nothing.
_VOLATILE_VARIABLES = frozenset(
    ["_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES", "TRACEPARENT", "WINDOWID", "TERM_SESSION_ID", "SSH_TTY"]
)
_LONGEST_VALUE = 60


def run(app: App, caller: Caller, args: argparse.Namespace) -> int:
    submission = submission_from(caller, args)
    if (known := app.submissions.find_by_key(submission)) is not None:
        hint(f"The key '{visible(args.key)}' was used before: this is the task of then ({known.status}).")
        return _started(app, caller, known, args)
    entry = submit(app, caller, submission, args.yes)
    if submission.session is not None:
        client = SessionId.parse(submission.session).client
        app.sessions.register(submission.session, client, project_of(caller.cwd), client_process(caller.environ))
    return _started(app, caller, entry, args)


def submission_from(caller: Caller, args: argparse.Namespace) -> Submission:
    """What the words of the command line ask for."""
    if not args.command:
        raise BadInput("There is no command to run. Write it after `--`: -- COMMAND ARG…")
    here = args.cwd if args.cwd and os.path.isabs(args.cwd) else os.path.normpath(os.path.join(cwd(), args.cwd or "."))
    command = CommandSpec(words=shell_line(args.command) if args.shell else tuple(args.command), shell=args.shell, umask=umask())
    spec = TaskSpec(cwd=here, command=command, env=parse_env(args.env))
    if hasattr(args, "batch"):  # `check` asks about the command alone
        spec = spec._replace(
            command=command._replace(stdin=args.stdin, ready_when=args.ready_when, restarts=_restarts(args.restart), limits=_limits(args)),
            name=args.name,
            description=args.description or "",
            order=Order(args.batch, args.key, PRIORITIES[args.priority], tuple(args.after), _start_at(args)),
            timeout_ms=milliseconds(args.timeout),
        )
    return Submission(spec, environment_for_commands(caller.environ), session=caller.session, opened=cwd())


def milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    from backburner.core.time_input import duration_ms

    return duration_ms(text)


def _start_at(args: argparse.Namespace) -> int | None:
    if args.in_ is not None:
        return now_ms() + (milliseconds(args.in_) or 0)
    if args.at is None:
        return None
    from backburner.core.time_input import moment_ms

    return moment_ms(args.at, now_ms())


def _limits(args: argparse.Namespace) -> Limits:
    memory_mb = cpu_seconds = None
    if args.memory is not None:
        from backburner.core.time_input import size_mb

        memory_mb = size_mb(args.memory)
    if args.cpu_time is not None:
        cpu_seconds = max(1, (milliseconds(args.cpu_time) or 0) // 1000)
    return Limits(memory_mb, cpu_seconds, args.nice)


def _restarts(text: str | None) -> int:
    if text is None:
        return 0
    policy, colon, most = text.partition(":")
    if policy != "on-failure" or (colon and not (most.isdecimal() and 0 < int(most[:9]) <= 1000)):
        raise BadInput(f"--restart takes on-failure or on-failure:N with N up to 1000, not '{text}'.")
    return int(most) if colon else _RESTARTS


def restart(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """A new task with the same words in the environment of now; what is different there is said."""
    before = app.queries.find(args.id, caller)
    if before.task.is_recurring:
        raise BadInput(f"Task {before.task.task_id} runs by a schedule; run it out of turn: backburner run-now {before.task.task_id}")
    again = app.submissions.copy_of(before, environment_for_commands(caller.environ), caller)
    changes = _changes(app.queries.environment(before), caller.environ)
    for name, (old, new) in changes.items() if not args.json else ():
        hint(f"Since then {_change(name, old, new)}")
    entry = submit(app, caller, again, args.yes)
    return _started(
        app, caller, entry, args, {"environment_changes": {name: {"before": old, "now": new} for name, (old, new) in changes.items()}}
    )


def _changes(before: dict[str, str], now: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """What is different in the environment, by name; what looks secret is masked."""
    names = sorted(
        name
        for name in before.keys() | now.keys()
        if before.get(name) != now.get(name) and name not in _VOLATILE_VARIABLES and not name.startswith("BACKBURNER_")
    )
    old, new = masked(before), masked(now)
    return {name: (old.get(name), new.get(name)) for name in names}


def _change(name: str, old: str | None, new: str | None) -> str:
    was, now = (visible(value)[:_LONGEST_VALUE] if value is not None else None for value in (old, new))
    if was is None:
        return f"{visible(name)} is set: {now}"
    return f"{visible(name)} is gone: {was}" if now is None else f"{visible(name)} changed: {was} → {now}"


def submit(app: App, caller: Caller, submission: Submission, yes: bool) -> Entry:
    """Through the gate: ask where somebody sits, park where nobody does. A prompt is asked without that: what its agent does is not."""
    if not submission.spec.command.words:
        return app.submissions.submit(submission, caller)
    verdict = app.gate.check(submission)
    if yes:
        app.identity.require_person(caller)
    if verdict.decision != "ask":
        return app.submissions.submit(submission, caller)
    from backburner.interfaces.cli.approval_prompt import Answer, ask, can_ask

    seen = None
    if not yes and can_ask() and _is_person(app, caller):
        seen = app.gate.fingerprint(submission)
        match ask(submission, verdict, app.recurring.explain(submission) if submission.is_recurring else None, seen):
            case Answer.NO:
                raise ApprovalDenied(reason="you said no")
            case Answer.TRUST:
                app.approvals.trust_project(submission.spec.cwd, caller)
            case Answer.ALWAYS:
                app.approvals.allow_always(submission, caller)
        yes = True
    return app.submissions.submit(submission, caller, approved_via="cli" if yes else None, seen=seen)


def _is_person(app: App, caller: Caller) -> bool:
    """Whether whoever sits here may answer at all; who may not is not asked, and the task waits for one who may."""
    try:
        app.identity.require_person(caller)
    except NotAPerson:
        return False
    return True


def _started(app: App, caller: Caller, entry: Entry, args: argparse.Namespace, more: dict[str, object] | None = None) -> int:
    """Say what became of it; with `--wait` stay until its end."""
    task_id, more = entry.task.task_id, more or {}
    if entry.run is None:
        if not args.json:
            print(task_id)
        raise ApprovalRequired(task_id=task_id, reason="; ".join(entry.task.decision.reasons))
    if args.wait is None:
        render.print_json({**render.as_json(entry, now_ms()), **more}) if args.json else print(task_id)
        if sys.stderr.isatty() and not args.json:
            hint(_where(app, entry))
        return 0
    from backburner.interfaces.cli.live_output import follow

    if not args.json:
        hint(task_id) if args.wait is True else None
    entry = follow(app, entry, timeout=None if args.wait is True else args.wait, silent=args.json)
    if entry.run and entry.status == "waiting":
        raise ApprovalRequired(task_id=task_id, reason=entry.run.error)
    if entry.is_live:
        render.print_json({**render.as_json(entry, now_ms()), **more}) if args.json else print(task_id)
        if not args.json:
            hint(f"Still {entry.status} after {args.wait:g} s; it goes on in the background.")
        return 0
    if args.json:
        render.print_json({**render.as_json(entry, now_ms()), **more})
    elif entry.status != "completed" or sys.stderr.isatty():
        hint(render.ended_line(entry, now_ms()))
    acknowledge(app, caller, [task_id])
    return _own_code(entry)


def _where(app: App, entry: Entry) -> str:
    """What a person wants to know of a task that was just asked for."""
    if not entry.is_live:
        return render.ended_line(entry, now_ms())
    if entry.run and (entry.run.blocked or entry.run.due_at is not None):
        return f"Waits for {app.runs.pending_reason(entry)}."
    return f"Started in the background. Follow it: backburner logs -f {entry.task.task_id}"


def _own_code(entry: Entry) -> int:
    """The command's own exit code, as `--wait` passes it on."""
    run = entry.run
    assert run is not None
    if run.end.result in (Result.TIMEOUT, Result.AMBIGUOUS):
        return TIMED_OUT
    if run.end.exit_code is not None:
        return run.end.exit_code
    return 1 if run.state == "cancelled" else OURS_FAILED


def parse_env(pairs: list[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadInput(f"--env takes NAME=VALUE, not '{pair}'.")
        env[name] = value
    return env


def shell_line(command: list[str]) -> tuple[str]:
    """One word is the line itself; several are joined with spaces, as a shell's own `eval` would."""
    return (" ".join(command),)


def cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise BadInput("The folder you are in does not exist any more.") from None


def parse_amounts(option: str, pairs: list[str]) -> dict[str, float]:
    """NAME=NUMBER, any number of them."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise BadInput(f"{option} takes NAME=NUMBER, with tokens, tool_calls, cost or seconds, not '{pair}'.")
    return found
