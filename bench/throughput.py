"""300 no-op commands end to end, five at a time: ours, task-spooler, nq, and two loops that show what the machine can do.

The first loop only spawns; the second also makes the files that a run of ours leaves and waits for the disk as often.
"""

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from bench import peers
from bench.library import Library
from bench.place import PYTHON, ROOT, Place, own_environment, scratch
from bench.turns import Figures, take_turns

COUNT, WIDTH, NOTHING = 300, 5, ["true"]
_COUNTED = 100  # commands under strace
_PROMISED = 3.0  # submit, claim and end: taken where the real number cannot be counted


def measure(rounds: int, where: str | None) -> list[Figures]:
    """Seconds for all of them, with homes and queues below `where`."""
    counted = syncs_per_command()
    gone = peers.missing()
    contestants: dict[str, Callable[[], float | Figures]] = {"ours": lambda: ours(where)}
    if "task-spooler" not in gone:
        contestants["task-spooler"] = lambda: task_spooler(where)
    if "nq" not in gone:
        contestants["nq"] = lambda: serial_nq(where)
    contestants["bare loop"] = lambda: bare_loop()
    contestants["loop with files"] = lambda: loop_with_files(where, counted or _PROMISED)
    known = {"syncs per command": counted} if counted else {}
    return [{**figures, **known} for figures in take_turns(contestants, rounds)]


def ours(where: str | None, count: int = COUNT) -> float:
    with scratch() as work, scratch(where) as folder, Place(folder) as place, Library(place.root, work, WIDTH) as library:
        start = time.perf_counter()
        library.run(NOTHING, count)
        took = time.perf_counter() - start
        library.check(count)
        return took


def task_spooler(where: str | None) -> float:
    with scratch(where) as folder, peers.TaskSpooler(folder, WIDTH) as spooler:
        start = time.perf_counter()
        spooler.run(NOTHING, COUNT)
        took = time.perf_counter() - start
        spooler.check(COUNT)
        return took


def serial_nq(where: str | None) -> float:
    with scratch(where) as folder:
        start = time.perf_counter()
        peers.nq(folder, NOTHING, COUNT)
        took = time.perf_counter() - start
        peers.check_nq(folder, COUNT)
        return took


def bare_loop() -> float:
    start = time.perf_counter()
    running: deque[subprocess.Popen[bytes]] = deque()
    for _ in range(COUNT):
        if len(running) == WIDTH:
            running.popleft().wait()
        running.append(subprocess.Popen(NOTHING, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True))
    for process in running:
        process.wait()
    return time.perf_counter() - start


def loop_with_files(where: str | None, syncs: float) -> float:
    with scratch(where) as folder, open(folder / "journal", "ab", buffering=0) as journal:
        owed = 0.0

        def promise() -> None:
            nonlocal owed
            owed += syncs / 3
            while owed >= 1:
                journal.write(bytes(4096))
                os.fdatasync(journal.fileno())
                owed -= 1

        def end(run: Path, process: "subprocess.Popen[bytes]") -> None:
            process.wait()
            _replace(run / "metadata.json", 700)
            _replace(run / "result.json", 215)
            promise()

        start = time.perf_counter()
        runs = [folder / str(number) for number in range(COUNT)]
        for run in runs:
            promise()
            run.mkdir()
            (run / "work").mkdir()
            _replace(run / "metadata.json", 650)
            _replace(run / "span_id.txt", 17)
        running: deque[tuple[Path, subprocess.Popen[bytes]]] = deque()
        for run in runs:
            if len(running) == WIDTH:
                end(*running.popleft())
            promise()
            for name, size in ((".exit", 4), (".shim", 250), ("output.log", 185)):
                (run / name).write_bytes(bytes(size))
            with open(run / "output.log", "ab") as log:
                running.append((run, subprocess.Popen(NOTHING, stdin=subprocess.DEVNULL, stdout=log, start_new_session=True)))
            _replace(run / "metadata.json", 675)
        for pair in running:
            end(*pair)
        return time.perf_counter() - start


def _replace(path: Path, size: int) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(bytes(size))
    new.replace(path)


def syncs_per_command() -> float | None:
    """How often ours waits for the disk; None where strace cannot count it."""
    if not shutil.which("strace"):
        return None
    with scratch() as folder:
        words = ["strace", "-f", "-c", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(folder / "count"), PYTHON, "-m", __name__]
        done = subprocess.run([*words, str(_COUNTED)], cwd=ROOT, capture_output=True, timeout=120)
        if done.returncode:
            return None
        rows = [line.split() for line in (folder / "count").read_text().splitlines()]
        return sum(int(row[3]) for row in rows if row and row[-1] in ("fsync", "fdatasync")) / _COUNTED


if __name__ == "__main__":  # for strace and the profiler
    own_environment()
    print(ours(None, int(sys.argv[1]) if len(sys.argv) > 1 else COUNT))
