"""Compares the real ledger with a model in memory: after any sequence of calls both agree, also after a crash.

A crash of a process is simulated by its files: they are copied in the middle of a transaction, and the copy is opened.
A power loss is simulated by a disk that loses what was not synced.
"""

import contextlib
import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from typing import Any

import apsw
import pytest
from conftest import LONG
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule
from ledgers import EMBEDDER, OWNERS, approve, ending, submit

from backburner.core.errors import IllegalTransition, StaleRun, TaskNotFound
from backburner.core.models import ENGINE, ProcessId, Run
from backburner.core.states import Result, RunState
from backburner.store.ledger import Ledger, open_ledger
from backburner.testing import PowerLossVFS

NUMBERS = itertools.count()
NOW = 1_770_000_000_000
TASK_OF = {"completed": "done", "failed": "failed", "cancelled": "cancelled"}
STEADY = 60_000  # milliseconds: after a run of this length failures are counted from one again
DELAYS = [1000, 2000, 4000]  # milliseconds before the next restart, by number of failures in a row


@dataclass
class Model:
    """The expected state of one task and its latest run. `position` is its position in the queue."""

    state: str
    runner: str = ENGINE
    project: str = "/p"
    key: str | None = None
    priority: int = 0
    after: tuple[str, ...] = ()
    due: int | None = None
    restarts: int = 0
    run: str | None = None
    n: int = 0
    result: str | None = None
    owner: ProcessId | None = None
    position: int = 0
    started: int = 0
    cancel: bool = False
    waits: set[str] = field(default_factory=set)  # open dependencies
    lasted: list[int] = field(default_factory=list)  # durations in milliseconds of the runs that failed on their own
    notices: list[bool] = field(default_factory=list)  # one per notice: acknowledged or not


# Options of submissions, most of them rare. `soon` is the start time, in milliseconds from now.
MORE = st.fixed_dictionaries(
    {
        "project": st.sampled_from(["/p", "/p", "/q"]),
        "key": st.sampled_from([None, None, None, None, "a", "b"]),
        "priority": st.integers(-1, 1),
        "soon": st.sampled_from([None, None, None, None, -5, 3, 1500]),
        "restarts": st.sampled_from([0, 1, 2]),
        "at_once": st.sampled_from([False, False, True]),
    }
)
AIM = st.integers(0, 5)
APPROVED = st.sampled_from([True, True, True, False])
RUNNER = st.sampled_from([ENGINE, ENGINE, ENGINE, EMBEDDER])
ENDS = st.sampled_from([("completed", "exit"), ("failed", "exit"), ("failed", "exit"), ("failed", "lost"), ("cancelled", "signal")])


class LedgerMachine(RuleBasedStateMachine):
    tasks = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, Model] = {}
        self.events: list[tuple[str, str]] = []
        self.event_ids: list[int] = []
        self.highest = 0
        self.positions = itertools.count()
        self.failed_dependents: list[tuple[str, str]] = []
        self.now = NOW
        self.ledgers: list[Ledger] = []
        self.start()

    # -- two connections to the ledger

    def start(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="backburner-")
        self.open()

    def open(self) -> None:
        self.ledgers = [open_ledger(os.path.join(self.folder, "ledger.db")) for _ in OWNERS]

    def crash(self) -> None:
        """Both processes are killed in the middle of a transaction; a new one finds their files."""
        victim = self.ledgers[0].database.connection
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
        for ledger in self.ledgers:
            ledger.close()
        shutil.rmtree(self.folder)

    def teardown(self) -> None:
        self.close()

    @property
    def ledger(self) -> Ledger:
        return self.ledgers[0]

    def tick(self) -> int:
        self.now += 1
        return self.now

    def record_events(self, *events: tuple[str, str]) -> None:
        self.events += events

    # -- the expected behaviour

    def begin(self, task_id: str, runner: str) -> None:
        """The first run of an approved task."""
        one = self.model[task_id]
        one.state, one.runner, one.run, one.n, one.position = "active", runner, "pending", 1, next(self.positions)
        self.record_dependencies(one)
        if any(other not in self.model or self.model[other].state not in ("proposed", "active") for other in one.waits):
            self.end(task_id, "failed", self.now, "dependency")

    def record_dependencies(self, one: Model) -> None:
        """Record the open dependencies of a task; they stay recorded when a dependency is cleared."""
        one.waits |= {other for other in one.after if other in self.model and self.model[other].state != "done"}

    def end(self, task_id: str, state: str, at: int, result: str) -> None:
        """The end of a run: it is restarted, or its task ends and its dependents are processed."""
        one = self.model[task_id]
        if state == "failed" and result == "exit" and one.restarts and not one.cancel:
            one.lasted.append(at - one.started)
            row = next((back for back, lasted in enumerate(reversed(one.lasted), 1) if lasted >= STEADY), len(one.lasted))
            if row <= one.restarts:
                one.run, one.n, one.owner, one.due, one.position = "pending", one.n + 1, None, at + DELAYS[row - 1], next(self.positions)
                self.record_events(("run_failed", task_id))
                return
        one.run, one.state, one.result = state, TASK_OF[state], result
        one.notices.append(False)
        self.record_events((f"task_{one.state}", task_id), (f"run_{state}", task_id))
        self.follow_up(task_id, at)

    def follow_up(self, task_id: str, at: int) -> None:
        """The dependents of an ended task may start, or fail."""
        for other_id, other in self.model.items():
            if task_id not in other.waits:
                continue
            if self.model[task_id].state == "done":
                other.waits.discard(task_id)
            elif other.run == "pending":
                self.end(other_id, "failed", at, "dependency")
                self.failed_dependents.append((task_id, other_id))

    def queue(self, runner: str, now: int) -> list[str]:
        """The tasks that may be claimed: by priority, then oldest first."""
        free = [task_id for task_id, one in self.model.items() if one.run == "pending" and one.runner == runner and not one.waits]
        due = [task_id for task_id in free if (self.model[task_id].due or 0) <= now]
        return sorted(due, key=lambda task_id: (-self.model[task_id].priority, self.model[task_id].position))

    def take(self, task_ids: list[str], owner: ProcessId, runner: str = "") -> None:
        """Claim tasks; if they come from the queue of a runner, all that are due have joined it and have no start time any more."""
        for task_id in self.queue(runner, self.now) if task_ids else ():
            self.model[task_id].due = None
        for task_id in task_ids:
            one = self.model[task_id]
            one.run, one.owner, one.started = "running", owner, self.now
            self.record_events(("run_started", task_id))

    def run_id(self, task_id: str) -> str:
        one = self.model.get(task_id)
        return f"{task_id}.{one.n}" if one and one.n > 1 else task_id

    # -- rules

    @initialize(target=tasks, graph=st.lists(st.tuples(APPROVED, MORE, st.lists(st.integers(1, 3), max_size=2)), min_size=3, max_size=8))
    def submit_many(self, graph: list[tuple[bool, dict[str, Any], list[int]]]):  # type: ignore[no-untyped-def]
        """A first set of tasks; dependencies are given as the number of tasks between."""
        made: list[str] = []
        for approved, more, back in graph:
            after = tuple(made[-number] for number in back if number <= len(made))
            made.append(self._submit(approved, ENGINE, 0, {**more, "after": after}))
        return multiple(*dict.fromkeys(made))

    @rule(target=tasks, approved=APPROVED, runner=RUNNER, connection=st.integers(0, 1), more=MORE)
    def submit(self, approved: bool, runner: str, connection: int, more: dict[str, Any]) -> str:
        return self._submit(approved, runner, connection, more)

    @rule(
        target=tasks,
        approved=APPROVED,
        runner=RUNNER,
        connection=st.integers(0, 1),
        more=MORE,
        after=st.lists(tasks, min_size=1, max_size=3),
    )
    def submit_after(self, approved: bool, runner: str, connection: int, more: dict[str, Any], after: list[str]) -> str:
        return self._submit(approved, runner, connection, {**more, "after": tuple(after)})

    def _submit(self, approved: bool, runner: str, connection: int, more: dict[str, Any]) -> str:
        now = self.tick()
        start_at = None if (soon := more["soon"]) is None else now + soon
        asked = {name: value for name, value in more.items() if name not in ("soon", "at_once")} | {"start_at": start_at}
        known = [task_id for task_id, one in self.model.items() if (one.project, one.key) == (more["project"], more["key"]) and one.key]
        missing = not known and any(other not in self.model for other in asked.get("after", ()))
        with pytest.raises(TaskNotFound) if missing else contextlib.nullcontext():
            owner = OWNERS[connection] if more["at_once"] else None
            task_id = submit(self.ledgers[connection], now, approved=approved, runner=runner, owner=owner, **asked).task.task_id
        if missing:
            return asked["after"][0]
        if known:
            assert [task_id] == known, "a key means one task"
            return task_id
        assert task_id not in self.model
        self.model[task_id] = Model(
            "proposed",
            project=asked["project"],
            key=asked["key"],
            priority=asked["priority"],
            after=tuple(asked.get("after", ())),
            due=start_at,
            restarts=asked["restarts"],
        )
        self.record_events(("task_submitted" if approved else "task_proposed", task_id))
        self.record_dependencies(self.model[task_id])
        if approved:
            self.begin(task_id, runner)
            if owner and self.queue(runner, now)[:1] == [task_id]:
                self.take([task_id], owner)
        return task_id

    @rule(milliseconds=st.sampled_from([1000, 2000, STEADY]))
    def wait(self, milliseconds: int) -> None:
        self.now += milliseconds

    def pick_task(self, task_id: str, aim: int, *states: str) -> str:
        """A task in one of these states, if there is one and `aim` is not 0; otherwise the given task."""
        fit = [other for other, one in self.model.items() if (one.run or one.state) in states]
        return fit[aim % len(fit)] if fit and aim else task_id

    @rule(task_id=tasks, aim=AIM)
    def approve(self, task_id: str, aim: int) -> None:
        task_id = self.pick_task(task_id, aim, "proposed")
        with self.expected(task_id, "proposed") as one:
            approve(self.ledger, task_id, self.tick())
        if one:
            self.record_events(("task_approved", task_id))
            self.begin(task_id, ENGINE)

    @rule(task_id=tasks, aim=AIM, expired=st.booleans())
    def refuse(self, task_id: str, aim: int, expired: bool) -> None:
        task_id = self.pick_task(task_id, aim, "proposed")
        with self.expected(task_id, "proposed") as one:
            self.ledger.tasks.refuse(task_id, expired=expired, now=self.tick())
        if one:
            one.state = "expired" if expired else "rejected"
            self.record_events((f"task_{one.state}", task_id))
            self.follow_up(task_id, self.now)

    @contextlib.contextmanager
    def expected(self, task_id: str, state: str):  # type: ignore[no-untyped-def]
        """The model of a task in this state; otherwise None, and the call must be refused."""
        one = self.model.get(task_id)
        if one and one.state == state:
            yield one
        else:
            with pytest.raises(TaskNotFound if one is None else IllegalTransition):
                yield None

    @rule(who=st.integers(0, 1), limit=st.integers(0, 3), runner=RUNNER)
    def claim(self, who: int, limit: int, runner: str) -> None:
        now = self.tick()
        wanted = self.queue(runner, now)[:limit]
        claimed = self.ledgers[who].runs.claim(runner, OWNERS[who], limit, now)
        assert [work.task.task_id for work in claimed] == wanted, "in order, and not more than the limit"
        self.take(wanted, OWNERS[who], runner)

    @rule(task_id=tasks, who=st.integers(0, 1))
    def record_process(self, task_id: str, who: int) -> None:
        one = self.model.get(task_id)
        is_running_here = one is not None and one.run == "running" and one.owner == OWNERS[who]
        with contextlib.nullcontext() if is_running_here else pytest.raises(StaleRun):
            self.ledgers[who].runs.record_process(self.run_id(task_id), OWNERS[who], ProcessId(77, "7", "boot"))

    @rule(some=st.lists(tasks, max_size=3), aim=AIM, who=st.integers(0, 1), how=ENDS, limit=st.integers(0, 2))
    def settle(self, some: list[str], aim: int, who: int, how: tuple[str, str], limit: int) -> None:
        """Ends are written and free runs are claimed, as if one was done after the other."""
        state, result = how
        some = [self.pick_task(task_id, aim + n if aim else 0, "running") for n, task_id in enumerate(some)]
        endings = [ending(self.run_id(task_id), RunState(state), self.tick(), Result(result)) for task_id in some]
        now = self.tick()
        settled, claimed = self.ledgers[who].runs.settle(endings, OWNERS[who], runner=ENGINE, limit=limit, now=now)
        mine = []
        for task_id, one_end in zip(some, endings, strict=True):
            one = self.model.get(task_id)
            if one and one.run == "running" and one.owner == OWNERS[who] and self.run_id(task_id) == one_end.run_id:
                mine.append(one_end.run_id)
                self.end(task_id, state, one_end.ended_at, result)
        assert settled == mine
        wanted = self.queue(ENGINE, now)[:limit]
        assert [work.task.task_id for work in claimed] == wanted
        self.take(wanted, OWNERS[who], ENGINE)

    @rule(task_id=tasks, aim=AIM, connection=st.integers(0, 1))
    def request_cancel(self, task_id: str, aim: int, connection: int) -> None:
        task_id = self.pick_task(task_id, aim, "running", "pending")
        one, now = self.model.get(task_id), self.tick()
        with contextlib.nullcontext() if one else pytest.raises(TaskNotFound):
            self.ledgers[connection].tasks.request_cancel(task_id, now)
        if one is None:
            return
        if one.state == "proposed":
            one.state = "rejected"
            self.record_events(("task_rejected", task_id))
            self.follow_up(task_id, now)
        elif one.run == "pending":
            self.end(task_id, "cancelled", now, "unstarted")
        elif one.run == "running" and not one.cancel:
            one.cancel = True
            self.record_events(("cancel_requested", task_id))

    @rule(task_id=tasks, who=st.integers(0, 1), fresh=st.booleans())
    def adopt(self, task_id: str, who: int, fresh: bool) -> None:
        """Take over a run: in its current state, or with an outdated owner."""
        one, entry = self.model.get(task_id), self.ledger.queries.get(task_id)
        if entry is None or entry.run is None:
            return
        run: Run = entry.run if fresh else entry.run._replace(owner=ProcessId(33, "333", "boot"))
        if fresh and one and one.run == "running":
            self.ledgers[who].runs.adopt(run, OWNERS[who])
            one.owner, one.runner = OWNERS[who], ENGINE
        elif not fresh or run.owner is None:
            with pytest.raises(StaleRun):
                self.ledgers[who].runs.adopt(run, OWNERS[who])

    @rule()
    def release(self) -> None:
        left = [one for one in self.model.values() if one.run == "pending" and one.runner == EMBEDDER]
        assert self.ledger.runs.release(EMBEDDER) == len(left)
        for one in left:
            one.runner = ENGINE

    @rule(task_id=tasks)
    def acknowledge_notices(self, task_id: str) -> None:
        self.ledger.notices.acknowledge(task_ids=[task_id], now=self.tick())
        if one := self.model.get(task_id):
            one.notices = [True for _ in one.notices]

    @rule(target=tasks, some=st.lists(consumes(tasks), max_size=3))
    def clear(self, some: list[str]):  # type: ignore[no-untyped-def]
        folders = self.ledger.tasks.clear(some, self.tick())
        known = [task_id for task_id in dict.fromkeys(some) if task_id in self.model]
        gone = [task_id for task_id in known if self.model[task_id].state not in ("proposed", "active")]
        runs = [f"{task_id}.{n}" if n > 1 else task_id for task_id in gone for n in range(1, self.model[task_id].n + 1)]
        assert sorted(folders) == sorted(f"tasks/{run_id}" for run_id in runs)
        kept = [n for n, (_, of) in enumerate(self.events) if of not in gone]
        self.events = [self.events[n] for n in kept]
        self.event_ids = [self.event_ids[n] for n in kept]
        for task_id in gone:
            del self.model[task_id]
            self.record_events(("task_cleared", task_id))
        return multiple(*(task_id for task_id in some if task_id in self.model))

    @rule()
    def crash_and_reopen(self) -> None:
        self.crash()

    # -- invariants

    @invariant()
    def tasks_and_runs_are_as_the_model_says(self) -> None:
        entries = {entry.task.task_id: entry for entry in self.ledger.queries.list()}
        assert entries.keys() == self.model.keys()
        for task_id, one in self.model.items():
            task, run = entries[task_id]
            assert (task.state, task.run_count, task.spec.order.key, task.spec.order.after) == (one.state, one.n, one.key, one.after)
            assert (run.state if run else None) == one.run
            if run:
                assert (run.owner, run.runner, run.cancel_requested_at is not None) == (one.owner, one.runner, one.cancel)
                assert (run.run_id, run.folder) == (self.run_id(task_id), f"tasks/{self.run_id(task_id)}")
                assert (run.due_at, run.priority, run.blocked) == (one.due, one.priority, one.run == "pending" and bool(one.waits))
                assert (run.ended_at is not None) == (run.end.result is not None) == (one.run not in ("pending", "running"))
                assert run.end.result == one.result

    @invariant()
    def blocked_runs_have_open_dependencies(self) -> None:
        for entry in self.ledger.queries.list(status="pending"):
            undecided = [other for other in map(self.ledger.queries.get, entry.task.spec.order.after) if other and not other.has_ended]
            assert entry.run is not None and entry.run.blocked == bool(undecided)

    @invariant()
    def failed_dependents_are_found(self) -> None:
        for task_id, dependent in self.failed_dependents:
            found = self.ledger.queries.failed_dependents(task_id)
            assert dependent in {entry.task.task_id for entry in found}
            assert {entry.run.end.result for entry in found if entry.run} == {"dependency"}
        self.failed_dependents = []

    @invariant()
    def next_due_is_the_next_start_time(self) -> None:
        later = [one.due for one in self.model.values() if one.run == "pending" and one.runner == ENGINE and not one.waits and one.due]
        assert self.ledger.runs.next_due(ENGINE, self.now) == min((due for due in later if due > self.now), default=None)

    @invariant()
    def the_queue_is_in_order(self) -> None:
        live = [one for one in self.model.values() if one.run in ("pending", "running")]
        runs = self.ledger.live_work.live_runs()
        assert len(runs) == len(live)
        assert [self.model[run.task_id].position for run in runs] == sorted(one.position for one in live)

    @invariant()
    def every_ended_run_has_exactly_one_notice(self) -> None:
        found_notices: dict[str, list[bool]] = {}
        for notice in self.ledger.notices.notices(unread=False):
            found_notices.setdefault(notice.task_id, []).append(notice.acknowledged_at is not None)
        assert found_notices == {task_id: one.notices for task_id, one in self.model.items() if one.notices}
        assert all(len(one.notices) == (one.run in TASK_OF) for one in self.model.values())

    @invariant()
    def events_are_in_order_and_none_is_lost(self) -> None:
        events = self.ledger.events.events(0, 100_000)
        ids = [event.event_id for event in events]
        known = len(self.event_ids)
        assert ids == sorted(set(ids))
        assert ids[:known] == self.event_ids, "events that were read do not change"
        assert all(number > self.highest for number in ids[known:]), "new events have higher ids than all earlier ones"
        found_notices = [(event.kind, event.task_id) for event in events]
        assert found_notices[:known] == self.events[:known]
        assert sorted(found_notices[known:]) == sorted(self.events[known:])  # type: ignore[type-var]
        self.events = found_notices  # type: ignore[assignment]
        self.event_ids, self.highest = ids, max(ids, default=self.highest)

    @invariant()
    def the_file_passes_its_check(self) -> None:
        assert self.ledger.check() == []


class PowerLossMachine(LedgerMachine):
    """The same on a disk that loses power; both owners share the only connection that such a disk allows."""

    def start(self) -> None:
        self.disk = PowerLossVFS(f"power-loss-{next(NUMBERS)}", seed=1, keep=0.5)
        self.open()

    def open(self) -> None:
        self.ledgers = [open_ledger("/ledger.db", vfs=self.disk.name, exclusive=True)] * 2

    def crash(self) -> None:
        victim = self.ledger.database.connection
        victim.execute("BEGIN IMMEDIATE")
        victim.execute("UPDATE runs SET folder = 'half-written'")
        victim.cache_flush()
        self.disk.cut_power()
        self.close()
        self.open()

    @rule()
    def checkpoint(self) -> None:
        """Checkpoint the write-ahead log, as happens automatically when it has grown."""
        self.ledger.database.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)

    def close(self) -> None:
        self.ledger.close()


LedgerMachine.TestCase.settings = settings(deadline=None, max_examples=2000 if LONG else 60, stateful_step_count=50)
PowerLossMachine.TestCase.settings = settings(deadline=None, max_examples=2000 if LONG else 60, stateful_step_count=50)

TestLedger = LedgerMachine.TestCase
TestLedgerWithPowerLoss = PowerLossMachine.TestCase


def chain(length: int) -> Ledger:
    """Tasks that each depend on the previous one; the first is running. In memory, because the disk does not matter here."""
    ledger = open_ledger(f"/chain-{next(NUMBERS)}.db", vfs="memdb", exclusive=True)
    for number in range(length):
        submit(ledger, NOW, approved=True, wanted=f"task_{number}", after=(f"task_{number - 1}",) if number else (), size=1)
    assert [work.task.task_id for work in ledger.runs.claim(ENGINE, OWNERS[0], length, NOW)] == ["task_0"]
    return ledger


def test_a_long_dependency_chain_fails_with_its_first_task() -> None:
    with contextlib.closing(chain(5000)) as ledger:
        ledger.runs.settle([ending("task_0", RunState.FAILED, NOW)], OWNERS[0])
        fell = [entry for entry in ledger.queries.list(status="failed") if entry.run and entry.run.end.result == "dependency"]
        assert len(fell) == 4999 and ledger.live_work.live_runs() == []
        assert len({notice.task_id for notice in ledger.notices.notices(unread=False)}) == len(ledger.notices.notices(unread=False)) == 5000


@pytest.mark.parametrize("verb", ["settle", "cancel", "failed_dependents"])
def test_failing_a_dependency_chain_takes_linear_time(verb: str) -> None:
    """Measured in steps of SQLite's virtual machine."""
    steps = {}
    for length in (200, 400):
        with contextlib.closing(chain(length)) as ledger:
            if verb == "failed_dependents":
                ledger.runs.settle([ending("task_0", RunState.FAILED, NOW)], OWNERS[0])
            counted: list[bool] = []
            ledger.database.connection.set_progress_handler(lambda seen=counted: bool(seen.append(False)), 1)
            match verb:
                case "settle":
                    ledger.runs.settle([ending("task_0", RunState.FAILED, NOW)], OWNERS[0])
                case "cancel":
                    ledger.tasks.request_cancel("task_1", NOW)
                case _:
                    assert len(ledger.queries.failed_dependents("task_0")) == length - 1
            ledger.database.connection.set_progress_handler(None)
            assert len(ledger.queries.list(status="pending")) == 0
            steps[length] = len(counted)
    assert steps[400] < 3 * steps[200]
