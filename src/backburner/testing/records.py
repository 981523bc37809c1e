"""Builds submissions and tasks for tests from flat keyword arguments."""

from typing import Any

from backburner.core.models import Decision, RecurringState, Run, RunCause, RunEnd, Submission, Task, TraceIds
from backburner.core.states import RunState, TaskState
from backburner.core.task_spec import (
    AgentSpec,
    CommandSpec,
    Order,
    Recurrence,
    Schedule,
    TaskSpec,
    budget_from,
    limits_from,
    options_from,
    source_from,
)

_COMMAND = ("shell", "stdin", "umask", "ready_when", "restarts", "tty")
_SPEC = ("name", "description", "env", "timeout_ms", "channels")
_REQUEST = ("session", "message", "opened", "restarted_from")


def spec(command: Any = (), cwd: str = "/tmp", **flat: Any) -> TaskSpec:
    """A task specification from flat arguments; unknown arguments raise an error."""
    limits = limits_from(flat.pop("limits", {}))
    prompt, options = flat.pop("prompt", ""), options_from(flat.pop("terms", {}))
    agent, budget, notify = flat.pop("agent", None), budget_from(flat.pop("budget", {})), flat.pop("notify", None)
    schedule, source = flat.pop("schedule", None), source_from(flat.pop("source", {}))
    if isinstance(schedule, dict):
        schedule = Schedule(**schedule) if schedule else None
    result = TaskSpec(
        cwd=cwd,
        command=CommandSpec(words=tuple(command), limits=limits, **_pop(flat, _COMMAND)),
        agent=AgentSpec(agent, prompt, options) if agent is not None else None,
        order=Order(**_pop(flat, Order._fields)),
        budget=budget,
        recurrence=Recurrence(schedule, notify, source) if schedule is not None else None,
        **_pop(flat, _SPEC),
    )
    assert not flat, f"no such fields: {', '.join(flat)}"
    return result


def request(
    command: Any = (), cwd: str = "/tmp", environment: dict[str, str] | None = None, description: str = "", **flat: Any
) -> Submission:
    """A submission from flat arguments."""
    request = _pop(flat, (*_REQUEST, "parent_run", "proposed"))
    return Submission(spec(command, cwd, description=description, **flat), environment or {}, **request)


def task(task_id: str, command: Any = (), cwd: str = "/tmp", **flat: Any) -> Task:
    """A task from flat arguments; by default active, one-shot and approved by a user."""
    fields: dict[str, Any] = {"kind": "oneshot", "state": TaskState.ACTIVE, "project": cwd, "created_at": 0, "run_count": 1}
    fields |= _pop(flat, (*fields, *_REQUEST, "lane", "expires_at", "retrieved_at", "parent_task", "parent_run"))
    trace = TraceIds(**_pop(flat, TraceIds._fields))
    recurring = RecurringState(**_pop(flat, RecurringState._fields))
    approval: dict[str, Any] = {"by": "user", "via": "cli", "at": 0, **_pop(flat, Decision._fields)}
    decision = Decision(**approval)
    return Task(task_id, spec=spec(command, cwd, **flat), decision=decision, trace=trace, recurring=recurring, **fields)


def _pop(flat: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: flat.pop(name) for name in names if name in flat}


_DECISION = {
    "approved_by": "by",
    "approved_via": "via",
    "approved_at": "at",
    "reasons": "reasons",
    "rule": "rule",
    "fingerprint": "fingerprint",
}


def changed(task: Task, **flat: Any) -> Task:
    """A copy of a task with other values, by their flat names."""
    command = {name: flat.pop(name) for name in _COMMAND if name in flat}
    order = _pop(flat, Order._fields)
    parts = {**_pop(flat, _SPEC), **({"cwd": flat.pop("cwd")} if "cwd" in flat else {})}
    decision = {_DECISION[name]: flat.pop(name) for name in _DECISION if name in flat}
    recurring = _pop(flat, RecurringState._fields)
    spec = task.spec._replace(command=task.spec.command._replace(**command), order=task.spec.order._replace(**order), **parts)
    return task._replace(spec=spec, decision=task.decision._replace(**decision), recurring=task.recurring._replace(**recurring), **flat)


def run(run_id: str = "task_x", **flat: Any) -> Run:
    """A run from flat arguments; running by default."""
    base = Run(run_id, run_id, 1, RunState.RUNNING, f"tasks/{run_id}", "", "", "", "engine", 0)
    return changed_run(base, **flat)


def changed_run(run: Run, **flat: Any) -> Run:
    """A copy of a run with other values, by their flat names; `cause` is the kind of its cause."""
    end = _pop(flat, RunEnd._fields)
    cause = {("kind" if name == "cause" else name): value for name, value in _pop(flat, ("cause", *RunCause._fields)).items()}
    return run._replace(end=run.end._replace(**end), cause=run.cause._replace(**cause), **flat)
