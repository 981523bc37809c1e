"""What the end of a run means for a recurring task and for the tasks that follow it. Runs inside the caller's transaction."""

import os
from collections.abc import Sequence

from backburner.core import recurring
from backburner.core.claims import RunResult
from backburner.core.formatting import describe_result
from backburner.core.light_typing import TYPE_CHECKING, NamedTuple
from backburner.core.models import Run, Task
from backburner.core.states import NoticeKind, Result, RunEvent, RunState, TaskEvent, TaskState

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter
    from backburner.store.notice_writer import NoticeWriter
    from backburner.store.pending_triggers import PendingTriggers
    from backburner.store.run_writer import RunWriter
    from backburner.store.task_reader import TaskReader
    from backburner.store.task_transitions import TaskTransitions
    from backburner.store.usage import Usage


class EndedTask(NamedTuple):
    """A task that has ended, and its final state. Its dependents must be processed."""

    task_id: str
    state: TaskState


class RecurringEndings:
    """Applies the consequences of the end of a run of a recurring task."""

    def __init__(
        self,
        db: "Database",
        root: str,
        reader: "TaskReader",
        events: "EventWriter",
        notices: "NoticeWriter",
        transitions: "TaskTransitions",
        runs: "RunWriter",
        usage: "Usage",
        pending: "PendingTriggers",
    ) -> None:
        self._db, self._root, self._reader, self._events, self._notices = db, root, reader, events, notices
        self._transitions, self._runs, self._usage, self._pending = transitions, runs, usage, pending

    def run_ended(self, task: Task, run: Run, event: RunEvent, ending: RunResult, *, agent_asked: bool) -> Sequence[EndedTask]:
        """Retry, pause, notify or finish the task, and start the tasks that follow it. Returns the tasks that ended with this.

        `agent_asked` is False if a pre-check command decided that the agent is not needed.
        """
        now = ending.ended_at
        outcome = describe_result(
            ending.result, ending.exit_code, ending.error, task.spec.timeout_ms, agent=task.spec.agent_name is not None
        )
        if ending.result == Result.EXIT and ending.error:
            outcome = ending.error
        after = recurring.after_run(task, run, ending, outcome, over=recurring.is_over(task, now) or self._follows_nothing(task))
        if not agent_asked:
            after = after._replace(notify=False, result_hash=task.recurring.result_hash)
        data = {
            "result": ending.result,
            "exit_code": ending.exit_code,
            "summary": ending.summary,
            "cause": run.cause.kind,
            "slot": run.cause.slot,
        }
        self._events.write(now, event, task.task_id, run.run_id, **data, **({"retry_in_ms": after.retry_ms} if after.retry_ms else {}))
        self._remember(task, run, ending, after)
        reached = self._transitions.apply(task, after.event, now, because=after.reason).state if after.event else None
        if reached in (TaskState.DONE, TaskState.FAILED):
            self.end_watcher(task, now)
        folder = os.path.dirname(run.folder)
        if after.retry_ms is not None:
            cause = {"slot": run.cause.slot, "origin": run.cause.origin, "payload": run.cause.payload}
            self._runs.add_recurring(task, folder, now, cause="retry", due_at=now + after.retry_ms, **cause)
        elif after.notify:
            kind = NoticeKind.PAUSED if after.event == TaskEvent.PAUSED else NoticeKind.ENDED
            self._notices.write(task, run, recurring.recurring_notice(task, ending, after, outcome), now, kind)
        ended: list[EndedTask] = []
        if ending.state == RunState.COMPLETED and agent_asked:
            changed = ending.digest != task.recurring.result_hash and task.recurring.result_hash is not None
            ended += self._start_followers(task, run, now, changed=changed)
        if task.spec.source and after.retry_ms is None and not after.event:
            self._pending.start_run(task, folder, now)
        if reached is not None and reached != TaskState.PAUSED:
            ended.append(EndedTask(task.task_id, reached))
        return ended

    def finish(self, task: Task, event: TaskEvent, now: int) -> EndedTask:
        """End a recurring task without the end of a run."""
        self.end_watcher(task, now)
        return EndedTask(task.task_id, self._transitions.apply(task, event, now).state)

    def pause_followers(self, ended: EndedTask, now: int) -> None:
        """Pause the tasks that follow a task that has ended."""
        for (follower,) in self._db.execute("SELECT task_id FROM chains WHERE after_id = ?", (ended.task_id,)):
            other = self._reader.get(follower)
            if other.task.state == TaskState.ACTIVE and not other.is_live:
                reason = f"{ended.task_id}, which it follows, is {ended.state}"
                self._transitions.pause(other.task, reason, now, f"{recurring.title(other.task)} is paused: {reason}.")

    def _remember(self, task: Task, run: Run, ending: RunResult, after: recurring.NextStep) -> None:
        precheck_hash = run.end.digest if ending.state == RunState.COMPLETED and run.end.digest else task.recurring.precheck_hash
        self._db.write(
            "UPDATE tasks SET failures = ?, result_hash = ?, precheck_hash = ? WHERE task_id = ?",
            (after.failures, after.result_hash, precheck_hash, task.task_id),
        )
        if after.reason is not None:
            self._db.write("UPDATE tasks SET paused_because = ?, pause_kind = 'other' WHERE task_id = ?", (after.reason, task.task_id))

    def _follows_nothing(self, task: Task) -> bool:
        """Whether the task that this task follows has ended."""
        if task.kind != "event" or not task.spec.order.after:
            return False
        other = self._reader.find(task.spec.order.after[0])
        return other is None or other.task.state in (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED)

    def end_watcher(self, task: Task, now: int) -> None:
        """End the task that runs a poll command for the source of this task; it exists only for this task."""
        watcher = self._reader.find(task.spec.order.after[0]) if task.spec.source_kind == "command" and task.spec.order.after else None
        if watcher is None:
            return
        match watcher.task.state:
            case TaskState.ACTIVE | TaskState.PAUSED:
                self._transitions.apply(watcher.task, TaskEvent.CANCELLED, now)
            case TaskState.PROPOSED:
                self._transitions.apply(watcher.task, TaskEvent.REJECTED, now)
                self._notices.proposal_answered(watcher.task.task_id, now)

    def _start_followers(self, task: Task, run: Run, now: int, *, changed: bool) -> Sequence[EndedTask]:
        """Start the tasks that follow this one after each run, or after each changed result. Returns the tasks that ended instead."""
        followers = "SELECT task_id FROM chains WHERE after_id = ? AND changed <= ?"
        results = [self._start_follower(row[0], task, run, now) for row in self._db.execute(followers, (task.task_id, int(changed)))]
        return [ended for ended in results if ended is not None]

    def _start_follower(self, task_id: str, task: Task, run: Run, now: int) -> EndedTask | None:
        other = self._reader.get(task_id)
        if other.task.state == TaskState.PAUSED:
            self._skip(other.task, f"{run.run_id} completed while it was paused", run, now)
        if other.task.state != TaskState.ACTIVE:
            return None
        if recurring.is_over(other.task, now) and not other.is_live:
            return self.finish(other.task, TaskEvent.DONE, now)
        if reason := self._usage.daily_budget_exceeded(other.task, now):
            self._transitions.pause_over_budget(other.task, reason, now)
        elif other.is_live and other.task.spec.source:
            self._pending.add(task_id, {"summary": f"the output of {task.task_id} has changed", "run": run.run_id})
        elif other.is_live:
            self._skip(other.task, f"{run.run_id} completed while the previous run was still active", run, now)
        else:
            self._db.write("UPDATE tasks SET fired = fired + 1 WHERE task_id = ?", (task_id,))
            self._runs.add_recurring(other.task, os.path.dirname(run.folder), now, cause="after", origin=run.run_id)
        return None

    def _skip(self, task: Task, reason: str, run: Run, now: int) -> None:
        self._runs.skip(task, [(now, reason, 0)], now, cause="after", origin=run.run_id)
