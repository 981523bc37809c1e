"""Sends notices to OpenCode sessions that started tasks, over HTTP, for servers without our plugin."""

import hashlib
import uuid

from backburner.agents.external.opencode_server import NotFound, OpenCodeServer, OpenCodeServers, ServerUnreachable
from backburner.agents.external.turn import AgentFailed
from backburner.core.notice_text import fitting, notification
from backburner.core.notices import Notice
from backburner.core.sessions import SessionId
from backburner.services.app import App
from backburner.services.async_app import AsyncApp

_MAX_MESSAGES = 100  # latest messages of a session that are checked


class OpenCodeNotifier:
    """Notifies the sessions in servers that the settings name by URL."""

    def __init__(self, home: AsyncApp, servers: OpenCodeServers) -> None:
        self._home, self._servers = home, servers
        self._is_notifying = False

    async def notify(self) -> None:
        """Send every session its pending notices."""
        if self._is_notifying:
            return
        self._is_notifying = True
        try:
            for session in await self._home.call(lambda app: app.inbox.opencode_sessions_with_notices()):
                for settings in await self._home.call(lambda app: app.agents.opencode_servers()):
                    if await self._notify_session(session, settings):
                        break
        finally:
            self._is_notifying = False

    async def _notify_session(self, session: str, settings: dict[str, str]) -> bool:
        environ = await self._home.call(lambda app: _submitter_environment(app, session))
        session_id = SessionId.parse(session).key
        try:
            server = await self._servers.find(settings, environ)
            messages = await server.call("GET", f"/session/{session_id}/message?limit={_MAX_MESSAGES}") or []
        except (AgentFailed, NotFound, ServerUnreachable):
            return False  # the server is unreachable, or it does not have this session
        received = {part.get("id") for message in messages for part in message.get("parts") or []}
        while leased := await self._home.call(lambda app: app.inbox.lease(fitting(app.inbox.pending(session)))):
            new = [notice for notice in leased if _part_id(notice) not in received]
            if new and not await _send_notices(server, session_id, new):
                return False
            ids = [notice.notice_id for notice in leased]
            await self._home.call(lambda app, ids=ids: app.inbox.acknowledge(notice_ids=ids))
        return True


def _submitter_environment(app: App, session: str) -> dict[str, str]:
    """The environment of the task's submitter, which may contain the server's password."""
    pending = app.inbox.pending(session)
    return app.queries.environment(app.queries.get(pending[0].task_id)) if pending else {}


def _part_id(notice: Notice) -> str:
    """The message part id of a notice. If a session already has it, an earlier process delivered the notice without acknowledging it."""
    return f"prt_{hashlib.sha256(f'{notice.key} {notice.created_at}'.encode()).hexdigest()[:32]}"


async def _send_notices(server: OpenCodeServer, session: str, notices: list[Notice]) -> bool:
    """Post the notices. An idle session starts a turn with them; a busy one reads them before its next step."""
    parts = [{"id": _part_id(notice), "type": "text", "text": notification([notice]), "synthetic": True} for notice in notices]
    try:
        await server.call("POST", f"/session/{session}/prompt_async", {"messageID": f"msg_{uuid.uuid4().hex}", "parts": parts})
    except (AgentFailed, NotFound, ServerUnreachable):
        return False  # the lease expires, and it is retried
    return True
