"""The specification of a task as typed records: its command, its prompt, its schedule and its limits.

A TaskSpec is stored with its task, and `restart` submits it again. Named tuples, because importing `dataclasses` is slow.
"""

from enum import StrEnum

from backburner.core.errors import BadInput
from backburner.core.light_typing import Any, NamedTuple


class Limits(NamedTuple):
    """Resource limits for the processes of a command."""

    memory_mb: int | None = None
    cpu_seconds: int | None = None
    nice: int | None = None


class CommandSpec(NamedTuple):
    """A command: its arguments, or one line for the shell. Empty `words` mean that there is no command."""

    words: tuple[str, ...] = ()
    shell: bool = False
    stdin: bool = False
    limits: Limits = Limits()
    umask: int | None = None
    ready_when: str | None = None
    restarts: int = 0
    tty: bool = False


class AgentOptions(NamedTuple):
    """Options of an agent: model, tools, context for the prompt, fields of the result, and when its pre-check starts it (`wake`)."""

    chat: bool = False
    model: str = ""
    worktree: bool = False
    wake: str | None = None
    fields: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    last_result: bool = False
    tools: str = ""


class AgentSpec(NamedTuple):
    """A prompt and the agent that gets it."""

    name: str
    prompt: str
    options: AgentOptions = AgentOptions()


class RunBudget(NamedTuple):
    """What one run may use before it needs approval to continue; None for no limit."""

    tokens: float | None = None
    tool_calls: float | None = None
    cost: float | None = None
    seconds: float | None = None


class DayBudget(NamedTuple):
    """What all runs of a day may use before the task is paused; None for no limit."""

    tokens: float | None = None
    cost: float | None = None
    runs: float | None = None
    seconds: float | None = None


class Budget(NamedTuple):
    """The budget of a task, per run and per day."""

    per_run: RunBudget = RunBudget()
    per_day: DayBudget = DayBudget()


class SourceKind(StrEnum):
    """The kind of an event source. POLL marks a helper task that runs the watch command of another task."""

    FILE = "file"
    COMMAND = "command"
    GITHUB = "github"
    WEBHOOK = "webhook"
    POLL = "poll"


class Source(NamedTuple):
    """An event source. `target` is the path, command line, repository or webhook name; each option applies to one kind of source."""

    kind: SourceKind
    target: str = ""
    debounce_ms: str = ""
    pattern: str = ""
    every: str = ""
    compare: str = ""
    shell: str = ""
    events: str = ""
    branch: str = ""
    interval_seconds: str = ""
    token_env: str = ""
    base_url: str = ""
    secret_env: str = ""
    style: str = ""


class Schedule(NamedTuple):
    """Exactly one of `every_ms` (counted from `anchor`), `cron` (in `zone`) and `at`; none of them for a task that runs after others."""

    every_ms: int | None = None
    cron: str | None = None
    zone: str = "UTC"
    at: int | None = None
    anchor: int = 0
    until: int | None = None
    max_runs: int | None = None
    missed: str = "run_once"
    window_ms: int = 86_400_000
    jitter_ms: int = 0
    unreadable: str = ""  # why the schedule stored in the ledger is invalid; the task is paused when it is due


class Recurrence(NamedTuple):
    """When a task runs, what triggers it, and when its results are notified."""

    schedule: Schedule
    notify: str | None = None
    source: Source | None = None


class Order(NamedTuple):
    """The position of a task relative to others: batch, key, priority, dependencies and start time; and where it may run.

    `place` is empty for this home, `@HOST_ID` for one host, or `/LANE` for the hosts that serve a lane. `rerun`: it may run twice.
    """

    batch: str | None = None
    key: str | None = None
    priority: int = 0
    after: tuple[str, ...] = ()
    start_at: int | None = None
    place: str = ""
    rerun: bool = False


class TaskSpec(NamedTuple):
    """What to do, and when. If there is a command and an agent, the command is a pre-check that decides whether the agent runs."""

    cwd: str
    env: dict[str, str] = {}
    budget: Budget = Budget()
    channels: tuple[str, ...] = ()
    name: str | None = None
    description: str = ""
    timeout_ms: int | None = None
    command: CommandSpec = CommandSpec()
    agent: AgentSpec | None = None
    order: Order = Order()
    recurrence: Recurrence | None = None

    @property
    def agent_name(self) -> str | None:
        """The name of the agent; None for a command."""
        return self.agent.name if self.agent else None

    @property
    def prompt(self) -> str:
        return self.agent.prompt if self.agent else ""

    @property
    def options(self) -> AgentOptions:
        return self.agent.options if self.agent else AgentOptions()

    @property
    def schedule(self) -> Schedule:
        """The schedule of a recurring task; an empty one otherwise."""
        return self.recurrence.schedule if self.recurrence else Schedule()

    @property
    def source(self) -> Source | None:
        return self.recurrence.source if self.recurrence else None

    @property
    def source_kind(self) -> SourceKind | None:
        return self.source.kind if self.source else None

    @property
    def notify(self) -> str | None:
        return self.recurrence.notify if self.recurrence else None


def set_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a named tuple that differ from their defaults."""
    defaults = record._field_defaults
    if record == tuple(defaults.values()):
        return {}
    return {name: value for name, value in record._asdict().items() if name not in defaults or value != defaults[name]}


# -- JSON: in the ledger, in `--json` output and in requests

_TARGETS = {SourceKind.FILE: "path", SourceKind.COMMAND: "command", SourceKind.GITHUB: "repo", SourceKind.WEBHOOK: "name"}
_PER_DAY = "day_"
BUDGET_NAMES = (*RunBudget._fields, *(f"{_PER_DAY}{name}" for name in DayBudget._fields))


def schedule_fields(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON: the fields that are set. Never empty, because an empty object means no schedule in the ledger."""
    return set_fields(schedule) or {"missed": schedule.missed}


def source_fields(source: Source) -> dict[str, str]:
    """Return a source as JSON: its kind, its target (under a key that depends on the kind), and the options that are set."""
    target = {_TARGETS[source.kind]: source.target} if source.kind in _TARGETS else {}
    options = {name: value for name, value in set_fields(source).items() if name not in ("kind", "target")}
    return {"kind": str(source.kind), **target, **options}


def source_from(fields: dict[str, str]) -> Source | None:
    """Read a source from JSON; None for an empty object."""
    if not fields:
        return None
    kind = SourceKind(fields["kind"])
    target = _TARGETS.get(kind, "")
    return Source(kind, fields.get(target, ""), **{name: value for name, value in fields.items() if name not in ("kind", target)})


def budget_fields(budget: Budget) -> dict[str, float]:
    """Return a budget as JSON: the limits per run, and the limits per day with the prefix `day_`."""
    return {**set_fields(budget.per_run), **{f"{_PER_DAY}{name}": value for name, value in set_fields(budget.per_day).items()}}


def budget_from(fields: dict[str, float]) -> Budget:
    """Read a budget from JSON; raises BadInput for an unknown name."""
    per_run = {name: value for name, value in fields.items() if not name.startswith(_PER_DAY)}
    per_day = {name.removeprefix(_PER_DAY): value for name, value in fields.items() if name.startswith(_PER_DAY)}
    for amounts, known, prefix in ((per_run, RunBudget._fields, ""), (per_day, DayBudget._fields, _PER_DAY)):
        for name, value in amounts.items():
            if name not in known:
                raise BadInput(f"Invalid budget {prefix}{name} = {value}. Use {', '.join(BUDGET_NAMES)}, each above 0.")
    return Budget(RunBudget(**per_run), DayBudget(**per_day))


def limits_from(fields: dict[str, int]) -> Limits:
    """Read resource limits from JSON; raises BadInput for an unknown name."""
    for name in fields:
        if name not in Limits._fields:
            raise BadInput(f"Unknown limit '{name}'. Valid limits: {', '.join(Limits._fields)}.")
    return Limits(**fields)


def options_fields(options: AgentOptions) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in set_fields(options).items()}


def options_from(fields: dict[str, Any]) -> AgentOptions:
    typed: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return AgentOptions(**typed)
