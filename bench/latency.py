"""Time from submitting a command until it starts to run: one command at a time on an idle engine."""

import time
from pathlib import Path

from bench import peers
from bench.home import BenchHome, scratch_folder
from bench.library import Library
from bench.rounds import Candidate, Figures, run_rounds

PRINT_TIME = ["date", "+%s%N"]


def measure(rounds: int, parent: str | None) -> list[Figures]:
    """Return milliseconds, measured with the time that the command itself prints, with the home and the queue below `parent`."""
    with scratch_folder(parent) as home, scratch_folder(parent) as queue, BenchHome(home) as home, Library(home.root, home.cwd) as library:
        candidates: dict[str, Candidate] = {"backburner": lambda: backburner(library)}
        if "task-spooler" in peers.missing():
            return run_rounds(candidates, rounds)
        with peers.TaskSpooler(queue, 5) as spooler:
            return run_rounds({**candidates, "task-spooler": lambda: task_spooler(spooler)}, rounds)


def backburner(library: Library) -> float:
    (folder,) = library.run(PRINT_TIME)
    return _milliseconds(library.submitted_at, folder / "output.log")


def task_spooler(spooler: peers.TaskSpooler) -> float:
    start = time.time_ns()
    spooler.run(PRINT_TIME)
    (output,) = spooler.folder.glob("ts-out.*")
    elapsed = _milliseconds(start, output)
    output.unlink()
    return elapsed


def _milliseconds(start: int, output: Path) -> float:
    return (int(output.read_text().split()[-1]) - start) / 1e6
