"""Calls of the ledger that the stateful tests share, with defaults for everything that does not matter to them."""

from typing import Any

from backburner.core.claims import RunResult
from backburner.core.models import ENGINE, Approval, Entry, ProcessId
from backburner.core.states import Result, RunState
from backburner.store.ledger import Ledger
from backburner.testing.records import request

OWNERS = (ProcessId(11, "111", "boot"), ProcessId(22, "222", "boot"))
EMBEDDER = f"{OWNERS[1]}:token"
RESULTS = {RunState.COMPLETED: Result.EXIT, RunState.FAILED: Result.LOST, RunState.CANCELLED: Result.SIGNAL}


def submit(ledger: Ledger, now: int, *, approved: bool, runner: str = ENGINE, size: int = 0, **more: Any) -> Entry:
    """`size` is the number of bytes of environment that the task has, to fill pages; `more` are further fields of the submission."""
    wanted, project, owner = more.pop("wanted", "task_x"), more.pop("project", "/p"), more.pop("owner", None)
    return ledger.tasks.submit(
        request(("make",), "/p", {"FILL": "x" * size, "AT": str(now)}, **more),
        project=project,
        wanted_id=wanted,
        approval=Approval("user", "cli", now) if approved else None,
        reasons=(),
        runner=runner,
        folder="tasks",
        now=now,
        expires_at=now + 1000,
        owner=owner,
    )


def approve(ledger: Ledger, task_id: str, now: int) -> Entry:
    return ledger.tasks.approve(task_id, Approval("user", "chat", now), runner=ENGINE, folder="tasks")


def ending(run_id: str, state: RunState, now: int, result: Result | None = None) -> RunResult:
    return RunResult(run_id, state, result or RESULTS[state], now, 0)
