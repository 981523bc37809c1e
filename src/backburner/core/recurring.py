"""Decides what follows the end of a run of a recurring task: a notice, a retry, a pause, or the end of the task. The ledger applies it."""

from backburner.core.claims import RunResult
from backburner.core.formatting import sentence
from backburner.core.light_typing import NamedTuple
from backburner.core.models import DISCOVERY, Run, Submission, Task
from backburner.core.states import Result, RunState, TaskEvent, TaskState
from backburner.core.task_spec import SourceKind
from backburner.core.terminal_text import readable, visible

MAX_FAILURES = 2  # consecutive failures after which the task is paused
CHANGE, SUCCESS, OUTPUT = "change", "success", "output"
PRECHECK_CONDITIONS = (CHANGE, SUCCESS, OUTPUT)  # when the pre-check command starts the agent
RATE_LIMIT, AUTH, TIMEOUT, TRANSIENT = "rate_limit", "auth", "timeout", "transient"
# Delay before the single retry, by kind of failure. Other failures count as transient.
_BACKOFF_MS = {RATE_LIMIT: 300_000, AUTH: 600_000, TIMEOUT: 60_000, TRANSIENT: 30_000}
# Not retried automatically: runs that may have taken effect, whose end is unknown, or that a person's decision ended.
_NOT_RETRIED = frozenset({Result.LOST, Result.AMBIGUOUS, Result.DENIED, Result.BUDGET, Result.DEPENDENCY})
_MAX_ANSWER_CHARACTERS = 8000


class NextStep(NamedTuple):
    """What follows the end of a run: the task event, the delay before a retry, whether to send a notice, and the values to store."""

    event: TaskEvent | None
    retry_ms: int | None
    notify: bool
    failures: int
    result_hash: str | None
    reason: str | None = None


RECURRING_TOOLS = "read,commands,memory"  # for unattended runs
EVENT_TOOLS = "read,memory"  # for runs that an external event triggers
DISCOVERY_TOOLS = "read,propose"  # for the agent that suggests tasks


def tools_of(task: "Task | Submission", configured: str = "") -> str:
    """Return the tool sets of a task's agent, separated by commas; empty for all. `configured` are those of the agent's settings."""
    if task.session == DISCOVERY:
        return DISCOVERY_TOOLS
    if task.spec.options.tools:
        return task.spec.options.tools
    if not task.is_recurring:
        return configured
    return EVENT_TOOLS if task.spec.source else RECURRING_TOOLS


def kind_of_problem(result: Result, problem: str | None) -> str:
    """Return the kind of a failure, which determines the delay before its retry."""
    return problem or (TIMEOUT if result in (Result.TIMEOUT, Result.AMBIGUOUS) else TRANSIENT)


def is_over(task: Task, now: int) -> bool:
    """Return whether a task has no more runs to come, after a run has ended."""
    schedule, fired = task.spec.schedule, task.recurring.fired
    if (schedule.max_runs is not None and fired >= schedule.max_runs) or (schedule.at is not None and fired > 0):
        return True
    if task.kind == "event":
        return schedule.until is not None and now > schedule.until
    return task.state == TaskState.ACTIVE and task.recurring.next_run_at is None  # a paused task has no next run either


def after_run(task: Task, run: Run, ending: RunResult, outcome: str, *, over: bool) -> NextStep:
    """Decide what follows the end of a run of a recurring task.

    `outcome` describes how the run ended; `over` means that it was the last run.
    """
    closing = over and task.state in (TaskState.ACTIVE, TaskState.PAUSED)
    if ending.state == RunState.COMPLETED:
        before = task.recurring
        is_first = before.result_hash is None and not before.failures
        silent = is_first and not over and task.spec.agent is None and not ending.lines
        changed = ending.digest != before.result_hash and not silent
        notify = task.spec.notify == "always" or (task.spec.notify == "on_change" and changed and ending.report)
        return NextStep(TaskEvent.DONE if closing else None, None, notify, 0, ending.digest)
    if ending.state == RunState.CANCELLED:
        return NextStep(
            TaskEvent.CANCELLED if closing else None,
            None,
            task.spec.notify == "always",
            task.recurring.failures,
            task.recurring.result_hash,
        )
    failures = task.recurring.failures + 1
    if task.state != TaskState.ACTIVE:  # it was paused or cancelled in the meantime
        return NextStep(TaskEvent.FAILED if closing else None, None, task.spec.notify != "never", failures, None)
    can_retry = run.cause.kind != "retry" and ending.result not in _NOT_RETRIED
    if can_retry and failures < MAX_FAILURES:
        return NextStep(None, _BACKOFF_MS[kind_of_problem(ending.result, ending.problem)], False, failures, task.recurring.result_hash)
    if closing:
        return NextStep(TaskEvent.FAILED, None, True, failures, None)
    if ending.result in (Result.DENIED, Result.BUDGET):
        return NextStep(TaskEvent.PAUSED, None, True, failures, None, "a person rejected it")
    if failures >= MAX_FAILURES:
        return NextStep(TaskEvent.PAUSED, None, True, failures, None, f"it failed twice in a row: {outcome}")
    return NextStep(None, None, task.spec.notify != "never", failures, None)


def precheck_triggers_agent(task: Task, ending: RunResult) -> bool:
    """Return whether the result of the pre-check command starts the agent."""
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
    """Return whether the pre-check command decided not to start the agent with an exit code that is not a failure."""
    return task.spec.options.wake == SUCCESS and ending.result == Result.EXIT and ending.exit_code not in (0, None)


def title(task: Task) -> str:
    """Return the title of a recurring task in notices."""
    return visible(task.spec.name or task.task_id)


def recurring_notice(task: Task, ending: RunResult, after: NextStep, outcome: str) -> str:
    """Return the notice about the end of a run. `outcome` describes how it ended."""
    last = after.event in (TaskEvent.DONE, TaskEvent.FAILED) and task.kind == "scheduled"
    output = _cut(readable(ending.answer).strip(), task.task_id) if ending.answer else ending.output or ending.summary or ""
    if ending.state == RunState.COMPLETED:
        return f"{title(task)}: {output or 'completed, with no output'}{' (This was its last run.)' if last else ''}"
    if after.event == TaskEvent.PAUSED:
        text = (
            f"{sentence(f'{title(task)} is paused because {after.reason}')} To see its runs: backburner status {task.task_id};"
            f" to continue: backburner unpause {task.task_id}"
        )
    else:
        summary = ending.summary if ending.summary not in (None, outcome) else ""
        text = f"{title(task)} {ending.state}: {outcome}{'; ' + summary if summary else ''}{' (This was its last run.)' if last else ''}"
    return text if output in ("", outcome, ending.summary) else f"{text}\n{output}"


def _cut(text: str, task_id: str) -> str:
    if len(text) <= _MAX_ANSWER_CHARACTERS:
        return text
    more = f"\n[first {_MAX_ANSWER_CHARACTERS:,} of {len(text):,} characters; full output: backburner logs {task_id}]"
    return text[:_MAX_ANSWER_CHARACTERS] + more


def usage_message(used: float, limit: float, unit: str, subject: str = "it has") -> str:
    """Describe how much of a daily limit was used. `subject` is the start of the sentence."""
    return f"{subject} used {used:,.6g} of {limit:,.6g} {'dollars' if unit == 'cost' else unit} today"


def budget_message(task: Task, usage: str) -> str:
    """Return the notice for a task that was paused because it reached its daily budget."""
    return f"{title(task)} is paused: {usage}. To allow the same amount again today: backburner unpause {task.task_id}"


def waiting_message(task: Task, reason: str, reference: str) -> str:
    """Return the notice for a run that waits for a person; `reference` is the task to approve or reject."""
    return f"{sentence(f'{title(task)} needs your approval: {reason}')} {how_to_answer(reference)}"


def how_to_answer(task_id: str) -> str:
    """Return the commands that approve and reject a task, as one line."""
    return f"To approve: backburner approve {task_id}; to reject: backburner reject {task_id}"


def explain_schedule(task: "Task | Submission", now: int, *, upcoming: bool = True) -> str:
    """Describe when a recurring task runs; includes the next run if `upcoming`."""
    from backburner.core.schedule import explain

    if (source := task.spec.source) and source.kind is not SourceKind.POLL:
        if source.kind is SourceKind.WEBHOOK:
            return f"on each POST to /hooks/{visible(source.target)}"
        return f"each time {source.kind} {visible(source.target)} changes"
    if task.spec.order.after and (isinstance(task, Submission) or task.kind == "event"):
        return f"each time after {', '.join(task.spec.order.after)}"
    return explain(task.spec.schedule, now, task.recurring.next_run_at if isinstance(task, Task) else None, upcoming=upcoming)
