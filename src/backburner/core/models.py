"""The nouns of the glossary as immutable records.

Named tuples rather than dataclasses: `dataclasses` alone would cost every `backburner list` a bare interpreter's
start-up once more. Times are integer milliseconds UTC, as in the ledger; the doors turn them into words.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from backburner.core.states import LIVE, PauseKind, Result, RunState, TaskState, WaitKind
from backburner.core.task_spec import TaskSpec

if TYPE_CHECKING:
    pass

Clock = Callable[[], int]  # milliseconds UTC
PRIORITIES = {"high": 1, "normal": 0, "low": -1}
AGENT_LANE = "agents"  # the `runner` of what the agent process of the home may claim, with a model elsewhere
ENGINE = "engine"  # the `runner` of what the engine of the home may claim
LOCAL_AGENT_LANE = "agents:local"  # the same with a model on this machine: a lane of its own, with few seats
TRACE_CURSOR = "otlp"  # the cursor of who sends traces away
EXTERNAL = "record"  # the `runner` of rows an embedder keeps by hand; nobody runs them
AGENT_LANES = frozenset({AGENT_LANE, LOCAL_AGENT_LANE})
RUNNERS = frozenset({AGENT_LANE, ENGINE, LOCAL_AGENT_LANE})
DISCOVERY = "discovery"  # the session of an agent that looks for work by itself
HARMLESS = "harmless"  # the built-in rule for commands that change nothing and give nothing away
NOTIFY = ("always", "on_change", "on_failure", "never")


class ProcessId(NamedTuple):
    """A process that cannot be mistaken for another one: a recycled pid has another start time or boot."""

    pid: int
    started: str
    boot: str

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}:{self.boot}"

    @classmethod
    def parse(cls, text: str) -> "ProcessId":
        pid, started, boot = text.split(":")[:3]
        return cls(int(pid), started, boot)


class Caller(NamedTuple):
    """Who calls a service: from which folder, with which environment, through which interface.

    `session` is the agent's session that the call belongs to; None for a person.
    """

    cwd: str
    environ: dict[str, str]
    via: str
    session: str | None = None


class Submission(NamedTuple):
    """A request for a task, before the gate has judged it.

    `environment` is that of whoever asks; `opened` the folder in which their session was opened, which the gate takes for its project
    (None if there is none); `message` names the turn of the conversation that it belongs to; `proposed` asks a person in any case.
    """

    spec: TaskSpec
    environment: dict[str, str]
    session: str | None = None
    message: str | None = None
    opened: str | None = None
    restarted_from: str | None = None
    parent_run: str | None = None  # the run of an agent whose tool call this is, and which waits for it
    proposed: bool = False

    @property
    def is_recurring(self) -> bool:
        return self.spec.recurrence is not None

    def with_spec(self, **changes: Any) -> "Submission":
        """The same request with another specification."""
        return self._replace(spec=self.spec._replace(**changes))


class Approval(NamedTuple):
    """Who approved (`auto` is the gate itself), through which interface, and the fingerprint a person's approval is bound to."""

    by: str
    via: str
    at: int
    fingerprint: str | None = None


class Decision(NamedTuple):
    """Why a task may run or not: the gate's rule and reasons, and who approved it; `fingerprint` is what was approved or asked about."""

    reasons: tuple[str, ...] = ()
    rule: str = ""
    by: str | None = None
    via: str | None = None
    at: int | None = None
    fingerprint: str | None = None


class TraceIds(NamedTuple):
    """Where a task stands in a W3C trace."""

    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None


class RecurringState(NamedTuple):
    """How a recurring task stands.

    `fired` counts the slots that were run, `failures` those in a row; `result_hash` is its last result, for `notify`, and
    `precheck_hash` what its pre-check printed when its agent was asked last. What it used counts from `counted_from` on.
    """

    next_run_at: int | None = None
    fired: int = 0
    failures: int = 0
    result_hash: str | None = None
    precheck_hash: str | None = None
    paused_because: str | None = None
    pause_kind: PauseKind | None = None
    counted_from: int | None = None


class Task(NamedTuple):
    """What to do, why it may run, and how it stands. `run_count` is also the number of its latest run.

    `parent_task` is the task whose agent asked for it, `parent_run` the run of that agent if it waits for this task as for a tool call.
    """

    task_id: str
    kind: str
    state: TaskState
    project: str
    created_at: int
    spec: TaskSpec
    decision: Decision = Decision()
    trace: TraceIds = TraceIds()
    recurring: RecurringState = RecurringState()
    run_count: int = 0
    lane: str = ""
    session: str | None = None
    message: str | None = None
    opened: str | None = None
    restarted_from: str | None = None
    expires_at: int | None = None
    retrieved_at: int | None = None
    parent_task: str | None = None
    parent_run: str | None = None

    @property
    def type(self) -> str:
        return "agent" if self.spec.agent else "command"

    @property
    def is_unapproved(self) -> bool:
        """Whether only the built-in rule for harmless commands allowed it: no person, no rule or trust of theirs."""
        return self.decision.by == "auto" and self.decision.rule == HARMLESS

    @property
    def is_recurring(self) -> bool:
        """Whether it runs by a schedule, by an event, or each time after another one."""
        return self.spec.recurrence is not None

    @property
    def in_chat(self) -> bool:
        """Whether it is a conversation with a person who sits there."""
        return self.spec.options.chat

    @property
    def has_precheck(self) -> bool:
        """Whether a command decides each time if its agent is asked."""
        return self.spec.agent is not None and bool(self.spec.command.words)


class Wait(NamedTuple):
    """What a run waits for, or waited for last: `target` is the task or the lane that it names, if any.

    `reply` is a person's answer, `extensions` how often a budget was granted again, `asked` the fingerprint of what they were asked about.
    """

    kind: WaitKind
    target: str | None = None
    reply: str | None = None
    extensions: int = 0
    fingerprint: str | None = None

    @property
    def is_for_person(self) -> bool:
        """Whether a person has to answer."""
        return self.kind in (WaitKind.APPROVAL, WaitKind.BUDGET, WaitKind.TOOL)


class RunCause(NamedTuple):
    """What made a run: its `kind` (schedule, retry, manual, after, event; empty for the first run of a one-shot task) and for which slot.

    `origin` is the run that it comes after, `payload` what a source saw; `skipped_before` counts the slots that share the row of a
    skipped one.
    """

    kind: str = ""
    slot: int | None = None
    origin: str | None = None
    payload: str | None = None
    skipped_before: int = 0


class RunEnd(NamedTuple):
    """How a run ended, as far as that is known. `problem` is the kind of its failure, `digest` stands for what it found."""

    result: Result | None = None
    exit_code: int | None = None
    summary: str | None = None
    lines: int | None = None
    usage: dict[str, float] = {}
    problem: str | None = None
    digest: str | None = None


class Run(NamedTuple):
    """One execution of a task. `runner` says who may claim it, `owner` which process holds it while it runs.

    A pending one is not claimed before `due_at`, nor while `blocked` by a task that it comes after. `message` is what an agent is asked
    in it; `error` says why it failed, waits or cannot start yet. Skipped slots are runs, too: their `n` counts downwards from -1.
    """

    run_id: str
    task_id: str
    n: int
    state: RunState
    folder: str
    process_tag: str
    trace_id: str
    span_id: str
    runner: str
    created_at: int
    owner: ProcessId | None = None
    process: ProcessId | None = None
    started_at: int | None = None
    ended_at: int | None = None
    cancel_requested_at: int | None = None
    priority: int = 0
    blocked: bool = False
    due_at: int | None = None
    ready_at: int | None = None
    message: str | None = None
    error: str | None = None
    wait: Wait | None = None
    cause: RunCause = RunCause()
    end: RunEnd = RunEnd()

    @property
    def wait_kind(self) -> WaitKind | None:
        return self.wait.kind if self.wait else None

    @property
    def reply(self) -> str | None:
        """What a person answered to what it waited for last."""
        return self.wait.reply if self.wait else None

    @property
    def extensions(self) -> int:
        """How often its budget was granted again."""
        return self.wait.extensions if self.wait else 0


_OPEN = (TaskState.PROPOSED, TaskState.ACTIVE, TaskState.PAUSED)


class Entry(NamedTuple):
    """A task with its latest run: what a list shows."""

    task: Task
    run: Run | None

    @property
    def status(self) -> str:
        """A one-shot task shows its run's state; one that never got a run, and a standing one, shows its own."""
        return str(self.run.state if self.run and not self.task.is_recurring else self.task.state)

    @property
    def is_live(self) -> bool:
        return self.run is not None and self.run.state in LIVE

    @property
    def is_ready(self) -> bool:
        """Whether a server at work said that it is ready."""
        return self.is_live and self.run is not None and self.run.ready_at is not None

    @property
    def question_fingerprint(self) -> str | None:
        """The fingerprint of what a person is asked about, as it was when the question was made; None where nothing is asked."""
        if self.run and self.run.state == RunState.WAITING:
            return self.run.wait.fingerprint if self.run.wait else None
        return self.task.decision.fingerprint if self.task.state == TaskState.PROPOSED else None

    @property
    def has_ended(self) -> bool:
        open_states = _OPEN if self.task.is_recurring else (TaskState.PROPOSED,)
        return not self.is_live and self.task.state not in open_states


class Batch(NamedTuple):
    """How the tasks of a batch stand: a count by status."""

    batch: str
    project: str
    created_at: int
    counts: dict[str, int]
