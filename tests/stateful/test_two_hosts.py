"""Two hosts on one ledger, in any order of beats, claims, ends, silence and returns.

A host is silent while it is stopped: its commands go on, unless they may run twice, which the lease enforcer has ended by then.
"""

import contextlib
import itertools
import os
import tempfile
from dataclasses import dataclass, field

from conftest import LONG
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledgers import ending, submit

from backburner.core.hosts import Host, HostWatch
from backburner.core.models import ProcessId
from backburner.core.states import LIVE, Result, RunState
from backburner.store.ledger import Ledger
from backburner.store.sqlite import SqliteDatabase

NOW = 1_770_000_000_000
LEASE, LOST = 8.0, 30.0
HOSTS = "ab"
LANE = "engine/gpu"


@dataclass
class Engine:
    """One host: its ledger, its epoch, the runs whose commands are alive, and what it has seen of the other."""

    host_id: str
    ledger: Ledger
    epoch: int = 0
    stopped: bool = False
    commands: set[str] = field(default_factory=set)
    boots: int = 0
    watch: HostWatch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = HostWatch(self.host_id, LEASE)

    @property
    def owner(self) -> ProcessId:
        return ProcessId(10 + self.boots, self.host_id, "boot")


class TwoHosts(RuleBasedStateMachine):
    @initialize()
    def join(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.clock, self.names = 0.0, itertools.count()
        self.may_run_twice: dict[str, bool] = {}
        self.started: dict[str, int] = {}  # how many commands were started, by task
        self.recorded: dict[str, str] = {}  # how runs ended according to the ledger
        self.engines: dict[str, Engine] = {}
        for host_id in HOSTS:
            database = SqliteDatabase(f"{self.folder.name}/ledger.db")
            database.host_id = host_id
            ledger = Ledger(database, self.folder.name)
            with database.transaction():
                joined = "INSERT INTO hosts (host_id, name, state, changed_at, seen_at) VALUES (?, ?, 'left', 0, 0)"
                database.write(joined, (host_id, f"host {host_id}"))
            self.engines[host_id] = Engine(host_id, ledger)
        for engine in self.engines.values():
            self.enrol(engine)
        for host_id, twice in itertools.product(HOSTS, (False, True)):
            self.submit(twice, host_id)

    def enrol(self, engine: Engine) -> None:
        """Start an engine: it takes over its active runs, and ends the commands of those that were given up."""
        engine.boots += 1
        engine.epoch = engine.ledger.hosts.enrol(self.now)
        engine.watch = HostWatch(engine.host_id, LEASE)
        mine = {run.run_id for run in engine.ledger.live_work.active_runs()}
        engine.commands &= mine
        for run in engine.ledger.live_work.active_runs():
            engine.ledger.runs.adopt(run, engine.owner)
            if run.run_id not in engine.commands:
                self.settle(engine, run.run_id, RunState.FAILED, Result.LOST)

    @property
    def now(self) -> int:
        return NOW + int(self.clock * 1000)

    def settle(self, engine: Engine, run_id: str, state: RunState, result: Result = Result.EXIT) -> None:
        engine.commands.discard(run_id)
        written = engine.ledger.runs.settle([ending(run_id, state, self.now, result)], engine.owner).run_ids
        if written:
            assert run_id not in self.recorded, "a late end was accepted"
            self.recorded[run_id] = str(state)

    def listed(self) -> dict[str, Host]:
        return {host.host_id: host for host in self.engines["a"].ledger.hosts.list()}

    # -- what happens

    @rule(twice=st.booleans(), host=st.sampled_from(HOSTS))
    def submit(self, twice: bool, host: str) -> None:
        name = f"task_{next(self.names)}"
        submit(self.engines[host].ledger, self.now, approved=True, wanted=name, place="/gpu", rerun=twice)
        self.may_run_twice[name], self.started[name] = twice, 0
        self.claim(host)

    @rule(host=st.sampled_from(HOSTS))
    def claim(self, host: str) -> None:
        engine = self.engines[host]
        if engine.stopped:
            return
        for work in engine.ledger.runs.claim(LANE, engine.owner, 1, self.now):
            task_id = work.task.task_id
            others = {run_id for other in self.engines.values() for run_id in other.commands if run_id.split(".")[0] == task_id}
            assert not others, f"{work.run.run_id} would run at the same time as {others}"
            self.started[task_id] += 1
            assert self.started[task_id] == 1 or self.may_run_twice[task_id], f"{task_id} was started twice"
            engine.commands.add(work.run.run_id)

    @rule(host=st.sampled_from(HOSTS), which=st.integers(0, 9), state=st.sampled_from([RunState.COMPLETED, RunState.FAILED]))
    def end(self, host: str, which: int, state: RunState) -> None:
        engine = self.engines[host]
        if engine.commands and not engine.stopped:
            self.settle(engine, sorted(engine.commands)[which % len(engine.commands)], state)

    @rule(host=st.sampled_from(HOSTS), seconds=st.sampled_from([2, 10, 40]))
    def stop(self, host: str, seconds: int) -> None:
        self.engines[host].stopped = True
        self.time_passes(seconds)
        for other in HOSTS:
            self.claim(other)

    @rule(host=st.sampled_from(HOSTS))
    def come_back(self, host: str) -> None:
        """The engine of a stopped host continues; if it was fenced, it exits, and the next one enrols."""
        engine = self.engines[host]
        if engine.stopped:
            engine.stopped = False
            self.beat(engine)

    @rule(host=st.sampled_from(HOSTS))
    def restart(self, host: str) -> None:
        """Only the engine is killed: its commands go on, and its supervisor starts another."""
        engine = self.engines[host]
        if not engine.stopped:
            self.enrol(engine)

    @rule(host=st.sampled_from(HOSTS))
    @precondition(lambda self: any(engine.stopped for engine in self.engines.values()))
    def forget(self, host: str) -> None:
        other = self.engines["b" if host == "a" else "a"]
        if not other.stopped:
            other.ledger.hosts.forget(self.listed()[host], self.now)

    @rule(seconds=st.sampled_from([4, 10]))
    def time_passes(self, seconds: int) -> None:
        """Every two seconds each living host beats, and judges the other; the enforcer of a stopped one has ended what may run twice."""
        for _ in range(seconds // 2):
            self.clock += 2.0
            for engine in self.engines.values():
                if not engine.stopped:
                    self.beat(engine)
            for engine in self.engines.values():
                if not engine.stopped:
                    self.judge(engine)

    def beat(self, engine: Engine) -> None:
        if not engine.ledger.hosts.beat(engine.epoch, self.now):
            engine.commands = {run_id for run_id in engine.commands if not self.may_run_twice[run_id.split(".")[0]]}
            self.enrol(engine)

    def judge(self, engine: Engine) -> None:
        hosts = engine.ledger.hosts
        engine.watch.note(hosts.beats(), self.clock, self.clock)
        for silent in engine.watch.silent():
            other = self.engines[silent.host_id]
            assert other.stopped, "a host that beats was found silent"
            other.commands = {run_id for run_id in other.commands if not self.may_run_twice[run_id.split(".")[0]]}  # its enforcer has acted
            hosts.suspect(silent, self.now)
        for overdue in engine.watch.overdue(LOST):
            hosts.lose(overdue, self.now)

    # -- what must hold

    @invariant()
    def there_is_at_most_one_live_run_of_a_task(self) -> None:
        for task_id in getattr(self, "started", {}):
            runs = self.engines["a"].ledger.queries.history(task_id, 100)
            assert sum(run.state in LIVE for run in runs) <= 1

    @invariant()
    def ends_do_not_change(self) -> None:
        for run_id, state in getattr(self, "recorded", {}).items():
            entry = self.engines["a"].ledger.queries.history(run_id.split(".")[0], 100)
            assert next(run.state for run in entry if run.run_id == run_id) == state

    def teardown(self) -> None:
        for engine in getattr(self, "engines", {}).values():
            engine.ledger.close()
        with contextlib.suppress(AttributeError):
            self.folder.cleanup()


TwoHosts.TestCase.settings = settings(max_examples=400 if LONG else 60, stateful_step_count=25, deadline=None)
TestTwoHosts = TwoHosts.TestCase
