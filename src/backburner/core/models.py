"""The nouns of the glossary as immutable records.

Named tuples rather than dataclasses: `dataclasses` alone would cost every `backburner list` a bare interpreter's
start-up once more. Times are integer milliseconds UTC, as in the ledger; the doors turn them into words.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from backburner.core.states import LIVE, NoticeKind, PauseKind, Result, RunState, TaskState

if TYPE_CHECKING:
    from backburner.core.progress import Progress

Clock = Callable[[], int]  # milliseconds UTC
PRIORITIES = {"high": 1, "normal": 0, "low": -1}
AGENTS = "agents"  # the `runner` of what the agent host of the home may claim, with a model elsewhere
ENGINE = "engine"  # the `runner` of what the engine of the home may claim
LOCAL = "agents:local"  # the same with a model on this machine: a lane of its own, with few seats
OTLP = "otlp"  # the cursor of who sends traces away
RECORD = "record"  # the `runner` of rows an embedder keeps by hand; nobody runs them
HOSTED = frozenset({AGENTS, LOCAL})
OURS = frozenset({AGENTS, ENGINE, LOCAL})
DAY = "day_"  # before the name of what a task may use in a day
TURN = "turn:"  # what a run waits on that stands aside for a person, with the lane behind it
ELSEWHERE = "elsewhere"  # what a run waits on for no time whose host ended: its agent goes on in a process of its own
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
    """What a door asks for, before the gate has seen it."""

    command: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    description: str = ""
    name: str | None = None
    env: dict[str, str] = {}
    shell: bool = False
    timeout_ms: int | None = None
    umask: int | None = None
    restarted_from: str | None = None
    batch: str | None = None
    key: str | None = None
    priority: int = 0
    after: tuple[str, ...] = ()
    start_at: int | None = None
    limits: dict[str, int] = {}
    stdin: bool = False
    ready_when: str | None = None
    restarts: int = 0
    session: str | None = None
    agent: str | None = None
    prompt: str = ""
    message: str | None = None
    budget: dict[str, float] = {}
    schedule: dict[str, object] = {}
    notify: str | None = None
    terms: dict[str, object] = {}
    channels: tuple[str, ...] = ()
    source: dict[str, str] = {}
    proposed: bool = False  # a person is to be asked, whatever the gate says
    opened: str | None = None  # the folder that the session was opened in: what the gate takes for its project; None where there is none
    parent_run: str | None = None  # the run of an agent whose tool call this is, and which waits for it

    @property
    def standing(self) -> bool:
        return bool(self.schedule)


class Approval(NamedTuple):
    """Who said yes (`auto` is the gate itself), through which door, and why it was or was not asked."""

    by: str
    via: str
    at: int
    fingerprint: str | None = None  # what a person's yes is bound to


class Task(NamedTuple):
    """What to do, who approved it, and where it stands. `run_count` is also the number of its latest run.

    A standing one has a `schedule`; `terms` are its agent's tools, result fields and context, and when its command wakes that agent.
    `fired` counts the slots that were run, `failures` those in a row; `result_hash` is what it found last, for `notify`, and `gate_hash`
    what its command said when its agent was asked last. `fingerprint` is what a person's yes is bound to, or was asked for. What it used is counted from `counted_from` on, where a person granted more.
    """

    task_id: str
    type: str
    kind: str
    state: TaskState
    name: str | None
    description: str
    command: tuple[str, ...]
    shell: bool
    cwd: str
    project: str
    env: dict[str, str]
    timeout_ms: int | None
    umask: int | None
    restarted_from: str | None
    created_at: int
    expires_at: int | None
    approved_by: str | None
    approved_via: str | None
    approved_at: int | None
    reasons: tuple[str, ...]
    rule: str
    fingerprint: str | None
    run_count: int
    batch: str | None = None
    key: str | None = None
    priority: int = 0
    after: tuple[str, ...] = ()
    start_at: int | None = None
    limits: dict[str, int] = {}
    stdin: bool = False
    ready_when: str | None = None
    restarts: int = 0
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    session: str | None = None
    agent: str | None = None
    prompt: str = ""
    message: str | None = None
    budget: dict[str, float] = {}
    retrieved_at: int | None = None
    schedule: dict[str, object] = {}
    notify: str | None = None
    terms: dict[str, object] = {}
    lane: str = ""
    next_run_at: int | None = None
    fired: int = 0
    failures: int = 0
    result_hash: str | None = None
    gate_hash: str | None = None
    paused_because: str | None = None
    counted_from: int | None = None
    channels: tuple[str, ...] = ()
    source: dict[str, str] = {}
    opened: str | None = None
    pause_kind: PauseKind | None = None
    chat: bool = False
    parent_task: str | None = None  # the task whose agent asked for this one
    parent_run: str | None = None  # the run of that agent, where it waits for this task as for a tool call

    @property
    def unapproved(self) -> bool:
        """Whether only the built-in rule for harmless commands allowed it: no person, no rule or trust of theirs."""
        return self.approved_by == "auto" and self.rule == HARMLESS

    @property
    def standing(self) -> bool:
        """Whether it runs by a schedule, or each time after another one."""
        return bool(self.schedule)

    @property
    def in_chat(self) -> bool:
        """Whether it is a conversation with a person who sits there."""
        return self.chat

    @property
    def gated(self) -> bool:
        """Whether a command decides each time if its agent is asked."""
        return self.agent is not None and bool(self.command)


class Run(NamedTuple):
    """One execution of a task. `runner` says who may claim it, `owner` which process holds it while it is at work.

    A pending one is not claimed before `due_at`, nor while `blocked` by a task that it comes after. `message` is what an agent is
    asked in it; one that waits does so for a task's end, for a person's turn on its lane, or for their `reply` to a `budget` or a `tool`
    (`waits_on`). `cause` says what made it (schedule, retry, manual, after) and `slot` for when, `origin` the run that it comes after;
    `problem` is the kind of its failure; `asked` is the fingerprint of what a person was asked about when it began to wait for a yes. Slots that were skipped leave one, too: their `n` counts downwards from -1.
    """

    run_id: str
    task_id: str
    n: int
    state: RunState
    result: Result | None
    exit_code: int | None
    error: str | None
    summary: str | None
    lines: int | None
    folder: str
    mark: str
    trace_id: str
    span_id: str
    runner: str
    owner: ProcessId | None
    process: ProcessId | None
    created_at: int
    started_at: int | None
    ended_at: int | None
    cancel_requested_at: int | None
    priority: int = 0
    blocked: bool = False
    due_at: int | None = None
    ready_at: int | None = None
    message: str | None = None
    waits_on: str | None = None
    reply: str | None = None
    extensions: int = 0
    usage: dict[str, float] = {}
    cause: str = ""
    slot: int | None = None
    origin: str | None = None
    problem: str | None = None
    digest: str | None = None
    payload: str | None = None
    asked: str | None = None
    skipped_before: int = 0  # of a skipped slot: how many more before it share its row


class Session(NamedTuple):
    """An agent's conversation, as whoever asks. `process` is the client that it lives in, where there is one on this machine."""

    session_id: str
    client: str
    project: str
    process: ProcessId | None
    created_at: int
    seen_at: int


class Grant(NamedTuple):
    """What a person said for good: a project is trusted, or one command always allowed in it."""

    grant_id: int
    kind: str
    project: str
    command: tuple[str, ...]
    via: str
    created_at: int


class Work(NamedTuple):
    """A claimed run with everything needed to start it."""

    task: Task
    run: Run
    environment: dict[str, str]


class Ending(NamedTuple):
    """How a run ended, ready to be written: the state it reaches and everything known about the end."""

    run_id: str
    state: RunState
    result: Result
    ended_at: int
    exit_code: int | None = None
    error: str | None = None
    summary: str | None = None
    lines: int | None = None
    artifacts: tuple[str, ...] = ()
    process: ProcessId | None = None
    answer: str | None = None
    usage: dict[str, float] = {}
    digest: str | None = None  # what a standing task found, for `on_change`
    report: bool = True  # whether its agent thinks that it is worth telling
    problem: str | None = None


class Settled(NamedTuple):
    """What one turn of a runner came to: the ends that were written, and the work it claimed."""

    run_ids: Sequence[str]
    claimed: Sequence[Work]


_OPEN = (TaskState.PROPOSED, TaskState.ACTIVE, TaskState.PAUSED)


class Entry(NamedTuple):
    """A task with its latest run: what a list shows."""

    task: Task
    run: Run | None

    @property
    def status(self) -> str:
        """A one-shot task shows its run's state; one that never got a run, and a standing one, shows its own."""
        return str(self.run.state if self.run and not self.task.standing else self.task.state)

    @property
    def live(self) -> bool:
        return self.run is not None and self.run.state in LIVE

    @property
    def ready(self) -> bool:
        """Whether a server at work said that it is ready."""
        return self.live and self.run is not None and self.run.ready_at is not None

    @property
    def asked(self) -> str | None:
        """The fingerprint of what a person is asked about, as it was when the question was made; None where nothing is asked."""
        if self.run and self.run.state == RunState.WAITING:
            return self.run.asked
        return self.task.fingerprint if self.task.state == TaskState.PROPOSED else None

    @property
    def ended(self) -> bool:
        open_states = _OPEN if self.task.standing else (TaskState.PROPOSED,)
        return not self.live and self.task.state not in open_states


class Span(NamedTuple):
    """One piece of a trace: a task being asked for, or a run of it."""

    span_id: str
    trace_id: str
    parent_span_id: str | None
    name: str
    task_id: str
    run_id: str | None
    started_at: int | None
    ended_at: int | None
    status: str
    attributes: dict[str, object]


class Batch(NamedTuple):
    """How the tasks of a batch stand: a count by status."""

    batch: str
    project: str
    created_at: int
    counts: dict[str, int]


class PersonsTurn(NamedTuple):
    """A person waits for a model in a lane: what runs in the background there stands aside, but for what belongs to the turn."""

    process: ProcessId
    lane: str
    task_id: str | None
    since: int


class Event(NamedTuple):
    """Something that happened; ids grow in the order of the commits."""

    event_id: int
    at: int
    kind: str
    task_id: str | None
    run_id: str | None
    data: dict[str, object]


class Notice(NamedTuple):
    """A message owed to somebody, once per thing to tell and channel. There is no run where a proposal was refused or a task paused."""

    notice_id: int
    key: str
    task_id: str
    run_id: str | None
    project: str
    channel: str
    text: str
    created_at: int
    told_at: int | None
    priority: int = 0
    attempts: int = 0
    next_attempt_at: int | None = None
    error: str | None = None
    dead_at: int | None = None
    external: str | None = None
    kind: NoticeKind = NoticeKind.ENDED


class Signs(NamedTuple):
    """What can be seen of a task from outside. `waits_for` is why a pending one has not started."""

    progress: "Progress | None" = None
    ports: tuple[int, ...] = ()
    artifacts: tuple[str, ...] = ()
    waits_for: str | None = None
