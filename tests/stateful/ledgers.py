"""What the machines share: verbs with everything filled in that does not matter to them."""

from backburner.lifecycle import Result, RunState
from backburner.models import ENGINE, Approval, Ending, Entry, ProcessId, Submission
from backburner.stores.sqlite import SQLiteStore

OWNERS = (ProcessId(11, "111", "boot"), ProcessId(22, "222", "boot"))
EMBEDDER = f"{OWNERS[1]}:token"
RESULTS = {RunState.COMPLETED: Result.EXIT, RunState.FAILED: Result.LOST, RunState.CANCELLED: Result.SIGNAL}


def submit(store: SQLiteStore, now: int, *, approved: bool, runner: str = ENGINE, size: int = 0) -> Entry:
    """`size` is how many bytes of environment the task brings along, to fill pages."""
    return store.submit(
        Submission(("make",), "/p", {"FILL": "x" * size, "AT": str(now)}),
        project="/p",
        wanted_id="task_x",
        approval=Approval("user", "cli", now) if approved else None,
        reasons=(),
        runner=runner,
        folder="tasks",
        now=now,
        expires_at=now + 1000,
    )


def approve(store: SQLiteStore, task_id: str, now: int) -> Entry:
    return store.approve(task_id, Approval("user", "chat", now), runner=ENGINE, folder="tasks")


def ending(run_id: str, state: RunState, now: int) -> Ending:
    return Ending(run_id, state, RESULTS[state], now, 0)
