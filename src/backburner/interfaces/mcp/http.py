"""MCP over HTTP, a process of its own beside `backburner serve --http`: on loopback only, with a token, Host and Origin checked.

It gets its listening socket from `serve`, and ends with it.
"""

import asyncio
import hmac
import json
import logging
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Iterable
from typing import Any

from backburner.agent_tools.dispatcher import Answer
from backburner.agent_tools.registry import available_toolsets, toolset
from backburner.interfaces.client_setup.wiring import own_command
from backburner.services.app import open_app
from backburner.services.async_app import AsyncApp
from backburner.system.caller_identity import current_caller
from backburner.system.home import Home, locate, write_atomically

TOKEN = "token"
PATH = "/mcp"
_DELIVERIES = "backburner.deliveries"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def token_of(home: Home) -> str:
    """The token of a home, made where there is none yet; readable for its owner alone."""
    path = os.path.join(home.root, TOKEN)
    try:
        with open(path, encoding="ascii") as file:
            if found := file.read().strip():
                return found
    except FileNotFoundError:
        pass
    write_atomically(path, secrets.token_urlsafe(32) + "\n")
    return token_of(home)


class RequestGuard:
    """Lets through only who came to this very address, from no other page, and has the token."""

    def __init__(self, app: Any, token: str, port: int) -> None:
        self._app, self._wanted = app, f"Bearer {token}".encode()
        self._hosts = {f"{host}:{port}".encode() for host in _LOOPBACK}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "lifespan"):
            return
        refused = self._refused(scope["headers"]) if scope["type"] == "http" else None
        if refused is None:
            await self._passed(scope, receive, send)
            return
        status, why = refused
        headers = [(b"content-type", b"application/json"), *([(b"www-authenticate", b"Bearer")] if status == 401 else [])]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": why}).encode()})

    async def _passed(self, scope: Any, receive: Any, send: Any) -> None:
        """An answer counts as given once its last part was sent to somebody who was still there."""
        deliveries: list[Answer] = []
        scope[_DELIVERIES], here = deliveries, True

        async def listening() -> Any:
            nonlocal here
            message = await receive()
            here = here and message["type"] != "http.disconnect"
            return message

        async def sending(message: Any) -> None:
            await send(message)
            if here and b'"result"' in message.get("body", b""):
                while deliveries:
                    await deliveries.pop(0).delivered()

        await self._app(scope, listening, sending)

    def _refused(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """Why a request is not answered; the names of its headers are in small letters."""
        given = {name: [value for other, value in headers if other == name] for name in (b"host", b"origin", b"authorization")}
        if len(given[b"host"]) != 1 or given[b"host"][0].lower() not in self._hosts:
            return 421, "This is not the address of Backburner."  # a name that somebody bent to lead here
        if any(origin.lower() not in {b"http://" + host for host in self._hosts} for origin in given[b"origin"]):
            return 403, "Pages of other origins may not ask."
        if len(given[b"authorization"]) != 1 or not hmac.compare_digest(given[b"authorization"][0], self._wanted):
            return 401, "The token is missing or wrong: send it as `Authorization: Bearer TOKEN`."
        return None


async def _deliver(ctx: Any, answer: Answer) -> None:
    ctx.request.scope[_DELIVERIES].append(answer)


def main(arguments: list[str]) -> int:
    """`web HOME DESCRIPTOR`: serve on a listening socket until standard input ends."""
    from backburner.interfaces.mcp.server import McpServer
    from backburner.system.http_server import http_server

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    home, listening = Home(arguments[0]), socket.socket(fileno=int(arguments[1]))
    port = listening.getsockname()[1]
    environ = dict(os.environ)

    async def serve() -> None:
        async with AsyncApp(lambda: open_app(home, environ)) as awaited:
            longest = await awaited.call(lambda app: app.config.number("mcp.max_wait_seconds"))
            command = shlex.join(own_command(environ, home.root if home.root != os.path.abspath(locate(None, {})) else None))
            tools = toolset(await awaited.call(lambda app: available_toolsets(app, current_caller("tool", environ))))
            made = McpServer(awaited, tools, longest_wait=longest, cwd=None, command=command, environ=environ, deliver=_deliver)
            app = RequestGuard(made.server.streamable_http_app(streamable_http_path=PATH), token_of(home), port)
            server = http_server(app)
            loop = asyncio.get_running_loop()
            loop.add_reader(0, lambda: setattr(server, "should_exit", True) if not os.read(0, 4096) else None)
            await server.serve([listening])

    asyncio.run(serve())
    return 0
