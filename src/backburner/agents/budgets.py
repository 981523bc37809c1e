"""The budget of an agent run: how much it may use before it waits for approval, and whether it has used it up."""

from backburner.core.claims import ClaimedRun
from backburner.core.task_spec import set_fields
from backburner.services.app import App

_UNITS = {"tokens": "tokens", "tool_calls": "tool calls", "cost": "dollars", "seconds": "seconds"}


def budget(app: App, work: ClaimedRun) -> dict[str, float]:
    """The limits of this run. Each approved extension adds the same amount again."""
    defaults = {name: app.config.number(f"agents.max_{name}") for name in ("tokens", "tool_calls", "cost")}
    per_run = set_fields(work.task.spec.budget.per_run)
    limits = {**{name: value for name, value in defaults.items() if value}, **per_run}
    per_day = set_fields(work.task.spec.budget.per_day)
    used_today = app.recurring.spent_today(work.task) if per_day else {}
    extension_sizes = dict(limits)
    for name in per_day.keys() & {"tokens", "cost", "seconds"}:  # a run may not use more than what is left of the day
        extension_sizes[name] = min(limits.get(name, per_day[name]), per_day[name])
        limits[name] = min(extension_sizes[name], max(0.0, per_day[name] - used_today[name]))
    return {name: value + work.run.extensions * extension_sizes[name] for name, value in limits.items()}


def exceeded(limits: dict[str, float], used: dict[str, float], calls: int = 0) -> str | None:
    """Why a run must wait for approval, or None if it is within its limits. `calls` is the number of tool calls about to be made."""
    for name, limit in limits.items():
        amount = used.get(name, 0.0)
        if (amount + calls > limit if calls else amount >= limit) and (name == "tool_calls" or not calls):
            reached = f"{amount:,.6g} of {limit:,.6g} {_UNITS[name]}"
            if calls and amount < limit:
                return f"the next step makes {calls:,} tool calls, and its budget is {reached}; approve to extend it by the same amount"
            return f"budget reached ({reached}); approve to extend it by the same amount"
    return None
