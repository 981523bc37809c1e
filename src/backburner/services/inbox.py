"""Notices for people and sessions: what is pending, taking it to show it, and acknowledging it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from backburner.coordination.supervision import EngineSupervisor
from backburner.core.models import Clock
from backburner.core.notices import Notice
from backburner.core.recipients import INBOX, Recipient, RecipientKind, recipient_of
from backburner.core.session_records import Session
from backburner.core.sessions import SessionId, is_chat
from backburner.services.agent_catalog import AgentCatalog
from backburner.system.processes import is_alive

if TYPE_CHECKING:
    from backburner.core.store_ports import NoticeStore, SessionStore

_SESSION_TIMEOUT_MS = 3_600_000  # how long a session without a process on this machine counts as reachable
_OPENCODE = "opencode"
_OPENCODE_RETRY_MS = 600_000  # after that an OpenCode session's notices are the person's


class Inbox:
    """A notice is shown once: whoever leases it shows it and acknowledges it; an expired lease gives it back."""

    def __init__(
        self, notice_store: "NoticeStore", session_store: "SessionStore", supervisor: EngineSupervisor, catalog: AgentCatalog, clock: Clock
    ) -> None:
        self._notice_store, self._session_store, self._supervisor, self._catalog = notice_store, session_store, supervisor, catalog
        self._clock = clock

    def notices(self, *, session: str | None = None, project: str | None = None, unread: bool = True) -> Sequence[Notice]:
        """The notices of a session; otherwise those of the person, with those of sessions that are gone. Of one project if given."""
        self._supervisor.ensure_supervised()
        if session is not None:
            return self._notice_store.notices(project=None, unread=unread, channels=[str(recipient_of(session))])
        return self._notice_store.notices(project=project, unread=unread, channels=self._channels_of_person() if unread else None)

    def pending(self, session: str) -> Sequence[Notice]:
        """The unread notices of a session, as the ledger has them now."""
        return self._notice_store.notices(project=None, unread=True, channels=[str(recipient_of(session))])

    def lease(self, notices: Sequence[Notice], seconds: float = 30.0) -> Sequence[Notice]:
        """Take notices in order to show them; returns those that nobody else has taken. Acknowledge them within `seconds`."""
        now = self._clock()
        taken = set(self._notice_store.lease([notice.notice_id for notice in notices], now, now + int(seconds * 1000)))
        return [notice for notice in notices if notice.notice_id in taken]

    def acknowledge(self, *, notice_ids: Iterable[int] = (), task_ids: Iterable[str] = (), session: str | None = None) -> None:
        """Record that the person, or a session, has seen notices: by their ids, or all those of some tasks."""
        self._notice_store.acknowledge(notice_ids=notice_ids, task_ids=task_ids, channel=str(recipient_of(session)), now=self._clock())

    def opencode_sessions_with_notices(self) -> list[str]:
        """The OpenCode sessions that have recent notices and no plugin of ours that would show them."""
        if not self._catalog.opencode_servers():
            return []
        connected = {session.session_id for session in self._session_store.sessions(_OPENCODE) if is_alive(session.process)}
        sessions = [
            one.name for one in map(Recipient.parse, self._notice_store.channels_with_notices()) if one.kind is RecipientKind.SESSION
        ]
        waiting = [session for session in sessions if SessionId.parse(session).client == _OPENCODE]
        since = self._clock() - _OPENCODE_RETRY_MS
        return [one for one in waiting if one not in connected and any(notice.created_at > since for notice in self.pending(one))]

    def _channels_of_person(self) -> Sequence[str]:
        """The channels that a person reads: their own, and those of sessions that are gone."""
        if set(waiting := self._notice_store.channels_with_notices()) <= {INBOX}:
            return [INBOX]
        reachable = {recipient_of(session.session_id) for session in self._session_store.sessions() if self._is_reachable(session)}
        gone = [one for one in map(Recipient.parse, waiting) if one not in reachable]
        # What a chat's agent was not told yet, the person has in their own inbox.
        return [str(one) for one in gone if not (one.kind is RecipientKind.SESSION and is_chat(one.name))]

    def _is_reachable(self, session: Session) -> bool:
        if session.process is None:
            return abs(self._clock() - session.seen_at) < _SESSION_TIMEOUT_MS
        return is_alive(session.process)
