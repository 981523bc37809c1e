"""Whether the machine has capacity for another command."""

import os

import pytest

from backburner.core.settings import Config, resolve
from backburner.system import capacity

EVERYTHING = 1_000_000  # MiB, and as a load: more than a machine has


def settings(**values: float) -> Config:
    return resolve("".join(["[commands]\n", *(f"{name} = {value}\n" for name, value in values.items())]))


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 0.0, 0.0))


@pytest.mark.usefixtures("load")
@pytest.mark.parametrize(
    ("values", "admitted"),
    [
        ({}, 4),
        ({"min_free_memory_mb": 1}, 1),
        ({"min_free_memory_mb": EVERYTHING}, 0),
        ({"max_load": 3.0}, 1),
        ({"max_load": 2.9}, 0),
        ({"min_free_memory_mb": 1, "max_load": 2.9}, 0),
        ({"min_free_memory_mb": EVERYTHING, "max_load": EVERYTHING}, 0),
        ({"min_free_memory_mb": 1, "max_load": EVERYTHING}, 1),
    ],
    ids=str,
)
def test_with_limits_commands_start_one_at_a_time_while_there_is_capacity(values: dict[str, float], admitted: int) -> None:
    config = settings(**values)
    assert capacity.allowed_starts(config, 4) == admitted
    assert capacity.allowed_starts(config, 0) == 0
    assert (capacity.blocking_reason(config) is None) == (admitted > 0)


@pytest.mark.usefixtures("load")
def test_the_reason_names_the_current_value_and_the_limit() -> None:
    assert capacity.blocking_reason(settings(max_load=2.5)) == "the load to drop to 2.5 (now 3.0)"
    free = capacity.blocking_reason(settings(min_free_memory_mb=EVERYTHING))
    assert free is not None and free.endswith(f" MiB free, {EVERYTHING} MiB required)")
    assert int(free.removeprefix("free memory (").split()[0]) > 0


def test_unknown_free_memory_does_not_prevent_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> object:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    assert capacity.allowed_starts(settings(min_free_memory_mb=EVERYTHING), 4) == 1
