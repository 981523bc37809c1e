"""The processes that the engine has beside it for what needs heavy libraries: started when there is work for them, they leave by themselves."""

import asyncio
import os
from collections.abc import Callable

from backburner.coordination.launcher import engine_command
from backburner.system.home import Home, is_locked

_AGAIN_SECONDS = 5.0
_LOCKS = {"agents.host": "agents.lock", "integrations.host": "post.lock"}


class Hosts:
    """At most one process per module, each the only one of its home by a lock of its own."""

    def __init__(self, home: Home, left: Callable[[], None]) -> None:
        self._home, self._left = home, left
        self._running: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, module: str) -> bool:
        return module in self._running

    def start(self, module: str) -> None:
        """See to it that a process of that module runs."""
        if module not in self._running:
            self._running[module] = asyncio.get_running_loop().create_task(self._run(module))

    async def _run(self, module: str) -> None:
        try:
            while is_locked(os.path.join(self._home.root, _LOCKS[module])):
                await asyncio.sleep(_AGAIN_SECONDS)  # one that an engine before us started is still there
            child = await asyncio.create_subprocess_exec(*engine_command(self._home, module), stdin=asyncio.subprocess.DEVNULL)
            if await child.wait() != 0:
                await asyncio.sleep(_AGAIN_SECONDS)  # another holds the lock, or it cannot start
        finally:
            del self._running[module]
        self._left()

    def let_go(self) -> None:
        """They go on without us."""
        for task in self._running.values():
            task.cancel()
