"""Pausing recurring tasks and running them manually."""

from pathlib import Path

import pytest
from scheduler_fixture import DAY, HOUR, ME, SchedulerSimulation

from backburner.core.claims import RunResult
from backburner.core.errors import BadInput
from backburner.core.models import ENGINE
from backburner.core.schedule import Schedule, every
from backburner.core.states import Result, RunState


@pytest.fixture
def simulation(tmp_path: Path) -> SchedulerSimulation:
    return SchedulerSimulation(tmp_path)


def test_a_manual_run_keeps_the_schedule_and_is_refused_during_another_run(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci")
    due = simulation.entry(task).task.recurring.next_run_at
    simulation.ledger.recurring.run_now(task, simulation.clock.now, "tasks")
    with pytest.raises(BadInput, match="already has a run that is pending"):
        simulation.ledger.recurring.run_now(task, simulation.clock.now, "tasks")
    simulation.settle()
    assert simulation.entry(task).task.recurring.next_run_at == due and [row.cause.kind for row in simulation.rows(task)] == ["manual"]


def test_unpausing_does_not_reset_the_daily_budget(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci", budget={"day_runs": 2.0})
    for _ in range(2):
        simulation.tick(HOUR)
        simulation.settle()
        simulation.ledger.recurring.pause(task, "by hand", simulation.clock.now)
        simulation.ledger.recurring.unpause(task, simulation.clock.now, 20)
    simulation.tick(HOUR)
    assert simulation.entry(task).status == "paused"
    with pytest.raises(BadInput, match="has used 2 of 2 runs today"):
        simulation.ledger.recurring.run_now(task, simulation.clock.now, "tasks")


def test_a_retry_is_held_while_its_task_is_paused(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci")
    simulation.tick(HOUR)
    simulation.settle("failed")
    simulation.ledger.recurring.pause(task, "by hand", simulation.clock.now)
    simulation.pass_time(HOUR)
    assert simulation.settle() == []  # it is held
    simulation.ledger.recurring.unpause(task, simulation.clock.now, 20)
    assert len(simulation.settle()) == 1


def test_a_task_paused_during_its_last_run_is_done_afterwards(simulation: SchedulerSimulation) -> None:
    task = simulation.add("once", every(HOUR, simulation.clock.now)._replace(max_runs=1))
    later = simulation.add("later", Schedule(at=simulation.clock.now + HOUR))
    simulation.tick(HOUR)
    works = simulation.ledger.runs.claim(ENGINE, ME, 9, simulation.clock.now)
    for one in (task, later):
        simulation.ledger.recurring.pause(one, "by hand", simulation.clock.now)
    simulation.ledger.runs.settle(
        [RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, simulation.clock.now, 0) for work in works], ME
    )
    assert simulation.entry(task).status == simulation.entry(later).status == "done"


def test_a_one_shot_task_paused_at_its_time_runs_when_unpaused(simulation: SchedulerSimulation) -> None:
    task = simulation.add("later", Schedule(at=simulation.clock.now + HOUR))
    simulation.ledger.recurring.pause(task, "by hand", simulation.clock.now)
    simulation.pass_time(DAY)
    simulation.ledger.recurring.unpause(task, simulation.clock.now, 20)
    simulation.tick()
    assert simulation.settle() and simulation.entry(task).status == "done"


def test_a_manual_run_at_the_last_slot_still_ends_the_task(simulation: SchedulerSimulation) -> None:
    task = simulation.add("last", every(HOUR, simulation.clock.now)._replace(until=simulation.clock.now + HOUR))
    simulation.ledger.recurring.run_now(task, simulation.clock.now, "tasks")
    works = simulation.ledger.runs.claim(ENGINE, ME, 9, simulation.clock.now)
    simulation.tick(HOUR)
    simulation.ledger.runs.settle(
        [RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, simulation.clock.now, 0) for work in works], ME
    )
    assert simulation.entry(task).status == "done"
