"""Opens the ledger of a home: a file, or a database on Postgres. If that upgrades the ledger, daemons of the older version are stopped, because they cannot use it.
A ledger on Postgres is not upgraded by opening it, but by `migrate_home_ledger`.

Nothing is lost: commands continue, and the next engine takes them over.
"""

from backburner.core.light_typing import TYPE_CHECKING
from backburner.store.ledger import open_ledger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backburner.coordination.config_file import ConfigFile
    from backburner.core.settings import Config
    from backburner.store.ledger import Ledger
    from backburner.store.postgres_schema import Migrated
    from backburner.system.home import Home

_STOP_TIMEOUT_SECONDS = 5.0  # then they are killed


def open_home_ledger(home: "Home", config: "ConfigFile", *, for_lease: bool = False) -> "Ledger":
    """Open the ledger of a home. A file is upgraded to the current version if it is older. `for_lease` is for one on Postgres."""
    if config.problem and home.host_id():
        raise config.problem  # the file may say where the ledger is; tasks must not be stored somewhere else
    if url := config.current.text("store.url"):
        return _open_on_postgres(home, url, _own_environment(config), for_lease)
    ledger = open_ledger(home.ledger, setup_lock=home.setup_lock)
    if ledger.database.upgraded:
        _stop_older_daemons(home)
    return ledger


def _open_on_postgres(home: "Home", url: str, environ: "Mapping[str, str]", for_lease: bool) -> "Ledger":
    import contextlib
    import os

    from backburner.core.optional_dependencies import need
    from backburner.store.ledger import open_postgres_ledger

    need("postgres", "A ledger on Postgres needs")
    # Hooks compare these files with the ledger file, which does not change any more.
    with contextlib.suppress(FileNotFoundError):
        folder = os.path.dirname(home.nothing_waits_since(""))
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
    return open_postgres_ledger(url, home.root, home.host_id() or "none", environ, for_lease=for_lease)


def _own_environment(config: "ConfigFile") -> "Mapping[str, str]":
    """The environment of commands that were submitted on another host: that of this process, and what [worker.env] sets."""
    own = {name: value for name, value in config.environ.items() if not name.startswith(("BACKBURNER_", "PG"))}
    return own | config.current.worker_env


def dispatch_connection(config: "Config") -> str:
    """The parameters of a connection to the job queue of a ledger on Postgres."""
    from backburner.store.postgres import dispatch_conninfo

    return dispatch_conninfo(config.text("store.url"))


def join_home_ledger(home: "Home", url: str, name: str) -> str:
    """Join a ledger on Postgres, whose tables exist; returns the name of this host. An empty `name` is made from that of the machine."""
    import socket

    from backburner.core.optional_dependencies import need

    need("postgres", "A ledger on Postgres needs")
    from backburner.store.postgres_schema import join_ledger

    return join_ledger(url, home.create_host_id(), name, socket.gethostname())


def migrate_home_ledger(home: "Home", config: "Config", url: str = "") -> "Migrated | None":
    """Create or upgrade the tables of a ledger on Postgres, and join it; None if the ledger is a file. Daemons of the older version are stopped."""
    if not (url := url or config.text("store.url")):
        return None
    import socket

    from backburner.core.optional_dependencies import need

    need("postgres", "A ledger on Postgres needs")
    from backburner.store.postgres_schema import migrate

    done = migrate(url, host_id=home.create_host_id(), home=f"{socket.gethostname()}:{home.root}")
    if done.before not in (0, done.after):
        _stop_older_daemons(home)
    return done


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
