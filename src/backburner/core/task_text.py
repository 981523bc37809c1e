"""How tasks look: the JSON with its stable keys, the table, the details, one line each. Pure but for the terminal's width."""

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from backburner.core import formatting as words
from backburner.core.ids import slug
from backburner.core.masking import masked_line, masked_words
from backburner.core.models import PRIORITIES, Entry, Run, Task
from backburner.core.task_spec import budget_fields, options_fields, set_fields, source_fields
from backburner.core.terminal_text import cells, clean, cut, fitted, shortened, visible

if TYPE_CHECKING:
    from backburner.core.events import Event
    from backburner.core.notices import Notice
    from backburner.core.progress import Progress
    from backburner.core.run_inspection import RunInspection

COLOURS = {
    "completed": "32",
    "failed": "31",
    "cancelled": "33",
    "running": "36",
    "pending": "2",
    "proposed": "35",
    "active": "36",
    "paused": "33",
    "done": "32",
    "rejected": "33",
    "expired": "33",
}
_RULE = "─"
_LEAST_DESCRIPTION = 12
_LONGEST_LINE = 1000


def as_json(entry: Entry, now: int, *, exact: bool = False) -> dict[str, object]:
    """One task for scripts."""
    task, run = entry
    took = words.elapsed(entry, now)
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
        "created_at": words.iso(task.created_at),
        "started_at": words.iso(run.started_at) if run else None,
        "completed_at": words.iso(run.ended_at) if run else None,
        "duration_seconds": None if took is None else took / 1000,
        "exit_code": run.end.exit_code if run else None,
        "error": run.error if run else None,
        "summary": run.end.summary if run else None,
        "pid": run.process.pid if run and run.process else None,
        "span_id": run.span_id if run else None,
        "approved_by": task.decision.by,
        "approved_via": task.decision.via,
        "approved_at": words.iso(task.decision.at),
        "rule": task.decision.rule,
        "fingerprint": words.short_fingerprint(entry.question_fingerprint),
        "reasons": list(task.decision.reasons),
        "restarted_from": task.restarted_from,
        "batch": task.spec.order.batch,
        "key": task.spec.order.key,
        "priority": next(name for name, value in PRIORITIES.items() if value == task.spec.order.priority),
        "after": list(task.spec.order.after),
        "limits": set_fields(task.spec.command.limits),
        "stdin": task.spec.command.stdin,
        "ready_when": task.spec.command.ready_when,
        "ready_at": words.iso(run.ready_at) if run else None,
        "restarts": task.spec.command.restarts,
        "trace_id": task.trace.trace_id,
        "notify": task.spec.notify,
        "run_count": task.run_count,
        "next_run_at": words.iso(task.recurring.next_run_at or (run.due_at if run and run.state == "pending" else None)),
        "last_run_at": words.iso(run.started_at) if run else None,
        "channels": list(task.spec.channels),
        **(_standing_json(entry) if task.is_recurring else {}),
    }


def _standing_json(entry: Entry) -> dict[str, object]:
    """What only standing tasks have."""
    task, run = entry
    shown = ("interval_ms", "cron", "timezone", "at", "until", "max_runs", "missed", "window_ms", "jitter_ms")
    fields = dict.fromkeys(shown) | {"missed": "run_once"}
    names = {"every_ms": "interval_ms", "zone": "timezone"}
    for name, value in set_fields(task.spec.schedule).items():
        if (name := names.get(name, name)) in fields:
            fields[name] = words.iso(int(str(value))) if name in ("at", "until") else value  # type: ignore[assignment]
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
    """One run of a standing task, or a slot that was skipped, for scripts."""
    took = None if run.started_at is None or run.ended_at is None else (run.ended_at - run.started_at) / 1000
    return {
        "run_id": run.run_id,
        "status": run.state,
        "cause": run.cause.kind,
        "slot": words.iso(run.cause.slot),
        "started_at": words.iso(run.started_at),
        "completed_at": words.iso(run.ended_at),
        "duration_seconds": took,
        "exit_code": run.end.exit_code,
        "result": run.end.summary,
        "error": words.run_error(run),
        "problem": run.end.problem,
        "tokens_used": run.end.usage.get("tokens", 0),
        "cost": run.end.usage.get("cost"),
        "origin": run.cause.origin,
    }


def signs_json(signs: "RunInspection") -> dict[str, object]:
    """What can be seen of a task, for scripts."""
    progress = signs.progress._asdict() if signs.progress else None
    return {"progress": progress, "ports": list(signs.ports), "artifacts": list(signs.artifacts), "waits_for": signs.pending_reason}


def used_json(activity: dict[str, Any]) -> dict[str, float]:
    """What a run of an agent has used so far."""
    return {name: activity[name] for name in ("tokens", "tool_calls", "cost") if isinstance(activity.get(name), int | float)}


def _used(usage: dict[str, float]) -> list[str]:
    cost = f"${usage['cost']:,.4f}".rstrip("0").rstrip(".") if usage.get("cost") else ""
    counted = ((usage.get("tokens"), "token"), (usage.get("tool_calls"), "tool call"))
    parts = [f"{count:,.0f} {word}{'' if count == 1 else 's'}" for count, word in counted if count]
    return [f"Used: {', '.join(filter(None, [*parts, cost]))}"] if parts or cost else []


def event_json(event: "Event") -> dict[str, object]:
    return {**event._asdict(), "at": words.iso(event.at)}


def notice_json(notice: "Notice") -> dict[str, object]:
    return {**notice._asdict(), "created_at": words.iso(notice.created_at), "told_at": words.iso(notice.acknowledged_at)}


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def colour(status: str, width: int = 0) -> str:
    text = status.ljust(width)
    return f"\x1b[{COLOURS.get(status, '0')}m{text}\x1b[0m" if coloured() else text


def coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(entries: Sequence[Entry], now: int, *, plain: bool = False) -> str:
    """The newest at the bottom, next to the prompt. A narrow terminal gets fewer columns; a `plain` one is for no terminal."""
    room = columns(1) if sys.stdout.isatty() and not plain else 10_000
    heads = ("ID", "Status", "Started", "Duration", "Description")
    rows = [_row(entry, now) for entry in reversed(entries)]
    widths = [max(len(head), *(cells(row[i]) for row in rows)) for i, head in enumerate(heads)]
    shown = [0, 1, 2, 3, 4]
    for dropped in (2, 3, 4):
        if sum(widths[i] for i in shown if i != 4) + len(shown) - 1 + _LEAST_DESCRIPTION > room:
            shown.remove(dropped)
    widths[4] = max(_LEAST_DESCRIPTION, min(widths[4], room - sum(widths[i] for i in shown if i != 4) - len(shown) + 1))
    lines = [" ".join(heads[i].ljust(widths[i]) for i in shown).rstrip(), " ".join(_RULE * widths[i] for i in shown)]
    for row in rows:
        texts = [colour(row[1], widths[1]) if i == 1 and not plain else fitted(row[i], widths[i]) for i in shown]
        lines.append(" ".join(texts).rstrip())
    return "\n".join(lines)


def columns(descriptor: int) -> int:
    """The width of a terminal; some do not know their own."""
    return terminal(descriptor)[0]


def terminal(descriptor: int) -> tuple[int, int]:
    """The columns and lines of a terminal."""
    size = os.get_terminal_size(descriptor)
    return size.columns or 80, size.lines or 24


def bar(fraction: float, width: int) -> str:
    """A bar that is filled as far as something is done."""
    full, empty = ("█", "░") if "utf" in (sys.stderr.encoding or "").lower() else ("#", "-")
    done = min(width, int(fraction * width + 1e-9))
    return full * done + empty * (width - done)


def percent(fraction: float) -> str:
    """Never more than is done: 99.9 % is not all of it."""
    return f"{int(fraction * 100 + 1e-9)}%"


def live_line(entry: Entry, progress: "Progress | None", waits_for: str | None, now: int, width: int, aside: str = "") -> str:
    """How a task stands in one line of at most `width` columns: bar, percentage and words where it says how far it is."""
    took = words.elapsed(entry, now)
    parts = [entry.status if took is None else f"{entry.status} {words.duration(took)}", entry.task.task_id]
    if progress and progress.text:
        parts.append(progress.text)
    elif waits_for:
        parts.append(f"waits for {waits_for}")
    if aside:
        parts.append(aside)
    before = ""
    if progress and progress.fraction is not None:
        before = f"{bar(progress.fraction, max(8, min(24, width // 5)))} {percent(progress.fraction):>4} "
    return cut(before + " · ".join(parts), width)


def rows(entries: Sequence[Entry], now: int) -> str:
    """One task a line, tabs between: for other programs."""
    return "\n".join("\t".join(_row(entry, now)) for entry in entries)


def _row(entry: Entry, now: int) -> tuple[str, str, str, str, str]:
    run = entry.run
    took = words.elapsed(entry, now)
    text = clean(entry.task.spec.description) or masked_line(entry.task.spec.command.words, entry.task.spec.command.shell)
    if entry.task.is_recurring:
        text = _standing_row(entry, now, text)
    return entry.task.task_id, entry.status, words.local_time(run.started_at if run else None), words.duration(took), text


def _standing_row(entry: Entry, now: int, text: str) -> str:
    """What a list says of a standing task: when it runs next, or what it does now."""
    task, run = entry
    state = ""
    if entry.is_live and run and run.due_at is not None and run.due_at > now:
        state = f"{run.cause.kind} in {words.duration(run.due_at - now)}"
    elif entry.is_live and run:
        state = f"{run.state} now"
    elif task.recurring.next_run_at is not None:
        state = f"next in {words.duration(max(0, task.recurring.next_run_at - now))}" if task.recurring.next_run_at > now else "due now"
    name = "" if task.task_id.endswith(f"_{slug(task.spec.name or '')}") else visible(task.spec.name or "")  # the id says it
    parts = [state, name, text or shortened(clean(task.spec.prompt))]
    return " · ".join(part for part in parts if part)


def history(runs: Sequence[Run]) -> list[str]:
    """The runs of a standing task, newest first."""
    lines = []
    for run in runs:
        at = run.started_at or run.cause.slot or run.created_at
        took = None if run.started_at is None or run.ended_at is None else run.ended_at - run.started_at
        tokens = f", {run.end.usage['tokens']:,.0f} tokens" if run.end.usage.get("tokens") else ""
        about = (words.run_error(run) if run.state in ("skipped", "failed", "waiting") else None) or run.end.summary or ""
        lines.append(
            f"  {words.local_time(at)}  {run.state:9} {run.cause.kind:8} {words.duration(took)}{tokens}  {shortened(clean(about))}".rstrip()
        )
    return lines


class Details(NamedTuple):
    """What a person asks about one task. `output` are its recent lines and where the rest is; empty where there are none."""

    about: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.about}\n\n{self.output}" if self.output else self.about


def details(entry: Entry, now: int, output: bytes, log: str, signs: "RunInspection", when: str = "", runs: Sequence[Run] = ()) -> Details:
    """Everything a person asks about one task."""
    task, run = entry
    lines = [f"Task: {task.task_id}", f"Status: {colour(entry.status)}"]
    if task.spec.name:
        lines.append(f"Label: {visible(task.spec.name)}")
    if task.spec.agent_name is not None:
        lines += [f"Agent: {task.spec.agent_name}", f"Prompt: {shortened(clean(task.spec.prompt), longest=_LONGEST_LINE)}"]
    if task.spec.command.words:
        lines.append(f"Command: {words.command_line(task.spec.command.words, task.spec.command.shell)}")
    if task.spec.description:
        lines.append(f"Description: {clean(task.spec.description)}")
    lines.append(f"Directory: {visible(task.spec.cwd)}")
    lines += _arrangements(entry, signs)
    if task.is_recurring:
        lines += [f"When: {when}", f"Tells: {', '.join([task.spec.notify or '', *task.spec.channels])}", *_terms(task)]
        if task.recurring.paused_because and entry.status == "paused":
            because = task.recurring.paused_because
            lines += [f"Paused because: {because}", f"Go on: backburner unpause {task.task_id}"]
    if run is None and task.is_recurring and entry.status in ("active", "paused"):
        return Details("\n".join([*lines, *(["", "Runs:", *history(runs)] if runs else ["No run yet."])]))
    if run is None:
        lines.append(f"Asks because: {'; '.join(task.decision.reasons)}")
        if entry.status == "proposed":
            lines.append(f"Expires: {words.local_time(task.expires_at)}")
            lines += [f"Fingerprint: {words.short_fingerprint(entry.question_fingerprint)}"] if entry.question_fingerprint else []
            lines.append(f"Answer: backburner approve {task.task_id}")
        return Details("\n".join(lines))
    lines.append(f"Approved: {task.decision.by} at {words.local_time(task.decision.at)} (rule: {task.decision.rule or '-'})")
    if task.is_recurring:
        lines += ["", "Runs:", *history(runs), "", "The latest:"]
    if run.state == "waiting":
        answer = run.wait.target if run.wait and run.wait.target else task.task_id
        lines += [
            f"Waits because: {run.error}",
            *([f"Fingerprint: {words.short_fingerprint(entry.question_fingerprint)}"] if entry.question_fingerprint else []),
        ]
        lines.append(f"Answer: backburner approve {answer}")
        return Details("\n".join(lines))
    lines.append(f"Started: {words.local_time(run.started_at)}")
    if run.ended_at is not None:
        lines.append(f"Completed: {words.local_time(run.ended_at)}")
    lines.append(f"Duration: {words.duration(words.elapsed(entry, now))}")
    if run.end.result:
        if run.started_at is not None:
            lines.append(f"Exit code: {words.exit_text(run.end.exit_code)}")
        if run.end.result != "exit" or run.error:
            lines.append(f"Ended: {words.describe_result(run.end.result, run.end.exit_code, run.error, task.spec.timeout_ms)}")
        if run.error and run.end.result == "exit":
            lines.append(f"Note: {run.error}")
    elif run.process:
        lines.append(f"Process: {run.process.pid}")
    lines += [*_used(run.end.usage), *_signs(entry, signs)]
    shown = [shortened(clean(line), longest=_LONGEST_LINE) for line in output.decode("utf-8", "replace").splitlines()]
    more = ["", f"Full output: {log}", f"Trace: backburner traces --span {run.span_id}"]
    if shown:
        return Details("\n".join(lines), "\n".join([f"Recent output (last {len(shown)} lines):", _RULE * 60, *shown, *more]))
    return Details("\n".join([*lines, *more]))


def _arrangements(entry: Entry, signs: "RunInspection") -> list[str]:
    """When and how it was to run, where anything was said about that."""
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
    if signs.pending_reason:
        lines.append(f"Waits for: {signs.pending_reason}")
    return lines


def _terms(task: Task) -> list[str]:
    """What else was said of a standing task."""
    lines = []
    if task.spec.schedule.missed != "run_once":
        lines.append(f"Missed slots: {task.spec.schedule.missed}")
    budget = [f"{value:,.6g} {name} a run" for name, value in set_fields(task.spec.budget.per_run).items()]
    budget += [f"{value:,.6g} {name} a day" for name, value in set_fields(task.spec.budget.per_day).items()]
    if budget:
        lines.append(f"Budget: {', '.join(budget)}")
    for term, value in options_fields(task.spec.options).items():
        lines.append(f"{term.capitalize().replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}")
    return lines


def _signs(entry: Entry, signs: "RunInspection") -> list[str]:
    """What can be seen of a run."""
    lines = []
    if progress := signs.progress:
        shown = (
            f"{bar(progress.fraction, 20)} {percent(progress.fraction)} " if progress.fraction is not None and sys.stdout.isatty() else ""
        )
        lines.append(f"Progress: {shown}{progress.text}")
    if entry.task.spec.command.ready_when is not None and entry.run and entry.is_live:
        at = entry.run.ready_at
        lines.append(
            f"Ready: {words.local_time(at) if at is not None else f'not yet (waits for {visible(entry.task.spec.command.ready_when)})'}"
        )
    if signs.ports:
        lines.append(f"Listens on: {', '.join(map(str, signs.ports))}")
    if signs.artifacts:
        lines.append(f"Files: {', '.join(signs.artifacts)}")
    return lines


def ready_line(entry: Entry, ports: Sequence[int]) -> str:
    """One line that says that a server is ready."""
    where = f", listens on {', '.join(map(str, ports))}" if ports else ""
    return f"{entry.task.task_id} ready{where}"


def ended_line(entry: Entry, now: int) -> str:
    """One line that says how a task ended."""
    run = entry.run
    took = words.elapsed(entry, now)
    parts = [words.duration(took)] if took is not None else []
    if run and run.end.result:
        parts.insert(0, words.describe_result(run.end.result, run.end.exit_code, run.error, entry.task.spec.timeout_ms))
    told = f": {run.end.summary}" if run and run.end.summary else ""
    return f"{entry.task.task_id} {entry.status} ({', '.join(parts)}){told}"
