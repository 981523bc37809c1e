"""Failed, lost and blocked runs of recurring tasks: retries, pauses and notices."""

from pathlib import Path

import pytest
from scheduler_fixture import DAY, HOUR, ME, SchedulerSimulation

from backburner.core.claims import RunResult
from backburner.core.models import ENGINE, LOCAL_AGENT_LANE
from backburner.core.schedule import Schedule
from backburner.core.states import Result, RunState


@pytest.fixture
def simulation(tmp_path: Path) -> SchedulerSimulation:
    return SchedulerSimulation(tmp_path)


def test_on_change_compares_the_result_and_not_the_agents_wording(simulation: SchedulerSimulation) -> None:
    """The digest of the result is compared; a different wording of the same result is not a change."""
    task = simulation.add("ci", agent="default", prompt="Look.")
    for digest, words in [("passing", "Fine."), ("passing", "All is fine!"), ("failed", "Broken."), ("passing", "Fine again.")]:
        simulation.tick(HOUR)
        simulation.settle(runner=LOCAL_AGENT_LANE, digest=digest, answer=words)
    assert simulation.notices() == ["ci: Fine.", "ci: Broken.", "ci: Fine again."] and simulation.entry(task).status == "active"


def test_a_failed_event_run_is_retried_after_a_delay(simulation: SchedulerSimulation) -> None:
    first = simulation.add("first")
    task = simulation.add("second", Schedule(), after=(first,))
    simulation.tick(HOUR)
    simulation.settle()  # the first completes
    simulation.settle("failed")  # the second, which follows it, fails
    retry = simulation.rows(task)[-1]
    assert (retry.cause.kind, retry.state, retry.due_at) == ("retry", "pending", simulation.clock.now + 30_000)
    simulation.pass_time(30_000)
    simulation.settle("failed")
    assert simulation.entry(task).status == "paused" and len([text for text in simulation.notices() if "second" in text]) == 1


def test_a_pause_after_two_failures_is_a_warning_with_the_failing_lines(simulation: SchedulerSimulation) -> None:
    simulation.add("ci")
    simulation.tick(HOUR)
    simulation.settle("failed")
    simulation.pass_time(30_000)
    simulation.settle("failed", error="Connection error.", output="one\nConnection error.")
    (notice,) = simulation.ledger.notices.notices()
    assert (notice.kind, notice.priority) == ("paused", 1)  # sent also during quiet hours
    assert notice.text.startswith("ci is paused because it failed twice in a row: Connection error. To see its runs: ")
    assert notice.text.endswith("\none\nConnection error.")


def test_a_failed_one_shot_run_is_retried_after_a_delay(simulation: SchedulerSimulation) -> None:
    task = simulation.add("once", Schedule(at=simulation.clock.now + HOUR))
    simulation.tick(HOUR)
    simulation.settle("failed")
    assert simulation.settle("failed") == []  # not before the retry is due
    simulation.pass_time(30_000)
    simulation.settle("failed")
    assert simulation.entry(task).status == "failed" and [row.cause.kind for row in simulation.rows(task)] == ["schedule", "retry"]
    simulation.tick(DAY)
    assert len(simulation.notices()) == 1 and len(simulation.rows(task)) == 2


def test_a_lost_run_counts_as_a_failure_and_does_not_block_the_next_slot(simulation: SchedulerSimulation) -> None:
    """A lost run is reported in a notice and is not retried automatically."""
    task = simulation.add("ci")
    simulation.tick(HOUR)
    (work,) = simulation.ledger.runs.claim(ENGINE, ME, 1, simulation.clock.now)
    simulation.ledger.runs.settle(
        [RunResult(work.run.run_id, RunState.FAILED, Result.LOST, simulation.clock.now, error="its end was not observed")], ME
    )
    assert [row.cause.kind for row in simulation.rows(task)] == ["schedule"] and len(simulation.notices()) == 1
    simulation.tick(HOUR)
    assert simulation.settle(digest="x") and simulation.entry(task).task.recurring.failures == 0


def test_pausing_after_failures_creates_one_notice(simulation: SchedulerSimulation) -> None:
    for notify in ("always", "on_change", "on_failure", "never"):
        simulation.add(notify, notify=notify)
    simulation.tick(HOUR)
    simulation.settle("failed")
    simulation.pass_time(30_000)
    simulation.settle("failed")
    notices = simulation.notices()
    assert sorted(text.split()[0] for text in notices) == ["always", "never", "on_change", "on_failure"]
    assert all("is paused because it failed twice in a row: exit 1" in text for text in notices)


def test_a_run_whose_effect_is_unknown_is_not_retried(simulation: SchedulerSimulation) -> None:
    task = simulation.add("deploy")
    simulation.tick(HOUR)
    simulation.settle("failed", result=Result.AMBIGUOUS)
    assert [row.cause.kind for row in simulation.rows(task)] == ["schedule"] and "may or may not have taken effect" in simulation.notices()[
        0
    ]


def test_a_waiting_run_notifies_the_user_once_and_skips_later_slots(simulation: SchedulerSimulation) -> None:
    """The skipped slots say that the run still waits."""
    task = simulation.add("blocked")
    simulation.tick(HOUR)
    (work,) = simulation.ledger.runs.claim(ENGINE, ME, 1, simulation.clock.now)
    simulation.ledger.runs.suspend(work.run.run_id, ME, "what would run has changed since a person said yes", simulation.clock.now)
    for _ in range(23):
        simulation.tick(HOUR)
    assert simulation.notices() == [
        "blocked needs your approval: what would run has changed since a person said yes. To approve: backburner approve task_blocked; to reject: backburner reject task_blocked"
    ]
    assert all("is still waiting" in str(row.error) for row in simulation.rows(task)[1:])


def test_a_task_paused_after_interrupted_runs_continues_when_unpaused(simulation: SchedulerSimulation) -> None:
    task = simulation.add("ci")
    for _ in range(2):
        simulation.tick(HOUR)
        (work,) = simulation.ledger.runs.claim(ENGINE, ME, 1, simulation.clock.now)
        simulation.ledger.runs.settle([RunResult(work.run.run_id, RunState.FAILED, Result.LOST, simulation.clock.now)], ME)
    assert simulation.entry(task).status == "paused"  # failed twice in a row
    simulation.ledger.recurring.unpause(task, simulation.clock.now, 20)
    simulation.tick(HOUR)
    simulation.settle()
    assert simulation.entry(task).run.state == "completed"  # type: ignore[union-attr]


def test_an_unreadable_schedule_pauses_only_its_own_task(simulation: SchedulerSimulation) -> None:
    bad, good = simulation.add("bad"), simulation.add("good")
    simulation.ledger.database.execute("UPDATE tasks SET schedule = ? WHERE task_id = ?", ('{"every_ms": 1000, "colour": "red"}', bad))
    simulation.tick(HOUR)
    simulation.settle()
    assert simulation.entry(good).run is not None and simulation.entry(bad).status == "paused"
    assert any("its schedule cannot be read" in text for text in simulation.notices())
