"""MCP over HTTP: a separate process of `backburner serve --http`. Listens on loopback only and checks token, Host and Origin.

It inherits its listening socket from `serve` and exits when `serve` does.
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
    """The token of a home. Creates it on first use, readable only by its owner."""
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
    """Accepts only requests with the address of this server, with no foreign Origin, and with the token."""

    def __init__(self, app: Any, token: str, port: int) -> None:
        self._app, self._authorization = app, f"Bearer {token}".encode()
        self._hosts = {f"{host}:{port}".encode() for host in _LOOPBACK}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "lifespan"):
            return
        rejection = self._rejection(scope["headers"]) if scope["type"] == "http" else None
        if rejection is None:
            await self._handle(scope, receive, send)
            return
        status, reason = rejection
        headers = [(b"content-type", b"application/json"), *([(b"www-authenticate", b"Bearer")] if status == 401 else [])]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on a request. Its result counts as delivered when its last part was sent to a client that was still connected."""
        deliveries: list[Answer] = []
        scope[_DELIVERIES], is_connected = deliveries, True

        async def receive_message() -> Any:
            nonlocal is_connected
            message = await receive()
            is_connected = is_connected and message["type"] != "http.disconnect"
            return message

        async def send_message(message: Any) -> None:
            await send(message)
            if is_connected and b'"result"' in message.get("body", b""):
                while deliveries:
                    await deliveries.pop(0).delivered()

        await self._app(scope, receive_message, send_message)

    def _rejection(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """The status and reason if a request is rejected. The header names are in lower case."""
        sent = {name: [value for other, value in headers if other == name] for name in (b"host", b"origin", b"authorization")}
        if len(sent[b"host"]) != 1 or sent[b"host"][0].lower() not in self._hosts:
            return 421, "This is not the address of Backburner."  # protects against DNS rebinding
        if any(origin.lower() not in {b"http://" + host for host in self._hosts} for origin in sent[b"origin"]):
            return 403, "Requests from pages of other origins are not allowed."
        if len(sent[b"authorization"]) != 1 or not hmac.compare_digest(sent[b"authorization"][0], self._authorization):
            return 401, "The token is missing or wrong: send it as `Authorization: Bearer TOKEN`."
        return None


async def _deliver(ctx: Any, answer: Answer) -> None:
    ctx.request.scope[_DELIVERIES].append(answer)


def main(arguments: list[str]) -> int:
    """Serve on an inherited listening socket until standard input ends. Arguments: the home and the descriptor of the socket."""
    from backburner.interfaces.mcp.server import McpServer
    from backburner.system.http_server import http_server

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    home, listening = Home(arguments[0]), socket.socket(fileno=int(arguments[1]))
    port = listening.getsockname()[1]
    environ = dict(os.environ)

    async def serve() -> None:
        async with AsyncApp(lambda: open_app(home, environ)) as async_app:
            max_wait = await async_app.call(lambda app: app.config.number("mcp.max_wait_seconds"))
            command = shlex.join(own_command(environ, home.root if home.root != os.path.abspath(locate(None, {})) else None))
            tools = toolset(await async_app.call(lambda app: available_toolsets(app, current_caller("tool", environ))))
            mcp_server = McpServer(async_app, tools, longest_wait=max_wait, cwd=None, command=command, environ=environ, deliver=_deliver)
            app = RequestGuard(mcp_server.server.streamable_http_app(streamable_http_path=PATH), token_of(home), port)
            server = http_server(app)
            loop = asyncio.get_running_loop()

            def on_input() -> None:
                if not os.read(0, 4096):
                    server.should_exit = True

            loop.add_reader(0, on_input)
            await server.serve([listening])

    asyncio.run(serve())
    return 0
