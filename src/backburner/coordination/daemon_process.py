"""A process of a home of which there is one: its lock, and how it ends."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from backburner.core.errors import BackburnerError
from backburner.system.home import Home, lock
from backburner.system.processes import mark_inside

log = logging.getLogger("backburner")
_ANOTHER = 3  # exit code: there is one already


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
