"""Three hosts and a desk from which they are used, with one ledger on Postgres. Each host is a home with its own engine.

Where network namespaces can be made, each host and the server is in one of its own, so that a host can be cut off. Otherwise they
are processes of this machine that share a socket, and a test that needs more fails in CI and is skipped elsewhere.
"""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ticking_command
from conftest import NO_TERMINAL, HomeCli, wait_until
from network_namespaces import SERVER_ADDRESSES, Network, can_be_made
from postgres_server import LedgerDatabase, PostgresServer, missing, wheel_programs
from ticking_command import Lifetime, lifetimes

from backburner.core.hosts import MAX_GAP_SECONDS
from backburner.core.models import ProcessId
from backburner.system import processes

NAMES = ("a", "b", "c")
LANE = "gpu"
WAIT = 120.0  # seconds; a machine with many tests at a time is slow
_PORT = 5432
_DATABASE = "three"
_START = "import os, sys; from backburner.coordination.launcher import start_engine; from backburner.system.home import Home; start_engine(Home(sys.argv[1]), dict(os.environ))"
# The commands of the tests are allowed on every host, so that they run without a sandbox and can write to the record.
_CONFIG = f"""{NO_TERMINAL}
[[approval.rules]]
name = "ticking"
decision = "allow"
command = "{sys.executable} **"
[store]
url = "%s"
[worker]
lanes = %s
"""


class Host(HomeCli):
    """A host with an engine that serves the lane, and everything that can happen to it. Its commands are called at the desk."""

    def __init__(self, world: "ThreeHosts", name: str, settings: str, lane: str) -> None:
        super().__init__(world.folder / name, world.shared)
        self.name, self._world = name, world
        self.configure(_CONFIG % (world.url(name), json.dumps([lane])) + settings)
        _join(self, world.database, name)

    def start(self, source: str = "") -> None:
        """Start the engine with its keeper; `source` is the folder of another version of the package."""
        command = [*self._world.enter(self.name), sys.executable, "-c", _START, str(self.root)]
        environ = {**self.environ, "PYTHONPATH": source} if source else self.environ
        subprocess.run(command, cwd=self.cwd, env=environ, stdin=subprocess.DEVNULL, check=True, timeout=WAIT)

    def call(self, *words: str) -> str:
        """Call the command line on this host; returns what it prints."""
        command = [*self._world.enter(self.name), sys.executable, "-m", "backburner", *words]
        return subprocess.run(
            command, cwd=self.cwd, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True, timeout=WAIT
        ).stdout

    def kill(self) -> None:
        """Kill everything on the host at once, as a loss of power does: keeper, engine, log writer, shims, lease enforcers, commands."""
        self._signal(signal.SIGKILL)
        wait_until(lambda: not self._signal(signal.SIGKILL), f"host {self.name} to be dead", WAIT)

    def stop_everything(self) -> None:
        """Stop everything on the host, as a pause of its virtual machine does."""
        while {process.pid for process in self._signal(signal.SIGSTOP)} != self._stopped():
            pass

    def continue_everything(self) -> None:
        self._signal(signal.SIGCONT)

    def stop_engine_process(self) -> ProcessId:
        """Stop only the engine."""
        engine = self.engine
        assert engine
        processes.send(engine, signal.SIGSTOP)
        return engine

    def _signal(self, number: int) -> list[ProcessId]:
        found = self.processes()
        for process in found:
            processes.send(process, number)
        return found

    def _stopped(self) -> set[int]:
        states = {process.pid: _state(process.pid) for process in self.processes()}
        return {pid for pid, state in states.items() if state in "TtZ"}

    @property
    def kinds(self) -> set[str]:
        """What runs on this host, as words of their command lines."""
        found = set()
        for process in self.processes():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                words = (
                    "backburner-keeper",
                    "engine.startup",
                    "log_writer",
                    "lease_enforcer",
                    "ticking_command",
                    "bwrap",
                    "agents.process",
                )
                found |= {word for word in words if word.encode() in line}
        return found

    @property
    def engine_log(self) -> str:
        return (self.root / "engine.log").read_text()


class ThreeHosts:
    """The hosts, their network and server, what they did and what the ledger says about it."""

    def __init__(
        self,
        folder: Path,
        network: Network | None,
        server: PostgresServer,
        database: LedgerDatabase,
        settings: str = "",
        serving: str = "".join(NAMES),
    ) -> None:
        self.folder, self.network, self.server, self.database = folder, network, server, database
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.record = self.shared / "record"
        self.desk = HomeCli(folder / "desk", self.shared)
        self.desk.configure(f'{NO_TERMINAL}[store]\nurl = "{database.url}"\n')
        _join(self.desk, database, "desk")
        self.hosts = [Host(self, name, settings, LANE if name in serving else "other") for name in NAMES]

    def start_engines(self) -> None:
        for host in self.hosts:
            host.start()
        self.wait_for_states(active=len(NAMES))

    def enter(self, name: str) -> list[str]:
        return self.network.enter(name) if self.network else []

    def url(self, name: str) -> str:
        """The address of the ledger as seen from a host."""
        if self.network is None:
            return self.database.url
        return f"postgresql://ledger@{self.network.server_address(name)}:{_PORT}/{self.database.name}"

    def need_network(self) -> Network:
        """The network; without one, the test fails in CI and is skipped elsewhere."""
        return self.network or missing("network namespaces cannot be made: they need root and iproute2")

    # -- what is submitted

    def submit(self, *options: str, code: int = 0) -> str:
        """A command that ticks until `finish`; returns the ID of its task."""
        script = str(Path(ticking_command.__file__))
        words = [sys.executable, "-IS", script, str(self.record), str(self.shared / "finish"), str(code)]
        return self.desk.ok("run", *(options or ("--lane", LANE)), "--", *words).strip()

    def start(self, *options: str, code: int = 0) -> str:
        """The same, and wait until it runs and its process is recorded."""
        task_id = self.submit(*options, code=code)
        wait_until(lambda: self.lives(task_id) and self.run_of(task_id)["process"], "the command to run", WAIT)
        return task_id

    def finish(self) -> None:
        """Let all commands end."""
        (self.shared / "finish").touch()

    def lives(self, task_id: str) -> list[Lifetime]:
        return [life for life in lifetimes(self.record) if life.run_id.split(".")[0] == task_id]

    def ticks(self, task_id: str, host: Host) -> int:
        """How often a command has ticked on a host."""
        lines = [line.split() for line in self.record.read_text().splitlines()]
        return sum(words[0].split(".")[0] == task_id and words[1] == host.name for words in lines)

    def host_of(self, task_id: str) -> Host:
        """The host of the newest run of a task that has begun."""
        return self.named(self.lives(task_id)[-1].host)

    def named(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def others(self, *hosts: Host) -> list[Host]:
        return [host for host in self.hosts if host not in hosts]

    # -- what the ledger says

    def sql(self, statement: str) -> list[tuple]:
        return self.server.administer(f"SET search_path = backburner; {statement}", self.database.name)

    def states(self) -> dict[str, str]:
        return dict(self.sql(f"SELECT name, state FROM hosts WHERE name IN {NAMES}"))  # type: ignore[arg-type]

    def beats(self) -> dict[str, tuple[int, int]]:
        """The epoch and the number of beats of each host."""
        return {name: (epoch, beat) for name, epoch, beat in self.sql("SELECT name, epoch, beat FROM hosts")}

    def wait_for_states(self, **counts: int) -> None:
        wait_until(lambda: Counter(self.states().values()) == counts, f"the hosts to be {counts}", WAIT)

    def wait_for_state(self, host: Host, state: str) -> float:
        """Wait until a host has a state; returns how many seconds that took."""
        started_at = time.monotonic()
        wait_until(lambda: self.states()[host.name] == state, f"host {host.name} to be {state}", WAIT)
        return time.monotonic() - started_at

    def wait_until_noticed(self, host: Host, state: str) -> int:
        """Wait until the others have noticed that a host is silent; returns in how many beats, of the one that needed fewest.

        It is zero if both were so slow that the ledger could not be read in time, and had to begin anew (`MAX_GAP_SECONDS`).
        """
        others = [other.name for other in self.others(host)]
        selected = f"SELECT name, state, beat, seen_at FROM hosts WHERE name IN {NAMES}"
        first: dict[str, int] = {}
        last: dict[str, tuple[int, int]] = {}
        late: set[str] = set()

        def is_noticed() -> bool:
            rows = {name: row for name, *row in self.sql(selected)}
            for name in others:
                _, beat, seen_at = rows[name]
                first.setdefault(name, beat)
                if name in last and seen_at - last[name][1] > 1000 * MAX_GAP_SECONDS:
                    late.add(name)
                last[name] = beat, seen_at
            return rows[host.name][0] == state

        wait_until(is_noticed, f"host {host.name} to be {state}", WAIT)
        return min((last[name][0] - first[name] for name in others if name not in late), default=0)

    def run_of(self, task_id: str) -> dict[str, Any]:
        """The newest run of a task."""
        names = ("run_id", "state", "result", "exit_code", "process", "host", "error")
        rows = self.sql(f"SELECT {', '.join(names)} FROM runs WHERE task_id = '{task_id}' ORDER BY n DESC LIMIT 1")
        return dict(zip(names, rows[0], strict=True))

    def wait_for_end(self, task_id: str) -> dict[str, Any]:
        wait_until(lambda: self.run_of(task_id)["state"] in ("completed", "failed", "cancelled"), f"{task_id} to end", WAIT)
        return self.run_of(task_id)

    def events(self, *kinds: str) -> dict[str, int]:
        """How many events of these kinds there were; without kinds, those about hosts that are silent, lost or back."""
        wanted = kinds or ("host_suspected", "host_fenced", "host_lost", "host_forgotten", "host_returned", "run_ended_late")
        among = ", ".join(f"'{kind}'" for kind in wanted)
        return dict(self.sql(f"SELECT kind, count(*)::int FROM events WHERE kind IN ({among}) GROUP BY kind"))  # type: ignore[arg-type]

    def notices(self, part: str) -> list[str]:
        """The notices whose text contains some words, such as the ID of a task."""
        return [text for (text,) in self.sql("SELECT text FROM notices ORDER BY notice_id") if re.search(rf"\b{part}\b", text)]

    def listeners(self) -> int:
        """How many connections of the hosts listen for jobs. A connection that listens has done nothing else since."""
        selected = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{self.database.name}' AND query LIKE 'LISTEN%'"
        return self.sql(selected)[0][0]

    def close(self) -> None:
        """End everything on all hosts, by its identity, and check that nothing is left."""
        self.finish()
        for host in self.hosts:
            host.continue_everything()
            if self.network:
                self.network.mend(host.name)
        for host in self.hosts:
            host.kill()
        left = {found.pid: Path(f"/proc/{found.pid}/cmdline").read_bytes() for found in self.desk.processes()}
        self.desk.stop_all()
        assert not left, f"still running at the desk, which needs no engine: {left}"


class World:
    """The server and the network of a test process, for hosts of several tests one after the other."""

    def __init__(self, folder: Path, *, in_namespaces: bool = True) -> None:
        self._closing = contextlib.ExitStack()
        self.network = self._closing.enter_context(Network(NAMES)) if in_namespaces and can_be_made() else None
        prefix, settings = (self.network.enter("server"), ["listen_addresses=*", f"port={_PORT}"]) if self.network else ((), ())
        self.server = PostgresServer(folder, wheel_programs(), prefix=prefix, settings=settings)
        self._closing.callback(self.server.stop)
        if self.network:
            self.server.accept_network(SERVER_ADDRESSES)
        self.database = LedgerDatabase(self.server, _DATABASE, "bytes")

    def close(self) -> None:
        self._closing.close()

    @contextlib.contextmanager
    def hosts(self, folder: Path, settings: str = "", serving: str = "".join(NAMES)) -> Iterator[ThreeHosts]:
        """Three new hosts, on an empty ledger, with more settings. `serving` are the names of those that serve the lane."""
        self.database.empty()
        made = ThreeHosts(folder, self.network, self.server, self.database, settings, serving)
        try:
            made.start_engines()
            yield made
        finally:
            made.close()


def _join(home: HomeCli, database: LedgerDatabase, name: str) -> None:
    """Make a home a host. The ids have the order of the names, so that the first host leads."""
    home.home.make()
    (home.root / "host_id").write_text(f"{name}-0123456789abcdef\n")
    database.join(f"{name}-0123456789abcdef", name)


def _state(pid: int) -> str:
    """The state of a process, as ps shows it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
