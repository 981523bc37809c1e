"""Records exchanged between the run queue and a runner: claimed runs and their results."""

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
    """The result of a run, ready to be stored: its final state and how it ended."""

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
    digest: str | None = None  # hash of the result of a recurring task, for `notify = on_change`
    report: bool = True  # whether the agent considers the result worth a notice
    problem: str | None = None


class Settled(NamedTuple):
    """The outcome of one pass of a runner: the runs whose results were stored, and the runs it claimed."""

    run_ids: Sequence[str]
    claimed: Sequence[ClaimedRun]
