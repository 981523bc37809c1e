"""Time of a command line call with a running engine, compared with starting Python."""

import subprocess
import time

from bench.home import PYTHON, BenchHome, scratch_folder
from bench.rounds import Figures, run_rounds


def measure(rounds: int) -> list[Figures]:
    """Return the milliseconds of a call."""
    with scratch_folder() as folder, BenchHome(folder, None) as home:
        home.cli("run", "--wait", "--", "true")

        def bare_python() -> float:
            start = time.perf_counter()
            subprocess.run([PYTHON, "-c", "pass"], cwd=home.cwd, check=True, stdin=subprocess.DEVNULL, capture_output=True)
            return (time.perf_counter() - start) * 1000

        def run() -> float:
            elapsed = home.seconds("run", "--", "true") * 1000
            time.sleep(0.05)  # so that the command does not slow down the next call
            return elapsed

        candidates = {
            "python -c pass": bare_python,
            "list": lambda: home.seconds("list") * 1000,
            "status": lambda: home.seconds("status", "last") * 1000,
            "run": run,
        }
        return run_rounds(candidates, rounds)
