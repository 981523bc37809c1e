"""The engine is killed with 50 commands at work, and ten of them end before another one is there: until all is known again."""

import json
import os
import signal
import time

from backburner import BackburnerSync
from bench.place import Place, children, scratch, wait_until
from bench.turns import Figures, take_turns

RUNNING, ENDING, CODE, CAP = 40, 10, 7, 60


def measure(rounds: int) -> list[Figures]:
    """Seconds from SIGKILL until `list` has said the truth about every command and a living engine owns what runs."""
    return take_turns({"ours": ours}, rounds, warm_up=False)


def ours() -> float:
    with scratch() as folder, Place(folder, CAP) as place, BackburnerSync.open(place.root) as library:
        door = place.cwd / "door"
        os.mkfifo(door)
        for _ in range(RUNNING):
            library.submit(["sleep", "120"], cwd=place.cwd, approved=True)
        for _ in range(ENDING):
            library.submit(["/bin/sh", "-c", f"read line < door; exit {CODE}"], cwd=place.cwd, approved=True)
        wait_until(lambda: place.engine, "the engine")
        killed = place.engine
        assert killed
        wait_until(lambda: sum(bool(children(shim)) for shim in children(killed)) == RUNNING + ENDING, "all commands to run")
        time.sleep(1)
        os.kill(killed, signal.SIGKILL)
        start = time.perf_counter()
        os.close(os.open(door, os.O_WRONLY | os.O_NONBLOCK))  # whoever waits at it goes on
        while True:
            tasks = json.loads(place.cli("list", "--json"))
            took = time.perf_counter() - start
            running = sum(task["status"] == "running" for task in tasks)
            ended = sum(task["status"] == "failed" and task["exit_code"] == CODE for task in tasks)
            engine = place.engine
            owners = {entry.run.owner.pid for entry in library.list("running") if entry.run and entry.run.owner}
            if (running, ended) == (RUNNING, ENDING) and engine and owners == {engine} and engine != killed:
                return took
            if took > 30:
                raise TimeoutError(f"{running} running, {ended} ended as they should, engine {engine}, owned by {owners}")
