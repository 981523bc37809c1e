"""Fixtures for the tests with real agents: a home for all tests of a file or for one test, and a check that no process remains.

`scripts/test-agents` sets BACKBURNER_CLIENTS to the folder with the agents' programs and runs these; `scripts/test` does not.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from real import _own_environment, need_programs  # noqa: F401 - a fixture is imported by its name


def pytest_sessionstart() -> None:
    need_programs("scripts/test-agents")


@pytest.fixture(scope="module")
def shared_agents_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One home for all tests of a file, so that its servers start once."""
    from harness import open_agents_home

    with open_agents_home(tmp_path_factory.mktemp("agents")) as opened:
        yield opened


@pytest.fixture
def agents_home(shared_agents_home: Any) -> Iterator[Any]:
    """The shared_agents_home home; after each test all its runs are ended."""
    yield shared_agents_home
    shared_agents_home.settle()


@pytest.fixture
def new_agents_home(tmp_path: Path) -> Iterator[Any]:
    """A home for one test."""
    from harness import open_agents_home

    with open_agents_home(tmp_path) as opened:
        yield opened
        opened.settle()
