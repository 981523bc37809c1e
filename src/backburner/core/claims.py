"""What the run queue and a runner hand each other: claimed runs and their ends."""

from collections.abc import Sequence
from typing import NamedTuple

from backburner.core.models import ProcessId, Run, Task
from backburner.core.states import Result, RunState


class ClaimedRun(NamedTuple):
    """A claimed run with everything needed to start it."""

    task: Task
    run: Run
    environment: dict[str, str]


class RunResult(NamedTuple):
    """How a run ended, ready to be written: the state it reaches and everything known about the end."""

    run_id: str
    state: RunState
    result: Result
    ended_at: int
    exit_code: int | None = None
    error: str | None = None
    summary: str | None = None
    lines: int | None = None
    artifacts: tuple[str, ...] = ()
    process: ProcessId | None = None
    answer: str | None = None
    usage: dict[str, float] = {}
    digest: str | None = None  # what a standing task found, for `on_change`
    report: bool = True  # whether its agent thinks that it is worth telling
    problem: str | None = None


class Settled(NamedTuple):
    """What one turn of a runner came to: the ends that were written, and the work it claimed."""

    run_ids: Sequence[str]
    claimed: Sequence[ClaimedRun]
