"""Whether a long history makes anything slower: `list`, `status`, `run` and a claim with 100,000 ended tasks, with 200, and with one."""

import sqlite3
import statistics
import time
from contextlib import ExitStack

from backburner.store.ledger import Ledger, open_ledger
from backburner.system.processes import myself
from bench import ledger
from bench.place import Place, scratch
from bench.turns import Figures, take_turns

SIZES = {"one": 1, "200": 200, "100,000": 100_000}
_CLAIMS = 10


def measure(rounds: int) -> list[Figures]:
    """Milliseconds by what was done and how many tasks there were; a claim is the median of a few."""
    with ExitStack() as all_of_them:
        contestants = {}
        for name, size in SIZES.items():
            place = all_of_them.enter_context(Place(all_of_them.enter_context(scratch())))
            task_id = _fill(place, size)
            opened = open_ledger(str(place.root / "ledger.db"))
            all_of_them.callback(opened.close)
            contestants |= {
                f"list {name}": lambda place=place: place.seconds("list") * 1000,
                f"status {name}": lambda place=place, task_id=task_id: place.seconds("status", task_id) * 1000,
                f"status by a part {name}": lambda place=place, task_id=task_id: place.seconds("status", task_id[1:]) * 1000,
                f"run to its end {name}": lambda place=place: place.seconds("run", "--wait", "--", "true") * 1000,
                f"claim {name}": lambda opened=opened: _claim(opened),
            }
        return take_turns(contestants, rounds)


def _claim(opened: Ledger) -> float:
    took = []
    for _ in range(_CLAIMS):
        ledger.submit(opened)
        start = time.perf_counter()
        run_id = ledger.claim(opened, myself())
        took.append((time.perf_counter() - start) * 1000)
        ledger.end(opened, myself(), run_id)
    return statistics.median(took)


def _fill(place: Place, size: int) -> str:
    """Run one task and copy all that the ledger has of it; the id of the real one."""
    place.cli("run", "--wait", "--name", "first", "--", "true")
    place.stop_engine()
    db = sqlite3.connect(place.root / "ledger.db")
    ((task_id,),) = db.execute("SELECT task_id FROM tasks")
    with db:
        for table in ("tasks", "runs", "events", "notices"):
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")][1:]  # the first one numbers itself
            rows = db.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE task_id = ?", (task_id,)).fetchall()
            copies = (
                [value.replace(task_id, f"task_20200101_000000_copy_{number}") if isinstance(value, str) else value for value in row]
                for number in range(1, size)
                for row in rows
            )
            db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})", copies)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.close()
    place.cli("run", "--wait", "--", "true")
    return task_id
