"""What one decision of the gate costs, warm, for everyday command lines."""

import os
import statistics
import time

from backburner.approval.policy import judge
from backburner.system.command_context import LocalCommandContext
from backburner.testing.records import request
from bench.turns import Figures, take_turns

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
_TIMES = 20


def measure(rounds: int) -> list[Figures]:
    """Milliseconds of a decision, the median of a few."""
    return take_turns({line: lambda line=line: _judge(line) for line in LINES}, rounds)


def _judge(line: str) -> float:
    here, environ = os.getcwd(), dict(os.environ)
    submission, took = request((line,), here, environ, shell=True), []
    for _ in range(_TIMES):
        start = time.perf_counter()
        judge(submission, LocalCommandContext(here, environ, project=here))
        took.append((time.perf_counter() - start) * 1000)
    return statistics.median(took)
