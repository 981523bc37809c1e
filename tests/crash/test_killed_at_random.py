"""Rounds of commands from command lines and an embedding program, while engine, keeper, log writers, sandbox starters and
clients are killed at random.

Half of the commands are approved, and half run in a sandbox. 20 rounds; 500 with BACKBURNER_LONG. To repeat a failure, use the seed it printed: BACKBURNER_SEED=… pytest -k random.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import LONG, NO_TERMINAL, HomeCli, wait_until
from recorder import Job, JobRecorder, query, start_driver, wait_for_stable_engine

from backburner.system import processes

ROUNDS = 500 if LONG else 20
PER_HOME = 10
SEED = int(os.environ.get("BACKBURNER_SEED") or random.randrange(1 << 32))
SPAN = 0.9  # seconds of a round in which processes are killed


class Round:
    """Commands through three command lines and one embedding program, and who is killed when."""

    def __init__(self, recorder: JobRecorder, number: int) -> None:
        self.recorder, self.home_cli = recorder, recorder.home_cli
        self.chance = random.Random(f"{SEED}:{number}")
        self.killed: Counter[str] = Counter()
        names = [f"r{number}d{client}" for client in range(3)], [f"r{number}e{turn}" for turn in range(4)]
        self.from_cli, self.embedded = [[self._job(name) for name in group] for group in names]

    def _job(self, name: str) -> Job:
        chance = self.chance
        return self.recorder.job(name, lines=chance.randrange(300), code=chance.choice((0, 0, 1, 7)), pause=chance.choice((0, 0.01, 0.05)))

    @property
    def jobs(self) -> list[Job]:
        return [*self.from_cli, *self.embedded]

    def play(self) -> None:
        """Start all processes, kill as planned, and wait for the others to end. Every id that was returned must be in the ledger."""
        clients = [
            start_driver(self.home_cli, "cli", "never", "run", *approval, "--description", job.name, "--", *self.recorder.command(job))
            for job in self.from_cli
            for approval in [self.chance.choice((["--yes"], []))]
        ]
        feed = [[job.name, self.recorder.command(job), self.chance.choice(("user", "auto"))] for job in self.embedded]
        embedder = start_driver(self.home_cli, "embed", "never", "2", feed=feed)
        started_at = time.monotonic()
        for moment in sorted(SPAN * self.chance.random() ** 2 for _ in range(self.chance.randrange(3, 7))):
            wait_until(lambda at=started_at + moment: time.monotonic() >= at, "the next kill")
            self._kill(clients, embedder)
        outputs = [client.communicate(timeout=60)[0].split() for client in clients]
        if self.chance.random() < 0.3:
            wait_until(lambda: embedder.poll() is not None or self.recorder.ended(self.embedded), "the embedder's commands", 60)
        if embedder.poll() is None:
            embedder.kill()
            self.killed["embedder"] += 1
        outputs.append([word for word in embedder.communicate(timeout=60)[0].split() if word.startswith("task_")])
        known = {row.task_id for row in self.recorder.rows()}
        accepted = {task_id for ids in outputs for task_id in ids}
        assert accepted <= known, f"accepted but not in the ledger: {accepted - known}"

    def _kill(self, clients: "list[subprocess.Popen[str]]", embedder: "subprocess.Popen[str]") -> None:
        kinds = ("engine", "keeper", "both", "log writers", "sandbox starters", "all", "cli", "embedder")
        match self.chance.choices(kinds, (4, 1, 2, 3, 2, 2, 2, 1))[0]:
            case "engine":
                self._kill_engine()
            case "keeper":
                self._kill_keepers()
            case "both":
                self._kill_keepers()
                self._kill_engine()
            case "log writers":
                self._kill_log_writers()
            case "sandbox starters":
                self._kill_sandbox_starters()
            case "all":
                self._kill_keepers()
                self._kill_engine()
                self._kill_log_writers()
                self._kill_sandbox_starters()
            case "cli":
                self._kill_child(self.chance.choice(clients), "cli")
            case "embedder":
                self._kill_child(embedder, "embedder")

    def _kill_engine(self) -> None:
        if (engine := self.home_cli.engine) and processes.send(engine, signal.SIGKILL):
            self.killed["engine"] += 1

    def _kill_keepers(self) -> None:
        for keeper in self.home_cli.processes("backburner-keeper"):
            self.killed["keeper"] += processes.send(keeper, signal.SIGKILL)

    def _kill_log_writers(self) -> None:
        for log_writer in self.home_cli.log_writers:
            self.killed["log writer"] += processes.send(log_writer, signal.SIGKILL)

    def _kill_sandbox_starters(self) -> None:
        for starter in self.home_cli.sandbox_starters:
            self.killed["sandbox starter"] += processes.send(starter, signal.SIGKILL)

    def _kill_child(self, child: "subprocess.Popen[str]", name: str) -> None:
        if child.poll() is None:
            child.kill()
            self.killed[name] += 1

    def check_results(self) -> list[Job]:
        """Wait for the ends, and compare everything with the recorder; returns the jobs that were in the ledger."""
        known = {row.name: row.task_id for row in self.recorder.rows()}
        stored = [job for job in self.jobs if job.name in known]
        unstored = [job for job in self.jobs if job.name not in known]
        self.home_cli.cli("wait", "--timeout", "60", *(known[job.name] for job in stored))
        self.recorder.check(stored)
        assert not any(map(self.recorder.has_started, unstored)), "a command ran that is not in the ledger"
        return stored


def test_random_kills_lose_and_repeat_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started_at, total, killed, wrong = time.monotonic(), 0, Counter[str](), []
    with capsys.disabled():
        print(f"\nrandom kills: seed {SEED}")
    figures: Counter[str] = Counter()
    sandboxed = 0
    for first in range(0, ROUNDS, PER_HOME):
        home_cli = HomeCli(tmp_path / f"home{first}", tmp_path / f"project{first}")
        home_cli.cwd.mkdir()
        home_cli.configure(NO_TERMINAL)
        home_cli.ok("trust")  # so that sandboxed commands can write what they have done
        recorder = JobRecorder(home_cli)
        for number in range(first, min(first + PER_HOME, ROUNDS)):
            this = Round(recorder, number)
            try:
                this.play()
                total += len(this.check_results())
            except AssertionError as error:
                wrong.append(f"round {number}: {error}")
            killed += this.killed
        rows = recorder.rows()
        figures["lost"] += sum(row.result == "lost" or row.notices == 0 or row.state not in ("completed", "failed") for row in rows)
        sandboxed += query(home_cli, "SELECT count(*) FROM runs WHERE sandbox IS NOT NULL")[0][0]
        figures["repeated"] += sum(row.notices > 1 or row.starts > 1 or row.ends > 1 for row in rows)
        wait_for_stable_engine(home_cli)
        home_cli.stop_engine()
        if left := home_cli.processes():
            wrong.append(f"left behind after round {number}: {left}")
    with capsys.disabled():
        kills = ", ".join(f"{name} {count}" for name, count in sorted(killed.items()))
        print(
            f"random kills: {ROUNDS} rounds, {killed.total()} kills ({kills}), {total} commands, {sandboxed} of them in a sandbox,"
            f" {figures['lost']} lost, {figures['repeated']} repeated, {time.monotonic() - started_at:.0f} s"
        )
    assert not wrong, f"seed {SEED}: " + "\n".join(wrong)
    assert figures == {"lost": 0, "repeated": 0}
    assert killed.total() > ROUNDS and total > ROUNDS * 3 and sandboxed > ROUNDS, "too little was killed to show anything"
