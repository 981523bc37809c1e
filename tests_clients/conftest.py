"""Fixtures of the tests with real clients: those of `tests/`, without its way to say yes, and a check that no client is left.

`scripts/test-clients` sets BACKBURNER_CLIENTS to the folder with the clients' programs and runs these; `scripts/test` does not.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "tests"))
import real
from real import Place, need_programs, nothing_left

from backburner.core.models import ProcessId
from backburner.system import processes as process

place, _own_environment = real.place, real._own_environment


def pytest_sessionstart() -> None:
    need_programs("scripts/test-clients")


@pytest.fixture
def home(place: Place) -> Iterator[Place]:  # type: ignore[valid-type]
    """A fresh home in which only a person at a terminal can say yes, and a fresh HOME for the clients."""
    place.configure("")
    place.root.chmod(0o700)
    Path(place.environ["HOME"]).mkdir()
    yield place
    nothing_left(lambda: _left(place), 10)


def _left(place: Place) -> dict[ProcessId, bytes]:  # type: ignore[valid-type]
    """The living processes of a test's person, but for the engine."""
    left = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if f"HOME={place.environ['HOME']}".encode() in env and place.engine != (found := process.identify(int(name))):
                left[found] = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
    return {one: words for one, words in left.items() if one and b"backburner-keeper" not in words}
