"""A clock that is set back: slots that ran do not run again, and nothing waits for the old time."""

from pathlib import Path

import pytest
from scheduler_fixture import DAY, HOUR, ME, MINUTE, SchedulerSimulation

from backburner.core.claims import RunResult
from backburner.core.models import ENGINE
from backburner.core.schedule import every
from backburner.core.states import Result, RunState


@pytest.fixture
def simulation(tmp_path: Path) -> SchedulerSimulation:
    return SchedulerSimulation(tmp_path)


def test_skipped_slots_that_are_in_the_future_again_run_when_due(simulation: SchedulerSimulation) -> None:
    """Slots that have run do not run again."""
    hourly = simulation.add("hourly")
    simulation.tick(365 * DAY)
    simulation.settle()
    ahead = simulation.entry(hourly).run
    assert ahead is not None and ahead.cause.slot == simulation.clock.now
    simulation.tick(-365 * DAY + 5 * MINUTE)
    assert [row.state for row in simulation.rows(hourly)] == ["completed"]
    for _ in range(5):
        simulation.tick(HOUR)
        simulation.settle()
    assert len([row for row in simulation.rows(hourly) if row.state == "completed"]) == 6


def test_no_slot_runs_twice_after_the_clock_is_set_back(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci", every(10 * MINUTE, simulation.clock.now))
    for _ in range(12):
        simulation.tick(10 * MINUTE)
        simulation.settle()
    simulation.tick(-HOUR)
    for _ in range(12):
        simulation.tick(10 * MINUTE)
        simulation.settle()
    slots = [row.cause.slot for row in simulation.rows(task)]
    assert len(slots) == len(set(slots)) == 18


def test_a_slot_that_already_ran_does_not_block_later_slots(simulation: SchedulerSimulation) -> None:
    """Whatever the order in which the slots were processed."""
    task, other = simulation.add("ci", every(MINUTE, simulation.clock.now)), simulation.add("other", every(MINUTE, simulation.clock.now))
    start = simulation.clock.now
    simulation.tick(MINUTE)
    works = simulation.ledger.runs.claim(ENGINE, ME, 10, simulation.clock.now)
    simulation.tick(MINUTE)  # skipped: the previous run is active
    simulation.ledger.runs.settle(
        [RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, simulation.clock.now, 0) for work in works], ME
    )
    simulation.tick(MINUTE)
    simulation.settle()
    simulation.clock.now = start + MINUTE + 5000
    for _ in range(4):
        simulation.tick()
        simulation.settle()
        simulation.pass_time(MINUTE)
    for one in (task, other):
        slots = sorted((row.cause.slot - start) // MINUTE for row in simulation.rows(one) if row.cause.slot)
        assert slots == [1, 2, 3, 4] and {row.state for row in simulation.rows(one)} == {"completed"}


def test_a_task_unpaused_after_the_clock_is_set_back_continues(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci")
    for _ in range(3):
        simulation.tick(HOUR)
        simulation.settle()
    simulation.ledger.recurring.pause(task, "by hand", simulation.clock.now)
    simulation.pass_time(-2 * HOUR - MINUTE)
    simulation.ledger.recurring.unpause(task, simulation.clock.now, 20)
    for _ in range(5):
        simulation.tick(HOUR)
        simulation.settle()
    assert [row.state for row in simulation.rows(task)] == ["completed"] * 5


def test_a_retry_keeps_its_delay_after_the_clock_is_set_back(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci")
    simulation.tick(HOUR)
    simulation.settle("failed")
    simulation.tick(-30 * DAY)
    simulation.pass_time(MINUTE)
    assert [run.task_id for run in simulation.settle()] == [task]
