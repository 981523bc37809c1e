"""Which states exist and which changes are legal: the one table that everything else asks.

A *state* says where a run stands; a *result* says how it ended. Pure: no I/O, no clock.
"""

from enum import StrEnum

from backburner.core.errors import IllegalTransition


class RunState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"  # for an approval, a budget, or a person's turn on the same model
    RESUMED = "resumed"  # an agent's session at work again after its first end
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"  # a slot of a schedule that was not run


class RunEvent(StrEnum):
    """What can happen to a run; also the `kind` of the event row it leaves."""

    CLAIMED = "run_started"
    RESUMED = "run_resumed"
    SUSPENDED = "run_suspended"
    CONTINUED = "run_continued"
    REQUEUED = "run_requeued"  # a person said yes again to what had never begun
    PASSED_TO_AGENT = "run_passed_to_agent"  # the command in front of a prompt says that its agent is to be asked
    COMPLETED = "run_completed"
    FAILED = "run_failed"
    CANCELLED = "run_cancelled"
    SKIPPED = "run_skipped"


class Result(StrEnum):
    """How a run ended."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    LOST = "lost"  # its end was not observed; never run again by itself
    AMBIGUOUS = "ambiguous"  # killed at its timeout: its effect may or may not have happened
    UNSTARTED = "unstarted"  # cancelled while pending, or impossible to start
    DEPENDENCY = "dependency"
    DENIED = "denied"
    BUDGET = "budget"


class NoticeKind(StrEnum):
    """What a notice tells."""

    ENDED = "ended"
    REFUSED = "refused"
    PROPOSED = "proposed"
    WAITING = "waiting"
    PAUSED = "paused"
    DELAYED = "delayed"


class WaitKind(StrEnum):
    """What a run waits for."""

    APPROVAL = "approval"  # of the run itself, before it has begun
    BUDGET = "budget"  # a person has to grant more
    TOOL = "tool"  # a person has to approve a step of the agent
    TASK = "task"  # the end of another task
    INTERACTIVE = "interactive"  # a person uses the model of its lane
    REATTACH = "reattach"  # its agent goes on in a server of its own; the next agent process finds it there


class PauseKind(StrEnum):
    """Why a task is paused. Only one that used up its budget asks a person."""

    BUDGET = "budget"
    OTHER = "other"


class TaskState(StrEnum):
    PROPOSED = "proposed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskEvent(StrEnum):
    APPROVED = "task_approved"
    REJECTED = "task_rejected"
    EXPIRED = "task_expired"
    PAUSED = "task_paused"
    UNPAUSED = "task_unpaused"
    RESUMED = "task_resumed"
    DONE = "task_done"
    FAILED = "task_failed"
    CANCELLED = "task_cancelled"


LIVE = frozenset({RunState.PENDING, RunState.RUNNING, RunState.WAITING, RunState.RESUMED})
ENDED = frozenset(RunState) - LIVE
RUNNING_STATES = frozenset({RunState.RUNNING, RunState.RESUMED})

_ENDINGS = {
    RunEvent.COMPLETED: RunState.COMPLETED,
    RunEvent.FAILED: RunState.FAILED,
    RunEvent.CANCELLED: RunState.CANCELLED,
}

RUN_TRANSITIONS: dict[tuple[RunState, RunEvent], RunState] = {
    (RunState.PENDING, RunEvent.CLAIMED): RunState.RUNNING,
    (RunState.PENDING, RunEvent.RESUMED): RunState.RESUMED,
    (RunState.PENDING, RunEvent.FAILED): RunState.FAILED,
    (RunState.PENDING, RunEvent.CANCELLED): RunState.CANCELLED,
    (RunState.PENDING, RunEvent.SKIPPED): RunState.SKIPPED,
    (RunState.RUNNING, RunEvent.SUSPENDED): RunState.WAITING,
    (RunState.RESUMED, RunEvent.SUSPENDED): RunState.WAITING,
    (RunState.RUNNING, RunEvent.PASSED_TO_AGENT): RunState.PENDING,
    (RunState.WAITING, RunEvent.CONTINUED): RunState.RUNNING,
    (RunState.WAITING, RunEvent.REQUEUED): RunState.PENDING,
    (RunState.WAITING, RunEvent.FAILED): RunState.FAILED,
    (RunState.WAITING, RunEvent.CANCELLED): RunState.CANCELLED,
    **{(state, event): after for state in RUNNING_STATES for event, after in _ENDINGS.items()},
}

TASK_TRANSITIONS: dict[tuple[TaskState, TaskEvent], TaskState] = {
    (TaskState.PROPOSED, TaskEvent.APPROVED): TaskState.ACTIVE,
    (TaskState.PROPOSED, TaskEvent.REJECTED): TaskState.REJECTED,
    (TaskState.PROPOSED, TaskEvent.EXPIRED): TaskState.EXPIRED,
    (TaskState.ACTIVE, TaskEvent.PAUSED): TaskState.PAUSED,
    (TaskState.PAUSED, TaskEvent.UNPAUSED): TaskState.ACTIVE,
    (TaskState.PAUSED, TaskEvent.CANCELLED): TaskState.CANCELLED,
    (TaskState.PAUSED, TaskEvent.DONE): TaskState.DONE,
    (TaskState.PAUSED, TaskEvent.FAILED): TaskState.FAILED,
    (TaskState.DONE, TaskEvent.RESUMED): TaskState.ACTIVE,
    (TaskState.FAILED, TaskEvent.RESUMED): TaskState.ACTIVE,
    (TaskState.CANCELLED, TaskEvent.RESUMED): TaskState.ACTIVE,  # a person stopped a turn, and talks on
    (TaskState.ACTIVE, TaskEvent.DONE): TaskState.DONE,
    (TaskState.ACTIVE, TaskEvent.FAILED): TaskState.FAILED,
    (TaskState.ACTIVE, TaskEvent.CANCELLED): TaskState.CANCELLED,
}


def advance(state: RunState, event: RunEvent) -> RunState:
    """The state after `event`, or IllegalTransition."""
    try:
        return RUN_TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(noun="run", state=state, event=_participle(event)) from None


def advance_task(state: TaskState, event: TaskEvent) -> TaskState:
    """The state after `event`, or IllegalTransition."""
    try:
        return TASK_TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(noun="task", state=state, event=_participle(event)) from None


def event_between(before: RunState, after: RunState) -> RunEvent:
    """The event that leads from one state to another, or IllegalTransition. Only the ledger hands a run on."""
    for (state, event), reached in RUN_TRANSITIONS.items():
        if state == before and reached == after and event != RunEvent.PASSED_TO_AGENT:
            return event
    raise IllegalTransition(noun="run", state=before, event=after)


def task_event_between(before: TaskState, after: TaskState) -> TaskEvent:
    """The event that leads from one state of a task to another, or IllegalTransition."""
    for (state, event), reached in TASK_TRANSITIONS.items():
        if state == before and reached == after:
            return event
    raise IllegalTransition(noun="task", state=before, event=after)


def task_event_for(state: RunState) -> TaskEvent:
    """What the end of its only run means for a one-shot task."""
    match state:
        case RunState.COMPLETED:
            return TaskEvent.DONE
        case RunState.CANCELLED:
            return TaskEvent.CANCELLED
        case _:
            return TaskEvent.FAILED


_MIN_RESTART_DELAY_MS, _MAX_RESTART_DELAY_MS = 1000, 60_000


def restart_delay(most: int, failures: int) -> int | None:
    """After how many milliseconds to run again what failed this often in a row; None where `most` restarts were enough."""
    return None if failures > most else min(_MAX_RESTART_DELAY_MS, _MIN_RESTART_DELAY_MS << min(failures - 1, 16))


def _participle(event: str) -> str:
    return event.split("_", 1)[1]
