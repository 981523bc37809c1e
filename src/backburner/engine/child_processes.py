"""The daemons that the engine starts for work that needs heavy libraries. They exit when they have nothing left to do."""

import asyncio
import os
from collections.abc import Callable

from backburner.coordination.launcher import process_command
from backburner.system.home import Home, is_locked

AGENT_PROCESS, INTEGRATIONS_PROCESS = "agents.process", "integrations.process"
_LOCKS = {AGENT_PROCESS: "agents.lock", INTEGRATIONS_PROCESS: "integrations.lock"}
_RETRY_DELAY = 5.0


class ChildProcesses:
    """Starts at most one process per module; a lock makes it the only one of its home. `on_exit` is called when one has exited."""

    def __init__(self, home: Home, on_exit: Callable[[], None]) -> None:
        self._home, self._on_exit = home, on_exit
        self._running: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, module: str) -> bool:
        return module in self._running

    def start(self, module: str) -> None:
        """Start the process of a module unless it is already running."""
        if module not in self._running:
            self._running[module] = asyncio.get_running_loop().create_task(self._run(module))

    async def _run(self, module: str) -> None:
        try:
            while is_locked(os.path.join(self._home.root, _LOCKS[module])):
                await asyncio.sleep(_RETRY_DELAY)  # a process that an earlier engine started is still running
            child = await asyncio.create_subprocess_exec(*process_command(self._home, module), stdin=asyncio.subprocess.DEVNULL)
            if await child.wait() != 0:
                await asyncio.sleep(_RETRY_DELAY)  # another process holds the lock, or it cannot start
        finally:
            del self._running[module]
        self._on_exit()

    def release(self) -> None:
        """Stop watching the processes; they continue without the engine."""
        for task in self._running.values():
            task.cancel()
