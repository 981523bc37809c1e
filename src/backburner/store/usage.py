"""Usage of runs: tokens, cost and time, and whether a task has used up its daily budget."""

import json
from collections.abc import Iterator

from backburner.core import recurring
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Task
from backburner.core.task_spec import set_fields

if TYPE_CHECKING:
    from backburner.store.database import Database

_PAGE_ROWS = 200
_MAX_ROW_NUMBER = 2**62


class Usage:
    """Sums up usage. Never writes."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def total(self, task_id: str | None, since: int, until: int | None = None) -> dict[str, float]:
        """Usage of a task, or of all recurring tasks, since a time: tokens, cost, seconds and number of runs."""
        total = {"tokens": 0.0, "cost": 0.0, "seconds": 0.0, "runs": 0.0}
        for usage, started, ended, created in self._latest_first(task_id):
            if created < since:
                break
            if until is not None and created > until:
                continue  # recorded while the clock was ahead
            used = json.loads(usage)
            total["tokens"] += used.get("tokens", 0)
            total["cost"] += used.get("cost", 0)
            total["seconds"] += (ended - started) / 1000 if started is not None and ended is not None else 0
            total["runs"] += 1
        return total

    def daily_budget_exceeded(self, task: Task, now: int) -> str | None:
        """Which daily budget a task has used up; None if it has not."""
        limits = set_fields(task.spec.budget.per_day)
        if not limits:
            return None
        from backburner.core.schedule import day_of

        used = self.total(task.task_id, max(day_of(task.spec.schedule, now), task.recurring.counted_from or 0), now)
        for name, limit in limits.items():
            if used[name] >= limit:
                return recurring.usage_message(used[name], limit, name)
        return None

    def _latest_first(self, task_id: str | None) -> Iterator[tuple]:
        """Runs, newest first, read page by page: a caller that stops early reads no further, so that the cost does not grow with history."""
        fields = "r.usage, r.started_at, r.ended_at, r.created_at"
        if task_id is not None:
            select = f"SELECT {fields}, r.n FROM runs r WHERE r.task_id = ? AND r.n > 0 AND r.n < ? ORDER BY r.n DESC LIMIT ?"
        else:
            recurring_only = "JOIN tasks t ON t.task_id = r.task_id AND t.schedule <> '{}'"
            select = f"SELECT {fields}, r.seq FROM runs r {recurring_only} WHERE r.n > 0 AND r.seq < ? ORDER BY r.seq DESC LIMIT ?"
        parameters = () if task_id is None else (task_id,)
        last = _MAX_ROW_NUMBER
        while rows := self._db.execute(select, (*parameters, last, _PAGE_ROWS)):
            for row in rows:
                yield row[:4]
            last = rows[-1][4]
