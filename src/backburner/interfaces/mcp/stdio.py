"""`backburner mcp`: the MCP server on standard input and output, for clients that start it themselves.

What needs no home (`initialize`, the list of tools) is answered before anything else is imported; the first other request starts the
event loop. A result counts as delivered when it was written to the client's pipe. The server exits when the client closes its end.
"""

import argparse
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, cast

from backburner.interfaces.mcp.about import OfferedTools, describe
from backburner.interfaces.mcp.protocol import Cancelled, Connection, LineBuffer, Outgoing, Request

if TYPE_CHECKING:
    from types import ModuleType

    from backburner.interfaces.mcp.server import McpServer

READ_SIZE = 1 << 16  # bytes
_TOGETHER_SECONDS = 0.02  # messages within this time of each other were sent together


def mcp(args: argparse.Namespace, flags: dict[str, str]) -> int:
    """Serve until the client closes the connection."""
    environ = dict(os.environ)
    tools = OfferedTools(args.tools, args.home, environ, flags)
    if not sys.stdin.isatty():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal of the client is meant for the client
    connection, lines = Connection(describe(tools)), LineBuffer()
    reading, writing = _take_pipes()
    try:
        if requests := _serve_without_home(connection, lines, reading, writing):
            _import_asyncio()
            from backburner.interfaces.mcp.stdio_loop import serve

            serve(connection, lines, requests, (reading, writing), lambda: _server(args, flags, environ, tools))
    except ConnectionError:
        pass  # the client has exited
    sys.stderr.flush()
    os._exit(0)  # a thread may still be blocked on a client that neither reads nor writes


def _take_pipes() -> tuple[int, int]:
    """The two pipes of the client. Anything printed by accident goes to stderr."""
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return reading, writing


def _serve_without_home(connection: Connection, lines: LineBuffer, reading: int, writing: int) -> list[Request]:
    """Answer messages until some need the home, and return those. Empty at the end of the input.

    Some clients ask for resources before tools. What they send together is read first, so that the tools need not wait for the home.
    """
    requests: list[Request] = []
    deadline = 0.0
    while not requests or (time.monotonic() < deadline and select.select([reading], [], [], _TOGETHER_SECONDS)[0]):
        if not (piece := os.read(reading, READ_SIZE)):
            return requests
        for line in lines.feed(piece):
            for event in connection.receive(line):
                match event:
                    case Request():
                        deadline = deadline or time.monotonic() + 5 * _TOGETHER_SECONDS
                        requests.append(event)
                    case Cancelled(request):
                        requests.remove(request)
                    case Outgoing():
                        view = memoryview(event.encode() + b"\n")
                        while view:
                            view = view[os.write(writing, view) :]
    return requests


def _import_asyncio() -> None:
    """Import asyncio without ssl, which it would import if it could: pipes need no TLS, and it takes 5 MB."""
    if "ssl" in sys.modules:
        return
    sys.modules["ssl"] = cast("ModuleType", None)  # makes `import ssl` fail
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]


def _server(args: argparse.Namespace, flags: dict[str, str], environ: dict[str, str], tools: OfferedTools) -> "McpServer":
    import shlex

    from backburner.interfaces.cli.run import cwd
    from backburner.interfaces.client_setup.wiring import own_command
    from backburner.interfaces.mcp.server import McpServer
    from backburner.services.app import open_app

    return McpServer(
        lambda: open_app(args.home, environ, flags),
        tools,
        environ=environ,
        cwd=cwd(),
        command=shlex.join(own_command(environ, args.home)),
        client=args.client,
    )
