"""What the engine talks to. Adapters implement these; tests and other machines bring their own."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from backburner.lifecycle import Result
from backburner.models import Approval, Ending, Entry, Event, Notice, ProcessId, Run, Submission, Work


class Outcome(NamedTuple):
    """How the work itself ended, before anybody decides what that means for the run."""

    result: Result
    exit_code: int | None = None
    error: str | None = None
    ended_at: int | None = None  # where that is known better than by the clock


class Store(Protocol):
    """The ledger. Every verb is one transaction; a guarded one that finds another state raises StaleRun."""

    def submit(
        self,
        submission: Submission,
        *,
        project: str,
        wanted_id: str,
        approval: Approval | None,
        reasons: tuple[str, ...],
        runner: str,
        folder: str,
        now: int,
        expires_at: int | None,
    ) -> Entry: ...
    def approve(self, task_id: str, approval: Approval, *, runner: str, folder: str) -> Entry: ...
    def refuse(self, task_id: str, *, expired: bool, now: int) -> Entry: ...
    def claim(self, runner: str, owner: ProcessId, limit: int, now: int) -> Sequence[Work]: ...
    def record_process(self, run_id: str, owner: ProcessId, process: ProcessId) -> None: ...
    def settle(self, endings: Sequence[Ending], owner: ProcessId) -> Sequence[str]: ...
    def request_cancel(self, task_id: str, now: int) -> Entry: ...
    def adopt(self, run: Run, owner: ProcessId) -> Work: ...
    def release(self, runner: str) -> int: ...
    def live_runs(self) -> Sequence[Run]: ...
    def show(self, task_id: str) -> Entry | None: ...
    def find(self, reference: str, project: str | None) -> Sequence[str]: ...
    def list(self, *, status: str | None, project: str | None, limit: int | None) -> Sequence[Entry]: ...
    def events(self, after: int, limit: int) -> Sequence[Event]: ...
    def notices(self, *, project: str | None, unread: bool) -> Sequence[Notice]: ...
    def tell(self, *, notice_ids: Iterable[int] = (), task_ids: Iterable[str] = (), now: int) -> None: ...
    def clear(self, task_ids: Sequence[str], now: int) -> Sequence[str]: ...
    def outdated(self, before: int) -> Sequence[str]: ...
    def overdue_proposals(self, now: int) -> Sequence[str]: ...
    def close(self) -> None: ...


class Handle(Protocol):
    """A command at work, launched here or taken over."""

    process: ProcessId | None

    async def ended(self) -> Outcome: ...
    async def stop(self, grace: float) -> Outcome | None:
        """End it and prove it; None where it had ended by itself before the first signal."""
        ...

    def close(self) -> tuple[str | None, int | None]:
        """Finish the log; its summary and its count of lines."""
        ...


class Executor(Protocol):
    """Turns claimed work into a living process. Raises CannotStart where that is impossible."""

    output_cap: int

    def launch(self, work: Work) -> Handle: ...
    def attach(self, work: Work) -> Handle | None:
        """Take over what another owner started; None where it is certain that it never began."""
        ...


class StartLater(Exception):
    """The machine has no room for one more process or file right now."""


class CannotStart(Exception):
    """The command could not be started; the message says why, `exit_code` is what a shell would give."""

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
