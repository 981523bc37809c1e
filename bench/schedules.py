"""Whether many schedules make the scheduler slower: a tick with nothing due and one that fires, with 10 and with 10,000 active.

On a ledger on the disk and a clock that is moved by hand. Also the memory of a real engine with either.
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
from bench.ledger import now_ms
from bench.place import Place, exact_cpu_seconds, pss_mb, scratch, wait_until
from bench.turns import Figures, take_turns

SIZES = {"10": 10, "10,000": 10_000}
_TICKS, _FIRES = 200, 20
_OFTEN_MS, _HOUR_MS = 1000, 3_600_000
_QUIET_SECONDS = 1.0


def measure(rounds: int) -> list[Figures]:
    """Milliseconds of a tick (the median of many) and of the first one, which plans anew; megabytes of an engine."""
    with ExitStack() as all_of_them:
        contestants = {}
        for name, size in SIZES.items():
            timed, served = (all_of_them.enter_context(scratch()) for _ in range(2))
            clock = FakeClock(now_ms())
            _fill(timed / "ledger.db", size, clock(), often=True)
            ledger = open_ledger(str(timed / "ledger.db"))
            all_of_them.callback(ledger.close)
            place = all_of_them.enter_context(Place(served))
            _fill(place.root / "ledger.db", size, now_ms(), often=False)
            contestants |= {
                f"ticks {name}": lambda name=name, ledger=ledger, clock=clock: _ticks(name, ledger, clock),
                f"MB {name}": lambda place=place: _memory(place),
            }
        return take_turns(contestants, rounds, warm_up=False)


class _OneTransaction(SqliteDatabase):
    """A database whose verbs are part of one transaction around them all."""

    def transaction(self, *, durable: bool = True) -> contextlib.nullcontext[None]:  # type: ignore[override]
        return contextlib.nullcontext()


def _fill(path: Path, size: int, now: int, *, often: bool) -> None:
    """Standing tasks, none of them due in the next two hours; but for the first, where one is to be due `often`."""
    open_ledger(str(path)).close()
    database = _OneTransaction(str(path))
    ledger = Ledger(database, str(path.parent))
    approval = Approval("user", "bench", now)
    with SqliteDatabase.transaction(database):
        for number in range(size):
            schedule = every(_OFTEN_MS, now) if often and number == 0 else _schedule(number, now)
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
    """One of many: by intervals from three hours on, or by the clock, daily, on weekdays or monthly."""
    if number % 2:
        return every(3 * _HOUR_MS + number * 1000, now)
    minute, hour = number * 7 % 60, (datetime.fromtimestamp(now // 1000, UTC).hour + 3 + number // 2 % 19) % 24
    return cron(f"{minute} {hour} {('* * *', '* * 1-5', '1 * *')[number // 2 % 3]}", "UTC")


def _ticks(name: str, ledger: Ledger, clock: FakeClock) -> Figures:
    """The first tick of a scheduler, many with nothing due, and some that fire one run, whose end is not counted."""
    config = resolve(None, "", {})
    scheduler = Scheduler(ledger.recurring, ledger.live_work, "tasks", clock, SimpleNamespace(current=config))
    first = _took(scheduler)
    nothing = [_took(scheduler) for _ in range(_TICKS)]
    fired = []
    for _ in range(_FIRES):
        clock.advance(_OFTEN_MS)
        fired.append(_took(scheduler))
        (work,) = ledger.runs.claim(ENGINE, myself(), 1, clock())
        ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, clock(), 0, None, "done", 1)], myself())
    return {f"first {name}": first, f"nothing {name}": statistics.median(nothing), f"one {name}": statistics.median(fired)}


def _took(scheduler: Scheduler) -> float:
    start = time.perf_counter()
    scheduler.tick()
    return (time.perf_counter() - start) * 1000


def _memory(place: Place) -> float:
    """An engine that a door brought up, once it has planned and rests."""
    place.cli("list", "--limit", "1")
    wait_until(lambda: place.engine, "the engine")
    engine = place.engine
    assert engine
    before, used = -1.0, exact_cpu_seconds(engine)
    while used - before > 0.01:
        time.sleep(_QUIET_SECONDS)
        before, used = used, exact_cpu_seconds(engine)
    found = pss_mb(engine)
    place.stop_engine()
    return found
