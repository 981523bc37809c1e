"""The cost of every verb with a million ended tasks, compared with a home that has one."""

import shutil
import sqlite3
import subprocess
from contextlib import ExitStack

from backburner.testing.scripted_model import ScriptedModel
from bench.home import BenchHome, scratch_folder
from bench.rounds import Figures, run_rounds

SIZE, SMALL_SIZE = 1_000_000, 20_000
_FOLDERS = 2100
LARGE, EMPTY = "a million", "one task"
# What is called, one call after the other; ID is replaced by the task that was run first, PART by a part of its id, SPAN by its span.
VERBS = (
    "list",
    "list failed",
    "list running",
    "list proposed",
    "status",
    "status ID",
    "status PART",
    "logs ID",
    "wait ID",
    "batch",
    "inbox",
    "inbox --read",
    "brief",
    "sessions",
    "events",
    "audit",
    "traces --task ID",
    "traces --span SPAN",
    "check -- true",
    "agents",
    "config show",
    "doctor",
    "run --wait -- true",
    "restart ID; wait",
    "run -- sleep 100; cancel",
    "run --wait -- true; clear last",
    "add x --every 1d -- true; run-now x --wait; pause x; unpause x; cancel x",
    "compact",
    "propose y --every 1d -- true; approve y; cancel y",
    "propose z --every 1d -- true; reject z",
    "run --stdin --name in -- cat; send in hello; send --eof in; wait in",
    "run --wait --shell -- date>made; apply --diff last",
    "top --json",
    "ask --wait Hello; resume last --wait Again",
    "chat -m Hello",
)


def measure(rounds: int, size: int) -> list[Figures]:
    """Return milliseconds by verb and home."""
    with ExitStack() as stack:
        candidates = {}
        model = stack.enter_context(ScriptedModel())
        for name, count in ((EMPTY, 1), (LARGE, size)):
            home = stack.enter_context(BenchHome(stack.enter_context(scratch_folder())))
            prepare(home, model)
            task_id, span_id = fill(home, count)
            known = {"ID": task_id, "PART": task_id[1:], "SPAN": span_id}
            for verb in VERBS:
                calls = [[known.get(word, word) for word in call.split()] for call in verb.split("; ")]
                candidates[f"{verb}, {name}"] = lambda home=home, calls=calls: sum(home.seconds(*words) for words in calls) * 1000
        return run_rounds(candidates, rounds)


def prepare(home: BenchHome, model: ScriptedModel) -> None:
    """Give the home a model that answers at once, and a repository, whose files a command without approval changes in a copy."""
    with (home.root / "config.toml").open("a") as config:
        config.write(f'[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model.url}/v1"\n')
    subprocess.run(["git", "init", "-q", str(home.cwd)], check=True)


def fill(home: BenchHome, size: int) -> tuple[str, str]:
    """Run one task, and copy its rows in the ledger `size` - 1 times in SQL. Return the id and the span of the original."""
    home.cli("run", "--wait", "--name", "first", "--", "true")
    home.stop_engine()
    db = sqlite3.connect(home.root / "ledger.db")
    ((task_id, span_id),) = db.execute("SELECT task_id, span_id FROM tasks")
    with db:
        for table in ("tasks", "runs", "events", "notices") if size > 1 else ():
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")][1:]  # the first column is generated
            copied = ", ".join(map(_copy, columns))
            db.execute(
                f"WITH RECURSIVE numbers (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i + 1 < :size)"
                f" INSERT INTO {table} ({', '.join(columns)}) SELECT {copied} FROM numbers, (SELECT * FROM {table} WHERE task_id = :id)",
                {"id": task_id, "size": size},
            )
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    for number in range(max(1, size - _FOLDERS), size):  # `doctor` looks at the folders of the newest
        shutil.copytree(home.root / "tasks" / task_id, home.root / "tasks" / f"task_20200101_000000_copy_{number}")
    home.cli("run", "--wait", "--", "true")
    return task_id, span_id


def _copy(column: str) -> str:
    """The value of a column in copy `i`: another id, another trace, and notices that were acknowledged."""
    match column:
        case "trace_id" | "span_id":
            return f"printf('%0' || length({column}) || 'x', i)"
        case "acknowledged_at":
            return "created_at"
        case _:
            return f"CASE typeof({column}) WHEN 'text' THEN replace({column}, :id, 'task_20200101_000000_copy_' || i) ELSE {column} END"
