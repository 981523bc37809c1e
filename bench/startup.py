"""What a call of the command line costs against a bare interpreter, and what an idle engine costs. Ratios of one run.

Calls are interleaved, so that a busy machine is equally busy for all of them; best and median are given.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAUNCHER = str(ROOT / "backburner")
PYTHON = str(ROOT / ".venv" / "bin" / "python")
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
IDLE_SECONDS = 20
LIMITS = {"list": 4.0, "status": 4.0, "run": 5.0}


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "BACKBURNER_HOME": home, "BACKBURNER_ENGINE_IDLE_EXIT_SECONDS": "100000"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run([LAUNCHER, "run", "--wait", "--", "true"], env=environ, cwd=home, check=True, capture_output=True)
        calls = {
            "python -c pass": [PYTHON, "-c", "pass"],
            "list": [LAUNCHER, "list"],
            "status": [LAUNCHER, "status", "last"],
            "run": [LAUNCHER, "run", "--", "true"],
        }
        took: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(ROUNDS):
            for name, words in calls.items():
                start = time.perf_counter()
                subprocess.run(words, env=environ, cwd=home, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                took[name].append(time.perf_counter() - start)
        pid = int(Path(home, "engine.lock").read_text().split(":")[0])
        try:
            idle = idle_cost(pid)
        finally:
            os.kill(pid, 15)
    bare = took["python -c pass"]
    figures = {
        name: {"best": round(min(times) / min(bare), 2), "median": round(statistics.median(times) / statistics.median(bare), 2)}
        for name, times in took.items()
    }
    print(f"{'':16}{'best':>8}{'median':>8}   limit")
    for name, ratios in figures.items():
        limit = LIMITS.get(name)
        print(f"{name:16}{ratios['best']:>8}{ratios['median']:>8}   {f'{limit:g} x python -c pass' if limit else ''}")
    print(f"engine idle: {idle['megabytes']} MB (limit 40), {idle['wakeups']} wake-ups and {idle['cpu_ms']} ms of CPU in {IDLE_SECONDS} s")
    print(json.dumps({"startup": figures, "idle": idle}))


def idle_cost(pid: int) -> dict[str, float]:
    """Memory (PSS), context switches and CPU time of a process that has nothing to do."""
    time.sleep(2)
    before = _switches(pid), _cpu_ms(pid)
    time.sleep(IDLE_SECONDS)
    after = _switches(pid), _cpu_ms(pid)
    pss = next(int(line.split()[1]) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return {"megabytes": round(pss / 1024, 1), "wakeups": after[0] - before[0], "cpu_ms": round(after[1] - before[1], 1)}


def _switches(pid: int) -> int:
    return sum(int(line.split()[1]) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ctxt_switches" in line)


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
