"""Limits of recurring tasks: budgets, number of runs, number of active tasks, and how long runs are kept."""

import json
import os
from pathlib import Path

import pytest
from scheduler_fixture import DAY, HOUR, SchedulerSimulation

from backburner.core.errors import BadInput
from backburner.core.models import LOCAL_AGENT_LANE
from backburner.core.schedule import Schedule, every


@pytest.fixture
def simulation(tmp_path: Path) -> SchedulerSimulation:
    return SchedulerSimulation(tmp_path)


def test_the_usage_of_every_run_is_recorded(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci", agent="default", prompt="Look.")
    simulation.tick(HOUR)
    simulation.settle(runner=LOCAL_AGENT_LANE, usage={"tokens": 1234, "cost": 0.5})
    simulation.tick(HOUR)
    simulation.settle("failed", runner=LOCAL_AGENT_LANE, usage={"tokens": 66})
    assert [row.end.usage.get("tokens") for row in simulation.rows(task) if row.ended_at] == [1234, 66]
    assert simulation.ledger.recurring.usage(task, 0) == {"tokens": 1300, "cost": 0.5, "seconds": 0, "runs": 3}


def test_a_second_recurring_task_of_the_same_name_is_refused(simulation: SchedulerSimulation) -> None:
    simulation.add("ci")
    with pytest.raises(BadInput, match="A recurring task 'ci' already exists here: task_ci"):
        simulation.add("ci")


def test_a_task_ends_at_its_maximum_of_runs_or_its_end_time(simulation: SchedulerSimulation) -> None:
    counted = simulation.add("counted", every(HOUR, simulation.clock.now)._replace(max_runs=30))
    timed = simulation.add("timed", every(HOUR, simulation.clock.now)._replace(until=simulation.clock.now + 10 * HOUR))
    for _ in range(72):
        simulation.tick(HOUR)
        simulation.settle()
    assert len(simulation.rows(counted)) == 30 and len(simulation.rows(timed)) == 10
    assert simulation.entry(counted).status == simulation.entry(timed).status == "done"


def test_a_task_over_its_daily_budget_is_paused_until_unpaused(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci", agent="default", prompt="Look.", budget={"day_tokens": 1000.0})
    for _ in range(5):
        simulation.tick(HOUR)
        simulation.settle(runner=LOCAL_AGENT_LANE, usage={"tokens": 400}, digest="same")
    assert (
        simulation.entry(task).status == "paused"
        and simulation.entry(task).task.recurring.paused_because == "it has used 1,200 of 1,000 tokens today"
    )
    assert [row.state for row in simulation.rows(task)] == ["completed"] * 3 + ["skipped"]
    simulation.ledger.recurring.unpause(task, simulation.clock.now, 20)  # allows the same amount again
    for _ in range(5):
        simulation.tick(HOUR)
        simulation.settle(runner=LOCAL_AGENT_LANE, usage={"tokens": 400}, digest="same")
    assert sum(row.state == "completed" for row in simulation.rows(task)) == 6 and len(simulation.notices()) == 3


def test_the_daily_budget_uses_the_time_zone_of_the_task(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci", every(HOUR, simulation.clock.now)._replace(zone="Asia/Tokyo"), budget={"day_runs": 3.0})
    for _ in range(60):
        simulation.tick(HOUR)
        simulation.settle()
        if simulation.entry(task).status == "paused":
            break
    runs = [row for row in simulation.rows(task) if row.n > 0]
    assert len(runs) == 3 and simulation.entry(task).status == "paused"
    simulation.ledger.recurring.unpause(task, simulation.clock.now, 20)
    assert simulation.ledger.recurring.usage(task, simulation.entry(task).task.recurring.counted_from or 0)["runs"] == 0


def test_a_daily_token_limit_applies_to_all_recurring_tasks_together(tmp_path: Path) -> None:
    simulation = SchedulerSimulation(tmp_path, max_tokens_per_day="1000")
    tasks = [simulation.add(f"t{number}", agent="default", prompt="Look.") for number in range(3)]
    for _ in range(4):
        simulation.tick(HOUR)
        simulation.settle(runner=LOCAL_AGENT_LANE, usage={"tokens": 250}, digest="same")
    assert {simulation.entry(task).status for task in tasks} == {"paused"}
    assert sum(row.end.usage.get("tokens", 0) for task in tasks for row in simulation.rows(task)) == 1500


def test_the_number_of_active_recurring_tasks_is_limited(tmp_path: Path) -> None:
    simulation = SchedulerSimulation(tmp_path, max_active="2")
    first, _ = simulation.add("a"), simulation.add("b")
    with pytest.raises(BadInput, match="There are already 2 active recurring tasks"):
        simulation.add("c")
    simulation.add("later", Schedule(at=simulation.clock.now + HOUR))  # a one-shot does not count
    simulation.ledger.recurring.pause(first, "by hand", simulation.clock.now)
    simulation.add("c")
    with pytest.raises(BadInput, match="There are already 2 active"):
        simulation.ledger.recurring.unpause(first, simulation.clock.now, 2)
    assert simulation.entry(first).status == "paused"


def test_old_runs_are_compacted_except_the_latest(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci")
    for _ in range(30 * 24):
        simulation.tick(HOUR)
        simulation.settle()
    gone = simulation.ledger.recurring.compact(simulation.clock.now - 7 * DAY, simulation.clock.now)
    rows = simulation.rows(task)
    assert len(gone) + len(rows) == 30 * 24 and len(rows) == 7 * 24 + 1
    assert all(os.path.basename(folder).startswith("task_ci") for folder in gone)
    assert (
        simulation.ledger.recurring.compact(simulation.clock.now + DAY, simulation.clock.now) and len(simulation.rows(task)) == 1
    )  # the latest stays
    assert json.dumps(simulation.entry(task).status) == '"active"'
