"""Calls the tools of agents: checks the arguments, makes the session known, and puts pending notices on every answer."""

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
from backburner.system.home import project_of

_REGISTER_INTERVAL = 600.0  # seconds


class Answer(NamedTuple):
    """What a call came to. `result` is the tool's dict, with `notices` where something ended; an error has `error` instead.

    `brief` is its display without what `result` has as `output`, for who shows the whole result.
    Once the answer has reached the context, `delivered` must be awaited: only then counts as told what it tells.
    """

    result: dict[str, Any]
    text: str
    failed: bool
    delivered: Callable[[], Awaitable[None]]
    brief: str


class ToolDispatcher:
    """Calls tools for agents, and puts pending notices on every answer."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools
        self._registered_at: dict[str, float] = {}

    async def answer(self, context: ToolContext, name: str, arguments: Mapping[str, Any], process: ProcessId | None = None) -> Answer:
        """Call a tool. Whatever is wrong is a sentence in the answer, never an exception."""
        context.told.clear()
        context.brief, failed = None, False
        try:
            if (tool := self.tools.get(name)) is None:
                raise BadInput(f"There is no tool '{name[:100]}'; there are {', '.join(self.tools)}.")
            checked = tool.check(arguments)
            await self._register_session(context, process)
            result = dict(await tool.function(_Call(context), **checked))
        except BackburnerError as error:
            failed, result = True, {"error": {"code": error.code, "message": str(error)}, "display": str(error)}
        except (OSError, UnicodeError) as error:
            failed, result = True, {"error": {"code": "failed", "message": f"{error}."}, "display": f"{error}."}
        return await self._with_notices(context, result, failed)

    async def _register_session(self, context: ToolContext, process: ProcessId | None) -> None:
        """Make the session known, now and again every while. A call does not fail for it."""
        session, now = context.session, context.home.now()
        if session is None or now - self._registered_at.get(session, -1e9) < _REGISTER_INTERVAL:
            return
        client = SessionId.parse(session).client
        with contextlib.suppress(BackburnerError):
            await context.home.call(lambda app: app.sessions.register(session, client, project_of(context.caller.cwd), process))
            if client not in UNATTENDED:
                await context.home.call(lambda app: app.sessions.record_activity(client))
            self._registered_at[session] = now

    async def _with_notices(self, context: ToolContext, result: dict[str, Any], failed: bool) -> Answer:
        """What is owed to the context goes with the answer, but for what the answer itself tells of."""
        text, told = str(result["display"]), set(context.told)
        brief = text if context.brief is None or failed else context.brief
        if result.get("output") == brief:
            brief = ""
        if not context.owed or context.session is None:
            return Answer(result, text, failed, _nothing, brief)

        def take(app: App) -> Sequence[Notice]:
            owed = app.inbox.pending(context.session or "")  # anew: another answer may have told some meanwhile
            return app.inbox.lease(
                [*(one for one in owed if one.task_id in told), *fitting([one for one in owed if one.task_id not in told])]
            )

        try:
            taken = await context.home.call(take)
        except BackburnerError:
            return Answer(result, text, failed, _nothing, brief)
        if news := [notice for notice in taken if notice.task_id not in told]:
            notices = notification(news)
            result, text = {**result, "notices": notices}, f"{text}\n\n{notices}"

        async def delivered() -> None:
            with contextlib.suppress(BackburnerError):
                await context.home.call(lambda app: app.inbox.acknowledge(notice_ids=[notice.notice_id for notice in taken]))

        return Answer(result, text, failed, delivered if taken else _nothing, brief)


async def _nothing() -> None:
    return


class _Call(NamedTuple):
    deps: ToolContext
