"""What each verb of the command line does: call the services, print, return an exit code. No verb touches the store."""

import argparse
import sys
from collections.abc import Sequence

from backburner.core import formatting as words
from backburner.core import task_text as render
from backburner.core.errors import ApprovalDenied, ApprovalRequired, BadInput, NotRunning, QuestionChanged, WaitTimedOut
from backburner.core.ids import is_later_run
from backburner.core.models import Caller, Entry
from backburner.core.terminal_text import visible
from backburner.services.app import App, now_ms

LISTED = 200
TIMED_OUT = 124
_MOST_OUTPUT = 1 << 16  # bytes that a status shows of it


def hint(text: str) -> None:
    """Something for the person, never for a script."""
    print(text, file=sys.stderr)


def acknowledge(app: App, caller: Caller, task_ids: list[str]) -> None:
    """Mark as told what has really left us: not what a closed pipe or a full disk swallowed."""
    sys.stdout.flush()
    app.inbox.acknowledge(task_ids=task_ids, session=caller.session)


def list_(app: App, caller: Caller, args: argparse.Namespace) -> int:
    limit = LISTED if args.limit is None else args.limit or None
    entries = app.queries.list(caller, status=args.status, everywhere=args.all, batch=args.batch, limit=limit)
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


def status(app: App, caller: Caller, args: argparse.Namespace) -> int:
    entry = app.queries.find(args.id, caller)
    app.runs.repair_metadata(entry)
    signs = app.runs.inspect(entry)
    output = app.runs.tail(entry, 20, longest=_MOST_OUTPUT) if entry.run else b""
    if args.json:
        more: dict[str, object] = {"output": output.decode("utf-8", "replace"), "log": app.runs.log_path(entry) or None}
        if entry.task.spec.agent_name is not None and entry.run:
            more |= {"usage": dict(entry.run.end.usage) or render.used_json(app.runs.activity(entry))}
        if entry.task.is_recurring:
            more |= {
                "when": app.recurring.explain(entry.task),
                "runs": [render.run_json(run) for run in app.queries.history(entry, args.runs)],
            }
        render.print_json({**render.as_json(entry, now_ms(), exact=True), **render.inspection_json(signs), **more})
    else:
        when = app.recurring.explain(entry.task, upcoming=entry.status == "active") if entry.task.is_recurring else ""
        if entry.task.spec.source and (reason := app.triggers.broken_reason(entry.task)):
            when += f" (it cannot be watched now: {reason})"
        runs = app.queries.history(entry, args.runs) if entry.task.is_recurring else ()
        print(render.details(entry, now_ms(), output, app.runs.log_path(entry), signs, when, runs))
    return 0


def wait(app: App, caller: Caller, args: argparse.Namespace) -> int:
    from backburner.interfaces.cli.live_output import wait_for

    task_ids = _meant(app, caller, args)
    for task_id in task_ids:
        entry = app.queries.find(task_id, caller)
        if entry.status == "proposed":
            raise ApprovalRequired(task_id=task_id, reason="; ".join(entry.task.decision.reasons))
        if args.ready and entry.task.spec.command.ready_when is None:
            raise BadInput(f"Task {task_id} was not started with `run --ready-when`, so nobody can tell when it is ready.")
    entries = wait_for(app, task_ids, args.timeout, silent=args.json, ready=args.ready)
    if args.ready:
        return _ready(entries, args)
    running = [entry.task.task_id for entry in entries if entry.is_live]
    if args.json:
        render.print_json([render.as_json(entry, now_ms()) for entry in entries])
    acknowledge(app, caller, [entry.task.task_id for entry in entries if not entry.is_live])
    if running:
        if args.json:
            return TIMED_OUT
        raise WaitTimedOut(seconds=f"{args.timeout:g}", task_ids=", ".join(running))
    return 0 if all(entry.run is not None and entry.run.state == "completed" for entry in entries) else 1


def _ready(entries: Sequence[Entry], args: argparse.Namespace) -> int:
    """Exit 0 when all are ready, 1 when one ended before that, 124 when the time was up."""
    if args.json:
        render.print_json([render.as_json(entry, now_ms()) for entry in entries])
    waiting = [entry.task.task_id for entry in entries if entry.is_live and not entry.is_ready]
    if waiting:
        raise WaitTimedOut(seconds=f"{args.timeout:g}", task_ids=", ".join(waiting))
    return 0 if all(entry.is_live for entry in entries) else 1


def batch(app: App, caller: Caller, args: argparse.Namespace) -> int:
    batches = app.queries.batches(caller, everywhere=args.all)
    if args.json:
        render.print_json([{**batch._asdict(), "created_at": words.iso(batch.created_at)} for batch in batches])
    for one in batches if not args.json else []:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(one.counts.items()))
        print(f"{visible(one.batch)}  {counts}{f'  ({visible(one.project)})' if args.all else ''}")
    if not batches and not args.json:
        hint("No batches here." if not args.all else "No batches.")
    return 0


def cancel(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """All of them are asked first; then each is waited for until it is proven dead."""
    from backburner.services.identity import started_by_agent  # only who cancels needs it

    code, asked = 0, []
    by_person = caller.session is None and not started_by_agent(caller.environ)
    runs = {task_id: known for known in args.id if is_later_run(known, task_id := app.queries.find(known, caller).task.task_id)}
    for task_id in _meant(app, caller, args, live=True):
        try:
            asked.append(app.tasks.cancel(runs.get(task_id, task_id), caller, permanent=by_person).task.task_id)
        except NotRunning as error:
            if len(args.id) == 1:
                raise
            hint(str(error))
            code = 1
    if not asked and args.batch is not None and not args.json:
        hint(f"Nothing of the batch '{visible(args.batch)}' is running.")
    if not args.json:
        for task_id in asked:
            hint(f"Cancelling task {task_id}...")
    patience = app.config.number("commands.cancel_grace_seconds") + 15
    try:
        entries = app.waiting.wait(asked, patience)
    except WaitTimedOut:
        raise WaitTimedOut(seconds=f"{patience:g}", task_ids=", ".join(asked)) from None
    cancelled = [
        entry
        for entry in entries
        if entry.status in ("cancelled", "rejected") or (entry.task.task_id in runs and entry.run and entry.run.state == "cancelled")
    ]
    if args.json:
        render.print_json([render.as_json(entry, now_ms()) for entry in entries])
    for entry in entries if not args.json else []:
        done = "cancelled" if entry in cancelled else f"had ended before (status: {entry.status})"
        run_id = runs.get(entry.task.task_id)
        print(f"{f'Run {run_id}' if run_id and entry.task.is_recurring else f'Task {entry.task.task_id}'} {done}.")
    acknowledge(app, caller, [entry.task.task_id for entry in cancelled if entry.run and entry.run.state == "cancelled"])
    return code if len(cancelled) == len(entries) else 1


def approve(app: App, caller: Caller, args: argparse.Namespace) -> int:
    known = _ids(app, caller, args.id)
    if args.seen is not None and len(known) > 1:
        raise BadInput("--seen is the fingerprint of one question; approve one task at a time with it.")
    return _answer([_approved(app, caller, task_id, args.seen) for task_id in known], args, "approved")


def _approved(app: App, caller: Caller, task_id: str, seen: str | None) -> Entry:
    """A yes to what is shown at a terminal, to what was `seen` before, or to what was asked about."""
    from backburner.interfaces.cli.approval_prompt import answered, can_ask
    from backburner.interfaces.cli.questions import YES_NO, question_of

    app.identity.require_person(caller)
    if seen is None and can_ask() and (question := question_of(app, app.queries.find(task_id, caller))):
        if answered(f"{question.text}\n", f"{question.asks} [y/n]", YES_NO) != "yes":
            raise ApprovalDenied(reason=f"you did not say yes. It still waits; a no for good is: backburner reject {task_id}")
        seen = question.seen
    try:
        return app.approvals.approve(task_id, caller, seen=seen)
    except QuestionChanged:
        if question := question_of(app, app.queries.find(task_id, caller)):
            hint(f"{question.text}\n")
        raise


def reject(app: App, caller: Caller, args: argparse.Namespace) -> int:
    return _answer([app.approvals.reject(task_id, caller) for task_id in _ids(app, caller, args.id)], args, "rejected")


def _ids(app: App, caller: Caller, references: list[str]) -> list[str]:
    """What is meant, each once: a wrong reference stops everything before anything is done."""
    return list(dict.fromkeys(app.queries.find(reference, caller).task.task_id for reference in references))


def _meant(app: App, caller: Caller, args: argparse.Namespace, *, live: bool = False) -> list[str]:
    """The tasks that are named, and those of the batch that is; with `live` only those of it that can still be stopped."""
    if not args.id and args.batch is None:
        raise BadInput("Say which: an id, a unique part of one, a label, `last`, or --batch B.")
    named = _ids(app, caller, args.id)
    of_batch = app.queries.list(caller, batch=args.batch) if args.batch is not None else ()
    return list(dict.fromkeys([*named, *(entry.task.task_id for entry in reversed(of_batch) if not live or not entry.has_ended)]))


def _answer(entries: list[Entry], args: argparse.Namespace, word: str) -> int:
    if args.json:
        render.print_json([render.as_json(entry, now_ms()) for entry in entries])
    else:
        for entry in entries:
            print(f"Task {entry.task.task_id} {word}.")
    return 0


def clear(app: App, caller: Caller, args: argparse.Namespace) -> int:
    if not args.id and not args.ended and not args.old and args.batch is None:
        raise BadInput("Say what to clear: ids, --batch B, --ended, or --old for what is past its retention.")
    gone = [
        *app.tasks.clear(args.id, caller, ended=args.ended, batch=args.batch, everywhere=args.all),
        *(app.retention.clean_up() if args.old else ()),
    ]
    render.print_json({"cleared": gone}) if args.json else print(f"Cleared {len(gone)} task{'s' * (len(gone) != 1)}.")
    return 0


def brief(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """At most 2,000 characters, whatever there is."""
    from backburner.core.notice_text import brief

    text = brief(app.queries.list(caller, everywhere=args.all, limit=LISTED), now_ms())
    render.print_json({"brief": text}) if args.json else print(text)
    return 0


def config(app: App, caller: Caller, args: argparse.Namespace) -> int:
    values, origins = app.config.values, app.config.origins
    if args.json:
        render.print_json({name: {"value": value, "origin": origins[name]} for name, value in values.items()})
        return 0
    width, spread = max(map(len, values)), max(len(_toml(value)) for value in values.values())
    for name, value in values.items():
        print(f"{name:{width}} = {_toml(value):{spread}}  # {origins[name]}")
    return 0


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case str():
            return f'"{value}"'
        case _:
            return str(value)
