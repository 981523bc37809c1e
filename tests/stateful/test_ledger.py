"""A dictionary against the real ledger: whatever is done in whatever order, both say the same, also after a crash.

The crash of a process is what it leaves on disk: the files are copied in the middle of a transaction and the copy is
opened. The loss of power is a disk that forgets what was not synced.
"""

import contextlib
import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass, field

import apsw
import pytest
from conftest import LONG
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from ledgers import EMBEDDER, OWNERS, approve, ending, submit

from backburner.errors import IllegalTransition, StaleRun, TaskNotFound
from backburner.lifecycle import RunState
from backburner.models import ENGINE, ProcessId, Run
from backburner.stores.sqlite import SQLiteStore
from backburner.testing import PowerLossVFS

NUMBERS = itertools.count()
TASK_OF = {"completed": "done", "failed": "failed", "cancelled": "cancelled"}


@dataclass
class Model:
    """What the ledger should hold of one task. `place` is its place in the queue."""

    state: str
    run: str | None = None
    runner: str = ENGINE
    owner: ProcessId | None = None
    place: int = 0
    cancel: bool = False
    notices: list[bool] = field(default_factory=list)  # one per notice: told or not


class LedgerMachine(RuleBasedStateMachine):
    tasks = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, Model] = {}
        self.events: list[tuple[str, str]] = []
        self.event_ids: list[int] = []
        self.highest = 0
        self.now = 1_770_000_000_000
        self.stores: list[SQLiteStore] = []
        self.start()

    # -- the two doors to the ledger

    def start(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="backburner-")
        self.open()

    def open(self) -> None:
        self.stores = [SQLiteStore(os.path.join(self.folder, "ledger.db")) for _ in OWNERS]

    def crash(self) -> None:
        """Both processes die in the middle of what they do; a new one finds their files."""
        victim = self.stores[0]._db
        victim.execute("BEGIN IMMEDIATE")
        victim.execute("UPDATE runs SET folder = 'half-written'")
        victim.execute("INSERT INTO events (at, kind, data) VALUES (0, 'half-written', '{}')")
        victim.cache_flush()
        survived = tempfile.mkdtemp(prefix="backburner-")
        for name in ("ledger.db", "ledger.db-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(os.path.join(self.folder, name), survived)
        self.close()
        self.folder = survived
        self.open()

    def close(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.folder)

    def teardown(self) -> None:
        self.close()

    @property
    def store(self) -> SQLiteStore:
        return self.stores[0]

    def tick(self) -> int:
        self.now += 1
        return self.now

    def happened(self, *events: tuple[str, str]) -> None:
        self.events += events

    # -- rules

    @rule(target=tasks, approved=st.booleans(), runner=st.sampled_from([ENGINE, EMBEDDER]), door=st.integers(0, 1))
    def submit(self, approved: bool, runner: str, door: int) -> str:
        entry = submit(self.stores[door], self.tick(), approved=approved, runner=runner)
        task_id = entry.task.task_id
        assert task_id not in self.model
        if approved:
            self.model[task_id] = Model("active", "pending", runner, place=self.now)
        else:
            self.model[task_id] = Model("proposed")
        self.happened(("task_submitted" if approved else "task_proposed", task_id))
        return task_id

    @rule(task_id=tasks)
    def approve(self, task_id: str) -> None:
        with self.expected(task_id, "proposed") as one:
            approve(self.store, task_id, self.tick())
        if one:
            self.model[task_id] = Model("active", "pending", place=self.now)
            self.happened(("task_approved", task_id))

    @rule(task_id=tasks, expired=st.booleans())
    def refuse(self, task_id: str, expired: bool) -> None:
        with self.expected(task_id, "proposed") as one:
            self.store.refuse(task_id, expired=expired, now=self.tick())
        if one:
            one.state = "expired" if expired else "rejected"
            self.happened((f"task_{one.state}", task_id))

    @contextlib.contextmanager
    def expected(self, task_id: str, state: str):  # type: ignore[no-untyped-def]
        """The model of a task in this state; else None, and the verb must refuse."""
        one = self.model.get(task_id)
        if one and one.state == state:
            yield one
        else:
            with pytest.raises(TaskNotFound if one is None else IllegalTransition):
                yield None

    @rule(who=st.integers(0, 1), limit=st.integers(0, 3), runner=st.sampled_from([ENGINE, EMBEDDER]))
    def claim(self, who: int, limit: int, runner: str) -> None:
        waiting = [task_id for task_id, one in self.model.items() if one.run == "pending" and one.runner == runner]
        wanted = sorted(waiting, key=lambda task_id: self.model[task_id].place)[:limit]
        claimed = self.stores[who].claim(runner, OWNERS[who], limit, self.tick())
        assert [work.task.task_id for work in claimed] == wanted, "oldest first, and no more than asked for"
        for task_id in wanted:
            self.model[task_id].run, self.model[task_id].owner = "running", OWNERS[who]
            self.happened(("run_started", task_id))

    @rule(task_id=tasks, who=st.integers(0, 1))
    def record_process(self, task_id: str, who: int) -> None:
        one = self.model.get(task_id)
        ours = one is not None and one.owner == OWNERS[who]
        with contextlib.nullcontext() if ours else pytest.raises(StaleRun):
            self.stores[who].record_process(task_id, OWNERS[who], ProcessId(77, "7", "boot"))

    @rule(
        some=st.lists(tasks, max_size=3),
        who=st.integers(0, 1),
        state=st.sampled_from([RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED]),
    )
    def settle(self, some: list[str], who: int, state: RunState) -> None:
        endings = [ending(task_id, state, self.tick()) for task_id in some]
        settled = self.stores[who].settle(endings, OWNERS[who]).run_ids
        mine = []
        for task_id in dict.fromkeys(some):
            one = self.model.get(task_id)
            if one and one.run == "running" and one.owner == OWNERS[who]:
                mine.append(task_id)
                self.end(task_id, state)
        assert settled == mine

    def end(self, task_id: str, state: str) -> None:
        one = self.model[task_id]
        one.run, one.state = state, TASK_OF[state]
        one.notices.append(False)
        self.happened((f"task_{one.state}", task_id), (f"run_{state}", task_id))

    @rule(task_id=tasks, door=st.integers(0, 1))
    def request_cancel(self, task_id: str, door: int) -> None:
        one = self.model.get(task_id)
        if one is None:
            with pytest.raises(TaskNotFound):
                self.stores[door].request_cancel(task_id, self.tick())
            return
        self.stores[door].request_cancel(task_id, self.tick())
        if one.state == "proposed":
            one.state = "rejected"
            self.happened(("task_rejected", task_id))
        elif one.run == "pending":
            self.end(task_id, "cancelled")
        elif one.run == "running" and not one.cancel:
            one.cancel = True
            self.happened(("cancel_requested", task_id))

    @rule(task_id=tasks, who=st.integers(0, 1), fresh=st.booleans())
    def adopt(self, task_id: str, who: int, fresh: bool) -> None:
        """Take a run over: as it is now, or as it was before somebody else changed it."""
        one, entry = self.model.get(task_id), self.store.show(task_id)
        if entry is None or entry.run is None:
            return
        run: Run = entry.run if fresh else entry.run._replace(owner=ProcessId(33, "333", "boot"))
        if fresh and one and one.run == "running":
            self.stores[who].adopt(run, OWNERS[who])
            one.owner, one.runner = OWNERS[who], ENGINE
        elif not fresh or run.owner is None:
            with pytest.raises(StaleRun):
                self.stores[who].adopt(run, OWNERS[who])

    @rule()
    def release(self) -> None:
        left = [one for one in self.model.values() if one.run == "pending" and one.runner == EMBEDDER]
        assert self.store.release(EMBEDDER) == len(left)
        for one in left:
            one.runner = ENGINE

    @rule(task_id=tasks)
    def tell(self, task_id: str) -> None:
        self.store.tell(task_ids=[task_id], now=self.tick())
        if one := self.model.get(task_id):
            one.notices = [True for _ in one.notices]

    @rule(target=tasks, some=st.lists(consumes(tasks), max_size=3))
    def clear(self, some: list[str]):  # type: ignore[no-untyped-def]
        folders = self.store.clear(some, self.tick())
        gone = [task_id for task_id in some if (one := self.model.get(task_id)) and one.run not in ("pending", "running")]
        assert sorted(folders) == sorted(f"tasks/{task_id}" for task_id in gone if self.model[task_id].run)
        kept = [n for n, (_, of) in enumerate(self.events) if of not in gone]
        self.events = [self.events[n] for n in kept]
        self.event_ids = [self.event_ids[n] for n in kept]
        for task_id in gone:
            del self.model[task_id]
            self.happened(("task_cleared", task_id))
        return multiple(*(task_id for task_id in some if task_id in self.model))

    @rule()
    def crash_and_reopen(self) -> None:
        self.crash()

    # -- what is always true

    @invariant()
    def tasks_and_runs_are_as_the_model_says(self) -> None:
        entries = {entry.task.task_id: entry for entry in self.store.list()}
        assert entries.keys() == self.model.keys()
        for task_id, one in self.model.items():
            task, run = entries[task_id]
            assert task.state == one.state
            assert (run.state if run else None) == one.run
            if run:
                assert (run.owner, run.runner, run.cancel_requested_at is not None) == (one.owner, one.runner, one.cancel)
                assert run.folder == f"tasks/{task_id}"
                assert (run.ended_at is not None) == (run.result is not None) == (one.run not in ("pending", "running"))

    @invariant()
    def the_queue_is_in_order(self) -> None:
        live = [one for one in self.model.values() if one.run in ("pending", "running")]
        runs = self.store.live_runs()
        assert len(runs) == len(live)
        assert [self.model[run.task_id].place for run in runs] == sorted(one.place for one in live)

    @invariant()
    def every_ended_run_has_just_one_notice(self) -> None:
        told: dict[str, list[bool]] = {}
        for notice in self.store.notices(unread=False):
            told.setdefault(notice.task_id, []).append(notice.told_at is not None)
        assert told == {task_id: one.notices for task_id, one in self.model.items() if one.notices}
        assert all(len(one.notices) == (one.run in TASK_OF) for one in self.model.values())

    @invariant()
    def events_are_in_order_and_none_is_lost(self) -> None:
        events = self.store.events(0, 100_000)
        ids = [event.event_id for event in events]
        known = len(self.event_ids)
        assert ids == sorted(set(ids))
        assert ids[:known] == self.event_ids, "what was read once stays"
        assert all(number > self.highest for number in ids[known:]), "what is new comes after all that ever was"
        told = [(event.kind, event.task_id) for event in events]
        assert told[:known] == self.events[:known]
        assert sorted(told[known:]) == sorted(self.events[known:])  # type: ignore[type-var]
        self.events = told  # type: ignore[assignment]
        self.event_ids, self.highest = ids, max(ids, default=self.highest)

    @invariant()
    def the_file_is_sound(self) -> None:
        assert self.store.check() == []


class PowerLossMachine(LedgerMachine):
    """The same on a disk that loses its power: both owners share the one connection that such a disk can have."""

    def start(self) -> None:
        self.disk = PowerLossVFS(f"power-loss-{next(NUMBERS)}", seed=1, keep=0.5)
        self.open()

    def open(self) -> None:
        self.stores = [SQLiteStore("/ledger.db", vfs=self.disk.name, exclusive=True)] * 2

    def crash(self) -> None:
        victim = self.store._db
        victim.execute("BEGIN IMMEDIATE")
        victim.execute("UPDATE runs SET folder = 'half-written'")
        victim.cache_flush()
        self.disk.cut_power()
        self.close()
        self.open()

    @rule()
    def fold(self) -> None:
        """The log is folded back into the file, as happens by itself when it has grown."""
        self.store._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)

    def close(self) -> None:
        self.store.close()


LedgerMachine.TestCase.settings = settings(deadline=None, max_examples=2000 if LONG else 100, stateful_step_count=40)
PowerLossMachine.TestCase.settings = settings(deadline=None, max_examples=2000 if LONG else 100, stateful_step_count=40)

TestLedger = LedgerMachine.TestCase
TestLedgerOnADiskThatLosesPower = PowerLossMachine.TestCase
