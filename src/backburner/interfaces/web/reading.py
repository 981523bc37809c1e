"""Operations that read tasks: the board, lists, one task, its runs, events, children, conversation and changes."""

import contextlib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from backburner.core import formatting, ids, task_text
from backburner.core.errors import BackburnerError, BadInput, TaskNotFound
from backburner.core.models import Entry, Run
from backburner.core.sessions import session_of
from backburner.core.states import RUNNING_STATES, RunState, TaskState
from backburner.core.task_filter import MAX_COUNTED, Listed, TaskFilter
from backburner.interfaces.web.calls import Call, limit_of, time_of
from backburner.interfaces.web.home import home
from backburner.interfaces.web.rows import row
from backburner.services.app import App
from backburner.services.overview import MAX_ROWS, needs_person
from backburner.system.log_file import NAME

if TYPE_CHECKING:
    from backburner.services.remote_run import RemoteRun

_STATUSES = {*map(str, RunState), *map(str, TaskState)}
_MAX_CHILDREN = 1000
_UPCOMING = 5


class BoardQuery(TypedDict, total=False):
    project: str
    client: str
    q: str
    home: bool


class TasksQuery(TypedDict, total=False):
    status: list[str]
    kind: str
    type: str
    project: str
    client: str
    session: str
    batch: str
    agent: str
    parent: str
    since: str
    until: str
    q: str
    ended: bool
    recurring: bool
    before: str
    limit: int


class LimitQuery(TypedDict, total=False):
    limit: int


class ConversationQuery(TypedDict, total=False):
    before: int
    limit: int


def board(app: App, call: Call) -> dict[str, object]:
    """What runs, waits for a person, is queued, comes next and has ended; with `home` also the answer of `/home`."""
    found = app.overview.board(TaskFilter(project=call.get("project"), client=call.get("client"), text=call.get("q")))
    sections = {"running": found.running, "queued": found.queued, "next": found.next}
    counts = {name: len(items) for name, items in {"needs_you": found.needs_you, **sections}.items()}
    return {
        "at": formatting.iso(app.now()),
        "last_event": found.last_event,
        "needs_you": _rows(app, found.needs_you),
        **{name: _rows(app, items[:MAX_ROWS]) for name, items in sections.items()},
        "recent": _rows(app, found.recent.items),
        "recent_next": found.recent.next,
        "counts": {**counts, "recent": dict(found.ended)},
        "limits": {"running": MAX_ROWS, "recent": MAX_ROWS},
        "max_concurrent": app.config.whole("commands.max_concurrent"),
        "projects": list(app.overview.projects()),
        "clients": list(app.overview.clients()),
        **({"home": home(app, call)} if call.get("home", False) else {}),
    }


def tasks(app: App, call: Call) -> dict[str, object]:
    """Tasks by page, newest first."""
    statuses = tuple(call.get("status", []))
    if wrong := next((status for status in statuses if status not in _STATUSES), None):
        raise BadInput(f"Unknown status '{wrong}'. Valid values: {', '.join(sorted(_STATUSES))}.")
    fields = ("kind", "type", "project", "client", "session", "batch", "agent", "parent")
    wanted = TaskFilter(
        statuses,
        **{name: call.get(name) for name in fields},
        since=time_of(call, "since"),
        until=time_of(call, "until"),
        text=call.get("q"),
        ended=call.get("ended", False),
        recurring=call.get("recurring", False),
    )
    if (before := call.get("before")) is not None and not re.fullmatch(
        r"(\d{1,15}-)?\d{1,15}" if not wanted.ended else r"\d{1,15}-\d{1,15}", before
    ):
        raise BadInput(f"'before' must be `next` of another page, not '{before}'.")
    found = app.overview.page(wanted, before, limit_of(call))
    total = f"{MAX_COUNTED}+" if found.total is not None and found.total > MAX_COUNTED else found.total
    return {"items": _rows(app, found.items), "next": found.next, "total": total}


def task(app: App, call: Call) -> dict[str, object]:
    """One task with everything that is known about it."""
    entry = app.queries.find(call.path["id"], call.caller)
    task, run = entry
    changes = _changes(app, entry, call)
    details = task_text.inspection_json(app.runs.inspect(entry))
    is_elsewhere = run is not None and app.runs.is_elsewhere(run)
    folder = app.runs.folder(entry) if run and not is_elsewhere else None
    upcoming = [formatting.iso(slot) for slot in upcoming_slots(app, entry)]
    return {
        **one_row(app, entry),
        "details": details,
        "folder": folder,
        "log": app.runs.log_path(entry) or None,
        "output_removed": bool(run and run.started_at and not is_elsewhere and not os.path.exists(app.runs.log_path(entry))),
        "env": ids.masked(task.spec.env),
        "next_runs": upcoming,
        "children": len(app.queries.descendants_of(session_of(task))) if task.spec.agent_name is not None else 0,
        "is_live": entry.is_live,
        "can": sorted(_possible(app, entry)),
        "conversation": task.spec.agent_name is not None,
        "changes": changes,
    }


def upcoming_slots(app: App, entry: Entry) -> list[int]:
    """The next times of a recurring task."""
    task = entry.task
    if not task.is_recurring or task.state not in (TaskState.ACTIVE, TaskState.PROPOSED):
        return []
    from backburner.core.schedule import next_slot

    slots: list[int] = []
    at = app.now()
    while len(slots) < _UPCOMING and (slot := next_slot(task.spec.schedule, at)) is not None:
        slots.append(slot)
        at = slot
    return slots


def _possible(app: App, entry: Entry) -> set[str]:
    """The actions that make sense for a task in its present state."""
    task, run = entry
    found: set[str] = set()
    if not entry.has_ended:
        found.add("cancel")
    if needs_person(entry):
        found |= {"approve", "reject"}
    if task.is_recurring:
        if task.state == TaskState.ACTIVE:
            found |= {"pause", "run-now"}
        elif task.state == TaskState.PAUSED:
            found.add("unpause")
    elif run and entry.has_ended:
        found.add("restart")
        if task.spec.agent_name is not None and run.state == RunState.COMPLETED:
            found.add("resume")
    if run and entry.is_live and task.spec.command.stdin and run.state in RUNNING_STATES:
        found.add("send")
    if entry.has_ended:
        found.add("clear")
    return found


def _changes(app: App, entry: Entry, call: Call) -> dict[str, object] | None:
    """Where the changes of an agent or of a sandboxed command are; None if there are none."""
    task = entry.task
    if worktree := app.conversations.worktree(task):
        return {"kind": "worktree", "path": worktree.path, "branch": worktree.branch, "files": None}
    if entry.is_live:
        return None
    try:
        kept = app.project_changes.kept(task.task_id, call.caller)
    except BackburnerError:
        return None
    return {"kind": "sandbox", "path": kept.project, "branch": None, "files": len(kept.found)}


def runs(app: App, call: Call) -> dict[str, object]:
    """The runs and skipped slots of a task, newest first."""
    entry = app.queries.find(call.path["id"], call.caller)
    found = app.queries.history(entry, limit_of(call, 50))
    return {"items": [{**task_text.run_json(run), "n": run.n} for run in found], "total": entry.task.run_count}


def run(app: App, call: Call) -> dict[str, object]:
    """One run of a task."""
    entry, found = find_run(app, call)
    size, remote = None, app.runs.remote(found.run_id)
    with contextlib.suppress(OSError):
        size = _size_elsewhere(remote) if remote else os.path.getsize(os.path.join(app.home.folder(found.folder), NAME))
    folder = None if remote else app.home.folder(found.folder)
    about = {"task_id": entry.task.task_id, "folder": folder, "has_output": bool(size), "size": size}
    return {**task_text.run_json(found), "n": found.n, **about}


def _size_elsewhere(remote: "RemoteRun") -> int:
    with remote.open_log() as log:
        return log.size


def find_run(app: App, call: Call) -> tuple[Entry, Run]:
    """The run that a request names by its id, or the latest run of the task that it names."""
    return app.queries.find_run(call.path["id"], call.caller)


def events_of_task(app: App, call: Call) -> dict[str, object]:
    """The events of a task, oldest first."""
    entry = app.queries.find(call.path["id"], call.caller)
    found = app.overview.events_of(entry.task.task_id, limit_of(call, 200, 1000))
    return {"items": [task_text.event_json(event) for event in found]}


def children(app: App, call: Call) -> dict[str, object]:
    """The tasks that the agent of a task submitted, and those that their agents submitted."""
    entry = app.queries.find(call.path["id"], call.caller)
    found = sorted(app.queries.descendants_of(session_of(entry.task)))[:_MAX_CHILDREN]
    items = sorted(app.overview.listed(found), key=lambda item: item.seq)
    return {"items": _rows(app, items), "next": None, "total": len(items)}


def conversation(app: App, call: Call) -> dict[str, object]:
    """What was said between a person and an agent, with the tools that it called: the latest items, oldest of them first."""
    from backburner.interfaces.web.conversation import read_conversation

    entry = app.queries.find(call.path["id"], call.caller)
    items = read_conversation(app, entry)
    limit, before = limit_of(call, 50), call.get("before", len(items))
    first = max(0, before - limit)
    doing = app.runs.progress(entry)
    shown = [{"n": n, **item} for n, item in enumerate(items)][first:before]
    return {"items": shown, "next": first or None, "total": len(items), "doing": doing.text if doing else ""}


def diff(app: App, call: Call) -> dict[str, object]:
    """What an agent or a sandboxed command changed, by file."""
    from backburner.interfaces.web.diffs import split_diff

    entry = app.queries.find(call.path["id"], call.caller)
    about = _changes(app, entry, call)
    if about is None:
        raise TaskNotFound(task_id=f"{entry.task.task_id} (changes)")
    if about["kind"] == "sandbox":
        text = app.project_changes.kept(entry.task.task_id, call.caller).diff()
    else:
        worktree = app.conversations.worktree(entry.task)
        assert worktree is not None
        text = worktree.diff().decode("utf-8", "replace")
    files, is_cut = split_diff(text)
    return {"path": about["path"], "branch": about["branch"], "files": files, "cut": is_cut}


def _rows(app: App, items: Sequence[Listed]) -> list[dict[str, object]]:
    return [row(app, item) for item in items]


def one_row(app: App, entry: Entry) -> dict[str, object]:
    """The row of one task."""
    return row(app, app.overview.listed([entry.task.task_id])[0])
