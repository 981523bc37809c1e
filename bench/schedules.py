"""The effect of many schedules on the scheduler: a tick with nothing due and one that starts a run, with 10 and 10,000 schedules.

It uses a ledger on disk and a fake clock. The memory of a real engine is measured as well.
"""

import contextlib
import statistics
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

from backburner.core.claims import RunResult
from backburner.core.models import ENGINE, Approval
from backburner.core.schedule import Schedule, cron, every
from backburner.core.settings import resolve
from backburner.core.states import Result, RunState
from backburner.engine.scheduler import Scheduler
from backburner.store.ledger import Ledger, open_ledger
from backburner.store.sqlite import SqliteDatabase
from backburner.system.processes import myself
from backburner.testing import FakeClock
from backburner.testing.records import request
from bench.home import BenchHome, exact_cpu_seconds, pss_mb, scratch_folder, wait_until
from bench.ledger import now_ms
from bench.rounds import Figures, run_rounds

SIZES = {"10": 10, "10,000": 10_000}
_IDLE_TICKS, _STARTING_TICKS = 200, 20
_SHORT_INTERVAL_MS, _HOUR_MS = 1000, 3_600_000
_POLL_INTERVAL = 1.0  # seconds


def measure(rounds: int) -> list[Figures]:
    """Return the milliseconds of a tick (a median) and of the first tick, which plans all runs, and the megabytes of an engine."""
    with ExitStack() as stack:
        candidates = {}
        for name, size in SIZES.items():
            ledger_folder, home_folder = (stack.enter_context(scratch_folder()) for _ in range(2))
            clock = FakeClock(now_ms())
            _fill(ledger_folder / "ledger.db", size, clock(), one_due=True)
            ledger = open_ledger(str(ledger_folder / "ledger.db"))
            stack.callback(ledger.close)
            home = stack.enter_context(BenchHome(home_folder))
            _fill(home.root / "ledger.db", size, now_ms(), one_due=False)
            candidates |= {
                f"ticks {name}": lambda name=name, ledger=ledger, clock=clock: _ticks(name, ledger, clock),
                f"MB {name}": lambda home=home: _memory(home),
            }
        return run_rounds(candidates, rounds, warm_up=False)


class _OneTransaction(SqliteDatabase):
    """A database whose operations all run in one surrounding transaction."""

    def transaction(self, *, durable: bool = True, by_person: bool = False) -> contextlib.nullcontext[None]:  # type: ignore[override]
        return contextlib.nullcontext()


def _fill(path: Path, size: int, now: int, *, one_due: bool) -> None:
    """Add recurring tasks that are not due in the next two hours. With `one_due`, the first one is due every second."""
    open_ledger(str(path)).close()
    database = _OneTransaction(str(path))
    ledger = Ledger(database, str(path.parent))
    approval = Approval("user", "bench", now)
    with SqliteDatabase.transaction(database):
        for number in range(size):
            schedule = every(_SHORT_INTERVAL_MS, now) if one_due and number == 0 else _schedule(number, now)
            submission = request(("true",), "/", {}, name=f"task{number}", schedule=schedule, notify="never")
            ledger.tasks.submit(
                submission,
                project="/",
                wanted_id=f"task_{number}",
                approval=approval,
                reasons=(),
                runner=ENGINE,
                folder="tasks",
                now=now,
                expires_at=None,
                kind="scheduled",
                max_active=size,
            )
    ledger.close()


def _schedule(number: int, now: int) -> Schedule:
    """Return an interval of at least three hours, or a daily, weekday or monthly cron schedule."""
    if number % 2:
        return every(3 * _HOUR_MS + number * 1000, now)
    minute, hour = number * 7 % 60, (datetime.fromtimestamp(now // 1000, UTC).hour + 3 + number // 2 % 19) % 24
    return cron(f"{minute} {hour} {('* * *', '* * 1-5', '1 * *')[number // 2 % 3]}", "UTC")


def _ticks(name: str, ledger: Ledger, clock: FakeClock) -> Figures:
    """Measure the first tick, ticks with nothing due, and ticks that start one run (without the end of the run)."""
    config = resolve(None, "", {})
    scheduler = Scheduler(ledger.recurring, ledger.live_work, "tasks", clock, SimpleNamespace(current=config))
    first = _tick_time(scheduler)
    idle = [_tick_time(scheduler) for _ in range(_IDLE_TICKS)]
    starting = []
    for _ in range(_STARTING_TICKS):
        clock.advance(_SHORT_INTERVAL_MS)
        starting.append(_tick_time(scheduler))
        (work,) = ledger.runs.claim(ENGINE, myself(), 1, clock())
        ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, clock(), 0, None, "done", 1)], myself())
    return {f"first {name}": first, f"nothing {name}": statistics.median(idle), f"one {name}": statistics.median(starting)}


def _tick_time(scheduler: Scheduler) -> float:
    start = time.perf_counter()
    scheduler.tick()
    return (time.perf_counter() - start) * 1000


def _memory(home: BenchHome) -> float:
    """Return the memory of an engine after it has planned all runs and is idle."""
    home.cli("list", "--limit", "1")
    wait_until(lambda: home.engine, "the engine")
    engine = home.engine
    assert engine
    before, used = -1.0, exact_cpu_seconds(engine)
    while used - before > 0.01:
        time.sleep(_POLL_INTERVAL)
        before, used = used, exact_cpu_seconds(engine)
    memory = pss_mb(engine)
    home.stop_engine()
    return memory
