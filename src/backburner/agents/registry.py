"""Creates the agents of a home and keeps them: the built-in agent, ACP agents and OpenCode."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from backburner.agents.external.turn import ExternalAgent
from backburner.core.known_agents import ACP, OPENCODE
from backburner.core.ports import Agent
from backburner.services.async_app import AsyncApp
from backburner.system.home import Home, opencode_server_files

if TYPE_CHECKING:
    from backburner.agents.external.opencode import OpenCode
    from backburner.agents.external.opencode_notices import OpenCodeNotifier

_MAX_WAITING_PROGRAMS = 8


class AgentRegistry:
    """The agents of a home by type, each created on first use."""

    def __init__(self, home: Home, app: AsyncApp) -> None:
        self._home, self._app = home, app
        self._agents: dict[str, Agent] = {}
        self.external: list[ExternalAgent] = []
        self._opencode: OpenCode | None = None
        self._notifier: OpenCodeNotifier | None = None

    def get(self, kind: str) -> Agent:
        if kind not in self._agents:
            self._agents[kind] = self._create(kind)
        return self._agents[kind]

    def _create(self, kind: str) -> Agent:
        if not kind:
            from backburner.agents.builtin import BuiltinAgent

            return BuiltinAgent(self._app)
        if kind == ACP:
            from backburner.agents.external.acp import AcpAgent

            agent = ExternalAgent(self._app, AcpAgent(self._home), _MAX_WAITING_PROGRAMS)
        else:
            from backburner.agents.external.opencode import OpenCode

            self._opencode = OpenCode(self._home)
            agent = ExternalAgent(self._app, self._opencode)
        self.external.append(agent)
        return agent

    def has_open_sessions(self) -> bool:
        """Whether an external agent is running or waits for approval."""
        return any(agent.open_runs for agent in self.external)

    async def notify_opencode_sessions(self) -> None:
        """Send OpenCode sessions the pending notices of the tasks they started."""
        self.get(OPENCODE)
        if self._notifier is None and self._opencode is not None:
            from backburner.agents.external.opencode_notices import OpenCodeNotifier

            self._notifier = OpenCodeNotifier(self._app, self._opencode.servers)
        if self._notifier is not None:
            await self._notifier.notify()

    async def close(self, *, keep_servers: bool) -> None:
        """Close the agents. With `keep_servers`, OpenCode servers keep running for agents that continue in them."""
        for agent in self.external:
            await agent.close()
        if self._opencode is None and opencode_server_files(self._home):
            self.get(OPENCODE)  # started by an earlier agent process
        if self._opencode is not None:
            await self._opencode.servers.close(keep_running=keep_servers)

    def release_ended(self, live_runs: set[str]) -> Coroutine[Any, Any, None]:
        """Close external agents whose runs have ended. Runs that start after this call are not affected."""
        ended = [(agent, agent.open_runs - live_runs) for agent in self.external]

        async def release() -> None:
            for agent, run_ids in ended:
                await agent.release(run_ids)

        return release()
