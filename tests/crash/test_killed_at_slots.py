"""The engine killed around the times at which recurring tasks are due: no slot runs twice, and none is lost.

50 rounds; 500 with BACKBURNER_LONG. To repeat a failure, use the seed it printed: BACKBURNER_SEED=… pytest -k slots.
As a program it is an engine that kills itself at a point: `test_killed_at_slots.py POINT HOME`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import crash_driver
import pytest
from conftest import LONG, HomeCli, wait_until
from recorder import query, wait_for_stable_engine, wait_until_killed

from backburner.core.models import Approval, ProcessId, Run
from backburner.core.schedule import every
from backburner.core.settings import resolve
from backburner.engine.scheduler import Scheduler
from backburner.store import writers
from backburner.store.ledger import open_ledger
from backburner.store.recurring import RecurringRepository
from backburner.store.run_writer import RunWriter
from backburner.system import processes, run_files
from backburner.testing import FakeClock
from backburner.testing.records import request

ROUNDS = 500 if LONG else 50
SEED = int(os.environ.get("BACKBURNER_SEED") or random.randrange(1 << 32))
TASKS, EVERY_MS = 6, 1000
APART = 0.382  # seconds between adding two tasks, which spreads their slots evenly over the second
NAMED_EVERY = 5 if LONG else 3  # in one of this many rounds the engine dies at a named point
RESTARTS = 3  # after this many restarts a keeper waits longer
EARLY_MS, LATE_MS = 15, 30  # before and after the time at which a slot is due


def inside_fire() -> None:
    """Die when a slot is processed and everything is written, before the commit."""
    real = RecurringRepository._fire

    def deadly(self: Any, *words: Any) -> None:
        real(self, *words)
        self._db.connection.set_commit_hook(crash_driver.die)

    RecurringRepository._fire = deadly  # type: ignore[method-assign]


CLAIMING: dict[str, Callable[[], None]] = {
    "after replan": lambda: crash_driver.after(Scheduler, "_replan"),
    "before the slot": lambda: crash_driver.before(RecurringRepository, "_fire"),
    "skips written": lambda: crash_driver.after(RunWriter, "skip"),
    "slot advanced": lambda: crash_driver.before(RunWriter, "add_recurring"),
    "run added": lambda: crash_driver.after(RunWriter, "add_recurring"),
    "inside fire": inside_fire,
    "after fire": lambda: crash_driver.after(RecurringRepository, "fire", bool),
}
STARTING = ["inside claim", "after claim", "after prepare", "shim but no log writer", "after spawn"]
ENDING = ["before settle", "inside settle", "after settle"]
POINTS = [*CLAIMING, *STARTING, *ENDING]


class Row(NamedTuple):
    """A slot in the ledger: its run, or why it has none."""

    task: str
    run_id: str
    n: int
    cause: str
    slot: int
    state: str
    result: str
    error: str | None
    folder: str
    starts: int
    ends: int


_ROWS = """
    SELECT t.name, r.run_id, r.n, r.cause, r.slot, r.state, r.result, r.error, r.folder,
        (SELECT count(*) FROM events e WHERE e.run_id = r.run_id AND e.kind = 'run_started'),
        (SELECT count(*) FROM events e WHERE e.run_id = r.run_id AND e.kind IN ('run_completed', 'run_failed', 'run_cancelled'))
    FROM runs r JOIN tasks t ON t.task_id = r.task_id ORDER BY t.name, r.slot, r.seq
"""


class RecurringTaskKiller:
    """Recurring tasks that write the id of each run to a file, and an engine that is killed repeatedly."""

    def __init__(self, home_cli: HomeCli) -> None:
        self.home_cli, self.book = home_cli, home_cli.cwd / "book"
        self.chance = random.Random(SEED)
        self.hits: Counter[str] = Counter()
        self.keepers_killed = 0
        self._anchors: dict[str, int] = {}
        self._victim: ProcessId | None = None
        self._kept = False  # whether a keeper is running
        self._restarts = 0  # of the running keeper

    def add(self) -> None:
        """Add the tasks through the command line; each has its own offset in the second."""
        started_at = time.monotonic()
        for number in range(TASKS):
            wait_until(lambda at=started_at + number * APART: time.monotonic() >= at, "its moment")
            sign = f'echo "$BACKBURNER_RUN_ID" >>{self.book}'
            self.home_cli.ok(
                "add", f"tick{number}", "--every", f"{EVERY_MS // 1000}s", "--notify", "never", "--yes", "--", "sh", "-c", sign
            )
        self._kept = True
        self._anchors = {
            task_id: json.loads(words)["anchor"] for task_id, words in query(self.home_cli, "SELECT task_id, schedule FROM tasks")
        }

    def kill(self, number: int) -> None:
        """One round."""
        if number % NAMED_EVERY == 0:
            self._die_at(POINTS[number // NAMED_EVERY % len(POINTS)])
        elif self.chance.random() < 0.2:
            self._kill_starting_engine()
        else:
            self._kill_at_a_slot()

    def _die_at(self, point: str) -> None:
        """Start an engine without a keeper that kills itself. It misses slots while it starts, so that it has something to do."""
        if self._kept:
            engine = self._engine()
            self._kill_keeper()
            self._kill(engine)
        tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        driven = subprocess.Popen(
            [sys.executable, __file__, point, str(self.home_cli.root)],
            cwd=self.home_cli.cwd,
            env={**self.home_cli.environ, "PYTHONPATH": os.pathsep.join(filter(None, (tests, self.home_cli.environ.get("PYTHONPATH"))))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until_killed(driven)
        self.hits[point] += 1

    def _kill_starting_engine(self) -> None:
        """Kill the engine while it takes over and processes missed slots."""
        engine = self._engine()
        self._perhaps_kill_keeper()
        moment = time.monotonic() + self.chance.uniform(0, 0.3)
        wait_until(lambda: time.monotonic() >= moment, "the kill")
        self._kill(engine)
        self.hits["coming up"] += 1

    def _kill_at_a_slot(self) -> None:
        """Kill the engine between the time shortly before a slot is due and the end of its command."""
        engine = self._engine()
        self._perhaps_kill_keeper()
        soon = time.time_ns() // 1_000_000 + EARLY_MS
        coming = sorted((soon + EVERY_MS - (soon - anchor) % EVERY_MS, task_id) for task_id, anchor in self._anchors.items())
        slot, task_id = self.chance.choice(coming[:2])
        moment = (slot + self.chance.uniform(-EARLY_MS, LATE_MS)) / 1000
        wait_until(lambda: time.time() >= moment, "the kill")
        self._kill(engine)
        found = query(self.home_cli, "SELECT state FROM runs WHERE task_id = ? AND slot = ?", task_id, slot)
        self.hits[f"slot {found[0][0] if found else 'not processed'}"] += 1

    def _engine(self) -> ProcessId:
        """An engine that was started since the last kill: by its keeper, or by a command."""
        if not self._kept:
            self.home_cli.ok("list")
            self._kept, self._restarts = True, 0
        wait_until(lambda: self.home_cli.engine not in (None, self._victim), "the next engine")
        engine = self.home_cli.engine
        assert engine
        return engine

    def _perhaps_kill_keeper(self) -> None:
        """Kill the keeper before the engine, so that only a command starts the next one."""
        if self._restarts >= RESTARTS or self.chance.random() < 0.25:
            self._kill_keeper()

    def _kill_keeper(self) -> None:
        for one in self.home_cli.processes("backburner-keeper"):
            self.keepers_killed += processes.send(one, signal.SIGKILL)
            wait_until(lambda one=one: not processes.is_alive(one), "the keeper to be dead")
        self._kept = False

    def _kill(self, engine: ProcessId) -> None:
        assert processes.send(engine, signal.SIGKILL), "the engine had already exited"
        wait_until(lambda: not processes.is_alive(engine), "the engine to be dead")
        self._victim = engine
        self._restarts += 1

    def pause(self) -> None:
        """Wait until missed slots are processed, then pause all tasks and wait for the last end. A run that has not started is held."""
        self.home_cli.ok("list")
        due = "SELECT count(*) FROM tasks WHERE next_run_at <= ?"
        wait_until(lambda: query(self.home_cli, due, time.time_ns() // 1_000_000) == [(0,)], "all due slots to be processed")
        self.home_cli.ok("pause", *(f"tick{number}" for number in range(TASKS)))
        live = "SELECT count(*) FROM runs WHERE ended_at IS NULL AND NOT (state = 'pending' AND blocked = 1)"
        wait_until(lambda: query(self.home_cli, live) == [(0,)], "the last end")

    def errors(self, rows: list[Row]) -> list[str]:
        """All errors in the rows of the ledger, the file of run ids and the folders of the runs."""
        lines = Counter(self.book.read_text().splitlines())
        runs = {row.run_id: row for row in rows if row.n > 0}
        wrong = [f"{run_id} ran {count} times" for run_id, count in lines.items() if count > 1]
        wrong += [f"{run_id} ran and is not in the ledger" for run_id in lines if run_id not in runs]
        wrong += [f"{row} did not come from the schedule" for row in rows if row.cause != "schedule"]
        wrong += [f"{row} has no reason" for row in rows if row.n < 0 and not (row.state == "skipped" and row.error)]
        for row in runs.values():
            if (row.state, row.starts, row.ends) not in (("completed", 1, 1), ("pending", 0, 0)):
                wrong.append(f"{row} did not start once and complete once, although no command was killed")
            begun = run_files.exit_text(str(self.home_cli.root / row.folder)) != ""
            if lines[row.run_id] != (begun or row.state == "completed"):
                wrong.append(f"{row}: its command {'began' if begun else 'did not begin'}, and signed {lines[row.run_id]} times")
        tasks = query(self.home_cli, "SELECT name, schedule, fired, run_count, state, paused_because FROM tasks")
        for name, schedule, *known in tasks:
            slots = Counter(row.slot for row in rows if row.task == name)
            there = range(json.loads(schedule)["anchor"] + EVERY_MS, max(slots) + 1, EVERY_MS)
            wrong += [f"{name}: slot {slot} is {count} times in the ledger" for slot, count in slots.items() if count > 1]
            wrong += [f"{name}: slot {slot} was forgotten" for slot in there if slot not in slots]
            wrong += [f"{name}: {slot} is no slot" for slot in slots if slot not in there]
            count = sum(row.task == name for row in runs.values())
            if known != [count, count, "paused", "it was paused by a person or an agent"]:
                wrong.append(f"{name} has {count} runs, and the task says {known}")
        wrong += [f"{len(tasks)} tasks"] if len(tasks) != TASKS else []
        wrong += [f"a notice although notify is never: {text}" for (text,) in query(self.home_cli, "SELECT text FROM notices")]
        log = (self.home_cli.root / "engine.log").read_text()
        return wrong + ([f"the engine's log: {log}"] if "Traceback" in log or "WARNING" in log or "ERROR" in log else [])


def test_every_slot_runs_or_is_skipped_once_whenever_the_engine_is_killed(home_cli: HomeCli, capsys: pytest.CaptureFixture[str]) -> None:
    started_at, killer = time.monotonic(), RecurringTaskKiller(home_cli)
    with capsys.disabled():
        print(f"\nslots: seed {SEED}")
    killer.add()
    for number in range(ROUNDS):
        killer.kill(number)
    killer.pause()
    wait_for_stable_engine(home_cli)
    rows = [Row(*row) for row in query(home_cli, _ROWS)]
    wrong, hits = killer.errors(rows), killer.hits
    ran = sum(row.n > 0 for row in rows)
    figures = (
        f"{ROUNDS} rounds, {killer.keepers_killed} keepers killed too, {len(rows)} slots of {TASKS} tasks: {ran} run,"
        f" {len(rows) - ran} skipped; hit: {', '.join(f'{what} {count}' for what, count in sorted(hits.items()))}"
    )
    with capsys.disabled():
        print(f"slots: {figures}, {time.monotonic() - started_at:.0f} s")
    assert not wrong, f"seed {SEED}: {len(wrong)} wrong; {figures}\n" + "\n".join(wrong)
    assert hits.total() == ROUNDS and all(hits[point] for point in POINTS), figures
    assert hits["slot not processed"] and hits["slot running"] and ran > ROUNDS, f"too little was killed to show anything: {figures}"


# -- one transaction


class Interrupted(Exception):
    """The point at which an engine would have died."""


class BetweenSlotAndRun(RunWriter):
    """Fails after the slot is advanced and before its run is added."""

    def add_recurring(self, *words: Any, **options: Any) -> Run:
        raise Interrupted


class AfterTheRun(RunWriter):
    """Fails after everything is written, before the commit."""

    def add_recurring(self, *words: Any, **options: Any) -> Run:
        super().add_recurring(*words, **options)
        raise Interrupted


@pytest.mark.parametrize("kind", [BetweenSlotAndRun, AfterTheRun])
def test_advancing_a_slot_and_adding_its_run_is_one_transaction(
    tmp_path: Path, kind: type[RunWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = str(tmp_path / "ledger.db"), FakeClock()
    sound = open_ledger(path)
    with monkeypatch.context() as patched:
        patched.setattr(writers, "RunWriter", kind)
        failing = open_ledger(path)
        assert failing.recurring  # composed while it is replaced
    schedule = every(EVERY_MS, clock())
    task_id = sound.tasks.submit(
        request(("true",), "/", {}, name="tick", schedule=schedule, notify="never"),
        project="/",
        wanted_id="task_tick",
        approval=Approval("user", "cli", clock()),
        reasons=(),
        runner="engine",
        folder="tasks",
        now=clock(),
        expires_at=None,
        kind="scheduled",
        max_active=20,
    ).task.task_id
    slots = [clock() + number * EVERY_MS for number in (1, 2, 3, 4)]
    clock.advance(3 * EVERY_MS + 1)  # two slots were missed, and the third one runs
    before, events = sound.queries.get(task_id), sound.events.events(0, 100)
    with pytest.raises(Interrupted):
        Scheduler(failing.recurring, failing.live_work, "tasks", clock, SimpleNamespace(current=resolve(None, "", {}))).tick()
    for ledger in (sound, failing):
        after = ledger.queries.get(task_id)
        assert (
            after == before
            and after
            and after.task.recurring.next_run_at == slots[0]
            and (after.task.recurring.fired, after.task.run_count) == (0, 0)
        )
        assert ledger.queries.history(task_id, 100) == [] and ledger.events.events(0, 100) == events

    Scheduler(sound.recurring, sound.live_work, "tasks", clock, SimpleNamespace(current=resolve(None, "", {}))).tick()
    entry = sound.queries.get(task_id)
    assert entry and entry.task.recurring.next_run_at == slots[3] and (entry.task.recurring.fired, entry.task.run_count) == (1, 1)
    assert sorted((run.cause.slot, str(run.state)) for run in sound.queries.history(task_id, 100)) == [
        (slots[0], "skipped"),
        (slots[1], "skipped"),
        (slots[2], "pending"),
    ]
    for ledger in (sound, failing):
        ledger.close()


if __name__ == "__main__":
    point, root = sys.argv[1:]
    {**crash_driver.POINTS, **CLAIMING}[point]()
    sys.exit(crash_driver.engine(root, []))
