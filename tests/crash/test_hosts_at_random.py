"""Rounds of commands, `--rerun` commands, recurring tasks and agents on three hosts, while hosts, processes, networks and the server fail at random.

After some rounds everything is brought back, and what the commands have recorded themselves is compared with the ledger: a command runs at most
once, one with `--rerun` until it has completed and never twice at the same time, every slot and every notice is there once.

3 rounds; 200 in batches of 10 with BACKBURNER_LONG. To repeat a failure, use the seed it printed: BACKBURNER_SEED=… pytest -k hosts_at_random.
"""

import json
import os
import random
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import LONG, wait_until
from host_cluster import LANE, LEASE_SECONDS, WAIT, Cluster, ClusterHost, Faults
from postgres_server import PostgresServer, wheel_programs

from backburner.core.hosts import BEAT_SECONDS
from backburner.testing.scripted_model import ScriptedModel

BATCHES, ROUNDS = (20, 10) if LONG else (1, 3)
SPAN = 9.0 if LONG else 6.0  # seconds of a round in which something is submitted and something fails
SEED = int(os.environ.get("BACKBURNER_SEED") or random.randrange(1 << 32))
_DRAIN_SECONDS = 180.0  # what was handed out to a host that died is offered again after 130 s at the latest
_LIVE = ("pending", "running", "waiting", "resumed")
_SILENT = ("host killed", "engine and supervisor killed", "engine stopped", "network silent", "network cut")
# NAME TICKS CODE: record the start, every tick and the end, with the time since the machine has started; exit with CODE.
_SCRIPT = r"""
host=${BACKBURNER_HOME##*/}
record() { read -r up rest </proc/uptime; echo "$BACKBURNER_RUN_ID $host $1 $up" >>"$book"; echo "$1"; }
book=${0%/*}/books/$1  # a file that is named in the command must not change between two runs
record start
i=0
while [ $i -lt "$2" ]; do sleep 0.1; record $i; i=$((i + 1)); done
record end
exit "$3"
"""


class Line(NamedTuple):
    """What a command has recorded: of which run, on which host, what, and when."""

    run_id: str
    host: str
    what: str
    at: float


class Job(NamedTuple):
    """Something to submit. `kind` is command, rerun, schedule, schedule-rerun or agent."""

    name: str
    kind: str
    ticks: int
    code: int
    options: tuple[str, ...]
    yes: bool
    every: int = 0


class Run(NamedTuple):
    """A run in the ledger."""

    name: str
    task_id: str
    run_id: str
    n: int
    state: str
    result: str | None
    exit_code: int | None
    error: str | None
    folder: str
    host: str
    cause: str
    slot: int | None
    skipped_before: int
    run_again: bool
    notices: int
    most_notices: int  # of one recipient


_RUNS = """
    SELECT t.description, t.task_id, r.run_id, r.n, r.state, r.result, r.exit_code, r.error, r.folder, r.host, r.cause, r.slot, r.skipped_before,
        EXISTS (SELECT 1 FROM events e WHERE e.run_id = r.run_id AND e.data LIKE '%"run_again"%'),
        (SELECT count(*) FROM notices n WHERE n.run_id = r.run_id AND n.kind IN ('ended', 'paused') AND n.recipient = 'person'),
        (SELECT coalesce(max(c), 0) FROM (SELECT count(*) AS c FROM notices n WHERE n.run_id = r.run_id AND n.kind IN ('ended', 'paused') GROUP BY n.channel) AS x)
    FROM runs r JOIN tasks t ON t.task_id = r.task_id ORDER BY r.seq
"""
_FOUND_SILENT = "FROM events WHERE kind IN ('host_suspected', 'host_fenced')"
_UNENDED = """
    SELECT t.description, t.state, t.next_run_at, r.run_id, r.state, r.runner, r.host, r.error, r.blocked, r.due_at
    FROM tasks t LEFT JOIN runs r ON r.task_id = t.task_id WHERE r.ended_at IS NULL OR t.next_run_at IS NOT NULL
"""


class Batch:
    """Some rounds on one cluster."""

    def __init__(self, cluster: Cluster, number: int, rounds: int) -> None:
        self.cluster, self.number, self._rounds = cluster, number, rounds
        self._chance = random.Random(f"{SEED}:{number}")
        self._books = cluster.project / "books"
        self._books.mkdir()
        self._script = cluster.project / "record.sh"
        self._script.write_text(_SCRIPT)
        self._closing = threading.Event()
        self.faults = Faults(cluster, self._closing)
        self.jobs: dict[str, Job] = {}
        self.ids: dict[str, str] = {}  # the task of each job
        self.wrong: list[str] = []
        self.figures: Counter[str] = Counter()
        self.detected: list[float] = []
        self.gaps: list[float] = []

    # -- what happens

    def play(self) -> None:
        """All rounds, one after another; what one has begun may go on in the next. Then everything is brought back."""
        pending: list[Future[None]] = []
        with ThreadPoolExecutor(24) as pool:
            began_at = time.monotonic()
            plan = [event for number in range(self._rounds) for event in self._round(number)]
            for at, action, *arguments in sorted(plan, key=lambda event: event[0]):
                wait_until(lambda at=at: time.monotonic() >= began_at + at, "the next moment", WAIT)
                if action in (self.faults.crash_server, self.faults.restart_server):
                    action()
                else:
                    pending.append(pool.submit(action, *arguments))
            for future in pending:
                future.result()
        self.cluster.restore()
        try:
            wait_until(self._has_ended, "everything to end", _DRAIN_SECONDS)
        except AssertionError:
            self.wrong += [f"has not ended: {row}" for row in self.cluster.query(_UNENDED)]
            self.wrong += [f"jobs: {row}" for row in self.cluster.query("SELECT * FROM backburner_jobs.procrastinate_jobs")]

    def _round(self, number: int) -> list[tuple]:
        """What is submitted and what fails in a round, with the moments."""
        chance, begin = self._chance, number * SPAN
        jobs = [self._new_job(f"b{self.number}r{number}j{index}", kind) for index, kind in enumerate(self._kinds())]
        kinds = list(self.faults.kinds)
        weights = [self.faults.kinds[kind][0] for kind in kinds]
        plan: list[tuple] = [(begin + chance.uniform(0, SPAN * 0.7), self._submit, job, chance.choice(self.cluster.hosts)) for job in jobs]
        for _ in range(chance.randrange(3, 6)):
            kind, host = chance.choices(kinds, weights)[0], chance.choice(self.cluster.hosts)
            plan.append((begin + chance.uniform(0.5, SPAN), self.faults.cause, kind, host, random.Random(chance.random())))
        if chance.random() < 0.4:
            at = begin + chance.uniform(0.5, SPAN)
            plan.append((at, self.faults.crash_server))
            plan.append((at + chance.choice((0.0, chance.uniform(0, 3), chance.uniform(3, 10))), self.faults.restart_server))
        return plan

    def _kinds(self) -> Sequence[str]:
        others = self._chance.choices(("command", "rerun", "agent"), k=2)
        return ["command", "command", "rerun", "rerun", self._chance.choice(("schedule", "schedule-rerun", "agent")), *others]

    def _new_job(self, name: str, kind: str) -> Job:
        chance = self._chance
        lane, host = ("--lane", LANE), ("--host", chance.choice(self.cluster.hosts).name)
        yes = kind == "command" and chance.random() < 0.4
        options = () if yes else chance.choices((lane, host, ()), (6, 2, 0 if "rerun" in kind else 2))[0]
        if "rerun" in kind:
            options = (*options, "--rerun")
        ticks = chance.choice({"command": (0, 3, 15, 30), "rerun": (5, 50, 100)}.get(kind, (0, 4)))
        code = chance.choice((0, 0, 0, 7)) if kind == "command" else 0
        job = self.jobs[name] = Job(name, kind, ticks, code, options, yes, chance.choice((1, 2, 3)))
        return job

    def _submit(self, job: Job, host: ClusterHost) -> None:
        """Submit a job from a host, again and again until the ledger has it; a key or a name makes sure that it is there once."""
        words = self._words(job)

        def stored() -> bool:
            done = host.cli(*words)
            if done.returncode == 0:
                self.ids[job.name] = done.stdout.split()[0]
                return True
            if job.kind.startswith("schedule") and "already" in done.stderr:  # the first attempt was stored, but its answer was lost
                return True
            if "server" not in done.stderr and "ledger" not in done.stderr:
                self.wrong.append(f"{job.name}: not accepted: {done.stderr.strip()}")
                return True
            self.figures["submissions repeated"] += 1
            return False

        wait_until(stored, f"{job.name} to be stored", WAIT)

    def _words(self, job: Job) -> list[str]:
        command = ["sh", str(self._script), job.name, str(job.ticks), str(job.code)]
        named = ["--description", job.name, *job.options]
        if job.kind == "agent":
            steps = [{"tool": "run_command", "args": {"command": " ".join(command)}}, {"drip": 0.3, "say": f"done {job.name}"}]
            return ["ask", *named, "--key", job.name, f"[[script: {json.dumps(steps)}]]"]
        if job.kind.startswith("schedule"):
            schedule = ["--every", f"{job.every}s", "--max-runs", "3", "--notify", "always"]
            approval = [] if job.options else ["--yes"]
            return ["add", job.name, *schedule, *named, *approval, "--", *command]
        return ["run", *(["--yes"] if job.yes else []), *named, "--key", job.name, "--", *command]

    def _has_ended(self) -> bool:
        live = ", ".join(f"'{state}'" for state in _LIVE)
        rows = self.cluster.query(
            f"SELECT (SELECT count(*) FROM runs WHERE state IN ({live})) + (SELECT count(*) FROM tasks WHERE next_run_at IS NOT NULL)"
        )
        return rows[0][0] == 0

    # -- what must be true

    def check(self) -> None:
        """Compare the ledger with what the commands have recorded."""
        runs: dict[str, list[Run]] = defaultdict(list)
        everything = [Run(*row) for row in self.cluster.query(_RUNS)]
        for run in everything:
            runs[run.name].append(run)
        for job in self.jobs.values():
            lines = self._lines(job.name)
            if not (found := runs.get(job.name)):
                self.wrong.append(f"{job.name} is not in the ledger")
                continue
            if len({run.task_id for run in found}) != 1:
                self.wrong.append(f"{job.name} is in the ledger more than once")
            self._check_starts(job, found, lines)
            match job.kind:
                case "command":
                    self._check_command(job, found, lines)
                case "rerun":
                    self._check_rerun(job, found, lines)
                case "agent":
                    self._check_agent(job, found)
                case _:
                    self._check_slots(job, found)
        for run in everything:
            self.figures[f"run {run.state}/{run.result}"] += 1
            if run.most_notices > 1:
                self.wrong.append(f"{run.run_id} has {run.most_notices} notices for one recipient")
        self._check_hosts()
        self._check_folders(everything)
        self._measure(runs)

    def _lines(self, name: str) -> list[Line]:
        """What the commands of a job have recorded, in the order in which they did."""
        try:
            words = [line.split() for line in (self._books / name).read_text().splitlines()]
        except FileNotFoundError:
            return []
        return [Line(run_id, host, what, float(at)) for run_id, host, what, at in words]

    def _check_starts(self, job: Job, runs: Sequence[Run], lines: Sequence[Line]) -> None:
        """Each run began at most once, none without being in the ledger, and none went on after the next one had begun."""
        starts = Counter(line.run_id for line in lines if line.what == "start")
        if repeated := [run_id for run_id, count in starts.items() if count > 1]:
            self.wrong.append(f"{job.name}: started more than once: {repeated}")
        if job.kind == "agent":  # its command is a task of its own
            if starts.total() > 1:
                self.wrong.append(f"{job.name}: its command ran {starts.total()} times")
            return
        if unknown := set(starts) - {run.run_id for run in runs}:
            self.wrong.append(f"{job.name}: unknown runs: {unknown}")
        order = list(dict.fromkeys(line.run_id for line in lines))
        last = -1
        for line in lines:
            position = order.index(line.run_id)
            if position < last:
                self.wrong.append(f"{job.name}: {order[last]} and {line.run_id} ran at the same time: {line}")
                break
            last = position

    def _check_command(self, job: Job, runs: Sequence[Run], lines: Sequence[Line]) -> None:
        if len(runs) != 1:
            self.wrong.append(f"{job.name}: {len(runs)} runs of a command that may run once")
        self._check_end(job, runs[0], lines)

    def _check_end(self, job: Job, run: Run, lines: Sequence[Line]) -> None:
        """The run has its real exit code, or is lost; and one notice."""
        finished = any(line.what == "end" and line.run_id == run.run_id for line in lines)
        state = "completed" if job.code == 0 else "failed"
        if (run.state, run.result) != ("failed", "lost") and (
            (run.state, run.result, run.exit_code) != (state, "exit", job.code) or not finished
        ):
            self.wrong.append(f"{job.name}: {run} but finished: {finished}")
        if run.notices != 1:
            self.wrong.append(f"{job.name}: {run.notices} notices for {run.run_id} ({run.state}/{run.result})")
        if run.result == "exit" and not (run.error and "output may be missing" in run.error):
            self._check_output(job, run)

    def _check_output(self, job: Job, run: Run) -> None:
        host = next(host for host in self.cluster.hosts if host.home.host_id() == run.host)
        expected = "".join(f"{word}\n" for word in ("start", *range(job.ticks), "end"))
        printed = (host.root / run.folder / "output.log").read_text()
        if not printed.endswith(f"\n{expected}"):
            self.wrong.append(f"{run.run_id}: output {printed!r}")

    def _check_rerun(self, job: Job, runs: Sequence[Run], lines: Sequence[Line]) -> None:
        *before, last = runs
        for run in before:
            if not run.run_again or run.result != "lost" or run.notices:
                self.wrong.append(f"{job.name}: {run}, but there is a later run")
            reason = re.sub(r"\bh\d\b", "NAME", run.error or "")
            self.figures[f"again: {reason}"] += 1
        if (last.state, last.result) != ("completed", "exit"):
            self.wrong.append(f"{job.name} did not complete: {last}")
        self._check_end(job, last, lines)
        self.figures["runs again"] += len(before)
        for run, after in pairwise(runs):
            old = [line.at for line in lines if line.run_id == run.run_id]
            new = [line.at for line in lines if line.run_id == after.run_id]
            if old and new:
                self.gaps.append(new[0] - old[-1])

    def _check_agent(self, job: Job, runs: Sequence[Run]) -> None:
        run = runs[0]
        unreachable = run.result == "exit" and (run.error or "").startswith("Cannot reach the ledger")
        self.figures["agents failed without the ledger"] += unreachable
        if len(runs) != 1 or ((run.state, run.result) not in (("completed", "exit"), ("failed", "lost")) and not unreachable):
            self.wrong.append(f"{job.name}: {runs}")
        if run.notices != 1:
            self.wrong.append(f"{job.name}: {run.notices} notices for {run.run_id} ({run.state}/{run.result})")

    def _check_slots(self, job: Job, runs: Sequence[Run]) -> None:
        """Each slot since the task was added has one run, or a row that says why it has none."""
        slots = [(run.slot, run.skipped_before) for run in runs if run.cause == "schedule" and run.slot is not None]
        covered = sorted(slot - 1000 * job.every * back for slot, before in slots for back in range(before + 1))
        (schedule,) = self.cluster.query(f"SELECT schedule FROM tasks WHERE description = '{job.name}'")[0]
        begin = json.loads(schedule)["anchor"]
        if covered != list(range(begin + 1000 * job.every, covered[-1] + 1, 1000 * job.every)):
            self.wrong.append(f"{job.name}: slots every {job.every} s from {begin}: {covered}")
        self.figures["slots"] += len(covered)
        self.figures["slots skipped"] += sum(run.state == "skipped" for run in runs)
        for run in runs:
            if run.state == "skipped":
                continue
            if (run.state, run.result) not in (("completed", "exit"), ("failed", "lost")):
                self.wrong.append(f"{job.name}: {run}")
            if run.notices != (0 if run.run_again else 1):
                self.wrong.append(f"{job.name}: {run.notices} notices for {run.run_id} ({run.state}/{run.result})")

    def _check_hosts(self) -> None:
        """A notice that a host does not answer for each time it had runs."""
        times = f'SELECT count(*) {_FOUND_SILENT} AND (data LIKE \'%"run_again": ["%\' OR data NOT LIKE \'%"runs": 0%\')'
        notices = "SELECT count(*) FROM notices WHERE kind = 'unreachable'"
        expected, found = self.cluster.query(times)[0][0], self.cluster.query(notices)[0][0]
        self.figures["hosts found silent"] += self.cluster.query(f"SELECT count(*) {_FOUND_SILENT}")[0][0]
        if expected != found:
            self.wrong.append(f"{found} notices about {expected} silent hosts")

    def _check_folders(self, runs: Sequence[Run]) -> None:
        for host in self.cluster.hosts:
            known = {os.path.basename(run.folder) for run in runs}
            if unknown := set(os.listdir(host.root / "tasks")) - known:
                self.wrong.append(f"host {host.name} has folders of unknown runs: {unknown}")

    def check_processes(self) -> None:
        """After all engines were stopped: nothing is left that belongs to this cluster."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if str(self._script).encode() in words and int(name) != os.getpid():
                self.wrong.append(f"still running: {words!r}")

    def _measure(self, runs: dict[str, list[Run]]) -> None:
        for name, found in runs.items():
            if name in self.jobs:
                self.figures[f"{self.jobs[name].kind}: runs"] += sum(run.n > 0 for run in found)
        self.figures["agent: commands"] += sum(len(found) for name, found in runs.items() if name not in self.jobs)
        found_silent = self.cluster.query(f"SELECT at, data {_FOUND_SILENT} ORDER BY event_id")
        for fault in self.faults.done:
            if fault.kind not in _SILENT:
                continue
            after = [at - fault.began_at for at, data in found_silent if json.loads(data)["host"] == fault.host and at >= fault.began_at]
            if after and fault.began_at + after[0] <= fault.ended_at + 1000:
                self.detected.append(after[0] / 1000)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server that may be away for seconds, so that no other test uses it."""
    server = PostgresServer(tmp_path_factory.mktemp("r") / "pg", wheel_programs())
    yield server
    server.stop()


@pytest.mark.engine
@pytest.mark.parametrize("number", range(BATCHES))
def test_random_faults_on_three_hosts_lose_and_repeat_nothing(
    number: int, own_server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nhosts at random: seed {SEED}, batch {number}", flush=True)
    began_at = time.monotonic()
    with ScriptedModel() as model:
        cluster = Cluster(tmp_path / "c", own_server, f"random{number}")
        batch = Batch(cluster, number, ROUNDS)
        try:
            cluster.start(model.url)
            batch.play()
            batch.check()
        finally:
            cluster.close()
            batch.check_processes()
    with capsys.disabled():
        print(report(batch, time.monotonic() - began_at), flush=True)
    assert not batch.wrong, f"seed {SEED}, batch {number}:\n" + "\n".join(batch.wrong)
    assert batch.faults.counts.total() >= ROUNDS * 2 and batch.ids, "too little happened to show anything"


def report(batch: Batch, seconds: float) -> str:
    def spread(values: Sequence[float]) -> str:
        ordered = sorted(values)
        return f"n={len(ordered)} median {ordered[len(ordered) // 2]:.2f} max {ordered[-1]:.2f} min {ordered[0]:.2f}" if ordered else "none"

    return (
        f"hosts at random: batch {batch.number}, {ROUNDS} rounds, {len(batch.jobs)} jobs, {seconds:.0f} s\n"
        f"  faults: {dict(sorted(batch.faults.counts.items()))}\n  {dict(sorted(batch.figures.items()))}\n"
        f"  silence noticed after {spread(batch.detected)} s (lease {LEASE_SECONDS:g} s, beat {BEAT_SECONDS:g} s);"
        f" from the last tick to the next start {spread(batch.gaps)} s" + "".join(f"\n  WRONG: {line}" for line in batch.wrong)
    )
