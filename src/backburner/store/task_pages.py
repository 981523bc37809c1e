"""Lists of tasks by page, with filters, and what an overview of all projects needs."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from backburner.core.events import Event
from backburner.core.models import Entry, Task
from backburner.core.sessions import Client
from backburner.core.states import LIVE
from backburner.core.task_filter import MAX_COUNTED, DecisionFilter, Listed, Page, TaskFilter
from backburner.store.parameters import groups, places
from backburner.store.rows import ENTRY, LIVE_RUNS, STATUS, entry_of, plain

if TYPE_CHECKING:
    from backburner.store.database import Database

_FROM = " FROM tasks t LEFT JOIN runs r ON r.task_id = t.task_id AND r.n = t.run_count"
_LISTED = f"SELECT t.seq, {ENTRY.removeprefix('SELECT ')}"


class TaskPageRepository:
    """Reads pages of tasks. Never writes."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def page(self, wanted: TaskFilter, before: str | None, limit: int, *, count: bool = False) -> Page:
        """The tasks that match, newest first; `ended` ones in the order of their ends. `before` is `next` of the page before."""
        where, values = _conditions(wanted)
        total = None
        if count:
            counted = f"SELECT count(t.seq) FROM (SELECT t.seq{_FROM} WHERE {' AND '.join(where)} LIMIT {MAX_COUNTED + 1}) t"
            total = self._db.one(counted, values)[0]
        order = "r.ended_at DESC, t.seq DESC" if wanted.ended else "t.seq DESC"
        if before is not None:
            ended_at, _, seq = before.rpartition("-")
            if wanted.ended:
                where.append("r.ended_at <= ? AND (r.ended_at < ? OR t.seq < ?)")
                values += [int(ended_at), int(ended_at), int(seq)]
            else:
                where.append("t.seq < ?")
                values.append(int(seq))
        # The order of the ends is that of an index of runs, which an outer join could not begin with.
        listed = _LISTED.replace("LEFT JOIN", "JOIN") if wanted.ended else _LISTED
        rows = self._db.execute(f"{listed} WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ?", [*values, limit + 1])
        items = [_listed(row) for row in rows[:limit]]
        return Page(items, _position(items[-1], wanted) if len(rows) > limit else None, total)

    def listed(self, task_ids: Sequence[str]) -> Sequence[Listed]:
        """The tasks with these ids that still exist."""
        wanted = groups(task_ids)
        return [_listed(row) for ids in wanted for row in self._db.execute(f"{_LISTED} WHERE t.task_id IN ({places(ids)})", ids)]

    def ended_since(self, since: int) -> Mapping[str, int]:
        """The number of runs by state that ended since a time."""
        return dict(
            self._db.execute("SELECT state, count(*) FROM runs WHERE ended_at IS NOT NULL AND ended_at >= ? GROUP BY state", (since,))
        )

    def live_counts(self) -> Mapping[str, int]:
        """The number of live runs by state."""
        return dict(self._db.execute(f"SELECT state, count(*) FROM runs WHERE {LIVE_RUNS} GROUP BY state"))

    def projects(self) -> Mapping[str, int]:
        """The number of tasks of each project."""
        return dict(self._db.execute("SELECT project, count(*) FROM tasks GROUP BY project ORDER BY project"))

    def clients(self) -> Sequence[str]:
        """The clients that submitted tasks; the empty text stands for people."""
        return [row[0] for row in self._db.execute("SELECT DISTINCT coalesce(client, '') FROM tasks ORDER BY 1")]

    def last_event(self) -> int:
        """The id of the newest event; 0 if there is none."""
        return self._db.one("SELECT coalesce(max(event_id), 0) FROM events")[0]

    def events_after(self, event_id: int) -> Sequence[tuple[int, str, str | None]]:
        """The id, the kind and the task of each event after the one with this id, oldest first; less work than reading whole events."""
        return self._db.execute("SELECT event_id, kind, task_id FROM events WHERE event_id > ? ORDER BY event_id", (event_id,))

    def events_of(self, task_id: str, limit: int) -> Sequence[Event]:
        """The latest events of a task, oldest first."""
        fields = ", ".join(Event._fields)
        sql = f"SELECT {fields} FROM events WHERE task_id = ? ORDER BY event_id DESC LIMIT ?"
        return [Event(*row[:5], json.loads(row[5])) for row in reversed(self._db.execute(sql, (task_id, limit)))]

    def same_command(self, task: Task, limit: int) -> Sequence[Entry]:
        """The latest other tasks that a person or the gate decided on, with the same command in the same folder."""
        where = "t.project = ? AND t.command = ? AND t.shell = ? AND t.cwd = ? AND t.task_id <> ? AND t.approved_by IS NOT NULL"
        values = (task.project, plain(task.spec.command.words), int(task.spec.command.shell), task.spec.cwd, task.task_id, limit)
        return [entry_of(row) for row in self._db.execute(f"{ENTRY} WHERE {where} ORDER BY t.seq DESC LIMIT ?", values)]

    def decided(self, wanted: DecisionFilter, before: tuple[int, int], limit: int) -> Sequence[Listed]:
        """Tasks in the order of their decisions, newest first, before a time and `seq`. Rejected and expired ones are read from events."""
        at = "coalesce(t.approved_at, t.created_at)"
        where = [f"({at}, t.seq) < (?, ?)", f"{at} >= ?", "NOT (t.approved_by IS NULL AND t.state IN ('rejected', 'expired'))"]
        values: list[object] = [*before, wanted.since]
        conditions = {
            "t.approved_by = ?": wanted.by,
            "substr(t.approved_via, 1, length(?)) = ?": wanted.via,
            "t.rule = ?": wanted.rule,
            "t.task_id = ?": wanted.task_id,
        }
        for condition, value in conditions.items():
            if value is not None:
                where.append(condition)
                values += [value] * condition.count("?")
        if wanted.decision is not None:
            where.append(
                {"approved": "t.approved_by = 'user'", "allowed": "t.approved_by <> 'user'"}.get(wanted.decision, "t.approved_by IS NULL")
            )
        # The order is found without the large columns.
        found = f"SELECT t.seq FROM tasks t WHERE {' AND '.join(where)} ORDER BY {at} DESC, t.seq DESC LIMIT ?"
        rows = self._db.execute(f"{_LISTED} WHERE t.seq IN ({found}) ORDER BY {at} DESC, t.seq DESC", [*values, limit])
        return [_listed(row) for row in rows]


def _listed(row: tuple) -> Listed:
    return Listed(row[0], entry_of(row[1:]))


def _position(item: Listed, wanted: TaskFilter) -> str:
    return f"{item.entry.run.ended_at}-{item.seq}" if wanted.ended and item.entry.run else str(item.seq)


def _conditions(wanted: TaskFilter) -> tuple[list[str], list[object]]:
    where: list[str] = ["1 = 1"]
    values: list[object] = []

    def add(condition: str, *found: object) -> None:
        where.append(condition)
        values.extend(found)

    if wanted.quiet:
        add(f"NOT (coalesce(t.client, '') = '{Client.RECURRING}' AND coalesce(r.state, '') = 'completed')")
        add("t.chat = 0")
    if wanted.live:
        add(f"t.task_id IN (SELECT task_id FROM runs WHERE {LIVE_RUNS})")
    if wanted.statuses:
        marks = ", ".join("?" for _ in wanted.statuses)
        add(f"{STATUS} IN ({marks})", *wanted.statuses)
        if set(wanted.statuses) <= set(map(str, LIVE)):
            add(f"t.task_id IN (SELECT task_id FROM runs WHERE {LIVE_RUNS})")
        elif set(wanted.statuses) <= {"proposed", "rejected", "expired"}:
            add(f"t.approved_by IS NULL AND t.state IN ({marks})", *wanted.statuses)
    if wanted.recurring:
        add("t.seq IN (SELECT seq FROM tasks WHERE schedule <> '{}')")  # uses the small index of these tasks
    if wanted.ended:
        add("r.ended_at IS NOT NULL AND t.schedule = '{}'")
    if wanted.client is not None:
        add("coalesce(t.client, '') = ?", "" if wanted.client == "you" else wanted.client)
    columns = {"kind": "kind", "type": "type", "project": "project", "session": "session", "batch": "batch", "agent": "agent"}
    for field, column in columns.items():
        if (value := getattr(wanted, field)) is not None:
            add(f"t.{column} = ?", value)
    if wanted.parent is not None:
        add("t.parent_task = ?", wanted.parent)
    if wanted.since is not None:
        add("t.created_at >= ?", wanted.since)
    if wanted.until is not None:
        add("t.created_at < ?", wanted.until)
    if wanted.text:
        escaped = wanted.text.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        fields = ("t.task_id", "coalesce(t.name, '')", "t.description", "t.command", "coalesce(t.prompt, '')")
        add("(" + " OR ".join(f"lower({field}) LIKE ? ESCAPE '\\'" for field in fields) + ")", *[f"%{escaped}%"] * len(fields))
    return where, values
