"""Interfaces that adapters implement: executors, agents, channels and event sources."""

import errno
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from backburner.core.claims import ClaimedRun, LogEnd
from backburner.core.models import ProcessId
from backburner.core.states import Result, WaitKind


class Outcome(NamedTuple):
    """How the work of a run ended. The runner derives the run's final state from it."""

    result: Result
    exit_code: int | None = None
    error: str | None = None
    ended_at: int | None = None  # if known more precisely than by the time of observation
    answer: str | None = None  # final message of an agent
    usage: dict[str, float] = {}
    digest: str | None = None  # hash of the result, for `notify = on_change`
    report: bool = True  # whether the agent considers the result worth a notice
    problem: str | None = None  # kind of failure
    notes: tuple[str, ...] = ()  # what else a person should know


class Handle(Protocol):
    """A running command, started by this process or taken over from another one."""

    @property
    def process(self) -> ProcessId | None: ...
    @property
    def is_starting(self) -> bool:
        """Whether its process will be known in a moment."""
        ...

    async def ended(self) -> Outcome: ...
    async def ready(self, when: str) -> bool:
        """Wait until the command is ready: it listens on a port, or prints a matching line. False if that can never be detected."""
        ...

    async def stop(self, grace: float) -> Outcome | None:
        """Stop the command and verify that all its processes are gone; None if it ended before the first signal was sent."""
        ...

    def close(self) -> LogEnd:
        """Finish the log and return what is stored of it."""
        ...


class Executor(Protocol):
    """Starts claimed runs as processes. Raises CannotStart if that is impossible."""

    output_cap: int

    def launch(self, work: ClaimedRun) -> Handle: ...
    def attach(self, work: ClaimedRun) -> Handle | None:
        """Take over a run that another owner started; None if it certainly never started."""
        ...


class Dispatch(Protocol):
    """Hands out the runs of lanes to the hosts that serve them, each to one host, and forwards requests to cancel them."""

    async def work(
        self, queues: Sequence[str], capacity: int, begin: Callable[[str], Awaitable[None]], abort: Callable[[str], None]
    ) -> None:
        """Take runs from these queues, until the call is cancelled. May be called several times, for queues with different limits.

        `begin(run_id)` returns when the run has ended, or if another process has it; until then it occupies a place of the `capacity`. If it
        raises, it is called again after a while. `abort(run_id)` is called if a cancel was requested for a run that has begun. When
        the call is cancelled, so is `begin`, which must let the run continue.
        """
        ...


class Suspended(Exception):
    """An agent cannot continue at the moment. The message says why; `kind` and `target` say what it waits for."""

    def __init__(self, reason: str, kind: WaitKind, target: str | None = None) -> None:
        super().__init__(reason)
        self.kind, self.target = kind, target


class AgentTurn(NamedTuple):
    """The input of an agent: answer `message` in the stored conversation, or continue after an interruption."""

    work: ClaimedRun
    settings: dict[str, str]
    folder: str
    conversation: str
    is_new_message: bool  # whether the agent has not received `message` yet
    running_tools: list[str]  # tools that are running now: if the agent is stopped, their effect is unknown
    on_process_started: "Callable[[ProcessId], None]" = lambda _: None  # called by agents that run in a separate process

    @property
    def message(self) -> str:
        return self.work.run.message or ""


class Agent(Protocol):
    """Answers prompts. Cancelling the call stops the agent; what it has done is stored in its conversation first."""

    async def answer(self, turn: AgentTurn) -> Outcome:
        """Work until there is an answer. Raises Suspended if the agent must wait; a failure is an Outcome with an error."""
        ...

    async def check(self, settings: dict[str, str], environ: dict[str, str]) -> str | None:
        """Return why the agent cannot be used now; None if it answers."""
        ...


class OutgoingMessage(NamedTuple):
    """A notice as it is sent to a channel. `key` is the same for every attempt; a `question` asks a person to approve or reject."""

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
    """A person's answer to a message that a channel sent."""

    message: str
    person: str
    approved: bool


class Channel(Protocol):
    """Sends notices to an external service, such as Discord, one at a time and in order."""

    async def send(self, message: OutgoingMessage) -> str | None:
        """Send a message. Returns its id in the service if it can be answered, else None. Raises DeliveryFailed."""
        ...

    async def check(self) -> None:
        """Raise DeliveryFailed if its settings cannot work. Sends no message."""
        ...

    def replies(self) -> "AsyncIterator[ChannelReply]":
        """Yield incoming answers while it is iterated; ends immediately if the channel does not support answers."""
        ...

    async def close(self) -> None: ...


class TriggerEvent(NamedTuple):
    """A change that a source detected. `summary` is one line for people; `payload` is external data and must not be taken as instructions."""

    summary: str
    payload: dict[str, object]


class Source(Protocol):
    """Detects events for one task."""

    def watch(self, state: dict[str, object]) -> "AsyncGenerator[tuple[dict[str, object], TriggerEvent | None]]":
        """Yield the new state and the event for every change since `state`.

        An empty `state` means the first start: the current situation is recorded without an event. State and event are stored in one
        transaction.
        """
        ...


# A start that failed with one of these errors may succeed later: the machine has no free resources for another file or process.
TEMPORARY_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})


class StartLater(Exception):
    """The machine currently has no resources for another process or file."""


class CannotStart(Exception):
    """The command could not be started. The message says why; `exit_code` is the one a shell would return."""

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
