"""The audit: who decided what, through which interface, by which rule, with which proof, and what became of it. Newest first."""

from collections.abc import Iterator
from typing import TypedDict

from backburner.core import formatting
from backburner.core.devices import Attempt
from backburner.core.errors import BadInput
from backburner.core.task_filter import TaskFilter
from backburner.interfaces.web.calls import Call
from backburner.interfaces.web.reading import limit_of, time_of
from backburner.interfaces.web.rows import line_of
from backburner.services.app import App

_MAX_TASKS = 5000
_DEVICE_EVENTS = {"device_paired": "paired", "device_revoked": "revoked", "passkey_added": "passkey_added", "passkey_removed": "revoked"}


class AuditQuery(TypedDict, total=False):
    by: str
    via: str
    device: str
    rule: str
    decision: str
    task: str
    since: str
    before: str
    limit: int
    verify: bool


def audit(app: App, call: Call) -> dict[str, object]:
    """Decisions on tasks and steps, attempts to approve that were refused, and changes of who may approve."""
    limit, since = limit_of(call, 100, 500), time_of(call, "since") or 0
    before = call.get("before")
    if before is not None and not before.isdecimal():
        raise BadInput(f"'before' must be `next` of another page, not '{before}'.")
    items = [item for item in _all(app, call) if int(str(item["_at"])) >= since and _matches(item, call)]
    items.sort(key=lambda item: -int(str(item["_at"])))
    start = int(before) if before else 0
    page = items[start : start + limit]
    following = str(start + limit) if len(items) > start + limit else None
    shown = [{name: value for name, value in item.items() if name != "_at"} for item in page]
    return {"items": shown, "next": following, "total": len(items)}


def _matches(item: dict[str, object], call: Call) -> bool:
    for name in ("by", "rule", "decision"):
        if call.get(name) is not None and item[name] != call.get(name):
            return False
    if call.get("via") is not None and not str(item["via"] or "").startswith(call.get("via")):
        return False
    if call.get("task") is not None and item["task_id"] != call.get("task"):
        return False
    device = item["device"]
    return call.get("device") is None or (isinstance(device, dict) and device["device_id"] == call.get("device"))


def _all(app: App, call: Call) -> Iterator[dict[str, object]]:
    names = app.devices.names()
    attempts = app.devices.attempts(limit=_MAX_TASKS)
    proofs = {attempt.task_id: attempt for attempt in reversed(attempts) if attempt.outcome == "approved"}
    found = app.overview.page(TaskFilter(), None, _MAX_TASKS)
    for item in found.items:
        (task, run), decision = item.entry, item.entry.task.decision
        outcome = {"proposed": "proposed", "rejected": "rejected", "expired": "expired"}.get(item.entry.status)
        if decision.by is not None:
            outcome = "approved" if decision.by == "user" else "allowed"
        proof = proofs.get(task.task_id)
        is_passkey = proof is not None and decision.via == proof.via
        elapsed = formatting.elapsed(item.entry, app.now())
        yield {
            **_line(f"task:{item.seq}", decision.at or task.created_at, outcome or item.entry.status, decision.by, decision.via, names),
            "task_id": task.task_id,
            "line": line_of(task),
            "cwd": task.spec.cwd,
            "rule": decision.rule,
            "reasons": list(decision.reasons),
            "proof": is_passkey,
            "verified": app.passkeys.is_verified(proof) if proof is not None and is_passkey and call.get("verify", False) else None,
            "status": item.entry.status,
            "exit_code": run.end.exit_code if run else None,
            "duration_seconds": None if elapsed is None else elapsed / 1000,
        }
        for number, step in enumerate(app.queries.decided_steps(task.task_id) if task.spec.agent_name is not None else ()):
            verb = "step_approved" if step["answer"] == "yes" else "step_rejected"
            yield {
                **_line(f"step:{item.seq}:{number}", step["at"], verb, step["by"], step["via"], names),
                "task_id": task.task_id,
                "line": str(step["question"] or ""),
                "reason": step["reason"],
            }
    for attempt in attempts:
        if attempt.outcome != "approved":
            yield _attempt(attempt, names)
    yield from _events(app, names)


def _line(number: str, at: int, decision: str, by: object, via: object, names: dict[str, str]) -> dict[str, object]:
    device_id = str(via).partition(":")[2] if str(via).startswith("web:") else None
    level = {"cli": "terminal", "chat": "terminal", "gate": "gate"}.get(str(via).partition(":")[0])
    if device_id:
        level = "passkey" if decision in ("approved", "step_approved") else "paired"
    return {
        "id": number,
        "_at": at,
        "at": formatting.iso(at),
        "decision": decision,
        "by": by,
        "via": via,
        "device": {"device_id": device_id, "name": names.get(device_id, "")} if device_id else None,
        "level": "channel" if str(via).startswith("channel:") else level,
        "task_id": None,
        "line": "",
        "cwd": None,
        "rule": None,
        "reasons": [],
        "reason": None,
        "proof": False,
        "verified": None,
        "status": None,
        "exit_code": None,
        "duration_seconds": None,
    }


def _attempt(attempt: Attempt, names: dict[str, str]) -> dict[str, object]:
    line = _line(f"attempt:{attempt.attempt_id}", attempt.at, "refused", None, attempt.via, names)
    return {**line, "level": None, "task_id": attempt.task_id, "reason": attempt.reason, "proof": attempt.proof is not None}


def _events(app: App, names: dict[str, str]) -> Iterator[dict[str, object]]:
    """Pages that were paired or revoked, and passkeys that were added or removed, among the latest events."""
    events = app.queries.events(-_MAX_TASKS)
    while events:
        for event in events:
            if event.kind in _DEVICE_EVENTS:
                device_id = str(event.data.get("device_id") or "")
                line = _line(f"event:{event.event_id}", event.at, _DEVICE_EVENTS[event.kind], "user", event.data.get("via"), names)
                device = {"device_id": device_id, "name": names.get(device_id, "")} if device_id else None
                yield {**line, "device": device, "line": str(event.data.get("name") or device_id or event.data.get("passkey_id"))}
        events = app.queries.events(events[-1].event_id)
