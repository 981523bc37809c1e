"""Reading the ledger: one task, lists of them, what is live, what happened, what is owed, and the spans of a trace."""

import json
from collections.abc import Sequence

from backburner.core.errors import TaskNotFound
from backburner.core.models import OUT, RECORD, Batch, Entry, Event, Notice, ProcessId, Run, Session, Span, Work
from backburner.core.states import LIVE
from backburner.store.connection import Connection
from backburner.store.rows import ENTRY, NOTICE, RUN, STATUS, TASK, WIDTH, entry_of, notice_of, run_of, span_of_run, span_of_task, task_of

# Through the small index of what is live, whatever the planner thinks of it: the cost must not grow with history.
_LIVE = "seq IN (SELECT seq FROM runs WHERE ended_at IS NULL)"
_OUTSIDE = f"(channel >= '{OUT}' AND channel < '{OUT}~')"  # what leaves the house is the post host's
_QUEUE = "FROM runs WHERE state = 'pending' AND blocked = 0 AND runner = ?"


class Reading(Connection):
    """Every question about the present state; nothing here writes."""

    _read: tuple[int, int, dict[str, str]] = (0, 0, {})  # the environment that was read last, its number, and when

    def show(self, task_id: str) -> Entry | None:
        """The task with just this id."""
        row = self._one(f"{ENTRY} WHERE t.task_id = ?", task_id)
        return entry_of(row) if row else None

    def _entry(self, task_id: str) -> Entry:
        if (entry := self.show(task_id)) is None:
            raise TaskNotFound(task_id=task_id)
        return entry

    def find(self, reference: str, project: str | None) -> Sequence[str]:
        """The ids that `reference` may mean: an id, a run's id, `last`, a label, or a part of an id."""
        for where, value in (("task_id = ?", reference), ("task_id = (SELECT task_id FROM runs WHERE run_id = ?)", reference)):
            if found := self._one(f"SELECT task_id FROM tasks WHERE {where}", value):
                return [found[0]]
        if not reference or self._one("SELECT 1 FROM events WHERE task_id = ? AND kind = 'task_cleared'", reference):
            return []  # an old id must not come to mean another task that it happens to be a part of
        if reference == "last":
            found = self._one("SELECT task_id FROM tasks WHERE ? IS NULL OR project = ? ORDER BY seq DESC LIMIT 1", project, project)
            return [found[0]] if found else []
        escaped = reference.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        here = ("name = ? AND project = ?", (reference, project))
        standing = (f"{here[0]} AND schedule <> '{{}}' AND state IN ('proposed', 'active', 'paused')", here[1])
        for where, values in (standing, here, ("name = ?", (reference,)), ("task_id LIKE ? ESCAPE '\\'", (f"%{escaped}%",))):
            if rows := self._all(f"SELECT task_id FROM tasks WHERE {where} ORDER BY seq DESC LIMIT 20", *values):
                return [row[0] for row in rows]
        return []

    def list(
        self,
        *,
        status: str | None = None,
        project: str | None = None,
        batch: str | None = None,
        limit: int | None = None,
        standing: bool = False,
        quiet: bool = False,
    ) -> Sequence[Entry]:
        """Tasks with their latest runs, newest first."""
        where, values = ["t.schedule <> '{}'" if standing else "1 = 1"], []
        if quiet:  # what standing tasks ran, and ended well, is in their own history; a chat is a place, not a task
            where.append("NOT (coalesce(t.session, '') LIKE 'task:%' AND coalesce(r.state, '') = 'completed')")
            where.append("t.chat = 0")
        if status in LIVE:
            where.append(f"t.task_id IN (SELECT task_id FROM runs WHERE {_LIVE} AND state = ?)")
            values.append(status)
        elif status:
            where.append(f"{STATUS} = ?")
            values.append(status)
        if project:
            where.append("t.project = ?")
            values.append(project)
        if batch is not None:
            where.append("t.batch = ?")
            values.append(batch)
        sql = f"{ENTRY} WHERE {' AND '.join(where)} ORDER BY t.seq DESC LIMIT ?"
        return [entry_of(row) for row in self._all(sql, *values, -1 if limit is None else limit)]

    def batches(self, project: str | None = None) -> Sequence[Batch]:
        """Every batch with how its tasks stand, oldest first."""
        rows = self._all(
            f"SELECT t.batch, t.project, min(t.created_at), {STATUS}, count(*)"
            " FROM tasks t LEFT JOIN runs r ON r.task_id = t.task_id AND r.n = t.run_count"
            " WHERE t.batch IS NOT NULL AND (? IS NULL OR t.project = ?) GROUP BY 1, 2, 4 ORDER BY min(t.seq)",
            project,
            project,
        )
        found: dict[tuple[str, str], Batch] = {}
        for batch, where, created_at, status, count in rows:
            known = found.setdefault((batch, where), Batch(batch, where, created_at, {}))
            known.counts[status] = count
        return list(found.values())

    def fallen(self, task_id: str) -> Sequence[Entry]:
        """The tasks that failed because this one did, and those that failed with them."""
        # CROSS JOIN keeps this order of looking, which is the one that follows the chain.
        fell = "d.task_id = r.task_id AND r.result = 'dependency'"
        rows = self._all(
            "WITH RECURSIVE fallen (task_id) AS ("
            f"SELECT d.task_id FROM dependencies d CROSS JOIN runs r WHERE d.after_id = ? AND {fell} UNION "
            f"SELECT d.task_id FROM fallen f CROSS JOIN dependencies d CROSS JOIN runs r WHERE d.after_id = f.task_id AND {fell})"
            " SELECT task_id FROM fallen",
            task_id,
        )
        return [self._entry(row[0]) for row in rows]

    def by_key(self, project: str, key: str) -> Entry | None:
        """The task that was submitted under this key."""
        row = self._one(f"{ENTRY} WHERE t.project = ? AND t.key = ?", project, key)
        return entry_of(row) if row else None

    def live_runs(self) -> Sequence[Run]:
        """Every run that has not ended, but for those kept by hand."""
        rows = self._all(f"SELECT {RUN} FROM runs r WHERE r.{_LIVE} AND r.runner <> ? ORDER BY r.seq", RECORD)
        return [run_of(row) for row in rows]

    def cancels(self) -> Sequence[str]:
        """The runs at work that are to be stopped."""
        return [row[0] for row in self._all(f"SELECT run_id FROM runs WHERE {_LIVE} AND cancel_requested_at IS NOT NULL")]

    def delayed_because(self) -> str | None:
        """Why a run that was claimed cannot be started yet, where there is one."""
        row = self._one(f"SELECT error FROM runs WHERE {_LIVE} AND state = 'running' AND process IS NULL AND error IS NOT NULL LIMIT 1")
        return row[0] if row else None

    def next_due(self, runner: str, now: int) -> int | None:
        """When the next pending run may start that may not start yet."""
        return self._one(f"SELECT min(due_at) {_QUEUE} AND due_at > ?", runner, now)[0]

    def queued(self, runner: str, now: int, limit: int) -> Sequence[str]:
        """The runs to claim next: by priority, then in the order they came."""
        sql = f"SELECT run_id {_QUEUE} AND (due_at IS NULL OR due_at <= ?) ORDER BY priority DESC, seq LIMIT ?"
        return [row[0] for row in self._all(sql, runner, now, limit)]

    def processes(self, pid: int) -> Sequence[ProcessId]:
        """The processes of live runs that had this pid."""
        rows = self._all(f"SELECT process FROM runs WHERE {_LIVE} AND process LIKE ?", f"{pid}:%")
        return [ProcessId.parse(row[0]) for row in rows]

    def events(self, after: int, limit: int = 1000) -> Sequence[Event]:
        """What happened after the event with this id, oldest first; a negative `after` counts from the end."""
        if after < 0:
            after = max(0, (self._one("SELECT coalesce(max(event_id), 0) FROM events")[0]) + after)
        rows = self._all("SELECT * FROM events WHERE event_id > ? ORDER BY event_id LIMIT ?", after, limit)
        return [Event(*row[:5], json.loads(row[5])) for row in rows]

    def notices(self, *, project: str | None = None, unread: bool = True, channels: Sequence[str] | None = None) -> Sequence[Notice]:
        """What is owed, oldest first: to some channels, or to all."""
        where = ("told_at IS NULL AND " if unread else "") + f"(? IS NULL OR project = ?) AND NOT {_OUTSIDE}"
        values: list[object] = [project, project]
        if channels is not None:  # as JSON: there may be more of them than a statement has places
            where += " AND channel IN (SELECT value FROM json_each(?))"
            values.append(json.dumps(list(channels)))
        rows = self._all(f"SELECT {NOTICE} FROM notices WHERE {where} ORDER BY notice_id", *values)
        return [notice_of(row) for row in rows]

    def open_work(self, sessions: Sequence[str]) -> bool:
        """Whether sessions asked for anything that still runs, or waits to."""
        asked = f"session IN ({', '.join('?' * len(sessions))})"
        live = f"SELECT 1 FROM tasks WHERE task_id IN (SELECT task_id FROM runs WHERE {_LIVE}) AND {asked}"
        proposed = f"SELECT 1 FROM tasks WHERE state = 'proposed' AND {asked}"
        return bool(self._one(live, *sessions) or self._one(proposed, *sessions))

    def owing(self) -> Sequence[str]:
        """The channels that something is owed to."""
        return [row[0] for row in self._all(f"SELECT DISTINCT channel FROM notices WHERE told_at IS NULL AND NOT {_OUTSIDE}")]

    def sessions(self, client: str | None = None) -> Sequence[Session]:
        """Who asks, latest first."""
        fields = ", ".join(Session._fields)
        rows = self._all(f"SELECT {fields} FROM sessions WHERE ? IS NULL OR client = ? ORDER BY seen_at DESC", client, client)
        return [Session(*row)._replace(process=ProcessId.parse(row[3]) if row[3] else None) for row in rows]

    def spans(self, trace_id: str) -> Sequence[Span]:
        """Every piece of a trace: tasks as they were asked for, and their runs."""
        task_ids = self._all("SELECT task_id FROM tasks WHERE trace_id = ? ORDER BY seq", trace_id)
        return [span for (task_id,) in task_ids for span in self.task_spans(task_id)]

    def task_spans(self, task_id: str) -> Sequence[Span]:
        """The pieces of a trace that one task is: being asked for, and each of its runs."""
        if not (row := self._one(f"SELECT {TASK} FROM tasks t WHERE t.task_id = ?", task_id)):
            return []
        task = task_of(row)
        runs = self._all(f"SELECT {RUN} FROM runs r WHERE r.task_id = ? ORDER BY r.n", task_id)
        return [*([span_of_task(task)] if task.span_id else []), *(span_of_run(task, run_of(row)) for row in runs)]

    def trace_of(self, span_id: str) -> str | None:
        """The trace that a span belongs to."""
        where = "t.span_id = ? OR t.parent_span_id = ? OR t.task_id IN (SELECT task_id FROM runs WHERE span_id = ?)"
        row = self._one(f"SELECT t.trace_id FROM tasks t WHERE {where}", span_id, span_id, span_id)
        return row[0] if row else None

    def memory(self, project: str) -> dict[str, str]:
        """What the agents of a project keep."""
        return dict(self._all("SELECT key, value FROM memory WHERE project = ? ORDER BY key", project))

    def cursor(self, name: str) -> int:
        """How far somebody who follows the events has come."""
        row = self._one("SELECT position FROM cursors WHERE name = ?", name)
        return row[0] if row else 0

    def spent(self, task_id: str | None, since: int, until: int | None = None) -> dict[str, float]:
        """What the runs of a task, or of all standing ones, used since a moment: tokens, cost, seconds, and how many there were."""
        total = {"tokens": 0.0, "cost": 0.0, "seconds": 0.0, "runs": 0.0}
        fields = "r.usage, r.started_at, r.ended_at, r.created_at"
        if task_id is not None:
            rows = self._db.execute(f"SELECT {fields} FROM runs r WHERE r.task_id = ? AND r.n > 0 ORDER BY r.n DESC", (task_id,))
        else:
            rows = self._db.execute(
                f"SELECT {fields} FROM runs r JOIN tasks t ON t.task_id = r.task_id AND t.schedule <> '{{}}' AND r.n > 0 ORDER BY r.seq DESC"
            )
        for usage, started, ended, created in rows:
            if created < since:
                break
            if until is not None and created > until:
                continue  # of a time when the clock was ahead
            used = json.loads(usage)
            total["tokens"] += used.get("tokens", 0)
            total["cost"] += used.get("cost", 0)
            total["seconds"] += (ended - started) / 1000 if started is not None and ended is not None else 0
            total["runs"] += 1
        return total

    def outdated(self, before: int) -> Sequence[str]:
        """The tasks that ended before a moment and may be forgotten; agents stay until they are cleared."""
        latest = "JOIN tasks t ON t.task_id = r.task_id AND t.run_count = r.n"
        over = "(t.schedule = '{}' AND t.type <> 'agent' OR t.schedule <> '{}' AND t.state IN ('done', 'failed', 'cancelled'))"
        ended = f"SELECT r.task_id FROM runs r {latest} WHERE r.ended_at < ? AND {over}"
        never = "SELECT task_id FROM tasks WHERE state IN ('rejected', 'expired') AND created_at < ?"
        return [row[0] for sql in (ended, never) for row in self._all(sql, before)]

    def overdue_proposals(self, now: int) -> Sequence[str]:
        """The proposals nobody answered in time."""
        return [row[0] for row in self._all("SELECT task_id FROM tasks WHERE state = 'proposed' AND expires_at <= ?", now)]

    def next_expiry(self) -> int | None:
        """When the next proposal expires."""
        return self._one("SELECT min(expires_at) FROM tasks WHERE state = 'proposed'")[0]

    def _work(self, run_id: str) -> Work:
        row = self._one(
            f"SELECT {TASK}, {RUN}, t.environment_id FROM runs r JOIN tasks t ON t.task_id = r.task_id WHERE r.run_id = ?", run_id
        )
        return Work(task_of(row[:WIDTH]), run_of(row[WIDTH:-1]), self._environment(row[-1]))

    def _environment(self, number: int | None) -> dict[str, str]:
        """An environment, read once for many tasks that share it, for as long as nobody else writes: a number may be used again."""
        if number is None:
            return {}
        now = number, self._data_version()
        if self._read[:2] != now:
            body = self._one("SELECT body FROM environments WHERE environment_id = ?", number)
            self._read = *now, json.loads(body[0]) if body else {}
        return self._read[2]

    def _data_version(self) -> int:
        """Another number after every commit of another connection."""
        return self._one("PRAGMA data_version")[0]

    def _task_of(self, run_id: str) -> str:
        return self._one("SELECT task_id FROM runs WHERE run_id = ?", run_id)[0]
