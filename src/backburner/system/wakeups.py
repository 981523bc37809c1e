"""Wake-ups between processes: a folder of datagram sockets, one per listener. A wake-up is a hint and carries no data.

A process that has written to the ledger sends wake-ups; listeners read the ledger again. The engine listens on `engine.sock`.
"""

import os

TYPE_CHECKING = False

if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable

ENGINE_SOCKET = "engine.sock"
_sender: "socket | None" = None  # of this process, from the first wake-up on


class WakeupListener:
    """A bound socket to wait on. Bind it before reading the ledger, so that no wake-up is missed."""

    def __init__(self, folder: str, name: str | None = None) -> None:
        self._folder = folder
        self.on_close: Callable[[], None] | None = None
        if name:
            _unlink(os.path.join(folder, name))
        self._bind(name or _random_name())

    def _bind(self, name: str) -> None:
        self.path = os.path.join(self._folder, name)
        self.socket = _datagrams()
        try:
            self.socket.bind(self.path)
        except OSError as error:
            self.socket.close()
            raise OSError(error.errno, error.strerror, self.path) from None
        self._inode = os.stat(self.path).st_ino

    def fileno(self) -> int:
        return self.socket.fileno()

    def wait(self, seconds: float | None) -> bool:
        """Block until a wake-up or the timeout; True if there was a wake-up."""
        import select

        ready, _, _ = select.select([self.socket], [], [], seconds)
        self.drain()
        return bool(ready)

    def drain(self) -> bool:
        """Discard all pending wake-ups; returns whether there were any."""
        found = False
        try:
            while self.socket.recv(16):
                found = True
        except BlockingIOError:
            return found
        return found

    def pause(self) -> None:
        """Hear nothing until `resume`, so that nobody spends time on wake-ups that would change nothing."""
        self._unbind()

    def resume(self) -> None:
        """Listen again. Read the ledger afterwards, because wake-ups of the meantime are lost.

        The name is a new one: whoever could not reach the old one may be about to remove it.
        """
        self._bind(_random_name())

    def close(self) -> None:
        if self.on_close:
            self.on_close()
        self._unbind()

    def _unbind(self) -> None:
        try:
            if os.stat(self.path).st_ino == self._inode:  # not a socket that another process bound later
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        self.socket.close()


def wake(folder: str, name: str) -> bool:
    """Wake one listener; False if nobody listens there."""
    return _send(os.path.join(folder, name))


def wake_path(path: str) -> bool:
    """The same for the path of a listener."""
    return _send(path)


def wake_process(folder: str, pid: int) -> None:
    """Wake the listeners of one process."""
    for name in os.listdir(folder):
        if name.startswith(f"{pid}-"):
            _send(os.path.join(folder, name))


def wake_clients(folder: str) -> None:
    """Wake all listeners except the engine."""
    wake_all(folder, engine_too=False)


def wake_all(folder: str, *, engine_too: bool = True, except_for: str = "") -> bool:
    """Wake every listener except the one at the path `except_for`; True if the engine was among them.

    Sockets of dead listeners are removed.
    """
    engine = False
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    for name in names:
        path = f"{folder}/{name}"
        if (name == ENGINE_SOCKET and not engine_too) or path == except_for:
            continue
        if _send(path):
            engine = engine or name == ENGINE_SOCKET
        elif name != ENGINE_SOCKET:
            _unlink(path)
    return engine


def _send(path: str) -> bool:
    global _sender
    _sender = _sender or _datagrams()
    try:
        _sender.sendto(b"!", path)
    except BlockingIOError:
        return True  # its queue is full of wake-ups already
    except OSError:
        return False
    return True


def _random_name() -> str:
    return f"{os.getpid()}-{os.urandom(4).hex()}.sock"


def _datagrams() -> "socket":
    import _socket  # all that is needed of `socket`, which takes 2 ms to import

    made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _unlink(path: str) -> None:
    try:  # noqa: SIM105 `contextlib` takes long to load
        os.unlink(path)
    except FileNotFoundError:
        pass
