"""Reads the ledger: single tasks, lists, dependencies, and the spans of a trace. Never writes."""

from collections.abc import Sequence

from backburner.core import light_json as json
from backburner.core.ids import outside_id, short_id
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import SANDBOX, Batch, Entry, Run
from backburner.core.sessions import Client
from backburner.core.states import LIVE, RunState
from backburner.store.parameters import places
from backburner.store.rows import ENTRY, LIVE_RUNS, RUN, STATUS, TASK, entry_of, plain, run_of, task_of

if TYPE_CHECKING:
    from backburner.core.events import Span
    from backburner.store.database import Database
    from backburner.store.task_reader import TaskReader

_MAX_MATCHES = 20
# A part of an id is searched among the newest tasks, and then among all, of which only the index of the ids is read.
_RECENT = "seq > (SELECT max(seq) FROM tasks) - 10000"
_PART, _WITHOUT_DATE = "lower(task_id) LIKE lower(?) ESCAPE '\\'", "task_id LIKE ? ESCAPE '\\'"
_NO_OFFER = f"NOT (approved_by IS NULL AND coalesce(rule, '') = '{SANDBOX}')"


class QueryRepository:
    """Queries for the current state of tasks and runs."""

    def __init__(self, db: "Database", reader: "TaskReader") -> None:
        self._db, self._reader = db, reader

    def get(self, task_id: str) -> Entry | None:
        """The task with exactly this id."""
        return self._reader.find(task_id)

    def find(self, reference: str, project: str | None) -> Sequence[str]:
        """The task ids that `reference` may refer to: an id, a run id, `last`, a label (its newest task), or part of an id.

        An offer to run a command without its sandbox that was not accepted is found only by what no other task matches.
        """
        for where in ("task_id = ?", "task_id = (SELECT task_id FROM runs WHERE run_id = ?)"):
            if found := self._db.one(f"SELECT task_id FROM tasks WHERE {where}", (reference,)):
                return [found[0]]
        if not reference or self._db.one("SELECT 1 FROM events WHERE task_id = ? AND kind = 'task_cleared'", (reference,)):
            return []  # the id of a cleared task must not match another task whose id contains it
        if reference == "last":
            where, values = ("chat = 0", ()) if project is None else ("chat = 0 AND project = ?", (project,))  # chats are not listed
            return self._newest(f"{where} AND {_NO_OFFER}", values, 1)
        escaped = reference.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        here = ("name = ? AND project = ?", (reference, project))
        recurring = (f"{here[0]} AND schedule <> '{{}}' AND state IN ('proposed', 'active', 'paused')", here[1])
        for where, values in (recurring, here, ("name = ?", (reference,))):
            if found := self._newest(f"{where} AND {_NO_OFFER}", values, 1):
                return found
        return self._find_part(reference, escaped)

    def _find_part(self, reference: str, escaped: str) -> Sequence[str]:
        """The tasks whose id is this text without its date, or else contains it: of the newest tasks, or else of all."""
        patterns = f"%{escaped}%", f"task\\_{'_' * 8}\\_{escaped}"
        for where, pattern in ((_WITHOUT_DATE, patterns[1]), (_PART, patterns[0])):
            if found := self._newest(f"{_RECENT} AND {where} AND {_NO_OFFER}", (pattern,), _MAX_MATCHES):
                return found
        first = f"CASE WHEN {_WITHOUT_DATE} THEN 0 ELSE 1 END, task_id DESC"
        rows = self._db.execute(f"SELECT task_id FROM tasks WHERE {_PART} ORDER BY {first} LIMIT ?", (*patterns, _MAX_MATCHES))
        found = [task_id for (task_id,) in rows]
        found = [task_id for task_id in found if short_id(task_id).lower() == reference.lower()] or found
        return found and (self._newest(f"task_id IN ({places(found)}) AND {_NO_OFFER}", found, _MAX_MATCHES) or found)

    def _newest(self, where: str, values: Sequence[object], limit: int) -> Sequence[str]:
        return [row[0] for row in self._db.execute(f"SELECT task_id FROM tasks WHERE {where} ORDER BY seq DESC LIMIT ?", (*values, limit))]

    def failed_dependents(self, task_id: str) -> Sequence[Entry]:
        """The tasks that failed because this one did, and the tasks that failed because of those."""
        fell = "EXISTS (SELECT 1 FROM runs r WHERE r.task_id = d.task_id AND r.result = 'dependency')"
        rows = self._db.execute(
            "WITH RECURSIVE fallen (task_id) AS ("
            f"SELECT d.task_id FROM dependencies d WHERE d.after_id = ? AND {fell} UNION "
            f"SELECT d.task_id FROM fallen f JOIN dependencies d ON d.after_id = f.task_id WHERE {fell})"
            " SELECT task_id FROM fallen",
            (task_id,),
        )
        return [self._reader.get(row[0]) for row in rows]

    def failed_in_sandbox(self, words: Sequence[str], shell: bool, cwd: str) -> Sequence[str]:
        """The sandboxes because of which the same command may have failed in this folder; not if it failed without a sandbox as well."""
        rows = self._db.execute(
            "SELECT DISTINCT r.sandbox FROM runs r JOIN tasks t ON t.task_id = r.task_id"
            " WHERE r.problem = 'sandbox' AND r.sandbox IS NOT NULL AND t.command = ? AND t.shell = ? AND t.cwd = ?"
            " AND NOT EXISTS (SELECT 1 FROM tasks o JOIN runs f ON f.task_id = o.task_id"
            " WHERE o.task_id = t.task_id || ? AND f.state = 'failed')",
            (plain(tuple(words)), int(shell), cwd, outside_id("")),
        )
        return [row[0] for row in rows]

    def open_offers(self, words: Sequence[str], shell: bool, cwd: str) -> Sequence[str]:
        """The open proposals to run this command in this folder without the sandbox in which it failed, newest first."""
        rows = self._db.execute(
            "SELECT task_id FROM tasks WHERE state = 'proposed' AND command = ? AND shell = ? AND cwd = ? AND task_id = restarted_from || ?"
            " ORDER BY created_at DESC",
            (plain(tuple(words)), int(shell), cwd, outside_id("")),
        )
        return [row[0] for row in rows]

    def by_key(self, project: str, key: str) -> Entry | None:
        """The task that was submitted with this key."""
        return self._reader.by_key(project, key)

    def list(
        self,
        *,
        status: str | None = None,
        project: str | None = None,
        batch: str | None = None,
        limit: int | None = None,
        recurring: bool = False,
        quiet: bool = False,
    ) -> Sequence[Entry]:
        """Tasks with their latest runs, newest first."""
        where, values = ["t.schedule <> '{}'" if recurring else "1 = 1"], []
        if quiet:  # successful commands of recurring tasks are in the history of those; chats are not listed
            where.append(f"NOT (coalesce(t.client, '') = '{Client.RECURRING}' AND coalesce(r.state, '') = 'completed')")
            where.append("t.chat = 0")
        if status in LIVE:
            where.append(f"t.task_id IN (SELECT task_id FROM runs WHERE {LIVE_RUNS} AND state = ?)")
            values.append(status)
        elif status:
            where.append(f"{STATUS} = ?")
            values.append(status)
            if status != RunState.COMPLETED:  # most tasks are; any other status is found by an index
                of_run = "SELECT task_id FROM runs WHERE state IN ('failed', 'cancelled') AND state = ?"
                unapproved = "SELECT task_id FROM tasks WHERE approved_by IS NULL AND state = ?"
                recurs = "SELECT task_id FROM tasks WHERE schedule <> '{}' AND state = ?"
                where.append(f"t.task_id IN ({of_run} UNION ALL {unapproved} UNION ALL {recurs})")
                values += [status] * 3
        # Few tasks have another status than completed. Then the expressions keep the planner from reading all tasks of the project in order.
        project_column, order = ("t.project", "t.seq") if status in (None, RunState.COMPLETED) else ("t.project || ''", "t.seq + 0")
        if project:
            where.append(f"{project_column} = ?")
            values.append(project)
        if batch is not None:
            where.append("t.batch = ?")
            values.append(batch)
        sql = f"{ENTRY} WHERE {' AND '.join(where)} ORDER BY {order} DESC"
        if limit is not None:
            sql += " LIMIT ?"
            values.append(limit)
        return [entry_of(row) for row in self._db.execute(sql, values)]

    def batches(self, project: str | None = None) -> Sequence[Batch]:
        """Every batch with the number of its tasks in each status, oldest first."""
        rows = self._db.execute(
            f"SELECT t.batch, t.project, min(t.created_at), {STATUS}, count(*)"
            " FROM tasks t LEFT JOIN runs r ON r.task_id = t.task_id AND r.n = t.run_count"
            " WHERE t.batch IS NOT NULL GROUP BY 1, 2, 4 ORDER BY min(t.seq)"
        )
        found: dict[tuple[str, str], Batch] = {}
        for batch, where, created_at, status, count in rows:
            if project is None or project == where:  # filtered here and not in SQL, so that the index of batches is used
                known = found.setdefault((batch, where), Batch(batch, where, created_at, {}))
                known.counts[status] = count
        return [*found.values()]

    def environment(self, task_id: str) -> dict[str, str]:
        """The environment that a task was submitted with; that of this host if it was submitted on another one; empty for an unknown task."""
        row = self._db.one(
            "SELECT e.body FROM tasks t JOIN environments e ON e.environment_id = t.environment_id WHERE t.task_id = ?", (task_id,)
        )
        if not row:
            return {}
        text = self._db.private_text(row[0])
        return json.loads(text) if text else dict(self._db.host_environment)

    def requested_by(self, session: str) -> Sequence[str]:
        """The tasks that a session requested, and, recursively, those that their agents requested."""
        rows = self._db.execute(
            "WITH RECURSIVE asked (task_id) AS (SELECT task_id FROM tasks WHERE session = ?"
            " UNION SELECT t.task_id FROM asked a JOIN tasks t ON t.parent_task = a.task_id)"
            " SELECT task_id FROM asked",
            (session,),
        )
        return [row[0] for row in rows]

    def history(self, task_id: str, limit: int) -> Sequence[Run]:
        """The latest runs of a task, including skipped slots, newest first."""
        rows = self._db.execute(f"SELECT {RUN} FROM runs r WHERE r.task_id = ? ORDER BY r.seq DESC LIMIT ?", (task_id, limit))
        return [run_of(row) for row in rows]

    def spans(self, trace_id: str) -> "Sequence[Span]":
        """Every span of a trace: the requests for its tasks, and their runs."""
        task_ids = self._db.execute("SELECT task_id FROM tasks WHERE trace_id = ? ORDER BY seq", (trace_id,))
        return [span for (task_id,) in task_ids for span in self.task_spans(task_id)]

    def task_spans(self, task_id: str) -> "Sequence[Span]":
        """The spans of one task: its request, and each of its runs."""
        from backburner.store.spans import span_of_run, span_of_task

        if not (row := self._db.one(f"SELECT {TASK} FROM tasks t WHERE t.task_id = ?", (task_id,))):
            return []
        task = task_of(row)
        runs = self._db.execute(f"SELECT {RUN} FROM runs r WHERE r.task_id = ? ORDER BY r.n", (task_id,))
        return [*([span_of_task(task)] if task.trace.span_id else []), *(span_of_run(task, run_of(row)) for row in runs)]

    def trace_of(self, span_id: str) -> str | None:
        """The trace that a span belongs to."""
        where = "span_id = ? OR parent_span_id = ? OR task_id IN (SELECT task_id FROM runs WHERE span_id = ?)"
        row = self._db.one(f"SELECT trace_id FROM tasks WHERE {where}", (span_id, span_id, span_id))
        return row[0] if row else None
