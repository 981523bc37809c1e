"""The pipe that a command writes its output to, and the process that moves it from there to the log; see log_writer.py."""

import _socket
import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from backburner.core.models import ProcessId
from backburner.execution import log_writer
from backburner.execution.sandbox_starter import OTHER_END, READER
from backburner.system import processes
from backburner.system.capabilities import call_libc
from backburner.system.home import Home
from backburner.system.restricted_thread import Restriction
from backburner.system.run_files import ExitFile

SHIM_READER = READER  # the shim's descriptor of the read end, in a sandbox or not
_RESTART_DELAY = 0.1  # seconds, if the log writer ends again and again
_GONE_SECONDS = 2.0  # that a sandbox may take to end after its command
_REPORT_SECONDS = 0.5  # that the report of an end may take after the sandbox has ended
_GET_FILE = 438  # the system call pidfd_getfd


class Child(subprocess.Popen):
    """A child process that is meant to outlive this process, so an unreaped one is not reported."""

    def __del__(self) -> None:  # type: ignore[override]
        return


class Control(socket.socket):
    """A socket that is closed silently with its owner, because a program need not close its `TaskRunner`."""

    def __del__(self) -> None:
        self.close()


class ShimStart:
    """A shim that the log writer or the sandbox starter was asked to start. If one of them is killed, what it has not reported stays unknown.

    A shim in a sandbox has ended when the log writer has reported its end, and the sandbox starter that of everything in the sandbox.
    """

    def __init__(self, *, in_sandbox: bool = False) -> None:
        self.started = asyncio.Event()  # or it could not be started, or that will not be known
        self.ended = asyncio.Event()
        self.process: ProcessId | None = None
        self.error: OSError | None = None  # why it could not be started
        self.is_end_reported = False
        self.exit_file: ExitFile | None = None  # what the log writer has read there
        self.is_gone = False  # the sandbox
        self.on_gone: Callable[[], None] | None = None  # called if the end is not reported although the sandbox has ended
        self._awaits_gone = in_sandbox
        self._timer: asyncio.TimerHandle | None = None  # for the second of the two reports

    def report(self, message: bytes, *numbers: bytes) -> None:
        """Handle a message of the log writer; an empty one if it was killed."""
        if message in (log_writer.STARTED, log_writer.ENDED) and not self.started.is_set() and int(numbers[0]) > 0:
            start_time = numbers[1].decode() if message == log_writer.STARTED else "0"
            self.process = ProcessId(int(numbers[0]), start_time, processes.boot_id())
        elif message == log_writer.NOT_STARTED:
            self.error = OSError(int(numbers[0]), os.strerror(int(numbers[0])))
        self.started.set()
        if message == log_writer.STARTED or self.ended.is_set():
            return
        if message == log_writer.ENDED and len(numbers) == 4:
            self.exit_file = ExitFile(numbers[1].decode(), numbers[2].decode(), int(numbers[3]) // 1_000_000)
        self.is_end_reported = bool(message)
        if self._timer:
            self._timer.cancel()
        if message and self._awaits_gone:
            self._timer = asyncio.get_running_loop().call_later(_GONE_SECONDS, self.ended.set)
        else:
            self.ended.set()

    def report_gone(self, *, is_known: bool) -> None:
        """Handle the end of a sandbox; or that it will not be known, because the sandbox starter was killed."""
        self.is_gone, self._awaits_gone = is_known, False
        self.started.set()
        if self._timer:
            self._timer.cancel()
            self.ended.set()
        elif is_known and not self.ended.is_set() and self.on_gone:
            self._timer = asyncio.get_running_loop().call_later(_REPORT_SECONDS, self.on_gone)


class OutputPipe:
    """The pipe of one command, for the process that supervises it. `shim` is a socket to the command's shim, or a pidfd of it."""

    def __init__(self, log: str, limit: int, reader: int, shim: int, kind: bytes, header: bytes = b"") -> None:
        """`header` is that of the log of a shim inside a sandbox."""
        self.log, self.limit, self.kind, self.header = log, limit, kind, header
        self.reader, self.shim = reader, shim
        self.inode = os.fstat(reader).st_ino
        self.is_gone = self.is_passed = False  # the sandbox; to the log writer
        self.start: ShimStart | None = None  # if another process starts the shim

    @property
    def is_empty(self) -> bool:
        """Whether everything that was written is in the log."""
        return self.reader < 0 or log_writer.bytes_in(self.reader) == 0

    def close(self) -> None:
        for descriptor in (self.reader, self.shim):
            if descriptor >= 0:
                os.close(descriptor)
        self.reader = self.shim = -1


def new_pipe(log: str, limit: int) -> tuple[OutputPipe, int, int]:
    """A new pipe, and what only the shim needs of it: the write end, and the shim's end of its socket."""
    reader, writer = os.pipe()
    log_writer.set_capacity(writer, log_writer.PIPE_BYTES)
    try:
        ours, theirs = _socket.socketpair()  # `socket` takes several times longer to make its objects
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    return OutputPipe(log, limit, reader, ours.detach(), log_writer.ANSWERS), writer, theirs.detach()


def pipe_of(shim: ProcessId | None, log: str, limit: int, header: bytes) -> OutputPipe | None:
    """The pipe of a command that another process started; None if its shim has ended. `header` is that of its log."""
    if shim is None:
        return None
    for number in (SHIM_READER, 1):  # until it has opened the read end, only the write end is there
        try:
            reader = os.open(f"/proc/{shim.pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        if stat.S_ISFIFO(os.fstat(reader).st_mode) and processes.is_alive(shim):
            try:
                process = os.pidfd_open(shim.pid)
            except OSError:
                return OutputPipe(log, limit, reader, -1, log_writer.WATCHED)
            if (report := _socket_of(process)) < 0:
                return OutputPipe(log, limit, reader, process, log_writer.WATCHED)
            os.close(process)
            return OutputPipe(log, limit, reader, report, log_writer.INSIDE, header)
        os.close(reader)
    return None


def _socket_of(shim: int) -> int:
    """The other end of the socket to which a shim inside a sandbox reports, from a pidfd of it; -1 if it has none."""
    try:
        found = call_libc("syscall", _GET_FILE, shim, OTHER_END, 0)
    except OSError:
        return -1
    if stat.S_ISSOCK(os.fstat(found).st_mode):
        return found
    os.close(found)
    return -1


class LogWriterProcess:
    """Starts the log writer, passes it every pipe, has it start shims, and starts another one if it ends. Belongs to one event loop."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._pipes: dict[int, OutputPipe] = {}  # by inode, until their output is complete
        self._unsent: list[OutputPipe] = []
        self._is_full = False  # its socket, so that its next room is waited for
        self._control: Control | None = None
        self._process: Child | None = None
        self._restart: asyncio.TimerHandle | None = None
        self._started_at = 0.0

    @property
    def can_start(self) -> bool:
        """Whether there is a log writer that has no other requests to wait for."""
        return self._control is not None and not self._unsent

    def start(
        self,
        pipe: OutputPipe,
        header: bytes,
        streams: Sequence[int],
        cwd: str,
        env: Mapping[str, str],
        passed: Mapping[int, int] = MappingProxyType({}),
        restriction: Restriction | None = None,
    ) -> bool:
        """Have the log writer start a shim with these standard streams; False if there is none, or it cannot do this now.

        The log writer creates the log with this header, unless it is empty. The shim also gets the descriptors in `passed`, by the numbers
        that it gets them with, and is restricted.
        """
        if not self.can_start or self._control is None:
            return False
        fields = (
            log_writer.START,
            b"%d" % pipe.limit,
            os.fsencode(pipe.log),
            header,
            os.fsencode(cwd),
            b" ".join([b"%d" % number for number in passed]),
            restriction.to_text() if restriction else b"",
            os.fsencode("\0".join([f"{name}={value}" for name, value in env.items()])),
        )
        request = b"\0".join(fields)
        rulesets = restriction.rulesets if restriction else ()
        try:
            if len(request) > log_writer.MAX_REQUEST_BYTES:
                return False
            socket.send_fds(self._control, [request], [pipe.reader, pipe.shim, *streams, *passed.values(), *rulesets])
        except OSError:
            return False
        self._pipes[pipe.inode], pipe.start = pipe, ShimStart()
        return True

    def add(self, pipe: OutputPipe) -> OutputPipe:
        """Have the output of a command written to its log. Returns the same pipe, or the one that was added before for this command."""
        if known := self._pipes.get(pipe.inode):
            pipe.close()
            return known
        self._pipes[pipe.inode] = pipe
        self._unsent.append(pipe)
        if self._control:
            self._send()
        elif self._restart is None:  # not now, because the command need not wait for it
            self._restart = asyncio.get_running_loop().call_later(0, self._start)
        return pipe

    def end(self, pipe: OutputPipe) -> None:
        """Have the log of a sandbox completed that has ended, although something else may have its pipe open."""
        if pipe.reader >= 0 and self._pipes.get(pipe.inode) is pipe:
            pipe.is_gone = True
            if pipe not in self._unsent:
                self._unsent.append(pipe)
            if self._control and not self._is_full:
                self._send()

    def remove(self, pipe: OutputPipe) -> None:
        """Release a pipe whose output is in the log."""
        self._pipes.pop(pipe.inode, None)
        if pipe in self._unsent:
            self._unsent.remove(pipe)
        pipe.close()

    def close(self) -> None:
        """Release everything. The log writer continues until the output is complete, or another engine takes over."""
        if self._restart:
            self._restart.cancel()
        self._disconnect()
        for pipe in self._pipes.values():
            pipe.close()
        self._pipes.clear()

    def _start(self) -> None:
        self._restart = None
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = _start_log_writer(self._home, theirs.fileno())
        except OSError:
            ours.close()
            self._restart = loop.call_later(_RESTART_DELAY, self._start)
            return
        finally:
            theirs.close()
        self._control, self._started_at = Control(fileno=ours.detach()), loop.time()
        self._control.setblocking(False)
        loop.add_reader(self._control.fileno(), self._on_message)
        self._unsent = list(self._pipes.values())
        for pipe in self._unsent:
            pipe.is_passed = False
        self._send()

    def _send(self) -> None:
        """Pass what was not passed yet; what the socket has no room for follows when it has."""
        assert self._control is not None
        try:
            while self._unsent:
                pipe = self._unsent[0]
                if pipe.is_passed and pipe.is_gone:
                    socket.send_fds(self._control, [b"\0".join((log_writer.GONE, b"0", b""))], [pipe.reader])
                    self._unsent.pop(0)
                    continue
                fields = (pipe.kind, b"%d" % pipe.limit, os.fsencode(pipe.log), pipe.header)
                message = b"\0".join(fields if pipe.kind == log_writer.INSIDE else fields[:3])
                socket.send_fds(self._control, [message], [descriptor for descriptor in (pipe.reader, pipe.shim) if descriptor >= 0])
                pipe.is_passed = True
                if not pipe.is_gone:
                    self._unsent.pop(0)
        except BlockingIOError:
            asyncio.get_running_loop().add_writer(self._control.fileno(), self._send)
            self._is_full = True
            return
        except OSError:
            return  # it has ended, which is also noticed where its messages are read
        if self._is_full:
            asyncio.get_running_loop().remove_writer(self._control.fileno())
            self._is_full = False

    def _on_message(self) -> None:
        """Handle the messages of the log writer; if it was killed, start another one."""
        while self._control:
            try:
                received = self._control.recv(256)
            except BlockingIOError:
                return
            except OSError:
                received = b""
            if not received:
                self._on_end()
                return
            kind, inode, *numbers = received.split()
            pipe = self._pipes.get(int(inode))
            if pipe and pipe.start:
                pipe.start.report(kind, *numbers)
            if pipe and kind in (log_writer.CLOSED, log_writer.NOT_STARTED):
                self.remove(pipe)

    def _on_end(self) -> None:
        self._disconnect()
        for pipe in self._pipes.values():
            if pipe.start:
                pipe.start.report(b"")
        loop = asyncio.get_running_loop()
        if self._pipes and self._restart is None:
            self._restart = loop.call_later(0 if loop.time() - self._started_at > 1 else _RESTART_DELAY, self._start)

    def _disconnect(self) -> None:
        if self._control:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._control.fileno())
            loop.remove_writer(self._control.fileno())
            self._is_full = False
            self._control.close()
            self._control = None
        if self._process:
            self._process.poll()


def log_writer_command(*arguments: str) -> list[str]:
    """The command that runs log_writer.py, with as little of the interpreter as possible."""
    return [sys.executable, "-IS", os.path.abspath(log_writer.__file__), *arguments]


def _start_log_writer(home: Home, control: int) -> Child:
    """Start it in its own session, so that signals to this process and to its commands do not reach it."""
    with open(os.open(home.engine_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as errors:
        return Child(
            log_writer_command("serve", home.root),
            stdin=control,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd="/",
            env={"PATH": os.defpath},
            start_new_session=True,
        )
