"""What one decision of the gate costs, warm: the median and the slowest of everyday command lines. The promise is under 1 ms."""

import os
import statistics
import time

from backburner.approval.policy import judge
from backburner.models import Submission
from backburner.surroundings import Surroundings

LINES = [
    "ls -la",
    "git status",
    "git diff HEAD~1 -- src",
    "grep -rn TODO src",
    "cd src && ls | wc -l",
    "pytest -q tests",
    "make -j4 all",
    "find . -name '*.py' -exec wc -l {} +",
    "rm -rf build",
]


def main() -> None:
    here, environ = os.getcwd(), dict(os.environ)
    medians = {}
    for line in LINES:
        submission, took = Submission((line,), here, environ, shell=True), []
        for _ in range(200):
            start = time.perf_counter()
            judge(submission, Surroundings(here, environ))
            took.append(time.perf_counter() - start)
        medians[line] = statistics.median(took) * 1000
    for line, milliseconds in medians.items():
        print(f"{milliseconds:8.3f} ms  {line}")
    print(f"gate: median {statistics.median(medians.values()):.3f} ms, slowest {max(medians.values()):.3f} ms (limit 1 ms)")


if __name__ == "__main__":
    main()
