"""Shared by the tests with real agents and with real clients: the fixtures of `tests/`, the folder with the programs, and gates.

Both have their own conftest, so that the one of `tests/` is imported under another name here.
"""

import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backburner.core.models import ProcessId
from backburner.system import processes

_spec = importlib.util.spec_from_file_location("tests_conftest", Path(__file__).with_name("conftest.py"))
assert _spec and _spec.loader
_shared = importlib.util.module_from_spec(_spec)
sys.modules["tests_conftest"] = _shared
_spec.loader.exec_module(_shared)

CONFIG, HomeCli, home_cli, wait_until, _own_environment = (
    _shared.CONFIG,
    _shared.HomeCli,
    _shared.home_cli,
    _shared.wait_until,
    _shared._own_environment,
)
CLIENTS = os.environ.get("BACKBURNER_CLIENTS", "")  # read at import, because the fixtures remove it from the environment
PATIENCE = 120.0


def need_programs(script: str) -> None:
    if not os.path.isdir(CLIENTS):
        raise pytest.UsageError(f"BACKBURNER_CLIENTS must be the folder with the programs: run {script}.")


def nothing_left(left: Callable[[], dict[ProcessId, bytes]], seconds: float) -> None:
    """Wait until the processes of a test have exited. Kill those that have not, and fail."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not left(), "the last process to exit", seconds)
    remaining = left()
    for found in remaining:
        processes.send(found, signal.SIGKILL)
    assert not remaining, f"still running: {remaining}"


class Gate:
    """A named pipe in a folder: `cat NAME` waits until the gate is opened, then prints a line and exits."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self._path, self.name = folder / name, name
        os.mkfifo(self._path)
        self._path.chmod(0o666)
        self.command, self.line = f"cat {name}", f"through the {name}"

    def open(self) -> None:
        def opened() -> bool:
            try:
                descriptor = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # no process reads yet
                return False
            os.write(descriptor, f"{self.line}\n".encode())
            os.close(descriptor)
            return True

        wait_until(opened, f"something to read {self._path}", PATIENCE)
