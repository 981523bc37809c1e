"""The port of the web interface of a home, and the file that says which one is in use."""

import os
import zlib

from backburner.system.home import Home, is_locked

LOCK = "web.lock"  # held while a server runs; its content is the port
DEFAULT_PORT = 8765
_FIRST_PORT, _PORTS = 20_000, 10_000


def port_of(home: Home, default_home: str) -> int:
    """The port that belongs to a home, so that addresses, pairings and passkeys stay valid."""
    if os.path.abspath(home.root) == os.path.abspath(default_home):
        return DEFAULT_PORT
    return _FIRST_PORT + zlib.crc32(os.fsencode(os.path.realpath(home.root))) % _PORTS


def running_port(home: Home) -> int | None:
    """The port of the server that runs for a home; None if none runs."""
    path = os.path.join(home.root, LOCK)
    if not is_locked(path):
        return None
    try:
        with open(path) as file:
            return int(file.read(16))
    except (OSError, ValueError):
        return None
