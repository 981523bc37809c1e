"""Tasks and runs in the states that the suites start from."""

from collections.abc import Callable
from typing import Any

from backburner.core.claims import RunResult
from backburner.core.models import AGENT_LANE, ENGINE, Approval, Entry, ProcessId, Run, Task
from backburner.core.queues import at_host
from backburner.core.schedule import Plan, Schedule, every, plan
from backburner.core.states import Result, RunState, WaitKind
from backburner.store.ledger import Ledger
from backburner.testing.records import request

NOW = 1_770_000_000_000
DAY = 86_400_000
OURS, THEIRS = ProcessId(11, "111", "boot"), ProcessId(22, "222", "boot")
YES = Approval("user", "cli", NOW)
EMBEDDER = f"{THEIRS}:token"
Open = Callable[[], Ledger]
OpenOn = Callable[[str], Ledger]  # on a host
SECOND, HOUR = 1000, 3_600_000
_OPTIONS = (
    "parent",
    "owner",
    "kind",
    "lane",
    "max_active",
    "question",
    "asked",
)  # parameters of `submit`; everything else belongs to the submission


def propose(
    ledger: Ledger, wanted: str = "task_x", *, approval: Approval | None = None, project: str = "/p", now: int = NOW, **more: Any
) -> Entry:
    runner, expires = more.pop("runner", ENGINE), more.pop("expires_at", now + DAY)
    options = {name: more.pop(name) for name in _OPTIONS if name in more}
    submission = request(**{"command": ("make", "all"), "cwd": "/p/src", "environment": {"PATH": "/bin", "N": "1"}, **more})
    return ledger.tasks.submit(
        submission, project=project, wanted_id=wanted, approval=approval, reasons=("why",), runner=runner, folder="tasks", now=now,
        expires_at=expires, **options
    )  # fmt: skip


def submit(ledger: Ledger, wanted: str = "task_x", **more: Any) -> Entry:
    return propose(ledger, wanted, approval=YES, **more)


def recurring(ledger: Ledger, wanted: str = "task_r", schedule: Schedule | None = None, **more: Any) -> Task:
    """An active task that runs every hour from now on, or on another schedule."""
    fields = schedule or every(HOUR, NOW)
    kind = more.pop("kind", "event" if more.get("after") or more.get("source") else "scheduled")
    asked = {"notify": "always", "max_active": 100, "name": wanted.removeprefix("task_"), **more}
    return submit(ledger, wanted, schedule=fields, kind=kind, **asked).task


def watching_task(ledger: Ledger, wanted: str = "task_w", source: dict[str, str] | None = None, **more: Any) -> Task:
    """An active task with an external source."""
    return recurring(ledger, wanted, Schedule(), source=source or {"kind": "file", "path": "/p/inbox"}, **more)


def agent(ledger: Ledger, wanted: str = "task_g", **more: Any) -> Entry:
    """A task for an agent."""
    return submit(ledger, wanted, **{"command": (), "agent": "claude", "prompt": "look", "runner": AGENT_LANE, "lane": AGENT_LANE, **more})


def waiting_agent_run(
    ledger: Ledger, wanted: str = "task_g", waits_for: tuple[WaitKind, str | None] = (WaitKind.TOOL, None), **more: Any
) -> Run:
    """A waiting run of an agent."""
    agent(ledger, wanted, **more)
    (work,) = ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)
    ledger.runs.suspend(work.run.run_id, OURS, "it wants to write a file", NOW + 1, *waits_for)
    return latest(ledger, wanted)


def plan_at(now: int) -> Callable[[Entry], tuple[Plan, str | None]]:
    """The scheduler's decision at a time about a task without limits."""
    return lambda entry: (
        plan(entry.task.spec.schedule, entry.task.recurring.next_run_at or 0, now, busy="it is busy" if entry.is_live else None),
        None,
    )


def run_once(ledger: Ledger, task: Task, now: int, **more: Any) -> Run:
    """A manual run of a recurring task, from its start to its end."""
    ledger.recurring.run_now(task.task_id, now, "tasks")
    (work,) = [work for work in ledger.runs.claim(ENGINE, OURS, 9, now) if work.task.task_id == task.task_id]
    ledger.runs.settle([done(work.run, ended_at=now, **more)], OURS)
    return latest(ledger, task.task_id)


def running(ledger: Ledger, wanted: str = "task_x", owner: ProcessId = OURS, **more: Any) -> Run:
    """A run that `owner` has claimed, with nothing else pending."""
    submit(ledger, wanted, **more)
    (work,) = ledger.runs.claim(more.get("runner", ENGINE), owner, 1, NOW + 10)
    return work.run


def done(run: Run | str, state: RunState = RunState.COMPLETED, result: Result = Result.EXIT, **more: Any) -> RunResult:
    run_id = run if isinstance(run, str) else run.run_id
    return RunResult(run_id, state, result, more.pop("ended_at", NOW + 1000), more.pop("exit_code", 0), **more)


def failed(run: Run | str, **more: Any) -> RunResult:
    return done(run, RunState.FAILED, more.pop("result", Result.EXIT), exit_code=1, **more)


def ended(ledger: Ledger, wanted: str = "task_x", **more: Any) -> Run:
    run = running(ledger, wanted)
    ledger.runs.settle([done(run, **more)], OURS)
    return entry_of_task(ledger, run.task_id).run  # type: ignore[return-value]


def queue(ledger: Ledger, base: str = ENGINE) -> str:
    """The name of a queue of the host that uses the ledger."""
    return at_host(base, ledger.database.host_id)


def entry_of_task(ledger: Ledger, task_id: str) -> Entry:
    entry = ledger.queries.get(task_id)
    assert entry is not None
    return entry


def claimed(ledger: Ledger, limit: int = 9, now: int = NOW, runner: str = ENGINE) -> list[str]:
    return [work.run.run_id for work in ledger.runs.claim(runner, OURS, limit, now)]


def approve(ledger: Ledger, task_id: str, now: int = NOW, max_active: int = 0) -> Entry:
    return ledger.tasks.approve(task_id, Approval("user", "cli", now), runner=ENGINE, folder="tasks", max_active=max_active)


def notified_tasks(ledger: Ledger) -> list[str]:
    """The tasks of all notices, oldest first."""
    return [notice.task_id for notice in ledger.notices.notices(project=None, unread=False)]


# Every way in which a dependency can end: as a proposal, in the queue, while running, or while waiting for approval.
ENDS = ["completed", "failed", "timed out", "lost", "cancelled", "cancelled in the queue", "denied", "rejected", "expired", "withdrawn"]


def create_task_that_ends(ledger: Ledger, how: str, task_id: str = "task_a") -> None:
    """A task in a state from which it can end this way."""
    if how in ("rejected", "expired", "withdrawn"):
        propose(ledger, task_id)
        return
    submit(ledger, task_id, priority=1)
    if how != "cancelled in the queue":
        assert claimed(ledger, 1) == [task_id]
    if how == "denied":
        ledger.runs.suspend(task_id, OURS, "it changed", NOW)


def end_task(ledger: Ledger, how: str, task_id: str = "task_a") -> None:
    """End a task that `begun` created."""
    match how:
        case "completed":
            ledger.runs.settle([done(task_id)], OURS)
        case "failed":
            ledger.runs.settle([failed(task_id)], OURS)
        case "timed out":
            ledger.runs.settle([done(task_id, RunState.FAILED, Result.TIMEOUT)], OURS)
        case "lost":
            ledger.runs.settle([done(task_id, RunState.FAILED, Result.LOST)], OURS)
        case "cancelled":
            ledger.tasks.request_cancel(task_id, NOW)
            ledger.runs.settle([done(task_id, RunState.CANCELLED, Result.SIGNAL)], OURS)
        case "cancelled in the queue" | "withdrawn":
            ledger.tasks.request_cancel(task_id, NOW + 1000)
        case _:
            ledger.tasks.refuse(task_id, expired=how == "expired", now=NOW + 1000)


def latest(ledger: Ledger, task_id: str) -> Run:
    run = entry_of_task(ledger, task_id).run
    assert run is not None
    return run


def kinds(ledger: Ledger, task_id: str | None = None) -> list[str]:
    return [event.kind for event in ledger.events.events(0, 10_000) if task_id is None or event.task_id == task_id]


def ledger_content(ledger: Ledger) -> tuple[object, ...]:
    """The whole visible content of the ledger, to prove that a refused call changed nothing."""
    return (
        ledger.queries.list(status=None, project=None, limit=None),
        ledger.live_work.live_runs(),
        ledger.events.events(0, 10_000),
        ledger.notices.notices(project=None, unread=False),
    )
