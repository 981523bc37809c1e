"""Opens the ledger of a home. Daemons of an older version cannot use a ledger that was upgraded under them: they are ended.

Nothing is lost by that: commands go on, and the engine that starts next takes them over.
"""

from typing import TYPE_CHECKING

from backburner.store.ledger import open_ledger

if TYPE_CHECKING:
    from backburner.store.ledger import Ledger
    from backburner.system.home import Home

_END_TIMEOUT = 5.0  # seconds until they are killed


def open_home_ledger(home: "Home") -> "Ledger":
    """The ledger of a home, brought to the present version if it is older."""
    ledger = open_ledger(home.ledger, setup_lock=home.setup_lock)
    if ledger.database.upgraded:
        _end_older_daemons(home)
    return ledger


def _end_older_daemons(home: "Home") -> None:
    import signal
    import time

    from backburner.system.processes import daemons_of, is_alive, send

    daemons = daemons_of(home)
    for daemon in daemons:
        send(daemon, signal.SIGTERM)
    deadline = time.monotonic() + _END_TIMEOUT
    while any(map(is_alive, daemons)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for daemon in daemons:
        send(daemon, signal.SIGKILL)
