"""Fixtures: a separate home for every test, access to it through the command line, and a check that no process is left running."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import apsw
import hypothesis
import pytest
from forked_cli import ForkedCli
from postgres_server import LedgerDatabase, PostgresServer, system_programs, wheel_programs

from backburner.core.models import Caller, ProcessId
from backburner.execution import sandbox_starter, shim
from backburner.services.app import App
from backburner.system import processes
from backburner.system.caller_identity import current_caller
from backburner.system.home import Home

# No test may depend on a fast machine.
hypothesis.settings.register_profile("any-speed", deadline=None)
hypothesis.settings.load_profile("any-speed")

FORKED_CLI = ForkedCli()
LONG = bool(os.environ.get("BACKBURNER_LONG"))
_ENDING_SECONDS = 20.0  # after its test, a process that takes longer to end counts as left behind
_SLOW_FOLDERS = ("agents", "crash", "stateful")
NO_TERMINAL = "[approval]\nyes_without_terminal = true\n"
# Commands that could change something need approval, as on a machine without a sandbox, so that tests of approvals can use any of them.
CAUTIOUS = """
[[approval.rules]]
name = "cautious"
decision = "ask"
effects = ["unknown", "unreadable", "interpreter", "injection", "project_code", "edits", "overwrites", "deletes"]

"""
CONFIG = NO_TERMINAL + CAUTIOUS
# Variables that a development machine may set and an ordinary user's does not: those of agents, of containers and of Python.
_DEVELOPMENT_PREFIXES = ("BACKBURNER_", "CLAUDE", "CODEX", "GEMINI", "OPENCODE")
_DEVELOPMENT_VARIABLES = ("IS_SANDBOX", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")


def is_development_variable(name: str) -> bool:
    return name.startswith(_DEVELOPMENT_PREFIXES) or name in _DEVELOPMENT_VARIABLES


def wait_until(predicate: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait for a condition; the test fails with `what` if it does not come true in time.

    A check that starts a process is repeated less often, so that it does not slow down what the test waits for.
    """
    deadline = time.monotonic() + seconds
    while True:
        started_at = time.monotonic()
        if predicate():
            return
        now = time.monotonic()
        assert now < deadline, f"waited {seconds} s for {what}"
        time.sleep(max(0.01, 2 * (now - started_at)))


def caller(app: App) -> Caller:
    """This process as a caller of an App's services."""
    return current_caller("library", app.environ)


class HomeCli:
    """A home with a project folder. Its methods run `backburner` as a separate process."""

    def __init__(self, root: Path, cwd: Path) -> None:
        self.root, self.cwd = root, cwd
        self.home = Home(str(root))
        self.new_interpreters = False  # whether every call starts an interpreter, as a user's does; see forked_cli.py
        self.environ = {name: value for name, value in os.environ.items() if not is_development_variable(name)}
        self.environ |= {"BACKBURNER_HOME": str(root), "HOME": str(root.parent / "person")}

    def configure(self, text: str) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "config.toml").write_text(text)

    def cli(
        self, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None, **options: object
    ) -> "subprocess.CompletedProcess[str]":
        """Run the command line and wait until it exits."""
        done = self._call(words, {**self.environ, **(env or {})}, cwd or self.cwd, set(env or ()), **options)
        out, err = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def _call(
        self, words: tuple[str, ...], environ: dict[str, str], cwd: Path, changed: Collection[str] = (), **options: object
    ) -> "subprocess.CompletedProcess[bytes]":
        if not (self.new_interpreters or options or any(name.startswith(("PYTHON", "LC_", "LANG")) for name in changed)):
            return FORKED_CLI.run(list(words), str(cwd), environ, timeout=60)
        return subprocess.run(
            [sys.executable, "-m", "backburner", *words],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            **options,  # type: ignore[arg-type]
        )

    def ok(self, *words: str, **options: object) -> str:
        """Like `cli`, for a call that must succeed; returns its standard output."""
        done = self.cli(*words, **options)  # type: ignore[arg-type]
        assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *words: str) -> object:
        """What a call with `--json` prints."""
        return json.loads(self.ok(*words, "--json"))

    def run(self, *command: str, options: tuple[str, ...] = ()) -> str:
        """Start an approved command; returns the ID of the task."""
        return self.ok("run", "--yes", *options, "--", *command).strip()

    def status(self, task_id: str) -> dict[str, object]:
        found = self.json("status", task_id)
        assert isinstance(found, dict)
        return found

    def finish(self, *command: str, options: tuple[str, ...] = ()) -> dict[str, object]:
        """Run an approved command and wait for its end; returns its status."""
        task_id = self.run(*command, options=options)
        self.cli("wait", task_id, "--timeout", "60")
        return self.status(task_id)

    def log(self, task_id: str) -> bytes:
        done = self._call(("logs", task_id), self.environ, self.cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def folder(self, task_id: str) -> Path:
        return self.root / "tasks" / task_id

    @property
    def python(self) -> str:
        """The folder of the interpreter that has the package installed."""
        return os.path.dirname(sys.executable)

    @property
    def engine(self) -> ProcessId | None:
        return processes.engine_of(self.home)

    def kill_engine(self) -> None:
        """Kill the engine with SIGKILL. Its keeper starts another."""
        if engine := self.engine:
            processes.send(engine, signal.SIGKILL)
            wait_until(lambda: not processes.is_alive(engine), "the engine to die")

    def freeze_engine(self) -> ProcessId:
        """Stop the engine with SIGSTOP at a moment when it does not hold the ledger, so that other processes can still write."""
        engine = self.engine
        assert engine

        def frozen() -> bool:
            processes.send(engine, signal.SIGSTOP)
            ledger = apsw.Connection(str(self.root / "ledger.db"))
            try:
                ledger.set_busy_timeout(100)
                ledger.execute("BEGIN IMMEDIATE; ROLLBACK")
            except apsw.BusyError:
                processes.send(engine, signal.SIGCONT)
                return False
            finally:
                ledger.close()
            return True

        wait_until(frozen, "the engine to be between two transactions")
        return engine

    @property
    def log_writers(self) -> list[ProcessId]:
        return self.processes("serve")

    @property
    def sandbox_starters(self) -> list[ProcessId]:
        return self.processes(os.path.abspath(sandbox_starter.__file__))

    def uses_sandbox_starter(self, task_id: str) -> bool:
        """Whether the last run of a task was started by the sandbox starter, and not by bubblewrap."""
        return shim.INSIDE_SANDBOX in (self.folder(task_id) / ".exit").read_text(errors="replace")

    def await_sandbox_starter(self) -> None:
        """Run sandboxed commands, of another user and in another folder, until the sandbox starter starts them. They are cleared."""
        elsewhere = self.root.parent / "elsewhere"
        elsewhere.mkdir(exist_ok=True)

        def is_used() -> bool:
            task_id = self.ok("run", "--cwd", str(elsewhere), "--", "true", env={"HOME": str(elsewhere)}).strip()
            self.cli("wait", task_id)
            used = self.uses_sandbox_starter(task_id)
            self.ok("clear", task_id)
            return used

        wait_until(is_used, "the sandbox starter")

    def stop_engine(self) -> None:
        """Stop the engine and its keeper, and an engine that is just starting, so that none comes back."""

        def gone() -> bool:
            for keeper in self.processes("backburner-keeper"):
                processes.send(keeper, signal.SIGKILL)
            engines = self.processes(str(self.root))
            for engine in engines:
                processes.send(engine, signal.SIGTERM)
            return not engines

        wait_until(gone, "the engine to exit")

    def stop_all(self) -> None:
        """Stop the engine, the agent process and the integrations process."""
        self.stop_engine()

        def gone() -> bool:
            remaining = self.processes()
            for found in remaining:
                processes.send(found, signal.SIGTERM)
            return not remaining

        wait_until(gone, "all processes of the home to exit")

    def hosts(self, module: str) -> list[ProcessId]:
        """The processes of the home that run a module of Backburner, such as `agents.process`."""
        found = []
        for candidate in self.processes():
            with contextlib.suppress(OSError):  # it may exit just now
                if module.encode() in Path(f"/proc/{candidate.pid}/cmdline").read_bytes():
                    found.append(candidate)
        return found

    def processes(self, word: str = "") -> list[ProcessId]:
        """Living processes of this home, found by their command line or environment; with `word`, only those that have it as an argument."""
        members = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            belongs = str(self.root).encode() in words or f"BACKBURNER_HOME={self.root}".encode() in env
            if belongs and (not word or word.encode() in words) and (found := processes.identify(int(name))):
                members.append(found)
        return members


@pytest.fixture
def home_cli(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HomeCli]:
    """A fresh home in which `--yes` works without a terminal. The test fails if it leaves a process running."""
    project = tmp_path / "project"
    project.mkdir()
    here = HomeCli(tmp_path / "home", project)
    here.configure(CONFIG)
    here.new_interpreters = request.path.parent.name in ("tour", "seed") or request.path.name == "test_cli.py"
    yield here
    here.stop_engine()
    # The last command may be just ending, with its sandbox; without a log writer, its shim saves its output itself.
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not here.processes(), "the last processes to end", _ENDING_SECONDS)
    remaining = {found: Path(f"/proc/{found.pid}/cmdline").read_bytes() for found in here.processes()}
    for found in remaining:
        processes.send(found, signal.SIGKILL)
    assert not remaining, f"still running: {remaining}"


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A Postgres server of this test process."""
    server = PostgresServer(tmp_path_factory.getbasetemp() / "pg", wheel_programs())
    yield server
    server.stop()


@pytest.fixture(scope="session")
def system_postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The same with the programs of the system, which are usually older and know ICU collations."""
    server = PostgresServer(tmp_path_factory.getbasetemp() / "pg-system", system_programs())
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ledger_server(request: pytest.FixtureRequest) -> PostgresServer:
    """The server of `database`; see `ON_BOTH_SERVERS`."""
    is_system = getattr(request, "param", "newest") == "system"
    return request.getfixturevalue("system_postgres_server" if is_system else "postgres_server")


@pytest.fixture(scope="module")
def database(request: pytest.FixtureRequest, ledger_server: PostgresServer) -> LedgerDatabase:
    """A database with the tables of a ledger for the tests of one file, which it is named after; with roles if that says `WITH_ROLES = True`."""
    name = request.module.__name__.rpartition(".")[2]
    return LedgerDatabase(ledger_server, name, "bytes", roles=getattr(request.module, "WITH_ROLES", False))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start an engine, which all use `home_cli`, so that `scripts/test --fast` can leave them out.

    Folders with slow files come first, so that none of them starts last while the other processes have nothing left to run.
    """
    items.sort(key=lambda item: item.path.parent.name not in _SLOW_FOLDERS)
    for item in items:
        if home_cli.__name__ in getattr(item, "fixturenames", ()):
            item.add_marker("engine")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test uses the home or the settings of the person who runs it."""
    for name in list(os.environ):
        if is_development_variable(name) and name != "BACKBURNER_LONG":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.getbasetemp()))
