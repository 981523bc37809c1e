"""The log writer: a process that moves the output of commands from their pipes to their logs. It is run as a script, without packages.

The process that starts commands (the engine, or a program with a `TaskRunner`) starts one log writer and passes it a pipe for every
command. Each byte is moved with splice(2) and is at any time in the pipe or in the log, so killing this process loses nothing: the
shim of the command also holds the pipe, and another log writer continues. A log is locked by the process that writes it.

The same file is what a shim runs to save the rest of its output when no log writer is left: `log_writer.py drain|follow LIMIT LOG <PIPE`.
"""

import _socket
import errno
import fcntl
import os
import resource
import select
import sys
import time

PIPE_BYTES = 256 * 1024  # the capacity of an output pipe, and the most that is moved from one pipe before the next one's turn
COMPLETE, OPEN = "e", "o"  # the answer to a shim: everything is in the log, and whether a process can still write to the pipe
MARK_AT = 4  # the offset of that answer in the exit file, behind the exit code; see run_files.output_state
ANSWERS, WATCHED = b"answers", b"watched"  # what the second descriptor of a pipe is: the shim's socket, or a pidfd of the shim
_RETRY_SECONDS = 0.2  # for a log that another process has locked, and for a full disk
_EXIT_SECONDS = 1.0  # an engine that was just killed may still hold its lock
_FIONREAD = 0x541B


class Output:
    """A pipe and its log. `shim` becomes readable when the shim has ended or wants to end."""

    def __init__(self, pipe: int, path: str, limit: int, shim: int = -1, answers: bool = False) -> None:
        self.pipe, self.path, self.limit, self.shim, self.answers = pipe, path, limit, shim, answers
        self.log = -1
        self.ending = False  # the shim waits for an answer
        self.answered = False  # the command has ended, but descendants of it still hold the pipe
        self._size = 0
        self._unwritten = b""  # read but not written yet, where splice does not work
        self._limiter = None
        os.set_blocking(pipe, False)

    def open(self) -> bool:
        """Open and lock the log; False if another process writes it."""
        if self.log < 0:
            try:
                self.log = os.open(self.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                self.log = os.open(os.devnull, os.O_WRONLY)  # the run was deleted; its command must not wait for a reader
                return True
        try:
            fcntl.flock(self.log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.log)
            self.log = -1
            return False
        self._size = os.lseek(self.log, 0, os.SEEK_END)
        return True

    def move(self) -> int | None:
        """Move at most PIPE_BYTES bytes to the log; returns how many, 0 at the end of the output, None if there is nothing to move now."""
        try:
            moved = self._splice()
        except BlockingIOError:
            return None
        self._size += moved
        if self._size > self.limit and moved:
            self._remove_excess()
        return moved

    def mark(self, answer: str) -> None:
        """Record in the exit file that the output is in the log. The time of that file stays the time at which the command ended."""
        try:
            exit_file = os.open(os.path.join(os.path.dirname(self.path), ".exit"), os.O_WRONLY | os.O_NOFOLLOW)
        except OSError:
            return  # the run was deleted
        try:
            before = os.fstat(exit_file)
            os.pwrite(exit_file, answer.encode(), MARK_AT)
            os.utime(exit_file, ns=(before.st_atime_ns, before.st_mtime_ns))
        finally:
            os.close(exit_file)

    def answer(self, answer: str) -> None:
        """Answer the shim."""
        if self.answers and self.shim >= 0:
            try:
                os.write(self.shim, f"{answer}\n".encode())
            except OSError:
                return  # it was killed

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
                return os.splice(self.pipe, self.log, PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK)
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
            sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
            from backburner.execution.output_limit import OutputLimit  # few logs are that large

            self._limiter = OutputLimit(os.path.dirname(self.path), self.limit)
        self.log = self._limiter.check(self.log)
        self._size = os.lseek(self.log, 0, os.SEEK_CUR)


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
        self._hand_over_at = 0.0
        self._poller = select.epoll()
        self._poller.register(control.fileno(), select.EPOLLIN)

    def run(self) -> None:
        while self._control or self._outputs:
            for descriptor, _ in self._poller.poll(_RETRY_SECONDS if self._paused or not self._control else None):
                if self._control and descriptor == self._control.fileno():
                    self._receive(self._control)
                elif output := self._outputs.get(descriptor):
                    if descriptor == output.shim:
                        self._on_shim(output)
                    else:
                        self._step(output)
            paused, self._paused = self._paused, []
            for output in paused:
                self._start(output)
            if not self._control and time.monotonic() > self._hand_over_at and is_locked(self._engine_lock):
                self._hand_over()

    def _receive(self, control: _socket.socket) -> None:
        """Take one pipe, or notice that the process that started this one has ended."""
        try:
            message, ancillary, _, _ = control.recvmsg(8192, _socket.CMSG_SPACE(8))
        except ConnectionResetError:
            message, ancillary = b"", []
        if not message:
            self._poller.unregister(control.fileno())
            control.close()
            self._control = None
            self._hand_over_at = time.monotonic() + _EXIT_SECONDS
            return
        passed = b"".join(data for _, kind, data in ancillary if kind == _socket.SCM_RIGHTS)
        pipe, *others = (int.from_bytes(passed[at : at + 4], sys.byteorder) for at in range(0, len(passed), 4))
        limit, kind, path = message.split(b" ", 2)
        output = Output(pipe, os.fsdecode(path), int(limit), others[0] if others else -1, kind == ANSWERS)
        self._outputs[pipe] = output
        if output.shim >= 0:
            self._outputs[output.shim] = output
            self._poller.register(output.shim, select.EPOLLIN)
        self._start(output)

    def _start(self, output: Output) -> None:
        """Read a pipe from now on, unless another process writes its log: then it is tried again later."""
        try:
            ready = output.log >= 0 or output.open()
        except OSError:
            ready = False
        if not ready:
            self._paused.append(output)
            return
        self._poller.register(output.pipe, select.EPOLLIN)
        if output.ending:
            self._finish(output)

    def _move(self, output: Output) -> int | None:
        """Move one piece; None if there is nothing to move. If the disk is full, the rest stays in the pipe and is tried again later."""
        try:
            moved = output.move()
        except OSError:
            self._poller.unregister(output.pipe)
            self._paused.append(output)
            return None
        if moved == 0:
            self._end(output)
        return moved

    def _step(self, output: Output) -> None:
        if output not in self._paused:
            self._move(output)

    def _on_shim(self, output: Output) -> None:
        """Handle a shim that waits for an answer or has been killed. Its message stays in the socket, in case this process is killed."""
        self._poller.unregister(output.shim)
        if output.answers and _has_message(output.shim):
            output.ending = True
            if output not in self._paused:
                self._finish(output)
            return
        del self._outputs[output.shim]
        os.close(output.shim)
        output.shim = -1

    def _finish(self, output: Output) -> None:
        """Move what was in the pipe when the command ended, then answer the shim. Descendants of the command may go on writing."""
        left = bytes_in(output.pipe)
        while moved := self._move(output):
            left -= moved
            if left <= 0 and bytes_in(output.pipe):
                break  # written after the end
        if output.pipe >= 0 and output not in self._paused:
            output.mark(OPEN)
            output.answer(OPEN)
            output.ending, output.answered = False, True

    def _end(self, output: Output) -> None:
        """Close a pipe that no process can write to any more."""
        self._poller.unregister(output.pipe)
        inode = os.fstat(output.pipe).st_ino
        for descriptor in (output.pipe, output.shim):
            self._outputs.pop(descriptor, None)
        output.close_log()
        output.mark(COMPLETE)
        output.answer(COMPLETE)
        is_expected = output.ending
        output.close()
        if self._control and not is_expected:
            try:
                self._control.send(b"%d\n" % inode)
            except OSError:
                return  # that process has just ended

    def _hand_over(self) -> None:
        """Leave the pipes of running commands to the log writer of the new engine, except those that no living shim holds open."""
        for output in set(self._outputs.values()):
            if output.shim >= 0 and not (output.ending or output.answered or output in self._paused):
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


def _has_message(shim: int) -> bool:
    """Whether a shim has sent a message; False if it was killed."""
    peer = _socket.socket(fileno=os.dup(shim))
    try:
        return bool(peer.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT))
    except OSError:
        return False
    finally:
        peer.close()


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
        LogWriter(_socket.socket(fileno=0), arguments[1]).run()
        return 0
    return save(Output(0, arguments[2], int(arguments[1])), until_end=arguments[0] == "follow")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
