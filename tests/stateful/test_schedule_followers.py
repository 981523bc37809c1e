"""Recurring tasks that run after other tasks."""

from pathlib import Path

import pytest
from scheduler_fixture import HOUR, MINUTE, SchedulerSimulation

from backburner.core.schedule import Schedule


@pytest.fixture
def simulation(tmp_path: Path) -> SchedulerSimulation:
    return SchedulerSimulation(tmp_path)


def test_limits_apply_to_following_tasks(simulation: SchedulerSimulation) -> None:
    first = simulation.add("first")
    counted = simulation.add("counted", Schedule(), after=(first,), budget={"day_runs": 1.0})
    timed = simulation.add("timed", Schedule(until=simulation.clock.now + HOUR + MINUTE), after=(first,))
    for _ in range(3):
        simulation.tick(HOUR)
        simulation.settle()
        simulation.settle()
    assert sum(row.n > 0 for row in simulation.rows(counted)) == 1 and simulation.entry(counted).status == "paused"
    assert sum(row.n > 0 for row in simulation.rows(timed)) == 1 and simulation.entry(timed).status == "done"


def test_a_task_that_follows_a_cancelled_task_is_paused(simulation: SchedulerSimulation) -> None:
    first = simulation.add("first")
    second = simulation.add("second", Schedule(), after=(first,))
    simulation.ledger.tasks.request_cancel(first, simulation.clock.now)
    assert simulation.entry(second).status == "paused" and any("which it follows" in text for text in simulation.notices())
