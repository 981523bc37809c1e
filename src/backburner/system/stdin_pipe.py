"""Writes to the input of a command that was started with an open input: a fifo in its folder."""

import contextlib
import errno
import fcntl
import os
import select
import stat
import time

from backburner.core.errors import BadInput
from backburner.system.run_files import INPUT, INPUT_END

_WRITE_TIMEOUT = 5.0  # seconds that a command may take to read its input


def write_stdin(folder: str, data: bytes, task_id: str, *, starting: bool = False) -> None:
    """Write all of `data`; BadInput says how much was written if that fails. Concurrent writes do not mix. Waits for a `starting` command."""
    _write(_open(os.path.join(folder, INPUT), task_id, starting), data, task_id)


def close_stdin(folder: str, task_id: str, *, starting: bool = False) -> None:
    """End the input: when the command has read what was written, it reads the end of the file."""
    _write(_open(os.path.join(folder, INPUT_END), task_id, starting), b"\n", task_id)


def _write(descriptor: int, data: bytes, task_id: str) -> None:
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise BadInput(f"The input pipe of task {task_id} was replaced by another file; nothing was sent.")
        room = select.poll()  # unlike select(), it takes any descriptor
        room.register(descriptor, select.POLLOUT)
        deadline = time.monotonic() + _WRITE_TIMEOUT
        _exclusive(descriptor, deadline, task_id)
        sent = 0
        while sent < len(data):
            ready = room.poll(max(0.0, deadline - time.monotonic()) * 1000)
            try:
                with contextlib.suppress(BlockingIOError):  # another writer filled the pipe first
                    sent += os.write(descriptor, data[sent : sent + select.PIPE_BUF]) if ready else 0
            except BrokenPipeError:
                raise BadInput(f"Task {task_id} closed its input after {sent} of {len(data)} bytes.") from None
            if sent < len(data) and time.monotonic() >= deadline:
                raise BadInput(f"Task {task_id} does not read its input: {sent} of {len(data)} bytes were read in {_WRITE_TIMEOUT:g} s.")
    finally:
        os.close(descriptor)


def _open(path: str, task_id: str, starting: bool) -> int:
    deadline = time.monotonic() + (_WRITE_TIMEOUT if starting else 0.0)
    while True:
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            missing, unread = error.errno == errno.ENOENT, error.errno == errno.ENXIO
            if (missing or unread) and time.monotonic() < deadline:
                time.sleep(0.01)
            elif missing:
                raise BadInput(f"Task {task_id} has no open input: it has not started reading yet, or has ended.") from None
            elif unread:
                raise BadInput(f"Task {task_id} has closed its input.") from None
            else:
                raise BadInput(f"The input of task {task_id} cannot be written to ({error.strerror}); nothing was sent.") from None


def _exclusive(descriptor: int, deadline: float, task_id: str) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BadInput(f"Another process is sending to task {task_id}; nothing was sent.") from None
            time.sleep(0.01)
