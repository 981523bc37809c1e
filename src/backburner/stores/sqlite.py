"""The ledger on SQLite: every verb is one transaction, guarded by the state it expects.

What was promised (submit, claim, end of a run with its notice) is on disk when the verb returns; what can be found out
again (the process of a run) is not waited for. Several processes write to one file; each has one connection.
"""

import json
import os
import zlib
from collections.abc import Iterable, Sequence

from backburner import ids
from backburner.errors import StaleRun
from backburner.lifecycle import (
    LIVE,
    Result,
    RunEvent,
    RunState,
    TaskEvent,
    TaskState,
    advance,
    advance_task,
    ending_of_task,
    event_between,
)
from backburner.models import ENGINE, RECORD, Approval, Ending, Entry, Event, Notice, ProcessId, Run, Submission, Task, Work
from backburner.stores.grants import Grants
from backburner.stores.records import Records
from backburner.stores.rows import ENTRY, RUN, TASK, WIDTH, entry_of, run_of, task_of
from backburner.words import ending as ending_words
from backburner.words import notice as notice_words

INBOX = "inbox"
_CLEARED_KEPT_MS = 30 * 86_400_000


class SQLiteStore(Grants, Records):
    """The verbs of the ledger of one home."""

    # -- submitting and approving

    def submit(
        self,
        submission: Submission,
        *,
        project: str,
        wanted_id: str,
        approval: Approval | None,
        reasons: tuple[str, ...],
        rule: str = "",
        runner: str,
        folder: str,
        now: int,
        expires_at: int | None,
    ) -> Entry:
        """Store a task; with an approval its first run too, else as a proposal."""
        with self._transaction():
            task_id = self._free_id(wanted_id)
            task = Task(
                task_id=task_id,
                type="command",
                kind="oneshot",
                state=TaskState.ACTIVE if approval else TaskState.PROPOSED,
                name=submission.name,
                description=submission.description,
                command=submission.command,
                shell=submission.shell,
                cwd=submission.cwd,
                project=project,
                env=submission.env,
                timeout_ms=submission.timeout_ms,
                umask=submission.umask,
                restarted_from=submission.restarted_from,
                created_at=now,
                expires_at=None if approval else expires_at,
                approved_by=approval.by if approval else None,
                approved_via=approval.via if approval else None,
                approved_at=approval.at if approval else None,
                reasons=reasons,
                rule=rule,
                fingerprint=approval.fingerprint if approval else None,
                run_count=0,
            )
            environment_id = self._keep_environment(submission.environment)
            self._insert("tasks", {**task._asdict(), "environment_id": environment_id})
            about = {"by": approval.by, "via": approval.via} if approval else {}
            self._event(now, "task_submitted" if approval else "task_proposed", task_id, None, **about, rule=rule, reasons=list(reasons))
            run = self._add_run(task, runner, folder, now) if approval else None
        return Entry(task._replace(run_count=1 if run else 0), run)

    def approve(self, task_id: str, approval: Approval, *, runner: str, folder: str) -> Entry:
        """A person's yes: the proposal becomes an active task with a pending run; one that waited is pending again."""
        with self._transaction():
            waiting = self._entry(task_id)
            if waiting.run and waiting.run.state == RunState.WAITING:
                return self._requeue(waiting.task, waiting.run, approval)
            task = self._change_task(task_id, TaskEvent.APPROVED, approval.at, approval)
            run = self._add_run(task, runner, folder, approval.at)
        return Entry(task._replace(run_count=1), run)

    def _requeue(self, task: Task, run: Run, approval: Approval) -> Entry:
        after = advance(run.state, RunEvent.REQUEUED)
        self._db.execute(
            "UPDATE runs SET state = ?, owner = NULL, process = NULL, started_at = NULL, error = NULL WHERE run_id = ? AND state = ?",
            (after, run.run_id, run.state),
        )
        self._guard(run.run_id)
        self._db.execute(
            "UPDATE tasks SET approved_by = ?, approved_via = ?, approved_at = ?, fingerprint = ? WHERE task_id = ?",
            (approval.by, approval.via, approval.at, approval.fingerprint, task.task_id),
        )
        self._event(approval.at, RunEvent.REQUEUED, task.task_id, run.run_id, by=approval.by, via=approval.via)
        return self._entry(task.task_id)

    def park(self, run_id: str, owner: ProcessId, reason: str, now: int) -> None:
        """A claimed run that has not begun waits for a person's yes."""
        after = advance(RunState.RUNNING, RunEvent.PARKED)
        with self._transaction():
            self._db.execute(
                "UPDATE runs SET state = ?, error = ? WHERE run_id = ? AND state = 'running' AND owner = ?",
                (after, reason, run_id, str(owner)),
            )
            self._guard(run_id)
            self._event(now, RunEvent.PARKED, self._task_of(run_id), run_id, reason=reason)

    def refuse(self, task_id: str, *, expired: bool, now: int) -> Entry:
        """A person's no, or nobody's answer in time."""
        with self._transaction():
            waiting = self._entry(task_id).run
            if waiting and waiting.state == RunState.WAITING:
                self._end(waiting.state, Ending(waiting.run_id, RunState.FAILED, Result.DENIED, now, error="a person said no"))
                return self._entry(task_id)
            return Entry(self._change_task(task_id, TaskEvent.EXPIRED if expired else TaskEvent.REJECTED, now), None)

    def _change_task(self, task_id: str, event: TaskEvent, now: int, approval: Approval | None = None) -> Task:
        task = self._entry(task_id).task
        state = advance_task(task.state, event)
        fingerprint = approval.fingerprint if approval else task.fingerprint
        by, via, at = (approval.by, approval.via, approval.at) if approval else (task.approved_by, task.approved_via, task.approved_at)
        self._db.execute(
            "UPDATE tasks SET state = ?, approved_by = ?, approved_via = ?, approved_at = ?, fingerprint = ? WHERE task_id = ? AND state = ?",
            (state, by, via, at, fingerprint, task_id, task.state),
        )
        self._event(now, event, task_id, None, **({"by": by, "via": via} if approval else {}))
        return task._replace(state=state, approved_by=by, approved_via=via, approved_at=at, fingerprint=fingerprint)

    def _add_run(self, task: Task, runner: str, folder: str, now: int) -> Run:
        n = task.run_count + 1
        run_id = ids.run_id(task.task_id, n)
        run = Run(
            run_id=run_id,
            task_id=task.task_id,
            n=n,
            state=RunState.PENDING,
            result=None,
            exit_code=None,
            error=None,
            summary=None,
            lines=None,
            folder=os.path.join(folder, run_id),
            mark=os.urandom(8).hex(),
            trace_id=os.urandom(16).hex(),
            span_id=os.urandom(8).hex(),
            runner=runner,
            owner=None,
            process=None,
            created_at=now,
            started_at=None,
            ended_at=None,
            cancel_requested_at=None,
        )
        self._insert("runs", run._asdict())
        self._db.execute("UPDATE tasks SET run_count = ? WHERE task_id = ?", (n, task.task_id))
        return run

    def _free_id(self, wanted: str) -> str:
        taken = self._one("SELECT count(*) FROM tasks WHERE task_id >= ? AND task_id < ?", wanted, wanted + "`")[0]
        candidate = wanted if not taken else f"{wanted}_{taken + 1}"
        while self._one("SELECT 1 FROM tasks WHERE task_id = ?", candidate):
            taken += 1
            candidate = f"{wanted}_{taken + 1}"
        return candidate

    def _keep_environment(self, environment: dict[str, str]) -> int:
        """Most tasks of a person share one environment: it is kept once."""
        body = json.dumps(environment, sort_keys=True)
        checksum = zlib.crc32(body.encode())
        found = self._one("SELECT environment_id FROM environments WHERE checksum = ? AND body = ?", checksum, body)
        if not found:
            found = self._one("INSERT INTO environments (checksum, body) VALUES (?, ?) RETURNING environment_id", checksum, body)
        return found[0]

    # -- the life of a run

    def claim(self, runner: str, owner: ProcessId, limit: int, now: int) -> Sequence[Work]:
        """Make up to `limit` pending runs ours, oldest first. On disk before anything is started."""
        pending = "SELECT run_id FROM runs WHERE state = 'pending' AND runner = ? AND ended_at IS NULL ORDER BY seq LIMIT ?"
        if limit <= 0 or not self._one(pending, runner, 1):
            return []
        after = advance(RunState.PENDING, RunEvent.CLAIMED)
        with self._transaction():
            run_ids = [row[0] for row in self._all(pending, runner, limit)]
            for run_id in run_ids:
                self._db.execute(
                    "UPDATE runs SET state = ?, owner = ?, started_at = ? WHERE run_id = ? AND state = 'pending'",
                    (after, str(owner), now, run_id),
                )
                self._event(now, RunEvent.CLAIMED, self._task_of(run_id), run_id)
        return [self._work(run_id) for run_id in run_ids]

    def record_process(self, run_id: str, owner: ProcessId, process: ProcessId) -> None:
        """Remember which process a run became. Not waited for: a crash finds it again by its mark."""
        with self._transaction(durable=False):
            self._db.execute("UPDATE runs SET process = ? WHERE run_id = ? AND owner = ?", (str(process), run_id, str(owner)))
            self._guard(run_id)

    def adopt(self, run: Run, owner: ProcessId) -> Work:
        """Take over a run at work from an owner that is dead."""
        with self._transaction():
            self._db.execute(
                "UPDATE runs SET owner = ?, runner = ? WHERE run_id = ? AND state = ? AND owner = ?",
                (str(owner), ENGINE, run.run_id, run.state, str(run.owner)),
            )
            self._guard(run.run_id)
        return self._work(run.run_id)

    def release(self, runner: str) -> int:
        """Give the pending runs of a dead embedder to the engine; how many there were."""
        with self._transaction():
            self._db.execute("UPDATE runs SET runner = ? WHERE state = 'pending' AND runner = ? AND ended_at IS NULL", (ENGINE, runner))
            return self._db.changes()

    def settle(self, endings: Sequence[Ending], owner: ProcessId) -> Sequence[str]:
        """Write the ends of runs with their events and notices; the ids of those that were still ours."""
        settled = []
        with self._transaction():
            for ending in endings:
                row = self._one("SELECT state, owner FROM runs WHERE run_id = ?", ending.run_id)
                if row and row[1] == str(owner) and row[0] in LIVE:
                    self._end(RunState(row[0]), ending)
                    settled.append(ending.run_id)
        return settled

    def request_cancel(self, task_id: str, now: int) -> Entry:
        """End a pending run at once; mark one at work for its owner to stop."""
        with self._transaction():
            entry = self._entry(task_id)
            run = entry.run
            if run is None and entry.task.state == TaskState.PROPOSED:
                self._change_task(task_id, TaskEvent.REJECTED, now)
            elif run and run.state in (RunState.PENDING, RunState.WAITING):
                self._end(run.state, Ending(run.run_id, RunState.CANCELLED, Result.UNSTARTED, now, error="cancelled before it started"))
            elif run and run.state in LIVE and run.cancel_requested_at is None and run.runner != RECORD:
                self._db.execute("UPDATE runs SET cancel_requested_at = ? WHERE run_id = ? AND state = ?", (now, run.run_id, run.state))
                self._guard(run.run_id)
                self._event(now, "cancel_requested", task_id, run.run_id)
        return self._entry(task_id)

    def _end(self, before: RunState, ending: Ending) -> None:
        """State, event and notice of an end, inside the caller's transaction."""
        event = event_between(before, ending.state)
        self._db.execute(
            "UPDATE runs SET state = ?, result = ?, exit_code = ?, error = ?, summary = ?, lines = ?,"
            " ended_at = CASE WHEN started_at > ? THEN started_at ELSE ? END WHERE run_id = ? AND state = ?",
            (ending.state, ending.result, ending.exit_code, ending.error, ending.summary, ending.lines)
            + (ending.ended_at, ending.ended_at, ending.run_id, before),
        )
        self._guard(ending.run_id)
        entry = self._entry(self._task_of(ending.run_id))
        task, run = entry
        assert run is not None
        if task.kind == "oneshot":
            self._change_task(task.task_id, ending_of_task(ending.state), ending.ended_at)
        self._event(
            ending.ended_at, event, task.task_id, run.run_id, result=ending.result, exit_code=ending.exit_code, summary=ending.summary
        )
        how = ending_words(ending.result, ending.exit_code, ending.error, task.timeout_ms)
        text = notice_words(
            task.task_id, ending.state, how, ending.summary, os.path.join(os.path.dirname(self.path), run.folder, "output.log")
        )
        self._notice(run, task.project, text, ending.ended_at)

    def _notice(self, run: Run, project: str, text: str, now: int) -> None:
        row = {"key": f"{run.run_id}:{INBOX}", "task_id": run.task_id, "run_id": run.run_id, "project": project}
        self._insert("notices", {**row, "channel": INBOX, "text": text, "created_at": now})

    # -- reading

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
        for where, values in (here, ("name = ?", (reference,)), ("task_id LIKE ? ESCAPE '\\'", (f"%{escaped}%",))):
            if rows := self._all(f"SELECT task_id FROM tasks WHERE {where} ORDER BY seq DESC LIMIT 20", *values):
                return [row[0] for row in rows]
        return []

    def list(self, *, status: str | None = None, project: str | None = None, limit: int | None = None) -> Sequence[Entry]:
        """Tasks with their latest runs, newest first."""
        where, values = ["1 = 1"], []
        if status in LIVE:
            where.append("r.state = ? AND r.ended_at IS NULL")
            values.append(status)
        elif status:
            where.append("coalesce(r.state, t.state) = ?")
            values.append(status)
        if project:
            where.append("t.project = ?")
            values.append(project)
        sql = f"{ENTRY} WHERE {' AND '.join(where)} ORDER BY t.seq DESC LIMIT ?"
        return [entry_of(row) for row in self._all(sql, *values, -1 if limit is None else limit)]

    def live_runs(self) -> Sequence[Run]:
        """Every run that has not ended, but for those kept by hand."""
        rows = self._all(f"SELECT {RUN} FROM runs r WHERE r.ended_at IS NULL AND r.runner <> ? ORDER BY r.seq", RECORD)
        return [run_of(row) for row in rows]

    def cancels(self) -> Sequence[str]:
        """The runs at work that are to be stopped."""
        return [row[0] for row in self._all("SELECT run_id FROM runs WHERE ended_at IS NULL AND cancel_requested_at IS NOT NULL")]

    def processes(self, pid: int) -> Sequence[ProcessId]:
        """The processes of live runs that had this pid."""
        rows = self._all("SELECT process FROM runs WHERE ended_at IS NULL AND process LIKE ?", f"{pid}:%")
        return [ProcessId.parse(row[0]) for row in rows]

    def events(self, after: int, limit: int = 1000) -> Sequence[Event]:
        """What happened after the event with this id, oldest first; a negative `after` counts from the end."""
        if after < 0:
            after = max(0, (self._one("SELECT coalesce(max(event_id), 0) FROM events")[0]) + after)
        rows = self._all("SELECT * FROM events WHERE event_id > ? ORDER BY event_id LIMIT ?", after, limit)
        return [Event(*row[:5], json.loads(row[5])) for row in rows]

    def notices(self, *, project: str | None = None, unread: bool = True) -> Sequence[Notice]:
        """What is owed to the inbox, oldest first."""
        where = ("told_at IS NULL AND " if unread else "") + "(? IS NULL OR project = ?)"
        rows = self._all(f"SELECT {', '.join(Notice._fields)} FROM notices WHERE {where} ORDER BY notice_id", project, project)
        return [Notice(*row) for row in rows]

    def tell(self, *, notice_ids: Iterable[int] = (), task_ids: Iterable[str] = (), now: int) -> None:
        """Mark notices as told, by their ids or by their tasks'."""
        with self._transaction():
            for column, values in (("notice_id", notice_ids), ("task_id", task_ids)):
                for value in values:
                    self._db.execute(f"UPDATE notices SET told_at = ? WHERE told_at IS NULL AND {column} = ?", (now, value))

    # -- upkeep

    def clear(self, task_ids: Sequence[str], now: int) -> Sequence[str]:
        """Forget tasks that have no live run, with their runs, notices and events; the folders they leave."""
        folders = []
        with self._transaction():
            for task_id in task_ids:
                if self._one("SELECT 1 FROM runs WHERE task_id = ? AND ended_at IS NULL AND runner <> ?", task_id, RECORD):
                    continue
                folders += [row[0] for row in self._all("SELECT folder FROM runs WHERE task_id = ?", task_id)]
                self._db.execute("DELETE FROM events WHERE task_id = ?", (task_id,))
                self._db.execute("DELETE FROM tasks WHERE task_id = ?", (task_id,))
                if self._db.changes():
                    self._event(now, "task_cleared", task_id, None)
            self._db.execute("DELETE FROM events WHERE kind = 'task_cleared' AND at < ?", (now - _CLEARED_KEPT_MS,))
            self._db.execute(
                "DELETE FROM environments WHERE environment_id NOT IN (SELECT environment_id FROM tasks WHERE environment_id IS NOT NULL)"
            )
        return folders

    def outdated(self, before: int) -> Sequence[str]:
        """The tasks that ended before a moment and may be forgotten."""
        ended = "SELECT r.task_id FROM runs r JOIN tasks t ON t.task_id = r.task_id AND t.run_count = r.n WHERE r.ended_at < ?"
        never = "SELECT task_id FROM tasks WHERE state IN ('rejected', 'expired') AND created_at < ?"
        return [row[0] for sql in (ended, never) for row in self._all(sql, before)]

    def overdue_proposals(self, now: int) -> Sequence[str]:
        """The proposals nobody answered in time."""
        return [row[0] for row in self._all("SELECT task_id FROM tasks WHERE state = 'proposed' AND expires_at <= ?", now)]

    def next_expiry(self) -> int | None:
        """When the next proposal expires."""
        return self._one("SELECT min(expires_at) FROM tasks WHERE state = 'proposed'")[0]

    # -- small change

    def _work(self, run_id: str) -> Work:
        row = self._one(
            f"SELECT {TASK}, {RUN}, e.body FROM runs r JOIN tasks t ON t.task_id = r.task_id"
            " LEFT JOIN environments e ON e.environment_id = t.environment_id WHERE r.run_id = ?",
            run_id,
        )
        return Work(task_of(row[:WIDTH]), run_of(row[WIDTH:-1]), json.loads(row[-1]) if row[-1] else {})

    def _task_of(self, run_id: str) -> str:
        return self._one("SELECT task_id FROM runs WHERE run_id = ?", run_id)[0]

    def _guard(self, run_id: str) -> None:
        if self._db.changes() == 0:
            raise StaleRun(run_id=run_id)
