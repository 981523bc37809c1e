"""Fixtures: a home of its own for every test, doors to it, and a check that nothing is left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from backburner.core.models import Caller, ProcessId
from backburner.services.app import App
from backburner.system import processes as process
from backburner.system.caller_identity import current_caller
from backburner.system.home import Home

# No test may depend on the machine being fast.
hypothesis.settings.register_profile("any-speed", deadline=None)
hypothesis.settings.load_profile("any-speed")

LONG = bool(os.environ.get("BACKBURNER_LONG"))
CONFIG = "[approval]\nyes_without_terminal = true\n"


def wait_until(predicate: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Wait for a condition; the test fails with `what` where it does not come true."""
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def caller(app: App) -> Caller:
    """This process as a caller of an App's services."""
    return current_caller("library", app.environ)


class Place:
    """A home and the command line to it, as separate processes see them."""

    def __init__(self, root: Path, cwd: Path) -> None:
        self.root, self.cwd = root, cwd
        self.home = Home(str(root))
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("BACKBURNER_", "CLAUDE", "CODEX", "GEMINI", "OPENCODE"))
        }
        self.environ |= {"BACKBURNER_HOME": str(root), "HOME": str(root.parent / "person")}
        self.environ.pop("PYTHONDONTWRITEBYTECODE", None)

    def configure(self, text: str) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "config.toml").write_text(text)

    def cli(
        self, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None, **options: object
    ) -> "subprocess.CompletedProcess[str]":
        """One call of the command line, to its end."""
        return subprocess.run(
            [sys.executable, "-m", "backburner", *words],
            cwd=cwd or self.cwd,
            env={**self.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=40,
            **options,  # type: ignore[arg-type]
        )

    def ok(self, *words: str, **options: object) -> str:
        """Like `cli`, for a call that must succeed; its output."""
        done = self.cli(*words, **options)  # type: ignore[arg-type]
        assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *words: str) -> object:
        return json.loads(self.ok(*words, "--json"))

    def run(self, *command: str, options: tuple[str, ...] = ()) -> str:
        """Start a command; its id."""
        return self.ok("run", "--yes", *options, "--", *command).strip()

    def status(self, task_id: str) -> dict[str, object]:
        found = self.json("status", task_id)
        assert isinstance(found, dict)
        return found

    def finish(self, *command: str, options: tuple[str, ...] = ()) -> dict[str, object]:
        """Run a command to its end; its status."""
        task_id = self.run(*command, options=options)
        self.cli("wait", task_id, "--timeout", "60")
        return self.status(task_id)

    def log(self, task_id: str) -> bytes:
        done = subprocess.run(
            [sys.executable, "-m", "backburner", "logs", task_id], cwd=self.cwd, env=self.environ, capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def folder(self, task_id: str) -> Path:
        return self.root / "tasks" / task_id

    @property
    def python(self) -> str:
        """The folder of the interpreter that knows the package."""
        return os.path.dirname(sys.executable)

    @property
    def engine(self) -> ProcessId | None:
        return process.engine_of(self.home)

    def kill_engine(self) -> None:
        """SIGKILL, as a user out of patience would."""
        if engine := self.engine:
            process.send(engine, signal.SIGKILL)
            wait_until(lambda: not process.is_alive(engine), "the engine to be dead")

    def stop_engine(self) -> None:
        """End the engine, its keeper, and one that was just on its way, for good."""

        def gone() -> bool:
            for one in self.processes("backburner-keeper"):
                process.send(one, signal.SIGKILL)
            engines = self.processes(str(self.root))
            for one in engines:
                process.send(one, signal.SIGTERM)
            return not engines

        wait_until(gone, "the engine to leave")

    def stop_all(self) -> None:
        """End the engine, and the hosts of agents and post."""
        self.stop_engine()

        def gone() -> bool:
            left = self.processes()
            for one in left:
                process.send(one, signal.SIGTERM)
            return not left

        wait_until(gone, "all of it to leave")

    def hosts(self, module: str) -> list[ProcessId]:
        """The processes beside the engine that run a module of ours; one may just be going."""
        found = []
        for one in self.processes():
            with contextlib.suppress(OSError):
                found += [one] if module.encode() in Path(f"/proc/{one.pid}/cmdline").read_bytes() else []
        return found

    def processes(self, word: str = "") -> list[ProcessId]:
        """Living processes that belong to this home: by their command line, or by what they were given."""
        mine = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ours = str(self.root).encode() in words or f"BACKBURNER_HOME={self.root}".encode() in env
            if ours and (not word or word.encode() in words) and (found := process.identify(int(name))):
                mine.append(found)
        return mine


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A fresh home in which `--yes` works without a terminal. Nothing may be left running at the end of the test."""
    project = tmp_path / "project"
    project.mkdir()
    here = Place(tmp_path / "home", project)
    here.configure(CONFIG)
    yield here
    here.stop_engine()
    left = {one: Path(f"/proc/{one.pid}/cmdline").read_bytes() for one in here.processes()}
    for one in left:
        process.send(one, signal.SIGKILL)
    assert not left, f"left behind: {left}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start an engine, which all use `place`, so that `scripts/test --fast` can leave them out."""
    for item in items:
        if place.__name__ in getattr(item, "fixturenames", ()):
            item.add_marker("engine")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the person's own home or settings."""
    for name in list(os.environ):
        if name.startswith(("BACKBURNER_", "CLAUDE", "CODEX", "GEMINI", "OPENCODE")) and name != "BACKBURNER_LONG":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.getbasetemp()))
