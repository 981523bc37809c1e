"""`python -m bench [--quick] [LINE…]`: measure, print the table, and keep it with its raw figures and a picture in bench/results/.

A limit that is missed is said, and is no failure of the program.
"""

import argparse
import json
import os
import platform
import signal
import sys
import time

from bench import peers
from bench.lines import GROUPS, Result, results
from bench.picture import draw
from bench.place import MEMORY, ROOT, disk, filesystem, own_environment
from bench.words import table


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure what is promised about speed and memory.")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("line", nargs="*", metavar="LINE", help=f"only some: {', '.join(GROUPS)}")
    args = parser.parse_args()
    if unknown := [name for name in args.line if name not in GROUPS]:
        parser.error(f"there is no line {unknown[0]!r}; there are {', '.join(GROUPS)}")
    own_environment()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # on the way out everything is ended and removed
    for name in peers.missing():
        print(f"{name} is not here; its lines cannot be compared", file=sys.stderr)
    raw, found = {}, []
    for name in args.line or GROUPS:
        print(f"{name} ", end="", file=sys.stderr, flush=True)
        raw[name] = GROUPS[name](args.quick)
        found += results(name, raw[name])
        print(file=sys.stderr)
    about = {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "disk": filesystem(disk()),
        "memory": filesystem(MEMORY),
        "peers": peers.versions(),
        "quick": args.quick,
    }
    print(table(found))
    print(f"\n{about['when']}, {about['system']}, {about['cores']} cores, load {about['load']:.1f}, disk {about['disk']}")
    _keep("partial" if args.quick or args.line else "latest", about, found, raw)


def _keep(name: str, about: dict, found: list[Result], raw: dict) -> None:
    """A whole benchmark is kept apart from a part of one."""
    folder = ROOT / "bench" / "results"
    folder.mkdir(exist_ok=True)
    lines = [
        {
            "group": result.line.group,
            "what": result.line.what,
            "against": result.line.against,
            "unit": result.line.unit,
            "limit": result.line.limit,
            "at_least": result.line.least,
            "figure": result.figure,
            "quartiles": [result.low, result.high],
            "rounds": result.rounds,
            "met": result.met,
        }
        for result in found
    ]
    (folder / f"{name}.json").write_text(json.dumps({"about": about, "lines": lines, "raw": raw}, indent=1) + "\n")
    (folder / f"{name}.md").write_text(table(found) + "\n")
    (folder / f"{name}.svg").write_text(draw(found, f"{about['when']}, {about['cores']} cores"))
    print(f"kept as bench/results/{name}.json, .md and .svg")


if __name__ == "__main__":
    main()
