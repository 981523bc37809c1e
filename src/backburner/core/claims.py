"""Records exchanged between the run queue and a runner: claimed runs and their results."""

from collections.abc import Sequence

from backburner.core.light_typing import NamedTuple
from backburner.core.models import ProcessId, Run, Task
from backburner.core.states import Result, RunState
from backburner.core.terminal_text import encodable


class ClaimedRun(NamedTuple):
    """A claimed run with everything needed to start it."""

    task: Task
    run: Run
    environment: dict[str, str]


class LogEnd(NamedTuple):
    """What is stored of the log of an ended run: its summary, its number of lines, and its beginning and end as text."""

    summary: str | None = None
    lines: int | None = None
    text: str = ""


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
    output: str = ""  # of a command, as in its notice
    usage: dict[str, float] = {}
    digest: str | None = None  # hash of the result of a recurring task, for `notify = on_change`
    report: bool = True  # whether the agent considers the result worth a notice
    problem: str | None = None
    notes: tuple[str, ...] = ()

    def storable(self) -> "RunResult":
        """The same with a replacement for unpaired surrogates, which UTF-8 cannot encode: no text may keep a run from ending."""
        texts = {"error": self.error, "summary": self.summary, "answer": self.answer, "output": self.output}
        replaced = {name: encodable(text) for name, text in texts.items() if text and not text.isascii()}
        return self._replace(**replaced, notes=tuple(map(encodable, self.notes)))  # ty: ignore[invalid-argument-type]


class Recheck(NamedTuple):
    """The result of the check right before a run starts: why it may not start, or the sandbox that it starts in."""

    sandbox: str | None = None  # as in core/sandbox.py; None if it is not confined
    reason: str | None = None
    fingerprint: str | None = None  # of what an approval would cover now
    rule: str = ""  # of this host, which allows what another host has submitted without an approval


class Settled(NamedTuple):
    """The outcome of one pass of a runner: the runs whose results were stored, and the runs it claimed."""

    run_ids: Sequence[str]
    claimed: Sequence[ClaimedRun]
