"""Pauses, unpauses and manually runs recurring tasks, and reports what they used today."""

import contextlib
from typing import TYPE_CHECKING

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.config_file import ConfigFile
from backburner.coordination.publisher import Publisher
from backburner.core.errors import BadInput, IllegalTransition
from backburner.core.models import Caller, Clock, Entry, Submission, Task
from backburner.core.recurring import explain_schedule
from backburner.core.states import PauseKind, TaskState
from backburner.services.budgets import daily_limit_reached
from backburner.services.identity import Identity
from backburner.services.queries import Queries
from backburner.system.home import Home

if TYPE_CHECKING:
    from backburner.core.store_ports import RecurringStore


class RecurringTasks:
    """Tasks that run on a schedule, on an event, or each time after another task."""

    def __init__(
        self,
        home: Home,
        recurring_store: "RecurringStore",
        config: ConfigFile,
        queries: Queries,
        identity: Identity,
        changes: ChangeFeed,
        publisher: Publisher,
        clock: Clock,
    ) -> None:
        self._home, self._recurring_store, self._config, self._clock = home, recurring_store, config, clock
        self._queries, self._identity, self._changes, self._publisher = queries, identity, changes, publisher

    def explain(self, task: Task | Submission, *, upcoming: bool = True) -> str:
        """Describe when a recurring task runs; includes the next run if `upcoming`, and why a watch command does not run."""
        text = explain_schedule(task, self._clock(), upcoming=upcoming)
        if (
            isinstance(task, Submission)
            or (watcher := self.watcher_of(task)) is None
            or task.state not in (TaskState.ACTIVE, TaskState.PAUSED)
        ):
            return text
        if watcher.status == TaskState.PROPOSED:
            return f"{text} (waiting for approval of this command: backburner approve {watcher.task.task_id})"
        return (
            text
            if watcher.status in (TaskState.ACTIVE, TaskState.PAUSED)
            else f"{text} (this command is {watcher.status} and does not run)"
        )

    def watcher_of(self, task: Task) -> Entry | None:
        """Return the helper task that runs the watch command of a task with a command source."""
        task_id = _watcher_of(task)
        return self._queries.get_or_none(task_id) if task_id else None

    def pause(self, reference: str, caller: Caller) -> Entry:
        """Start no more runs of a task until it is unpaused. A current run continues."""
        task_id = self._queries.find(reference, caller).task.task_id
        entry = self._recurring_store.pause(task_id, "it was paused by a person or an agent", self._clock())
        if watcher := _watcher_of(entry.task):
            with contextlib.suppress(IllegalTransition):
                self._recurring_store.pause(watcher, f"{task_id} is paused", self._clock())
        self._changes.announce()
        return entry

    def unpause(self, reference: str, caller: Caller) -> Entry:
        """Continue a paused task. If its daily budget is used up, only a person may do this, and the same amount is allowed again."""
        task = self._queries.find(reference, caller).task
        if (task.state == TaskState.PAUSED and task.recurring.pause_kind == PauseKind.BUDGET) or (
            task.state == TaskState.ACTIVE and task.is_recurring and self._recurring_store.daily_budget_exceeded(task, self._clock())
        ):
            self._identity.require_person(caller)
        return self.unpause_approved(task)

    def unpause_approved(self, task: Task) -> Entry:
        """Continue a paused task, after a person's approval if one was needed."""
        max_active = self._config.current.whole("tasks.max_active")
        entry = self._recurring_store.unpause(task.task_id, self._clock(), max_active, self._home.tasks)
        if watcher := _watcher_of(task):
            with contextlib.suppress(IllegalTransition):
                self._recurring_store.unpause(watcher, self._clock(), max_active)
        self._publisher.publish(entry)
        return entry

    def run_now(self, reference: str, caller: Caller) -> Entry:
        """Start a manual run; the schedule does not change. Raises BadInput if a daily limit is reached."""
        task = self._queries.find(reference, caller).task
        if reason := daily_limit_reached(self._recurring_store, self._config.current, task, self._clock()):
            raise BadInput(f"{reason}; see [tasks] in config.toml.")
        entry = self._recurring_store.run_now(task.task_id, self._clock(), self._home.tasks)
        self._publisher.publish(entry)
        return entry

    def spent_today(self, task: Task) -> dict[str, float]:
        """Return what a task has used today, or since a person last extended its budget today."""
        from backburner.core.schedule import day_of

        now = self._clock()
        return self._recurring_store.usage(task.task_id, max(day_of(task.spec.schedule, now), task.recurring.counted_from or 0), now)


def _watcher_of(task: Task) -> str | None:
    """Return the id of the helper task that runs the watch command of a task with a command source."""
    return task.spec.order.after[0] if task.spec.source_kind == "command" else None
