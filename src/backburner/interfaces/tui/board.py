"""Composes the board of `top` as rows of styled text: the tasks by section, the output of the selected task, and the keys.

The input is a list of tasks and three functions that read more about the tasks in view. The rows fit a terminal of any size and
contain no escape sequences. This module draws nothing and reads no keys.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, assert_never

from backburner.core import formatting, task_text
from backburner.core.masking import masked_line
from backburner.core.models import Entry
from backburner.core.states import RunState, TaskState
from backburner.core.terminal_text import cells, clean, cut, fitted

if TYPE_CHECKING:
    from backburner.core.progress import Progress

# A text and its style: a status, or one of plain, bold, dim and selected.
Span = tuple[str, str]
Row = list[Span]

_MIN_FULL_ID_WIDTH = 120  # columns of a screen that shows ids with their dates
_MIN_DESCRIPTION = 12  # columns; a shorter description is not shown
_MIN_DESCRIPTION_AND_DETAIL = 40  # columns; in fewer, only the description is shown
_MIN_BODY_WITH_OUTPUT = 6  # lines; in fewer, no output is shown
_MAX_LINE = 8192  # characters
_DURATION_WIDTH = 8  # columns
_VARIATION_SELECTORS = dict.fromkeys(range(0xFE00, 0xFE10))  # removed, because terminals disagree on the resulting width

_KEYS = (
    (3, "c", "cancel"),
    (4, "r", "restart"),
    (5, "o", "output"),
    (6, "l", "log"),
    (7, "p", "all projects"),
    (8, "↑↓", "select"),
    (2, "?", "help"),
    (1, "q", "quit"),
)
# Instead of cancel and restart, for a task that waits for approval.
_ANSWER_KEYS = ((3, "a", "approve"), (4, "n", "reject"))
_HELP = (
    ("↑ ↓  k j", "select a task"),
    ("PgUp PgDn", "move a page up or down"),
    ("Home End", "select the first or last task"),
    ("c", "cancel the task, after confirmation"),
    ("r", "restart the task; may ask for approval"),
    ("o  Enter", "show the output on the whole screen, or go back"),
    ("l", "follow the log on the plain screen"),
    ("a", "approve the task; shows it first"),
    ("n", "reject the task, after confirmation"),
    ("p", "show all projects, or only this one"),
    ("Ctrl-L", "redraw the screen"),
    ("q  Esc", "exit; the tasks continue"),
)


class Section(StrEnum):
    """The sections of the board, from top to bottom."""

    RUNNING = "Running"
    PENDING = "Pending"
    WAITING = "Waiting for approval"
    SCHEDULED = "Scheduled"
    RECENT = "Recent"


class Board(NamedTuple):
    """What to show. `entries` are in the order of `arranged`; the three functions are called only for tasks in view."""

    where: str
    entries: Sequence[Entry]
    now: int
    progress: "Callable[[Entry], Progress | None]"
    pending_reason: Callable[[Entry], str | None]
    tail: Callable[[Entry, int], bytes]
    selected: str | None = None
    everywhere: bool = False
    free: int | None = None  # how many more commands could run
    zoomed: bool = False
    help: bool = False
    message: str = ""  # a question or a message, shown instead of the keys

    @property
    def selected_entry(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.task.task_id == self.selected), None)


class _Columns(NamedTuple):
    """The width of each column; 0 if it is not shown."""

    state: int
    duration: int
    id: int
    project: int
    text: int
    detail: int


def section_of(entry: Entry) -> Section:
    if entry.task.state in (TaskState.ACTIVE, TaskState.PAUSED) and entry.task.is_recurring and not entry.is_live:
        return Section.SCHEDULED
    if entry.run is None:
        return Section.WAITING if entry.task.state == TaskState.PROPOSED else Section.RECENT
    match entry.run.state:
        case RunState.RUNNING | RunState.RESUMED:
            return Section.RUNNING
        case RunState.PENDING:
            return Section.PENDING
        case RunState.WAITING:
            return Section.WAITING
        case RunState.COMPLETED | RunState.FAILED | RunState.CANCELLED | RunState.SKIPPED:
            return Section.RECENT
        case state:
            assert_never(state)


def arranged(entries: Sequence[Entry], now: int) -> list[Entry]:
    """Sort tasks, given newest first, by section: longest running, next to start, longest waiting, next to run, last ended."""
    order = list(Section)

    def key(entry: Entry) -> tuple[int, ...]:
        (task, run), section = entry, section_of(entry)
        match section:
            case Section.RUNNING:
                within = ((run and run.started_at) or 0, task.created_at)
            case Section.PENDING:
                assert run is not None
                start = run.due_at if run.due_at is not None and run.due_at > now else 0
                within = (run.blocked, start, -run.priority, task.created_at)
            case Section.WAITING:
                within = (task.created_at,)
            case Section.SCHEDULED:
                due = task.recurring.next_run_at
                within = (due is None, due or 0, task.created_at)
            case Section.RECENT:
                within = (-((run and run.ended_at) or task.created_at), -task.created_at)
            case _:
                assert_never(section)
        return order.index(section), *within

    oldest_first = entries[::-1]  # the sort is stable, so tasks with equal keys stay in this order
    return sorted(oldest_first, key=key)


def compose(board: Board, width: int, height: int) -> list[Row]:
    """Compose the whole screen: at most `height` rows of at most `width` columns."""
    if width < 1 or height < 1:
        return []
    rows = [_header(board, width)]
    if height > 1:
        body = height - 2 if height > 2 else 1
        rows += (_help(width) if board.help else _body(board, width, body))[:body]
        rows += [[]] * (1 + body - len(rows))
    if height > 2:
        rows.append(_foot(board, width))
    return [_row(row, width) for row in rows]


def page(board: Board, height: int) -> int:
    """The number of task lines on a screen of this height."""
    return max(1, _split(board, height - 2)[0])


def short(text: str, width: int) -> str:
    """On a narrow screen, remove the dates from the task ids in a text. The rest of an id still identifies its task."""
    return text if width >= _MIN_FULL_ID_WIDTH else re.sub(r"\btask_\d{8}_", "", text)


def _header(board: Board, width: int) -> Row:
    counts = {section: sum(section_of(entry) is section for entry in board.entries) for section in Section}
    totals = [(f"{counts[Section.RUNNING]} running", "running"), (f"{counts[Section.PENDING]} pending", "pending")]
    if waiting := counts[Section.WAITING]:
        totals.append((f"{waiting} waiting for approval" if width >= 80 else f"{waiting} waiting", "proposed"))
    if board.free is not None and width >= 80:
        totals.append((f"capacity for {board.free} more", "dim"))
    right = [span for total in totals for span in ((" · ", "dim"), total)][1:]
    available = width - sum(cells(text) for text, _ in right) - 3
    name = "backburner  " if available >= 40 else ""
    where = _end_of(_shown(board.where), available - len(name))
    left = [(" ", "plain"), (name, "bold"), (where, "plain")]
    gap = available - len(name) - cells(where) + 1
    return [*left, (" " * max(1, gap), "plain"), *right]


def _end_of(path: str, width: int) -> str:
    """The end of a path in at most `width` columns."""
    if width < 8 or cells(path) <= width:
        return path if cells(path) <= width else ""
    path = path[-width:]
    while path and cells(path) >= width:
        path = path[1:]
    return f"…{path}"


def _foot(board: Board, width: int) -> Row:
    if board.message:
        return [(f" {_shown(board.message)}", "bold")]
    keys = (*_ANSWER_KEYS, *_KEYS[2:]) if board.selected_entry and section_of(board.selected_entry) is Section.WAITING else _KEYS
    shown, available = set(), width - 1
    for item in sorted(keys):
        size = cells(item[1]) + len(item[2]) + 3
        if size > available:
            break
        shown.add(item)
        available -= size
    return [(" ", "plain"), *(span for item in keys if item in shown for span in ((item[1], "bold"), (f" {item[2]}  ", "dim")))]


def _help(width: int) -> list[Row]:
    keys = max(cells(key) for key, _ in _HELP) + 2
    left = " " * max(1, (width - keys - max(len(text) for _, text in _HELP)) // 2)
    rows: list[Row] = [[], [(f"{left}Keys", "bold")], []]
    return rows + [[(left + fitted(key, keys), "bold"), (text, "plain")] for key, text in _HELP]


def _body(board: Board, width: int, height: int) -> list[Row]:
    entry = board.selected_entry
    if entry is None:
        text = "No background tasks." if board.everywhere else "No background tasks in this project."
        return [[], [(f" {text}", "bold")], [(" Start one with: backburner run -- COMMAND ARG…", "dim")]]
    listed, rest = _split(board, height)
    rows = _list(board, width, listed)
    return [*rows, _title(board, entry, width), *_output(board, entry, rest - 1)] if rest else rows


def _split(board: Board, height: int) -> tuple[int, int]:
    """The number of lines for the tasks, and for the output including its title."""
    if board.zoomed:
        return 0, height
    if height < _MIN_BODY_WITH_OUTPUT:
        return height, 0
    listed = min(len(board.entries) + len(set(map(section_of, board.entries))), height - max(3, height * 2 // 5))
    return listed, height - listed


def _list(board: Board, width: int, height: int) -> list[Row]:
    """The part of the list, with section titles, that has the selected task in the middle."""
    lines: list[Entry | Section] = []
    counts: dict[Section, int] = {}
    at = 0
    for entry in board.entries:
        section = section_of(entry)
        if section not in counts:
            lines.append(section)
        counts[section] = counts.get(section, 0) + 1
        if entry.task.task_id == board.selected:
            at = len(lines)
        lines.append(entry)
    start = max(0, min(at - height // 2, len(lines) - height))
    view = lines[start : start + height]
    shown = [(entry, *_progress_and_detail(board, entry, width)) for entry in view if not isinstance(entry, Section)]
    columns = _columns(board, shown, width)
    rows = {entry.task.task_id: _task(board, entry, progress, detail, columns, width) for entry, progress, detail in shown}
    return [[(f" {line}", "bold"), (f" {counts[line]}", "dim")] if isinstance(line, Section) else rows[line.task.task_id] for line in view]


def _progress_and_detail(board: Board, entry: Entry, width: int = _MIN_FULL_ID_WIDTH) -> "tuple[Progress | None, str]":
    """The progress of a task, and the detail that is shown next to its description."""
    task, run = entry
    section = section_of(entry)
    match section:
        case Section.RUNNING:
            progress = board.progress(entry)
            return progress, _shown(progress.text) if progress else ""
        case Section.PENDING:
            return None, f"waiting {_pending_text(board, entry, width)}"
        case Section.WAITING:
            return None, _shown((run and run.error) or "; ".join(task.decision.reasons))
        case Section.SCHEDULED:
            due = task.recurring.next_run_at
            when = "" if due is None else f"next in {formatting.duration(max(0, due - board.now))}"
            return None, " · ".join(part for part in (when, _shown((run and run.end.summary) or "")) if part)
        case Section.RECENT:
            result = ""
            if run and run.end.result and run.state != RunState.COMPLETED:
                result = formatting.describe_result(
                    run.end.result, run.end.exit_code, run.error, task.spec.timeout_ms, agent=task.spec.agent_name is not None
                )
            return None, " · ".join(part for part in (_shown(result), _shown((run and run.end.summary) or "")) if part)
        case _:
            assert_never(section)


def _pending_text(board: Board, entry: Entry, width: int) -> str:
    """What a pending task waits for, as `for …`."""
    return f"for {short(_shown(board.pending_reason(entry) or 'the engine'), width)}"


def _columns(board: Board, shown: "Sequence[tuple[Entry, Progress | None, str]]", width: int) -> _Columns:
    """Choose the column widths. On a narrow screen the duration is left out first, then the description."""
    state = 9 if width < 70 else 15 if width < 140 else 25
    longest = max(cells(short(entry.task.task_id, width)) for entry in board.entries)
    project = 16 if board.everywhere and width >= 100 else 0
    task_id = min(longest, 40, max(4, width - state - 2))
    took = _DURATION_WIDTH
    rest = width - 4 - state - took - task_id - (project + 1 if project else 0)
    if rest < _MIN_DESCRIPTION:
        took, rest = 0, rest + took + 1
    if rest < _MIN_DESCRIPTION:
        return _Columns(state, took, task_id, project, 0, 0)
    if rest < _MIN_DESCRIPTION_AND_DETAIL or not any(detail for _, _, detail in shown):
        return _Columns(state, took, task_id, project, rest, 0)
    text = min(max(_MIN_DESCRIPTION, *(cells(_text(entry)[:width]) for entry, _, _ in shown)), rest * 45 // 100)
    return _Columns(state, took, task_id, project, text, rest - text - 2)


def _task(board: Board, entry: Entry, progress: "Progress | None", detail: str, columns: _Columns, width: int) -> Row:
    took = formatting.elapsed(entry, board.now)
    text = _text(entry)
    if not columns.detail and section_of(entry) is Section.PENDING:
        text = _pending_text(board, entry, width)  # more useful than the description if only one of them fits
    row = [
        (" ", "plain"),
        _state(entry, progress, columns.state),
        ("" if not columns.duration else f" {formatting.duration(took) if took is not None else '':>{columns.duration}}", "plain"),
        (f" {fitted(short(entry.task.task_id, width), columns.id)} ", "plain"),
        (f"{fitted(_shown(os.path.basename(entry.task.project)), columns.project)} " if columns.project else "", "dim"),
        (fitted(text, columns.text), "plain"),
        (f"  {cut(detail, columns.detail)}" if columns.detail else "", "dim"),
    ]
    if entry.task.task_id != board.selected:
        return row
    text = "".join(text for text, _ in row)
    return [(fitted(text, width), "selected")]


def _state(entry: Entry, progress: "Progress | None", width: int) -> Span:
    if entry.is_live and entry.run and entry.run.cancel_requested_at is not None:
        return fitted("stopping", width), "cancelled"
    if progress and progress.fraction is not None:
        return f"{task_text.bar(progress.fraction, width - 5)} {task_text.percent(progress.fraction):>4}", entry.status
    return fitted("ready" if entry.is_ready else entry.status, width), entry.status


def _title(board: Board, entry: Entry, width: int) -> Row:
    """The line above the output: task id, status, detail and command."""
    took = formatting.elapsed(entry, board.now)
    _, detail = _progress_and_detail(board, entry, width)
    status = entry.status if took is None else f"{entry.status} {formatting.duration(took)}"
    parts = [(status, entry.status), (detail, "plain"), (_command(entry), "plain")]
    row = [("── ", "dim"), (short(entry.task.task_id, 2 * width), "bold")]
    for text, style in parts:
        row += [(" · ", "dim"), (text, style)] if text else []
    row = _row([*row, (" ", "plain")], width)
    return [*row, ("─" * (width - sum(cells(text) for text, _ in row)), "dim")]


def _output(board: Board, entry: Entry, height: int) -> list[Row]:
    lines = list(_lines(board.tail(entry, height), height)) if height > 0 and entry.run else []
    if lines:
        return [[(line, "plain")] for line in lines]
    return [[(line, "dim")] for line in _without_output(board, entry)][: max(0, height)]


def _lines(output: bytes, count: int) -> Iterator[str]:
    """The last lines of an output, with indentation; of a line that was overwritten with \\r, only the last state."""
    lines = output.decode("utf-8", "replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    for line in lines[-count:]:
        last = line.rstrip("\r").rpartition("\r")[2]
        yield _shown(f".{last[:_MAX_LINE].expandtabs()}")[1:]  # the dot keeps the indentation


def _without_output(board: Board, entry: Entry) -> list[str]:
    """What to show for a task without output."""
    task, _ = entry
    section = section_of(entry)
    facts = [f"Command: {_command(entry)}", f"Directory: {_shown(task.spec.cwd)}"]
    match section:
        case Section.RUNNING:
            return ["No output yet."]
        case Section.PENDING:
            return [*facts, f"Waiting {_pending_text(board, entry, _MIN_FULL_ID_WIDTH)}"]
        case Section.WAITING:
            return [
                *facts,
                f"Why it needs approval: {_progress_and_detail(board, entry)[1]}",
                "To approve: a. To reject: n.",
            ]
        case Section.SCHEDULED if entry.run is None:
            return [*facts, "No run yet."]
        case Section.SCHEDULED | Section.RECENT:
            return ["No output."]
        case _:
            assert_never(section)


def _text(entry: Entry) -> str:
    return _shown(entry.task.spec.description) or _command(entry) or _shown(entry.task.spec.prompt)


def _command(entry: Entry) -> str:
    return _shown(masked_line(entry.task.spec.command.words, entry.task.spec.command.shell))


def _shown(text: str) -> str:
    return clean(text[:_MAX_LINE].translate(_VARIATION_SELECTORS) if not text.isascii() else text[:_MAX_LINE])


def _row(pieces: Iterable[Span], width: int) -> Row:
    """Cut a row to `width` columns."""
    row: Row = []
    for text, style in pieces:
        if text := cut(text, width):
            row.append((text, style))
            width -= cells(text)
    return row
