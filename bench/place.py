"""A home for one measurement, on the disk or in memory, and the command line to it. Nothing of it runs on when it closes."""

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAUNCHER, PYTHON = str(ROOT / "backburner"), str(ROOT / ".venv" / "bin" / "python")
MEMORY = "/dev/shm"
# An engine leaves by itself, should nobody be there to end it.
CONFIG = "[approval]\nyes_without_terminal = true\n[engine]\nidle_exit_seconds = 300\n[commands]\nmax_concurrent = {}\n"
_FOREIGN = ("BACKBURNER_", "CLAUDE", "CODEX", "GEMINI", "OPENCODE", "PYTHONDONTWRITEBYTECODE")


def own_environment() -> None:
    """Drop what would change the measurement: settings, and the signs of an agent, whose yes the gate refuses."""
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        del os.environ[name]


def filesystem(path: str) -> str:
    """The kind of file system a path lies on."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    within = [(len(point), kind) for point, kind in mounts if os.path.commonpath([point, os.path.realpath(path)]) == point]
    return max(within)[1]


def disk() -> str:
    """A folder that is on a disk, not in memory."""
    return next(path for path in (tempfile.gettempdir(), "/var/tmp", str(ROOT)) if filesystem(path) != "tmpfs")


def wait_until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.005)


@contextlib.contextmanager
def scratch(where: str | None = None) -> Iterator[Path]:
    """A folder that is gone when the program ends; not sooner, so that no round pays for the deletions of the one before."""
    folder = tempfile.mkdtemp(prefix="bench-", dir=where or disk())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    yield Path(folder)


class Place:
    """A home below `folder`, and a working directory beside it. Without `concurrent` it has no settings of its own."""

    def __init__(self, folder: Path, concurrent: int | None = 5) -> None:
        self.root, self.cwd = folder / "home", folder / "work"
        for path in (self.root, self.cwd):
            path.mkdir()
        if concurrent is not None:
            (self.root / "config.toml").write_text(CONFIG.format(concurrent))
        self.environ = {**os.environ, "BACKBURNER_HOME": str(self.root)}

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def cli(self, *words: str) -> str:
        """One call of the command line, which must succeed; its output."""
        done = subprocess.run(
            [LAUNCHER, *words], env=self.environ, cwd=self.cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            raise RuntimeError(f"backburner {' '.join(words)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def seconds(self, *words: str) -> float:
        """What one call of the command line takes."""
        start = time.perf_counter()
        self.cli(*words)
        return time.perf_counter() - start

    @property
    def engine(self) -> int | None:
        """The pid of the engine at work."""
        try:
            pid = int((self.root / "engine.lock").read_text().split(":")[0])
            return pid if str(self.root) in Path(f"/proc/{pid}/cmdline").read_text() else None
        except (OSError, ValueError):
            return None

    def stop(self) -> None:
        """End the commands and the engine."""
        if self.engine:
            live = [task["task_id"] for task in json.loads(self.cli("list", "running", "--all", "--json"))]
            if live:
                self.cli("cancel", *live)
        self.stop_engine()

    def stop_engine(self) -> None:
        """End the engine, and whoever would start another one: they have the home in their words."""
        if pid := self.engine:
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: self.engine is None, "the engine to leave")
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if os.fsencode(self.root) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGTERM)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parent(pid: int) -> int:
    return int(_stat(pid)[1])


def pss_mb(pid: int) -> float:
    """The memory of a process; what it shares with others counts in parts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def cpu_seconds(pid: int) -> tuple[float, float]:
    """User and system time of a process, and of those of its children that have ended."""
    own_user, own_system, user, system = (int(field) / os.sysconf("SC_CLK_TCK") for field in _stat(pid)[11:15])
    return own_user + own_system, user + system


def exact_cpu_seconds(pid: int) -> float:
    """Time on a core of all threads, finer than the clock ticks of `cpu_seconds`."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
