"""The board of `top` as rows of styled text: the tasks by section, the output of the one that is selected, the keys.

In come tasks and three ways to learn more of the few that are shown; out come rows that fit a terminal of any size and hold
nothing that could move its cursor. Draws nothing, reads no key.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, assert_never

from backburner.core import formatting as words
from backburner.core import task_text as render
from backburner.core.masking import masked_line
from backburner.core.models import Entry
from backburner.core.states import RunState, TaskState
from backburner.core.terminal_text import cells, clean, cut, fitted

if TYPE_CHECKING:
    from backburner.core.progress import Progress

# A text and how it looks: a status, or one of plain, bold, dim and selected.
Piece = tuple[str, str]
Row = list[Piece]

_WIDE = 120  # columns from which ids are shown whole
_LEAST_TEXT = 12  # columns below which a description says nothing
_LEAST_BOTH = 40  # columns below which there is no place for a description and something beside it
_LEAST_BODY = 6  # lines below which there is no output
_LONGEST_LINE = 8192
_TAKEN = 8  # columns of a duration
_VARIATIONS = dict.fromkeys(range(0xFE00, 0xFE10))  # terminals do not agree on how wide they make a character

_KEYS = (
    (3, "c", "cancel"),
    (4, "r", "restart"),
    (5, "o", "output"),
    (6, "l", "log"),
    (7, "a", "all projects"),
    (8, "↑↓", "choose"),
    (2, "?", "help"),
    (1, "q", "quit"),
)
_HELP = (
    ("↑ ↓  k j", "choose a task"),
    ("PgUp PgDn", "a page up or down"),
    ("Home End", "the first, the last"),
    ("c", "cancel it; asks first"),
    ("r", "run it again, through the gate"),
    ("o  Enter", "its output on all of the screen, and back"),
    ("l", "its log on the plain screen, followed to its end"),
    ("a", "all projects, or only this one"),
    ("Ctrl-L", "draw everything anew"),
    ("q  Esc", "leave; the tasks go on"),
)


class Section(StrEnum):
    """Where on the board a task stands, from the top."""

    RUNNING = "Running"
    PENDING = "Pending"
    WAITING = "Waiting for approval"
    RECENT = "Recent"


class Board(NamedTuple):
    """What is to be shown. `entries` are arranged; the three questions are asked only of those that are in view."""

    where: str
    entries: Sequence[Entry]
    now: int
    progress: "Callable[[Entry], Progress | None]"
    waits_for: Callable[[Entry], str | None]
    tail: Callable[[Entry, int], bytes]
    selected: str | None = None
    everywhere: bool = False
    free: int | None = None  # how many more could run
    zoomed: bool = False
    help: bool = False
    said: str = ""  # a question or a message, in place of the keys

    @property
    def chosen(self) -> Entry | None:
        return next((entry for entry in self.entries if entry.task.task_id == self.selected), None)


class _Columns(NamedTuple):
    """How wide each column is; 0 for one that is left out."""

    state: int
    took: int
    id: int
    project: int
    text: int
    more: int


def section_of(entry: Entry) -> Section:
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
    """What came newest first, by section: what runs longest, then what starts next, what waits longest, and what ended last."""
    order = list(Section)

    def key(entry: Entry) -> tuple[int, ...]:
        (task, run), section = entry, section_of(entry)
        match section:
            case Section.RUNNING:
                within = ((run and run.started_at) or 0, task.created_at)
            case Section.PENDING:
                assert run is not None
                later = run.due_at if run.due_at is not None and run.due_at > now else 0
                within = (run.blocked, later, -run.priority, task.created_at)
            case Section.WAITING:
                within = (task.created_at,)
            case Section.RECENT:
                within = (-((run and run.ended_at) or task.created_at), -task.created_at)
            case _:
                assert_never(section)
        return order.index(section), *within

    oldest_first = entries[::-1]  # and so it stays among those of one moment
    return sorted(oldest_first, key=key)


def compose(board: Board, width: int, height: int) -> list[Row]:
    """The whole screen: at most `height` rows of at most `width` columns."""
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
    """How many lines of tasks are in view on a screen of this height."""
    return max(1, _split(board, height - 2)[0])


def short(text: str, width: int) -> str:
    """An id, or a text with ids in it, on a narrow screen without their dates; what is left still names the tasks."""
    return text if width >= _WIDE else re.sub(r"\btask_\d{8}_", "", text)


def _header(board: Board, width: int) -> Row:
    counts = {section: sum(section_of(entry) is section for entry in board.entries) for section in Section}
    told = [(f"{counts[Section.RUNNING]} running", "running"), (f"{counts[Section.PENDING]} pending", "pending")]
    if waiting := counts[Section.WAITING]:
        told.append((f"{waiting} waiting for approval" if width >= 80 else f"{waiting} waiting", "proposed"))
    if board.free is not None and width >= 80:
        told.append((f"{board.free} free place{'s' * (board.free != 1)}", "dim"))
    right = [piece for one in told for piece in ((" · ", "dim"), one)][1:]
    room = width - sum(cells(text) for text, _ in right) - 3
    name = "backburner  " if room >= 40 else ""
    where = _end_of(_shown(board.where), room - len(name))
    left = [(" ", "plain"), (name, "bold"), (where, "plain")]
    gap = room - len(name) - cells(where) + 1
    return [*left, (" " * max(1, gap), "plain"), *right]


def _end_of(path: str, width: int) -> str:
    """The last part of a path, which says most, in at most `width` columns."""
    if width < 8 or cells(path) <= width:
        return path if cells(path) <= width else ""
    path = path[-width:]
    while path and cells(path) >= width:
        path = path[1:]
    return f"…{path}"


def _foot(board: Board, width: int) -> Row:
    if board.said:
        return [(f" {_shown(board.said)}", "bold")]
    kept, room = set(), width - 1
    for item in sorted(_KEYS):
        size = cells(item[1]) + len(item[2]) + 3
        if size > room:
            break
        kept.add(item)
        room -= size
    return [(" ", "plain"), *(piece for item in _KEYS if item in kept for piece in ((item[1], "bold"), (f" {item[2]}  ", "dim")))]


def _help(width: int) -> list[Row]:
    keys = max(cells(key) for key, _ in _HELP) + 2
    left = " " * max(1, (width - keys - max(len(text) for _, text in _HELP)) // 2)
    rows: list[Row] = [[], [(f"{left}Keys", "bold")], []]
    return rows + [[(left + fitted(key, keys), "bold"), (text, "plain")] for key, text in _HELP]


def _body(board: Board, width: int, height: int) -> list[Row]:
    entry = board.chosen
    if entry is None:
        told = "No background tasks." if board.everywhere else "No background tasks here."
        return [[], [(f" {told}", "bold")], [(" Start one with: backburner run -- COMMAND ARG…", "dim")]]
    listed, rest = _split(board, height)
    rows = _list(board, width, listed)
    return [*rows, _title(board, entry, width), *_output(board, entry, rest - 1)] if rest else rows


def _split(board: Board, height: int) -> tuple[int, int]:
    """The lines of a body that the tasks get, and those that the output gets, its title included."""
    if board.zoomed:
        return 0, height
    if height < _LEAST_BODY:
        return height, 0
    listed = min(len(board.entries) + len(set(map(section_of, board.entries))), height - max(3, height * 2 // 5))
    return listed, height - listed


def _list(board: Board, width: int, height: int) -> list[Row]:
    """The part of the list, with the titles of its sections, that has the selected task in its middle."""
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
    shown = [(entry, *_beside(board, entry, width)) for entry in view if not isinstance(entry, Section)]
    columns = _columns(board, shown, width)
    rows = {entry.task.task_id: _task(board, entry, progress, more, columns, width) for entry, progress, more in shown}
    return [[(f" {line}", "bold"), (f" {counts[line]}", "dim")] if isinstance(line, Section) else rows[line.task.task_id] for line in view]


def _beside(board: Board, entry: Entry, width: int = _WIDE) -> "tuple[Progress | None, str]":
    """How far a task is, and what there is to say beside its description."""
    task, run = entry
    section = section_of(entry)
    match section:
        case Section.RUNNING:
            progress = board.progress(entry)
            return progress, _shown(progress.text) if progress else ""
        case Section.PENDING:
            return None, f"waits {_for(board, entry, width)}"
        case Section.WAITING:
            return None, _shown((run and run.error) or "; ".join(task.decision.reasons))
        case Section.RECENT:
            how = ""
            if run and run.end.result and run.state != RunState.COMPLETED:
                how = words.describe_result(run.end.result, run.end.exit_code, run.error, task.spec.timeout_ms)
            return None, " · ".join(part for part in (_shown(how), _shown((run and run.end.summary) or "")) if part)
        case _:
            assert_never(section)


def _for(board: Board, entry: Entry, width: int) -> str:
    """What a pending task waits for."""
    return f"for {short(_shown(board.waits_for(entry) or 'the engine'), width)}"


def _columns(board: Board, shown: "Sequence[tuple[Entry, Progress | None, str]]", width: int) -> _Columns:
    """Where room is short the duration goes first, then the description."""
    state = 9 if width < 70 else 15 if width < 140 else 25
    longest = max(cells(short(entry.task.task_id, width)) for entry in board.entries)
    project = 16 if board.everywhere and width >= 100 else 0
    task_id = min(longest, 40, max(4, width - state - 2))
    took = _TAKEN
    rest = width - 4 - state - took - task_id - (project + 1 if project else 0)
    if rest < _LEAST_TEXT:
        took, rest = 0, rest + took + 1
    if rest < _LEAST_TEXT:
        return _Columns(state, took, task_id, project, 0, 0)
    if rest < _LEAST_BOTH or not any(more for _, _, more in shown):
        return _Columns(state, took, task_id, project, rest, 0)
    text = min(max(_LEAST_TEXT, *(cells(_text(entry)[:width]) for entry, _, _ in shown)), rest * 45 // 100)
    return _Columns(state, took, task_id, project, text, rest - text - 2)


def _task(board: Board, entry: Entry, progress: "Progress | None", more: str, columns: _Columns, width: int) -> Row:
    took = words.elapsed(entry, board.now)
    text = _text(entry)
    if not columns.more and section_of(entry) is Section.PENDING:
        text = _for(board, entry, width)  # says more than what it is, where there is room for one
    row = [
        (" ", "plain"),
        _state(entry, progress, columns.state),
        ("" if not columns.took else f" {words.duration(took) if took is not None else '':>{columns.took}}", "plain"),
        (f" {fitted(short(entry.task.task_id, width), columns.id)} ", "plain"),
        (f"{fitted(_shown(os.path.basename(entry.task.project)), columns.project)} " if columns.project else "", "dim"),
        (fitted(text, columns.text), "plain"),
        (f"  {cut(more, columns.more)}" if columns.more else "", "dim"),
    ]
    if entry.task.task_id != board.selected:
        return row
    text = "".join(text for text, _ in row)
    return [(fitted(text, width), "selected")]


def _state(entry: Entry, progress: "Progress | None", width: int) -> Piece:
    if entry.is_live and entry.run and entry.run.cancel_requested_at is not None:
        return fitted("stopping", width), "cancelled"
    if progress and progress.fraction is not None:
        return f"{render.bar(progress.fraction, width - 5)} {render.percent(progress.fraction):>4}", entry.status
    return fitted("ready" if entry.is_ready else entry.status, width), entry.status


def _title(board: Board, entry: Entry, width: int) -> Row:
    """The rule above the output: whose it is, how that stands, and what it runs."""
    took = words.elapsed(entry, board.now)
    _, more = _beside(board, entry, width)
    status = entry.status if took is None else f"{entry.status} {words.duration(took)}"
    parts = [(status, entry.status), (more, "plain"), (_command(entry), "plain")]
    row = [("── ", "dim"), (short(entry.task.task_id, 2 * width), "bold")]
    for text, style in parts:
        row += [(" · ", "dim"), (text, style)] if text else []
    row = _row([*row, (" ", "plain")], width)
    return [*row, ("─" * (width - sum(cells(text) for text, _ in row)), "dim")]


def _output(board: Board, entry: Entry, height: int) -> list[Row]:
    lines = list(_lines(board.tail(entry, height), height)) if height > 0 and entry.run else []
    if lines:
        return [[(line, "plain")] for line in lines]
    return [[(line, "dim")] for line in _instead(board, entry)][: max(0, height)]


def _lines(output: bytes, count: int) -> Iterator[str]:
    """The last lines of an output, each in its last state, with its indentation."""
    lines = output.decode("utf-8", "replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    for line in lines[-count:]:
        last = line.rstrip("\r").rpartition("\r")[2]
        yield _shown(f".{last[:_LONGEST_LINE].expandtabs()}")[1:]  # the dot keeps the indentation


def _instead(board: Board, entry: Entry) -> list[str]:
    """What to say of a task without output."""
    task, _ = entry
    section = section_of(entry)
    about = [f"Command: {_command(entry)}", f"Directory: {_shown(task.spec.cwd)}"]
    match section:
        case Section.RUNNING:
            return ["No output yet."]
        case Section.PENDING:
            return [*about, f"Waits {_for(board, entry, _WIDE)}"]
        case Section.WAITING:
            return [*about, f"Asks because: {_beside(board, entry)[1]}", f"Answer: backburner approve {task.task_id}"]
        case Section.RECENT:
            return ["No output."]
        case _:
            assert_never(section)


def _text(entry: Entry) -> str:
    return _shown(entry.task.spec.description) or _command(entry)


def _command(entry: Entry) -> str:
    return _shown(masked_line(entry.task.spec.command.words, entry.task.spec.command.shell))


def _shown(text: str) -> str:
    return clean(text[:_LONGEST_LINE].translate(_VARIATIONS) if not text.isascii() else text[:_LONGEST_LINE])


def _row(pieces: Iterable[Piece], width: int) -> Row:
    """As much of a row as fits."""
    row: Row = []
    for text, style in pieces:
        if text := cut(text, width):
            row.append((text, style))
            width -= cells(text)
    return row
