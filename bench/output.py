"""A gigabyte of output in writes of 64 KB: through `backburner run` into its capped log, and into a plain file."""

import json
import os
import re
import subprocess
import time

from bench.place import Place, cpu_seconds, scratch
from bench.turns import Figures, take_turns

# The last line is what the writer itself used, so that it can be told from what we add.
WRITER = ["/bin/sh", "-c", "dd if=/dev/zero bs=64k count=16384 status=none; echo; times"]


def measure(rounds: int) -> list[Figures]:
    """Seconds for all of it, and seconds of CPU of the engine and of what carries the output."""
    with scratch() as folder, Place(folder) as place:
        place.cli("run", "--wait", "--", "true")
        return take_turns({"ours": lambda: ours(place), "plain file": lambda: plain_file(place)}, rounds, warm_up=False)


def ours(place: Place) -> Figures:
    _same_start(place)
    assert place.engine
    engine, ended = cpu_seconds(place.engine)
    start = time.perf_counter()
    task_id = place.cli("run", "--yes", "--", *WRITER).strip()
    place.cli("wait", task_id)
    took = time.perf_counter() - start
    engine_after, ended_after = cpu_seconds(place.engine)
    (task,) = json.loads(place.cli("list", "--limit", "1", "--json"))
    place.cli("clear", task_id)
    writer = sum(int(minutes) * 60 + float(seconds) for minutes, seconds in re.findall(r"(\d+)m([\d.]+)s", task["summary"]))
    return {"ours": took, "engine CPU": engine_after - engine, "carrier CPU": max(0.0, ended_after - ended - writer), "writer CPU": writer}


def plain_file(place: Place) -> float:
    _same_start(place)
    return _write(place)


def _same_start(place: Place) -> None:
    """As near as can be had: as much was written and removed just now, and nothing is left to be written."""
    _write(place)
    os.sync()


def _write(place: Place) -> float:
    path = place.cwd / "output"
    with open(path, "wb") as file:
        start = time.perf_counter()
        subprocess.run(WRITER, stdout=file, stdin=subprocess.DEVNULL, check=True)
        took = time.perf_counter() - start
    path.unlink()
    return took
