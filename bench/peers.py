"""The compared tools: task-spooler, nq and huey, each in its own folder and stopped with its own command."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import time
from pathlib import Path


def missing() -> list[str]:
    """Return the tools that are not installed."""
    installed = {"task-spooler": shutil.which("tsp"), "nq": shutil.which("nq"), "huey": importlib.util.find_spec("huey")}
    return [name for name, found in installed.items() if not found]


def versions() -> dict[str, str]:
    """Return the versions of the tools that can print one."""
    found = {}
    if shutil.which("tsp"):
        found["task-spooler"] = subprocess.run(["tsp", "-V"], capture_output=True, text=True, timeout=10).stdout.split(" - ")[0]
    if importlib.util.find_spec("huey"):
        found["huey"] = importlib.metadata.version("huey")
    return found


def _run_quietly(command: list[str], environ: dict[str, str]) -> None:
    subprocess.run(command, env=environ, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)


class TaskSpooler:
    """A task-spooler server with its socket and files in `folder`."""

    def __init__(self, folder: Path, slots: int) -> None:
        self.folder, self._slots = folder, slots
        self._environ = {**os.environ, "TS_SOCKET": str(folder / "socket"), "TMPDIR": str(folder)}
        self._tsp("-S", str(slots))

    def __enter__(self) -> "TaskSpooler":
        return self

    def __exit__(self, *_: object) -> None:
        self._tsp("-K")

    def run(self, command: list[str], count: int = 1) -> None:
        """Queue a command `count` times and wait for all. The last one takes every slot, so it ends last."""
        for _ in range(count - 1):
            self._tsp(*command)
        self._tsp("-N", str(self._slots), *command)
        self._tsp("-w")

    def check(self, count: int) -> None:
        """Check that `count` jobs have ended with exit code 0. Call this after the time measurement."""
        listed = subprocess.run(["tsp", "-l"], env=self._environ, capture_output=True, text=True, check=True, timeout=60).stdout
        ended = [line.split() for line in listed.splitlines()[1:]]
        assert [columns[1] + columns[3] for columns in ended] == ["finished0"] * count, listed

    def _tsp(self, *arguments: str) -> None:
        _run_quietly(["tsp", *arguments], self._environ)


def nq(folder: Path, command: list[str], count: int) -> None:
    """Queue a command `count` times with nq, which runs one at a time, and wait for all."""
    environ = {**os.environ, "NQDIR": str(folder)}
    for _ in range(count):
        _run_quietly(["nq", "-q", *command], environ)
    _run_quietly(["nq", "-w"], environ)


def check_nq(folder: Path, count: int) -> None:
    """Check that `count` jobs have ended with exit code 0. nq may write the last line of an output shortly after `nq -w` has returned."""
    deadline = time.monotonic() + 10
    while True:
        outputs = [path.read_text() for path in folder.glob(",*")]
        if sum("[exited with status 0.]" in text for text in outputs) == len(outputs) == count:
            return
        assert time.monotonic() < deadline, outputs[:3]
        time.sleep(0.01)
