"""300 no-op commands, five at a time: Backburner, task-spooler, nq, and loops as a reference for the machine.

The first loop only starts processes. The second also writes the files of a Backburner run, syncs the disk equally often, and starts each
command through a shell, as Backburner does, so that it outlives the program. The third does the same without these shells.
"""

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from backburner import BackburnerSync
from backburner.store.sqlite import SqliteDatabase
from bench import peers
from bench.home import BenchHome, clean_environment, scratch_folder
from bench.library import Library
from bench.rounds import Figures, run_rounds

COUNT, WIDTH, NO_OP = 300, 5, ["true"]
_IN_SHELL = ["/bin/sh", "-c", f"{shutil.which('true')}; exit $?"]  # `true` alone is part of the shell


def measure(rounds: int, parent: str | None) -> list[Figures]:
    """Return the seconds for all commands, with homes and queues below `parent`."""
    syncs = syncs_per_command()
    missing = peers.missing()
    candidates: dict[str, Callable[[], float | Figures]] = {"backburner": lambda: backburner(parent), "engine": lambda: engine(parent)}
    if "task-spooler" not in missing:
        candidates["task-spooler"] = lambda: task_spooler(parent)
    if "nq" not in missing:
        candidates["nq"] = lambda: serial_nq(parent)
    candidates["bare loop"] = lambda: bare_loop()
    candidates["loop"] = lambda: loop(parent, syncs, _IN_SHELL)
    candidates["loop without shells"] = lambda: loop(parent, syncs, NO_OP)
    return [{**figures, "syncs per command": syncs} for figures in run_rounds(candidates, rounds)]


def backburner(parent: str | None, count: int = COUNT) -> float:
    with scratch_folder() as work, scratch_folder(parent) as folder, BenchHome(folder) as home, Library(home.root, work, WIDTH) as library:
        start = time.perf_counter()
        library.run(NO_OP, count)
        elapsed = time.perf_counter() - start
        library.check(count)
        return elapsed


def engine(parent: str | None) -> float:
    """Submit through the library and let the engine run the commands."""
    with scratch_folder(parent) as folder, BenchHome(folder, WIDTH) as home, BackburnerSync.open(home.root) as library:
        library.wait(library.submit(NO_OP, cwd=home.cwd, approved=True).task.task_id)  # starts the engine
        return submit_all(library, home)


def submit_all(library: BackburnerSync, home: BenchHome, count: int = COUNT) -> float:
    """Submit all commands and wait for them. Returns the seconds that this took."""
    start = time.perf_counter()
    ids = [library.submit(NO_OP, cwd=home.cwd, approved=True).task.task_id for _ in range(count)]
    entries = library.wait(*ids)
    elapsed = time.perf_counter() - start
    assert [str(entry.status) for entry in entries] == ["completed"] * count
    return elapsed


def task_spooler(parent: str | None) -> float:
    with scratch_folder(parent) as folder, peers.TaskSpooler(folder, WIDTH) as spooler:
        start = time.perf_counter()
        spooler.run(NO_OP, COUNT)
        elapsed = time.perf_counter() - start
        spooler.check(COUNT)
        return elapsed


def serial_nq(parent: str | None) -> float:
    with scratch_folder(parent) as folder:
        start = time.perf_counter()
        peers.nq(folder, NO_OP, COUNT)
        elapsed = time.perf_counter() - start
        peers.check_nq(folder, COUNT)
        return elapsed


def bare_loop() -> float:
    start = time.perf_counter()
    running: deque[subprocess.Popen[bytes]] = deque()
    for _ in range(COUNT):
        if len(running) == WIDTH:
            running.popleft().wait()
        running.append(subprocess.Popen(NO_OP, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True))
    for process in running:
        process.wait()
    return time.perf_counter() - start


def loop(parent: str | None, syncs: float, command: list[str]) -> float:
    with scratch_folder(parent) as folder, open(folder / "journal", "ab", buffering=0) as journal:
        pending_syncs = 0.0

        def commit() -> None:
            nonlocal pending_syncs
            pending_syncs += syncs / 3
            while pending_syncs >= 1:
                journal.write(bytes(4096))
                os.fdatasync(journal.fileno())
                pending_syncs -= 1

        def end(run: Path, process: "subprocess.Popen[bytes]") -> None:
            process.wait()
            _replace(run / "metadata.json", 700)
            _replace(run / "result.json", 215)
            commit()

        start = time.perf_counter()
        runs = [folder / str(number) for number in range(COUNT)]
        for run in runs:
            commit()
            run.mkdir()
            (run / "work").mkdir()
            _replace(run / "span_id.txt", 17)
        running: deque[tuple[Path, subprocess.Popen[bytes]]] = deque()
        for run in runs:
            if len(running) == WIDTH:
                end(*running.popleft())
            commit()
            for name, size in ((".exit", 900), ("output.log", 185)):
                (run / name).write_bytes(bytes(size))
            with open(run / "output.log", "ab") as log:
                running.append((run, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, start_new_session=True)))
        for pair in running:
            end(*pair)
        return time.perf_counter() - start


def _replace(path: Path, size: int) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(bytes(size))
    new.replace(path)


def syncs_per_command() -> float:
    """Return how often Backburner syncs the disk per command: how many transactions must be on disk before it continues."""
    count, begin = 0, SqliteDatabase.begin

    def counted(database: SqliteDatabase, durable: bool) -> None:
        nonlocal count
        count += durable
        begin(database, durable)

    SqliteDatabase.begin = counted  # type: ignore[method-assign]
    try:
        backburner(None)
    finally:
        SqliteDatabase.begin = begin  # type: ignore[method-assign]
    return count / COUNT


if __name__ == "__main__":  # for a profiler
    clean_environment()
    print(backburner(None, int(sys.argv[1]) if len(sys.argv) > 1 else COUNT))
