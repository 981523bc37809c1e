"""What a program that embeds Backburner needs of the ledger: records of tasks it runs by itself, and the queue of those it has run here."""

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
        """Keep a task that the program runs by itself."""
        self._ledger.external_tasks.record(task, run)

    def change_record(self, task: Task, run: Run) -> None:
        """Change such a task, as its states allow."""
        self._ledger.external_tasks.change_record(task, run)
