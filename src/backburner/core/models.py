"""Immutable records for tasks, runs, submissions and approvals.

Named tuples rather than dataclasses, because importing `dataclasses` would double the start-up time of `backburner list`. Times are
integer milliseconds UTC, as in the ledger; the interfaces format them.
"""

from collections.abc import Callable

from backburner.core.light_typing import TYPE_CHECKING, Any, NamedTuple
from backburner.core.states import LIVE, PauseKind, Result, RunState, TaskState, WaitKind
from backburner.core.task_spec import TaskSpec

if TYPE_CHECKING:
    from backburner.core.devices import Device

Clock = Callable[[], int]  # milliseconds UTC
PRIORITIES = {"high": 1, "normal": 0, "low": -1}
# Queues of runs in a ledger file; on several hosts, a place is added (core/queues.py).
AGENT_LANE = "agents"  # runs that the agent process claims, with a model on another machine
ENGINE = "engine"  # runs that the engine claims
LOCAL_AGENT_LANE = "agents:local"  # runs that the agent process claims, with a model on this machine
TRACE_CURSOR = "otlp"  # name of the event cursor of the trace exporter
EXTERNAL = "record"  # `runner` of runs that an embedding program executes and records itself
DISCOVERY = "discovery"  # session of the agent that suggests tasks
HARMLESS = "harmless"  # built-in rule for commands that change nothing and reveal nothing
SANDBOX = "sandbox"  # built-in rule for commands that run in a sandbox, because nobody approved them
NOTIFY = ("always", "on_change", "on_failure", "never")


class ProcessId(NamedTuple):
    """A unique process identity: a reused pid has a different start time or boot id."""

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
    """The caller of a service: its directory, its environment, and the interface it uses (`via`).

    `session` is the agent session that the call belongs to; None for a person. `device` is the paired page that calls.
    """

    cwd: str
    environ: dict[str, str]
    via: str
    session: str | None = None
    device: "Device | None" = None


class Submission(NamedTuple):
    """A request for a task, before the gate has judged it.

    `environment` is the environment of the caller. `opened` is the directory in which the caller's session was opened; the gate uses it
    as the project (None if there is no session). `message` identifies the conversation turn that the request belongs to. `proposed`
    always requires the approval of a person.
    """

    spec: TaskSpec
    environment: dict[str, str]
    session: str | None = None
    message: str | None = None
    opened: str | None = None
    restarted_from: str | None = None
    parent_run: str | None = None  # the agent run that made this request as a tool call and waits for its result
    proposed: bool = False

    @property
    def is_recurring(self) -> bool:
        return self.spec.recurrence is not None

    def with_spec(self, **changes: Any) -> "Submission":
        """Return a copy with changed fields of the specification."""
        return self._replace(spec=self.spec._replace(**changes))


class Approval(NamedTuple):
    """Who approved (`auto` is the gate), through which interface, and the fingerprint that a person's approval is bound to.

    `sandbox` is where the gate lets it run.
    """

    by: str
    via: str
    at: int
    fingerprint: str | None = None
    sandbox: str | None = None


class Decision(NamedTuple):
    """The gate's rule and reasons, and who approved the task. `fingerprint` identifies what was approved or submitted for approval."""

    reasons: tuple[str, ...] = ()
    rule: str = ""
    by: str | None = None
    via: str | None = None
    at: int | None = None
    fingerprint: str | None = None
    sandbox: str | None = None  # the sandbox that the gate chose, as in core/sandbox.py


class TraceIds(NamedTuple):
    """The position of a task in a W3C trace."""

    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None


class RecurringState(NamedTuple):
    """The current state of a recurring task.

    `fired` counts the slots that were run, and `failures` the latest consecutive failures. `result_hash` is the hash of the last result,
    for `notify`; `precheck_hash` is the hash of the pre-check output for which the agent last ran. Daily usage is counted from
    `counted_from`.
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
    """A stored task: its specification, approval decision and state. `run_count` is also the number of its latest run.

    `parent_task` is the task whose agent submitted this one. `parent_run` is set if a run of that agent waits for this task as a tool
    call.
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
    origin_host: str = ""  # the host that submitted it; empty for a ledger file

    @property
    def type(self) -> str:
        return "agent" if self.spec.agent else "command"

    @property
    def place(self) -> str:
        """Where its runs may start, as in core/queues.py: as requested, otherwise on the host that submitted it."""
        return self.spec.order.place or (f"@{self.origin_host}" if self.origin_host else "")

    @property
    def is_unapproved(self) -> bool:
        """Whether it runs in a sandbox, because neither a person nor a configured rule allowed it."""
        return self.decision.by == "auto" and self.decision.rule == SANDBOX

    @property
    def is_recurring(self) -> bool:
        """Whether it runs on a schedule, on an event, or each time after another task."""
        return self.spec.recurrence is not None

    @property
    def in_chat(self) -> bool:
        """Whether it is the conversation of an interactive chat."""
        return self.spec.options.chat

    @property
    def has_precheck(self) -> bool:
        """Whether a pre-check command decides in each run if the agent runs."""
        return self.spec.agent is not None and bool(self.spec.command.words)


class Wait(NamedTuple):
    """What a run waits for, or last waited for. `target` is the task or lane it waits for, if any.

    `reply` is the answer of a person, `extensions` the number of times the budget was extended, and `fingerprint` identifies what was
    submitted for approval.
    """

    kind: WaitKind
    target: str | None = None
    reply: str | None = None
    extensions: int = 0
    fingerprint: str | None = None

    @property
    def is_for_person(self) -> bool:
        """Whether the run waits for a person's answer."""
        return self.kind in (WaitKind.APPROVAL, WaitKind.BUDGET, WaitKind.TOOL)


class RunCause(NamedTuple):
    """Why a run was created: `kind` is schedule, retry, manual, after or event, or empty for the first run of a one-shot task.

    `slot` is its scheduled time, `origin` the run that it follows, and `payload` the data of a trigger event. A skipped run can stand
    for several slots: `skipped_before` is the number of earlier ones.
    """

    kind: str = ""
    slot: int | None = None
    origin: str | None = None
    payload: str | None = None
    skipped_before: int = 0


class RunEnd(NamedTuple):
    """How a run ended, as far as known. `problem` is the kind of failure; `digest` is the hash of the result."""

    result: Result | None = None
    exit_code: int | None = None
    summary: str | None = None
    lines: int | None = None
    usage: dict[str, float] = {}
    problem: str | None = None
    digest: str | None = None
    notes: str | None = None  # what else a person should know, one per line


class RunFolder(NamedTuple):
    """The folder of a run, relative to the home."""

    folder: str
    task_id: str
    has_ended: bool


class Run(NamedTuple):
    """One execution of a task. `runner` says which process may claim it; `owner` is the process that runs it.

    A pending run is not claimed before `due_at`, or while it is `blocked` by a dependency. `message` is the prompt for an agent; `error`
    says why the run failed, is waiting or cannot start yet. Skipped slots are also stored as runs, with `n` counting down from -1.
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
    sandbox: str | None = None  # where its command runs, as in core/sandbox.py; None if it is not confined
    host: str = ""  # the host whose process owns it and that has its folder; empty before it is claimed and in a ledger file
    epoch: int | None = None  # of that host when it was claimed
    wait: Wait | None = None
    cause: RunCause = RunCause()
    end: RunEnd = RunEnd()

    @property
    def wait_kind(self) -> WaitKind | None:
        return self.wait.kind if self.wait else None

    @property
    def reply(self) -> str | None:
        """The answer of a person to what the run last waited for."""
        return self.wait.reply if self.wait else None

    @property
    def extensions(self) -> int:
        """The number of times its budget was extended."""
        return self.wait.extensions if self.wait else 0


_OPEN = (TaskState.PROPOSED, TaskState.ACTIVE, TaskState.PAUSED)


class Entry(NamedTuple):
    """A task with its latest run."""

    task: Task
    run: Run | None

    @property
    def status(self) -> str:
        """The state of the run for a one-shot task; the state of the task if it is recurring or has no run."""
        return str(self.run.state if self.run and not self.task.is_recurring else self.task.state)

    @property
    def is_live(self) -> bool:
        return self.run is not None and self.run.state in LIVE

    @property
    def is_ready(self) -> bool:
        """Whether it is a running server that has reported that it is ready."""
        return self.is_live and self.run is not None and self.run.ready_at is not None

    @property
    def question_fingerprint(self) -> str | None:
        """The fingerprint that was recorded when approval was requested; None if nothing needs approval."""
        if self.run and self.run.state == RunState.WAITING:
            return self.run.wait.fingerprint if self.run.wait else None
        return self.task.decision.fingerprint if self.task.state == TaskState.PROPOSED else None

    @property
    def has_ended(self) -> bool:
        open_states = _OPEN if self.task.is_recurring else (TaskState.PROPOSED,)
        return not self.is_live and self.task.state not in open_states


class Batch(NamedTuple):
    """A batch with the number of its tasks in each status."""

    batch: str
    project: str
    created_at: int
    counts: dict[str, int]
