"""Runs a daemon, of which each home has at most one: lock, signals, wake-ups, config reload and idle exit around `tick()`.

A daemon keeps no important state in memory: every pass reads the ledger, does what is due, and writes the results.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from backburner.coordination.config_file import ConfigFile
from backburner.core.errors import BackburnerError
from backburner.core.settings import Config
from backburner.system import wakeups
from backburner.system.home import Home, lock
from backburner.system.processes import mark_inside

log = logging.getLogger("backburner")
_ALREADY_RUNNING = 3  # exit code
_PASS_INTERVAL = 0.005  # seconds: one pass for several changes at nearly the same time
_PASS_INTERVAL_ON_SERVER = 0.25  # the same after changes of the daemon itself
_RETRY_DELAY = 1.0


class Daemon(Protocol):
    """The work of a daemon."""

    def tick(self) -> None:
        """Do everything that is due now, and return."""
        ...

    def is_busy(self) -> bool:
        """Whether the process must keep running."""
        ...

    def config_changed(self, config: Config) -> None:
        """Apply changed settings."""
        ...

    async def close(self) -> None:
        """Release all resources; work in other processes continues."""
        ...


class DaemonProcess:
    """Runs the passes of a daemon until it receives a signal or has nothing left to do.

    `socket_name` is the fixed name of its wake-up socket, if other processes wake it by name. `idle_exit` returns the seconds after which
    an idle daemon exits, or None to keep it running.
    """

    def __init__(
        self, home: Home, config: ConfigFile, *, idle_exit: Callable[[Config], float | None], socket_name: str | None = None
    ) -> None:
        # On a server, the many reads of a pass cost more than what they find out after most of the daemon's own changes.
        self._own_interval = _PASS_INTERVAL_ON_SERVER if config.current.text("store.url") else _PASS_INTERVAL
        self._home, self._config, self._idle_exit, self._socket_name = home, config, idle_exit, socket_name
        self._daemon: Daemon | None = None
        self._done = asyncio.Event()
        self._listener: wakeups.WakeupListener | None = None
        self._next_pass: asyncio.TimerHandle | None = None
        self._last_pass = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._error: BackburnerError | None = None

    async def run(self, daemon: Daemon, listening: asyncio.Event | None = None) -> None:
        """Listen for wake-ups, then make the first pass, so that no change is missed. `listening` is set in between."""
        loop, self._daemon = asyncio.get_running_loop(), daemon
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._done.set)
        loop.add_signal_handler(signal.SIGUSR1, self._listen_again)
        self._listen()
        if listening:
            listening.set()
        try:
            self.make_pass()
            await self._done.wait()
        finally:
            self._stop_listening()
            await daemon.close()
        if self._error:
            raise self._error

    def exit_with(self, error: BackburnerError) -> None:
        """End the process with an error, so that whoever supervises it starts it again."""
        self._error = error
        self._done.set()

    def wake(self, delay: float = 0.0) -> None:
        """Schedule a pass; several wake-ups at once cause one pass."""
        loop = asyncio.get_running_loop()
        if self._next_pass and self._next_pass.when() <= loop.time() + delay:
            return
        if self._next_pass:
            self._next_pass.cancel()
        self._next_pass = loop.call_later(delay, self.make_pass)

    def wake_others(self) -> None:
        """Wake all other listeners after a commit, and schedule a pass soon, so that several changes cause one pass."""
        wakeups.wake_all(self._home.socket_dir, except_for=self._listener.path if self._listener else "")
        self.wake(self._own_interval)

    def make_pass(self) -> None:
        """Make one pass: reload changed settings, then do everything that is due. A failed pass is logged and repeated after a second."""
        if self._next_pass:
            self._next_pass.cancel()
            self._next_pass = None
        loop, daemon = asyncio.get_running_loop(), self._daemon
        assert daemon is not None
        self._last_pass = loop.time()
        try:
            self._reload_config(daemon)
            daemon.tick()
            busy = daemon.is_busy()
        except Exception as error:
            log.warning("%s", error, exc_info=not isinstance(error, BackburnerError))
            if self._retry is None or self._retry.when() < loop.time():
                self._retry = loop.call_later(_RETRY_DELAY, self.wake)
            return
        if self._idle_timer:
            self._idle_timer.cancel()
            self._idle_timer = None
        seconds = self._idle_exit(self._config.current)
        if not busy and seconds is not None:
            self._idle_timer = loop.call_later(seconds, self._exit_if_idle)

    def _reload_config(self, daemon: Daemon) -> None:
        ledger = self._config.current.text("store.url")
        try:
            if self._config.reload_if_changed():
                daemon.config_changed(self._config.current)
                if self._config.current.text("store.url") != ledger:
                    self.exit_with(BackburnerError("Exiting, because `url` under [store] has changed."))
        except BackburnerError as error:
            log.warning("Ignoring the changed config.toml and keeping the previous settings: %s", error)

    def _exit_if_idle(self) -> None:
        """Stop listening, check once more for work, and only then exit, so that no wake-up is lost."""
        assert self._daemon is not None
        self._stop_listening()
        if self._daemon.is_busy():
            self._listen()
            self.make_pass()
        else:
            self._done.set()

    def _listen(self) -> None:
        self._listener = wakeups.WakeupListener(self._home.create_socket_dir(), self._socket_name)
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._on_wakeup)

    def _stop_listening(self) -> None:
        if self._listener:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def _on_wakeup(self) -> None:
        if self._listener:
            self._listener.drain()
        since = asyncio.get_running_loop().time() - self._last_pass
        self.wake(max(0.0, _PASS_INTERVAL - since))  # at once, unless it has just made a pass

    def _listen_again(self) -> None:
        """Create the socket again after another process reported by a signal that it is missing. Not while the daemon exits."""
        if not self._done.is_set():
            self._stop_listening()
            self._listen()
            self.wake()


def run_alone(home: Home, name: str, serve: Callable[[Home], Coroutine[Any, Any, None]]) -> int:
    """Run `serve` as the only process of the home that holds `NAME.lock`; returns the exit code, 3 if another one is running."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    lock_fd = lock(os.path.join(home.root, f"{name}.lock"))
    if lock_fd is None:
        return _ALREADY_RUNNING
    mark_inside()  # a chat may have started it instead of the engine
    try:
        asyncio.run(serve(home))
    except BackburnerError as error:
        log.error("%s", error)
        return 1
    finally:
        os.close(lock_fd)
    return 0
