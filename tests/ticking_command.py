"""A command that records when it runs: `ticking_command.py RECORD FINISH CODE`. Used by tests that run it on several hosts of one machine.

It appends lines to the file RECORD, `RUN_ID HOST NANOSECONDS`, by the monotonic clock, which is the same for all processes of the
machine, and ends with CODE when the file FINISH exists. Runs without the packages of Backburner.
"""

import itertools
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

_INTERVAL = 0.01  # seconds


class Lifetime(NamedTuple):
    """When a run was seen to run first and last, in seconds, and on which host."""

    run_id: str
    host: str
    first: float
    last: float


def lifetimes(record: Path) -> list[Lifetime]:
    """What ran, in the order in which it began. Two starts of one run, by different processes, are two of these."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for line in record.read_text().splitlines() if record.exists() else ():
        run_id, host, pid, nanoseconds = line.split()
        found.setdefault((run_id, host, pid), []).append(int(nanoseconds) / 1e9)
    return sorted((Lifetime(run_id, host, times[0], times[-1]) for (run_id, host, _), times in found.items()), key=lambda one: one.first)


def overlap(lives: list[Lifetime]) -> float:
    """For how many seconds two of these ran at the same time, at most."""
    return max((before.last - after.first for before, after in itertools.pairwise(lives)), default=0.0)


def main(record: str, finish: str, code: str) -> int:
    descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    host = os.path.basename(os.environ["BACKBURNER_HOME"])
    # in the process namespace of a run, the number of a process can be the same on two hosts, and after a second start
    who = f"{os.environ['BACKBURNER_RUN_ID']} {host} {os.getpid()}-{time.monotonic_ns()}"
    print("begun", flush=True)
    while True:
        os.write(descriptor, f"{who} {time.monotonic_ns()}\n".encode())
        if os.path.exists(finish):
            return int(code)
        time.sleep(_INTERVAL)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
