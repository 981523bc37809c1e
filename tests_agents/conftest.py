"""Fixtures of the tests with real agents: an office of agents for the tests of a file, or for one test, and a check that nothing is left.

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
