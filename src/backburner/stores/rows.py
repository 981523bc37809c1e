"""The ledger's rows as records, and records as rows: JSON for what has parts, text for identities."""

import json

from backburner.lifecycle import Result, RunState, TaskState
from backburner.models import Entry, ProcessId, Run, Task

TASK = ", ".join(f"t.{field}" for field in Task._fields)
RUN = ", ".join(f"r.{field}" for field in Run._fields)
WIDTH = len(Task._fields)
ENTRY = f"SELECT {TASK}, {RUN} FROM tasks t LEFT JOIN runs r ON r.task_id = t.task_id AND r.n = t.run_count"


def plain(value: object) -> object:
    """A field as the ledger keeps it."""
    match value:
        case bool():
            return int(value)
        case ProcessId():
            return str(value)
        case tuple() | dict():
            return json.dumps(value)
        case str():
            return str(value)
        case _:
            return value


def task_of(row: tuple) -> Task:
    fields = dict(zip(Task._fields, row, strict=True))
    fields["state"] = TaskState(fields["state"])
    fields["command"] = tuple(json.loads(fields["command"]))
    fields["shell"] = bool(fields["shell"])
    fields["env"] = json.loads(fields["env"])
    fields["reasons"] = tuple(json.loads(fields["reasons"]))
    return Task(**fields)


def run_of(row: tuple) -> Run:
    fields = dict(zip(Run._fields, row, strict=True))
    fields["state"] = RunState(fields["state"])
    fields["result"] = Result(fields["result"]) if fields["result"] else None
    for name in ("owner", "process"):
        fields[name] = ProcessId.parse(fields[name]) if fields[name] else None
    return Run(**fields)


def entry_of(row: tuple) -> Entry:
    return Entry(task_of(row[:WIDTH]), run_of(row[WIDTH:]) if row[WIDTH] is not None else None)
