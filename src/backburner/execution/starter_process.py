"""The process that starts sandboxed commands without bubblewrap, for the process that runs commands; see sandbox_starter.py."""

import asyncio
import contextlib
import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from backburner.execution import sandbox_starter
from backburner.execution.output_pipe import Child, Control
from backburner.execution.sandbox import Confinement
from backburner.system.home import Home

log = logging.getLogger("backburner")

_RESTART_DELAY = 1.0  # seconds between two starts


class StarterProcess:
    """Starts the sandbox starter when it is first wanted, and again if it is killed. Belongs to one event loop."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._control: Control | None = None
        self._process: Child | None = None
        self._start_at = 0.0  # not before; infinite if this machine does not permit what it needs
        self._is_ready = False

    @property
    def is_ready(self) -> bool:
        """Whether sandboxes can be started. If not yet, the process is started; until it is ready, bubblewrap does its work."""
        if self._control is None and asyncio.get_running_loop().time() >= self._start_at:
            self._start()
        return self._is_ready

    def request(self, project: str | None, confinement: Confinement) -> bytes | None:
        """A request to start a command; None if it would be too large."""
        layout, files = confinement.layout, confinement.files
        assert layout
        system, words = (*layout.system, *layout.machine), (*layout.own, *layout.later)
        request = sandbox_starter.request(project, system, words, confinement.variables, files)
        fits = len(request) <= sandbox_starter.MAX_REQUEST_BYTES and len(files) + 3 <= sandbox_starter.MAX_DESCRIPTORS
        return request if fits else None

    def start(self, request: bytes, descriptors: Sequence[int]) -> None:
        """Have a command started. The descriptors are a socket to the shim, the output, the script of the first process, and those of the sandbox.

        If it is not started, because the process is killed or cannot take the request now, the shim sees the end of its socket.
        """
        with contextlib.suppress(OSError):
            if self._control:
                socket.send_fds(self._control, [request], descriptors)

    def close(self) -> None:
        """Let the process end. The commands continue."""
        if self._control:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        self._is_ready = False
        if self._process:
            self._process.poll()

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._start_at = loop.time() + _RESTART_DELAY
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with open(os.open(self._home.engine_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as errors:
                self._process = Child(
                    [sys.executable, "-IS", os.path.abspath(sandbox_starter.__file__), self._home.root],  # the home is only shown
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd="/",
                    env={"PATH": os.defpath},
                    start_new_session=True,
                )
        except OSError as error:
            log.warning("sandboxes are made with bubblewrap: %s", error)
            ours.close()
            return
        finally:
            theirs.close()
        self._control = Control(fileno=ours.detach())
        self._control.setblocking(False)
        loop.add_reader(self._control.fileno(), self._on_message)

    def _on_message(self) -> None:
        assert self._control is not None
        try:
            received = self._control.recv(1024)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if received == sandbox_starter.READY:
            self._is_ready = True
            return
        if received:
            log.info("sandboxes are made with bubblewrap: %s", received.decode("utf-8", "replace"))
            self._start_at = math.inf
        self.close()
