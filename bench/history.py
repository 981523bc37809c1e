"""The effect of a long history: `list`, `status`, `run` and a claim with 100,000 ended tasks, with 200, and with one."""

import sqlite3
import statistics
import time
from contextlib import ExitStack

from backburner.store.ledger import Ledger, open_ledger
from backburner.system.processes import myself
from bench import ledger
from bench.home import BenchHome, scratch_folder
from bench.rounds import Figures, run_rounds

SIZES = {"one": 1, "200": 200, "100,000": 100_000}
_CLAIMS = 10


def measure(rounds: int) -> list[Figures]:
    """Return milliseconds by operation and number of tasks. A claim is the median of 10."""
    with ExitStack() as stack:
        candidates = {}
        for name, size in SIZES.items():
            home = stack.enter_context(BenchHome(stack.enter_context(scratch_folder())))
            task_id = _fill(home, size)
            opened = open_ledger(str(home.root / "ledger.db"))
            stack.callback(opened.close)
            candidates |= {
                f"list {name}": lambda home=home: home.seconds("list") * 1000,
                f"status {name}": lambda home=home, task_id=task_id: home.seconds("status", task_id) * 1000,
                f"status by partial id {name}": lambda home=home, task_id=task_id: home.seconds("status", task_id[1:]) * 1000,
                f"run --wait {name}": lambda home=home: home.seconds("run", "--wait", "--", "true") * 1000,
                f"claim {name}": lambda opened=opened: _claim(opened),
            }
        return run_rounds(candidates, rounds)


def _claim(opened: Ledger) -> float:
    times = []
    for _ in range(_CLAIMS):
        ledger.submit(opened)
        start = time.perf_counter()
        run_id = ledger.claim(opened, myself())
        times.append((time.perf_counter() - start) * 1000)
        ledger.end(opened, myself(), run_id)
    return statistics.median(times)


def _fill(home: BenchHome, size: int) -> str:
    """Run one task and copy its rows in the ledger `size` - 1 times. Return the id of the original."""
    home.cli("run", "--wait", "--name", "first", "--", "true")
    home.stop_engine()
    db = sqlite3.connect(home.root / "ledger.db")
    ((task_id,),) = db.execute("SELECT task_id FROM tasks")
    with db:
        for table in ("tasks", "runs", "events", "notices"):
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")][1:]  # the first column is generated
            rows = db.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE task_id = ?", (task_id,)).fetchall()
            copies = (
                [value.replace(task_id, f"task_20200101_000000_copy_{number}") if isinstance(value, str) else value for value in row]
                for number in range(1, size)
                for row in rows
            )
            db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})", copies)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    home.cli("run", "--wait", "--", "true")
    return task_id
