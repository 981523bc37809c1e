"""What a run of an agent may use up before it waits and asks, and whether it has."""

from backburner.core.claims import ClaimedRun
from backburner.core.task_spec import set_fields
from backburner.services.app import App

_UNITS = {"tokens": "tokens", "tool_calls": "tool calls", "cost": "dollars", "seconds": "seconds"}


def budget(app: App, work: ClaimedRun) -> dict[str, float]:
    """What this run may use up by now: every grant of a person adds as much again."""
    usual = {name: app.config.number(f"agents.max_{name}") for name in ("tokens", "tool_calls", "cost")}
    asked = set_fields(work.task.spec.budget.per_run)
    found = {**{name: value for name, value in usual.items() if value}, **asked}
    today = set_fields(work.task.spec.budget.per_day)
    used = app.recurring.spent_today(work.task) if today else {}
    steps = dict(found)
    for name in today.keys() & {"tokens", "cost", "seconds"}:  # no more in this run than is left of the day
        steps[name] = min(found.get(name, today[name]), today[name])
        found[name] = min(steps[name], max(0.0, today[name] - used[name]))
    return {name: value + work.run.extensions * steps[name] for name, value in found.items()}


def exceeded(limits: dict[str, float], used: dict[str, float], calls: int = 0) -> str | None:
    """Why a run has to wait; None where it may go on. `calls` are about to be made."""
    for name, most in limits.items():
        now = used.get(name, 0.0)
        if (now + calls > most if calls else now >= most) and (name == "tool_calls" or not calls):
            return f"it has used {now:,.6g} of {most:,.6g} {_UNITS[name]}; a yes lets it use as much again"
    return None
