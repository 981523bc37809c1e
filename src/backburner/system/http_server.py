"""An HTTP server on a listening socket, for MCP over HTTP and for webhooks: uvicorn, with limits for idle connections.

A connection without an active request is closed if it has not sent a complete header in time. If the maximum number of connections
is reached, a new one replaces the one that has been sending its header for longest; if all have active requests, it gets 503.
"""

import asyncio
import functools
import sys
from collections.abc import Callable
from typing import Any

_modules: dict[str, Any] = sys.modules  # type: ignore[assignment]
_modules.setdefault("watchfiles", None)  # uvicorn would load it to restart itself, with a megabyte of code
import uvicorn  # noqa: E402
from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: E402

if _modules["watchfiles"] is None:
    del _modules["watchfiles"]

HEADER_TIMEOUT_SECONDS = 10.0
MAX_CONNECTIONS = 200
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def http_server(
    app: Any, *, max_connections: int = MAX_CONNECTIONS, header_timeout: float = HEADER_TIMEOUT_SECONDS, **options: Any
) -> uvicorn.Server:
    """A server for an ASGI app; `options` are uvicorn's."""
    protocol: Any = functools.partial(_Connection, max_connections=max_connections, header_timeout=header_timeout)
    settings: dict[str, Any] = {"log_level": "warning", "access_log": False, "timeout_graceful_shutdown": 2, "date_header": False}
    return _Server(uvicorn.Config(app, http=protocol, ws="none", **settings, **options))


class _Server(uvicorn.Server):
    """A server that sleeps while nothing happens. uvicorn's own wakes up ten times a second, for the header `Date` and to look for its end."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._is_stopping = False
        self._wake: Callable[[], object] | None = None
        super().__init__(config)

    @property
    def should_exit(self) -> bool:  # type: ignore[override]
        return self._is_stopping

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._is_stopping = value
        if value and self._wake:
            self._wake()

    async def main_loop(self) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(stop.set)  # it may be called by a signal handler or another thread
        await self.on_tick(0)
        if not self.should_exit:
            await stop.wait()
        self._wake = None


class _Connection(H11Protocol):
    """One connection. Its timer runs while a header is received, and not while a request is handled, however long that takes."""

    def __init__(self, *, max_connections: int, header_timeout: float, **options: Any) -> None:
        super().__init__(**options)
        self._max_connections, self._header_timeout = max_connections, header_timeout
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            waiting = [(other._timer.when(), other) for other in self.connections if isinstance(other, _Connection) and other._timer]
            if not waiting:
                self.connections.discard(self)
                transport.write(_FULL)
                transport.close()
                return
            min(waiting, key=lambda pair: pair[0])[1]._give_up()
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        if not self._is_answering():
            self._expect_header()
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._is_answering():
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_header(self) -> None:
        """Start the timer with the first byte; further bytes do not restart it."""
        if self._timer is None:
            self._timer = self.loop.call_later(self._header_timeout, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._stop_timer()
        self.connections.discard(self)  # immediately, because other connections may arrive before the loop closes it
        self.transport.abort()
