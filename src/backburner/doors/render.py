"""How tasks look: the JSON with its stable keys, the table, the details, one line each. Pure but for the terminal's width."""

import json
import os
import sys
from collections.abc import Sequence

from backburner import words
from backburner.models import Entry, Event, Notice
from backburner.text import clean, visible

_COLOURS = {
    "completed": "32",
    "failed": "31",
    "cancelled": "33",
    "running": "36",
    "pending": "2",
    "proposed": "35",
    "rejected": "33",
    "expired": "33",
}
_RULE = "─"
_LEAST_DESCRIPTION = 12


def as_json(entry: Entry, now: int) -> dict[str, object]:
    """One task for scripts."""
    task, run = entry
    took = words.elapsed(entry, now)
    return {
        "task_id": task.task_id,
        "name": task.name,
        "kind": task.kind,
        "type": task.type,
        "status": entry.status,
        "result": run.result if run else None,
        "description": task.description,
        "command": list(task.command),
        "shell": task.shell,
        "cwd": task.cwd,
        "project": task.project,
        "created_at": words.iso(task.created_at),
        "started_at": words.iso(run.started_at) if run else None,
        "completed_at": words.iso(run.ended_at) if run else None,
        "duration_seconds": None if took is None else took / 1000,
        "exit_code": run.exit_code if run else None,
        "error": run.error if run else None,
        "summary": run.summary if run else None,
        "pid": run.process.pid if run and run.process else None,
        "span_id": run.span_id if run else None,
        "approved_by": task.approved_by,
        "approved_via": task.approved_via,
        "approved_at": words.iso(task.approved_at),
        "rule": task.rule,
        "reasons": list(task.reasons),
        "restarted_from": task.restarted_from,
        "batch": None,
        "notify": None,
        "run_count": task.run_count,
        "next_run_at": None,
        "last_run_at": words.iso(run.started_at) if run else None,
    }


def event_json(event: Event) -> dict[str, object]:
    return {**event._asdict(), "at": words.iso(event.at)}


def notice_json(notice: Notice) -> dict[str, object]:
    return {**notice._asdict(), "created_at": words.iso(notice.created_at), "told_at": words.iso(notice.told_at)}


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def colour(status: str, width: int = 0) -> str:
    text = status.ljust(width)
    return f"\x1b[{_COLOURS.get(status, '0')}m{text}\x1b[0m" if coloured() else text


def coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(entries: Sequence[Entry], now: int) -> str:
    """The newest at the bottom, next to the prompt. A narrow terminal gets fewer columns."""
    room = columns(1) if sys.stdout.isatty() else 10_000
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
        texts = [colour(row[1], widths[1]) if i == 1 else fitted(row[i], widths[i]) for i in shown]
        lines.append(" ".join(texts).rstrip())
    return "\n".join(lines)


def columns(descriptor: int) -> int:
    """The width of a terminal; some do not know their own."""
    return os.get_terminal_size(descriptor).columns or 80


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def fitted(text: str, width: int) -> str:
    """`text` in just `width` columns."""
    if cells(text) > width:
        while cells(text) > width - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (width - cells(text))


def rows(entries: Sequence[Entry], now: int) -> str:
    """One task a line, tabs between: for other programs."""
    return "\n".join("\t".join(_row(entry, now)) for entry in entries)


def _row(entry: Entry, now: int) -> tuple[str, str, str, str, str]:
    run = entry.run
    took = words.elapsed(entry, now)
    text = clean(entry.task.description) or words.command_line(entry.task.command, entry.task.shell)
    return entry.task.task_id, entry.status, words.local(run.started_at if run else None), words.duration(took), text


def details(entry: Entry, now: int, output: bytes, log: str) -> str:
    """Everything a person asks about one task."""
    task, run = entry
    lines = [f"Task: {task.task_id}", f"Status: {colour(entry.status)}"]
    if task.name:
        lines.append(f"Label: {visible(task.name)}")
    lines.append(f"Command: {words.command_line(task.command, task.shell)}")
    if task.description:
        lines.append(f"Description: {clean(task.description)}")
    lines.append(f"Directory: {visible(task.cwd)}")
    if run is None:
        lines.append(f"Asks because: {'; '.join(task.reasons)}")
        if entry.status == "proposed":
            lines.append(f"Expires: {words.local(task.expires_at)}")
            lines.append(f"Answer: backburner approve {task.task_id}")
        return "\n".join(lines)
    lines.append(f"Approved: {task.approved_by} at {words.local(task.approved_at)} (rule: {task.rule or '-'})")
    if entry.status == "waiting":
        lines += [f"Waits because: {run.error}", f"Answer: backburner approve {task.task_id}"]
        return "\n".join(lines)
    lines.append(f"Started: {words.local(run.started_at)}")
    if run.ended_at is not None:
        lines.append(f"Completed: {words.local(run.ended_at)}")
    lines.append(f"Duration: {words.duration(words.elapsed(entry, now))}")
    if run.result:
        lines.append(f"Exit code: {words.exit_text(run.exit_code)}")
        if run.result != "exit" or run.error:
            lines.append(f"Ended: {words.ending(run.result, run.exit_code, run.error, task.timeout_ms)}")
        if run.error and run.result == "exit":
            lines.append(f"Note: {run.error}")
    elif run.process:
        lines.append(f"Process: {run.process.pid}")
    shown = [clean(line) for line in output.decode("utf-8", "replace").splitlines()]
    if shown:
        lines += ["", f"Recent output (last {len(shown)} lines):", _RULE * 60, *shown]
    lines += ["", f"Full output: {log}"]
    return "\n".join(lines)


def ended_line(entry: Entry, now: int) -> str:
    """One line that says how a task ended."""
    run = entry.run
    parts = [words.duration(words.elapsed(entry, now))]
    if run and run.result:
        parts.insert(0, words.ending(run.result, run.exit_code, run.error, entry.task.timeout_ms))
    told = f": {run.summary}" if run and run.summary else ""
    return f"{entry.task.task_id} {entry.status} ({', '.join(parts)}){told}"
