"""The daily limits that all recurring tasks of a home share."""

from typing import TYPE_CHECKING

from backburner.core.models import Task
from backburner.core.recurring import usage_message
from backburner.core.settings import Config

if TYPE_CHECKING:
    from backburner.core.store_ports import RecurringStore


def daily_limit_reached(recurring: "RecurringStore", config: Config, task: Task, now: int) -> str | None:
    """Describe the daily limit that all recurring tasks together have reached; None if none is reached or the task uses no model."""
    if task.spec.agent_name is None:
        return None
    from backburner.core.schedule import day_of

    since = max(day_of(task.spec.schedule, now), task.recurring.counted_from or 0)
    for name in ("tokens", "cost"):
        limit = config.number(f"tasks.max_{name}_per_day")
        if limit and (spent := recurring.usage(None, since, now)[name]) >= limit:
            return usage_message(spent, limit, name, "all recurring tasks together have")
    return None
