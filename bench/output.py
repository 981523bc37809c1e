"""1 GB of output in writes of 64 KB: through `backburner run` into its size-limited log, into a plain file, and through a pipe into one.

Also with lines of text, because the lines that are removed from a log are counted.
"""

import json
import os
import random
import re
import subprocess
import time

from backburner import BackburnerSync
from bench.home import BenchHome, exact_cpu_seconds, log_writer_of, scratch_folder
from bench.rounds import Candidate, Figures, run_rounds

# The last line is the CPU time of the writer itself, which is subtracted from the total.
WRITER = ["/bin/sh", "-c", "dd if=/dev/zero bs=64k count=16384 status=none; echo; times"]
PIPE = ["/bin/sh", "-c", "dd if=/dev/zero bs=64k count=16384 status=none | cat"]
LINES = ["/bin/sh", "-c", "for n in 1 2 3 4 5 6 7 8; do dd if=lines bs=64k status=none; done"]
LINES_BYTES = 1 << 27


def measure(rounds: int) -> list[Figures]:
    """Return the elapsed seconds, and the CPU seconds of the engine and of its log writer."""
    with scratch_folder() as folder, BenchHome(folder) as home, BackburnerSync.open(home.root) as library:
        home.cli("run", "--wait", "--", "true")
        _create_lines(home)
        candidates: dict[str, Candidate] = {
            "backburner": lambda: backburner(home, library, WRITER),
            "plain file": lambda: plain_file(home, WRITER),
            "pipe": lambda: plain_file(home, PIPE),
            "backburner, lines": lambda: backburner(home, library, LINES)["backburner"],
            "plain file, lines": lambda: plain_file(home, LINES),
        }
        return run_rounds(candidates, rounds, warm_up=False)


def backburner(home: BenchHome, library: BackburnerSync, command: list[str]) -> Figures:
    _prepare_disk(home)
    assert home.engine
    engine, log_writer = map(exact_cpu_seconds, (home.engine, log_writer_of(home.engine)))
    start = time.perf_counter()
    task_id = library.submit(command, cwd=home.cwd, approved=True).task.task_id
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


def plain_file(home: BenchHome, command: list[str]) -> float:
    _prepare_disk(home)
    return _write(home, command)


def _create_lines(home: BenchHome) -> None:
    """Create a file of lines with 10 to 120 characters, always the same."""
    lengths = random.Random(1)
    block = b"".join(b"x" * lengths.randrange(10, 120) + b"\n" for _ in range(1 << 14))
    (home.cwd / "lines").write_bytes((block * (LINES_BYTES // len(block) + 1))[:LINES_BYTES])


def _prepare_disk(home: BenchHome) -> None:
    """Give all candidates the same start: write and remove the same amount of data, then flush everything to disk."""
    _write(home, WRITER)
    os.sync()


def _write(home: BenchHome, command: list[str]) -> float:
    path = home.cwd / "output"
    with open(path, "wb") as file:
        start = time.perf_counter()
        subprocess.run(command, cwd=home.cwd, stdout=file, stdin=subprocess.DEVNULL, check=True)
        elapsed = time.perf_counter() - start
    path.unlink()
    return elapsed
