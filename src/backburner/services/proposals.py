"""Expires proposals that nobody answered in time. Reading shows them as expired at once; this records it."""

import contextlib
from typing import TYPE_CHECKING

from backburner.coordination.publisher import Publisher
from backburner.core.errors import IllegalTransition, TaskNotFound
from backburner.core.models import Clock

if TYPE_CHECKING:
    from backburner.store.ledger import Ledger


class Proposals:
    """Tasks that wait for an approval."""

    def __init__(self, ledger: "Ledger", publisher: Publisher, clock: Clock) -> None:
        self._ledger, self._publisher, self._clock = ledger, publisher, clock

    def expire_overdue(self) -> int:
        """Record that overdue proposals have expired, and tell whoever asked; how many there were."""
        now = self._clock()
        overdue = self._ledger.tasks.overdue_proposals(now)
        for task_id in overdue:
            with contextlib.suppress(IllegalTransition, TaskNotFound):  # another process was quicker
                self._publisher.publish(self._ledger.tasks.refuse(task_id, expired=True, now=now))
        return len(overdue)
