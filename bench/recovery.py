"""Recovery after the engine is killed with 50 running commands, of which ten end before the next engine starts."""

import json
import os
import signal
import time

from backburner import BackburnerSync
from bench.home import BenchHome, running_commands, scratch_folder, wait_until
from bench.rounds import Figures, run_rounds

RUNNING, ENDING, EXIT_CODE, MAX_CONCURRENT = 40, 10, 7, 60


def measure(rounds: int) -> list[Figures]:
    """Return the seconds from SIGKILL until `list` shows the true status of every command and a new engine owns the running ones."""
    return run_rounds({"backburner": backburner}, rounds, warm_up=False)


def backburner() -> float:
    with scratch_folder() as folder, BenchHome(folder, MAX_CONCURRENT) as home, BackburnerSync.open(home.root) as library:
        pipe = home.cwd / "pipe"
        os.mkfifo(pipe)
        for _ in range(RUNNING):
            library.submit(["sleep", "120"], cwd=home.cwd, approved=True)
        for _ in range(ENDING):
            library.submit(["/bin/sh", "-c", f"read line < pipe; exit {EXIT_CODE}"], cwd=home.cwd, approved=True)
        wait_until(lambda: home.engine, "the engine")
        killed = home.engine
        assert killed
        wait_until(lambda: running_commands(killed) == RUNNING + ENDING, "all commands to run")
        time.sleep(1)
        os.kill(killed, signal.SIGKILL)
        start = time.perf_counter()
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))  # the waiting commands continue
        while True:
            tasks = json.loads(home.cli("list", "--json"))
            elapsed = time.perf_counter() - start
            running = sum(task["status"] == "running" for task in tasks)
            ended = sum(task["status"] == "failed" and task["exit_code"] == EXIT_CODE for task in tasks)
            engine = home.engine
            owners = {entry.run.owner.pid for entry in library.list("running") if entry.run and entry.run.owner}
            if (running, ended) == (RUNNING, ENDING) and engine and owners == {engine} and engine != killed:
                return elapsed
            if elapsed > 30:
                raise TimeoutError(f"{running} running, {ended} ended with the expected exit code, engine {engine}, owned by {owners}")
