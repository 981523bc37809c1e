"""What an engine costs that has nothing to do, and how much memory of ours each running command takes."""

import time

from backburner import BackburnerSync
from bench.place import Place, children, exact_cpu_seconds, parent, pss_mb, scratch, wait_until
from bench.turns import Figures, take_turns

COMMANDS, CAP = 50, 60


def measure(rounds: int, idle_seconds: float) -> list[Figures]:
    """Megabytes (shared memory counted in parts) and per cent of a core."""
    return take_turns({"ours": lambda: ours(idle_seconds)}, rounds, warm_up=False)


def ours(idle_seconds: float) -> Figures:
    with scratch() as folder, Place(folder, CAP) as place, BackburnerSync.open(place.root) as library:
        place.cli("run", "--wait", "--", "true")
        engine = place.engine
        assert engine
        time.sleep(2)
        before = exact_cpu_seconds(engine)
        time.sleep(idle_seconds)
        used = exact_cpu_seconds(engine) - before
        idle = pss_mb(engine)
        keeper = pss_mb(parent(engine))
        for _ in range(COMMANDS):
            library.submit(["sleep", "120"], cwd=place.cwd, approved=True)
        wait_until(lambda: sum(bool(children(shim)) for shim in children(engine)) == COMMANDS, "all commands to run")
        time.sleep(2)
        ours = children(engine)  # for every command its shim and the `cat` that carries its output, and one `cat` kept ready
        assert len(ours) == 2 * COMMANDS + 1, ours
        grown = pss_mb(engine) - idle + sum(map(pss_mb, ours))
        return {"idle MB": idle + keeper, "idle CPU %": used / idle_seconds * 100, "MB per command": grown / COMMANDS}
