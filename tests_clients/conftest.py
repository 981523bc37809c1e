"""Fixtures of the tests with real clients: those of `tests/`, without automatic approval, and a check that no client is remaining running.

`scripts/test-clients` sets BACKBURNER_CLIENTS to the folder with the programs of the clients and runs these tests; `scripts/test` does not run them.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import real
from real import HomeCli, need_programs, nothing_left

from backburner.core.models import ProcessId
from backburner.system import processes

home_cli, _own_environment = real.home_cli, real._own_environment


def pytest_sessionstart() -> None:
    need_programs("scripts/test-clients")


@pytest.fixture
def home(home_cli: HomeCli) -> Iterator[HomeCli]:  # type: ignore[valid-type]
    """A new home in which only a user at a terminal can approve, and a new HOME for the clients."""
    home_cli.configure("")
    home_cli.root.chmod(0o700)
    Path(home_cli.environ["HOME"]).mkdir()
    yield home_cli
    nothing_left(lambda: _remaining_processes(home_cli), 10)


def _remaining_processes(home_cli: HomeCli) -> dict[ProcessId, bytes]:  # type: ignore[valid-type]
    """The processes with the HOME of the test, except the engine."""
    remaining = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if f"HOME={home_cli.environ['HOME']}".encode() in env and home_cli.engine != (found := processes.identify(int(name))):
                remaining[found] = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
    return {found: words for found, words in remaining.items() if found and b"backburner-keeper" not in words}
