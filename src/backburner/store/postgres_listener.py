"""Hears the notifications of a ledger on Postgres, in a thread with a connection of its own, which is opened again when it is lost."""

import select
import socket
import threading
from collections.abc import Callable

import psycopg
from psycopg import sql

from backburner.store.postgres import connect

_RECONNECT_INTERVAL = 1.0
Heard = Callable[[str], None]


class PostgresListener:
    """Calls subscribers in its thread. There are a thread and a connection only while there are subscribers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._subscribers: dict[str, list[Heard]] = {}  # by channel
        self._waker: socket.socket | None = None  # to the thread: a byte if the channels have changed, closed if it must end

    def subscribe(self, channel: str, heard: Heard) -> Callable[[], None]:
        """Call `heard` with the payload of every notification; returns a function that ends the subscription.

        It is called with an empty payload whenever the connection begins to listen, because nothing was heard before. Does not wait
        for the server.
        """
        with self._lock:
            self._subscribers.setdefault(channel, []).append(heard)
            self._channels_changed()

        def unsubscribe() -> None:
            with self._lock:
                if heard in self._subscribers.get(channel, ()):
                    self._subscribers[channel].remove(heard)
                    self._channels_changed()

        return unsubscribe

    def close(self) -> None:
        """End all subscriptions."""
        with self._lock:
            self._subscribers.clear()
            self._channels_changed()

    def _channels_changed(self) -> None:
        self._subscribers = {channel: heard for channel, heard in self._subscribers.items() if heard}
        if self._subscribers and self._waker is None:
            woken, self._waker = socket.socketpair()
            threading.Thread(target=self._run, args=(woken,), name="backburner-listener", daemon=True).start()
        elif self._subscribers and self._waker:
            self._waker.send(b"!")
        elif self._waker:
            self._waker.close()
            self._waker = None

    def _run(self, woken: socket.socket) -> None:
        with woken:
            while True:
                try:
                    with connect(self._url) as connection:
                        self._listen(connection, woken)
                        return
                except psycopg.Error:
                    if select.select([woken], [], [], _RECONNECT_INTERVAL)[0] and not woken.recv(4096):
                        return

    def _listen(self, connection: psycopg.Connection, woken: socket.socket) -> None:
        """Call the subscribers until there are none; raises psycopg.Error if the connection is lost."""
        listening: set[str] = set()
        connection.add_notify_handler(lambda notice: self._tell(notice.channel, notice.payload))  # those that arrive during `execute`
        while True:
            with self._lock:
                channels = set(self._subscribers)
            for channel in channels - listening:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                self._tell(channel, "")
            for channel in listening - channels:
                connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
            listening = channels
            ready, _, _ = select.select([connection, woken], [], [])
            if woken in ready and not woken.recv(4096):
                return
            connection.pgconn.consume_input()
            while notice := connection.pgconn.notifies():
                self._tell(notice.relname.decode(), notice.extra.decode())

    def _tell(self, channel: str, payload: str) -> None:
        with self._lock:
            subscribers = list(self._subscribers.get(channel, ()))
        for heard in subscribers:
            heard(payload)
