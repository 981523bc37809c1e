"""The ledger on SQLite: every verb is one transaction, guarded by the state it expects.

What was promised (submit, claim, end of a run with its notice) is on disk when the verb returns; what can be found out
again (the process of a run) is not waited for. Several processes write to one file; each has one connection.
"""

import json
import zlib
from collections.abc import Callable, Sequence

from backburner.core import trace_context as trace
from backburner.core.errors import BadInput
from backburner.core.formatting import no_room, refusal
from backburner.core.models import (
    CHAT,
    ENGINE,
    HOSTED,
    RECORD,
    TURN,
    Approval,
    Ending,
    Entry,
    ProcessId,
    Run,
    Settled,
    Submission,
    Task,
    Work,
)
from backburner.core.states import LIVE, NoticeKind, Result, RunEvent, RunState, TaskEvent, TaskState, advance
from backburner.store.deliveries import OUTGOING, Outside
from backburner.store.grants import Grants
from backburner.store.notices import Post
from backburner.store.rows import ENTRY, entry_of
from backburner.store.run_endings import dependency_failed, failed_before

_CLEARED_KEPT_MS = 30 * 86_400_000
_MANY = 500


class SQLiteStore(Grants, Post, Outside):
    """The verbs of the ledger of one home."""

    _kept: tuple[dict[str, str] | None, int, int] = (None, 0, 0)  # the environment that was submitted last, its number, and when

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
        parent: trace.Parent | None = None,
        owner: ProcessId | None = None,
        kind: str = "oneshot",
        lane: str = "",
        most_active: int = 0,
        question: Callable[[str], str] | None = None,
        asked: str | None = None,
    ) -> Entry:
        """Store a task; with an approval its first run too, else as a proposal. A key that is taken gives the task that has it.

        With an `owner` that has room the run is claimed in the same moment, unless something else comes first. `asked` is the fingerprint
        of what a proposal asks about, `question` the text for channels, given the id of the task.
        """
        try:
            with self._transaction():
                if submission.key is not None and (existing := self.by_key(project, submission.key)):
                    return existing
                for after_id in submission.after:
                    self._entry(after_id)
                task = Task(
                    task_id=self._free_id(wanted_id),
                    type="agent" if submission.agent is not None else "command",
                    kind=kind,
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
                    fingerprint=approval.fingerprint if approval else asked,
                    run_count=1 if approval and not submission.standing else 0,
                    batch=submission.batch,
                    key=submission.key,
                    priority=submission.priority,
                    after=submission.after,
                    start_at=submission.start_at,
                    limits=submission.limits,
                    stdin=submission.stdin,
                    ready_when=submission.ready_when,
                    restarts=submission.restarts,
                    trace_id=parent.trace_id if parent else trace.new_trace_id(),
                    span_id=trace.new_span_id(),
                    parent_span_id=parent.span_id if parent else None,
                    session=submission.session,
                    agent=submission.agent,
                    prompt=submission.prompt,
                    message=submission.message,
                    budget=submission.budget,
                    schedule=submission.schedule,
                    notify=submission.notify,
                    terms=submission.terms,
                    channels=submission.channels,
                    source=submission.source,
                    opened=submission.opened,
                    chat=bool(submission.terms.get("chat")),
                    lane=lane,
                )
                self._insert("tasks", {**task._asdict(), "environment_id": self._keep_environment(submission.environment)})
                about = {"by": approval.by, "via": approval.via} if approval else {}
                kind = "task_submitted" if approval else "task_proposed"
                self._event(now, kind, task.task_id, None, **about, rule=rule, reasons=list(reasons))
                if not approval and question:
                    self._notice(task, None, question(task.task_id), now, NoticeKind.PROPOSED)
                if submission.standing and approval:
                    return self._stand(task, now, most_active)
                if submission.standing:
                    self._room(task, most_active)
                    return Entry(task, None)
                if not approval:
                    self._block(task)
                    return Entry(task, None)
                entry = self._begin(task, runner, folder, now)
                if owner and entry.run and self.queued(runner, now, 1) == [entry.run.run_id]:
                    return Entry(task, self._take(entry.run, owner, now))
                return entry
        except BaseException:
            self._kept = (None, 0, 0)  # what was kept for it may be gone with it
            raise

    def approve(self, task_id: str, approval: Approval, *, runner: str, folder: str, most_active: int = 0) -> Entry:
        """A person's yes: the proposal becomes an active task with a pending run; one that waited is pending again."""
        with self._transaction():
            waiting = self._entry(task_id)
            if waiting.run and waiting.run.state == RunState.WAITING:
                return self._requeue(waiting.task, waiting.run, approval)
            task = self._change_task(waiting.task, TaskEvent.APPROVED, approval.at, approval)
            self._answered(task_id, approval.at)
            if task.standing:
                return self._stand(task, approval.at, most_active)
            self._db.execute("UPDATE tasks SET run_count = 1 WHERE task_id = ?", (task_id,))
            if str(task.session).startswith(CHAT):
                self._wake(task_id, approval.at)  # whoever talks with the person does not wait for its end
            return self._begin(task._replace(run_count=1), runner, folder, approval.at)

    def _begin(self, task: Task, runner: str, folder: str, now: int) -> Entry:
        """The first run of an approved task: pending, blocked by what it comes after, or failed with that at once."""
        blocked, failed = self._block(task)
        message = task.prompt if task.agent is not None else None
        origin = self._latest_run(task.after[-1]) if task.after and not blocked else None
        made = self._add_run(task, runner, folder, now, blocked=blocked, due_at=task.start_at, message=message, origin=origin)
        entry = Entry(task, made)
        if failed is None:
            return entry
        self._end(entry, dependency_failed(entry, failed, now))
        return self._entry(task.task_id)

    def _block(self, task: Task) -> tuple[bool, str | None]:
        """Note what has not completed of that which a task comes after: whether it still may, and why the task cannot start at all."""
        blocked, failed = False, None
        for after_id in task.after:
            other = self.show(after_id)
            if other is None:
                noted = self._one("SELECT 1 FROM dependencies WHERE task_id = ? AND after_id = ?", task.task_id, after_id)
                failed = f"{after_id}, which it comes after, is not known any more" if noted else failed
            elif other.status not in (RunState.COMPLETED, TaskState.DONE):
                self._db.execute(
                    "INSERT INTO dependencies (task_id, after_id) VALUES (?, ?) ON CONFLICT DO NOTHING", (task.task_id, after_id)
                )
                blocked = blocked or not other.ended
                failed = failed_before(after_id, other.status) if other.ended else failed
        return blocked, failed

    def _requeue(self, task: Task, run: Run, approval: Approval) -> Entry:
        if run.waits_on is not None and run.waits_on.startswith(TURN):
            raise BadInput(f"Task {task.task_id} waits for your own turn on the same model to end; it goes on by itself.")
        if run.waits_on not in (None, "budget", "tool"):
            raise BadInput(f"Task {task.task_id} waits for {run.waits_on}; answer that: backburner approve {run.waits_on}")
        self._requeue_run(run.run_id, approval.at, task_id=task.task_id, reply="yes", by=approval.by, via=approval.via)
        if run.waits_on is None:  # a yes to a budget or a tool is not one to the command
            self._db.execute(
                "UPDATE tasks SET approved_by = ?, approved_via = ?, approved_at = ?, fingerprint = ? WHERE task_id = ?",
                (approval.by, approval.via, approval.at, approval.fingerprint, task.task_id),
            )
        return self._entry(task.task_id)

    def refuse(self, task_id: str, *, expired: bool, now: int) -> Entry:
        """A person's no, or nobody's answer in time."""
        with self._transaction():
            entry = self._entry(task_id)
            if entry.run and entry.run.state == RunState.WAITING and str(entry.run.waits_on).startswith(TURN):
                raise BadInput(f"Task {task_id} waits for your own turn on the same model to end; it goes on by itself.")
            if entry.run and entry.run.state == RunState.WAITING and entry.run.waits_on not in (None, "budget", "tool"):
                raise BadInput(f"Task {task_id} waits for {entry.run.waits_on}; answer that: backburner reject {entry.run.waits_on}")
            if entry.run and entry.run.state == RunState.WAITING and entry.run.waits_on == "tool":
                self._requeue_run(entry.run.run_id, now, task_id=task_id, reply="no")
                return self._entry(task_id)
            if entry.run and entry.run.state == RunState.WAITING and entry.run.waits_on == "budget":
                self._end(entry, Ending(entry.run.run_id, RunState.FAILED, Result.BUDGET, now, error=entry.run.error))
                return self._entry(task_id)
            if entry.run and entry.run.state == RunState.WAITING:
                self._end(entry, Ending(entry.run.run_id, RunState.FAILED, Result.DENIED, now, error="a person said no"))
                return self._entry(task_id)
            task = self._change_task(entry.task, TaskEvent.EXPIRED if expired else TaskEvent.REJECTED, now)
            self._answered(task_id, now)
            if task.session is not None:  # the agent that asked waits for an answer; the person gave it
                self._notice(task, None, refusal(task_id, expired=expired), now, NoticeKind.REFUSED)
            self._follow_up(task_id, task.state, now)
            return Entry(task, None)

    def _answered(self, task_id: str, now: int) -> None:
        """Nobody needs to be asked any more."""
        asked = "task_id = ? AND told_at IS NULL AND kind = 'proposed'"
        self._db.execute(f"UPDATE notices SET told_at = ? WHERE {asked}", (now, task_id))

    def _free_id(self, wanted: str) -> str:
        """An id that no task has or had: what somebody remembers must not come to mean another one."""
        if not self._is_taken(wanted):
            return wanted
        taken = max(1, self._one("SELECT count(*) FROM tasks WHERE task_id >= ? AND task_id < ?", wanted, wanted + "`")[0])
        while self._is_taken(candidate := f"{wanted}_{taken + 1}"):
            taken += 1
        return candidate

    def _is_taken(self, task_id: str) -> bool:
        cleared = "SELECT 1 FROM events WHERE task_id = ? AND kind = 'task_cleared'"
        return bool(self._one("SELECT 1 FROM tasks WHERE task_id = ?", task_id) or self._one(cleared, task_id))

    def _keep_environment(self, environment: dict[str, str]) -> int:
        """Most tasks of a person share one environment: it is kept once."""
        before, known, version = self._kept
        if environment == before and version == self._data_version():
            return known
        body = json.dumps(environment, sort_keys=True)
        checksum = zlib.crc32(body.encode())
        found = self._one("SELECT environment_id FROM environments WHERE checksum = ? AND body = ?", checksum, body)
        if not found:
            found = self._one("INSERT INTO environments (checksum, body) VALUES (?, ?) RETURNING environment_id", checksum, body)
        self._kept = dict(environment), found[0], self._data_version()
        return found[0]

    # -- the life of a run

    def claim(self, runner: str, owner: ProcessId, limit: int, now: int) -> Sequence[Work]:
        """Make up to `limit` pending runs ours, by priority and then oldest first. On disk before anything is started."""
        if limit <= 0 or not self.queued(runner, now, 1):
            return []
        with self._transaction():
            return self._claim(runner, owner, limit, now)

    def _claim(self, runner: str, owner: ProcessId, limit: int, now: int) -> Sequence[Work]:
        works = [self._work(run_id) for run_id in self.queued(runner, now, limit)] if limit > 0 else []
        return [work._replace(run=self._take(work.run, owner, now)) for work in works]

    def _take(self, run: Run, owner: ProcessId, now: int) -> Run:
        event = RunEvent.RESUMED if run.runner in HOSTED and run.n > 1 and not run.cause else RunEvent.CLAIMED
        after = advance(run.state, event)
        self._db.execute(
            "UPDATE runs SET state = ?, owner = ?, started_at = ? WHERE run_id = ? AND state = ?",
            (after, str(owner), now, run.run_id, run.state),
        )
        self._guard(run.run_id)
        self._event(now, event, run.task_id, run.run_id)
        return run._replace(state=after, owner=owner, started_at=now)

    def record_process(self, run_id: str, owner: ProcessId, process: ProcessId) -> None:
        """Remember which process a run became. Not waited for: a crash finds it again by its mark."""
        with self._transaction(durable=False):
            change = "process = ?, error = NULL"  # it may have had to wait for room before
            self._db.execute(f"UPDATE runs SET {change} WHERE run_id = ? AND owner = ?", (str(process), run_id, str(owner)))
            self._guard(run_id)

    def put_off(self, run_id: str, owner: ProcessId, reason: str, now: int, *, tell: bool) -> None:
        """A claimed run cannot be started yet: why, and that its time has not begun. With `tell` a person is owed a word about it."""
        with self._transaction(durable=False):
            change = "error = ?, started_at = ?, process = NULL"
            claimed = "run_id = ? AND owner = ? AND state IN ('running', 'resumed')"
            self._db.execute(f"UPDATE runs SET {change} WHERE {claimed}", (reason, now, run_id, str(owner)))
            self._guard(run_id)
            if tell:
                task = self._entry(self._task_of(run_id)).task
                self._event(now, "run_delayed", task.task_id, run_id, reason=reason)
                self._notice(task, None, no_room(task.task_id, reason), now, NoticeKind.DELAYED, again=True)

    def record_ready(self, run_id: str, owner: ProcessId, now: int) -> None:
        """A server is ready. Not waited for: a crash finds it out again."""
        with self._transaction(durable=False):
            self._db.execute(
                "UPDATE runs SET ready_at = ? WHERE run_id = ? AND owner = ? AND ready_at IS NULL AND ended_at IS NULL",
                (now, run_id, str(owner)),
            )
            self._guard(run_id)
            self._event(now, "run_ready", self._task_of(run_id), run_id)

    def adopt(self, run: Run, owner: ProcessId) -> Work:
        """Take over a run at work from an owner that is dead."""
        with self._transaction():
            self._db.execute(
                "UPDATE runs SET owner = ?, runner = ? WHERE run_id = ? AND state = ? AND owner = ?",
                (str(owner), run.runner if run.runner in HOSTED else ENGINE, run.run_id, run.state, str(run.owner)),
            )
            self._guard(run.run_id)
        return self._work(run.run_id)

    def release(self, runner: str) -> int:
        """Give what a dead embedder has not started to the engine; how many runs there were."""
        with self._transaction():
            waiting = "state IN ('pending', 'waiting') AND runner = ? AND ended_at IS NULL"
            self._db.execute(f"UPDATE runs SET runner = ? WHERE {waiting}", (ENGINE, runner))
            return self._db.changes()

    def settle(self, endings: Sequence[Ending], owner: ProcessId, *, runner: str = "", limit: int = 0, now: int = 0) -> Settled:
        """Write the ends of runs with their events and notices, and claim what may start now: one transaction, one sync.

        Only the ends of runs that are still ours are written.
        """
        with self._transaction():
            return Settled(self._settle(endings, owner), self._claim(runner, owner, limit, now))

    def _settle(self, endings: Sequence[Ending], owner: ProcessId) -> Sequence[str]:
        settled = []
        for ending in endings:
            row = self._one(f"{ENTRY} WHERE r.run_id = ?", ending.run_id)
            entry = entry_of(row) if row else None
            if entry and entry.run and entry.run.owner == owner and entry.run.state in LIVE:
                self._end(entry, ending)
                settled.append(ending.run_id)
        return settled

    def request_cancel(self, task_id: str, now: int, *, only_run: bool = False) -> Entry:
        """End a pending run at once; mark one at work for its owner to stop. A standing task ends with it, but for `only_run`."""
        with self._transaction():
            entry = self._entry(task_id)
            if entry.task.state in (TaskState.ACTIVE, TaskState.PAUSED) and entry.task.standing and not only_run:
                self._finish(entry.task, TaskEvent.CANCELLED, now)
                entry = self._entry(task_id)
            run = entry.run
            if run is None and entry.task.state == TaskState.PROPOSED:
                task = self._change_task(entry.task, TaskEvent.REJECTED, now)
                self._answered(task_id, now)
                if task.session is not None:
                    self._notice(task, None, refusal(task_id, expired=False), now, NoticeKind.REFUSED)
                self._follow_up(task_id, task.state, now)
            elif run and run.state in (RunState.PENDING, RunState.WAITING):
                self._end(entry, Ending(run.run_id, RunState.CANCELLED, Result.UNSTARTED, now, error="cancelled before it started"))
            elif run and run.state in LIVE and run.cancel_requested_at is None and run.runner != RECORD:
                self._db.execute("UPDATE runs SET cancel_requested_at = ? WHERE run_id = ? AND state = ?", (now, run.run_id, run.state))
                self._guard(run.run_id)
                self._event(now, "cancel_requested", task_id, run.run_id)
        return self._entry(task_id)

    # -- upkeep

    def clear(self, task_ids: Sequence[str], now: int) -> Sequence[str]:
        """Forget tasks that have ended, with their runs, notices and events; the folders they leave."""
        folders, gone = [], []
        self._kept, self._read = (None, 0, 0), (0, 0, {})
        with self._transaction():
            for task_id in task_ids:
                if self._one("SELECT 1 FROM runs WHERE task_id = ? AND ended_at IS NULL AND runner <> ?", task_id, RECORD):
                    continue
                if self._one(f"SELECT 1 FROM notices WHERE task_id = ? AND {OUTGOING}", task_id):
                    continue  # a letter is still on its way
                unended = "state = 'proposed' OR schedule <> '{}' AND state IN ('active', 'paused')"
                if self._one(f"SELECT 1 FROM tasks WHERE task_id = ? AND ({unended})", task_id):
                    continue
                folders += [row[0] for row in self._all("SELECT folder FROM runs WHERE task_id = ?", task_id)]
                self._db.execute("DELETE FROM tasks WHERE task_id = ?", (task_id,))
                gone += [task_id] if self._db.changes() else []
            for start in range(0, len(gone), _MANY):  # events have no index by task: one reading of them serves many
                some = gone[start : start + _MANY]
                self._db.execute(f"DELETE FROM events WHERE task_id IN ({', '.join('?' * len(some))})", some)
            for task_id in gone:
                self._event(now, "task_cleared", task_id, None)
            self._db.execute("DELETE FROM events WHERE kind = 'task_cleared' AND at < ?", (now - _CLEARED_KEPT_MS,))
            self._db.execute(
                "DELETE FROM sessions WHERE seen_at < ? AND session_id NOT IN (SELECT session FROM tasks WHERE session IS NOT NULL)",
                (now - _CLEARED_KEPT_MS,),
            )
            self._db.execute(
                "DELETE FROM environments WHERE environment_id NOT IN (SELECT environment_id FROM tasks WHERE environment_id IS NOT NULL)"
            )
        return folders
