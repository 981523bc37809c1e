"""Numbers for the MCP servers that one client process has started. Each holds the lock of its number until it exits, even if it is killed."""

import contextlib
import fcntl
import logging
import os

from backburner.core.models import ProcessId
from backburner.system.home import CONNECTIONS_LOCK

_MAX_CONNECTIONS = 1024  # of one client process


def take_connection_number(root: str, client: ProcessId) -> int:
    """The lowest number that no other server of this client has. It belongs to this process until it exits."""
    try:
        descriptor = os.open(os.path.join(root, CONNECTIONS_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # stays open
        for number in range(_MAX_CONNECTIONS):
            with contextlib.suppress(BlockingIOError):
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, client.pid * _MAX_CONNECTIONS + number)
                return number
    except OSError as error:
        logging.warning("cannot lock %s: %s; after a restart this server starts a new session", CONNECTIONS_LOCK, error.strerror)
    return os.getpid()
