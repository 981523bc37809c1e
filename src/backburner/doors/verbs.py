"""What each verb of the command line does: call the Runtime, print, return an exit code. No verb touches the store."""

import argparse
import os
import sys

from backburner import words
from backburner.doors import render
from backburner.errors import ApprovalDenied, ApprovalRequired, BadInput, NotAPerson, NotRunning, WaitTimedOut
from backburner.lifecycle import Result
from backburner.models import Entry, Submission
from backburner.process import umask
from backburner.runtime import Runtime, now_ms

LISTED = 200
OURS_FAILED, TIMED_OUT = 125, 124


def hint(text: str) -> None:
    """Something for the person, never for a script."""
    print(text, file=sys.stderr)


def duration_ms(text: str) -> int:
    """`90`, `30s`, `5m`, `2h`, `1d`, `1w` in milliseconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 < value * unit < 1e10:
        raise BadInput(f"'{text}' is not a duration; write 30s, 5m, 2h or 1d.")
    return max(1, int(value * unit * 1000))


def run(runtime: Runtime, args: argparse.Namespace) -> int:
    return _started(runtime, _submit(runtime, submission_from(runtime, args), args.yes), args)


def submission_from(runtime: Runtime, args: argparse.Namespace) -> Submission:
    """What the words of the command line ask for."""
    if not args.command:
        raise BadInput("There is no command to run. Write it after `--`: -- COMMAND ARG…")
    here = args.cwd if args.cwd and os.path.isabs(args.cwd) else os.path.normpath(os.path.join(_cwd(), args.cwd or "."))
    return Submission(
        command=_shell_line(args.command) if args.shell else tuple(args.command),
        cwd=here,
        environment=dict(runtime.environ),
        description=getattr(args, "description", None) or "",
        name=getattr(args, "name", None),
        env=_env(args.env),
        shell=args.shell,
        timeout_ms=duration_ms(args.timeout) if getattr(args, "timeout", None) is not None else None,
        umask=umask(),
    )


def restart(runtime: Runtime, args: argparse.Namespace) -> int:
    task = runtime.show(args.id).task
    submission = Submission(
        command=task.command,
        cwd=task.cwd,
        environment=dict(runtime.environ),
        description=task.description,
        name=task.name,
        env=task.env,
        shell=task.shell,
        timeout_ms=task.timeout_ms,
        umask=umask(),
        restarted_from=task.task_id,
    )
    return _started(runtime, _submit(runtime, submission, args.yes), args)


def _submit(runtime: Runtime, submission: Submission, yes: bool) -> Entry:
    """Through the gate: ask where somebody sits, park where nobody does."""
    verdict = runtime.judge(submission)
    if yes:
        runtime.require_person("cli")
    if verdict.decision != "ask":
        return runtime.submit(submission)
    from backburner.doors.ask import Answer, ask, can_ask

    if not yes and can_ask() and _is_person(runtime):
        match ask(submission, verdict):
            case Answer.NO:
                raise ApprovalDenied(reason="you said no")
            case Answer.TRUST:
                runtime.trust(submission.cwd, via="cli")
            case Answer.ALWAYS:
                runtime.always(submission, via="cli")
        yes = True
    return runtime.submit(submission, yes_via="cli" if yes else None)


def _is_person(runtime: Runtime) -> bool:
    """Whether whoever sits here may answer at all; who may not is not asked, and the task waits for one who may."""
    try:
        runtime.require_person("cli")
    except NotAPerson:
        return False
    return True


def _started(runtime: Runtime, entry: Entry, args: argparse.Namespace) -> int:
    task_id = entry.task.task_id
    if entry.run is None:
        if not args.json:
            print(task_id)
        raise ApprovalRequired(task_id=task_id, reason="; ".join(entry.task.reasons))
    if args.wait is None:
        render.print_json(render.as_json(entry, now_ms())) if args.json else print(task_id)
        if sys.stderr.isatty() and not args.json:
            hint(f"Started in the background. Follow it: backburner logs -f {task_id}")
        return 0
    from backburner.doors.live import follow

    if not args.json:
        hint(task_id) if args.wait is True else None
    entry = follow(runtime, entry, timeout=None if args.wait is True else args.wait, silent=args.json)
    if entry.run and entry.status == "waiting":
        raise ApprovalRequired(task_id=task_id, reason=entry.run.error)
    if entry.live:
        render.print_json(render.as_json(entry, now_ms())) if args.json else print(task_id)
        if not args.json:
            hint(f"Still {entry.status} after {args.wait:g} s; it goes on in the background.")
        return 0
    if args.json:
        render.print_json(render.as_json(entry, now_ms()))
    elif entry.status != "completed" or sys.stderr.isatty():
        hint(render.ended_line(entry, now_ms()))
    _told(runtime, [task_id])
    return _own_code(entry)


def _told(runtime: Runtime, task_ids: list[str]) -> None:
    """Mark as told what has really left us: not what a closed pipe or a full disk swallowed."""
    sys.stdout.flush()
    runtime.tell(task_ids=task_ids)


def _own_code(entry: Entry) -> int:
    """The command's own exit code, as `--wait` passes it on."""
    run = entry.run
    assert run is not None
    if run.result in (Result.TIMEOUT, Result.AMBIGUOUS):
        return TIMED_OUT
    if run.exit_code is not None:
        return run.exit_code
    return 1 if run.state == "cancelled" else OURS_FAILED


def list_(runtime: Runtime, args: argparse.Namespace) -> int:
    limit = LISTED if args.limit is None else args.limit or None
    entries = runtime.list(status=args.status, everywhere=args.all, limit=limit)
    now = now_ms()
    if args.json:
        render.print_json([render.as_json(entry, now) for entry in entries])
    elif not entries:
        hint("No background tasks here." if not args.all else "No background tasks.")
    else:
        print(render.table(entries, now) if sys.stdout.isatty() else render.rows(entries, now))
        if args.limit is None and len(entries) == LISTED:
            hint(f"The newest {LISTED}; --limit 0 shows all.")
    return 0


def status(runtime: Runtime, args: argparse.Namespace) -> int:
    entry = runtime.show(args.id)
    runtime.mend(entry)
    output = runtime.tail(entry, 20) if entry.run else b""
    if args.json:
        more = {"output": output.decode("utf-8", "replace"), "log": runtime.log_path(entry) or None}
        render.print_json({**render.as_json(entry, now_ms()), **more})
    else:
        print(render.details(entry, now_ms(), output, runtime.log_path(entry)))
    return 0


def logs(runtime: Runtime, args: argparse.Namespace) -> int:
    from backburner.doors.live import print_log

    entry = runtime.show(args.id)
    if entry.run is None:
        raise BadInput(f"Task {entry.task.task_id} is {entry.status}; it has no output yet.")
    if args.json:
        if args.follow:
            raise BadInput("`logs -f` has no JSON; `logs --json` gives what there is.")
        output = runtime.tail(entry, args.tail if args.tail is not None else sys.maxsize, longest=sys.maxsize)
        render.print_json({"task_id": entry.task.task_id, "log": runtime.log_path(entry), "output": output.decode("utf-8", "replace")})
        return 0
    return print_log(runtime, entry, follow=args.follow, lines=args.tail, raw=args.raw)


def wait(runtime: Runtime, args: argparse.Namespace) -> int:
    from backburner.doors.live import wait_for

    task_ids = _ids(runtime, args.id)
    for task_id in task_ids:
        entry = runtime.show(task_id)
        if entry.status == "proposed":
            raise ApprovalRequired(task_id=task_id, reason="; ".join(entry.task.reasons))
    entries = wait_for(runtime, task_ids, args.timeout, silent=args.json)
    running = [entry.task.task_id for entry in entries if entry.live]
    if args.json:
        render.print_json([render.as_json(entry, now_ms()) for entry in entries])
    _told(runtime, [entry.task.task_id for entry in entries if not entry.live])
    if running:
        if args.json:
            return TIMED_OUT
        raise WaitTimedOut(seconds=f"{args.timeout:g}", task_ids=", ".join(running))
    return 0 if all(entry.status == "completed" for entry in entries) else 1


def cancel(runtime: Runtime, args: argparse.Namespace) -> int:
    """All of them are asked first; then each is waited for until it is proven dead."""
    code, asked = 0, []
    for task_id in _ids(runtime, args.id):
        try:
            asked.append(runtime.cancel(task_id).task.task_id)
        except NotRunning as error:
            if len(args.id) == 1:
                raise
            hint(str(error))
            code = 1
    if not args.json:
        for task_id in asked:
            hint(f"Cancelling task {task_id}...")
    patience = runtime.config.number("commands.cancel_grace_seconds") + 15
    try:
        entries = runtime.wait(asked, patience)
    except WaitTimedOut:
        raise WaitTimedOut(seconds=f"{patience:g}", task_ids=", ".join(asked)) from None
    cancelled = [entry for entry in entries if entry.status in ("cancelled", "rejected")]
    if args.json:
        render.print_json([render.as_json(entry, now_ms()) for entry in entries])
    for entry in entries if not args.json else []:
        done = "cancelled" if entry in cancelled else f"had ended before (status: {entry.status})"
        print(f"Task {entry.task.task_id} {done}.")
    _told(runtime, asked)
    return code if len(cancelled) == len(entries) else 1


def approve(runtime: Runtime, args: argparse.Namespace) -> int:
    return _answer([runtime.approve(task_id, via="cli") for task_id in _ids(runtime, args.id)], args, "approved")


def reject(runtime: Runtime, args: argparse.Namespace) -> int:
    return _answer([runtime.reject(task_id) for task_id in _ids(runtime, args.id)], args, "rejected")


def _ids(runtime: Runtime, references: list[str]) -> list[str]:
    """What is meant, each once: a wrong reference stops everything before anything is done."""
    return list(dict.fromkeys(runtime.show(reference).task.task_id for reference in references))


def _answer(entries: list[Entry], args: argparse.Namespace, word: str) -> int:
    if args.json:
        render.print_json([render.as_json(entry, now_ms()) for entry in entries])
    else:
        for entry in entries:
            print(f"Task {entry.task.task_id} {word}.")
    return 0


def clear(runtime: Runtime, args: argparse.Namespace) -> int:
    if not args.id and not args.ended and not args.old:
        raise BadInput("Say what to clear: ids, --ended, or --old for what is past its retention.")
    from backburner.home import project_of

    project = None if args.all else project_of(_cwd())
    gone = [*runtime.clear(args.id, ended=args.ended, project=project), *(runtime.clean_up() if args.old else ())]
    render.print_json({"cleared": gone}) if args.json else print(f"Cleared {len(gone)} task{'s' * (len(gone) != 1)}.")
    return 0


def inbox(runtime: Runtime, args: argparse.Namespace) -> int:
    notices = runtime.notices(everywhere=not args.here, unread=not args.read)
    if args.json:
        render.print_json([render.notice_json(notice) for notice in notices])
    for notice in notices if not args.json else []:
        print(f"{words.local(notice.created_at)}  {notice.text}")
    if not notices and not args.json:
        hint("Nothing new.")
    if args.ack:
        sys.stdout.flush()
        runtime.tell(notice_ids=[notice.notice_id for notice in notices])
    return 0


def events(runtime: Runtime, args: argparse.Namespace) -> int:
    from backburner.doors.live import print_events

    return print_events(runtime, follow=args.follow, after=args.since, as_json=args.json)


def config(runtime: Runtime, args: argparse.Namespace) -> int:
    values, origins = runtime.config.values, runtime.config.origins
    if args.json:
        render.print_json({name: {"value": value, "origin": origins[name]} for name, value in values.items()})
        return 0
    width, spread = max(map(len, values)), max(len(_toml(value)) for value in values.values())
    for name, value in values.items():
        print(f"{name:{width}} = {_toml(value):{spread}}  # {origins[name]}")
    return 0


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _env(pairs: list[str]) -> dict[str, str]:
    env = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise BadInput(f"--env takes NAME=VALUE, not '{pair}'.")
        env[name] = value
    return env


def _shell_line(command: list[str]) -> tuple[str]:
    """One word is the line itself; several are joined with spaces, as a shell's own `eval` would."""
    return (" ".join(command),)


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise BadInput("The folder you are in does not exist any more.") from None
