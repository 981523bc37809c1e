"""Memory and CPU of an idle engine, and Backburner's memory per running command."""

import time

from backburner import BackburnerSync
from bench.home import (
    BenchHome,
    exact_cpu_seconds,
    log_writer_of,
    parent,
    pss_mb,
    running_commands,
    sandbox_starters_of,
    scratch_folder,
    shims_of,
    wait_until,
)
from bench.rounds import Figures, run_rounds

COMMANDS, MAX_CONCURRENT = 50, 60


def measure(rounds: int, idle_seconds: float) -> list[Figures]:
    """Return megabytes (PSS, so that shared memory is divided) and percent of a core."""
    return run_rounds({"backburner": lambda: backburner(idle_seconds)}, rounds, warm_up=False)


def backburner(idle_seconds: float) -> Figures:
    with scratch_folder() as folder, BenchHome(folder, MAX_CONCURRENT) as home, BackburnerSync.open(home.root) as library:
        home.cli("run", "--wait", "--", "true")
        engine = home.engine
        assert engine
        time.sleep(2)
        before = exact_cpu_seconds(engine)
        time.sleep(idle_seconds)
        used = exact_cpu_seconds(engine) - before
        idle = pss_mb(engine) + pss_mb(log_writer_of(engine))
        others = sum(map(pss_mb, (parent(engine), *sandbox_starters_of(engine))))
        for _ in range(COMMANDS):
            library.submit(["sleep", "120"], cwd=home.cwd, approved=True)
        wait_until(lambda: running_commands(engine) == COMMANDS, "all commands to run")
        time.sleep(2)
        shims = shims_of(engine)
        assert len(shims) == COMMANDS, shims
        added_memory = pss_mb(engine) + pss_mb(log_writer_of(engine)) + sum(map(pss_mb, shims)) - idle
        return {"idle MB": idle + others, "idle CPU %": used / idle_seconds * 100, "MB per command": added_memory / COMMANDS}
