"""Slots of recurring tasks: each one runs once or is skipped with a reason, whichever engine processes it."""

from pathlib import Path

import pytest
from scheduler_fixture import DAY, HOUR, ME, MINUTE, SchedulerSimulation

from backburner.core.claims import RunResult
from backburner.core.errors import BadInput
from backburner.core.formatting import run_error
from backburner.core.models import ENGINE
from backburner.core.schedule import ALL, SKIP, Schedule, cron, every
from backburner.core.states import Result, RunState
from backburner.store.run_writer import RunWriter


@pytest.fixture
def simulation(tmp_path: Path) -> SchedulerSimulation:
    return SchedulerSimulation(tmp_path)


def test_a_successful_one_shot_task_runs_only_once(simulation: SchedulerSimulation) -> None:
    task = simulation.add("once", Schedule(at=simulation.clock.now + MINUTE))
    for _ in range(5):
        simulation.tick(MINUTE)
        simulation.settle()
    assert [row.state for row in simulation.rows(task)] == ["completed"] and simulation.entry(task).status == "done"


def test_an_active_run_delays_only_its_own_task(simulation: SchedulerSimulation) -> None:
    slow, other = simulation.add("slow"), simulation.add("other")
    simulation.tick(HOUR)
    simulation.ledger.runs.claim(ENGINE, ME, 1, simulation.clock.now)
    simulation.settle()
    simulation.tick(HOUR)
    simulation.settle()
    assert [row.state for row in simulation.rows(other)] == ["completed", "completed"]
    assert [(row.state, "is still running" in (row.error or "")) for row in simulation.rows(slow)] == [
        ("running", False),
        ("skipped", True),
    ]


def test_a_cron_expression_that_never_matches_is_refused() -> None:
    for never in ("0 0 30 2 *", "0 0 31 4 *"):
        with pytest.raises(BadInput):
            cron(never, "UTC")


def test_a_slot_is_fired_once_by_several_engines(simulation: SchedulerSimulation) -> None:
    tasks = [simulation.add(f"t{number}") for number in range(10)]
    others = [simulation.another_scheduler() for _ in range(4)]
    for _ in range(5):
        simulation.pass_time(HOUR)
        for scheduler in [*others, simulation.scheduler, *others]:
            scheduler.tick()
        simulation.settle()
    assert all([row.state for row in simulation.rows(task)] == ["completed"] * 5 for task in tasks)


def test_a_one_shot_task_is_fired_once_by_several_engines(simulation: SchedulerSimulation) -> None:
    task = simulation.add("once", Schedule(at=simulation.clock.now + HOUR))
    simulation.pass_time(HOUR)
    for scheduler in [simulation.another_scheduler() for _ in range(3)]:
        scheduler.tick()
    simulation.settle()
    assert len(simulation.rows(task)) == 1


def test_slots_that_ran_before_a_restart_are_not_run_again(simulation: SchedulerSimulation) -> None:
    task = simulation.add("daily", Schedule(every_ms=DAY, anchor=simulation.clock.now, missed=ALL))
    for _ in range(3):
        simulation.tick(DAY)
        simulation.settle()
    for _ in range(3):  # restarts
        simulation.another_scheduler().tick()
        assert simulation.settle() == []
    assert [row.state for row in simulation.rows(task)] == ["completed"] * 3


def test_slots_missed_during_suspend_follow_the_policy_of_the_task(simulation: SchedulerSimulation) -> None:
    start = simulation.clock.now
    policies = {
        policy: simulation.add(policy, Schedule(every_ms=DAY, anchor=start, missed=policy, window_ms=2 * DAY))
        for policy in ("run_once", SKIP, ALL)
    }
    simulation.tick(3 * DAY + HOUR)
    for _ in range(3):
        simulation.settle()
        simulation.tick()
    seen = {
        policy: [row.state for row in sorted(simulation.rows(task), key=lambda row: row.cause.slot or 0)]
        for policy, task in policies.items()
    }
    assert seen == {
        "run_once": ["skipped", "skipped", "completed"],
        "skip": ["skipped", "skipped", "skipped"],
        "run_all": ["skipped", "completed", "completed"],
    }


def test_every_missed_slot_leaves_a_row_with_a_reason(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci", every(MINUTE, simulation.clock.now))
    simulation.tick(HOUR)
    skipped = [row for row in simulation.rows(task) if row.state == "skipped"]
    assert len(skipped) == 59 and all(row.error and row.cause.slot for row in skipped)


def test_rows_for_missed_slots_are_limited(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci", every(1000, simulation.clock.now))
    simulation.tick(2 * 365 * DAY)
    rows = simulation.rows(task)
    assert len(rows) == 1000 and rows[0].cause.skipped_before > 60_000_000 and "earlier slots)" in str(run_error(rows[0]))
    assert rows[-1].cause.slot == simulation.clock.now and rows[-1].state == "pending"


def test_many_tasks_that_catch_up_do_not_delay_other_tasks(tmp_path: Path) -> None:
    simulation = SchedulerSimulation(tmp_path, max_active="1000")
    for number in range(510):
        simulation.add(f"a{number:03}", Schedule(every_ms=MINUTE, anchor=simulation.clock.now, missed=ALL))
    last = simulation.add("z", every(MINUTE, simulation.clock.now))
    simulation.tick(MINUTE)
    for work in simulation.ledger.runs.claim(ENGINE, ME, 1000, simulation.clock.now):
        if work.task.task_id == last:
            simulation.ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, simulation.clock.now, 0)], ME)
    for _ in range(3):
        simulation.tick(MINUTE)
        simulation.settle()
    assert len(simulation.rows(last)) == 4


def test_a_slot_and_its_run_are_written_in_one_transaction(simulation: SchedulerSimulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between two transactions would lose the slot or run it twice."""
    task = simulation.add("ci")
    due = simulation.entry(task).task.recurring.next_run_at

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RunWriter, "add", crash)
        simulation.tick(HOUR)
    assert simulation.entry(task).task.recurring.next_run_at == due and simulation.rows(task) == []
    simulation.tick()
    assert [row.cause.slot for row in simulation.rows(task)] == [due]
