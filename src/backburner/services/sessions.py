"""Sessions of agents, the last user activity, and priority for a person who is waiting for a model."""

import contextlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from backburner.coordination.changes import ChangeFeed
from backburner.core.errors import LedgerUnavailable
from backburner.core.models import Clock, ProcessId, Task
from backburner.core.session_records import InteractiveLease, Session
from backburner.core.sessions import Client
from backburner.system.processes import is_alive, myself

if TYPE_CHECKING:
    from backburner.core.store_ports import SessionStore

_ACTIVITY_INTERVAL_MS = 60_000  # minimum time between two records of user activity
_REGISTER_INTERVAL_MS = 60_000  # the same for a session that is still the newest of its client


class Sessions:
    """Sessions, user activity and interactive priority."""

    def __init__(self, session_store: "SessionStore", changes: ChangeFeed, clock: Clock) -> None:
        self._session_store, self._changes, self._clock = session_store, changes, clock

    def register(self, session: str, client: str, project: str, process: ProcessId | None) -> None:
        """Record that a session is active: as long as `process` is alive, its notices go to the session and not to the person.

        If nothing has changed, it is recorded at most once a minute: each record makes the hooks of all clients read the ledger.
        """
        now = self._clock()
        newest = next(iter(self._session_store.sessions(client)), None)
        if newest and (newest.session_id, newest.process) == (session, process) and abs(now - newest.seen_at) < _REGISTER_INTERVAL_MS:
            return
        self._session_store.register(Session(session, client, project, process, now, now))

    def list(self, client: str | None = None) -> Sequence[Session]:
        """Return the sessions that submitted tasks, latest first; only those of `client` if given."""
        return self._session_store.sessions(client)

    def has_open_work(self, sessions: Sequence[str]) -> bool:
        """Return whether any task that these sessions submitted has not ended."""
        return self._session_store.has_open_work(sessions)

    def chat_is_open(self) -> bool:
        """Return whether any chat is open now."""
        return any(is_alive(session.process) for session in self.list(Client.CHAT))

    # -- user activity

    def record_activity(self, interface: str) -> None:
        """Record that a person used an interface; written at most once a minute."""
        with contextlib.suppress(LedgerUnavailable):  # losing one record does no harm
            if abs(self._clock() - (self._session_store.last_activity() or 0)) > _ACTIVITY_INTERVAL_MS:
                self._session_store.record_activity(interface, self._clock())

    def last_activity(self) -> int | None:
        """When a person last used an interface, in milliseconds UTC."""
        return self._session_store.last_activity()

    # -- interactive priority

    @contextlib.contextmanager
    def interactive(self, lane: str, task_id: str | None = None) -> Generator[None]:
        """Give a person who waits for a model priority: background runs of that lane wait after their current tool call.

        Runs that the task `task_id` submitted are part of the interactive work and continue.
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
        """Return whether an agent task must wait because a person is waiting for a model of its lane."""
        return self._session_store.must_yield(task.task_id, task.lane)
