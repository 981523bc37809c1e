"""What the end of a run means for a standing task: tell or not, try again, pause, or be done. Pure; the ledger carries it out."""

from typing import NamedTuple

from backburner.core.claims import RunResult
from backburner.core.models import DISCOVERY, Run, Submission, Task
from backburner.core.states import Result, RunState, TaskEvent, TaskState
from backburner.core.task_spec import SourceKind
from backburner.core.terminal_text import readable, visible

MAX_FAILURES = 2  # in a row: then it is paused
CHANGE, SUCCESS, OUTPUT = "change", "success", "output"
PRECHECK_CONDITIONS = (CHANGE, SUCCESS, OUTPUT)  # when the command in front of a prompt has its agent asked
RATE_LIMIT, AUTH, TIMEOUT, TRANSIENT = "rate_limit", "auth", "timeout", "transient"
# How long to wait before the one retry, by the kind of failure; what is none of them is tried again like what may pass by itself.
_BACKOFF_MS = {RATE_LIMIT: 300_000, AUTH: 600_000, TIMEOUT: 60_000, TRANSIENT: 30_000}
# What may have had its effect, was not seen to end, or was a person's word is not done again by itself.
_NOT_RETRIED = frozenset({Result.LOST, Result.AMBIGUOUS, Result.DENIED, Result.BUDGET, Result.DEPENDENCY})
_MAX_ANSWER_CHARACTERS = 8000


class NextStep(NamedTuple):
    """What follows from the end of a run: the task's new state, when it is tried again, whether somebody is told, what it remembers."""

    event: TaskEvent | None
    retry_ms: int | None
    notify: bool
    failures: int
    result_hash: str | None
    reason: str | None = None


RECURRING_TOOLS = "read,commands,memory"  # for runs that nobody watches
EVENT_TOOLS = "read,memory"  # for runs that somebody outside sets off
DISCOVERY_TOOLS = "read,propose"  # for the agent that looks for work


def tools_of(task: "Task | Submission", own: str = "") -> str:
    """The sets of tools that the agent of a task has; empty for all. `own` are those of its settings."""
    if task.session == DISCOVERY:
        return DISCOVERY_TOOLS
    if said := task.spec.options.tools:
        return said
    if not task.is_recurring:
        return own
    return EVENT_TOOLS if task.spec.source else RECURRING_TOOLS


def kind_of_problem(result: Result, problem: str | None) -> str:
    """The kind of a failure, which decides how long its retry waits."""
    return problem or (TIMEOUT if result in (Result.TIMEOUT, Result.AMBIGUOUS) else TRANSIENT)


def is_over(task: Task, now: int) -> bool:
    """Whether nothing is to come any more of a task whose run has ended."""
    schedule, fired = task.spec.schedule, task.recurring.fired
    if (schedule.max_runs is not None and fired >= schedule.max_runs) or (schedule.at is not None and fired > 0):
        return True
    if task.kind == "event":
        return schedule.until is not None and now > schedule.until
    return task.state == TaskState.ACTIVE and task.recurring.next_run_at is None  # one that is paused has none either


def after_run(task: Task, run: Run, ending: RunResult, how: str, *, over: bool) -> NextStep:
    """What follows from the end of a run of a standing task. `how` says in words how it ended; `over`, that nothing is to come."""
    closing = over and task.state in (TaskState.ACTIVE, TaskState.PAUSED)
    if ending.state == RunState.COMPLETED:
        changed = ending.digest != task.recurring.result_hash
        tell = task.spec.notify == "always" or (task.spec.notify == "on_change" and changed and ending.report)
        return NextStep(TaskEvent.DONE if closing else None, None, tell, 0, ending.digest)
    if ending.state == RunState.CANCELLED:
        return NextStep(
            TaskEvent.CANCELLED if closing else None,
            None,
            task.spec.notify == "always",
            task.recurring.failures,
            task.recurring.result_hash,
        )
    failures = task.recurring.failures + 1
    if task.state != TaskState.ACTIVE:  # it was paused or cancelled meanwhile
        return NextStep(TaskEvent.FAILED if closing else None, None, task.spec.notify != "never", failures, None)
    again = run.cause.kind != "retry" and ending.result not in _NOT_RETRIED
    if again and failures < MAX_FAILURES:
        return NextStep(None, _BACKOFF_MS[kind_of_problem(ending.result, ending.problem)], False, failures, task.recurring.result_hash)
    if closing:
        return NextStep(TaskEvent.FAILED, None, True, failures, None)
    if ending.result in (Result.DENIED, Result.BUDGET):
        return NextStep(TaskEvent.PAUSED, None, True, failures, None, "a person said no")
    if failures >= MAX_FAILURES:
        return NextStep(TaskEvent.PAUSED, None, True, failures, None, f"it failed twice in a row: {how}")
    return NextStep(None, None, task.spec.notify != "never", failures, None)


def precheck_triggers_agent(task: Task, ending: RunResult) -> bool:
    """Whether the command in front of a prompt says that the agent is to be asked."""
    if ending.result != Result.EXIT or ending.exit_code != 0:
        return False
    match task.spec.options.wake or CHANGE:
        case "success":
            return True
        case "output":
            return bool(ending.lines)
        case _:
            return ending.digest != task.recurring.precheck_hash and (bool(ending.lines) or task.recurring.precheck_hash is not None)


def precheck_declined(task: Task, ending: RunResult) -> bool:
    """Whether such a command said no in the way that is not a failure."""
    return task.spec.options.wake == SUCCESS and ending.result == Result.EXIT and ending.exit_code not in (0, None)


def title(task: Task) -> str:
    """What a standing task is called where its notices are read."""
    return visible(task.spec.name or task.task_id)


def recurring_notice(task: Task, run: Run, ending: RunResult, after: NextStep, how: str, log: str) -> str:
    """What is told of the end of a run."""
    found = _cut(readable(ending.answer).strip(), task.task_id) if ending.answer else ending.summary or ""
    if ending.state == RunState.COMPLETED:
        lead = f"{title(task)}: {found or 'completed, with no output'}"
    else:
        lead = f"{title(task)} {ending.state}: {how}{'; ' + found if found and found != how else ''}"
    match after.event:
        case TaskEvent.PAUSED:
            known = task.task_id
            lead = f"{title(task)} is paused because {after.reason}. Its runs: backburner status {known}; go on: backburner unpause {known}"
        case TaskEvent.DONE | TaskEvent.FAILED:
            lead += " (That was its last run.)" if task.kind == "scheduled" else ""
    if task.spec.agent_name is not None and ending.state == RunState.COMPLETED:
        return lead
    return f"{lead}\nOutput: {log}"


def _cut(text: str, task_id: str) -> str:
    more = f"\n[cut after {_MAX_ANSWER_CHARACTERS:,} of {len(text):,} characters; all of it: backburner logs {task_id}]"
    return text if len(text) <= _MAX_ANSWER_CHARACTERS else text[:_MAX_ANSWER_CHARACTERS] + more


def usage_message(used: float, most: float, what: str, who: str = "it has") -> str:
    """What was used up in a day."""
    return f"{who} used {used:,.6g} of {most:,.6g} {'dollars' if what == 'cost' else what} today"


def budget_message(task: Task, what: str) -> str:
    """What is told when a task has used up what it may in a day."""
    known = task.task_id
    return f"{title(task)} is paused: {what}. A yes lets it use as much again today: backburner unpause {known}"


def waiting_message(task: Task, reason: str, answer: str) -> str:
    """What is told when a run cannot go on without a person; `answer` is what they say yes or no to."""
    return f"{title(task)} waits for you: {reason}. Yes: backburner approve {answer}; no: backburner reject {answer}"


def explain_schedule(task: "Task | Submission", now: int, *, upcoming: bool = True) -> str:
    """When a recurring task runs, in plain words; with its next time unless nothing is `upcoming`."""
    from backburner.core.schedule import explain

    if (source := task.spec.source) and source.kind is not SourceKind.POLL:
        called = " or is called" if source.kind is SourceKind.WEBHOOK else ""
        return f"each time when {source.kind} {visible(source.target)} changes{called}"
    if task.spec.order.after and (isinstance(task, Submission) or task.kind == "event"):
        return f"each time after {', '.join(task.spec.order.after)}"
    return explain(task.spec.schedule, now, task.recurring.next_run_at if isinstance(task, Task) else None, upcoming=upcoming)
