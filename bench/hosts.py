"""Three hosts that serve a lane, and a fourth from which it is used, over one ledger on Postgres; compared with Procrastinate alone.

The hosts are homes of one machine, each with its own engine. Postgres is on loopback, and commits are durable.
"""

import atexit
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from procrastinate import App as Procrastinate
from procrastinate import SyncPsycopgConnector

from backburner.interfaces.library.client import submission
from backburner.services.app import App, open_app
from backburner.system.caller_identity import current_caller
from bench.home import LAUNCHER, PYTHON, ROOT, BenchHome, exact_cpu_seconds, rss_mb, scratch_folder, wait_until
from bench.postgres import PostgresServer, postgres_server
from bench.rounds import Figures, run_rounds

HOSTS, SEATS, LANE, NO_OPS = 3, 4, "bench", 300
_OUTPUT_BYTES = 50 << 20
_UNTIL_IDLE = 35.0  # seconds
TIME = ["date", "+%s%N"]  # a command whose output is when it started
_CONFIG = """
[approval]
yes_without_terminal = true
[commands]
auto_cleanup = false
"""


class Host(BenchHome):
    """A home that uses the ledger; with `serves`, its engine runs in the foreground and takes runs of the lane."""

    def __init__(self, folder: Path, url: str, *, serves: bool) -> None:
        folder.mkdir()
        super().__init__(folder, None)
        (self.root / "config.toml").write_text(_CONFIG)
        self.cli("migrate", url)
        self.cli("join", url, "--name", folder.name)
        self._serving: subprocess.Popen[bytes] | None = None
        if serves:
            command = [LAUNCHER, "worker", "--lane", LANE, "--capacity", str(SEATS)]
            with open(folder / "log", "wb") as log:
                self._serving = subprocess.Popen(
                    command, env=self.environ, cwd=self.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    @property
    def engine(self) -> int | None:
        """The pid of the engine, also if it is in the foreground."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.root / "engine.lock").read_text().split(":")[0])
            return pid if Path(f"/proc/{pid}").exists() else None
        return None

    def kill(self) -> None:
        """End the engine and all that it started, at once, as when the machine loses its power."""
        while pids := self._processes():  # a process may have started another one while they were listed
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._serving:
                self._serving.poll()

    def _processes(self) -> list[int]:
        mark, found = f"BACKBURNER_HOME={self.root}".encode(), []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") or os.fsencode(self.root) in words:
                    found.append(int(pid))
        return found

    def stop(self) -> None:
        if self._serving:
            self._serving.send_signal(signal.SIGTERM)
            self._serving.wait(30)
        self.stop_engine()


class Client:
    """A program on the fourth host that submits commands for the lane and waits for them."""

    def __init__(self, home: Host) -> None:
        self._app: App = open_app(str(home.root), home.environ)
        self._caller, self._cwd = current_caller("library", home.environ), str(home.cwd)

    def submit(self, *words: str) -> str:
        asked = submission(words, cwd=self._cwd)
        asked = asked.with_spec(order=asked.spec.order._replace(place=f"/{LANE}"))
        return self._app.submissions.submit(asked, self._caller).task.task_id

    def states(self) -> list[str]:
        """The states of all hosts."""
        return [str(host.state) for host in self._app.hosts.list()]

    def cancel(self, task_id: str) -> None:
        self._app.tasks.cancel(task_id, self._caller)

    def process(self, task_id: str) -> int | None:
        """The pid of a command that runs."""
        run = self._app.queries.get(task_id).run
        return run.process.pid if run and run.process else None

    def wait(self, *task_ids: str) -> None:
        ended = self._app.waiting.wait(task_ids, 120)
        assert all(str(entry.status) == "completed" for entry in ended), [(str(entry.status), entry.run) for entry in ended][:3]

    def close(self) -> None:
        self._app.close()


class Peer:
    """Procrastinate alone, with as many workers and seats."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self._url, self.output = server.create_database("peer"), folder / "output"
        self.output.touch()
        self._app = Procrastinate(connector=SyncPsycopgConnector(conninfo=self._url))
        self._app.open()
        self._app.schema_manager.apply_schema()
        self._command = self._app.configure_task("command", allow_unknown=True)
        self._nothing = self._app.configure_task("nothing", allow_unknown=True)
        self._server = server
        command = [PYTHON, "-m", "bench.procrastinate_worker", self._url, str(self.output), str(SEATS)]
        self._workers = [subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(HOSTS)]
        count = "SELECT count(*) FROM procrastinate_workers"
        wait_until(lambda: server.execute(count, "peer")[0][0] == HOSTS, "the workers of Procrastinate")

    def latency(self) -> float:
        """Milliseconds from the submission of a command until it starts."""
        size, start = self.output.stat().st_size, time.time_ns()
        self._command.defer(words=TIME)
        wait_until(lambda: self.output.stat().st_size > size, "the command")
        return (int(self.output.read_bytes()[size:]) - start) / 1e6

    def seconds(self, count: int, *, empty: bool = False) -> float:
        """Seconds for a number of no-ops, or of empty jobs, which start no process."""
        start = time.perf_counter()
        for _ in range(count):
            self._nothing.defer() if empty else self._command.defer(words=["true"])
        jobs = "SELECT count(*) FROM procrastinate_jobs"
        with psycopg.connect(self._url, autocommit=True) as connection:
            while connection.execute(jobs).fetchone() != (0,):
                time.sleep(0.005)
        return time.perf_counter() - start

    def close(self) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            worker.wait(30)
        self._app.close()


class Setup:
    """The server, the hosts and the peer."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self.server, url, end = server, server.create_database("ledger"), contextlib.ExitStack()
        self.close = end.close
        atexit.register(end.close)
        self.workers = [end.enter_context(Host(folder / f"host{number}", url, serves=True)) for number in range(HOSTS)]
        self.home = end.enter_context(Host(folder / "client", url, serves=False))
        self.client = end.enter_context(contextlib.closing(Client(self.home)))
        self.peer = end.enter_context(contextlib.closing(Peer(server, folder)))
        wait_until(lambda: all(host.engine for host in self.workers), "the engines")
        self.client.wait(*(self.client.submit("true") for _ in range(HOSTS * SEATS)))

    def host_of(self, task_id: str) -> Host:
        return next(host for host in self.workers if (host.root / "tasks" / task_id).exists())

    def latency(self) -> float:
        start = time.time_ns()
        task_id = self.client.submit(*TIME)
        self.client.wait(task_id)
        log = self.host_of(task_id).root / "tasks" / task_id / "output.log"
        return (int(log.read_bytes().split()[-1]) - start) / 1e6

    def seconds(self, count: int) -> float:
        start = time.perf_counter()
        self.client.wait(*[self.client.submit("true") for _ in range(count)])
        return time.perf_counter() - start

    def cancel(self) -> float:
        """Milliseconds from the request on another host until the process is gone."""
        task_id = self.client.submit("sleep", "600")
        wait_until(lambda: self.client.process(task_id), "the command to run")
        folder, start = f"/proc/{self.client.process(task_id)}", time.perf_counter()
        self.client.cancel(task_id)
        while os.path.exists(folder):
            time.sleep(0.0005)
        return (time.perf_counter() - start) * 1000

    def line(self, count: int = 20) -> float:
        """Milliseconds until a line that a command writes is shown by `logs -f` on another host, as the median."""
        loop = f"for _ in $(seq {count + 5}); do sleep 0.2; date +%s%N; done"
        task_id = self.client.submit("sh", "-c", loop)
        command = [LAUNCHER, "logs", "-f", task_id]
        delays = []
        with subprocess.Popen(
            command,
            env=self.home.environ,
            cwd=self.home.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as follower:
            assert follower.stdout
            for line in follower.stdout:
                if line.strip().isdigit():
                    delays.append((time.time_ns() - int(line)) / 1e6)
        return statistics.median(delays[-count:])

    def logs(self) -> float:
        """MiB per second of the output of a command that has ended on another host."""
        task_id = self.client.submit("head", "-c", str(_OUTPUT_BYTES), "/dev/zero")
        self.client.wait(task_id)
        start = time.perf_counter()
        shown = subprocess.run(
            [LAUNCHER, "logs", "--raw", task_id], env=self.home.environ, cwd=self.home.cwd, stdout=subprocess.PIPE, check=True
        )
        elapsed = time.perf_counter() - start
        assert len(shown.stdout) >= _OUTPUT_BYTES, len(shown.stdout)
        return _OUTPUT_BYTES / (1 << 20) / elapsed

    def kill_a_host(self) -> float:
        """Seconds from the end of everything on a host until another one reports it."""
        host = self.workers.pop()
        task_id = self.client.submit("sleep", "600")
        wait_until(lambda: self.client.process(task_id), "the command to run")
        start = time.perf_counter()
        host.kill()
        wait_until(lambda: "suspected" in self.client.states(), "another host to notice", 60)
        return time.perf_counter() - start

    def idle(self, seconds: float) -> Figures:
        """CPU, memory and connections of a worker that has been idle for a while: it closes a connection that it has not used for 30 s."""
        time.sleep(_UNTIL_IDLE)
        engines = [host.engine for host in self.workers]
        before = sum(exact_cpu_seconds(engine) for engine in engines if engine)
        time.sleep(seconds)
        used = sum(exact_cpu_seconds(engine) for engine in engines if engine) - before
        ((connections,),) = self.server.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = 'ledger'")
        return {
            "idle CPU %": used / seconds / HOSTS * 100,
            "idle MB": max(rss_mb(engine) for engine in engines if engine),
            "connections": (connections - 1) / HOSTS,  # one is the client's
        }


@contextlib.contextmanager
def setup() -> Iterator[Setup]:
    with scratch_folder() as folder, scratch_folder() as data, postgres_server(data) as server:
        made = Setup(folder, server)
        try:
            yield made
        finally:
            made.close()


def measure(rounds: int, idle_seconds: float) -> list[Figures]:
    with setup() as hosts:
        latencies = max(10, rounds)
        candidates = {
            "start": lambda: statistics.median(hosts.latency() for _ in range(latencies)),
            "peer start": lambda: statistics.median(hosts.peer.latency() for _ in range(latencies)),
            "300 no-ops": lambda: hosts.seconds(NO_OPS),
            "peer 300 no-ops": lambda: hosts.peer.seconds(NO_OPS),
            "peer 300 empty jobs": lambda: hosts.peer.seconds(NO_OPS, empty=True),
            "line": hosts.line,
            "logs": hosts.logs,
            "cancel": lambda: statistics.median(hosts.cancel() for _ in range(latencies)),
        }
        figures = run_rounds(candidates, rounds)
        once = {**hosts.idle(idle_seconds), "dead host": hosts.kill_a_host()}
        return [{**round, **once} for round in figures]


if __name__ == "__main__":
    json.dump(measure(int(sys.argv[1]), 10), sys.stdout, indent=1)
