"""Event sources of tasks: which tasks have one, what the sources remember, and the runs that their events start."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.coordination.config_file import ConfigFile
from backburner.coordination.publisher import Publisher
from backburner.core.models import Clock, Task
from backburner.services.budgets import daily_limit_reached
from backburner.services.queries import Queries
from backburner.system.home import Home

if TYPE_CHECKING:
    from backburner.core.ports import TriggerEvent
    from backburner.core.store_ports import RecurringStore, TriggerStore


class Triggers:
    """Event sources of recurring tasks."""

    def __init__(
        self,
        home: Home,
        trigger_store: "TriggerStore",
        recurring_store: "RecurringStore",
        config: ConfigFile,
        queries: Queries,
        publisher: Publisher,
        clock: Clock,
    ) -> None:
        self._home, self._trigger_store, self._recurring_store, self._config = home, trigger_store, recurring_store, config
        self._clock = clock
        self._queries, self._publisher = queries, publisher

    def watched_tasks(self) -> Sequence[Task]:
        """Return the tasks whose sources must be watched."""
        return self._trigger_store.watched_tasks()

    def task_of_webhook(self, name: str) -> Task | None:
        """Return the task that a webhook of this name triggers."""
        return self._trigger_store.task_of_webhook(name)

    def state(self, task_id: str) -> dict[str, object]:
        """Return the stored state of a task's source; empty the first time."""
        return self._trigger_store.source_state(task_id)

    def record(self, task_id: str, state: dict[str, object] | None, event: "TriggerEvent | None", delivery: str = "") -> bool:
        """Store a source's event and state in one transaction, and start the run that follows.

        Returns False for a `delivery` that was received before.
        """
        payload = {**event.payload, "summary": event.summary} if event else None
        hold = event is not None and self._must_wait(task_id)
        fresh = self._trigger_store.record(task_id, state, payload, self._clock(), self._home.tasks, delivery, hold=hold)
        if payload and fresh:
            self._publisher.publish(self._queries.get(task_id))
        return fresh

    def _must_wait(self, task_id: str) -> bool:
        """Return whether no run may start now: recurring tasks are disabled, or the daily limit is reached."""
        config = self._config.current
        if not config.flag("tasks.enabled"):
            return True
        return daily_limit_reached(self._recurring_store, config, self._queries.get(task_id).task, self._clock()) is not None

    def mark_broken(self, task_id: str, reason: str | None) -> None:
        """Record why the source of a task cannot be watched; None if it works again."""
        self._trigger_store.mark_broken(task_id, reason, self._clock())

    def broken_reason(self, task: Task) -> str | None:
        """Return why the source of a task cannot be watched; None if it works."""
        return self._trigger_store.broken_sources().get(task.task_id) if task.spec.source else None
