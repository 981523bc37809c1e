"""Calls tools for agents: checks the arguments, registers the session, and adds pending notices to every answer."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from backburner.agent_tools.context import ToolContext
from backburner.agent_tools.registry import Tool
from backburner.core.errors import BackburnerError, BadInput
from backburner.core.models import ProcessId
from backburner.core.notice_text import fitting, notification
from backburner.core.notices import Notice
from backburner.core.sessions import UNATTENDED, SessionId
from backburner.services.app import App
from backburner.system.paths import project_of

_REGISTER_INTERVAL = 600.0  # seconds


class Answer(NamedTuple):
    """The answer to a tool call. `result` is the tool's dict, plus `notices` if tasks have ended; a failed call has `error` instead.

    `brief` is the display without the text that `result` contains as `output`, for clients that show the whole result.
    After the answer has reached the client, the caller must await `delivered`, which acknowledges the notices.
    """

    result: dict[str, Any]
    text: str
    failed: bool
    delivered: Callable[[], Awaitable[None]]
    brief: str


class ToolDispatcher:
    """Calls tools for agents, and adds pending notices to every answer."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools
        self._registered_at: dict[str, float] = {}

    async def answer(self, context: ToolContext, name: str, arguments: Mapping[str, Any], process: ProcessId | None = None) -> Answer:
        """Call a tool. An error is returned as text in the answer, never raised."""
        context.reported_tasks.clear()
        context.brief, failed = None, False
        try:
            if (tool := self.tools.get(name)) is None:
                raise BadInput(f"Unknown tool '{name[:100]}'. Available: {', '.join(self.tools)}.")
            checked = tool.check(arguments)
            await self._register_session(context, process)
            result = dict(await tool.function(_Call(context), **checked))
        except BackburnerError as error:
            failed, result = True, {"error": {"code": error.code, "message": str(error)}, "display": str(error)}
        except (OSError, UnicodeError) as error:
            failed, result = True, {"error": {"code": "failed", "message": f"{error}."}, "display": f"{error}."}
        return await self._add_notices(context, result, failed)

    async def _register_session(self, context: ToolContext, process: ProcessId | None) -> None:
        """Register the session and its activity, at most once per interval. A failure does not fail the call."""
        session, now = context.session, context.home.now()
        if session is None or now - self._registered_at.get(session, -1e9) < _REGISTER_INTERVAL:
            return
        client = SessionId.parse(session).client
        with contextlib.suppress(BackburnerError):
            await context.home.call(lambda app: app.sessions.register(session, client, project_of(context.caller.cwd), process))
            if client not in UNATTENDED:
                await context.home.call(lambda app: app.sessions.record_activity(client))
            self._registered_at[session] = now

    async def _add_notices(self, context: ToolContext, result: dict[str, Any], failed: bool) -> Answer:
        """Add the pending notices of the session to the answer, except for tasks that the answer itself reports."""
        text, reported = str(result["display"]), set(context.reported_tasks)
        brief = text if context.brief is None or failed else context.brief
        if result.get("output") == brief:
            brief = ""
        if not context.pending_notices or context.session is None:
            return Answer(result, text, failed, _do_nothing, brief)

        def lease_notices(app: App) -> Sequence[Notice]:
            pending = app.inbox.pending(context.session or "")  # read again: another answer may have delivered some meanwhile
            return app.inbox.lease(
                [
                    *(notice for notice in pending if notice.task_id in reported),
                    *fitting([notice for notice in pending if notice.task_id not in reported]),
                ]
            )

        try:
            leased = await context.home.call(lease_notices)
        except BackburnerError:
            return Answer(result, text, failed, _do_nothing, brief)
        if new_notices := [notice for notice in leased if notice.task_id not in reported]:
            notices = notification(new_notices)
            result, text = {**result, "notices": notices}, f"{text}\n\n{notices}"

        async def delivered() -> None:
            with contextlib.suppress(BackburnerError):
                await context.home.call(lambda app: app.inbox.acknowledge(notice_ids=[notice.notice_id for notice in leased]))

        return Answer(result, text, failed, delivered if leased else _do_nothing, brief)


async def _do_nothing() -> None:
    return


class _Call(NamedTuple):
    deps: ToolContext
