"""Writes a ledger of the current version with a task in every state, as SQL text.

The output is kept for each released version: `python tests/upgrade/dump_ledger.py > tests/upgrade/ledger-vN.sql`.
"""

import os
import tempfile
from typing import Any

from backburner.core.claims import RunResult
from backburner.core.models import ENGINE, EXTERNAL, Approval, ProcessId
from backburner.core.states import Result, RunState
from backburner.store.ledger import Ledger, open_ledger
from backburner.testing.records import changed, request

NOW = 1_770_000_000_000
OWNER = ProcessId(11, "111", "boot")


def fill(ledger: Ledger) -> None:
    """Add one task per status, named after it."""

    def submit(status: str, approved: bool = True, **more: Any) -> None:
        ledger.tasks.submit(
            request(
                ("echo", "it's", "日本語\n"), "/p/src", {"PATH": "/bin"}, description=status, name=f"a {status} one", env={"A": "b"}, **more
            ),
            project="/p",
            wanted_id=f"task_{status}",
            approval=Approval("user", "cli", NOW) if approved else None,
            reasons=("'echo' is on the list",),
            runner=ENGINE,
            folder="tasks",
            now=NOW,
            expires_at=NOW + 1000,
        )

    for status in ("proposed", "rejected", "expired"):
        submit(status, approved=False)
    ledger.tasks.refuse("task_rejected", expired=False, now=NOW + 1)
    ledger.tasks.refuse("task_expired", expired=True, now=NOW + 1001)
    for status, result, code in (("completed", Result.EXIT, 0), ("failed", Result.LOST, None), ("cancelled", Result.SIGNAL, 143)):
        submit(status)
        ledger.runs.claim(ENGINE, OWNER, 1, NOW + 10)
        ledger.runs.settle([RunResult(f"task_{status}", RunState(status), result, NOW + 20, code, None, "a summary", 3)], OWNER)
    ledger.notices.acknowledge(task_ids=["task_failed"], now=NOW + 30)
    submit("running")
    ledger.runs.claim(ENGINE, OWNER, 1, NOW + 10)
    ledger.runs.record_process("task_running", OWNER, ProcessId(77, "7", "boot"))
    ledger.tasks.request_cancel("task_running", NOW + 15)
    submit("pending")
    submit("blocked", after=("task_pending",), batch="nightly", key="once", priority=1, start_at=NOW + 5000, limits={"nice": 5}, restarts=3)
    task, run = ledger.queries.get("task_running")  # type: ignore[misc]
    assert run is not None
    kept = run._replace(run_id="task_kept", task_id="task_kept", runner=EXTERNAL, folder="tasks/task_kept")
    ledger.external_tasks.record(changed(task, task_id="task_kept", name=None), kept)


def dump(ledger: Ledger) -> str:
    """Tables, rows and version, in an order that can be executed."""
    db = ledger.database.connection  # type: ignore[attr-defined]
    lines = ["PRAGMA foreign_keys = OFF;"]
    objects = list(db.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY rowid"))
    lines += [f"{sql};" for _, _, sql in objects]
    for kind, name, _ in objects:
        if kind == "table":
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
            quoted = " || ', ' || ".join(f"quote({column})" for column in columns)
            lines += [f"INSERT INTO {name} VALUES ({row[0]});" for row in db.execute(f"SELECT {quoted} FROM {name} ORDER BY rowid")]
    lines.append(f"PRAGMA user_version = {db.pragma('user_version')};")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ledger = open_ledger(os.path.join(folder, "ledger.db"))
        fill(ledger)
        print(dump(ledger).replace(folder, "/home/me/.backburner"), end="")
        ledger.close()
