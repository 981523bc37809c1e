"""1 GB of output in writes of 64 KB: through `backburner run` into its size-limited log, and into a plain file."""

import json
import os
import re
import subprocess
import time

from bench.home import BenchHome, children, cpu_seconds, exact_cpu_seconds, scratch_folder
from bench.rounds import Figures, run_rounds

# The last line is the CPU time of the writer itself, which is subtracted from the total.
WRITER = ["/bin/sh", "-c", "dd if=/dev/zero bs=64k count=16384 status=none; echo; times"]


def measure(rounds: int) -> list[Figures]:
    """Return the elapsed seconds, and the CPU seconds of the engine and of the processes that carry the output."""
    with scratch_folder() as folder, BenchHome(folder) as home:
        home.cli("run", "--wait", "--", "true")
        return run_rounds({"backburner": lambda: backburner(home), "plain file": lambda: plain_file(home)}, rounds, warm_up=False)


def backburner(home: BenchHome) -> Figures:
    _prepare_disk(home)
    assert home.engine
    engine, ended = cpu_seconds(home.engine)
    log_writer = sum(map(exact_cpu_seconds, children(home.engine)))  # the only child between two commands
    start = time.perf_counter()
    task_id = home.cli("run", "--yes", "--", *WRITER).strip()
    home.cli("wait", task_id)
    elapsed = time.perf_counter() - start
    engine_after, ended_after = cpu_seconds(home.engine)
    log_writer = sum(map(exact_cpu_seconds, children(home.engine))) - log_writer
    (task,) = json.loads(home.cli("list", "--limit", "1", "--json"))
    home.cli("clear", task_id)
    writer = sum(int(minutes) * 60 + float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", task["summary"]))
    return {
        "backburner": elapsed,
        "engine CPU": engine_after - engine,
        "carrier CPU": log_writer + max(0.0, ended_after - ended - writer),
        "writer CPU": writer,
    }


def plain_file(home: BenchHome) -> float:
    _prepare_disk(home)
    return _write(home)


def _prepare_disk(home: BenchHome) -> None:
    """Give all candidates the same start: write and remove the same amount of data, then flush everything to disk."""
    _write(home)
    os.sync()


def _write(home: BenchHome) -> float:
    path = home.cwd / "output"
    with open(path, "wb") as file:
        start = time.perf_counter()
        subprocess.run(WRITER, stdout=file, stdin=subprocess.DEVNULL, check=True)
        elapsed = time.perf_counter() - start
    path.unlink()
    return elapsed
