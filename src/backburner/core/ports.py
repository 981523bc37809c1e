"""What the engine talks to. Adapters implement these; tests and other machines bring their own."""

import errno
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import NamedTuple, Protocol

from backburner.core.claims import ClaimedRun
from backburner.core.models import ProcessId
from backburner.core.states import Result, WaitKind


class Outcome(NamedTuple):
    """How the work itself ended, before anybody decides what that means for the run."""

    result: Result
    exit_code: int | None = None
    error: str | None = None
    ended_at: int | None = None  # where that is known better than by the clock
    answer: str | None = None  # what an agent said
    usage: dict[str, float] = {}
    digest: str | None = None  # of what it found, as its task declares that
    report: bool = True  # whether an agent thinks that it is worth telling
    problem: str | None = None  # the kind of a failure


class Handle(Protocol):
    """A command at work, launched here or taken over."""

    process: ProcessId | None

    async def ended(self) -> Outcome: ...
    async def ready(self, when: str) -> bool:
        """Wait until it is ready: it listens on a port, or prints a line that fits; False where that can never be told."""
        ...

    async def stop(self, grace: float) -> Outcome | None:
        """End it and prove it; None where it had ended by itself before the first signal."""
        ...

    def close(self) -> tuple[str | None, int | None]:
        """Finish the log; its summary and its count of lines."""
        ...


class Executor(Protocol):
    """Turns claimed work into a living process. Raises CannotStart where that is impossible."""

    output_cap: int

    def launch(self, work: ClaimedRun) -> Handle: ...
    def attach(self, work: ClaimedRun) -> Handle | None:
        """Take over what another owner started; None where it is certain that it never began."""
        ...


class Suspended(Exception):
    """An agent cannot go on for now; the message says why, `kind` and `target` what it waits for."""

    def __init__(self, reason: str, kind: WaitKind, target: str | None = None) -> None:
        super().__init__(reason)
        self.kind, self.target = kind, target


class AgentTurn(NamedTuple):
    """What an agent is to do: answer `message` in the conversation that its files hold, or go on where it stopped.

    `reply` is a person's word to what it asked for, `extensions` how often its budget was granted once more.
    """

    work: ClaimedRun
    settings: dict[str, str]
    folder: str
    conversation: str
    is_new_message: bool  # whether `message` was not said to it yet
    running_tools: list[str]  # the tools at work in this moment: where it is stopped then, their effect is not known
    on_process_started: "Callable[[ProcessId], None]" = lambda _: None  # to be told which process the agent is, where it is one of its own

    @property
    def message(self) -> str:
        return self.work.run.message or ""


class Agent(Protocol):
    """Somebody who can be asked. Cancelling the call stops it; what it did is in its conversation by then."""

    async def answer(self, turn: AgentTurn) -> Outcome:
        """Work until there is an answer. Parked where it has to wait; a failure is an Outcome that says why."""
        ...

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None:
        """Why it could not be asked now; None where it answers."""
        ...


class OutgoingMessage(NamedTuple):
    """A notice as it leaves the house. Its `key` is the same in every attempt; a `question` wants a person's yes or no."""

    key: str
    task_id: str
    title: str
    text: str
    priority: int
    created_at: int
    question: bool


class DeliveryFailed(Exception):
    """A message was not delivered, or delivery is uncertain. It is retried after `retry_after` seconds at the earliest; `permanent` means never."""

    def __init__(self, reason: str, *, retry_after: float | None = None, permanent: bool = False) -> None:
        super().__init__(reason)
        self.retry_after, self.permanent = retry_after, permanent


class ChannelReply(NamedTuple):
    """What somebody answered to a message that a channel sent."""

    message: str
    person: str
    approved: bool


class Channel(Protocol):
    """A way to somebody outside. Sends one letter at a time, in order."""

    async def send(self, message: OutgoingMessage) -> str | None:
        """Deliver it; what the other side calls the message, where an answer to it can come back. Undelivered where that failed."""
        ...

    def replies(self) -> "AsyncIterator[ChannelReply]":
        """The answers that come in, for as long as it is iterated; ends at once where there can be none."""
        ...

    async def close(self) -> None: ...


class TriggerEvent(NamedTuple):
    """Something that a source saw. `summary` is one line for people, `payload` what came from outside: data, never instructions."""

    summary: str
    payload: dict[str, object]


class Source(Protocol):
    """Watches the world for one task."""

    def watch(self, state: dict[str, object]) -> "AsyncGenerator[tuple[dict[str, object], TriggerEvent | None]]":
        """From what was seen last (empty at the very first time, when the present is only taken down), every change: what to
        remember from then on, and what happened. The two are kept together or not at all."""
        ...


# A start that failed with one of these may succeed later: there is no room for one more file or process right now.
TEMPORARY_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})


class StartLater(Exception):
    """The machine has no room for one more process or file right now."""


class CannotStart(Exception):
    """The command could not be started; the message says why, `exit_code` is what a shell would give."""

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
