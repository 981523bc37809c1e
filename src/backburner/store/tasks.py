"""Tasks in the ledger: submit, approve and reject, cancel, resume, and clear.

Every method is one transaction, guarded by the expected state.
"""

import os
from collections.abc import Callable, Sequence

from backburner.core import trace_context
from backburner.core.claims import RunResult
from backburner.core.errors import BadInput, StaleRun
from backburner.core.formatting import refusal_text
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import EXTERNAL, Approval, Decision, Entry, ProcessId, Run, Submission, Task, TraceIds
from backburner.core.queues import at_host
from backburner.core.sessions import SessionId, agent_task, is_chat
from backburner.core.states import LIVE, NoticeKind, Result, RunState, TaskEvent, TaskState, WaitKind
from backburner.core.task_spec import AgentOptions, options_fields
from backburner.store.dependencies import dependency_failed
from backburner.store.parameters import groups, places
from backburner.store.rows import OUTGOING, new_task_row, plain
from backburner.store.run_folders import leave_to_hosts

if TYPE_CHECKING:
    from backburner.store.claims import Claims
    from backburner.store.database import Database
    from backburner.store.dependencies import Dependencies
    from backburner.store.environments import Environments
    from backburner.store.event_writer import EventWriter
    from backburner.store.notice_writer import NoticeWriter
    from backburner.store.recurring_activation import RecurringActivation
    from backburner.store.run_endings import RunEndings
    from backburner.store.run_writer import RunWriter
    from backburner.store.task_reader import TaskReader
    from backburner.store.task_transitions import TaskTransitions
    from backburner.store.waiting_runs import WaitingRuns

_CLEARED_KEPT_MS = 30 * 86_400_000


class TaskRepository:
    """The life cycle of a task."""

    def __init__(
        self,
        db: "Database",
        reader: "TaskReader",
        events: "EventWriter",
        notices: "NoticeWriter",
        environments: "Environments",
        transitions: "TaskTransitions",
        dependencies: "Dependencies",
        activation: "RecurringActivation",
        runs: "RunWriter",
        claims: "Claims",
        waiting: "WaitingRuns",
        endings: "RunEndings",
    ) -> None:
        self._db, self._reader, self._events, self._notices, self._environments = db, reader, events, notices, environments
        self._transitions, self._dependencies, self._activation = transitions, dependencies, activation
        self._runs, self._claims, self._waiting, self._endings = runs, claims, waiting, endings
        self._last_id = "", 1  # a base of task ids and its last number; see `_free_id`

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
        parent: trace_context.ParentSpan | None = None,
        owner: ProcessId | None = None,
        kind: str = "oneshot",
        lane: str = "",
        max_active: int = 0,
        question: Callable[[str], str] | None = None,
        asked: str | None = None,
        has_folder: Callable[[str], bool] | None = None,
    ) -> Entry:
        """Store a task: with an approval together with its first run, otherwise as a proposal. If the key exists, returns its task.

        With an `owner` that has capacity, the run is claimed immediately, unless another run is first in the queue. `asked` is the
        fingerprint of what a proposal asks about; `question` makes the text for channels from the task id.
        """
        try:
            with self._db.transaction(by_person=approval is not None and approval.by == "user"):
                if submission.spec.order.key is not None and (existing := self._reader.by_key(project, submission.spec.order.key)):
                    return existing
                for after_id in submission.spec.order.after:
                    self._reader.get(after_id)
                task = Task(
                    task_id=self._free_id(wanted_id, has_folder),
                    spec=submission.spec,
                    kind=kind,
                    state=TaskState.ACTIVE if approval else TaskState.PROPOSED,
                    project=project,
                    created_at=now,
                    decision=_decision(reasons, rule, approval, asked),
                    trace=TraceIds(
                        parent.trace_id if parent else trace_context.new_trace_id(),
                        trace_context.new_span_id(),
                        parent.span_id if parent else None,
                    ),
                    run_count=1 if approval and not submission.is_recurring else 0,
                    lane=lane,
                    session=submission.session,
                    message=submission.message,
                    opened=submission.opened,
                    restarted_from=submission.restarted_from,
                    expires_at=None if approval else expires_at,
                    parent_task=self._parent_task(submission),
                    parent_run=submission.parent_run,
                    origin_host=self._db.host_id,
                )
                client = SessionId.parse(task.session).client if task.session is not None else None
                environment_id = self._environments.store(submission.environment)
                row = new_task_row(task)
                row.update(client=client, environment_id=environment_id)
                self._db.insert("tasks", row)
                data = {"by": approval.by, "via": approval.via} if approval else {}
                event = "task_submitted" if approval else "task_proposed"
                self._events.write(now, event, task.task_id, None, **data, rule=rule, reasons=list(reasons))
                if not approval and question:
                    self._notices.write(task, None, question(task.task_id), now, NoticeKind.PROPOSED)
                if submission.is_recurring and approval:
                    return self._activation.activate(task, now, max_active)
                if submission.is_recurring:
                    self._activation.check_room(task, max_active)
                    return Entry(task, None)
                if not approval:
                    self._dependencies.block(task)
                    return Entry(task, None)
                if owner and not self._db.host_id and task.spec.order.start_at is None and not self._claims.queued(runner, now, 1):
                    return self._begin(task, runner, folder, now, owner)
                entry = self._begin(task, runner, folder, now)
                if owner and entry.run and self._claims.queued(runner, now, 1) == [entry.run.run_id]:
                    return Entry(task, self._claims.take(entry.run, owner, now))
                return entry
        except BaseException:
            self._environments.forget()  # the row of its environment may have been rolled back
            raise

    def approve(self, task_id: str, approval: Approval, *, runner: str, folder: str, max_active: int = 0) -> Entry:
        """Record a user's approval: a proposal becomes an active task with a pending run; a waiting run becomes pending again."""
        with self._db.transaction(by_person=True):
            waiting = self._reader.get(task_id)
            if waiting.run and waiting.run.state == RunState.WAITING:
                return self._approve_waiting(waiting.task, waiting.run, approval)
            task = self._transitions.apply(waiting.task, TaskEvent.APPROVED, approval.at, approval)
            self._notices.proposal_answered(task_id, approval.at)
            if task.is_recurring:
                return self._activation.activate(task, approval.at, max_active)
            task = self._runs.count_up(task)
            if is_chat(task.session):
                self._waiting.continue_after(task_id, approval.at)  # an agent in a chat does not wait for it to end
            return self._begin(task, runner, folder, approval.at)

    def refuse(self, task_id: str, *, expired: bool, now: int, via: str | None = None, reason: str | None = None) -> Entry:
        """Record that a user rejected a task through the interface `via`, with the reason they gave, or that its approval expired."""
        with self._db.transaction(by_person=not expired):
            entry = self._reader.get(task_id)
            if entry.run and entry.run.state == RunState.WAITING:
                self._refuse_waiting(entry, entry.run, now, via, reason)
                return self._reader.get(task_id)
            event = TaskEvent.EXPIRED if expired else TaskEvent.REJECTED
            return Entry(self._refuse_proposal(entry.task, event, now, via, reason), None)

    def request_cancel(self, task_id: str, now: int, *, only_run: bool = False) -> Entry:
        """Cancel a pending run now, or mark an active run for its owner to stop. Also ends a recurring task, unless `only_run`."""
        with self._db.transaction():
            entry = self._reader.get(task_id)
            if entry.task.state in (TaskState.ACTIVE, TaskState.PAUSED) and entry.task.is_recurring and not only_run:
                self._endings.finish(entry.task, TaskEvent.CANCELLED, now)
                entry = self._reader.get(task_id)
            run = entry.run
            if run is None and entry.task.state == TaskState.PROPOSED:
                self._refuse_proposal(entry.task, TaskEvent.REJECTED, now)
            elif run and run.state in (RunState.PENDING, RunState.WAITING):
                self._endings.end(
                    entry, RunResult(run.run_id, RunState.CANCELLED, Result.UNSTARTED, now, error="cancelled before it started")
                )
            elif run and run.state in LIVE and run.cancel_requested_at is None and run.runner != EXTERNAL:
                mark = "UPDATE runs SET cancel_requested_at = ? WHERE run_id = ? AND state = ?"
                if not self._db.write(mark, (now, run.run_id, run.state)):
                    raise StaleRun(run_id=run.run_id)
                self._events.write(now, "cancel_requested", task_id, run.run_id)
        return self._reader.get(task_id)

    def resume(self, task_id: str, message: str, *, runner: str, now: int) -> Entry:
        """Add another run to an agent task, in the same conversation. Guarded: of several concurrent calls only one succeeds."""
        with self._db.transaction():
            task, run = self._reader.get(task_id)
            assert run is not None
            if run.state in LIVE:
                raise StaleRun(run_id=run.run_id)
            task = self._runs.count_up(self._transitions.apply(task, TaskEvent.RESUMED, now))
            self._db.write("UPDATE tasks SET retrieved_at = NULL WHERE task_id = ?", (task_id,))
            new_run = self._runs.add(task, at_host(runner, run.host), os.path.dirname(run.folder), now, message=message)
            return Entry(task._replace(retrieved_at=None), new_run)

    def mark_retrieved(self, task_id: str, now: int) -> None:
        """Record the first time that the result of a task was read."""
        with self._db.transaction(durable=False):
            self._db.write("UPDATE tasks SET retrieved_at = ? WHERE task_id = ? AND retrieved_at IS NULL", (now, task_id))

    def set_model(self, task_id: str, agent: str, options: AgentOptions, lane: str) -> None:
        """Use another agent or model for a conversation from its next run on."""
        found = self._reader.find(task_id)
        with self._db.transaction(by_person=found is not None and found.task.decision.by == "user"):
            self._db.write(
                "UPDATE tasks SET agent = ?, agent_options = ?, lane = ? WHERE task_id = ?",
                (agent, plain(options_fields(options)), lane, task_id),
            )

    def ask_again(self, task_id: str, about: str, asked: str, text: str, now: int) -> None:
        """Ask again in a task's channels, because what needs approval has changed. `about` is the task that waits: this one or another.

        Only the new message can be answered from then on. Does nothing if an answer was given in the meantime.
        """
        with self._db.transaction(by_person=True):
            task, run = self._reader.get(task_id)
            waiting_run = run if run and run.state == RunState.WAITING else None
            changed = self._db.write("UPDATE tasks SET fingerprint = ? WHERE task_id = ? AND state = 'proposed'", (asked, about))
            waiting = "task_id = ? AND state = 'waiting' AND wait_kind = 'approval'"
            changed += self._db.write(f"UPDATE runs SET wait_fingerprint = ? WHERE {waiting}", (asked, about))
            if changed:
                self._notices.write(task, waiting_run, text, now, NoticeKind.WAITING if waiting_run else NoticeKind.PROPOSED, again=True)

    def confirm_answer(self, task_id: str, channel: str, text: str, now: int) -> None:
        """Confirm an answer in the channel in which a person gave it."""
        with self._db.transaction():
            self._notices.confirm_answer(self._reader.get(task_id).task, channel, text, now)

    def clear(self, task_ids: Sequence[str], now: int, *, sweep: bool = True) -> Sequence[str]:
        """Delete ended tasks with their runs, notices and events; returns the folders of their runs.

        Other hosts delete what they have of these.
        Without `sweep`, what takes a scan of the whole ledger is left to `sweep_cleared`.
        """
        folders, deleted = [], []
        self._environments.forget()
        with self._db.transaction():
            for task_id in task_ids:
                found = self._db.one("SELECT seq, environment_id FROM tasks WHERE task_id = ?", (task_id,))
                if not found or self._is_needed(task_id):
                    continue
                found_folders = self._db.execute("SELECT folder, host FROM runs WHERE task_id = ?", (task_id,))
                leave_to_hosts(self._db, found_folders)
                folders += [folder for folder, _ in found_folders]
                self._db.write("DELETE FROM tasks WHERE task_id = ?", (task_id,))
                deleted.append((*found, task_id))
            if sweep:
                self._delete_events([task_id for _, _, task_id in sorted(deleted)])
                self._delete_old_marks(now)
                if not self._environments.are_used({environment_id for _, environment_id, _ in deleted}):
                    self._environments.delete_unused()
            for _, _, task_id in deleted:
                self._events.write(now, "task_cleared", task_id, None)
        return folders

    def _delete_events(self, task_ids: Sequence[str]) -> None:
        """Delete the events of tasks, which are given in the order in which they were submitted.

        Events have no index by task. The newest are read first, and none that is older than the first task.
        """
        first = "SELECT event_id FROM events WHERE task_id = ? AND kind IN ('task_submitted', 'task_proposed', 'task_recorded') ORDER BY event_id DESC LIMIT 1"
        oldest = self._db.one(first, task_ids[:1]) if task_ids else ()
        for group in groups(task_ids):
            self._db.write(f"DELETE FROM events WHERE event_id >= ? AND task_id IN ({places(group)})", (oldest[0] if oldest else 0, *group))

    def sweep_cleared(self, after: int, now: int, limit: int) -> int | None:
        """Delete what tasks cleared without a sweep have left, among the next `limit` events, and one environment after the last of them.

        Returns where to continue; None when nothing is left.
        """
        window = "SELECT event_id FROM events WHERE event_id > ? ORDER BY event_id LIMIT ?"
        last = self._db.one(f"SELECT max(event_id) FROM ({window}) AS swept", (after, limit))[0]
        cleared = "SELECT 1 FROM events c WHERE c.task_id = events.task_id AND c.kind = 'task_cleared'"
        with self._db.transaction(durable=False):
            if last is not None:
                self._db.write(
                    f"DELETE FROM events WHERE event_id > ? AND event_id <= ? AND kind <> 'task_cleared' AND EXISTS ({cleared})",
                    (after, last),
                )
                return last
            self._delete_old_marks(now)
            self._environments.forget()
            return after if self._environments.delete_unused(limit=1) else None

    def report_removed_output(self, task_id: str, text: str, runs: int, now: int, *, notify: bool) -> None:
        """Record that the output of `runs` runs was removed, the last of them of this task; with `notify`, the user gets a notice."""
        with self._db.transaction(durable=False):
            self._events.write(now, "output_removed", task_id, None, runs=runs)
            if notify and (entry := self._reader.find(task_id)):
                self._notices.write(entry.task, None, text, now, NoticeKind.REMOVED, again=True)

    def _delete_old_marks(self, now: int) -> None:
        """Delete sessions without tasks, and the events that keep ids of cleared tasks from being used again, after a time."""
        self._db.write("DELETE FROM events WHERE kind = 'task_cleared' AND at < ?", (now - _CLEARED_KEPT_MS,))
        self._db.write(
            "DELETE FROM sessions WHERE seen_at < ? AND session_id NOT IN (SELECT session FROM tasks WHERE session IS NOT NULL)",
            (now - _CLEARED_KEPT_MS,),
        )

    def ended_before(self, before: int) -> Sequence[str]:
        """The tasks that ended before a time and may be deleted automatically; agent tasks are kept until a user clears them."""
        latest = "JOIN tasks t ON t.task_id = r.task_id AND t.run_count = r.n"
        over = "(t.schedule = '{}' AND t.type <> 'agent' OR t.schedule <> '{}' AND t.state IN ('done', 'failed', 'cancelled'))"
        ended = f"SELECT r.task_id FROM runs r {latest} WHERE r.ended_at < ? AND {over}"
        never = "SELECT task_id FROM tasks WHERE state IN ('rejected', 'expired') AND created_at < ?"
        return [row[0] for sql in (ended, never) for row in self._db.execute(sql, (before,))]

    def _begin(self, task: Task, runner: str, folder: str, now: int, owner: ProcessId | None = None) -> Entry:
        """Add the first run of an approved task: blocked by its dependencies, failed if one of them has failed, else claimed by `owner` or pending."""
        blocked, failed = self._dependencies.block(task)
        message = task.spec.prompt if task.spec.agent_name is not None else None
        origin = self._reader.latest_run(task.spec.order.after[-1]) if task.spec.order.after and not blocked else None
        new_run = self._runs.add(
            task,
            runner,
            folder,
            now,
            blocked=blocked,
            due_at=task.spec.order.start_at,
            message=message,
            origin=origin,
            owner=None if blocked or failed else owner,
        )
        entry = Entry(task, new_run)
        if failed is None:
            return entry
        self._endings.end(entry, dependency_failed(entry, failed, now))
        return self._reader.get(task.task_id)

    def _approve_waiting(self, task: Task, run: Run, approval: Approval) -> Entry:
        self._check_waits_for_person(task.task_id, run, "approve")
        answer = {"by": approval.by, "via": approval.via, "answer": "yes", "question": run.error}
        self._waiting.requeue(run.run_id, approval.at, task_id=task.task_id, reply="yes", **answer)
        if run.wait_kind in (None, WaitKind.APPROVAL):  # approving a budget or a tool call does not approve the command
            self._db.write(
                "UPDATE tasks SET approved_by = ?, approved_via = ?, approved_at = ?, fingerprint = ? WHERE task_id = ?",
                (approval.by, approval.via, approval.at, approval.fingerprint, task.task_id),
            )
        return self._reader.get(task.task_id)

    def _refuse_waiting(self, entry: Entry, run: Run, now: int, via: str | None, reason: str | None) -> None:
        self._check_waits_for_person(entry.task.task_id, run, "reject")
        match run.wait_kind:
            case WaitKind.TOOL:
                answer = {"by": "user", "via": via, "answer": "no", "question": run.error, "reason": reason}
                self._waiting.requeue(run.run_id, now, task_id=entry.task.task_id, reply="no", **answer)
            case WaitKind.BUDGET:
                self._endings.end(entry, RunResult(run.run_id, RunState.FAILED, Result.BUDGET, now, error=run.error))
            case _:
                error = f"rejected by the user: {reason}" if reason else "rejected by the user"
                self._endings.end(entry, RunResult(run.run_id, RunState.FAILED, Result.DENIED, now, error=error))

    def _check_waits_for_person(self, task_id: str, run: Run, verb: str) -> None:
        """BadInput if a run does not wait for an answer of a user."""
        if run.wait_kind is WaitKind.INTERACTIVE:
            raise BadInput(f"Task {task_id} waits until you stop using the same model; it continues automatically.")
        if run.wait and not run.wait.is_for_person:
            raise BadInput(f"Task {task_id} waits for {run.wait.target}; answer that one: backburner {verb} {run.wait.target}")

    def _refuse_proposal(self, task: Task, event: TaskEvent, now: int, via: str | None = None, reason: str | None = None) -> Task:
        answer = {name: value for name, value in (("via", via), ("reason", reason)) if value is not None}
        task = self._transitions.apply(task, event, now, None, **answer)
        self._notices.proposal_answered(task.task_id, now)
        if task.session is not None:  # the requesting agent waits for an answer; a user already knows it
            text = refusal_text(task.task_id, expired=event == TaskEvent.EXPIRED, reason=reason)
            self._notices.write(task, None, text, now, NoticeKind.REFUSED)
        self._endings.end_watcher(task, now)
        self._endings.follow_up(task.task_id, task.state, now)
        return task

    def _parent_task(self, submission: Submission) -> str | None:
        """The task of the agent that made this request, found by its run or its session; None if it was not an agent."""
        if submission.parent_run is not None:
            row = self._db.one("SELECT task_id FROM runs WHERE run_id = ?", (submission.parent_run,))
        elif (task_id := agent_task(submission.session)) is not None:
            row = self._db.one("SELECT task_id FROM tasks WHERE task_id = ?", (task_id,))
        else:
            return None
        return row[0] if row else None

    def _free_id(self, wanted: str, has_folder: Callable[[str], bool] | None) -> str:
        """An id that no task has or had, so that an id never refers to a different task later.

        Nor may it have a folder already, by `has_folder`: that is of another ledger which was used with the same home.
        The number is found by doubling and bisection, so that even the thousandth task of one name needs few queries. The search
        starts at the last number that this process has used.
        """

        def is_taken(task_id: str) -> bool:
            return self._is_known(task_id) or (has_folder is not None and has_folder(task_id))

        if wanted != self._last_id[0]:
            if not is_taken(wanted):
                return wanted
            self._last_id = wanted, 1
        taken, step = self._last_id[1], 1
        while is_taken(f"{wanted}_{taken + step}"):
            taken, step = taken + step, step * 2
        free = taken + step
        while free - taken > 1:
            middle = (taken + free) // 2
            if is_taken(f"{wanted}_{middle}"):
                taken = middle
            else:
                free = middle
        self._last_id = wanted, free
        return f"{wanted}_{free}"

    def _is_known(self, task_id: str) -> bool:
        cleared = "SELECT 1 FROM events WHERE task_id = ? AND kind = 'task_cleared'"
        return bool(self._db.one(f"SELECT 1 FROM tasks WHERE task_id = ? UNION ALL {cleared}", (task_id, task_id)))

    def _is_needed(self, task_id: str) -> bool:
        """Whether a task is live, a proposal, an open recurring task, or has notices to deliver."""
        open_task = "state = 'proposed' OR schedule <> '{}' AND state IN ('active', 'paused')"
        return bool(
            self._db.one("SELECT 1 FROM runs WHERE task_id = ? AND ended_at IS NULL AND runner <> ?", (task_id, EXTERNAL))
            or self._db.one(f"SELECT 1 FROM notices WHERE task_id = ? AND {OUTGOING}", (task_id,))
            or self._db.one(f"SELECT 1 FROM tasks WHERE task_id = ? AND ({open_task})", (task_id,))
        )


def _decision(reasons: tuple[str, ...], rule: str, approval: Approval | None, asked: str | None) -> Decision:
    if approval is None:
        return Decision(reasons, rule, fingerprint=asked)
    return Decision(reasons, rule, approval.by, approval.via, approval.at, approval.fingerprint, approval.sandbox)
