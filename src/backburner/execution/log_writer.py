"""The log writer: a process that moves the output of commands from their pipes to their logs. It is run as a script, without packages.

The process that runs commands (the engine, or a program with a `TaskRunner`) starts one log writer and passes it a pipe for every
command. Usually it also has it start the command's shim, because starting a process takes longer than everything else. Each byte is moved with splice(2) and is at any time in the pipe or in the log, so killing this process loses nothing: the
shim of the command also holds the pipe, and another log writer continues. A log is locked by the process that writes it.

The same file is what a shim runs to save the rest of its output when no log writer is left: `log_writer.py drain|follow LIMIT LOG <PIPE`.
"""

import _signal  # type: ignore
import _socket
import errno
import fcntl
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from backburner.system.restricted_thread import RestrictedThreads

PIPE_BYTES = 256 * 1024  # the capacity of an output pipe, and the most that is moved from one pipe before the next one's turn
# The capacity of a pipe after its log has exceeded its limit: the command can go on writing while parts of the log are removed.
FLOODED_PIPE_BYTES = 1 << 20
_SETPIPE_SZ = 1031  # see fcntl(2)
COMPLETE, OPEN = "e", "o"  # the answer to a shim: everything is in the log, and whether a process can still write to the pipe
MARK_AT = 4  # the offset of that answer in the exit file, behind the exit code; see run_files.output_state
# Requests: start a shim and write the log of its pipe; or only write a log, where the second descriptor is the shim's socket or its pidfd.
# A shim inside a sandbox reports the exit code, which is recorded here.
START, ANSWERS, WATCHED, INSIDE = b"start", b"answers", b"watched", b"inside"
GONE = b"gone"  # nothing of a sandbox is left: what still has its pipe or its socket open, got it from there
# Messages: a shim was started and still runs, or it was not started; a command that was started here has ended and its output is in the
# log (with what its exit file says); no process can write to a pipe any more.
STARTED, NOT_STARTED, ENDED, CLOSED = b"started", b"not-started", b"ended", b"closed"
MAX_REQUEST_BYTES = 96 * 1024
# A flooding command fills the pipe with more than such a piece, so that pieces end at a block of the log; other writes are slower.
_PIECE_BYTES, _BLOCK_BYTES = 192 * 1024, 64 * 1024
_FLOOD_BYTES = 32 * 1024  # after a piece of this size there is probably more already
_REPORT_SECONDS = 0.01  # a command that ends earlier is reported only once
_RETRY_SECONDS = 0.2  # for a log that another process has locked, and for a full disk
_EXIT_SECONDS = 1.0  # an engine that was just killed may still hold its lock
_FIONREAD = 0x541B
_MAX_DESCRIPTORS = 253  # in one message; a limit of the kernel
_UNKNOWN_PID = -1  # of a shim that was not started here, but whose end is reported
_MAX_REPORT_BYTES = 64
_LATE_SECONDS = 0.05  # after which the time of an end is that in the report
_KILLED, _MAX_EXIT_CODE = b"137", 255
_ALL_SIGNALS = _signal.valid_signals()  # to reset all at once takes half as long as to ask for each before


class Output:
    """A pipe and its log. `shim` becomes readable when the shim has ended or wants to end."""

    def __init__(self, pipe: int, path: str, limit: int, shim: int = -1, answers: bool = False) -> None:
        self.pipe, self.path, self.limit, self.shim, self.answers = pipe, path, limit, shim, answers
        self.inode = os.fstat(pipe).st_ino  # what the process that passed the pipe knows it by
        self.log = -1
        self.ending = False  # the shim waits for an answer
        self.answered = False  # the command has ended, but descendants of it still hold the pipe
        self.inside = False  # the shim is in a sandbox
        self.header = b""  # of its log, if that does not exist
        self.recorded = False  # its exit code
        self.gone = False  # its sandbox
        self.drained = False  # its pipe has ended before the exit code was reported
        self.pid = 0  # of the shim, if it was started here and the end of the command is not reported yet
        self._exit_file = b""  # what `mark` found and left there
        self._size, self._check_at = 0, limit
        self._unwritten = b""  # read but not written yet, where splice does not work
        self._limiter = None
        os.set_blocking(pipe, False)

    def create(self, header: bytes) -> None:
        """Create the log, with these first lines, and lock it. An existing file is removed, not written through."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            self.log = os.open(self.path, flags, 0o600)
        except FileExistsError:
            os.unlink(self.path)
            self.log = os.open(self.path, flags, 0o600)
        fcntl.flock(self.log, fcntl.LOCK_EX)
        try:
            while self._size < len(header):
                self._size += os.write(self.log, header[self._size :])
        except OSError:
            os.unlink(self.path)
            self.close_log()
            self._size = 0
            raise

    def open(self) -> bool:
        """Open and lock the log; False if another process writes it."""
        if self.log < 0:
            try:
                self.log = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                return self._create_or_discard()
        try:
            fcntl.flock(self.log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.log)
            self.log = -1
            return False
        self._size = os.lseek(self.log, 0, os.SEEK_END)
        return True

    def _create_or_discard(self) -> bool:
        try:
            if self.header:
                self.create(self.header)
                return True
        except FileNotFoundError:
            self.header = b""
        self.log = os.open(os.devnull, os.O_WRONLY)  # the run was deleted; its command must not wait for a reader
        return True

    def record(self, report: bytes) -> None:
        """Record the exit code that a shim inside a sandbox has reported. The time of the exit file is that of the end."""
        self.recorded = True
        code, ended, *_ = (*report.split(), b"", b"")
        try:
            exit_file = os.open(os.path.join(os.path.dirname(self.path), ".exit"), os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return  # the run was deleted
        try:
            os.pwrite(exit_file, (code if code.isdigit() and int(code) <= _MAX_EXIT_CODE else _KILLED).ljust(MARK_AT), 0)
            since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
            if _LATE_SECONDS < (late := since_boot - float(ended)) < since_boot:
                now = time.time()
                os.utime(exit_file, (now, now - late))
        except (OSError, ValueError):
            return  # then the time is that of the record; or the code stays unknown, if it cannot be written
        finally:
            os.close(exit_file)

    def move(self) -> int | None:
        """Move a piece to the log; returns how many bytes, 0 at the end of the output, None if there is nothing to move now."""
        try:
            moved = self._splice()
        except BlockingIOError:
            return None
        self._size += moved
        if self._size > self._check_at and moved:
            self._remove_excess()
        return moved

    def mark(self, answer: str) -> None:
        """Record in the exit file that the output is in the log. The time of that file stays the time at which the command ended."""
        try:
            exit_file = os.open(os.path.join(os.path.dirname(self.path), ".exit"), os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return  # the run was deleted
        try:
            before = os.fstat(exit_file)
            os.pwrite(exit_file, answer.encode(), MARK_AT)
            os.utime(exit_file, ns=(before.st_atime_ns, before.st_mtime_ns))
            self._exit_file = b"%s %s %d" % (os.pread(exit_file, MARK_AT, 0).strip(b"\0 \n"), answer.encode(), before.st_mtime_ns)
        finally:
            os.close(exit_file)

    @property
    def end(self) -> bytes:
        """The exit code, the mark and the time of the exit file in nanoseconds; empty if it has no exit code."""
        return self._exit_file if self._exit_file.split(b" ")[0].isdigit() else b""

    def answer(self, answer: str) -> None:
        """Answer the shim."""
        if self.answers and self.shim >= 0:
            peer = _socket.socket(fileno=os.dup(self.shim))
            try:  # without waiting: a command may have filled the socket of the first process of its sandbox
                peer.send(f"{answer}\n".encode(), _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
            except OSError:
                return  # it was killed
            finally:
                peer.close()

    def close_log(self) -> None:
        """Close the log, which releases its lock."""
        if self.log >= 0:
            os.close(self.log)
            self.log = -1

    def close(self) -> None:
        self.close_log()
        for descriptor in (self.pipe, self.shim):
            if descriptor >= 0:
                os.close(descriptor)
        self.pipe = self.shim = -1

    def _splice(self) -> int:
        if hasattr(os, "splice") and not self._unwritten:
            try:
                return os.splice(self.pipe, self.log, _PIECE_BYTES - self._size % _BLOCK_BYTES, flags=os.SPLICE_F_NONBLOCK)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise  # EINVAL: this file system cannot do it
        self._unwritten = self._unwritten or os.read(self.pipe, PIPE_BYTES)
        moved = len(self._unwritten)
        while self._unwritten:
            self._unwritten = self._unwritten[os.write(self.log, self._unwritten) :]
        return moved

    def _remove_excess(self) -> None:
        if self._limiter is None:
            _find_packages()
            from backburner.execution.output_limit import OutputLimit  # few logs are that large

            self._limiter = OutputLimit(os.path.dirname(self.path), self.limit)
            set_capacity(self.pipe, FLOODED_PIPE_BYTES)
        self.log = self._limiter.check(self.log)
        self._size = os.lseek(self.log, 0, os.SEEK_CUR)
        self._check_at = max(self.limit, self._size + self.limit // 256)  # a small part of what is removed at a time


def _find_packages() -> None:
    """Make the other modules importable; most log writers need none."""
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if folder not in sys.path:
        sys.path.append(folder)


def _restricted_threads() -> "RestrictedThreads":
    _find_packages()
    from backburner.system.restricted_thread import RestrictedThreads

    return RestrictedThreads()


def set_capacity(pipe: int, size: int) -> None:
    """Let a pipe hold this many bytes, if the user's limit permits it."""
    try:  # noqa: SIM105 `contextlib` takes long to load
        fcntl.fcntl(pipe, _SETPIPE_SZ, size)
    except OSError:
        pass


def bytes_in(pipe: int) -> int:
    """The number of bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, _FIONREAD, b"\0\0\0\0"), sys.byteorder)


class LogWriter:
    """Serves the process at the other end of `control` until that has ended and every pipe is closed."""

    def __init__(self, control: _socket.socket, home: str) -> None:
        self._control: _socket.socket | None = control
        self._engine_lock = os.path.join(home, "engine.lock")
        self._outputs: dict[int, Output] = {}  # by both descriptors
        self._paused: list[Output] = []
        self._retry_at = 0.0  # those
        self._started: list[tuple[float, Output]] = []  # commands that are not reported yet, and when to report them
        self._unsent: list[bytes] = []  # messages that the socket has no room for
        self._is_full = False  # the socket, so that its next room is waited for
        self._buffer = bytearray(MAX_REQUEST_BYTES)
        self._hand_over_at = 0.0
        self._threads: RestrictedThreads | None = None  # from the first restricted command on
        self._poller = select.epoll()
        self._poller.register(control.fileno(), select.EPOLLIN)
        control.setblocking(False)

    def run(self) -> None:
        while self._control or self._outputs:
            control_events = 0
            for descriptor, events in self._poller.poll(self._timeout()):
                if self._control and descriptor == self._control.fileno():
                    control_events = events
                elif output := self._outputs.get(descriptor):
                    if descriptor == output.shim:
                        self._on_shim(output)
                    else:
                        self._step(output)
            # last, because a new pipe can get the descriptor of one that was just closed and still has an event
            if control_events & select.EPOLLOUT:
                self._send()
            if self._control and control_events & ~select.EPOLLOUT:
                self._receive(self._control)
            while self._started and self._started[0][0] <= time.monotonic():
                self._report_start(self._started.pop(0)[1])
            if self._paused and time.monotonic() >= self._retry_at:  # not earlier: what is in a pipe is an event at once
                paused, self._paused = self._paused, []
                for output in paused:
                    self._start(output)
            if not self._control and time.monotonic() > self._hand_over_at and is_locked(self._engine_lock):
                self._hand_over()

    def _timeout(self) -> float | None:
        while self._started and not self._started[0][1].pid:
            self._started.pop(0)  # its end is already reported
        if self._started:
            return min(_RETRY_SECONDS, max(0.0, self._started[0][0] - time.monotonic()))
        return _RETRY_SECONDS if self._paused or not self._control else None

    def _receive(self, control: _socket.socket) -> None:
        """Handle one request, or notice that the process that started this one has ended."""
        try:
            size, ancillary, _, _ = control.recvmsg_into([self._buffer], _socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS), _socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            size, ancillary = 0, []
        if not size:
            self._poller.unregister(control.fileno())
            control.close()
            self._control = None
            self._hand_over_at = time.monotonic() + _EXIT_SECONDS
            return
        passed = b"".join(data for _, kind, data in ancillary if kind == _socket.SCM_RIGHTS)
        pipe, *others = (int.from_bytes(passed[at : at + 4], sys.byteorder) for at in range(0, len(passed), 4))
        kind, limit, path, *rest = bytes(self._buffer[:size]).split(b"\0")
        if kind == GONE:
            self._on_gone(pipe, others)
            return
        output = Output(pipe, os.fsdecode(path), int(limit), others[0] if others else -1, kind != WATCHED)
        if kind == INSIDE:
            output.inside, output.pid, output.header = True, _UNKNOWN_PID, rest[0]
        if kind == START:
            output.pid = self._start_shim(output, others[1:], *rest)
            if not output.pid:
                output.close()
                return
            self._started.append((time.monotonic() + _REPORT_SECONDS, output))
        self._outputs[pipe] = output
        if output.shim >= 0:
            self._outputs[output.shim] = output
            self._poller.register(output.shim, select.EPOLLIN)
        self._start(output)

    def _start_shim(
        self, output: Output, descriptors: list[int], header: bytes, cwd: bytes, numbers: bytes, restriction: bytes, *environment: bytes
    ) -> int:
        """Start a shim in its own session; returns its pid, 0 if that failed. Creates its log if there is a header for it.

        `descriptors` are its standard streams, then those that it gets with these `numbers`, then the rulesets of its `restriction`.
        """
        streams, targets = descriptors[:3], [int(number) for number in numbers.split()]
        passed, rulesets = descriptors[3 : 3 + len(targets)], descriptors[3 + len(targets) :]
        try:
            # Away from the numbers that are assigned one after the other.
            passed = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(targets) + 1) for descriptor in passed]
            descriptors += passed
            if header:
                output.create(header)
            os.chdir(cwd)

            def start() -> int:
                return os.posix_spawn(
                    "/bin/sh",
                    ["sh", "-s", "backburner"],
                    dict(variable.split(b"=", 1) for variable in environment),
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, descriptor, number)
                        for number, descriptor in zip((0, 1, 2, *targets), (*streams, *passed), strict=True)
                    ],
                    setsid=True,
                    setsigdef=_ALL_SIGNALS,
                )

            if not restriction:
                return start()
            self._threads = self._threads or _restricted_threads()
            return self._threads.call(restriction, rulesets, start)
        except Exception as error:
            number = getattr(error, "errno", None) or errno.EINVAL  # for example a variable without a name
            self._say(b"%s %d %d" % (NOT_STARTED, output.inode, number))
            return 0
        finally:
            os.chdir("/")
            for descriptor in descriptors:
                os.close(descriptor)

    def _say(self, message: bytes) -> None:
        """Send a message to the process that started this one."""
        self._unsent.append(message)
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
        if self._control is None:
            self._unsent.clear()
            return
        try:
            while self._unsent:
                self._control.send(self._unsent[0])
                self._unsent.pop(0)
        except BlockingIOError:
            self._poller.modify(self._control.fileno(), select.EPOLLIN | select.EPOLLOUT)
            self._is_full = True
            return
        except OSError:
            self._unsent.clear()  # that process has just ended
        if self._is_full:
            self._poller.modify(self._control.fileno(), select.EPOLLIN)
            self._is_full = False

    def _start(self, output: Output) -> None:
        """Read a pipe from now on, unless another process writes its log: then it is tried again later."""
        try:
            ready = output.log >= 0 or output.open()
        except OSError:
            ready = False
        if not ready:
            self._pause(output)
            return
        self._poller.register(output.pipe, select.EPOLLIN)
        if output.ending:
            self._finish(output)
        if output.gone and output.pipe >= 0 and output not in self._paused:
            self._end_gone(output)

    def _pause(self, output: Output) -> None:
        """Try it again later."""
        if not self._paused:
            self._retry_at = time.monotonic() + _RETRY_SECONDS
        self._paused.append(output)

    def _move(self, output: Output) -> int | None:
        """Move one piece; None if there is nothing to move. If the disk is full, the rest stays in the pipe and is tried again later."""
        try:
            moved = output.move()
        except OSError:
            self._poller.unregister(output.pipe)
            self._pause(output)
            return None
        if moved is None and output.gone:
            moved = 0
        if moved == 0:
            self._end(output)
        return moved

    def _step(self, output: Output) -> None:
        if output in self._paused:
            return
        left = PIPE_BYTES
        while left > 0 and (moved := self._move(output)):
            left -= moved if moved >= _FLOOD_BYTES else left

    def _on_shim(self, output: Output) -> None:
        """Handle a shim that waits for an answer or has been killed. Its message stays in the socket, in case this process is killed."""
        self._poller.unregister(output.shim)
        if output.answers and (message := _message(output.shim)):
            output.ending = True
            if output.inside:
                output.record(message)
            if output.drained:
                self._end(output)
                return
            if output not in self._paused:
                self._finish(output)
            return
        del self._outputs[output.shim]
        os.close(output.shim)
        output.shim = -1
        if output.drained:
            self._end(output)
        elif not output.inside:
            self._report_end(output)

    def _on_gone(self, pipe: int, others: list[int]) -> None:
        """Move what is in the pipe of a sandbox that has ended, and do not wait for an end that may never come."""
        inode = os.fstat(pipe).st_ino
        for descriptor in (pipe, *others):
            os.close(descriptor)
        for output in set(self._outputs.values()):
            if output.inode == inode:
                output.gone = True
                if output.shim >= 0 and not output.recorded and (message := _message(output.shim)):
                    output.record(message)
                if output.drained:
                    if output.shim >= 0:
                        self._poller.unregister(output.shim)
                    self._end(output)
                elif output not in self._paused:
                    self._end_gone(output)

    def _end_gone(self, output: Output) -> None:
        """Move what is in the pipe now, and no more: another sandbox may write to it again and again."""
        left = bytes_in(output.pipe)
        while left > 0 and (moved := self._move(output)):
            left -= moved
        if output.pipe >= 0 and output not in self._paused:
            self._end(output)

    def _report_start(self, output: Output) -> None:
        if output.pid and output.shim >= 0:
            self._say(b"%s %d %d %s" % (STARTED, output.inode, output.pid, start_time(output.pid)))

    def _report_end(self, output: Output) -> None:
        """Report that the command has ended, once: its output is in the log, or its shim was killed."""
        if output.pid:
            self._say(b"%s %d %d %s" % (ENDED, output.inode, output.pid, output.end))
            output.pid = 0

    def _finish(self, output: Output) -> None:
        """Move what was in the pipe when the command ended, then answer the shim. Descendants of the command may go on writing."""
        left = bytes_in(output.pipe)
        while moved := self._move(output):
            left -= moved
            if left <= 0 and bytes_in(output.pipe):
                break  # written after the end
        if output.pipe >= 0 and output.inside and output not in self._paused:
            output.answer(COMPLETE)  # it can end now, and everything that holds the pipe with it
            output.ending, output.answered = False, True
        elif output.pipe >= 0 and output not in self._paused:
            output.mark(OPEN)
            output.answer(OPEN)
            output.ending, output.answered = False, True
            self._report_end(output)

    def _end(self, output: Output) -> None:
        """Close a pipe that no process can write to any more. In a sandbox, the report of the exit code may follow."""
        if not output.drained:
            self._poller.unregister(output.pipe)
        if output.inside and not output.recorded and output.shim >= 0 and not output.gone:
            output.drained = True
            return
        if output.shim >= 0 and not output.ending and not output.answered and not output.drained:
            self._poller.unregister(output.shim)  # closing it is not enough, because another process has it open too
        for descriptor in (output.pipe, output.shim):
            self._outputs.pop(descriptor, None)
        output.close_log()
        if output.recorded or not output.inside:  # otherwise the run may be started again
            output.mark(COMPLETE)
        output.answer(COMPLETE)
        if output.pid:
            self._report_end(output)
        else:
            self._say(b"%s %d" % (CLOSED, output.inode))
        output.close()

    def _hand_over(self) -> None:
        """Leave the pipes of running commands to the log writer of the new engine, except those that no living shim holds open."""
        for output in set(self._outputs.values()):
            if output.shim >= 0 and not (output.ending or output.answered or output.drained or output in self._paused):
                self._poller.unregister(output.pipe)
                self._poller.unregister(output.shim)
                del self._outputs[output.pipe], self._outputs[output.shim]
                output.close()


def save(output: Output, *, until_end: bool) -> int:
    """Move what is in one pipe, or all of it until its end. Returns 0 if no process can write to it any more, else 1.

    If another process writes the log, waits until that one has done the same.
    """
    poller = select.poll()
    poller.register(output.pipe, select.POLLIN)
    while True:
        try:
            is_ours = output.log >= 0 or output.open()
            moved = output.move() if is_ours else 0 if _has_ended(poller) else None
        except OSError:  # the disk is full
            moved = -1
        if moved == 0:
            output.close_log()
            output.mark(COMPLETE)
            return 0
        if moved is None and not until_end and not bytes_in(output.pipe):
            output.mark(OPEN)
            return 1
        if moved is None and output.log >= 0:
            poller.poll()
        elif moved is None or moved < 0:
            time.sleep(_RETRY_SECONDS)


def _has_ended(poller: "select.poll") -> bool:
    return any(event & select.POLLHUP and not event & select.POLLIN for _, event in poller.poll(0))


def _message(shim: int) -> bytes:
    """What a shim has sent, which stays in its socket; empty if it was killed."""
    peer = _socket.socket(fileno=os.dup(shim))
    try:
        return peer.recv(_MAX_REPORT_BYTES, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
    except OSError:
        return b""
    finally:
        peer.close()


def start_time(pid: int) -> bytes:
    """The start time of a process in clock ticks since boot; 0 if it has already ended."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return b"0"
    try:
        return os.read(descriptor, 1024).rpartition(b")")[2].split()[19]
    except (OSError, IndexError):
        return b"0"
    finally:
        os.close(descriptor)


def is_locked(path: str) -> bool:
    """Whether a process holds the lock of a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> int:
    """`serve HOME`, with the control socket as standard input; or `drain|follow LIMIT LOG`, with a pipe as standard input."""
    if arguments[0] == "serve":
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # shims need not be waited for
        LogWriter(_socket.socket(fileno=0), arguments[1]).run()
        return 0
    return save(Output(0, arguments[2], int(arguments[1])), until_end=arguments[0] == "follow")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
