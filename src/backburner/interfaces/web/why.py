"""Why a task runs, does not run, or ended: one sentence, and what to do about it. From what the ledger knows now."""

from typing import NamedTuple

from backburner.core import formatting
from backburner.core.models import Entry
from backburner.core.states import RUNNING_STATES, RunState, TaskState
from backburner.core.terminal_text import clean
from backburner.interfaces.web.calls import Call
from backburner.services.app import App
from backburner.services.overview import needs_person


class Reason(NamedTuple):
    """A sentence, and the command that would change it."""

    sentence: str
    do: str | None = None


def why(app: App, call: Call) -> dict[str, object]:
    """Why a task runs, waits, was refused or ended, and what the gate decided about it."""
    entry = app.queries.find(call.path["id"], call.caller)
    reason, decision = _reason(app, entry), entry.task.decision
    decided = {"user": "approved", None: "asked"}.get(decision.by, "allowed")
    return {
        "status": entry.status,
        "sentence": clean(reason.sentence),
        "do": reason.do,
        "decision": decided,
        "by": decision.by,
        "via": decision.via,
        "at": formatting.iso(decision.at),
        "rule": decision.rule,
        "reasons": list(decision.reasons),
    }


def _reason(app: App, entry: Entry) -> Reason:
    task, run = entry
    task_id = task.task_id
    if needs_person(entry) and entry.status != TaskState.EXPIRED:
        asked = (run.error if run else None) or task.recurring.paused_because or "; ".join(task.decision.reasons)
        return Reason(f"It waits for your answer: {asked}.", f"backburner approve {task_id}")
    match task.state:
        case TaskState.EXPIRED:
            return Reason("Nobody answered in time, so it expired. It did not run.", f"backburner restart {task_id}")
        case TaskState.REJECTED:
            event = app.queries.rejection(entry)
            given = f" The reason: {event.data['reason']}" if event and event.data.get("reason") else ""
            return Reason(f"It was rejected and did not run.{given}")
        case TaskState.PAUSED:
            return Reason(f"It is paused: {task.recurring.paused_because or 'by a person'}.", f"backburner unpause {task_id}")
        case TaskState.ACTIVE if task.is_recurring and not entry.is_live:
            return Reason(f"It runs on its schedule: {app.recurring.explain(task)}.", f"backburner run-now {task_id}")
    if run is None:
        return Reason(f"It is {entry.status}.")
    if run.state == RunState.PENDING:
        return Reason(f"It waits for {app.runs.pending_reason(entry) or 'the engine'}.")
    if run.state == RunState.WAITING:
        return Reason(f"It waits: {run.error or (run.wait and run.wait.target)}.")
    if run.state in RUNNING_STATES:
        return Reason(f"It runs since {formatting.local_time(run.started_at)}." if run.started_at else "It is being started.")
    if run.state == RunState.COMPLETED:
        return Reason("It completed.")
    is_agent = task.spec.agent_name is not None
    result = (
        formatting.describe_result(run.end.result, run.end.exit_code, run.error, task.spec.timeout_ms, agent=is_agent)
        if run.end.result
        else ""
    )
    return Reason(f"It {run.state}: {result or run.error or 'no reason is known'}.", f"backburner restart {task_id}")
