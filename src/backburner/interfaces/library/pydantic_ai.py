"""The tools as a toolset for pydantic-ai: `Agent(model, toolsets=[BackgroundTools()])`. Install `backburner[agent]`."""

import os
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai import Tool as AgentTool
from pydantic_ai.toolsets import FunctionToolset

from backburner.agent_tools.context import ToolContext
from backburner.agent_tools.dispatcher import ToolDispatcher
from backburner.agent_tools.registry import Tool, toolset
from backburner.services.app import open_app
from backburner.services.async_app import AsyncApp
from backburner.system.caller_identity import session_name
from backburner.system.processes import myself


class BackgroundTools(FunctionToolset[Any]):
    """Background tasks for your own agent. `session` receives the notices: use one for each conversation, and the same after a restart.

    Notices are added to the result of the next tool call; `pending_notices()` returns them between turns. `sets` selects sets of
    tools, like `mcp --tools`.
    """

    def __init__(
        self, home: str | os.PathLike[str] | None = None, *, session: str | None = None, cwd: str | None = None, sets: str | None = None
    ) -> None:
        self._home_path = None if home is None else os.fspath(home)
        self._session = session_name("agent", session or f"{os.getpid()}-{myself().started}")
        self._cwd = os.path.abspath(cwd or os.getcwd())
        self._tools = toolset(sets)
        self._dispatcher = ToolDispatcher(self._tools)
        self._app: AsyncApp | None = None
        self._open_count = 0
        super().__init__([self._agent_tool(tool) for tool in self._tools.values()], id="backburner")

    async def __aenter__(self) -> "BackgroundTools":
        if self._app is None:
            self._app = await AsyncApp(lambda: open_app(self._home_path)).__aenter__()
        self._open_count += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open_count -= 1
        if self._open_count == 0 and self._app is not None:
            app, self._app = self._app, None
            await app.__aexit__()

    async def pending_notices(self) -> str | None:
        """The pending notices as text for the model, or None. The notices are acknowledged by this call."""
        answer = await self._dispatcher.answer(self._context(), "list_background_tasks", {}, myself())
        await answer.delivered()
        return answer.result.get("notices")

    def _context(self) -> ToolContext:
        if self._app is None:
            raise RuntimeError("BackgroundTools is not open. Use `async with tools:`; an Agent opens its toolsets itself.")
        return ToolContext(self._app, session=self._session, cwd=self._cwd, opened=self._cwd)

    def _agent_tool(self, tool: Tool) -> AgentTool[Any]:
        return AgentTool.from_schema(self._function_for(tool.name), tool.name, tool.description, tool.schema)

    def _function_for(self, name: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def call(**arguments: Any) -> dict[str, Any]:
            answer = await self._dispatcher.answer(self._context(), name, arguments, myself())
            await answer.delivered()
            return answer.result

        return call
