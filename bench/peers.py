"""The others: task-spooler, nq and huey, each in a folder of its own and ended through its own door."""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path


def missing() -> list[str]:
    """Which of them are not on this machine."""
    there = {"task-spooler": shutil.which("tsp"), "nq": shutil.which("nq"), "huey": importlib.util.find_spec("huey")}
    return [name for name, found in there.items() if not found]


def versions() -> dict[str, str]:
    """Those that say which version they are."""
    found = {}
    if shutil.which("tsp"):
        found["task-spooler"] = subprocess.run(["tsp", "-V"], capture_output=True, text=True, timeout=10).stdout.split(" - ")[0]
    if importlib.util.find_spec("huey"):
        found["huey"] = importlib.metadata.version("huey")
    return found


def _quietly(words: list[str], environ: dict[str, str]) -> None:
    subprocess.run(words, env=environ, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)


class TaskSpooler:
    """A server of task-spooler with its socket and its files in `folder`."""

    def __init__(self, folder: Path, slots: int) -> None:
        self.folder, self._slots = folder, slots
        self._environ = {**os.environ, "TS_SOCKET": str(folder / "socket"), "TMPDIR": str(folder)}
        self._tsp("-S", str(slots))

    def __enter__(self) -> "TaskSpooler":
        return self

    def __exit__(self, *_: object) -> None:
        self._tsp("-K")

    def run(self, command: list[str], count: int = 1) -> None:
        """Queue a command so many times and wait for all: the last one takes every slot, so it is the last to end."""
        for _ in range(count - 1):
            self._tsp(*command)
        self._tsp("-N", str(self._slots), *command)
        self._tsp("-w")

    def check(self, count: int) -> None:
        """So many jobs have ended, each with exit code 0; to be asked after the clock was stopped."""
        listed = subprocess.run(["tsp", "-l"], env=self._environ, capture_output=True, text=True, check=True, timeout=60).stdout
        ended = [line.split() for line in listed.splitlines()[1:]]
        assert [words[1] + words[3] for words in ended] == ["finished0"] * count, listed

    def _tsp(self, *words: str) -> None:
        _quietly(["tsp", *words], self._environ)


def nq(folder: Path, command: list[str], count: int) -> None:
    """Queue a command so many times with nq, which runs one after the other, and wait for all."""
    environ = {**os.environ, "NQDIR": str(folder)}
    for _ in range(count):
        _quietly(["nq", "-q", *command], environ)
    _quietly(["nq", "-w"], environ)


def check_nq(folder: Path, count: int) -> None:
    """So many jobs have ended, each with exit code 0."""
    outputs = [path.read_text() for path in folder.glob(",*")]
    assert sum("[exited with status 0.]" in text for text in outputs) == len(outputs) == count, outputs[:3]
