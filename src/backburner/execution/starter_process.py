"""The process that starts sandboxed commands without bubblewrap, for the process that runs commands; see sandbox_starter.py."""

import asyncio
import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from backburner.execution import log_writer, sandbox_starter
from backburner.execution.output_pipe import Child, Control, OutputPipe, ShimStart
from backburner.execution.sandbox import Confinement
from backburner.system.home import Home

log = logging.getLogger("backburner")

_RESTART_DELAY = 1.0  # seconds between two starts
_ANSWER_SECONDS = 10.0  # after which a process that has not handled a request is killed


class StarterProcess:
    """Starts the sandbox starter when it is first wanted, and again if it is killed. Belongs to one event loop."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._control: Control | None = None
        self._process: Child | None = None
        self._start_at = 0.0  # not before; infinite if this machine does not permit what it needs
        self._is_ready = False
        self._starts: dict[int, ShimStart] = {}  # by the numbers of their pipes, until their sandboxes have ended
        self._check: asyncio.TimerHandle | None = None

    @property
    def is_ready(self) -> bool:
        """Whether sandboxes can be started. If not yet, the process is started; until it is ready, bubblewrap does its work."""
        if self._control is None and asyncio.get_running_loop().time() >= self._start_at:
            self._start()
        return self._is_ready

    def request(self, pipe: OutputPipe, project: str | None, confinement: Confinement) -> bytes | None:
        """A request to start a command; None if it would be too large."""
        layout, files = confinement.layout, confinement.files
        assert layout
        system, words = (*layout.system, *layout.machine), (*layout.own, *layout.later)
        request = sandbox_starter.request(pipe.inode, project, system, words, confinement.environment, files)
        most = sandbox_starter.MAX_DESCRIPTORS - len(sandbox_starter.Streams._fields)
        fits = len(request) <= sandbox_starter.MAX_REQUEST_BYTES and len(files) <= most
        return request if fits else None

    def start(self, pipe: OutputPipe, request: bytes, streams: sandbox_starter.Streams, files: Sequence[int]) -> bool:
        """Have a command started; False if there is no process that can take the request now. `files` are those of the sandbox.

        If it is killed before it has started the command, the log writer sees the end of the pipe.
        """
        if self._control is None:
            return False
        try:
            socket.send_fds(self._control, [request], [*streams, *files])
        except OSError:
            return False
        pipe.start = self._starts[pipe.inode] = ShimStart(in_sandbox=True)
        if self._check is None:
            self._check = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self._check_answers, self._unanswered())
        return True

    def close(self) -> None:
        """Let the process end. The commands continue."""
        if self._control:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        self._is_ready = False
        for start in self._starts.values():
            start.report_gone(is_known=False)
        self._starts.clear()
        if self._check:
            self._check.cancel()
            self._check = None
        if self._process:
            self._process.poll()

    def _unanswered(self) -> list[int]:
        return [number for number, start in self._starts.items() if not start.started.is_set()]

    def _check_answers(self, before: list[int]) -> None:
        """Kill the process if requests are not handled since the last check, or look again as long as some are not handled."""
        self._check = None
        unanswered = self._unanswered()
        if self._process and not set(before).isdisjoint(unanswered):
            log.warning("the sandbox starter does not answer and is killed")
            self._process.kill()
        elif unanswered:
            self._check = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self._check_answers, unanswered)

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
        while self._control:
            try:
                received = self._control.recv(1024)
            except BlockingIOError:
                return
            except OSError:
                received = b""
            kind, _, rest = received.partition(b" ")
            if kind == sandbox_starter.GONE:
                if start := self._starts.pop(int(rest), None):
                    start.report_gone(is_known=True)
            elif kind == sandbox_starter.STARTED:
                number, *process = rest.split()
                if start := self._starts.get(int(number)):
                    start.report(log_writer.STARTED, *process)
            elif kind == sandbox_starter.READY:
                self._is_ready = True
            else:
                if received:
                    log.info("sandboxes are made with bubblewrap: %s", received.decode("utf-8", "replace"))
                    self._start_at = math.inf
                self.close()
