"""A home for one measurement, on disk or in memory, and calls of the command line with it. Closing it ends all its processes."""

import array
import atexit
import contextlib
import fcntl
import functools
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
# If a benchmark is killed, the engine exits after five idle minutes.
CONFIG = "[approval]\nyes_without_terminal = true\n[engine]\nidle_exit_seconds = 300\n[commands]\nmax_concurrent = {}\n"
_GET_FLAGS, _SET_FLAGS, _TOP_FOLDER = 0x80086601, 0x40086602, 0x00020000  # see ioctl_iflags(2)
_MAX_TRIES, _QUICK_SECONDS = 20, 40e-6
_REMOVED_PREFIXES = ("BACKBURNER_", "CLAUDE", "CODEX", "GEMINI", "OPENCODE", "PYTHONDONTWRITEBYTECODE")


def clean_environment() -> None:
    """Remove variables that change the result: settings, and those of an agent, which may not approve commands."""
    for name in [name for name in os.environ if name.startswith(_REMOVED_PREFIXES)]:
        del os.environ[name]


def filesystem(path: str) -> str:
    """Return the type of the file system that contains a path."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    within = [(len(point), kind) for point, kind in mounts if os.path.commonpath([point, os.path.realpath(path)]) == point]
    return max(within)[1]


def disk() -> str:
    """Return a folder that is on a disk, not in memory."""
    return next(path for path in (tempfile.gettempdir(), "/var/tmp", str(ROOT)) if filesystem(path) != "tmpfs")


def wait_until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.005)


@contextlib.contextmanager
def scratch_folder(parent: str | None = None) -> Iterator[Path]:
    """Yield a folder that is removed when the program ends, so that deletions do not slow down the following round."""
    folder = ""
    for _ in range(_MAX_TRIES):
        folder = tempfile.mkdtemp(prefix="bench-", dir=_spread_folder(parent or disk()))
        if _creates_files_quickly(folder):
            break
    yield Path(folder)


def _creates_files_quickly(folder: str) -> bool:
    times, paths = [], [f"{folder}/{number}" for number in range(9)]
    for path in paths:
        start = time.perf_counter()
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        times.append(time.perf_counter() - start)
    for path in paths:
        os.unlink(path)
    return sorted(times)[4] < _QUICK_SECONDS


@functools.cache
def _spread_folder(parent: str) -> str:
    """Return a folder below `parent` whose subfolders are in different parts of the disk, if that is ext4.

    Without a journal, ext4 does not reuse the inode of a deleted file for a minute or more, and creating a file takes longer the more
    of these there are in the same part of the disk: up to half a millisecond instead of ten microseconds. So what other programs, or
    other candidates, have deleted would be measured; `scratch_folder` tries several parts.
    """
    folder = tempfile.mkdtemp(prefix="bench-", dir=parent)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        flags = array.array("l", [0])
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        flags[0] |= _TOP_FOLDER
        fcntl.ioctl(descriptor, _SET_FLAGS, flags)
    except OSError:
        pass  # not ext4
    finally:
        os.close(descriptor)
    return folder


class BenchHome:
    """A home and a working directory below `folder`. If `concurrent` is None, it has no config.toml."""

    def __init__(self, folder: Path, concurrent: int | None = 5) -> None:
        self.root, self.cwd = folder / "home", folder / "work"
        for path in (self.root, self.cwd):
            path.mkdir()
        if concurrent is not None:
            (self.root / "config.toml").write_text(CONFIG.format(concurrent))
        self.environ = {**os.environ, "BACKBURNER_HOME": str(self.root)}

    def __enter__(self) -> "BenchHome":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def cli(self, *arguments: str) -> str:
        """Call the command line, which must succeed. Return its output."""
        completed = subprocess.run(
            [LAUNCHER, *arguments], env=self.environ, cwd=self.cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        if completed.returncode:
            raise RuntimeError(f"backburner {' '.join(arguments)}: exit {completed.returncode}: {completed.stderr.strip()}")
        return completed.stdout

    def seconds(self, *arguments: str) -> float:
        """Call the command line. Return the elapsed seconds."""
        start = time.perf_counter()
        self.cli(*arguments)
        return time.perf_counter() - start

    @property
    def engine(self) -> int | None:
        """The pid of the running engine, or None."""
        try:
            pid = int((self.root / "engine.lock").read_text().split(":")[0])
            return pid if str(self.root) in Path(f"/proc/{pid}/cmdline").read_text() else None
        except (OSError, ValueError):
            return None

    def stop(self) -> None:
        """Stop the commands and the engine."""
        if self.engine:
            running = [task["task_id"] for task in json.loads(self.cli("list", "running", "--all", "--json"))]
            if running:
                self.cli("cancel", *running)
        self.stop_engine()

    def stop_engine(self) -> None:
        """Stop the engine and all processes that could start another one: their command lines contain the home."""
        if pid := self.engine:
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: self.engine is None, "the engine to exit")
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with contextlib.suppress(OSError):
                if os.fsencode(self.root) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGTERM)


def _children_with(engine: int, *programs: str) -> list[int]:
    lines = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children(engine)}
    return [child for child, line in lines.items() if any(program.encode() in line for program in programs)]


def log_writer_of(engine: int) -> int:
    (log_writer,) = _children_with(engine, "log_writer.py")
    return log_writer


def shims_of(engine: int) -> list[int]:
    """Return the shims of an engine: it starts the first one itself, and its log writer all others."""
    own = _children_with(engine, "log_writer.py", "sandbox_starter.py")
    return [child for parent in (engine, *_children_with(engine, "log_writer.py")) for child in children(parent) if child not in own]


def sandbox_starters_of(engine: int) -> list[int]:
    return _children_with(engine, "sandbox_starter.py")


def running_commands(engine: int) -> int:
    """Return the number of commands that run."""
    return sum(bool(children(shim)) for shim in shims_of(engine))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parent(pid: int) -> int:
    return int(_stat(pid)[1])


def pss_mb(pid: int) -> float:
    """Return the memory of a process (PSS): shared memory is divided among the processes that share it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process, including all that it shares with others."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process, and that of its children that have ended."""
    own_user, own_system, user, system = (int(field) / os.sysconf("SC_CLK_TCK") for field in _stat(pid)[11:15])
    return own_user + own_system, user + system


def exact_cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads, with a higher resolution than `cpu_seconds`."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
