"""The process that serves the web interface, on a listening socket that it inherits. It exits when its standard input ends."""

import contextlib
import gc
import os
import sys
from typing import Any

from backburner.system.home import Home, lock

_M_ARENA_MAX = -8


def main(arguments: list[str]) -> int:
    """Serve until standard input ends. Arguments: the home and the descriptor of the listening socket."""
    gc.disable()  # nothing that is imported becomes garbage
    import asyncio
    import ctypes
    import logging

    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)  # threads take turns anyway, and memory that one has freed can be used by another

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    asyncio.run(_serve(Home(arguments[0]), int(arguments[1]), dict(os.environ)))
    return 0


async def _serve(home: Home, descriptor: int, environ: dict[str, str]) -> None:
    import asyncio
    import socket

    from backburner.interfaces.web.app import Served, WebApp
    from backburner.interfaces.web.guard import addresses
    from backburner.interfaces.web.ports import LOCK
    from backburner.services.app import open_app
    from backburner.services.async_app import AsyncApp
    from backburner.services.passkeys import LOCAL_NAME
    from backburner.system.http_server import http_server
    from backburner.system.token_file import token_of

    listening = socket.socket(fileno=descriptor)
    port = listening.getsockname()[1]
    held = lock(os.path.join(home.root, LOCK))
    if held is not None:
        os.ftruncate(held, 0)
        os.pwrite(held, f"{port}\n".encode(), 0)
    async with AsyncApp(lambda: open_app(home, environ)) as async_app:
        hosts, origin = await async_app.call(lambda app: (app.config.text("web.hosts"), app.config.text("web.origin")))
        canonical = origin or f"http://{LOCAL_NAME}:{port}"
        app = WebApp(async_app, Served(home, environ, token_of(home), addresses(port, hosts, origin), canonical))
        server = http_server(app, lifespan="on")
        stop = server.shutdown

        async def shutdown(sockets: Any = None) -> None:
            app.hub.close()  # streams end themselves, so that their clients come back
            await stop(sockets)

        server.shutdown = shutdown

        def on_input() -> None:
            if not os.read(0, 4096):
                server.should_exit = True

        asyncio.get_running_loop().add_reader(0, on_input)
        gc.freeze()
        gc.enable()
        await server.serve([listening])
