"""Converts between rows of the ledger and core records: JSON for compound values, text for identities."""

import functools
from itertools import pairwise

from backburner.core import light_json as json
from backburner.core.models import Decision, Entry, ProcessId, RecurringState, Run, RunCause, RunEnd, Task, TraceIds, Wait
from backburner.core.notices import Notice
from backburner.core.recipients import RecipientKind
from backburner.core.states import NoticeKind, PauseKind, Result, RunState, TaskState, WaitKind
from backburner.core.task_spec import (
    AgentSpec,
    Budget,
    CommandSpec,
    Limits,
    Order,
    Recurrence,
    Schedule,
    TaskSpec,
    budget_fields,
    budget_from,
    options_fields,
    options_from,
    schedule_fields,
    set_fields,
    source_fields,
    source_from,
)

# The columns of a task, grouped by the records that hold them. A plain field that is added at the end of CommandSpec, Order, Decision
# or RecurringState needs a column of the same name and no change here.
_GROUPS: dict[str, tuple[str, ...]] = {
    "first": Task._fields[:5],
    "spec": TaskSpec._fields[:7],
    "command": ("command", *CommandSpec._fields[1:]),
    "agent": ("agent", "prompt", "agent_options"),
    "order": Order._fields,
    "recurrence": ("schedule", "notify", "source"),
    "decision": ("reasons", "rule", "approved_by", "approved_via", "approved_at", *Decision._fields[5:]),
    "trace": TraceIds._fields,
    "recurring": RecurringState._fields,
    "rest": Task._fields[9:],
}
_TASK_COLUMNS = tuple(column for columns in _GROUPS.values() for column in columns)
_ENDS = [sum(len(columns) for columns in list(_GROUPS.values())[:n]) for n in range(len(_GROUPS) + 1)]
_SLICES = [slice(start, end) for start, end in pairwise(_ENDS)]
TASK = ", ".join(f"t.{column}" for column in _TASK_COLUMNS)
_WAIT = {"kind": "wait_kind", "target": "wait_target", "fingerprint": "wait_fingerprint"}
_CAUSE = {"kind": "cause"}
_RUN = Run._fields[: Run._fields.index("wait")]
_RUN_COLUMNS = (
    *_RUN,
    *(_WAIT.get(field, field) for field in Wait._fields),
    *(_CAUSE.get(field, field) for field in RunCause._fields),
    *RunEnd._fields,
)
_WAITS = slice(len(_RUN), len(_RUN) + len(Wait._fields))
_CAUSES = slice(_WAITS.stop, _WAITS.stop + len(RunCause._fields))
_RUN_END = slice(_CAUSES.stop, None)
_NOT_WAITING = _RUN_COLUMNS[: _WAITS.start] + _RUN_COLUMNS[_WAITS.stop :]
_NEW_RUN = _NOT_WAITING[: _CAUSES.stop - len(Wait._fields)]
RUN = ", ".join(f"r.{column}" for column in _RUN_COLUMNS)
WIDTH = len(_TASK_COLUMNS)
# The status of a one-shot task is the state of its run, that of a recurring task is its own state.
STATUS = "CASE WHEN t.schedule = '{}' THEN coalesce(r.state, t.state) ELSE t.state END"
ENTRY = f"SELECT {TASK}, {RUN} FROM tasks t LEFT JOIN runs r ON r.task_id = t.task_id AND r.n = t.run_count"
# Forces the small index of live runs, whatever the query planner would choose: the cost must not grow with history.
_ACTIVE = "SELECT seq FROM runs WHERE ended_at IS NULL AND state <> 'pending'"
ACTIVE_RUNS = f"seq IN ({_ACTIVE})"
LIVE_RUNS = f"seq IN ({_ACTIVE} UNION ALL SELECT seq FROM runs WHERE state = 'pending')"
NOTICE = ", ".join(Notice._fields)
FOR_CHANNEL = f"recipient = '{RecipientKind.CHANNEL}'"  # the notices that leave for a channel
_MAX_KEPT = 64
_PLAIN = frozenset([str, int, type(None)])
STORED_BY_SQLITE = _PLAIN | {bool, TaskState, RunState, Result, WaitKind, PauseKind, NoticeKind, RecipientKind}  # as text and integers
_NO_LIMITS, _NO_BUDGET, _NOT_RECURRING = Limits(), Budget(), RecurringState()
OUTGOING = f"acknowledged_at IS NULL AND failed_at IS NULL AND {FOR_CHANNEL}"  # must be the same text as in the partial index


def plain(value: object) -> object:
    """A field in the form in which the ledger stores it."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is ProcessId:
        return str(value)
    if isinstance(value, (tuple, dict)):
        return json.dumps(value) if value else "[]" if isinstance(value, tuple) else "{}"
    if isinstance(value, bool):
        return int(value)
    return str(value) if isinstance(value, str) else value


def _table(text: object) -> dict:
    return json.loads(str(text)) if text != "{}" else {}


def _words(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text)) if text != "[]" else ()


def _schedule(fields: dict) -> Schedule:
    try:
        return Schedule(**fields)
    except TypeError as error:  # an unreadable task must not hide the other tasks
        return Schedule(unreadable=str(error))


@functools.lru_cache(_MAX_KEPT)
def task_of(row: tuple) -> Task:
    """A task from its columns. Most rows are read several times: when a run is claimed, and when it ends."""
    first, spec, command, agent, order, recurrence, decision, trace, recurring, rest = [row[part] for part in _SLICES]
    task_id, kind, state, project, created_at = first
    cwd, env, budget, channels, *words = spec
    line, shell, stdin, limits, *others = command
    batch, key, priority, after, *later = order
    name, prompt, options = agent
    schedule, notify, source = recurrence
    recurs = RecurringState(*recurring)
    return Task(
        task_id,
        kind,
        TaskState(state),
        project,
        created_at,
        TaskSpec(
            cwd,
            _table(env),
            budget_from(_table(budget)) if budget != "{}" else _NO_BUDGET,
            _words(channels),
            *words,
            CommandSpec(_words(line), bool(shell), bool(stdin), Limits(**_table(limits)) if limits != "{}" else _NO_LIMITS, *others),
            AgentSpec(name, prompt, options_from(_table(options))) if name is not None else None,
            Order(batch, key, priority, _words(after), *later),
            Recurrence(_schedule(_table(schedule)), notify, source_from(_table(source))) if schedule != "{}" else None,
        ),
        Decision(_words(decision[0]), *decision[1:]),
        TraceIds(*trace),
        recurs._replace(pause_kind=PauseKind(recurs.pause_kind)) if recurs.pause_kind else recurs,
        *rest,
    )


def task_row(task: Task) -> dict[str, object]:
    """The columns of a task."""
    return _task_row(task, whole=True)


def new_task_row(task: Task) -> dict[str, object]:
    """The columns of a task for an insert; the table has defaults for the columns of records that the task does not have."""
    return _task_row(task, whole=False)


def _task_row(task: Task, whole: bool) -> dict[str, object]:
    spec, command = task.spec, task.spec.command
    agent: tuple[object, ...] = ()
    if spec.agent or whole:
        agent = (spec.agent_name, spec.prompt, options_fields(spec.options))
    recurrence: tuple[object, ...] = ()
    if spec.recurrence:
        recurrence = (schedule_fields(spec.schedule), spec.notify, source_fields(spec.source) if spec.source else {})
    elif whole:
        recurrence = ({}, None, {})
    recurring = task.recurring if whole or task.recurring != _NOT_RECURRING else ()
    values = (
        *task[:5],
        *spec[:7],
        *command,
        *spec.order,
        *task.decision,
        *task.trace,
        *task[9:],
        *agent,
        *recurrence,
        *recurring,
    )
    row: dict[str, object] = dict(zip(_columns_with(bool(agent), bool(recurrence), bool(recurring)), values, strict=True))
    row["type"] = task.type
    row["limits"] = set_fields(command.limits) if command.limits != _NO_LIMITS else {}
    row["budget"] = budget_fields(spec.budget) if spec.budget != _NO_BUDGET else {}
    if agent:
        row["chat"] = spec.options.chat
    return row


@functools.cache
def _columns_with(agent: bool, recurrence: bool, recurring: bool) -> tuple[str, ...]:
    """The columns of a task with or without these groups, which come last."""
    optional = {"agent": agent, "recurrence": recurrence, "recurring": recurring}
    groups = [*(_GROUPS[name] for name in _GROUPS if name not in optional), *(_GROUPS[name] for name, wanted in optional.items() if wanted)]
    return tuple(column for columns in groups for column in columns)


def run_of(row: tuple) -> Run:
    """A run from its columns."""
    run_id, task_id, n, state, folder, process_tag, trace_id, span_id, runner, created_at, owner, process, *times = row[: len(_RUN)]
    started_at, ended_at, cancel_requested_at, priority, blocked, *others = times
    wait, cause = row[_WAITS], row[_CAUSES]
    result, exit_code, summary, lines, usage, *more = row[_RUN_END]
    return Run(
        *(run_id, task_id, n, RunState(state), folder, process_tag, trace_id, span_id, runner, created_at),
        ProcessId.parse(owner) if owner else None,
        ProcessId.parse(process) if process else None,
        *(started_at, ended_at, cancel_requested_at, priority, bool(blocked), *others),
        Wait(WaitKind(wait[0]), *wait[1:]) if wait[0] else None,
        RunCause(*cause),
        RunEnd(Result(result) if result else None, exit_code, summary, lines, _table(usage), *more),
    )


def run_row(run: Run) -> dict[str, object]:
    """The columns of a run."""
    if run.wait:
        return dict(zip(_RUN_COLUMNS, (*run[: len(_RUN)], *run.wait, *run.cause, *run.end), strict=True))
    return dict(zip(_NOT_WAITING, (*run[: len(_RUN)], *run.cause, *run.end), strict=True))


def new_run_row(run: Run) -> dict[str, object]:
    """The columns of a run for an insert, before it waits or ends; the table has defaults for the others."""
    return dict(zip(_NEW_RUN, (*run[: len(_RUN)], *run.cause), strict=True))


def notice_of(row: tuple) -> Notice:
    notice = Notice._make(row)
    return notice._replace(kind=NoticeKind(notice.kind))


def entry_of(row: tuple) -> Entry:
    return Entry(task_of(row[:WIDTH]), run_of(row[WIDTH:]) if row[WIDTH] is not None else None)
