"""The frame of a daemon: a process of which a home has one. Lock, signals, wake-ups, config reload and idle exit around `tick()`.

A daemon keeps nothing in memory that matters: every pass reads the ledger, does what is due, and writes it.
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
_ANOTHER_RUNS = 3  # exit code
_RETRY_DELAY = 1.0


class Daemon(Protocol):
    """What a daemon does in its passes."""

    def tick(self) -> None:
        """Do everything that is due now, and return."""
        ...

    def is_busy(self) -> bool:
        """Whether there is a reason to stay."""
        ...

    def config_changed(self, config: Config) -> None:
        """Take over settings that changed."""
        ...

    async def close(self) -> None:
        """Let go of everything; what is under way outside this process goes on."""
        ...


class DaemonProcess:
    """Runs the passes of a daemon until a signal comes or nothing is left to do.

    `socket_name` is the fixed name of its wake-up socket, if other processes wake it by name; `idle_exit` gives the seconds after which
    it leaves when it is not busy, None to stay.
    """

    def __init__(
        self, home: Home, config: ConfigFile, *, idle_exit: Callable[[Config], float | None], socket_name: str | None = None
    ) -> None:
        self._home, self._config, self._idle_exit, self._socket_name = home, config, idle_exit, socket_name
        self._daemon: Daemon | None = None
        self._done = asyncio.Event()
        self._listener: wakeups.WakeupListener | None = None
        self._next_pass: asyncio.Handle | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None

    async def run(self, daemon: Daemon, listening: asyncio.Event | None = None) -> None:
        """Listen, then make the first pass: nothing written before the first wake-up is missed. `listening` is set in between."""
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

    def wake(self) -> None:
        """Make a pass soon; several wake-ups at once make one."""
        if self._next_pass is None:
            self._next_pass = asyncio.get_running_loop().call_soon(self.make_pass)

    def wake_others(self) -> None:
        """Wake everybody else who listens, after a commit, and make a pass soon."""
        wakeups.wake_all(self._home.socket_dir, except_for=self._listener.path if self._listener else "")
        self.wake()

    def make_pass(self) -> None:
        """One pass now: new settings, then everything that is due. A failed pass is logged and made again after a second."""
        if self._next_pass:
            self._next_pass.cancel()
            self._next_pass = None
        loop, daemon = asyncio.get_running_loop(), self._daemon
        assert daemon is not None
        try:
            self._reload_config(daemon)
            daemon.tick()
            busy = daemon.is_busy()
        except Exception as error:
            log.warning("%s", error, exc_info=not isinstance(error, BackburnerError))
            if self._retry is None or self._retry.when() < loop.time():
                self._retry = loop.call_later(_RETRY_DELAY, self.wake)
            return
        if self._leaving:
            self._leaving.cancel()
            self._leaving = None
        seconds = self._idle_exit(self._config.current)
        if not busy and seconds is not None:
            self._leaving = loop.call_later(seconds, self._leave)

    def _reload_config(self, daemon: Daemon) -> None:
        try:
            if self._config.reload_if_changed():
                daemon.config_changed(self._config.current)
        except BackburnerError as error:
            log.warning("Ignoring the changed config.toml and keeping the previous settings: %s", error)

    def _leave(self) -> None:
        """Stop listening, look once more, and only then leave, so that nobody is left waiting for a process that is gone."""
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
        self.wake()

    def _listen_again(self) -> None:
        """Our socket was removed, as another process tells us by a signal. A daemon that is leaving does not listen again."""
        if not self._done.is_set():
            self._stop_listening()
            self._listen()
            self.wake()


def run_alone(home: Home, name: str, serve: Callable[[Home], Coroutine[Any, Any, None]]) -> int:
    """Run `serve` as the one process of the home that holds `NAME.lock`; returns the exit code, 3 if another one runs."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    held = lock(os.path.join(home.root, f"{name}.lock"))
    if held is None:
        return _ANOTHER_RUNS
    mark_inside()  # it may have been started by a chat and not by the engine
    try:
        asyncio.run(serve(home))
    except BackburnerError as error:
        log.error("%s", error)
        return 1
    finally:
        os.close(held)
    return 0
