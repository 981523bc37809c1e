"""Telling an OpenCode session that asked for something what became of it, where no plugin of ours is there to do so."""

import hashlib
import uuid

from backburner.agents.external.opencode_server import NotFound, OpenCodeServer, OpenCodeServers, ServerUnreachable
from backburner.agents.external.turn import Failed
from backburner.core.notice_text import fitting, notification
from backburner.core.notices import Notice
from backburner.core.sessions import SessionId
from backburner.services.app import App
from backburner.services.async_app import AsyncApp

_LATEST = 100  # messages of a session that are looked at


class OpenCodeNotifier:
    """The sessions in servers that a person has named by their URLs."""

    def __init__(self, home: AsyncApp, servers: OpenCodeServers) -> None:
        self._home, self._servers = home, servers
        self._telling = False

    async def notify(self) -> None:
        """Wake each session that is owed something, with all of it."""
        if self._telling:
            return
        self._telling = True
        try:
            for session in await self._home.call(lambda app: app.inbox.opencode_sessions_with_notices()):
                for settings in await self._home.call(lambda app: app.agents.opencode_servers()):
                    if await self._told(session, settings):
                        break
        finally:
            self._telling = False

    async def _told(self, session: str, settings: dict[str, str]) -> bool:
        environ = await self._home.call(lambda app: _asked_from(app, session))
        known = SessionId.parse(session).key
        try:
            server = await self._servers.find(settings, environ)
            said = await server.call("GET", f"/session/{known}/message?limit={_LATEST}") or []
        except (Failed, NotFound, ServerUnreachable):
            return False  # not there, or not here
        heard = {part.get("id") for message in said for part in message.get("parts") or []}
        while owed := await self._home.call(lambda app: app.inbox.lease(fitting(app.inbox.pending(session)))):
            new = [notice for notice in owed if _part_of(notice) not in heard]
            if new and not await _woken(server, known, new):
                return False
            ids = [notice.notice_id for notice in owed]
            await self._home.call(lambda app, ids=ids: app.inbox.acknowledge(notice_ids=ids))
        return True


def _asked_from(app: App, session: str) -> dict[str, str]:
    """The environment of whoever asked, which may hold the password."""
    owed = app.inbox.pending(session)
    return app.queries.environment(app.queries.get(owed[0].task_id)) if owed else {}


def _part_of(notice: Notice) -> str:
    """What a notice is called in a session. Whoever finds it there need not tell it, though the one before us could not say so."""
    return f"prt_{hashlib.sha256(f'{notice.key} {notice.created_at}'.encode()).hexdigest()[:32]}"


async def _woken(server: OpenCodeServer, session: str, notices: list[Notice]) -> bool:
    """Tell them: an idle session takes that up as its next turn, one at work before its next step."""
    parts = [{"id": _part_of(one), "type": "text", "text": notification([one]), "synthetic": True} for one in notices]
    try:
        await server.call("POST", f"/session/{session}/prompt_async", {"messageID": f"msg_{uuid.uuid4().hex}", "parts": parts})
    except (Failed, NotFound, ServerUnreachable):
        return False  # the lease runs out, and it is tried again
    return True
