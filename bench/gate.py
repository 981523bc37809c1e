"""Time of one decision of the approval gate for common command lines, with warm caches."""

import os
import statistics
import time

from backburner.approval.policy import SandboxSettings, judge_for_sandbox
from backburner.core.sandbox import Level, Support
from backburner.system.command_context import LocalCommandContext
from backburner.testing.records import request
from bench.rounds import Figures, run_rounds

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
_REPETITIONS = 20


def measure(rounds: int) -> list[Figures]:
    """Return the milliseconds of a decision, the median of 20."""
    return run_rounds({line: lambda line=line: _judge(line) for line in LINES}, rounds)


def _judge(line: str) -> float:
    cwd, environ = os.getcwd(), dict(os.environ)
    settings = SandboxSettings(Support(Level.FULL, "/usr/bin/bwrap", overlay=True, listen=True), environ.get("HOME", "/"))
    submission, times = request((line,), cwd, environ, shell=True), []
    for _ in range(_REPETITIONS):
        start = time.perf_counter()
        judge_for_sandbox(submission, LocalCommandContext(cwd, environ, project=cwd, confined=True), (), settings)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)
