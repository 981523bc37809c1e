"""Ends a command when the lease of its host is over: `lease_enforcer.py LEASE OVER ENFORCED WORD…`, started by the shim of a run that may run twice.

Another host may start such a run again once this one was silent for a lease, so it must have ended here by then, whatever became of
the engine. The engine writes to LEASE until when that is safe. The command is started so that everything it has started dies with it.

Runs in an interpreter of its own, without the packages of Backburner.
"""

import os
import signal
import struct
import sys
import time

_FORMAT = struct.Struct("<d")
_POLL_SECONDS = 0.5  # timers do not count while the machine is suspended, so a longer sleep could end too late
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # a cancel sends them to the command, too
KILLED = 128 + signal.SIGKILL


class LeaseFile:
    """The time until which the lease of this host is safe, by CLOCK_BOOTTIME, in a file of the home."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def extend(self, until: float) -> None:
        os.pwrite(self._descriptor, _FORMAT.pack(until), 0)

    def remaining(self) -> float:
        """How many seconds are left."""
        content = os.pread(self._descriptor, _FORMAT.size, 0)
        until = _FORMAT.unpack(content)[0] if len(content) == _FORMAT.size else 0.0
        return until - time.clock_gettime(time.CLOCK_BOOTTIME)


def main(words: list[str]) -> int:
    """Run the command until it ends, or the lease does; returns its exit code, as a shell gives it. OVER is created in the second case.

    ENFORCED exists until the command has ended by itself. If it is left, this process was killed, and the command with it.
    """
    path, mark, enforced, *command = words
    lease = LeaseFile(path)
    if lease.remaining() <= 0:
        return _ended(mark)
    _create(enforced)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        _become(command)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            os.unlink(enforced)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if (remaining := lease.remaining()) <= 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return _ended(mark)
        signal.sigtimedwait({signal.SIGCHLD}, min(_POLL_SECONDS, remaining))


def _ended(mark: str) -> int:
    _create(mark)
    return KILLED


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def _become(command: list[str]) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    finally:
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
