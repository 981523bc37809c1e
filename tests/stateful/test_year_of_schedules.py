"""Simulates a year of recurring tasks: crashes, suspends and clock changes; at the end every slot is accounted for exactly once.

The ledger and the scheduler are real; the engine is a loop with a fake clock. Everything that happens is drawn from a seed.
A process dies at one of its statements and executes none after it: the next process finds what was committed.
"""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import LONG

from backburner.core.claims import ClaimedRun, RunResult
from backburner.core.errors import BadInput
from backburner.core.models import ENGINE, Approval, ProcessId
from backburner.core.schedule import MAX_SKIPPED_ROWS, MISSED, Schedule, cron, every, next_slot, slots
from backburner.core.settings import resolve
from backburner.core.states import Result, RunState
from backburner.engine.scheduler import Scheduler
from backburner.store.ledger import open_ledger
from backburner.testing import FakeClock
from backburner.testing.records import request

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
START, NEVER = 1_770_000_000_000, 1 << 62  # starts in February, before both daylight saving changes of the year in either hemisphere
TASKS, SEEDS, MANY = 300 if LONG else 200, range(3, 13 if LONG else 4), 10_000
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham", "America/Santiago", "Asia/Kathmandu"]
CRONS = ["30 2 * * *", "0 9 * * 1-5", "15 1,13 1-7 * *", "*/30 1-3 * 3,4,10,11 0", "0 0 1,15 * *", "0 */8 2 * *", "@weekly", "5 3 * 3,10 *"]
HOURS = [24, 168, 400] + [8, 12] * LONG
LEDGER = ["SELECT * FROM tasks", "SELECT count(*), max(event_id) FROM events", "SELECT count(*), max(notice_id) FROM notices"]
LEDGER += ["SELECT count(*), max(seq), sum(n), sum(slot), count(started_at), count(ended_at) FROM runs"]
SLOTS = "SELECT slot, n, state, error, skipped_before FROM runs WHERE task_id = ? AND cause = 'schedule'"
KINDS = {
    "slots": "cause = 'schedule'", "runs": "n > 0 AND cause = 'schedule'", "retries": "cause = 'retry'", "manual runs": "cause = 'manual'",
    "skips": "n < 0", "skips while busy": "n < 0 AND error LIKE 'the previous run (%'", "skips over budget": "error LIKE 'it has used%'",
    "skips outside a window": "error LIKE 'missed, and older than%'", "skips for the latest": "error LIKE '%the latest missed slot runs instead%'",
    "rows for many": "skipped_before > 0",
}  # fmt: skip
INCIDENTS = ["suspends", "set forward", "set back", "corrected", "trimmed", "down", "lost", "paused", "unpaused", "replanned"]
INCIDENTS += ["died in tick", "died in claim", "died in settle", "undone"]


class Died(BaseException):
    """The process was killed."""


class Death:
    """Lets a number of statements pass and none after them, not even a rollback."""

    def __init__(self, left: int) -> None:
        self.left, self.committed = left, False

    def __call__(self, cursor: object, sql: str, values: object) -> bool:
        self.left -= 1
        if self.left < 0:
            raise Died
        self.committed = self.committed or sql == "COMMIT"
        return True


class TaskHistory:
    """The expected history of one task. `parts` are periods in which its slots are processed: the time before the first slot, the

    time after the last, and the time after the last that must have a row: slots that are in the future again are processed again.
    """

    def __init__(self, schedule: Schedule, trouble: float) -> None:
        self.schedule, self.trouble, self.state, self.fired = schedule, trouble, "", 0
        self.due: int | None = None
        self.parts: list[list[int]] = []

    def begin(self, at: int) -> None:
        for part in self.parts:
            part[2] = min(part[2], at + 1)
        self.parts.append([at, NEVER, NEVER])

    def end(self, at: int) -> None:
        self.parts[-1][1:] = at, at

    def check(self, rows: Sequence[tuple]) -> None:
        """Checks the rows of the ledger alone: every slot has exactly one run or one skip with a reason, and there is nothing else."""
        parts = [*self.parts[:-1], [self.parts[-1][0], self.due, self.due]] if self.due is not None else self.parts
        last = max(part[1] for part in parts)
        true = list(takewhile(lambda slot: slot < last, slots(self.schedule, min(part[0] for part in parts))))
        index_of, found, counted = {slot: n for n, slot in enumerate(true)}, {row[0]: row[1] for row in rows}, set()
        assert len(found) == len(rows), "a slot has two rows"
        for slot, n, state, reason, number in rows:
            assert slot in index_of and any(begin < slot < end for begin, end, _ in parts), f"{slot} is no slot, or one of a pause"
            assert n > 0 or (state == "skipped" and reason)
            if number:
                before = true[max(0, index_of[slot] - number) : index_of[slot]]
                assert len(before) == number and not any(found.get(other, 1) < 0 for other in before), "not so many slots"
                counted |= set(before)
        wanted = [slot for slot in true if any(begin < slot < end for begin, _, end in parts)]
        assert not [slot for slot in wanted if slot not in found and slot not in counted], "slots were forgotten"
        assert sum(n > 0 for n in found.values()) == self.fired <= (self.schedule.max_runs or NEVER)
        assert max(found, default=0) <= (self.schedule.until or NEVER)


class Year:
    """Everything around one ledger: a clock, an engine that dies, a user who pauses tasks, and the results of runs."""

    def __init__(self, path: str, seed: int) -> None:
        self.path, self.chance, self.clock, self.config = path, random.Random(seed), FakeClock(START), resolve()
        self.lives: dict[str, TaskHistory] = {}
        self.ends: dict[str, int] = {}  # when the active runs will end
        self.paused: dict[str, int] = {}  # until when
        self.ahead: list[int] = []  # by how much the clock is wrong
        self.tasks: set[tuple] = set()
        self.seen: Counter[str] = Counter()
        self.started: set[tuple] = set()  # tasks and slots
        self.rows = self.processes = self.noticed = 0  # `noticed` is the last time that a scheduler saw
        self.free = False
        self.start()

    def start(self) -> None:
        """Start a new process."""
        self.processes += 1
        self.ledger, self.owner = open_ledger(self.path), ProcessId(self.processes, "1", "boot")
        self.scheduler = Scheduler(self.ledger.recurring, self.ledger.live_work, "tasks", self.clock, SimpleNamespace(current=self.config))
        self.death: Death | None = None
        self.changes = -1

    def some(self, low: int, high: int) -> int:
        """A random number; all orders of magnitude are equally likely."""
        return int(low * (high / low) ** self.chance.random())

    def maybe(self, probability: float) -> bool:
        return self.chance.random() < probability

    def snapshot(self) -> list[list[tuple]]:
        return [self.ledger.database.execute(sql) for sql in LEDGER]

    def act(self, name: str, verb: Callable[[], Any]) -> Any:
        """The result of a call; None if the process died in it. Then nothing has changed, unless it had committed."""
        death, before = self.death, self.snapshot() if self.death else []
        if death:
            death.committed = False
            self.ledger.database.connection.set_exec_trace(death)
        try:
            return verb()
        except Died:
            assert death
            self.seen[f"died in {name}"] += 1
            self.ledger.close()
            self.start()
            if not death.committed:
                self.seen["undone"] += 1
                assert self.snapshot() == before
            self.watch()
            self.take_over()
            return None
        finally:
            self.ledger.database.connection.set_exec_trace(None)
            self.watch()

    def watch(self) -> None:
        """Record the current state of the tasks, and check that none has two active runs."""
        if self.ledger.database.connection.total_changes() == self.changes:
            return
        query = "SELECT task_id, max(slot) FROM runs NOT INDEXED WHERE seq > ? AND cause = 'schedule' GROUP BY task_id"
        fresh, before, self.changes = (
            dict(self.ledger.database.execute(query, (self.rows,))),
            self.tasks,
            self.ledger.database.connection.total_changes(),
        )
        self.rows = self.ledger.database.one("SELECT coalesce(max(seq), 0) FROM runs")[0]
        self.tasks = set(self.ledger.database.execute("SELECT task_id, state, next_run_at, fired FROM tasks"))
        for task_id, state, due, fired in sorted(self.tasks - before, key=str):
            life = self.lives[task_id]
            if due is None and life.due is not None:
                over = state != "paused" and (life.schedule.max_runs is None or fired < life.schedule.max_runs)
                life.end(NEVER if over else max(life.due, fresh.get(task_id, 0) + 1))
            elif due is not None and (life.due is None or due < life.due):
                paused = life.due is None and life.schedule.at is None  # a one-shot task runs late
                if life.due is not None:
                    self.seen["replanned"] += 1
                    life.end(life.due)
                life.begin(self.clock.now if paused else min(self.clock.now, due - 1))
            if state == "paused" != life.state:
                self.paused[task_id] = self.clock.now + self.some(HOUR, 20 * DAY)
                self.seen["paused"] += 1
            elif state != "paused" == life.state:
                self.seen["unpaused"] += bool(self.paused.pop(task_id))
            life.state, life.due, life.fired = state, due, fired
        live = self.ledger.database.execute("SELECT task_id FROM runs WHERE ended_at IS NULL")
        assert len(set(live)) == len(live), "two runs of a task at a time"

    def take_over(self) -> None:
        """Take over the runs of the dead process, after a pause in which the clock may have been changed."""
        if self.maybe(0.3):
            self.jump("down", self.some(MINUTE, 3 * DAY) * self.chance.choice([1, 1, -1]))
        live = [run for run in self.ledger.live_work.live_runs() if run.state == RunState.RUNNING]
        self.ends = {run.run_id: self.ends[run.run_id] for run in live if run.run_id in self.ends and self.maybe(0.7)}
        for run in live:
            self.ledger.runs.adopt(run, self.owner)
        lost = [RunResult(run.run_id, RunState.FAILED, Result.LOST, self.clock.now) for run in live if run.run_id not in self.ends]
        self.seen["lost"] += len(self.ledger.runs.settle(lost, self.owner).run_ids)

    def submit(self, schedule: Schedule, **more: Any) -> None:
        task_id, now = f"task_{len(self.lives)}", self.clock.now
        self.lives[task_id] = TaskHistory(schedule, self.chance.choice([0.01, 0.01, 0.01, 0.3]))
        wanted = request(("make",), "/p", {}, name=task_id, schedule=schedule, notify="on_failure", **more)
        known = {"project": "/p", "wanted_id": task_id, "approval": Approval("user", "cli", now), "reasons": (), "expires_at": None}
        kind = "scheduled" if schedule.at is None else "oneshot"
        self.ledger.tasks.submit(wanted, **known, runner=ENGINE, folder="tasks", now=now, kind=kind, max_active=MANY)
        if self.maybe(0.2):
            self.ledger.recurring.run_now(task_id, now, "tasks")  # as a user would to try it
        self.watch()

    def random_schedule(self) -> Schedule:
        """A random schedule that has a next slot."""
        now, choice, kind = self.clock.now, self.chance.choice, self.chance.random()
        schedule = cron(choice(CRONS), choice(ZONES)) if kind < 0.55 else every(choice(HOURS) * HOUR, now)
        schedule = Schedule(at=now + self.some(HOUR, 300 * DAY)) if kind < 0.1 else schedule
        schedule = schedule._replace(missed=choice(MISSED), window_ms=choice([HOUR, DAY, 7 * DAY]))
        schedule = schedule._replace(until=now + self.some(9 * DAY, 300 * DAY)) if self.maybe(0.5) else schedule
        schedule = schedule._replace(max_runs=self.some(1, 60)) if self.maybe(0.4) else schedule
        schedule = schedule._replace(jitter_ms=self.some(MINUTE, 3 * HOUR)) if self.maybe(0.2) else schedule
        return schedule if next_slot(schedule, now) is not None else self.random_schedule()

    def jump(self, name: str, milliseconds: int) -> None:
        """Change the time without a tick; the active runs do not advance."""
        self.seen[name] += 1
        self.clock.advance(milliseconds)
        self.ends = {run_id: at + milliseconds for run_id, at in self.ends.items()}

    def cause_incidents(self) -> None:
        """Random incidents."""
        now = self.clock.now
        if self.maybe(0.004):
            asleep = self.some(MINUTE, 21 * DAY)
            if asleep > DAY:  # long enough to have more slots than are recorded one by one
                schedule = every(asleep // (MAX_SKIPPED_ROWS + 200), now)._replace(until=now + asleep + HOUR, window_ms=HOUR)
                self.submit(schedule._replace(missed=self.chance.choice(MISSED)))
            self.jump("suspends", asleep)
            self.ahead += [asleep] * self.maybe(0.3)
        if self.maybe(0.002):
            self.jump("set forward", self.some(HOUR, 9 * DAY))
            self.ahead += [self.clock.now - now] * self.maybe(0.5)
        if self.ahead and self.maybe(0.3):
            self.jump("corrected", -int(self.ahead.pop() * self.chance.choice([1, 1, self.chance.random()])))
        if self.maybe(0.002):
            self.jump("set back", -self.some(MINUTE, 4 * DAY))
        if self.maybe(0.003):
            self.jump("trimmed", -self.chance.randint(1, SECOND))
        if self.death is None and self.maybe(0.008):
            self.death = Death(self.some(1, 60))
        if self.maybe(0.008):
            task_id = self.chance.choice([run.task_id for run in self.ledger.live_work.live_runs()] or list(self.lives))
            if self.lives[task_id].state == "active":
                paused = self.act("pause", lambda: self.ledger.recurring.pause(task_id, "paused by the user", self.clock.now))
                assert paused is None or paused.task.state == "paused", f"pausing ended {task_id}"
        for task_id in [task_id for task_id, at in self.paused.items() if at <= self.clock.now]:
            try:
                self.act("unpause", lambda task_id=task_id: self.ledger.recurring.unpause(task_id, self.clock.now, MANY))
            except BadInput:  # it would never run again
                self.paused[task_id] = NEVER

    def ending(self, run_id: str) -> RunResult:
        result, now = self.chance.choice([Result.EXIT, Result.EXIT, Result.TIMEOUT, Result.SIGNAL]), self.clock.now
        if not self.maybe(self.lives[run_id.split(".")[0]].trouble):
            return RunResult(run_id, RunState.COMPLETED, Result.EXIT, now, 0)
        return RunResult(run_id, RunState.CANCELLED if result == Result.SIGNAL else RunState.FAILED, result, now, 1)

    def live(self, until: int) -> None:
        while self.clock.now < until:
            now, late = self.clock.now, self.some(1, 50) if self.maybe(0.95) else self.some(50, 5 * MINUTE)
            free, self.free = self.free, False  # a slot that waited for the end of a run is due immediately
            moments = [self.ledger.live_work.next_slot_at(-1 if free else now), self.ledger.runs.next_due(ENGINE, now), *self.ends.values()]
            self.clock.now = max(now, min((at for at in moments if at is not None), default=now + DAY)) + late
            self.cause_incidents()
            self.tick()
            if endings := [self.ending(run_id) for run_id, at in self.ends.items() if at <= self.clock.now]:
                self.settle(endings)
            self.begin(self.act("claim", lambda: self.ledger.runs.claim(ENGINE, self.owner, MANY, self.clock.now)) or [])

    def settle(self, endings: list[RunResult]) -> None:
        if settled := self.act("settle", lambda: self.ledger.runs.settle(endings, self.owner, runner=ENGINE, limit=9, now=self.clock.now)):
            assert list(settled.run_ids) == [ending.run_id for ending in endings]
            self.ends, self.free = {run_id: at for run_id, at in self.ends.items() if run_id not in settled.run_ids}, True
            self.begin(settled.claimed)

    def begin(self, claimed: Sequence[ClaimedRun]) -> None:
        for work in claimed:
            if work.run.cause.kind == "schedule":
                assert (work.run.task_id, work.run.cause.slot) not in self.started, "a slot ran twice"
                self.started.add((work.run.task_id, work.run.cause.slot))
            short = work.run.cause.kind != "manual" and self.maybe(0.97)
            self.ends[work.run.run_id] = self.clock.now + (self.some(SECOND, HOUR) if short else self.some(HOUR, 4 * DAY))

    def tick(self) -> None:
        before = {task_id: life.due for task_id, life in self.lives.items() if life.due} if self.clock.now < self.noticed - SECOND else {}
        if (seconds := self.act("tick", lambda: self.scheduler.tick() or 0.0)) is not None:
            assert 0 <= seconds <= 30
            self.noticed = self.clock.now
            self.check_replanned(before)

    def check_replanned(self, before: dict[str, int]) -> None:
        """No slot in the future is skipped, and every task waits for its next slot that has not run."""
        for task_id, due in before.items():
            life, ahead = (
                self.lives[task_id],
                {row[0]: row[1] for row in self.ledger.database.execute(SLOTS, (task_id,)) if row[0] > self.clock.now},
            )
            if life.due is not None:
                assert not [slot for slot, n in ahead.items() if n < 0 and slot < due], "a slot in the future is skipped"
                assert life.due <= next((slot for slot in slots(life.schedule, self.clock.now) if slot not in ahead), NEVER)

    def check(self) -> None:
        live = {run.task_id for run in self.ledger.live_work.live_runs()}
        for task_id, life in self.lives.items():
            life.check(self.ledger.database.execute(SLOTS, (task_id,)))
            assert life.state != "active" or life.due or task_id in live, f"{task_id} has no next slot but is still active"
        assert self.ledger.check() == []


@pytest.mark.parametrize("seed", SEEDS)
def test_every_slot_of_a_simulated_year_is_accounted_for_exactly_once(tmp_path: Path, seed: int) -> None:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path  # the disk does not matter here
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        year = Year(os.path.join(folder, "ledger.db"), seed)
        year.submit(every(9 * HOUR, START), budget={"day_runs": 1})
        for month in range(1, 13):
            for _ in range(TASKS // 12):
                year.submit(year.random_schedule())
            year.live(START + month * 365 * DAY // 12)
            if month % 4 == 0:
                year.check()
        year.seen.update({kind: year.ledger.database.one(f"SELECT count(*) FROM runs WHERE {where}")[0] for kind, where in KINDS.items()})
        year.ledger.close()
    print(f"{len(year.lives)} tasks: {dict(sorted(year.seen.items()))}")
    assert not [kind for kind in [*KINDS, *INCIDENTS] if not year.seen[kind]], "did not happen"
