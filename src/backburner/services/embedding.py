"""Ledger access for a program that embeds Backburner: records of tasks that it runs itself, and the queue for its runner."""

from typing import TYPE_CHECKING

from backburner.core.models import Run, Task

if TYPE_CHECKING:
    from backburner.store.ledger import Ledger


class Embedding:
    """`queue` and `queries` are for the program's own Runner."""

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self.queue, self.queries = ledger.runs, ledger.queries

    def record(self, task: Task, run: Run) -> None:
        """Store a task that the program runs itself."""
        self._ledger.external_tasks.record(task, run)

    def change_record(self, task: Task, run: Run) -> None:
        """Update such a task; only valid state transitions are accepted."""
        self._ledger.external_tasks.change_record(task, run)
