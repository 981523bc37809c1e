"""Who uses a home: sessions of agents, the last activity of a person, and priority for a person who waits for a model."""

import contextlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from backburner.coordination.changes import ChangeFeed
from backburner.core.errors import LedgerUnavailable
from backburner.core.models import Clock, ProcessId, Task
from backburner.core.session_records import InteractiveLease, Session
from backburner.core.sessions import Client, session_of
from backburner.system.processes import is_alive, myself

if TYPE_CHECKING:
    from backburner.core.store_ports import LedgerQueries, SessionStore

_ACTIVITY_INTERVAL_MS = 60_000  # how often activity is written down


class Sessions:
    """Sessions, user activity and interactive priority."""

    def __init__(self, ledger_queries: "LedgerQueries", session_store: "SessionStore", changes: ChangeFeed, clock: Clock) -> None:
        self._ledger_queries, self._session_store, self._changes, self._clock = ledger_queries, session_store, changes, clock

    def register(self, session: str, client: str, project: str, process: ProcessId | None) -> None:
        """Record that a session is active: its notices wait for it, and not for the person, as long as `process` lives."""
        now = self._clock()
        self._session_store.register(Session(session, client, project, process, now, now))

    def list(self, client: str | None = None) -> Sequence[Session]:
        """The sessions that asked for work here, latest first; only those of one client if given."""
        return self._session_store.sessions(client)

    def has_open_work(self, sessions: Sequence[str]) -> bool:
        """Whether anything that these sessions asked for has not ended."""
        return self._session_store.has_open_work(sessions)

    def chat_is_open(self) -> bool:
        """Whether a person sits at a chat now."""
        return any(is_alive(session.process) for session in self.list(Client.CHAT))

    # -- user activity

    def record_activity(self, interface: str) -> None:
        """Record that a person used an interface; written at most once a minute."""
        with contextlib.suppress(LedgerUnavailable):  # nobody waits for it
            if abs(self._clock() - (self._session_store.last_activity() or 0)) > _ACTIVITY_INTERVAL_MS:
                self._session_store.record_activity(interface, self._clock())

    def last_activity(self) -> int | None:
        """When a person last used an interface, in milliseconds UTC."""
        return self._session_store.last_activity()

    # -- interactive priority

    @contextlib.contextmanager
    def interactive(self, lane: str, task_id: str | None = None) -> Generator[None]:
        """While a person waits for a model of a lane, background runs of that lane wait after their current tool call.

        Runs that the task asked for are part of the interactive work and go on.
        """
        process = myself()
        self._session_store.begin_interactive(InteractiveLease(process, lane, task_id, self._clock()))
        self._changes.announce()
        try:
            yield
        finally:
            self._session_store.end_interactive(process, self._clock())
            self._changes.announce()

    def must_yield(self, task: Task) -> bool:
        """Whether an agent's task has to wait because a person waits for a model of its lane."""
        turns = [turn for turn in self._session_store.interactive_leases() if turn.lane == task.lane]
        return bool(turns) and not any(self._belongs_to(turn, task) for turn in turns)

    def _belongs_to(self, turn: InteractiveLease, task: Task) -> bool:
        """Whether the person waits for this task, or for the one that asked for it."""
        own = self._ledger_queries.get(turn.task_id) if turn.task_id else None
        if own is None:
            return False
        return own.task.task_id == task.task_id or task.task_id in self._ledger_queries.requested_by(session_of(own.task))
