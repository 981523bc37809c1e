"""Notices for people and sessions: reads, leases and acknowledges them."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from backburner.coordination.supervision import EngineSupervisor
from backburner.core.models import Clock
from backburner.core.notices import Notice
from backburner.core.recipients import INBOX, Recipient, RecipientKind, recipient_of
from backburner.core.session_records import Session
from backburner.core.sessions import SessionId, is_chat
from backburner.core.states import NoticeKind
from backburner.services.agent_catalog import AgentCatalog
from backburner.system.processes import is_alive

if TYPE_CHECKING:
    from backburner.core.store_ports import DeviceStore, EventStore, NoticeStore, SessionStore

_SESSION_TIMEOUT_MS = 3_600_000  # a session without a process on this machine counts as reachable for this long after its last call
_DEVICES_READ = "devices_read"  # a cursor: the time of the latest notice about devices that the person has seen
_OPENCODE = "opencode"
_OPENCODE_RETRY_MS = 600_000  # older notices of an OpenCode session go to the person


class Inbox:
    """Shows each notice once: a reader leases it, shows it and acknowledges it. After an expired lease it is available again."""

    def __init__(
        self,
        notice_store: "NoticeStore",
        session_store: "SessionStore",
        device_store: "DeviceStore",
        event_store: "EventStore",
        supervisor: EngineSupervisor,
        catalog: AgentCatalog,
        clock: Clock,
    ) -> None:
        self._notice_store, self._session_store, self._supervisor, self._catalog = notice_store, session_store, supervisor, catalog
        self._device_store, self._event_store, self._clock = device_store, event_store, clock

    def notices(
        self, *, session: str | None = None, project: str | None = None, unread: bool = True, limit: int | None = None
    ) -> Sequence[Notice]:
        """Return the notices of a session; without one, those of the person and of sessions that no longer exist.

        `project` limits the person's notices to one project, `limit` the number to the newest ones.
        """
        self._supervisor.ensure_supervised()
        if session is not None:
            return self._notice_store.notices(project=None, unread=unread, channels=[str(recipient_of(session))], limit=limit)
        channels = self._channels_of_person() if unread else None
        found = self._notice_store.notices(project=project, unread=unread, channels=channels, limit=limit)
        return found if project is not None else [*found, *self._device_notices(unread)]

    def unread_count(self) -> int:
        """Return how many notices `notices` would return for the person."""
        return self._notice_store.unread_count(self._channels_of_person()) + len(self._device_notices(unread=True))

    def _device_notices(self, unread: bool) -> list[Notice]:
        """Return notices about paired pages and their passkeys. They belong to no task; their ids are negative."""
        devices = {device.device_id: device for device in self._device_store.devices() if device.revoked_at is None}
        if not devices:
            return []
        revoke = "If it was not you, run: backburner devices revoke"
        changes = [
            (device.created_at, f"{device.name} at {device.address} was paired with the web interface. {revoke} {device.device_id}")
            for device in devices.values()
        ]
        for passkey in self._device_store.passkeys():
            if passkey.is_active and passkey.active_at and passkey.device_id in devices:
                name = devices[passkey.device_id].name
                changes.append((passkey.active_at, f"{name} can now approve with a passkey. {revoke} {passkey.device_id}"))
        read = self._event_store.cursor(_DEVICES_READ)
        return [
            Notice(-at, f"device:{at}", "", None, "", INBOX, text, at, at if at <= read else None, 1, kind=NoticeKind.PAIRED)
            for at, text in sorted(changes)
            if at > read or not unread
        ]

    def pending(self, session: str) -> Sequence[Notice]:
        """Return the unread notices of a session, directly from the ledger."""
        return self._notice_store.notices(project=None, unread=True, channels=[str(recipient_of(session))])

    def waits_for(self, client: str) -> bool:
        """Return whether a notice waits for any session of a client."""
        recipients = map(Recipient.parse, self._notice_store.channels_with_notices())
        return any(found.kind is RecipientKind.SESSION and SessionId.parse(found.name).client == client for found in recipients)

    def lease(self, notices: Sequence[Notice], seconds: float = 30.0) -> Sequence[Notice]:
        """Reserve notices in order to show them; returns those that nobody else has reserved. Acknowledge them within `seconds`."""
        now = self._clock()
        ids = [notice.notice_id for notice in notices if notice.notice_id > 0]
        leased = set(self._notice_store.lease(ids, now, now + int(seconds * 1000)))
        return [notice for notice in notices if notice.notice_id in leased or notice.notice_id < 0]

    def acknowledge(self, *, notice_ids: Iterable[int] = (), task_ids: Iterable[str] = (), session: str | None = None) -> None:
        """Record that the person, or a session, has seen notices: by their ids, or all those of some tasks."""
        ids = list(notice_ids)
        if (read := -min(ids, default=0)) > 0 and read > self._event_store.cursor(_DEVICES_READ):
            self._event_store.advance_cursor(_DEVICES_READ, read)
        stored = [notice_id for notice_id in ids if notice_id > 0]
        self._notice_store.acknowledge(notice_ids=stored, task_ids=task_ids, channel=str(recipient_of(session)), now=self._clock())

    def opencode_sessions_with_notices(self) -> list[str]:
        """Return the OpenCode sessions that have recent notices and no Backburner plugin to show them."""
        if not self._catalog.opencode_servers():
            return []
        connected = {
            session.session_id
            for session in self._session_store.sessions(_OPENCODE)
            if is_alive(session.process) or session.host != self._session_store.host_id
        }
        sessions = [
            recipient.name
            for recipient in map(Recipient.parse, self._notice_store.channels_with_notices())
            if recipient.kind is RecipientKind.SESSION
        ]
        waiting = [session for session in sessions if SessionId.parse(session).client == _OPENCODE]
        since = self._clock() - _OPENCODE_RETRY_MS
        return [
            session
            for session in waiting
            if session not in connected and any(notice.created_at > since for notice in self.pending(session))
        ]

    def _channels_of_person(self) -> Sequence[str]:
        """Return the channels that a person reads: the inbox, and those of sessions that no longer exist."""
        if set(waiting := self._notice_store.channels_with_notices()) <= {INBOX}:
            return [INBOX]
        reachable = {recipient_of(session.session_id) for session in self._session_store.sessions() if self._is_reachable(session)}
        unreachable = [recipient for recipient in map(Recipient.parse, waiting) if recipient not in reachable]
        # Notices for the agent of a chat are also in the person's own inbox.
        return [str(recipient) for recipient in unreachable if not (recipient.kind is RecipientKind.SESSION and is_chat(recipient.name))]

    def _is_reachable(self, session: Session) -> bool:
        if session.process is None:
            return abs(self._clock() - session.seen_at) < _SESSION_TIMEOUT_MS
        return is_alive(session.process)
