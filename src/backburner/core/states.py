"""States and events of runs and tasks, and the tables of valid transitions.

A *state* is the current phase of a run; a *result* says how it ended.
"""

from enum import StrEnum

from backburner.core.errors import AlreadyInState, IllegalTransition


class RunState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"  # suspended: for approval, a budget, another task, or interactive use of the same model
    RESUMED = "resumed"  # an agent continues its conversation after an earlier run
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"  # a scheduled slot that was not run


class RunEvent(StrEnum):
    """What can happen to a run; also the `kind` of the row in the event log."""

    CLAIMED = "run_started"
    RESUMED = "run_resumed"
    SUSPENDED = "run_suspended"
    CONTINUED = "run_continued"
    REQUEUED = "run_requeued"  # a person approved again a run that had never started
    PASSED_TO_AGENT = "run_passed_to_agent"  # the pre-check command decided that the agent runs
    COMPLETED = "run_completed"
    FAILED = "run_failed"
    CANCELLED = "run_cancelled"
    SKIPPED = "run_skipped"


class Result(StrEnum):
    """How a run ended."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    LOST = "lost"  # its end was not observed; never retried automatically
    AMBIGUOUS = "ambiguous"  # killed at its timeout; it may or may not have taken effect
    UNSTARTED = "unstarted"  # cancelled while pending, or could not be started
    DEPENDENCY = "dependency"
    DENIED = "denied"
    BUDGET = "budget"


class NoticeKind(StrEnum):
    """What a notice is about."""

    ENDED = "ended"
    REFUSED = "refused"
    PROPOSED = "proposed"
    WAITING = "waiting"
    PAUSED = "paused"
    DELAYED = "delayed"
    REMOVED = "removed"  # output was removed because the home was too large
    UNREACHABLE = "unreachable"  # a host does not answer, so what its runs do is not known; or the server has lost what they did
    PAIRED = "paired"  # a page was paired with the web interface, or a passkey was added; made from the list of devices
    ANSWERED = "answered"  # confirms the answer that a person gave in a channel


class WaitKind(StrEnum):
    """What a run waits for."""

    APPROVAL = "approval"  # approval of the run itself, before it starts
    BUDGET = "budget"  # a person must approve more budget
    TOOL = "tool"  # a person must approve a step of the agent
    TASK = "task"  # another task must end
    INTERACTIVE = "interactive"  # a person is using the model of its lane
    REATTACH = "reattach"  # the agent continues in a separate server; the next agent process reconnects to it


class PauseKind(StrEnum):
    """Why a task is paused. Only a task that exceeded its budget needs approval to continue."""

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

_RUN_EVENTS = {(before, after): event for (before, event), after in RUN_TRANSITIONS.items() if event is not RunEvent.PASSED_TO_AGENT}

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
    (TaskState.CANCELLED, TaskEvent.RESUMED): TaskState.ACTIVE,  # a person stopped a turn of a chat and continues it
    (TaskState.ACTIVE, TaskEvent.DONE): TaskState.DONE,
    (TaskState.ACTIVE, TaskEvent.FAILED): TaskState.FAILED,
    (TaskState.ACTIVE, TaskEvent.CANCELLED): TaskState.CANCELLED,
}


def advance(state: RunState, event: RunEvent) -> RunState:
    """Return the state after `event`, or raise IllegalTransition."""
    try:
        return RUN_TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(noun="run", state=state, event=_participle(event)) from None


def advance_task(state: TaskState, event: TaskEvent) -> TaskState:
    """Return the state after `event`, or raise IllegalTransition."""
    try:
        return TASK_TRANSITIONS[state, event]
    except KeyError:
        if state in {reached for (_, wanted), reached in TASK_TRANSITIONS.items() if wanted == event}:
            raise AlreadyInState(noun="task", state=state) from None
        raise IllegalTransition(noun="task", state=state, event=_participle(event)) from None


def event_between(before: RunState, after: RunState) -> RunEvent:
    """Return the event between two states of a run, or raise IllegalTransition. Excludes PASSED_TO_AGENT, which only the ledger uses."""
    try:
        return _RUN_EVENTS[before, after]
    except KeyError:
        raise IllegalTransition(noun="run", state=before, event=after) from None


def task_event_between(before: TaskState, after: TaskState) -> TaskEvent:
    """Return the event between two states of a task, or raise IllegalTransition."""
    for (state, event), reached in TASK_TRANSITIONS.items():
        if state == before and reached == after:
            return event
    raise IllegalTransition(noun="task", state=before, event=after)


def task_event_for(state: RunState) -> TaskEvent:
    """Return the task event that follows when the only run of a one-shot task ends."""
    match state:
        case RunState.COMPLETED:
            return TaskEvent.DONE
        case RunState.CANCELLED:
            return TaskEvent.CANCELLED
        case _:
            return TaskEvent.FAILED


_MIN_RESTART_DELAY_MS, _MAX_RESTART_DELAY_MS = 1000, 60_000


def restart_delay(max_restarts: int, failures: int) -> int | None:
    """Return the delay in milliseconds before the next restart, after `failures` consecutive failures; None for no more restarts."""
    if failures > max_restarts:
        return None
    return min(_MAX_RESTART_DELAY_MS, _MIN_RESTART_DELAY_MS << min(failures - 1, 16))


def _participle(event: str) -> str:
    return event.split("_", 1)[1].replace("_", " ")
