"""The agent process: the one process of a home that runs agents. The engine starts it when an agent is due; it exits when idle.

The large libraries are loaded only here. If it is killed, every conversation on disk can still be resumed.
"""

import asyncio
import contextlib
import os
import sys
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

_CANCEL_GRACE_SECONDS = 5.0
_CAPACITY_SETTING = {AGENT_LANE: "models.max_concurrent", LOCAL_AGENT_LANE: "tasks.max_concurrent"}
_NOTIFY_INTERVAL_SECONDS = 10.0
_KEEP_WAITING_SECONDS = 1800.0  # how long the process stays while an external agent waits for approval


class AgentProcess:
    """The work of the agent process. Each lane has its own capacity, because a local model serves few runs at a time."""

    def __init__(self, parts: AgentParts, app: AsyncApp, process: DaemonProcess) -> None:
        self._parts, self._process = parts, process
        self._registry = AgentRegistry(parts.app.home, app)
        if parts.app.agents.has_models():
            self._registry.get("")  # load it before the first run needs it
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
                grace=_CANCEL_GRACE_SECONDS,
                changed=process.wake_others,
                placed=lambda work: parts.app.gate.placed(work),
            )
            for lane, setting in _CAPACITY_SETTING.items()
        }
        self._background: set[asyncio.Future[None]] = set()
        self._notify_timer: asyncio.TimerHandle | None = None
        self._recheck_timer: asyncio.TimerHandle | None = None
        self._last_run_at = asyncio.get_running_loop().time()
        self._library_loading = asyncio.ensure_future(asyncio.to_thread(_load_model_library, parts.app.config))

    def tick(self) -> None:
        """Start due agents, notify OpenCode sessions, and close external agents whose runs have ended."""
        for runner in self._runners.values():
            runner.tick()
        self._notify_opencode_sessions()
        if self._registry.has_open_sessions():
            self._start(self._registry.release_ended({run.run_id for run in self._parts.live_work.live_runs()}))
        loop = asyncio.get_running_loop()
        if self._recheck_timer:
            self._recheck_timer.cancel()
            self._recheck_timer = None
        if self._is_running():
            self._last_run_at = loop.time()
        elif self.is_busy():  # closing a chat sends no wake-up
            self._recheck_timer = loop.call_later(self._parts.app.config.number("agents.idle_exit_seconds"), self._process.wake)

    def is_busy(self) -> bool:
        """True while an agent runs, a chat is open (its next message needs a fast answer), or an external agent waits for approval."""
        is_kept = self._registry.has_open_sessions() and asyncio.get_running_loop().time() - self._last_run_at < _KEEP_WAITING_SECONDS
        return self._is_running() or is_kept or self._parts.app.sessions.chat_is_open()

    def config_changed(self, config: Config) -> None:
        for lane, runner in self._runners.items():
            runner.cap = config.whole(_CAPACITY_SETTING[lane])

    async def close(self) -> None:
        """Stop the runs. Running agents in OpenCode servers continue; the others are interrupted and can be resumed."""
        running = self._is_running()
        for timer in (self._notify_timer, self._recheck_timer):
            if timer:
                timer.cancel()
        for runner in self._runners.values():
            await runner.stop()
        await self._registry.close(keep_servers=running)
        await self._library_loading

    def _is_running(self) -> bool:
        return any(runner.busy for runner in self._runners.values())

    def _notify_opencode_sessions(self) -> None:
        """Send pending notices to OpenCode sessions; retry at an interval, because a server may be unreachable."""
        if self._notify_timer:
            self._notify_timer.cancel()
            self._notify_timer = None
        if self._parts.app.inbox.opencode_sessions_with_notices():
            self._start(self._registry.notify_opencode_sessions())
            self._notify_timer = asyncio.get_running_loop().call_later(_NOTIFY_INTERVAL_SECONDS, self._notify_opencode_sessions)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def serve(home: Home) -> None:
    """Run the agent process until it is idle."""
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
    """Load the library of the default model before its first use."""
    if not (model := config.text("models.default")):
        return
    provider = model.partition(":")[0]
    with contextlib.suppress(ImportError):  # the first run reports what is missing
        import_module(f"pydantic_ai.models.{'anthropic' if provider == 'anthropic' else 'openai'}")


def main(arguments: list[str]) -> int:
    """`process HOME`: run the agent process of a home."""
    # The OpenAI library loads aiohttp if it is installed, which takes 9 MB, and uses it only on request.
    modules: dict[str, Any] = sys.modules
    modules.setdefault("aiohttp", None)
    return run_alone(Home(arguments[0]), "agents", serve)
