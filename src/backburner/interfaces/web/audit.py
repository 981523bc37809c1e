"""The audit: who decided what, through which interface, by which rule, with which proof, and what became of it. Newest first.

Decisions on tasks, refused attempts and events are three lists in the ledger. Each is read by page, and they are merged by time.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple, TypedDict

from backburner.core import formatting
from backburner.core.devices import Attempt
from backburner.core.errors import BadInput
from backburner.core.events import Event
from backburner.core.task_filter import DecisionFilter, Listed
from backburner.interfaces.web.calls import Call, limit_of, time_of
from backburner.interfaces.web.rows import line_of
from backburner.services.app import App

_DEVICE_EVENTS = {"device_paired": "paired", "device_revoked": "revoked", "passkey_added": "passkey_added", "passkey_removed": "revoked"}
_REFUSED_TASKS = {"task_rejected": "rejected", "task_expired": "expired"}
_STEPS = ("run_requeued", "step_decided")
_LATEST = 2**62


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


class Position(NamedTuple):
    """The place of an entry: its time, the number of its list, and its number there. Entries of one time are ordered by the other two."""

    at: int
    source: int
    number: int

    @property
    def order(self) -> tuple[int, int, int]:
        return -self.at, self.source, -self.number


def audit(app: App, call: Call) -> dict[str, object]:
    """Decisions on tasks and steps, attempts to approve that were refused, and changes of who may approve."""
    limit = limit_of(call, 100, 500)
    after = _position(call.get("before"))
    merged = merge(*_sources(app, call, after, limit + 1), key=lambda found: found[0].order)
    items = ((position, item) for position, item in merged if (after is None or position.order > after.order) and _matches(item, call))
    page = list(islice(items, limit + 1))
    following = "-".join(map(str, page[limit - 1][0])) if len(page) > limit else None
    return {"items": [item for _, item in page[:limit]], "next": following}


def _position(text: str | None) -> Position | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,15}-[012]-\d{1,15}", text):
        raise BadInput(f"'before' must be `next` of another page, not '{text}'.")
    return Position(*map(int, text.split("-")))


def _matches(item: dict[str, object], call: Call) -> bool:
    wanted = {"by": "by", "rule": "rule", "decision": "decision", "task": "task_id"}
    if any(call.get(name) is not None and item[field] != call.get(name) for name, field in wanted.items()):
        return False
    if call.get("via") is not None and not str(item["via"] or "").startswith(call.get("via")):
        return False
    device = item["device"]
    return call.get("device") is None or (isinstance(device, dict) and device["device_id"] == call.get("device"))


_Found = Iterator[tuple[Position, dict[str, object]]]


def _sources(app: App, call: Call, after: Position | None, size: int) -> list[_Found]:
    """The lists that can contain what is asked for, each newest first from a time on."""
    start = (after.at + 1 if after else _LATEST, 0)
    since, decision, names = time_of(call, "since") or 0, call.get("decision"), app.devices.names()
    via = call.get("via") or (f"web:{call.get('device')}" if call.get("device") is not None else None)
    tasks = DecisionFilter(decision, call.get("by"), via, call.get("rule"), call.get("task"), since)
    kinds = [
        *(kind for kind, name in {**_DEVICE_EVENTS, **_REFUSED_TASKS}.items() if decision in (None, name)),
        *(_STEPS if decision in (None, "step_approved", "step_rejected") else ()),
    ]
    found: list[_Found] = []
    if decision in (None, "approved", "allowed", "proposed", "expired"):
        pages = _all(lambda before: app.overview.decided(tasks, before, size), lambda item: (_decided_at(item), item.seq), start, size)
        found.append((Position(_decided_at(item), 0, item.seq), _task(app, item, call, names)) for item in pages)
    if decision in (None, "refused"):
        attempts = _all(
            lambda before: app.devices.refusals(before, size, since=since), lambda found: (found.at, found.attempt_id), start, size
        )
        found.append((Position(attempt.at, 1, attempt.attempt_id), _attempt(attempt, names)) for attempt in attempts)
    if kinds:
        events = _all(
            lambda before: app.queries.events_of_kinds(kinds, before, size, since=since),
            lambda event: (event.at, event.event_id),
            start,
            size,
        )
        found.append((Position(event.at, 2, event.event_id), item) for event in events if (item := _event(app, event, names)))
    return found


def _all(
    read: Callable[[tuple[int, int]], Sequence[Any]], place: Callable[[Any], tuple[int, int]], start: tuple[int, int], size: int
) -> Iterator[Any]:
    """A list of the ledger from a place on, read in pieces."""
    while found := read(start):
        yield from found
        if len(found) < size:
            return
        start = place(found[-1])


def _decided_at(item: Listed) -> int:
    task = item.entry.task
    return task.decision.at or task.created_at


def _task(app: App, item: Listed, call: Call, names: dict[str, str]) -> dict[str, object]:
    (task, run), decision = item.entry, item.entry.task.decision
    outcome = item.entry.status
    if decision.by is not None:
        outcome = "approved" if decision.by == "user" else "allowed"
    proof = app.devices.proof_of(task.task_id) if str(decision.via).startswith("web:") else None
    is_passkey = proof is not None and decision.via == proof.via
    elapsed = formatting.elapsed(item.entry, app.now())
    return {
        **_line(f"task:{item.seq}", _decided_at(item), outcome, decision.by, decision.via, names),
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


def _event(app: App, event: Event, names: dict[str, str]) -> dict[str, object] | None:
    """An entry for a decision on a step, a refused task, or a change of who may approve; None for other events."""
    number, data = f"event:{event.event_id}", event.data
    if event.kind in _STEPS:
        if "answer" not in data:
            return None
        verb = "step_approved" if data["answer"] == "yes" else "step_rejected"
        about = {"task_id": event.task_id, "line": str(data.get("question") or ""), "reason": data.get("reason")}
        return {**_line(number, event.at, verb, data.get("by"), data.get("via"), names), **about}
    if event.kind in _REFUSED_TASKS:
        by = "user" if event.kind == "task_rejected" else None
        line = _line(number, event.at, _REFUSED_TASKS[event.kind], by, data.get("via"), names)
        (item,) = app.overview.listed([event.task_id or ""]) or (None,)
        if item is None:
            return None
        task = item.entry.task
        about = {"line": line_of(task), "cwd": task.spec.cwd, "rule": task.decision.rule, "reasons": list(task.decision.reasons)}
        return {**line, **about, "task_id": event.task_id, "reason": data.get("reason"), "status": item.entry.status}
    device_id = str(data.get("device_id") or "")
    device = {"device_id": device_id, "name": names.get(device_id, "")} if device_id else None
    line = _line(number, event.at, _DEVICE_EVENTS[event.kind], "user", data.get("via"), names)
    return {**line, "device": device, "line": str(data.get("name") or device_id or data.get("passkey_id"))}


def _line(number: str, at: int, decision: str, by: object, via: object, names: dict[str, str]) -> dict[str, object]:
    device_id = str(via).partition(":")[2] if str(via).startswith("web:") else None
    level = {"cli": "terminal", "chat": "terminal", "gate": "gate"}.get(str(via).partition(":")[0])
    if device_id:
        level = "passkey" if decision in ("approved", "step_approved") else "paired"
    return {
        "id": number,
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
