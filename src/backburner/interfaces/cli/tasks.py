"""Commands about tasks. Each function calls the services, prints the result and returns an exit code."""

import argparse
import sys
from collections.abc import Sequence

from backburner.core import formatting, task_text
from backburner.core.errors import ApprovalDenied, ApprovalRequired, BadInput, NotRunning, QuestionChanged, WaitTimedOut
from backburner.core.ids import is_later_run
from backburner.core.models import Caller, Entry
from backburner.core.terminal_text import visible
from backburner.services.app import App, now_ms

LIST_LIMIT = 200
TIMED_OUT = 124
_MAX_OUTPUT_BYTES = 1 << 16  # output that `status` shows


def hint(text: str) -> None:
    """Print a message for a person, on stderr, so that scripts do not read it."""
    print(text, file=sys.stderr)


def acknowledge(app: App, caller: Caller, task_ids: list[str]) -> None:
    """Acknowledge the notices of tasks whose end was printed. Flushes first, so that nothing is acknowledged if writing fails."""
    sys.stdout.flush()
    app.inbox.acknowledge(task_ids=task_ids, session=caller.session)


def list_(app: App, caller: Caller, args: argparse.Namespace) -> int:
    limit = LIST_LIMIT if args.limit is None else args.limit or None
    entries = app.queries.list(caller, status=args.status, everywhere=args.all, batch=args.batch, limit=limit)
    now = now_ms()
    if args.json:
        task_text.print_json([task_text.as_json(entry, now) for entry in entries])
    elif not entries:
        hint("No background tasks in this project." if not args.all else "No background tasks.")
    else:
        hosts = app.hosts.others() if app.host_id else {}
        print(task_text.table(entries, now, hosts=hosts) if sys.stdout.isatty() else task_text.rows(entries, now, hosts))
        if args.limit is None and len(entries) == LIST_LIMIT:
            hint(f"Showing the newest {LIST_LIMIT} tasks; use --limit 0 for all.")
    return 0


def status(app: App, caller: Caller, args: argparse.Namespace) -> int:
    entry = app.queries.find(args.id, caller)
    app.runs.repair_metadata(entry)
    inspection = app.runs.inspect(entry)
    output = app.runs.tail(entry, 20, longest=_MAX_OUTPUT_BYTES) if entry.run else b""
    where = app.hosts.where(entry.run) if app.host_id and entry.run else ""
    if args.json:
        extra: dict[str, object] = {"where": where} if app.host_id else {}
        extra |= {"output": output.decode("utf-8", "replace"), "log": app.runs.log_path(entry) or None}
        if entry.task.spec.agent_name is not None and entry.run:
            extra |= {"usage": dict(entry.run.end.usage) or task_text.used_json(app.runs.activity(entry))}
        if entry.task.is_recurring:
            extra |= {
                "when": app.recurring.explain(entry.task),
                "runs": [task_text.run_json(run) for run in app.queries.history(entry, args.runs)],
            }
        task_text.print_json({**task_text.as_json(entry, now_ms(), exact=True), **task_text.inspection_json(inspection), **extra})
    else:
        when = app.recurring.explain(entry.task, upcoming=entry.status == "active") if entry.task.is_recurring else ""
        if entry.task.spec.source and (reason := app.triggers.broken_reason(entry.task)):
            when += f" (cannot be watched now: {reason})"
        runs = app.queries.history(entry, args.runs) if entry.task.is_recurring else ()
        print(task_text.details(entry, now_ms(), output, app.runs.log_path(entry), inspection, when, runs, where))
    return 0


def wait(app: App, caller: Caller, args: argparse.Namespace) -> int:
    from backburner.interfaces.cli.live_output import wait_for

    task_ids = _selected_ids(app, caller, args)
    for task_id in task_ids:
        entry = app.queries.find(task_id, caller)
        if entry.status == "proposed":
            raise ApprovalRequired(task_id=task_id, reason="; ".join(entry.task.decision.reasons))
        if args.ready and entry.task.spec.command.ready_when is None:
            raise BadInput(f"Task {task_id} was not started with `run --ready-when`; --ready requires that.")
    entries = wait_for(app, task_ids, args.timeout, silent=args.json, ready=args.ready)
    if args.ready:
        return _report_ready(entries, args)
    running = [entry.task.task_id for entry in entries if entry.is_live]
    if args.json:
        task_text.print_json([task_text.as_json(entry, now_ms()) for entry in entries])
    acknowledge(app, caller, [entry.task.task_id for entry in entries if not entry.is_live])
    if running:
        if args.json:
            return TIMED_OUT
        raise WaitTimedOut(seconds=f"{args.timeout:g}", task_ids=", ".join(running))
    return 0 if all(entry.run is not None and entry.run.state == "completed" for entry in entries) else 1


def _report_ready(entries: Sequence[Entry], args: argparse.Namespace) -> int:
    """Return 0 if all tasks are ready and 1 if one ended before that; raise WaitTimedOut (exit 124) after the timeout."""
    if args.json:
        task_text.print_json([task_text.as_json(entry, now_ms()) for entry in entries])
    waiting = [entry.task.task_id for entry in entries if entry.is_live and not entry.is_ready]
    if waiting:
        raise WaitTimedOut(seconds=f"{args.timeout:g}", task_ids=", ".join(waiting))
    return 0 if all(entry.is_live for entry in entries) else 1


def batch(app: App, caller: Caller, args: argparse.Namespace) -> int:
    batches = app.queries.batches(caller, everywhere=args.all)
    if args.json:
        task_text.print_json([{**batch._asdict(), "created_at": formatting.iso(batch.created_at)} for batch in batches])
        return 0
    for batch in batches:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(batch.counts.items()))
        print(f"{visible(batch.batch)}  {counts}{f'  ({visible(batch.project)})' if args.all else ''}")
    if not batches:
        hint("No batches in this project." if not args.all else "No batches.")
    return 0


def cancel(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Request the cancellation of all tasks, then wait until all their processes have exited."""
    from backburner.services.identity import started_by_agent  # only `cancel` needs it

    code, cancelling = 0, []
    by_person = caller.session is None and not started_by_agent(caller.environ)
    runs = {
        task_id: reference for reference in args.id if is_later_run(reference, task_id := app.queries.find(reference, caller).task.task_id)
    }
    for task_id in _selected_ids(app, caller, args, live=True):
        try:
            cancelling.append(app.tasks.cancel(runs.get(task_id, task_id), caller, permanent=by_person).task.task_id)
        except NotRunning as error:
            if len(args.id) == 1 or (not args.id and args.batch is None):
                raise
            hint(str(error))
            code = 1
    if not cancelling and args.batch is not None and not args.json:
        hint(f"No task of batch '{visible(args.batch)}' is running.")
    if not args.json:
        for task_id in cancelling:
            hint(f"Cancelling task {task_id}...")
    timeout_seconds = app.config.number("commands.cancel_grace_seconds") + 15
    try:
        entries = app.waiting.wait(cancelling, timeout_seconds)
    except WaitTimedOut:
        raise WaitTimedOut(seconds=f"{timeout_seconds:g}", task_ids=", ".join(cancelling)) from None
    cancelled = [
        entry
        for entry in entries
        if entry.status in ("cancelled", "rejected") or (entry.task.task_id in runs and entry.run and entry.run.state == "cancelled")
    ]
    if args.json:
        task_text.print_json([task_text.as_json(entry, now_ms()) for entry in entries])
    else:
        for entry in entries:
            outcome = "cancelled" if entry in cancelled else f"had already ended (status: {entry.status})"
            run_id = runs.get(entry.task.task_id)
            print(f"{f'Run {run_id}' if run_id and entry.task.is_recurring else f'Task {entry.task.task_id}'} {outcome}.")
    acknowledge(app, caller, [entry.task.task_id for entry in cancelled if entry.run and entry.run.state == "cancelled"])
    return code if len(cancelled) == len(entries) else 1


def approve(app: App, caller: Caller, args: argparse.Namespace) -> int:
    task_ids = _questions(app, caller, args.id)
    if args.seen is not None and len(task_ids) > 1:
        raise BadInput("--seen is the fingerprint of one question; approve one task at a time with it.")
    return _print_answered([_approve(app, caller, task_id, args.seen) for task_id in task_ids], args, "approved")


def _approve(app: App, caller: Caller, task_id: str, seen: str | None) -> Entry:
    """Approve a task after showing it at the terminal; without a terminal, check the fingerprint `seen` if there is one."""
    from backburner.interfaces.cli.approval_prompt import can_ask, read_answer
    from backburner.interfaces.cli.questions import YES_NO, question_of

    app.identity.require_person(caller)
    if seen is None and can_ask() and (question := question_of(app, app.queries.find(task_id, caller))):
        if read_answer(f"{question.text}\n", f"{question.prompt} [y/n]", YES_NO) != "yes":
            raise ApprovalDenied(reason=f"you did not approve it. The task is still waiting; to reject it: backburner reject {task_id}")
        seen = question.seen
    try:
        return app.approvals.approve(task_id, caller, seen=seen)
    except QuestionChanged:
        if question := question_of(app, app.queries.find(task_id, caller)):
            hint(f"{question.text}\n")
        raise


def reject(app: App, caller: Caller, args: argparse.Namespace) -> int:
    rejected = [app.approvals.reject(task_id, caller, reason=args.reason) for task_id in _questions(app, caller, args.id)]
    return _print_answered(rejected, args, "rejected")


def _questions(app: App, caller: Caller, references: list[str]) -> list[str]:
    """The IDs of the tasks to answer, without duplicates. An unknown reference fails before any task is changed."""
    return list(dict.fromkeys(app.queries.find_question(reference, caller).task.task_id for reference in references))


def _ids(app: App, caller: Caller, references: list[str]) -> list[str]:
    """The IDs of the given tasks without duplicates. An unknown reference fails before any task is changed."""
    return list(dict.fromkeys(app.queries.find(reference, caller).task.task_id for reference in references))


def _selected_ids(app: App, caller: Caller, args: argparse.Namespace, *, live: bool = False) -> list[str]:
    """The IDs of the given tasks and of the given batch; with `live`, only those of the batch that have not ended.

    If neither is given, the last task.
    """
    selected = _ids(app, caller, args.id or (["last"] if args.batch is None else []))
    in_batch = app.queries.list(caller, batch=args.batch) if args.batch is not None else ()
    return list(dict.fromkeys([*selected, *(entry.task.task_id for entry in reversed(in_batch) if not live or not entry.has_ended)]))


def _print_answered(entries: list[Entry], args: argparse.Namespace, outcome: str) -> int:
    if args.json:
        task_text.print_json([task_text.as_json(entry, now_ms()) for entry in entries])
    else:
        for entry in entries:
            print(f"Task {entry.task.task_id} {outcome}.")
    return 0


def clear(app: App, caller: Caller, args: argparse.Namespace) -> int:
    if not args.id and not args.ended and not args.old and args.batch is None:
        raise BadInput("Nothing to clear given. Use IDs, --batch B, --ended, or --old for tasks older than the retention period.")
    cleared = [
        *app.tasks.clear(args.id, caller, ended=args.ended, batch=args.batch, everywhere=args.all),
        *(app.retention.clean_up() if args.old else ()),
    ]
    if args.json:
        task_text.print_json({"cleared": cleared})
    else:
        print(f"Cleared {'1 task' if len(cleared) == 1 else f'{len(cleared)} tasks'}.")
    return 0


def brief(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Print a summary of open work, at most 2,000 characters long."""
    from backburner.core.notice_text import brief

    text = brief(app.queries.list(caller, everywhere=args.all, limit=LIST_LIMIT), now_ms())
    if args.json:
        task_text.print_json({"brief": text})
    else:
        print(text)
    return 0


def config(app: App, caller: Caller, args: argparse.Namespace) -> int:
    values, origins, engine = app.config.values, app.config.origins, app.config_file.engine_values()
    if args.json:
        settings = {name: {"value": value, "origin": origins[name]} for name, value in values.items()}
        task_text.print_json({name: setting | ({"engine": engine[name]} if name in engine else {}) for name, setting in settings.items()})
        return 0
    width, spread = max(map(len, values)), max(len(_toml(value)) for value in values.values())
    for name, value in values.items():
        other = f"; the running engine uses {_toml(engine[name])}" if name in engine else ""
        print(f"{name:{width}} = {_toml(value):{spread}}  # {origins[name]}{other}")
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
