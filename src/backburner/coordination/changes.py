"""Announces changes of the ledger to other processes, and waits for theirs. A wake-up is only a hint; it contains no data.

Processes of one home wake each other through sockets. Those of other hosts, which use the same ledger on Postgres, are heard through the
server; the connection for that is opened by whoever waits, and not by a command that only reads or writes.
"""

import time
from collections.abc import Callable, Iterator, Sequence

from backburner.core.light_typing import TYPE_CHECKING
from backburner.system import wakeups
from backburner.system.home import Home

if TYPE_CHECKING:
    from backburner.store.database import Database

_ANY_CHANGE = "backburner"  # channels, as in `store/postgres_dispatch.py`; the payload is the host of the writer
_ENGINES = "backburner:engines"
_POLL_INTERVAL = 5.0  # seconds: how long to rely on wake-ups before the ledger is read again anyway


class ChangeFeed:
    """The wake-ups of one home."""

    def __init__(self, home: Home, database: "Database") -> None:
        self._home, self._database = home, database
        self.own_listener = ""  # the path of a listener that need not be woken, because its owner announces the changes

    def listen(self) -> wakeups.WakeupListener:
        """Return a listener that every change of the ledger wakes. The caller must close it."""
        listener = wakeups.WakeupListener(self._home.create_socket_dir())
        listener.on_close = self._hear_others((_ANY_CHANGE,), lambda: wakeups.wake_path(listener.path))
        return listener

    def hear_other_hosts(self, heard: Callable[[], object]) -> Callable[[], None]:
        """Call `heard`, in another thread, if another host has something for the engine of this one. The returned function ends that."""
        return self._hear_others((f"{_ANY_CHANGE}:{self._database.host_id}", _ENGINES), heard)

    def _hear_others(self, channels: Sequence[str], heard: Callable[[], object]) -> Callable[[], None]:
        host_id = self._database.host_id

        def hear(writer: str) -> None:
            if not writer or writer != host_id:  # processes of this home wake each other
                heard()

        subscriptions = [self.subscribe(channel, hear) for channel in channels]

        def end() -> None:
            for unsubscribe in filter(None, subscriptions):
                unsubscribe()

        return end

    def subscribe(self, channel: str, heard: Callable[[str], None]) -> Callable[[], None] | None:
        """Call `heard`, in another thread, for every notification on a channel of a ledger on Postgres; None for a file.

        An empty payload means that something may have been missed before. The returned function ends the subscription.
        """
        notifications = self._database.notifications
        return notifications.subscribe(channel, heard) if notifications else None

    def announce(self) -> bool:
        """Wake every listener after a commit; True if the engine was among them."""
        return wakeups.wake_all(self._home.socket_dir, except_for=self.own_listener)

    def wake_engine(self) -> bool:
        """Wake the engine; False if no engine is listening."""
        return wakeups.wake(self._home.socket_dir, wakeups.ENGINE_SOCKET)

    def wake_process(self, pid: int) -> None:
        """Wake the listeners of one process."""
        wakeups.wake_process(self._home.socket_dir, pid)

    def changes(self, timeout: float | None = None, interval: float = _POLL_INTERVAL) -> Iterator[None]:
        """Yield now, then after every change, and at the latest every `interval` seconds; end after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        listener = self.listen()
        try:
            while True:
                yield
                remaining = interval if deadline is None else min(interval, deadline - time.monotonic())
                if remaining <= 0:
                    return
                listener.wait(remaining)
        finally:
            listener.close()
