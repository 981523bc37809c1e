"""The processes that the engine has beside it for what needs heavy libraries: started when there is work for them, they leave by themselves."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from backburner.errors import BackburnerError
from backburner.home import Home, is_locked, lock
from backburner.process import mark_inside
from backburner.starter import engine_command

log = logging.getLogger("backburner")
_ANOTHER = 3  # exit code: there is one already
_AGAIN_SECONDS = 5.0


def be_host(home: Home, name: str, serve: Callable[[Home], Coroutine[Any, Any, None]]) -> int:
    """Be the one process of a home that is called so, until there is nothing to do; its exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    held = lock(os.path.join(home.root, f"{name}.lock"))
    if held is None:
        return _ANOTHER
    mark_inside()  # a chat may have started us, not the engine
    try:
        asyncio.run(serve(home))
    except BackburnerError as error:
        log.error("%s", error)
        return 1
    finally:
        os.close(held)
    return 0


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
            while is_locked(os.path.join(self._home.root, module.replace(".host", ".lock"))):
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
