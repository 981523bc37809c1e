"""The agent process: the one process of a home that runs agents. The engine starts it when one is due; it leaves when none is for a while.

The heavy libraries are loaded here. Killed at any moment, it leaves conversations that can be resumed.
"""

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from importlib import import_module
from typing import Any

from backburner.agents.executor import AgentExecutor
from backburner.agents.registry import AgentRegistry
from backburner.coordination.config_file import ConfigFile
from backburner.coordination.daemon_process import DaemonProcess, run_alone
from backburner.core.models import AGENT_LANE, LOCAL_AGENT_LANE
from backburner.core.optional_dependencies import need
from backburner.core.settings import Config
from backburner.execution.runner import Runner
from backburner.services.async_app import AsyncApp
from backburner.services.daemon_parts import AgentParts, open_agent_parts, open_shared_app
from backburner.system import processes
from backburner.system.home import Home

_CANCEL_GRACE = 5.0
_CAPACITY_SETTING = {AGENT_LANE: "models.max_concurrent", LOCAL_AGENT_LANE: "tasks.max_concurrent"}
_NOTIFY_INTERVAL = 10.0
_KEEP_WAITING_AGENTS = 1800.0  # how long an external agent is kept for a person's answer


class AgentProcess:
    """What the agent process does in each pass. Each lane has its own capacity: a model on this machine serves few at a time."""

    def __init__(self, parts: AgentParts, app: AsyncApp, process: DaemonProcess) -> None:
        self._parts, self._process = parts, process
        self._registry = AgentRegistry(parts.app.home, app)
        if parts.app.agents.has_models():
            self._registry.get("")  # before anybody waits for it
        executor = AgentExecutor(parts.app, self._registry.get)
        self._runners = {
            lane: Runner(
                parts.queue,
                parts.queries,
                executor,
                parts.app.home,
                parts.app.now,
                runner=lane,
                owner=processes.myself(),
                cap=parts.app.config.whole(setting),
                grace=_CANCEL_GRACE,
                changed=process.wake_others,
            )
            for lane, setting in _CAPACITY_SETTING.items()
        }
        self._background: set[asyncio.Future[None]] = set()
        self._notify_timer: asyncio.TimerHandle | None = None
        self._look_again: asyncio.TimerHandle | None = None
        self._last_run_at = asyncio.get_running_loop().time()
        self._warming = asyncio.ensure_future(asyncio.to_thread(_load_model_library, parts.app.config))

    def tick(self) -> None:
        """Start agents that are due, notify OpenCode sessions, and close external agents that nobody waits for any more."""
        for runner in self._runners.values():
            runner.tick()
        self._notify_opencode_sessions()
        if self._registry.has_open_sessions():
            self._start(self._registry.release_ended({run.run_id for run in self._parts.live_work.live_runs()}))
        loop = asyncio.get_running_loop()
        if self._look_again:
            self._look_again.cancel()
            self._look_again = None
        if self._is_running():
            self._last_run_at = loop.time()
        elif self.is_busy():  # nothing wakes us when a chat is closed
            self._look_again = loop.call_later(self._parts.app.config.number("agents.idle_exit_seconds"), self._process.wake)

    def is_busy(self) -> bool:
        """Whether an agent runs, a chat is open (its next message is to be answered at once), or an external agent waits for approval."""
        kept = self._registry.has_open_sessions() and asyncio.get_running_loop().time() - self._last_run_at < _KEEP_WAITING_AGENTS
        return self._is_running() or kept or self._parts.app.sessions.chat_is_open()

    def config_changed(self, config: Config) -> None:
        for lane, runner in self._runners.items():
            runner.cap = config.whole(_CAPACITY_SETTING[lane])

    async def close(self) -> None:
        """Agents in OpenCode servers go on if they were running; the others are interrupted and can be resumed."""
        running = self._is_running()
        for timer in (self._notify_timer, self._look_again):
            if timer:
                timer.cancel()
        for runner in self._runners.values():
            await runner.stop()
        await self._registry.close(leave=running)
        await self._warming

    def _is_running(self) -> bool:
        return any(runner.busy for runner in self._runners.values())

    def _notify_opencode_sessions(self) -> None:
        """Tell sessions what ended, and again after a while: a server may be away."""
        if self._notify_timer:
            self._notify_timer.cancel()
            self._notify_timer = None
        if self._parts.app.inbox.opencode_sessions_with_notices():
            self._start(self._registry.notify_opencode_sessions())
            self._notify_timer = asyncio.get_running_loop().call_later(_NOTIFY_INTERVAL, self._notify_opencode_sessions)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def serve(home: Home) -> None:
    """Run the agent process until there is nothing to do."""
    need("agent", "Agents need")
    environ = dict(os.environ)
    config = ConfigFile(home, environ)
    parts = open_agent_parts(home, environ, config)
    try:
        async with AsyncApp(lambda: open_shared_app(home, environ, config)) as app:
            process = DaemonProcess(home, config, idle_exit=lambda current: current.number("agents.idle_exit_seconds"))
            await process.run(AgentProcess(parts, app, process))
    finally:
        parts.app.close()


def _load_model_library(config: Config) -> None:
    """Load what the default model needs before anybody asks it."""
    if not (model := config.text("models.default")):
        return
    provider = model.partition(":")[0]
    with contextlib.suppress(ImportError):  # whoever asks is told what is missing
        import_module(f"pydantic_ai.models.{'anthropic' if provider == 'anthropic' else 'openai'}")


def main(arguments: list[str]) -> int:
    """`process HOME`: run the agent process of a home."""
    return run_alone(Home(arguments[0]), "agents", serve)
