"""The ledger's rows as records, and records as rows: JSON for what has parts, text for identities."""

import json

from backburner.core.formatting import iso
from backburner.core.masking import masked_line
from backburner.core.models import (
    Decision,
    Entry,
    Notice,
    ProcessId,
    RecurringState,
    Run,
    RunCause,
    RunEnd,
    Span,
    Task,
    TraceIds,
    Wait,
)
from backburner.core.recipients import RecipientKind
from backburner.core.states import NoticeKind, PauseKind, Result, RunState, TaskState, WaitKind
from backburner.core.task_spec import (
    AgentOptions,
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

# The columns of a task in the order in which `task_of` reads them.
_TASK_COLUMNS = (
    *("task_id", "kind", "state", "name", "description", "command", "shell", "cwd", "project", "env", "timeout_ms", "umask"),
    *("restarted_from", "created_at", "expires_at", "approved_by", "approved_via", "approved_at", "reasons", "rule", "fingerprint"),
    *("run_count", "batch", "key", "priority", "after", "start_at", "limits", "stdin", "ready_when", "restarts"),
    *("trace_id", "span_id", "parent_span_id", "session", "agent", "prompt", "message", "budget", "retrieved_at", "schedule", "notify"),
    *("terms", "lane", "next_run_at", "fired", "failures", "result_hash", "gate_hash", "paused_because", "counted_from", "channels"),
    *("source", "opened", "pause_kind", "parent_task", "parent_run"),
)
TASK = ", ".join(f"t.{column}" for column in _TASK_COLUMNS)
_RUN_COLUMNS = (
    *("run_id", "task_id", "n", "state", "folder", "mark", "trace_id", "span_id", "runner", "created_at", "owner", "process", "started_at"),
    *("ended_at", "cancel_requested_at", "priority", "blocked", "due_at", "ready_at", "message", "error"),
    *("wait_kind", "wait_target", "reply", "extensions", "asked", "cause", "slot", "origin", "payload", "skipped_before"),
    *("result", "exit_code", "summary", "lines", "usage", "problem", "digest"),
)
RUN = ", ".join(f"r.{column}" for column in _RUN_COLUMNS)
WIDTH = len(_TASK_COLUMNS)
# A one-shot task shows its run's state, a standing one its own.
STATUS = "CASE WHEN t.schedule = '{}' THEN coalesce(r.state, t.state) ELSE t.state END"
ENTRY = f"SELECT {TASK}, {RUN} FROM tasks t LEFT JOIN runs r ON r.task_id = t.task_id AND r.n = t.run_count"
# Through the small index of what is live, whatever the planner thinks of it: the cost must not grow with history.
LIVE_RUNS = "seq IN (SELECT seq FROM runs WHERE ended_at IS NULL)"
NOTICE = ", ".join(Notice._fields)
TO_CHANNEL = f"recipient = '{RecipientKind.CHANNEL}'"  # the notices that leave for a channel
OUTGOING = f"told_at IS NULL AND dead_at IS NULL AND {TO_CHANNEL}"  # word for word as in the index of that


def plain(value: object) -> object:
    """A field as the ledger keeps it."""
    kind = type(value)
    if kind is str or kind is int or value is None:
        return value
    match value:
        case bool():
            return int(value)
        case ProcessId():
            return str(value)
        case tuple() | dict():
            return json.dumps(value) if value else "[]" if isinstance(value, tuple) else "{}"
        case str():
            return str(value)
        case _:
            return value


def _list(text: object) -> list[str]:
    return json.loads(str(text)) if text != "[]" else []


def _table(text: object) -> dict:
    return json.loads(str(text)) if text != "{}" else {}


def _schedule(fields: dict) -> Schedule:
    try:
        return Schedule(**fields)
    except TypeError as error:  # one task that cannot be read must not hide the others
        return Schedule(unreadable=str(error))


def task_of(row: tuple) -> Task:
    """A task from its columns."""
    c = dict(zip(_TASK_COLUMNS, row, strict=False))
    agent = recurrence = None
    if c["agent"] is not None:
        agent = AgentSpec(c["agent"], c["prompt"], options_from(_table(c["terms"])) if c["terms"] != "{}" else AgentOptions())
    if c["schedule"] != "{}":
        recurrence = Recurrence(_schedule(_table(c["schedule"])), c["notify"], source_from(_table(c["source"])))
    spec = TaskSpec(
        cwd=c["cwd"],
        command=CommandSpec(
            words=tuple(_list(c["command"])),
            shell=bool(c["shell"]),
            stdin=bool(c["stdin"]),
            umask=c["umask"],
            ready_when=c["ready_when"],
            restarts=c["restarts"],
            limits=Limits(**_table(c["limits"])) if c["limits"] != "{}" else Limits(),
        ),
        agent=agent,
        env=_table(c["env"]),
        name=c["name"],
        description=c["description"],
        order=Order(c["batch"], c["key"], c["priority"], tuple(_list(c["after"])), c["start_at"]),
        timeout_ms=c["timeout_ms"],
        budget=budget_from(_table(c["budget"])) if c["budget"] != "{}" else Budget(),
        recurrence=recurrence,
        channels=tuple(_list(c["channels"])),
    )
    return Task(
        task_id=c["task_id"],
        spec=spec,
        kind=c["kind"],
        state=TaskState(c["state"]),
        project=c["project"],
        created_at=c["created_at"],
        decision=Decision(tuple(_list(c["reasons"])), c["rule"], c["approved_by"], c["approved_via"], c["approved_at"], c["fingerprint"]),
        trace=TraceIds(c["trace_id"], c["span_id"], c["parent_span_id"]),
        recurring=RecurringState(
            next_run_at=c["next_run_at"],
            fired=c["fired"],
            failures=c["failures"],
            result_hash=c["result_hash"],
            precheck_hash=c["gate_hash"],
            paused_because=c["paused_because"],
            pause_kind=PauseKind(c["pause_kind"]) if c["pause_kind"] else None,
            counted_from=c["counted_from"],
        ),
        run_count=c["run_count"],
        lane=c["lane"],
        session=c["session"],
        message=c["message"],
        opened=c["opened"],
        restarted_from=c["restarted_from"],
        expires_at=c["expires_at"],
        retrieved_at=c["retrieved_at"],
        parent_task=c["parent_task"],
        parent_run=c["parent_run"],
    )


def task_row(task: Task) -> dict[str, object]:
    """The columns of a task, for its insertion."""
    spec, command, order, decision, recurring = task.spec, task.spec.command, task.spec.order, task.decision, task.recurring
    return {
        "task_id": task.task_id,
        "type": task.type,
        "kind": task.kind,
        "state": task.state,
        "name": spec.name,
        "description": spec.description,
        "command": command.words,
        "shell": command.shell,
        "cwd": spec.cwd,
        "project": task.project,
        "env": spec.env,
        "timeout_ms": spec.timeout_ms,
        "umask": command.umask,
        "restarted_from": task.restarted_from,
        "created_at": task.created_at,
        "expires_at": task.expires_at,
        "approved_by": decision.by,
        "approved_via": decision.via,
        "approved_at": decision.at,
        "reasons": decision.reasons,
        "rule": decision.rule,
        "fingerprint": decision.fingerprint,
        "run_count": task.run_count,
        "batch": order.batch,
        "key": order.key,
        "priority": order.priority,
        "after": order.after,
        "start_at": order.start_at,
        "limits": set_fields(command.limits),
        "stdin": command.stdin,
        "ready_when": command.ready_when,
        "restarts": command.restarts,
        **task.trace._asdict(),
        "session": task.session,
        "agent": spec.agent_name,
        "prompt": spec.prompt,
        "message": task.message,
        "budget": budget_fields(spec.budget),
        "retrieved_at": task.retrieved_at,
        "schedule": schedule_fields(spec.schedule) if spec.recurrence else {},
        "notify": spec.notify,
        "terms": options_fields(spec.options),
        "chat": spec.options.chat,
        "lane": task.lane,
        "next_run_at": recurring.next_run_at,
        "fired": recurring.fired,
        "failures": recurring.failures,
        "result_hash": recurring.result_hash,
        "gate_hash": recurring.precheck_hash,
        "paused_because": recurring.paused_because,
        "pause_kind": recurring.pause_kind,
        "counted_from": recurring.counted_from,
        "channels": spec.channels,
        "source": source_fields(spec.source) if spec.source else {},
        "opened": task.opened,
        "parent_task": task.parent_task,
        "parent_run": task.parent_run,
    }


def run_of(row: tuple) -> Run:
    """A run from its columns."""
    c = dict(zip(_RUN_COLUMNS, row, strict=False))
    wait = None
    if c["wait_kind"]:
        wait = Wait(WaitKind(c["wait_kind"]), c["wait_target"], c["reply"], c["extensions"], c["asked"])
    result = Result(c["result"]) if c["result"] else None
    return Run(
        run_id=c["run_id"],
        task_id=c["task_id"],
        n=c["n"],
        state=RunState(c["state"]),
        folder=c["folder"],
        mark=c["mark"],
        trace_id=c["trace_id"],
        span_id=c["span_id"],
        runner=c["runner"],
        created_at=c["created_at"],
        owner=ProcessId.parse(c["owner"]) if c["owner"] else None,
        process=ProcessId.parse(c["process"]) if c["process"] else None,
        started_at=c["started_at"],
        ended_at=c["ended_at"],
        cancel_requested_at=c["cancel_requested_at"],
        priority=c["priority"],
        blocked=bool(c["blocked"]),
        due_at=c["due_at"],
        ready_at=c["ready_at"],
        message=c["message"],
        error=c["error"],
        wait=wait,
        cause=RunCause(c["cause"], c["slot"], c["origin"], c["payload"], c["skipped_before"]),
        end=RunEnd(result, c["exit_code"], c["summary"], c["lines"], _table(c["usage"]), c["problem"], c["digest"]),
    )


def run_row(run: Run) -> dict[str, object]:
    """The columns of a run, for its insertion."""
    wait = run.wait
    flat = {name: value for name, value in run._asdict().items() if name not in ("wait", "cause", "end")}
    cause = {**run.cause._asdict(), "cause": run.cause.kind}
    del cause["kind"]
    waits = (
        {"wait_kind": wait.kind, "wait_target": wait.target, "reply": wait.reply, "extensions": wait.extensions, "asked": wait.asked}
        if wait
        else {}
    )
    return {**flat, **waits, **cause, **run.end._asdict()}


def notice_of(row: tuple) -> Notice:
    notice = Notice._make(row)
    return notice._replace(kind=NoticeKind(notice.kind))


def entry_of(row: tuple) -> Entry:
    return Entry(task_of(row[:WIDTH]), run_of(row[WIDTH:]) if row[WIDTH] is not None else None)


def span_of_task(task: Task) -> Span:
    """A task being asked for: until it was approved, at once or by a person."""
    return Span(
        span_id=task.trace.span_id,
        trace_id=task.trace.trace_id,
        parent_span_id=task.trace.parent_span_id,
        name="background_task_start",
        task_id=task.task_id,
        run_id=None,
        started_at=task.created_at,
        ended_at=task.decision.at,
        status=str(task.state),
        attributes=_attributes(task, str(task.state)),
    )


def span_of_run(task: Task, run: Run) -> Span:
    """A run of a task."""
    more = {"task.pid": run.process.pid if run.process else None, "task.exit_code": run.end.exit_code, "task.run": run.n}
    return Span(
        span_id=run.span_id,
        trace_id=run.trace_id,
        parent_span_id=task.trace.span_id or None,
        name="background_task_execute",
        task_id=task.task_id,
        run_id=run.run_id,
        started_at=run.started_at,
        ended_at=run.ended_at,
        status=str(run.state),
        attributes=_attributes(task, str(run.state)) | {name: value for name, value in more.items() if value is not None},
    )


def _attributes(task: Task, status: str) -> dict[str, object]:
    command = masked_line(task.spec.command.words, task.spec.command.shell)
    about = {"task.id": task.task_id, "task.command": command, "task.status": status}
    if task.decision.by:
        about |= {"task.decision.by": task.decision.by, "task.decision.at": iso(task.decision.at) or ""}
    return about
