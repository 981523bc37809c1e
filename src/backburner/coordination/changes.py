"""Announces changes of the ledger to other processes, and waits for theirs. A wake-up is only a hint; it contains no data."""

import time
from collections.abc import Iterator

from backburner.system import wakeups
from backburner.system.home import Home

_POLL_INTERVAL = 5.0  # seconds: how long to rely on wake-ups before the ledger is read again anyway


class ChangeFeed:
    """The wake-ups of one home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.own_listener = ""  # the path of a listener that need not be woken, because its owner announces the changes

    def listen(self) -> wakeups.WakeupListener:
        """Return a listener that every change of the ledger wakes. The caller must close it."""
        return wakeups.WakeupListener(self._home.create_socket_dir())

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
