"""Fixtures of the tests with real agents: an office of agents for the tests of a file, or for one test, and a check that nothing is left.

`scripts/test-agents` sets BACKBURNER_CLIENTS to the folder with the agents' programs and runs these; `scripts/test` does not.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_TESTS = Path(__file__).parent.parent / "tests"
_spec = importlib.util.spec_from_file_location("tests_conftest", _TESTS / "conftest.py")
assert _spec and _spec.loader
_shared = importlib.util.module_from_spec(_spec)
sys.modules["tests_conftest"] = _shared
_spec.loader.exec_module(_shared)

CONFIG, Place, wait_until, _own_environment = _shared.CONFIG, _shared.Place, _shared.wait_until, _shared._own_environment

CLIENTS = os.environ.get("BACKBURNER_CLIENTS", "")  # read now: tests do not see it


def pytest_sessionstart() -> None:
    if not os.path.isdir(CLIENTS):
        raise pytest.UsageError("BACKBURNER_CLIENTS must be the folder with the agents' programs: run scripts/test-agents.")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One office for all tests of a file, so that its servers start once."""
    from harness import an_office

    with an_office(tmp_path_factory.mktemp("office")) as made:
        yield made


@pytest.fixture
def office(shared: Any) -> Iterator[Any]:
    """The shared office; after each test nobody works in it any more."""
    yield shared
    shared.settle()


@pytest.fixture
def own_office(tmp_path: Path) -> Iterator[Any]:
    """An office for one test."""
    from harness import an_office

    with an_office(tmp_path) as made:
        yield made
        made.settle()
