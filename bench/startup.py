"""What a call of the command line costs beside a bare interpreter, with the engine at hand."""

import subprocess
import time

from bench.place import PYTHON, Place, scratch
from bench.turns import Figures, take_turns


def measure(rounds: int) -> list[Figures]:
    """Milliseconds of a call."""
    with scratch() as folder, Place(folder, None) as place:
        place.cli("run", "--wait", "--", "true")

        def bare() -> float:
            start = time.perf_counter()
            subprocess.run([PYTHON, "-c", "pass"], cwd=place.cwd, check=True, stdin=subprocess.DEVNULL, capture_output=True)
            return (time.perf_counter() - start) * 1000

        def run() -> float:
            took = place.seconds("run", "--", "true") * 1000
            time.sleep(0.05)  # the next one is not to pay for the command itself
            return took

        contestants = {
            "python -c pass": bare,
            "list": lambda: place.seconds("list") * 1000,
            "status": lambda: place.seconds("status", "last") * 1000,
            "run": run,
        }
        return take_turns(contestants, rounds)
