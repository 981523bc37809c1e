"""Formats tasks for output: JSON with stable keys, the table, the details, and single lines. Reads the width of the terminal."""

import json
import sys
from collections.abc import Mapping, Sequence

from backburner.core import formatting, task_table
from backburner.core.ids import outside_id, slug
from backburner.core.light_typing import TYPE_CHECKING, Any, NamedTuple
from backburner.core.masking import masked_line, masked_words
from backburner.core.models import PRIORITIES, SANDBOX, Entry, Run, Task
from backburner.core.sandbox import Network, sandbox_from
from backburner.core.sessions import submitted_by_agent
from backburner.core.states import WaitKind
from backburner.core.task_spec import budget_fields, options_fields, set_fields, source_fields
from backburner.core.task_table import colour
from backburner.core.terminal_text import clean, cut, readable, shortened, visible

if TYPE_CHECKING:
    from backburner.core.events import Event
    from backburner.core.notices import Notice
    from backburner.core.progress import Progress
    from backburner.core.run_inspection import RunInspection

_RULE = "─"
_MAX_LINE_CHARACTERS = 1000


def as_json(entry: Entry, now: int, *, exact: bool = False) -> dict[str, object]:
    """Return a task as JSON for scripts; `exact` leaves secrets in the command unmasked."""
    task, run = entry
    elapsed = formatting.elapsed(entry, now)
    return {
        "task_id": task.task_id,
        "name": task.spec.name,
        "kind": task.kind,
        "type": task.type,
        "status": entry.status,
        "result": run.end.result if run else None,
        "description": task.spec.description,
        "command": list(task.spec.command.words) if exact else masked_words(task.spec.command.words),
        **({"agent": task.spec.agent_name, "prompt": task.spec.prompt} if task.spec.agent_name is not None else {}),
        **({"budget": budget_fields(task.spec.budget)} if task.spec.agent_name is not None or task.is_recurring else {}),
        "shell": task.spec.command.shell,
        "cwd": task.spec.cwd,
        "project": task.project,
        "created_by": "agent" if submitted_by_agent(task) else "user",
        "created_at": formatting.iso(task.created_at),
        "updated_at": formatting.iso(max(filter(None, (task.created_at, task.decision.at, run and run.started_at, run and run.ended_at)))),
        "started_at": formatting.iso(run.started_at) if run else None,
        "completed_at": formatting.iso(run.ended_at) if run else None,
        "duration_seconds": None if elapsed is None else elapsed / 1000,
        "exit_code": run.end.exit_code if run else None,
        "error": run.error if run else None,
        "summary": run.end.summary if run else None,
        "pid": run.process.pid if run and run.process else None,
        "span_id": run.span_id if run else None,
        "approved_by": task.decision.by,
        "approved_via": task.decision.via,
        "approved_at": formatting.iso(task.decision.at),
        "rule": task.decision.rule,
        "sandbox": sandbox_from(run.sandbox).text() if run and run.sandbox else None,
        "notes": (run.end.notes or "").splitlines() if run else [],
        "fingerprint": formatting.short_fingerprint(entry.question_fingerprint),
        "reasons": list(task.decision.reasons),
        "restarted_from": task.restarted_from,
        "batch": task.spec.order.batch,
        "key": task.spec.order.key,
        "priority": next(name for name, value in PRIORITIES.items() if value == task.spec.order.priority),
        "after": list(task.spec.order.after),
        "limits": set_fields(task.spec.command.limits),
        "stdin": task.spec.command.stdin,
        "tty": bool(task.spec.command.tty),
        "ready_when": task.spec.command.ready_when,
        "ready_at": formatting.iso(run.ready_at) if run else None,
        "restarts": task.spec.command.restarts,
        "trace_id": task.trace.trace_id,
        "notify": task.spec.notify,
        "run_count": task.run_count,
        "next_run_at": formatting.iso(task.recurring.next_run_at or (run.due_at if run and run.state == "pending" else None)),
        "last_run_at": formatting.iso(run.started_at) if run else None,
        "channels": list(task.spec.channels),
        **(_recurring_json(entry) if task.is_recurring else {}),
    }


def _recurring_json(entry: Entry) -> dict[str, object]:
    """Return the additional fields of a recurring task."""
    task, run = entry
    shown = ("interval_ms", "cron", "timezone", "at", "until", "max_runs", "missed", "window_ms", "jitter_ms")
    fields = dict.fromkeys(shown) | {"missed": "run_once"}
    names = {"every_ms": "interval_ms", "zone": "timezone"}
    for name, value in set_fields(task.spec.schedule).items():
        if (name := names.get(name, name)) in fields:
            fields[name] = formatting.iso(int(str(value))) if name in ("at", "until") else value  # type: ignore[assignment]
    source = task.spec.source_kind if task.kind == "event" else None
    return {
        **fields,
        "event_source": source or ("task" if task.kind == "event" else None),
        "event_config": {name: value for name, value in source_fields(task.spec.source).items() if name != "kind"}
        if source and task.spec.source
        else None,
        **options_fields(task.spec.options),
        "run_status": run.state if run else None,
        "failures": task.recurring.failures,
        "paused_because": task.recurring.paused_because,
        "tokens_used": run.end.usage.get("tokens", 0) if run else 0,
    }


def run_json(run: Run) -> dict[str, object]:
    """Return a run of a recurring task, or a skipped slot, as JSON for scripts."""
    duration = None if run.started_at is None or run.ended_at is None else (run.ended_at - run.started_at) / 1000
    return {
        "run_id": run.run_id,
        "status": run.state,
        "cause": run.cause.kind,
        "slot": formatting.iso(run.cause.slot),
        "started_at": formatting.iso(run.started_at),
        "completed_at": formatting.iso(run.ended_at),
        "duration_seconds": duration,
        "exit_code": run.end.exit_code,
        "result": run.end.summary,
        "error": formatting.run_error(run),
        "problem": run.end.problem,
        "tokens_used": run.end.usage.get("tokens", 0),
        "cost": run.end.usage.get("cost"),
        "origin": run.cause.origin,
    }


def inspection_json(inspection: "RunInspection") -> dict[str, object]:
    """Return what can be observed about a task, as JSON for scripts."""
    return {
        "progress": inspection.progress._asdict() if inspection.progress else None,
        "ports": list(inspection.ports),
        "artifacts": list(inspection.artifacts),
        "waits_for": inspection.pending_reason,
    }


def used_json(activity: dict[str, Any]) -> dict[str, float]:
    """Return what a running agent has used so far."""
    return {name: activity[name] for name in ("tokens", "tool_calls", "cost") if isinstance(activity.get(name), int | float)}


def _usage_lines(usage: dict[str, float]) -> list[str]:
    cost = f"${usage['cost']:,.4f}".rstrip("0").rstrip(".") if usage.get("cost") else ""
    counted = ((usage.get("tokens"), "token"), (usage.get("tool_calls"), "tool call"))
    parts = [f"{count:,.0f} {word}{'' if count == 1 else 's'}" for count, word in counted if count]
    return [f"Used: {', '.join(filter(None, [*parts, cost]))}"] if parts or cost else []


def event_json(event: "Event") -> dict[str, object]:
    return {**event._asdict(), "at": formatting.iso(event.at)}


def notice_json(notice: "Notice") -> dict[str, object]:
    return {**notice._asdict(), "created_at": formatting.iso(notice.created_at), "told_at": formatting.iso(notice.acknowledged_at)}


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def table(entries: Sequence[Entry], now: int, *, plain: bool = False, hosts: Mapping[str, str] | None = None) -> str:
    """Format tasks as a table, newest last. A narrow terminal gets IDs without their dates, and fewer columns; `plain` ignores it.

    `hosts` are the names of the other hosts by their ids.
    """
    return task_table.table([_row(entry, now, hosts) for entry in entries], plain=plain)


def bar(fraction: float, width: int) -> str:
    """Return a progress bar."""
    full, empty = ("█", "░") if "utf" in (sys.stderr.encoding or "").lower() else ("#", "-")
    done = min(width, int(fraction * width + 1e-9))
    return full * done + empty * (width - done)


def percent(fraction: float) -> str:
    """Format a fraction as a percentage, rounded down: 99.9 % is shown as 99%."""
    return f"{int(fraction * 100 + 1e-9)}%"


def live_line(entry: Entry, progress: "Progress | None", waits_for: str | None, now: int, width: int, aside: str = "") -> str:
    """Format the status of a task as one line of at most `width` columns, with a progress bar if its progress is known."""
    elapsed = formatting.elapsed(entry, now)
    parts = [entry.status if elapsed is None else f"{entry.status} {formatting.duration(elapsed)}", entry.task.task_id]
    if progress and progress.text:
        parts.append(progress.text)
    elif waits_for:
        parts.append(f"waiting for {waits_for}")
    if aside:
        parts.append(aside)
    prefix = ""
    if progress and progress.fraction is not None:
        prefix = f"{bar(progress.fraction, max(8, min(24, width // 5)))} {percent(progress.fraction):>4} "
    return cut(prefix + " · ".join(parts), width)


def rows(entries: Sequence[Entry], now: int, hosts: Mapping[str, str] | None = None) -> str:
    """Format tasks for other programs: one per line, with fields separated by tabs."""
    return task_table.tab_separated([_row(entry, now, hosts) for entry in entries])


def _row(entry: Entry, now: int, hosts: Mapping[str, str] | None = None) -> tuple[str, str, str, str, str]:
    run = entry.run
    elapsed = formatting.elapsed(entry, now)
    text = clean(entry.task.spec.description) or masked_line(entry.task.spec.command.words, entry.task.spec.command.shell)
    if entry.task.is_recurring:
        text = _recurring_row(entry, now, text)
    if hosts and run and run.host in hosts:
        text += f" (on {visible(hosts[run.host])})"
    return entry.task.task_id, entry.status, formatting.local_time(run.started_at if run else None), formatting.duration(elapsed), text


def _recurring_row(entry: Entry, now: int, text: str) -> str:
    """Return the description of a recurring task in a list: when it runs next or its current state, its name and `text`."""
    task, run = entry
    state = ""
    if entry.is_live and run and run.due_at is not None and run.due_at > now:
        state = f"{run.cause.kind} in {formatting.duration(run.due_at - now)}"
    elif entry.is_live and run:
        state = f"{run.state} now"
    elif task.recurring.next_run_at is not None:
        state = (
            f"next in {formatting.duration(max(0, task.recurring.next_run_at - now))}" if task.recurring.next_run_at > now else "due now"
        )
    name = "" if task.task_id.endswith(f"_{slug(task.spec.name or '')}") else visible(task.spec.name or "")  # the id contains it
    parts = [state, name, text or shortened(clean(task.spec.prompt))]
    return " · ".join(part for part in parts if part)


def history(runs: Sequence[Run]) -> list[str]:
    """Format the runs of a recurring task, newest first."""
    lines = []
    for run in runs:
        at = run.started_at or run.cause.slot or run.created_at
        duration = None if run.started_at is None or run.ended_at is None else run.ended_at - run.started_at
        tokens = f", {run.end.usage['tokens']:,.0f} tokens" if run.end.usage.get("tokens") else ""
        text = (formatting.run_error(run) if run.state in ("skipped", "failed", "waiting") else None) or run.end.summary or ""
        columns = f"{formatting.local_time(at)}  {run.state:9} {run.cause.kind:8} {formatting.duration(duration)}{tokens}"
        lines.append(f"  {columns}  {shortened(clean(text))}".rstrip())
    return lines


class Details(NamedTuple):
    """The details of one task. `output` contains its recent lines and the path of the log; empty if there is no output."""

    about: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.about}\n\n{self.output}" if self.output else self.about


def details(
    entry: Entry,
    now: int,
    output: bytes,
    log: str,
    inspection: "RunInspection",
    when: str = "",
    runs: Sequence[Run] = (),
    where: str = "",
) -> Details:
    """Format the details of one task for a person. `when` describes its schedule, `runs` are its latest runs, if it is recurring.

    `where` is the host or the lane of its latest run, if that is not this host.
    """
    task, run = entry
    lines = [f"Task: {task.task_id}", f"Status: {colour(entry.status)}"]
    if task.spec.name:
        lines.append(f"Label: {visible(task.spec.name)}")
    if task.spec.agent_name is not None:
        lines += [f"Agent: {task.spec.agent_name}", f"Prompt: {shortened(clean(task.spec.prompt), longest=_MAX_LINE_CHARACTERS)}"]
    if task.spec.command.words:
        lines.append(f"Command: {formatting.command_line(task.spec.command.words, task.spec.command.shell)}")
    if task.spec.description:
        lines.append(f"Description: {clean(task.spec.description)}")
    lines.append(f"Directory: {visible(task.spec.cwd)}")
    if where:
        lines.append(f"Where: {visible(where)}")
    if task.restarted_from:
        lines.append(f"Restarted from: {task.restarted_from}")
    lines += _order_lines(entry, inspection)
    if task.is_recurring:
        lines += [f"When: {when}", f"Notify: {', '.join([task.spec.notify or '', *task.spec.channels])}", *_option_lines(task)]
        if task.recurring.paused_because and entry.status == "paused":
            lines += [f"Paused because: {task.recurring.paused_because}", f"To continue: backburner unpause {task.task_id}"]
    approved = f"Approved: {task.decision.by} at {formatting.local_time(task.decision.at)} (rule: {task.decision.rule or '-'})"
    if run is None and task.is_recurring and entry.status in ("active", "paused"):
        return Details("\n".join([*lines, approved, *(["", "Runs:", *history(runs)] if runs else ["No run yet."])]))
    if run is None:
        lines.append(f"Why it needs approval: {'; '.join(task.decision.reasons)}")
        if entry.status == "proposed":
            lines.append(f"Expires: {formatting.local_time(task.expires_at)}")
            if entry.question_fingerprint:
                lines.append(f"Fingerprint: {formatting.short_fingerprint(entry.question_fingerprint)}")
            lines.append(f"To approve: backburner approve {task.task_id}")
        return Details("\n".join(lines))
    lines.append(approved)
    if run.sandbox:
        lines.append(f"Sandbox: {visible(sandbox_from(run.sandbox).text())}")
    if task.is_recurring:
        lines += ["", "Runs:", *history(runs), "", "Latest run:"]
    if run.state == "waiting":
        lines.append(f"Waiting because: {run.error}")
        if entry.question_fingerprint:
            lines.append(f"Fingerprint: {formatting.short_fingerprint(entry.question_fingerprint)}")
        if run.wait_kind is WaitKind.TASK and run.wait:
            lines.append(f"To approve: backburner approve {run.wait.target}")
        elif run.wait is None or run.wait.is_for_person:
            lines.append(f"To approve: backburner approve {task.task_id}")
        return Details("\n".join(lines))
    lines.append(f"Started: {formatting.local_time(run.started_at)}")
    if run.ended_at is not None:
        lines.append(f"Completed: {formatting.local_time(run.ended_at)}")
    lines.append(f"Duration: {formatting.duration(formatting.elapsed(entry, now))}")
    if run.end.result:
        if run.started_at is not None and task.spec.agent_name is None:
            lines.append(f"Exit code: {formatting.exit_text(run.end.exit_code, killed=run.end.result == 'signal')}")
        if run.end.result != "exit" or run.error:
            label = "Not started" if run.started_at is None else "Ended"
            lines.append(
                f"{label}: {formatting.describe_result(run.end.result, run.end.exit_code, run.error, task.spec.timeout_ms, agent=task.spec.agent_name is not None)}"
            )
        if run.error and run.end.result == "exit" and task.spec.agent_name is None and run.error not in lines[-1]:
            lines.append(f"Note: {run.error}")
    elif run.process:
        lines.append(f"Process: {run.process.pid}")
    if run.end.problem == SANDBOX:
        lines.append(f"To run it without the sandbox: backburner approve {outside_id(task.task_id)}")
    lines += [f"Note: {visible(note)}" for note in (run.end.notes or "").splitlines()]
    lines += [*_usage_lines(run.end.usage), *_inspection_lines(entry, inspection)]
    more = [f"Full output: {log}"] if run.started_at is not None else []
    more = ["", *more, f"Trace: backburner traces --span {run.span_id}"]
    if shown := recent_lines(output):
        title = f"Recent output (last {'1 line' if len(shown) == 1 else f'{len(shown)} lines'}):"
        return Details("\n".join(lines), "\n".join([title, _RULE * 60, *shown, *more]))
    return Details("\n".join([*lines, *more]))


def recent_lines(output: bytes) -> list[str]:
    """The lines of an output with their indentation, shortened; of a line that was overwritten with \\r, only the last state."""
    text = readable(output.decode("utf-8", "replace")).removesuffix("\n")
    return [shortened(line.rstrip(), longest=_MAX_LINE_CHARACTERS) for line in text.split("\n")] if text else []


def _order_lines(entry: Entry, inspection: "RunInspection") -> list[str]:
    """Format batch, priority, dependencies, limits and restarts, as far as they are set, and why the task has not started."""
    task, run = entry
    lines = [f"Batch: {visible(task.spec.order.batch)}"] if task.spec.order.batch else []
    if task.spec.order.priority:
        lines.append(f"Priority: {next(name for name, value in PRIORITIES.items() if value == task.spec.order.priority)}")
    if task.spec.order.after:
        lines.append(f"After: {', '.join(task.spec.order.after)}")
    if limits := set_fields(task.spec.command.limits):
        units = {"memory_mb": "{} MiB of memory", "cpu_seconds": "{} s of CPU time", "nice": "nice {}"}
        lines.append(f"Limits: {', '.join(units[name].format(value) for name, value in limits.items())}")
    if task.spec.command.restarts and run:
        lines.append(f"Restarts: on failure, up to {task.spec.command.restarts} in a row; this is run {run.n}")
    if inspection.pending_reason:
        lines.append(f"Waiting for {inspection.pending_reason}")
    return lines


def _option_lines(task: Task) -> list[str]:
    """Format the other options of a recurring task, as far as they are set."""
    lines = []
    if task.spec.schedule.missed != "run_once":
        lines.append(f"Missed slots: {task.spec.schedule.missed}")
    budget = [f"{value:,.6g} {name} per run" for name, value in set_fields(task.spec.budget.per_run).items()]
    budget += [f"{value:,.6g} {name} per day" for name, value in set_fields(task.spec.budget.per_day).items()]
    if budget:
        lines.append(f"Budget: {', '.join(budget)}")
    for name, value in options_fields(task.spec.options).items():
        lines.append(f"{name.capitalize().replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}")
    return lines


def _inspection_lines(entry: Entry, inspection: "RunInspection") -> list[str]:
    """Format what can be observed about a run."""
    lines = []
    if progress := inspection.progress:
        shown_bar = ""
        if progress.fraction is not None and sys.stdout.isatty():
            known = percent(progress.fraction)
            shown_bar = f"{bar(progress.fraction, 20)} {'' if known in progress.text else f'{known} '}"
        lines.append(f"Progress: {shown_bar}{progress.text}")
    if entry.task.spec.command.ready_when is not None and entry.run and entry.is_live:
        if entry.run.ready_at is not None:
            lines.append(f"Ready: {formatting.local_time(entry.run.ready_at)}")
        else:
            lines.append(f"Ready: not yet (waiting for {visible(entry.task.spec.command.ready_when)})")
    if inspection.ports:
        lines.append(f"Listening on: {', '.join(map(str, inspection.ports))}{_within(entry)}")
    if inspection.artifacts:
        lines.append(f"Files: {', '.join(inspection.artifacts)}")
    return lines


def _within(entry: Entry) -> str:
    """Where the ports of a server exist, if that is not the machine."""
    in_sandbox = entry.run and entry.run.sandbox and sandbox_from(entry.run.sandbox).network is Network.NONE
    return " (only inside its sandbox; servers can be reached in trusted projects)" if in_sandbox else ""


def ready_line(entry: Entry, ports: Sequence[int]) -> str:
    """Return the line for a server that is ready."""
    where = f", listening on {', '.join(map(str, ports))}{_within(entry)}" if ports else ""
    return f"{entry.task.task_id} ready{where}"


def ended_line(entry: Entry, now: int, before: str = "") -> str:
    """Return the line for a finished task; `before` says what had not happened yet."""
    run = entry.run
    elapsed = formatting.elapsed(entry, now)
    parts = [formatting.duration(elapsed)] if elapsed is not None else []
    if run and run.end.result:
        parts.insert(
            0,
            formatting.describe_result(
                run.end.result, run.end.exit_code, run.error, entry.task.spec.timeout_ms, agent=entry.task.spec.agent_name is not None
            ),
        )
    summary = f": {run.end.summary}" if run and run.end.summary else ""
    status = f"{run.state if run and entry.task.is_recurring else entry.status} {before}".rstrip()
    return f"{entry.task.task_id} {status} ({', '.join(parts)}){summary}"
