"""Three hosts with one ledger on Postgres, as real processes, and everything that can happen to them.

Each host has its own home, and reaches the server through a process of its own (`socket_proxy.py`), which can be stopped (a network
that loses everything) or killed (a network that cuts all connections).
"""

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
from conftest import NO_TERMINAL, HomeCli, wait_until
from postgres_server import PostgresServer

from backburner.coordination.launcher import start_engine
from backburner.core.models import ProcessId
from backburner.system import processes

LANE = "any"
LEASE_SECONDS = 5.0
WAIT = 120.0  # seconds
_SOCKET = ".s.PGSQL.5432"


class ClusterHost(HomeCli):
    """One host: a home, its engine, and its way to the server."""

    def __init__(self, folder: Path, name: str, project: Path, server: PostgresServer) -> None:
        super().__init__(folder / name, project)
        self.name, self._server = name, server
        self._network_folder = folder / f"n{name}"
        self._network_folder.mkdir()
        self._proxy: subprocess.Popen[bytes] | None = None
        self.busy = threading.Lock()  # held while something is done to this host that must be undone
        self.connect()

    def url(self, database: str) -> str:
        return f"postgresql://ledger@/{database}?host={self._network_folder}&application_name={self.name}"

    def connect(self) -> None:
        """Connect this host to the server, if it is not."""
        if self._proxy and self._proxy.poll() is None:
            return
        listening = self._network_folder / _SOCKET
        listening.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-IS",
            str(Path(__file__).with_name("socket_proxy.py")),
            str(listening),
            str(self._server.folder / _SOCKET),
        ]
        self._proxy = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_until(listening.exists, "the proxy to listen", WAIT)

    def disconnect(self) -> None:
        """Cut all connections to the server; new ones are refused."""
        if self._proxy:
            self._proxy.kill()
            self._proxy.wait()

    def signal_network(self, number: int) -> None:
        if self._proxy and self._proxy.poll() is None:
            self._proxy.send_signal(number)

    def start(self) -> None:
        start_engine(self.home, self.environ)

    @property
    def shims(self) -> list[ProcessId]:
        return [found for found in self.processes("backburner") if _words(found)[:2] == [b"sh", b"-s"]]

    @property
    def lease_enforcers(self) -> list[ProcessId]:
        return [found for found in self.processes(self.home.lease) if any(word.endswith(b"lease_enforcer.py") for word in _words(found))]

    def kill_all(self) -> int:
        """Kill every process of the host at the same time, as a loss of power does; returns how many."""
        found = self.processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none of them sees another one die
            for process in found:
                processes.send(process, number)

        def dead() -> bool:
            remaining = self.processes()
            for process in remaining:
                processes.send(process, signal.SIGKILL)
            return not remaining

        wait_until(dead, f"host {self.name} to be dead", WAIT)
        return len(found)

    def close(self) -> None:
        self.stop_all()
        self.disconnect()


def _words(process: ProcessId) -> list[bytes]:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


class Cluster:
    """Three hosts that serve the same lane, in a database of their own."""

    def __init__(self, folder: Path, server: PostgresServer, database: str) -> None:
        self.server, self.database = server, database
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        server.create_database(database)
        self.hosts = [ClusterHost(folder, f"h{number}", self.project, server) for number in range(3)]

    def start(self, model_url: str) -> None:
        """Create the ledger, and start the engines."""
        for number, host in enumerate(self.hosts):
            host.configure(
                f'{NO_TERMINAL}\n[worker]\nlanes = ["{LANE}"]\ncapacity = 8\nlease_seconds = {LEASE_SECONDS}\n'
                f'[models]\ndefault = "openai-chat:scripted"\nbase_url = "{model_url}/v1"\nmax_concurrent = 4\n'
                "[tasks]\nmax_concurrent = 4\n"
            )
            if number == 0:
                host.ok("migrate", host.url(self.database))
            host.ok("join", host.url(self.database), "--name", host.name)
            host.ok("trust")  # so that sandboxed commands can write to the project what they do
            host.start()
        wait_until(lambda: self.active_hosts() == 3, "the hosts to enrol", WAIT)

    def query(self, sql: str) -> list[tuple]:
        """Rows of the ledger, read past all hosts."""
        with psycopg.connect(
            self.server.url(self.database, "postgres"), options="-c search_path=backburner", autocommit=True
        ) as connection:
            return connection.execute(sql.encode()).fetchall()

    def active_hosts(self) -> int:
        return self.query("SELECT count(*) FROM hosts WHERE state = 'active'")[0][0]

    def restore(self) -> None:
        """Bring everything back: the server, the networks, and the engines."""
        for host in self.hosts:
            with host.busy:
                host.connect()
                host.start()

    def close(self) -> None:
        for host in self.hosts:
            host.close()


class Fault:
    """What was done to whom, and when, by the clock of the machine in milliseconds."""

    def __init__(self, kind: str, host: str) -> None:
        self.kind, self.host = kind, host
        self.began_at, self.ended_at = now_ms(), 0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Faults:
    """Does things to a cluster. Each method does one thing and undoes it after a time drawn by `chance`."""

    def __init__(self, cluster: Cluster, closing: threading.Event) -> None:
        self._cluster, self._closing = cluster, closing
        self._outages: list[Fault] = []  # that are not over
        self.done: list[Fault] = []
        self.counts: Counter[str] = Counter()
        self.kinds: dict[str, tuple[int, Callable[[ClusterHost, random.Random], None]]] = {
            "engine killed": (4, self._kill_engine),
            "supervisor killed": (2, self._kill_keeper),
            "engine and supervisor killed": (3, self._kill_engine_and_keeper),
            "log writer killed": (3, self._kill_log_writer),
            "lease enforcer killed": (4, self._kill_enforcer),
            "shim killed": (3, self._kill_shim),
            "agent process killed": (2, self._kill_agents),
            "host killed": (4, self._kill_host),
            "engine stopped": (6, self._stop_engine),
            "network silent": (6, self._silence_network),
            "network cut": (2, self._cut_network),
            "connections of a host ended": (3, self._end_connections),
            "all connections ended": (2, self._end_all_connections),
        }

    def cause(self, kind: str, host: ClusterHost, chance: random.Random) -> None:
        """Do it, and return when it is over."""
        self.kinds[kind][1](host, chance)

    @contextlib.contextmanager
    def _recorded(self, kind: str, host: str) -> Iterator[None]:
        fault = Fault(kind, host)
        self.counts[kind] += 1
        self.done.append(fault)
        yield
        fault.ended_at = now_ms()

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def _kill_some(self, kind: str, host: ClusterHost, found: list[ProcessId]) -> None:
        if killed := [process for process in found if processes.send(process, signal.SIGKILL)]:
            with self._recorded(kind, host.name):
                self.counts[f"({kind}, processes)"] += len(killed)

    def _kill_engine(self, host: ClusterHost, _: random.Random) -> None:
        self._kill_some("engine killed", host, [engine] if (engine := host.engine) else [])

    def _kill_keeper(self, host: ClusterHost, _: random.Random) -> None:
        self._kill_some("supervisor killed", host, host.processes("backburner-keeper"))

    def _kill_engine_and_keeper(self, host: ClusterHost, chance: random.Random) -> None:
        with host.busy, self._recorded("engine and supervisor killed", host.name):
            for process in (*host.processes("backburner-keeper"), *([engine] if (engine := host.engine) else [])):
                processes.send(process, signal.SIGKILL)
            self._pause(chance.choice((0.0, chance.uniform(0, 3), chance.uniform(3, 12))))
            host.start()

    def _kill_log_writer(self, host: ClusterHost, _: random.Random) -> None:
        self._kill_some("log writer killed", host, host.log_writers)

    def _kill_enforcer(self, host: ClusterHost, chance: random.Random) -> None:
        self._kill_some("lease enforcer killed", host, _one_of(host.lease_enforcers, chance))

    def _kill_shim(self, host: ClusterHost, chance: random.Random) -> None:
        self._kill_some("shim killed", host, _one_of(host.shims, chance))

    def _kill_agents(self, host: ClusterHost, _: random.Random) -> None:
        self._kill_some("agent process killed", host, host.hosts("agents.process"))

    def _kill_host(self, host: ClusterHost, chance: random.Random) -> None:
        with host.busy, self._recorded("host killed", host.name):
            host.kill_all()
            self._pause(chance.choice((chance.uniform(0, 3), chance.uniform(3, 14))))
            if chance.random() < 0.3:
                others = [other for other in self._cluster.hosts if other is not host]
                self.counts["(host forgotten)"] += chance.choice(others).cli("hosts", "forget", host.name).returncode == 0
            host.start()

    def _stop_engine(self, host: ClusterHost, chance: random.Random) -> None:
        with host.busy:
            engine = host.engine
            if not engine or not processes.send(engine, signal.SIGSTOP):
                return
            with self._recorded("engine stopped", host.name):
                self._pause(_silence(chance))
                processes.send(engine, signal.SIGCONT)

    def _silence_network(self, host: ClusterHost, chance: random.Random) -> None:
        with host.busy, self._recorded("network silent", host.name):
            host.signal_network(signal.SIGSTOP)
            self._pause(_silence(chance))
            host.signal_network(signal.SIGCONT)

    def _cut_network(self, host: ClusterHost, chance: random.Random) -> None:
        with host.busy, self._recorded("network cut", host.name):
            host.disconnect()
            self._pause(chance.choice((0.0, chance.uniform(0, 4), chance.uniform(LEASE_SECONDS + 2, LEASE_SECONDS + 8))))
            host.connect()

    def _end_connections(self, host: ClusterHost, _: random.Random) -> None:
        self._terminate("connections of a host ended", host.name, f"application_name = '{host.name}'")

    def _end_all_connections(self, _: ClusterHost, __: random.Random) -> None:
        self._terminate("all connections ended", "", f"datname = '{self._cluster.database}'")

    def _terminate(self, kind: str, host: str, which: str) -> None:
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {which} AND usename = 'ledger'"
        with contextlib.suppress(psycopg.OperationalError):  # the server is away
            if self._cluster.server.administer(ended):
                with self._recorded(kind, host):
                    pass

    def crash_server(self) -> None:
        """End the server at once. Called by the main thread, like `restart_server`: the server ends with the thread that starts it."""
        self._outages.append(Fault("server crashed", ""))
        self.done.append(self._outages[-1])
        self.counts["server crashed"] += 1
        self._cluster.server.stop()

    def restart_server(self) -> None:
        """Start the server, unless it crashed once more in the meantime."""
        self._outages.pop(0).ended_at = now_ms()
        if not self._outages:
            self._cluster.server.start()


def _silence(chance: random.Random) -> float:
    """Seconds that are either too short to be noticed, or longer than a lease."""
    return chance.uniform(0.2, 4) if chance.random() < 0.3 else chance.uniform(LEASE_SECONDS + 2, LEASE_SECONDS + 8)


def _one_of(found: list[ProcessId], chance: random.Random) -> list[ProcessId]:
    return [chance.choice(found)] if found else []
