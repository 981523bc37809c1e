"""Opens the ledger of a home. If that upgrades the ledger, daemons of the older version are stopped, because they cannot use it.

Nothing is lost: commands continue, and the next engine takes them over.
"""

from backburner.core.light_typing import TYPE_CHECKING
from backburner.store.ledger import open_ledger

if TYPE_CHECKING:
    from backburner.store.ledger import Ledger
    from backburner.system.home import Home

_STOP_TIMEOUT_SECONDS = 5.0  # then they are killed


def open_home_ledger(home: "Home") -> "Ledger":
    """Open the ledger of a home, and upgrade it to the current version if it is older."""
    ledger = open_ledger(home.ledger, setup_lock=home.setup_lock)
    if ledger.database.upgraded:
        _stop_older_daemons(home)
    return ledger


def _stop_older_daemons(home: "Home") -> None:
    import signal
    import time

    from backburner.system.processes import daemons_of, is_alive, send

    daemons = daemons_of(home)
    for daemon in daemons:
        send(daemon, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
    while any(map(is_alive, daemons)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for daemon in daemons:
        send(daemon, signal.SIGKILL)
