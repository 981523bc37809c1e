"""`python -m bench [--quick] [LINE…]` runs the benchmarks and prints a table.

The table, the raw figures and a chart are stored in bench/results/. A missed limit and a tool that is not installed are
shown in the table; the exit code stays 0.
"""

import argparse
import json
import os
import platform
import signal
import sys
import time
import traceback

from bench import peers
from bench.home import MEMORY, ROOT, clean_environment, disk, filesystem
from bench.lines import GROUPS, Result, results
from bench.picture import draw
from bench.table import table


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure speed and memory, and compare them with the limits.")
    parser.add_argument("--quick", action="store_true", help="run fewer rounds")
    parser.add_argument("line", nargs="*", metavar="NAME", help=f"run only these: {', '.join(GROUPS)}")
    args = parser.parse_args()
    if unknown := [name for name in args.line if name not in GROUPS]:
        parser.error(f"unknown benchmark {unknown[0]!r}; choose from {', '.join(GROUPS)}")
    clean_environment()
    terminated = []

    def terminate(*_: object) -> None:
        terminated.append(True)
        sys.exit(143)  # exit handlers end all processes and remove all folders

    signal.signal(signal.SIGTERM, terminate)
    for name in peers.missing():
        print(f"{name} is not installed; its lines are skipped", file=sys.stderr)
    raw, all_results, failed = {}, [], []
    for name in args.line or GROUPS:
        print(f"{name} ", end="", file=sys.stderr, flush=True)
        try:
            raw[name] = GROUPS[name](args.quick)
        except Exception:  # the others are still measured
            traceback.print_exc()
            if terminated:  # this happened while it ended
                sys.exit(143)
            failed.append(name)
            continue
        all_results += results(name, raw[name])
        print(file=sys.stderr)
    environment = {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "disk": filesystem(disk()),
        "memory": filesystem(MEMORY),
        "peers": peers.versions(),
        "quick": args.quick,
    }
    print(table(all_results))
    print(
        f"\n{environment['when']}, {environment['system']}, {environment['cores']} cores, load {environment['load']:.1f}, disk {environment['disk']}"
    )
    _store("partial" if args.quick or args.line else "latest", environment, all_results, raw)
    if failed:
        sys.exit(f"Failed, without a result: {', '.join(failed)}")


def _store(name: str, environment: dict, all_results: list[Result], raw: dict) -> None:
    """Store the results in files called `name`: 'latest' for a complete run, 'partial' otherwise."""
    folder = ROOT / "bench" / "results"
    folder.mkdir(exist_ok=True)
    lines = [
        {
            "group": result.line.group,
            "what": result.line.what,
            "against": result.line.against,
            "unit": result.line.unit,
            "limit": result.line.limit,
            "at_least": result.line.is_minimum,
            "figure": result.figure,
            "quartiles": [result.low, result.high],
            "rounds": result.rounds,
            "met": result.met,
        }
        for result in all_results
    ]
    (folder / f"{name}.json").write_text(json.dumps({"about": environment, "lines": lines, "raw": raw}, indent=1) + "\n")
    (folder / f"{name}.md").write_text(table(all_results) + "\n")
    (folder / f"{name}.svg").write_text(draw(all_results, f"{environment['when']}, {environment['cores']} cores"))
    print(f"Stored as bench/results/{name}.json, .md and .svg")


if __name__ == "__main__":
    main()
