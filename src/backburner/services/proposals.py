"""Records the expiry of proposals that nobody answered in time. Queries show them as expired even before it is recorded."""

import contextlib
from typing import TYPE_CHECKING

from backburner.coordination.publisher import Publisher
from backburner.core.errors import IllegalTransition, TaskNotFound
from backburner.core.models import Clock

if TYPE_CHECKING:
    from backburner.core.store_ports import LiveWork, TaskStore


class Proposals:
    """Tasks that wait for approval."""

    def __init__(self, live_work: "LiveWork", task_store: "TaskStore", publisher: Publisher, clock: Clock) -> None:
        self._live_work, self._task_store, self._publisher, self._clock = live_work, task_store, publisher, clock

    def expire_overdue(self) -> int:
        """Record that overdue proposals have expired, and notify their submitters. Returns the number of proposals."""
        now = self._clock()
        overdue = self._live_work.overdue_proposals(now)
        for task_id in overdue:
            with contextlib.suppress(IllegalTransition, TaskNotFound):  # another process was faster
                self._publisher.publish(self._task_store.refuse(task_id, expired=True, now=now))
        return len(overdue)
