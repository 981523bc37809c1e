"""Fixtures of the tests with real clients: those of `tests/`, without its way to say yes, and a check that no client is left.

`scripts/test-clients` sets BACKBURNER_CLIENTS to the folder with the clients' programs and runs these; `scripts/test` does not.
"""

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent.parent / "tests"
_spec = importlib.util.spec_from_file_location("tests_conftest", _TESTS / "conftest.py")
assert _spec and _spec.loader
_shared = importlib.util.module_from_spec(_spec)
sys.modules["tests_conftest"] = _shared
_spec.loader.exec_module(_shared)
sys.path.insert(0, str(_TESTS))

Place, place, wait_until, _own_environment = _shared.Place, _shared.place, _shared.wait_until, _shared._own_environment

CLIENTS = os.environ.get("BACKBURNER_CLIENTS", "")  # read now: tests do not see it


def pytest_sessionstart() -> None:
    if not os.path.isdir(CLIENTS):
        raise pytest.UsageError("BACKBURNER_CLIENTS must be the folder with the clients' programs: run scripts/test-clients.")


@pytest.fixture
def home(place: Place) -> Iterator[Place]:  # type: ignore[valid-type]
    """A fresh home in which only a person at a terminal can say yes, and a fresh HOME for the clients."""
    place.configure("")
    place.root.chmod(0o700)
    Path(place.environ["HOME"]).mkdir()
    yield place
    deadline = time.monotonic() + 10  # what a client leaves behind ends with it, but not in the same instant
    while (left := _left(place)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for one in left:
        _shared.process.send(one, signal.SIGKILL)
    assert not left, f"left behind: {left}"


def _left(place: Place) -> dict[object, bytes]:  # type: ignore[valid-type]
    """The living processes of a test's person, but for the engine."""
    left = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if f"HOME={place.environ['HOME']}".encode() in env and place.engine != (found := _shared.process.identify(int(name))):
                left[found] = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
    return {one: words for one, words in left.items() if one and b"backburner-keeper" not in words}
