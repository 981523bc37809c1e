"""From the call that submits a command to the first thing the command does: one at a time, with nothing else to do."""

import time
from pathlib import Path

from bench import peers
from bench.library import Library
from bench.place import Place, scratch
from bench.turns import Contestant, Figures, take_turns

STAMP = ["date", "+%s%N"]


def measure(rounds: int) -> list[Figures]:
    """Milliseconds, by the clock that the command itself read."""
    with scratch() as home, scratch() as queue, Place(home) as place, Library(place.root, place.cwd) as library:
        contestants: dict[str, Contestant] = {"ours": lambda: ours(library)}
        if "task-spooler" in peers.missing():
            return take_turns(contestants, rounds)
        with peers.TaskSpooler(queue, 5) as spooler:
            return take_turns({**contestants, "task-spooler": lambda: task_spooler(spooler)}, rounds)


def ours(library: Library) -> float:
    start = time.time_ns()
    (folder,) = library.run(STAMP)
    return _milliseconds(start, folder / "output.log")


def task_spooler(spooler: peers.TaskSpooler) -> float:
    start = time.time_ns()
    spooler.run(STAMP)
    (output,) = spooler.folder.glob("ts-out.*")
    took = _milliseconds(start, output)
    output.unlink()
    return took


def _milliseconds(start: int, output: Path) -> float:
    return (int(output.read_text().split()[-1]) - start) / 1e6
