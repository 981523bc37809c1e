"""`run` and `restart`: start a command in the background and, with `--wait`, follow it to its end."""

import os
import sys

from backburner.core.errors import ApprovalDenied, ApprovalRequired, BadInput, NotAPerson
from backburner.core.ids import masked
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import PRIORITIES, SANDBOX, Caller, Entry, Submission
from backburner.core.sessions import SessionId
from backburner.core.states import Result
from backburner.core.task_spec import CommandSpec, Limits, Order, TaskSpec
from backburner.core.terminal_text import visible
from backburner.services.app import App, now_ms
from backburner.system.caller_identity import client_process, environment_for_commands
from backburner.system.paths import project_of
from backburner.system.processes import umask

if TYPE_CHECKING:
    from argparse import Namespace

INTERNAL_FAILURE, TIMED_OUT = 125, 124  # exit codes of `--wait`, as timeout(1) and docker use them
_DEFAULT_RESTARTS = 10
# Variables that differ from call to call or from terminal to terminal without affecting the command.
_VOLATILE_VARIABLES = frozenset(
    ["_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES", "TRACEPARENT", "WINDOWID", "COLORTERM", "STY", "GPG_TTY", "SSH_TTY"]
    + ["SSH_CLIENT", "SSH_CONNECTION", "TERM", "TERMCAP", "WINDOW"]
)
_VOLATILE_PREFIXES = (
    ("BACKBURNER_", "TMUX", "TERM_", "VTE_", "XDG_SESSION_", "KITTY_", "WEZTERM_", "ALACRITTY_", "GHOSTTY_", "KONSOLE_")
    + ("ITERM_", "GNOME_TERMINAL_", "VSCODE_", "ZELLIJ", "WT_")
)  # fmt: skip
_MAX_VALUE_CHARS = 60


def run(app: App, caller: Caller, args: "Namespace") -> int:
    submission = placed(app, submission_from(caller, args), args)
    if (existing := app.submissions.find_by_key(submission)) is not None:
        from backburner.interfaces.cli.tasks import hint

        hint(f"Key '{visible(args.key)}' is already used by task {existing.task.task_id} ({existing.status}); nothing new was started.")
        return _report(app, caller, existing, args)
    entry = submit(app, caller, submission, args.yes)
    if submission.session is not None:
        client = SessionId.parse(submission.session).client
        app.sessions.register(submission.session, client, project_of(caller.cwd), client_process(caller.environ))
    return _report(app, caller, entry, args)


def submission_from(caller: Caller, args: "Namespace") -> Submission:
    """The submission that the arguments describe."""
    if not args.command:
        raise BadInput("No command to run. Write it after `--`: -- COMMAND ARG…")
    directory = args.cwd if args.cwd and os.path.isabs(args.cwd) else os.path.normpath(os.path.join(cwd(), args.cwd or "."))
    command = CommandSpec(words=shell_line(args.command) if args.shell else tuple(args.command), shell=args.shell, umask=umask())
    spec = TaskSpec(cwd=directory, command=command, env=parse_env(args.env))
    if hasattr(args, "batch"):  # `check` has only the options of the command itself
        spec = spec._replace(
            command=command._replace(
                stdin=args.stdin, tty=args.tty, ready_when=args.ready_when, restarts=_restarts(args.restart), limits=_limits(args)
            ),
            name=args.name,
            description=args.description or "",
            order=Order(args.batch, args.key, PRIORITIES[args.priority], tuple(args.after), _start_at(args)),
            timeout_ms=milliseconds(args.timeout),
        )
    return Submission(spec, environment_for_commands(caller.environ), session=caller.session, opened=cwd())


def placed(app: App, submission: Submission, args: "Namespace") -> Submission:
    """The submission with the place that the arguments name."""
    rerun = getattr(args, "rerun", False)
    if not (args.lane or args.host or rerun):
        return submission
    if rerun and not (app.host_id and (args.lane or args.host)):
        raise BadInput("--rerun needs --lane or --host, and a ledger that several hosts share: it says that another host may run it again.")
    return submission.with_spec(order=submission.spec.order._replace(place=app.hosts.place(args.lane, args.host), rerun=rerun))


def milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    from backburner.core.time_input import duration_ms

    return duration_ms(text)


def _start_at(args: "Namespace") -> int | None:
    if args.in_ is not None:
        return now_ms() + (milliseconds(args.in_) or 0)
    if args.at is None:
        return None
    from backburner.core.time_input import moment_ms

    return moment_ms(args.at, now_ms())


def _limits(args: "Namespace") -> Limits:
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
    policy, colon, maximum = text.partition(":")
    if policy != "on-failure" or (colon and not (maximum.isdecimal() and 0 < int(maximum[:9]) <= 1000)):
        raise BadInput(f"--restart takes on-failure or on-failure:N with N up to 1000, not '{text}'.")
    return int(maximum) if colon else _DEFAULT_RESTARTS


def restart(app: App, caller: Caller, args: "Namespace") -> int:
    """Start the same command as a new task in the current environment, and print how the environment has changed."""
    from backburner.interfaces.cli.tasks import hint

    before = app.queries.find(args.id, caller)
    submission = app.submissions.copy_of(before, environment_for_commands(caller.environ), caller)
    changes = _environment_changes(app.queries.environment(before), caller.environ)
    if not args.json:
        for name, (old, new) in changes.items():
            hint(f"Changed since the first run: {_describe_change(name, old, new)}")
    entry = submit(app, caller, submission, args.yes)
    return _report(
        app, caller, entry, args, {"environment_changes": {name: {"before": old, "now": new} for name, (old, new) in changes.items()}}
    )


def _environment_changes(before: dict[str, str], now: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """The old and new values of changed variables by name; values that look secret are masked."""
    names = sorted(
        name
        for name in before.keys() | now.keys()
        if before.get(name) != now.get(name) and name not in _VOLATILE_VARIABLES and not name.startswith(_VOLATILE_PREFIXES)
    )
    old, new = masked(before), masked(now)
    return {name: (old.get(name), new.get(name)) for name in names}


def _describe_change(name: str, old: str | None, new: str | None) -> str:
    before, now = (visible(value)[:_MAX_VALUE_CHARS] if value is not None else None for value in (old, new))
    if before is None:
        return f"{visible(name)} is now set ({now})"
    if now is None:
        return f"{visible(name)} is no longer set (was {before})"
    return f"{visible(name)} is now {now} (was {before})"


def submit(app: App, caller: Caller, submission: Submission, yes: bool) -> Entry:
    """Submit a task through the gate. What needs approval and was not approved at the terminal is stored as a proposal."""
    approved_via, seen = approval_of(app, caller, submission, yes)
    return app.submissions.submit(submission, caller, approved_via=approved_via, seen=seen)


def approval_of(app: App, caller: Caller, submission: Submission, yes: bool) -> tuple[str | None, str | None]:
    """Through which interface a person approves a task, and the fingerprint that was shown; None for what is not approved or needs no approval.

    A command that needs approval is shown at the terminal, if there is one. A prompt needs no approval, because the gate checks each
    step of its agent.
    """
    if not submission.spec.command.words:
        return None, None
    verdict = app.gate.check(submission)
    if yes:
        app.identity.require_person(caller)
    else:
        app.gate.require_program(submission)
    if verdict.decision != "ask" and not (yes and verdict.decision == "sandbox"):
        return None, None
    from backburner.interfaces.cli.approval_prompt import Answer, ask, can_ask

    seen = None
    if not yes and can_ask() and _is_person(app, caller):
        seen = app.gate.fingerprint(submission)
        match ask(submission, verdict, app.recurring.explain(submission) if submission.is_recurring else None, seen):
            case Answer.NO:
                raise ApprovalDenied(reason="you rejected it")
            case Answer.TRUST:
                app.approvals.trust_project(submission.spec.cwd, caller)
            case Answer.ALWAYS:
                app.approvals.allow_always(submission, caller)
        yes = True
    return "cli" if yes else None, seen


def _is_person(app: App, caller: Caller) -> bool:
    """Whether the caller may approve. A caller who may not is not prompted, and the task waits for approval."""
    try:
        app.identity.require_person(caller)
    except NotAPerson:
        return False
    return True


def _report(app: App, caller: Caller, entry: Entry, args: "Namespace", extra: dict[str, object] | None = None) -> int:
    """Print the task ID or its JSON; with `--wait`, follow the task to its end and return its exit code."""
    task_id, extra = entry.task.task_id, extra or {}
    if entry.run is None:
        if not args.json:
            print(task_id)
        raise ApprovalRequired(task_id=task_id, reason="; ".join(entry.task.decision.reasons))
    if entry.task.spec.order.place and (absence := app.hosts.absence(entry.run)):
        print(absence, file=sys.stderr)
    if args.wait is None and not args.json:
        print(task_id)
        if sys.stderr.isatty():
            print(_start_message(app, entry), file=sys.stderr)
        return 0
    from backburner.core import task_text  # `run` without options does not need it

    if args.wait is None:
        task_text.print_json({**task_text.as_json(entry, now_ms()), **extra})
        return 0
    from backburner.interfaces.cli.live_output import follow
    from backburner.interfaces.cli.tasks import acknowledge, hint

    if not args.json and args.wait is True:
        hint(task_id)
    entry = follow(app, entry, timeout=None if args.wait is True else args.wait, silent=args.json)
    if entry.run and entry.status == "waiting":
        raise ApprovalRequired(task_id=task_id, reason=entry.run.error)
    if entry.is_live:
        if args.json:
            task_text.print_json({**task_text.as_json(entry, now_ms()), **extra})
        else:
            print(task_id)
            hint(f"Still {entry.status} after {args.wait:g} s; continuing in the background.")
        return 0
    if args.json:
        task_text.print_json({**task_text.as_json(entry, now_ms()), **extra})
    elif entry.status != "completed" or (entry.run and entry.run.end.notes) or sys.stderr.isatty():
        hint(task_text.ended_line(entry, now_ms()))
    acknowledge(app, caller, [task_id])
    if entry.run and entry.run.end.problem == SANDBOX:
        return _outside(app, caller, entry, args)
    return _exit_code(entry)


def _outside(app: App, caller: Caller, entry: Entry, args: "Namespace") -> int:
    """Offer to run a command again that may have failed because of the sandbox."""
    from backburner.core.ids import outside_id
    from backburner.interfaces.cli.approval_prompt import can_ask, read_answer
    from backburner.interfaces.cli.questions import YES_NO

    task_id = outside_id(entry.task.task_id)
    if args.json or not can_ask() or not _is_person(app, caller):
        raise ApprovalRequired(task_id=task_id, reason=entry.run.error if entry.run else "")
    choices, offered = YES_NO, "[y/n]"
    if port := app.runs.port_to_permit(entry):
        choices = YES_NO | {"c": "connect"}
        offered = f"[y/n, c: permit this project to connect to port {port}, and run it in the sandbox again]"
    answer = read_answer(f"The command failed; {entry.run.error if entry.run else ''}.", f"Run it without the sandbox? {offered}", choices)
    if answer == "yes":
        return _report(app, caller, app.approvals.approve(task_id, caller), args)
    app.approvals.reject(task_id, caller)
    if answer != "connect" or port is None:
        return _exit_code(entry)
    app.approvals.permit_port(entry.task.spec.cwd, port, caller)
    again = app.submissions.copy_of(entry, environment_for_commands(caller.environ), caller)
    return _report(app, caller, submit(app, caller, again, yes=False), args)


def _start_message(app: App, entry: Entry) -> str:
    """What to tell a person about a task that was just submitted."""
    if not entry.is_live:
        from backburner.core import task_text

        return task_text.ended_line(entry, now_ms())
    if entry.run and (entry.run.blocked or entry.run.due_at is not None):
        return f"Waiting for {app.runs.pending_reason(entry)}."
    return f"Started in the background. To follow its output: backburner logs -f {entry.task.task_id}"


def _exit_code(entry: Entry) -> int:
    """The exit code of `--wait`: the command's own if it has one."""
    run = entry.run
    assert run is not None
    if run.end.result in (Result.TIMEOUT, Result.AMBIGUOUS):
        return TIMED_OUT
    if run.end.exit_code is not None:
        return run.end.exit_code
    return 1 if run.state == "cancelled" else INTERNAL_FAILURE


def parse_env(pairs: list[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadInput(f"--env takes NAME=VALUE, not '{pair}'.")
        env[name] = value
    return env


def shell_line(command: list[str]) -> tuple[str]:
    """The command as one line for the shell; several words are joined with spaces, like the shell's `eval` does."""
    return (" ".join(command),)


def cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise BadInput("The current directory no longer exists.") from None


def parse_amounts(option: str, pairs: list[str]) -> dict[str, float]:
    """Parse NAME=NUMBER pairs."""
    amounts = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            amounts[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise BadInput(f"{option} takes NAME=NUMBER, with tokens, tool_calls, cost or seconds, not '{pair}'.")
    return amounts
