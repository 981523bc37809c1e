"""1 GB of output in writes of 64 KB: through `backburner run` into its size-limited log, and into a plain file."""

import json
import os
import re
import subprocess
import time

from backburner import BackburnerSync
from bench.home import BenchHome, exact_cpu_seconds, log_writer_of, scratch_folder
from bench.rounds import Figures, run_rounds

# The last line is the CPU time of the writer itself, which is subtracted from the total.
WRITER = ["/bin/sh", "-c", "dd if=/dev/zero bs=64k count=16384 status=none; echo; times"]


def measure(rounds: int) -> list[Figures]:
    """Return the elapsed seconds, and the CPU seconds of the engine and of its log writer."""
    with scratch_folder() as folder, BenchHome(folder) as home, BackburnerSync.open(home.root) as library:
        home.cli("run", "--wait", "--", "true")
        return run_rounds({"backburner": lambda: backburner(home, library), "plain file": lambda: plain_file(home)}, rounds, warm_up=False)


def backburner(home: BenchHome, library: BackburnerSync) -> Figures:
    _prepare_disk(home)
    assert home.engine
    engine, log_writer = map(exact_cpu_seconds, (home.engine, log_writer_of(home.engine)))
    start = time.perf_counter()
    task_id = library.submit(WRITER, cwd=home.cwd, approved=True).task.task_id
    library.wait(task_id)
    elapsed = time.perf_counter() - start
    engine_after, log_writer_after = map(exact_cpu_seconds, (home.engine, log_writer_of(home.engine)))
    (task,) = json.loads(home.cli("list", "--limit", "1", "--json"))
    home.cli("clear", task_id)
    writer = sum(int(minutes) * 60 + float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", task["summary"]))
    return {
        "backburner": elapsed,
        "engine CPU": engine_after - engine,
        "log writer CPU": log_writer_after - log_writer,
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
