"""The tools as a toolset for pydantic-ai: `Agent(model, toolsets=[BackgroundTools()])`. Comes with `backburner[agent]`."""

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
    """Background work for an agent of your own. `session` says whom to tell: give each conversation one, and the same one after a restart.

    What ended is told on the answer to the next call, and by `owed()` between turns. `sets` chooses sets of tools, as `mcp --tools` does.
    """

    def __init__(
        self, home: str | os.PathLike[str] | None = None, *, session: str | None = None, cwd: str | None = None, sets: str | None = None
    ) -> None:
        self._place = None if home is None else os.fspath(home)
        self._session = session_name("agent", session or f"{os.getpid()}-{myself().started}")
        self._cwd = os.path.abspath(cwd or os.getcwd())
        self._tools = toolset(sets)
        self._desk = ToolDispatcher(self._tools)
        self._home: AsyncApp | None = None
        self._entered = 0
        super().__init__([self._made(tool) for tool in self._tools.values()], id="backburner")

    async def __aenter__(self) -> "BackgroundTools":
        if self._home is None:
            self._home = await AsyncApp(lambda: open_app(self._place)).__aenter__()
        self._entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered -= 1
        if self._entered == 0 and self._home is not None:
            home, self._home = self._home, None
            await home.__aexit__()

    async def pending_notices(self) -> str | None:
        """What ended and was not told yet, as a text for the model; it counts as told with this. None where there is nothing."""
        answer = await self._desk.answer(self._caller(), "list_background_tasks", {}, myself())
        await answer.delivered()
        return answer.result.get("notices")

    def _caller(self) -> ToolContext:
        if self._home is None:
            raise RuntimeError("Enter it first: `async with tools:`; an Agent does that by itself.")
        return ToolContext(self._home, session=self._session, cwd=self._cwd, opened=self._cwd)

    def _made(self, tool: Tool) -> AgentTool[Any]:
        return AgentTool.from_schema(self._calling(tool.name), tool.name, tool.description, tool.schema)

    def _calling(self, name: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def call(**arguments: Any) -> dict[str, Any]:
            answer = await self._desk.answer(self._caller(), name, arguments, myself())
            await answer.delivered()
            return answer.result

        return call
