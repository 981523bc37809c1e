"""The power fails during a write: everything that a call had confirmed by returning is still there, and nothing runs twice.

The call that was active at that time may be applied or not, but never in part. The last tests prove that the simulated disk
works: with less syncing than the ledger does, confirmed data is lost.
"""

import itertools
import random
from collections.abc import Callable
from contextlib import closing

import apsw
import pytest
from conftest import LONG
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import OWNERS, approve, ending, submit

from backburner.core.errors import LedgerUnavailable
from backburner.core.models import ENGINE, Entry, ProcessId
from backburner.core.states import ENDED, LIVE, RunState
from backburner.store.ledger import Ledger, open_ledger
from backburner.store.sqlite import SqliteDatabase
from backburner.testing import PowerLossVFS

US = OWNERS[0]
NUMBERS = itertools.count()
STRIDE = 1 if LONG else 4  # every write with BACKBURNER_LONG; else every fourth, from another one on in each run

# What an interrupted call may have done to a task, as its status before and after; anything else is an error.
MAY = {
    "submit": {(None, "pending"), (None, "proposed")},
    "approve": {("proposed", "pending")},
    "refuse": {("proposed", "rejected")},
    "claim": {("pending", "running")},
    "record": set(),
    "settle": {("running", "completed"), ("running", "failed"), ("running", "cancelled")},
    "cancel": {("pending", "cancelled"), ("running", "running")},
    "acknowledge": set(),
    "clear": {(status, None) for status in (*ENDED, "rejected")},
    "fold": set(),
}
Step = tuple[str, int]


class Snapshot:
    """Everything that was confirmed so far, except the processes of runs, which may be lost."""

    def __init__(self, ledger: Ledger) -> None:
        self.tasks = {entry.task.task_id: self._plain(entry) for entry in ledger.queries.list()}
        self.events = ledger.events.events(0, 100_000)
        self.notices = ledger.notices.notices(unread=False)

    @staticmethod
    def _plain(entry: Entry) -> Entry:
        return entry._replace(run=entry.run and entry.run._replace(process=None))

    def changes(self, later: "Snapshot") -> dict[str, tuple[str | None, str | None]]:
        """The tasks that differ, with their status in both snapshots."""
        different = [key for key in {**self.tasks, **later.tasks} if self.tasks.get(key) != later.tasks.get(key)]
        return {key: (self._status(key), later._status(key)) for key in different}

    def _status(self, task_id: str) -> str | None:
        return self.tasks[task_id].status if task_id in self.tasks else None


class LedgerLifetime:
    """One ledger on one disk, through any number of power cuts."""

    def __init__(self, seed: int, keep: float, kind: type[SqliteDatabase] = SqliteDatabase) -> None:
        self.disk = PowerLossVFS(f"power-loss-test-{next(NUMBERS)}", seed, keep)
        self.kind = kind
        self.chance = random.Random(seed)
        self.now = 1_770_000_000_000
        self.ledger = self.open()
        self.confirmed = Snapshot(self.ledger)

    def open(self) -> Ledger:
        return Ledger(self.kind("/ledger.db", vfs=self.disk.name, exclusive=True), "/")

    def close(self) -> None:
        self.ledger.close()

    def live(self, steps: list[Step], cut: int) -> None:
        """Take steps until the power is cut, at the latest after the last one; then check that nothing confirmed is lost."""
        self.disk.cut_power_after(cut)
        cuts, verb, targets = self.disk.cuts, "acknowledge", 0
        for verb, number in steps:
            targets, act = self.prepare(verb, number)
            try:
                act()
                self.confirmed = Snapshot(self.ledger)
            except LedgerUnavailable:
                break
            except apsw.Error:
                assert verb == "fold"
                break
        if self.disk.cuts == cuts:
            self.disk.cut_power()
            targets = 0
        self.ledger.close()
        self.ledger = self.open()
        self.check(verb, targets)

    def prepare(self, verb: str, number: int) -> tuple[int, Callable[[], object]]:
        """The action of a step, and the number of tasks it applies to."""
        self.now += 1
        now, ledger = self.now, self.ledger
        proposed, pending = self.task_ids_with_status("proposed"), self.task_ids_with_status("pending")
        running = self.task_ids_with_status("running")
        match verb:
            case "submit":
                return 1, lambda: submit(ledger, now, approved=number % 3 > 0, size=number * 300)
            case "approve" if proposed:
                return 1, lambda: approve(ledger, proposed[0], now)
            case "refuse" if proposed:
                return 1, lambda: ledger.tasks.refuse(proposed[0], expired=False, now=now)
            case "claim":
                return min(number, len(pending)), lambda: ledger.runs.claim(ENGINE, US, number, now)
            case "record" if running:
                return 0, lambda: ledger.runs.record_process(running[0], US, ProcessId(number, "1", "boot"))
            case "settle":
                state = self.chance.choice([RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED])
                some = running[:number]
                return len(some), lambda: ledger.runs.settle([ending(run_id, state, now) for run_id in some], US)
            case "cancel" if pending or running:
                target = self.chance.choice(pending + running)
                again = target in running and self.confirmed.tasks[target].run.cancel_requested_at is not None  # type: ignore[union-attr]
                return int(not again), lambda: ledger.tasks.request_cancel(target, now)
            case "clear":
                ended = [key for key, entry in self.confirmed.tasks.items() if entry.has_ended][:number]
                return len(ended), lambda: ledger.tasks.clear(ended, now)
            case "fold":
                mode = (apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_RESTART, apsw.SQLITE_CHECKPOINT_TRUNCATE)[number % 3]
                return 0, lambda: ledger.database.connection.wal_checkpoint(mode=mode)
            case _:
                return 0, lambda: ledger.notices.acknowledge(task_ids=list(self.confirmed.tasks)[:number], now=now)

    def task_ids_with_status(self, status: str) -> list[str]:
        return [key for key, entry in reversed(self.confirmed.tasks.items()) if entry.status == status]

    def check(self, verb: str, targets: int) -> None:
        """`verb` was active when the power was cut and applied to `targets` tasks; all calls before it had returned."""
        found = Snapshot(self.ledger)
        changes = self.confirmed.changes(found)
        assert set(changes.values()) <= MAY[verb], f"{verb}: {changes}"
        assert len(changes) in (0, targets), f"{verb} was applied in part: {changes}"
        if verb != "clear":
            assert found.events[: len(self.confirmed.events)] == self.confirmed.events, "an event was lost"
        for before in self.confirmed.notices:
            kept = [one for one in found.notices if one.key == before.key]
            assert len(kept) == 1 or verb == "clear", "a notice was lost"
        ended = sorted(key for key, entry in found.tasks.items() if entry.run and entry.run.state not in LIVE)
        assert sorted(notice.task_id for notice in found.notices) == ended, "one notice per ended run"
        assert [row[0] for row in self.ledger.database.execute("PRAGMA integrity_check")] == ["ok"]
        self.confirmed = found


VERBS = ["submit"] * 3 + ["claim"] * 2 + ["settle"] * 2 + sorted(MAY)
STEPS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 5)), min_size=1, max_size=25)
LIVES = st.lists(st.tuples(STEPS, st.integers(1, 120)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=3000 if LONG else 150)
@given(lives=LIVES, seed=st.integers(0, 2**32), keep=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
def test_confirmed_data_survives_power_loss_and_nothing_is_claimed_twice(
    lives: list[tuple[list[Step], int]], seed: int, keep: float
) -> None:
    with closing(LedgerLifetime(seed, keep)) as life:
        for steps, cut in lives:
            life.live(steps, cut)


ORDINARY: list[Step] = [
    ("submit", 1),
    ("submit", 3),
    ("approve", 0),
    ("submit", 2),
    ("claim", 2),
    ("record", 9),
    ("settle", 1),
    ("cancel", 0),
    ("fold", 1),
    ("claim", 1),
    ("settle", 2),
    ("acknowledge", 1),
    ("clear", 1),
    ("fold", 2),
    ("submit", 1),
]


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_the_power_may_fail_at_every_write_of_normal_use(keep: float) -> None:
    with closing(LedgerLifetime(0, keep)) as life:
        made = life.disk.operations
        life.live(ORDINARY, 10_000)
        operations = life.disk.operations - made
    assert operations > 3 * len(ORDINARY)
    for cut in range(1 + random.randrange(STRIDE), operations + 1, STRIDE):
        with closing(LedgerLifetime(cut, keep)) as life:
            life.live(ORDINARY, cut)


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_the_power_may_fail_at_every_write_while_a_ledger_is_created(keep: float) -> None:
    cut, made = random.randrange(STRIDE) - STRIDE + 1, False
    while not made:
        cut += STRIDE
        disk = PowerLossVFS(f"power-loss-test-{next(NUMBERS)}", cut, keep)
        disk.cut_power_after(cut)
        try:
            open_ledger("/ledger.db", vfs=disk.name, exclusive=True).close()
            made = True
            disk.cut_power()
        except LedgerUnavailable:
            pass
        ledger = open_ledger("/ledger.db", vfs=disk.name, exclusive=True)
        assert submit(ledger, 1, approved=True).status == "pending"
        assert ledger.check() == []
        ledger.close()
    assert cut > 5


def with_synchronous(level: str) -> type[SqliteDatabase]:
    """A database class that syncs less than it should."""

    class Careless(SqliteDatabase):
        def begin(self, durable: bool) -> None:
            self.connection.execute(f"PRAGMA synchronous = {level}")
            self._durable = durable
            super().begin(durable)

    return Careless


@pytest.mark.parametrize("level", ["OFF", "NORMAL"])
@pytest.mark.parametrize("steps", [ORDINARY[:1], ORDINARY[:3], ORDINARY[:5], ORDINARY[:7]], ids=["submit", "approve", "claim", "settle"])
def test_confirmed_data_would_be_lost_with_less_syncing(level: str, steps: list[Step]) -> None:
    with closing(LedgerLifetime(1, 0.0, with_synchronous("FULL"))) as life:
        life.live(steps, 10_000)
    with closing(LedgerLifetime(1, 0.0, with_synchronous(level))) as life, pytest.raises(AssertionError):
        life.live(steps, 10_000)


def test_only_the_process_of_a_run_may_be_lost() -> None:
    with closing(LedgerLifetime(1, 0.0)) as life:
        life.live(ORDINARY[:6], 10_000)
        assert [run.process for run in life.ledger.live_work.live_runs()] == [None, None, None]
