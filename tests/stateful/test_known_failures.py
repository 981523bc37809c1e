"""How schedulers of this kind have failed their users, each as a test: nothing of it may happen here."""

import json
import os
from pathlib import Path

import pytest
from scheduler_fixture import DAY, HOUR, ME, MINUTE, Timetable

from backburner.core.claims import RunResult
from backburner.core.errors import BadInput
from backburner.core.formatting import run_error
from backburner.core.models import ENGINE, LOCAL_AGENT_LANE
from backburner.core.schedule import ALL, SKIP, Schedule, cron, every
from backburner.core.states import Result, RunState
from backburner.store.run_writer import RunWriter


@pytest.fixture
def table(tmp_path: Path) -> Timetable:
    return Timetable(tmp_path)


# -- what broke in this very design


def test_on_change_hashes_the_prose_of_a_model(table: Timetable) -> None:
    """It compares what the task found; other words for the same are no change."""
    task = table.add("ci", agent="default", prompt="Look.")
    for digest, words in [("passing", "Fine."), ("passing", "All is fine!"), ("failed", "Broken."), ("passing", "Fine again.")]:
        table.tick(HOUR)
        table.settle(runner=LOCAL_AGENT_LANE, digest=digest, answer=words)
    assert table.notices() == ["ci: Fine.", "ci: Broken.", "ci: Fine again."] and table.entry(task).status == "active"


def test_a_oneshot_that_succeeded_runs_again_every_tick(table: Timetable) -> None:
    task = table.add("once", Schedule(at=table.clock.now + MINUTE))
    for _ in range(5):
        table.tick(MINUTE)
        table.settle()
    assert [row.state for row in table.rows(task)] == ["completed"] and table.entry(task).status == "done"


def test_failures_of_events_get_no_backoff(table: Timetable) -> None:
    first = table.add("first")
    task = table.add("second", Schedule(), after=(first,))
    table.tick(HOUR)
    table.settle()  # the first completes
    table.settle("failed")  # the second, which comes after it, does not
    retry = table.rows(task)[-1]
    assert (retry.cause.kind, retry.state, retry.due_at) == ("retry", "pending", table.clock.now + 30_000)
    table.pass_time(30_000)
    table.settle("failed")
    assert table.entry(task).status == "paused" and len([text for text in table.notices() if "second" in text]) == 1


def test_failures_of_oneshots_get_no_backoff(table: Timetable) -> None:
    task = table.add("once", Schedule(at=table.clock.now + HOUR))
    table.tick(HOUR)
    table.settle("failed")
    assert table.settle("failed") == []  # not before its time
    table.pass_time(30_000)
    table.settle("failed")
    assert table.entry(task).status == "failed" and [row.cause.kind for row in table.rows(task)] == ["schedule", "retry"]
    table.tick(DAY)
    assert len(table.notices()) == 1 and len(table.rows(task)) == 2


def test_tokens_used_is_never_written(table: Timetable) -> None:
    task = table.add("ci", agent="default", prompt="Look.")
    table.tick(HOUR)
    table.settle(runner=LOCAL_AGENT_LANE, usage={"tokens": 1234, "cost": 0.5})
    table.tick(HOUR)
    table.settle("failed", runner=LOCAL_AGENT_LANE, usage={"tokens": 66})
    assert [row.end.usage.get("tokens") for row in table.rows(task) if row.ended_at] == [1234, 66]
    assert table.ledger.recurring.usage(task, 0) == {"tokens": 1300, "cost": 0.5, "seconds": 0, "runs": 3}


def test_runs_left_running_by_a_crash_are_never_reconciled(table: Timetable) -> None:
    """A run that was lost counts as a failure, is told, is not done again by itself, and holds up nothing."""
    task = table.add("ci")
    table.tick(HOUR)
    (work,) = table.ledger.runs.claim(ENGINE, ME, 1, table.clock.now)
    table.ledger.runs.settle(
        [RunResult(work.run.run_id, RunState.FAILED, Result.LOST, table.clock.now, error="its end was not observed")], ME
    )
    assert [row.cause.kind for row in table.rows(task)] == ["schedule"] and len(table.notices()) == 1
    table.tick(HOUR)
    assert table.settle(digest="x") and table.entry(task).task.recurring.failures == 0


def test_pausing_after_failures_sends_two_messages(table: Timetable) -> None:
    for notify in ("always", "on_change", "on_failure", "never"):
        table.add(notify, notify=notify)
    table.tick(HOUR)
    table.settle("failed")
    table.pass_time(30_000)
    table.settle("failed")
    notices = table.notices()
    assert sorted(text.split()[0] for text in notices) == ["always", "never", "on_change", "on_failure"]
    assert all("is paused because it failed twice in a row: exit 1" in text for text in notices)


def test_a_running_task_starves_all_others(table: Timetable) -> None:
    """One that is at work delays only itself."""
    slow, other = table.add("slow"), table.add("other")
    table.tick(HOUR)
    table.ledger.runs.claim(ENGINE, ME, 1, table.clock.now)
    table.settle()
    table.tick(HOUR)
    table.settle()
    assert [row.state for row in table.rows(other)] == ["completed", "completed"]
    assert [(row.state, "is still running" in (row.error or "")) for row in table.rows(slow)] == [("running", False), ("skipped", True)]


def test_a_schedule_without_a_match_returns_a_made_up_date() -> None:
    for never in ("0 0 30 2 *", "0 0 31 4 *"):
        with pytest.raises(BadInput):
            cron(never, "UTC")


# -- what users of other schedulers hit


def test_the_same_job_fires_twice_within_seconds(table: Timetable) -> None:
    """Two engines that both think it is their turn: one of them fires."""
    tasks = [table.add(f"t{number}") for number in range(10)]
    others = [table.another_scheduler() for _ in range(4)]
    for _ in range(5):
        table.pass_time(HOUR)
        for scheduler in [*others, table.scheduler, *others]:
            scheduler.tick()
        table.settle()
    assert all([row.state for row in table.rows(task)] == ["completed"] * 5 for task in tasks)


def test_a_oneshot_runs_twice_because_two_tick(table: Timetable) -> None:
    task = table.add("once", Schedule(at=table.clock.now + HOUR))
    table.pass_time(HOUR)
    for scheduler in [table.another_scheduler() for _ in range(3)]:
        scheduler.tick()
    table.settle()
    assert len(table.rows(task)) == 1


def test_missed_jobs_are_replayed_although_they_ran_before_the_restart(table: Timetable) -> None:
    task = table.add("daily", Schedule(every_ms=DAY, anchor=table.clock.now, missed=ALL))
    for _ in range(3):
        table.tick(DAY)
        table.settle()
    for _ in range(3):  # restarts
        table.another_scheduler().tick()
        assert table.settle() == []
    assert [row.state for row in table.rows(task)] == ["completed"] * 3


def test_updates_duplicate_jobs(table: Timetable) -> None:
    table.add("ci")
    with pytest.raises(BadInput, match="A recurring task 'ci' already exists here: task_ci"):
        table.add("ci")


def test_a_timeout_after_the_side_effect_makes_it_run_again(table: Timetable) -> None:
    task = table.add("deploy")
    table.tick(HOUR)
    table.settle("failed", result=Result.AMBIGUOUS)
    assert [row.cause.kind for row in table.rows(task)] == ["schedule"] and "may or may not have happened" in table.notices()[0]


def test_sleep_skips_three_daily_runs_silently(table: Timetable) -> None:
    start = table.clock.now
    policies = {
        policy: table.add(policy, Schedule(every_ms=DAY, anchor=start, missed=policy, window_ms=2 * DAY))
        for policy in ("run_once", SKIP, ALL)
    }
    table.tick(3 * DAY + HOUR)
    for _ in range(3):
        table.settle()
        table.tick()
    seen = {
        policy: [row.state for row in sorted(table.rows(task), key=lambda row: row.cause.slot or 0)] for policy, task in policies.items()
    }
    assert seen == {
        "run_once": ["skipped", "skipped", "completed"],
        "skip": ["skipped", "skipped", "skipped"],
        "run_all": ["skipped", "completed", "completed"],
    }


def test_a_missed_slot_leaves_no_row(table: Timetable) -> None:
    task = table.add("ci", every(MINUTE, table.clock.now))
    table.tick(HOUR)
    skipped = [row for row in table.rows(task) if row.state == "skipped"]
    assert len(skipped) == 59 and all(row.error and row.cause.slot for row in skipped)


def test_a_machine_that_slept_for_years_fills_the_disk_with_rows(table: Timetable) -> None:
    task = table.add("ci", every(1000, table.clock.now))
    table.tick(2 * 365 * DAY)
    rows = table.rows(task)
    assert len(rows) == 1000 and rows[0].cause.skipped_before > 60_000_000 and "slots before it" in str(run_error(rows[0]))
    assert rows[-1].cause.slot == table.clock.now and rows[-1].state == "pending"


def test_a_blocked_job_fails_silently_twenty_three_times(table: Timetable) -> None:
    """A run that waits for a person says so; the slots that pass meanwhile say why they were skipped."""
    task = table.add("blocked")
    table.tick(HOUR)
    (work,) = table.ledger.runs.claim(ENGINE, ME, 1, table.clock.now)
    table.ledger.runs.suspend(work.run.run_id, ME, "what would run has changed since a person said yes", table.clock.now)
    for _ in range(23):
        table.tick(HOUR)
    assert table.notices() == [
        "blocked waits for you: what would run has changed since a person said yes. Yes: backburner approve task_blocked; no: backburner reject task_blocked"
    ]
    assert all("is still waiting" in str(row.error) for row in table.rows(task)[1:])


def test_a_forgotten_loop_runs_for_three_days(table: Timetable) -> None:
    counted = table.add("counted", every(HOUR, table.clock.now)._replace(max_runs=30))
    timed = table.add("timed", every(HOUR, table.clock.now)._replace(until=table.clock.now + 10 * HOUR))
    for _ in range(72):
        table.tick(HOUR)
        table.settle()
    assert len(table.rows(counted)) == 30 and len(table.rows(timed)) == 10
    assert table.entry(counted).status == table.entry(timed).status == "done"


def test_an_interrupted_run_wedges_the_job(table: Timetable) -> None:
    task = table.add("ci")
    for _ in range(2):
        table.tick(HOUR)
        (work,) = table.ledger.runs.claim(ENGINE, ME, 1, table.clock.now)
        table.ledger.runs.settle([RunResult(work.run.run_id, RunState.FAILED, Result.LOST, table.clock.now)], ME)
    assert table.entry(task).status == "paused"  # twice in a row: a person is asked
    table.ledger.recurring.unpause(task, table.clock.now, 20)
    table.tick(HOUR)
    table.settle()
    assert table.entry(task).run.state == "completed"  # type: ignore[union-attr]


def test_no_budget_for_schedules(table: Timetable) -> None:
    task = table.add("ci", agent="default", prompt="Look.", budget={"day_tokens": 1000.0})
    for _ in range(5):
        table.tick(HOUR)
        table.settle(runner=LOCAL_AGENT_LANE, usage={"tokens": 400}, digest="same")
    assert (
        table.entry(task).status == "paused"
        and table.entry(task).task.recurring.paused_because == "it has used 1,200 of 1,000 tokens today"
    )
    assert [row.state for row in table.rows(task)] == ["completed"] * 3 + ["skipped"]
    table.ledger.recurring.unpause(task, table.clock.now, 20)  # as much again
    for _ in range(5):
        table.tick(HOUR)
        table.settle(runner=LOCAL_AGENT_LANE, usage={"tokens": 400}, digest="same")
    assert sum(row.state == "completed" for row in table.rows(task)) == 6 and len(table.notices()) == 3


def test_a_day_of_its_own_zone_begins_the_budget_anew(table: Timetable) -> None:
    task = table.add("ci", every(HOUR, table.clock.now)._replace(zone="Asia/Tokyo"), budget={"day_runs": 3.0})
    for _ in range(60):
        table.tick(HOUR)
        table.settle()
        if table.entry(task).status == "paused":
            break
    runs = [row for row in table.rows(task) if row.n > 0]
    assert len(runs) == 3 and table.entry(task).status == "paused"
    table.ledger.recurring.unpause(task, table.clock.now, 20)
    assert table.ledger.recurring.usage(task, table.entry(task).task.recurring.counted_from or 0)["runs"] == 0


def test_idle_sessions_burn_tokens_all_day(tmp_path: Path) -> None:
    """A limit for all standing tasks together."""
    table = Timetable(tmp_path, max_tokens_per_day="1000")
    tasks = [table.add(f"t{number}", agent="default", prompt="Look.") for number in range(3)]
    for _ in range(4):
        table.tick(HOUR)
        table.settle(runner=LOCAL_AGENT_LANE, usage={"tokens": 250}, digest="same")
    assert {table.entry(task).status for task in tasks} == {"paused"}
    assert sum(row.end.usage.get("tokens", 0) for task in tasks for row in table.rows(task)) == 1500


def test_runs_out_of_turn_bypass_the_interval(table: Timetable) -> None:
    """They leave the schedule as it is, and none is begun while one is under way."""
    task = table.add("ci")
    due = table.entry(task).task.recurring.next_run_at
    table.ledger.recurring.run_now(task, table.clock.now, "tasks")
    with pytest.raises(BadInput, match="already has a run that is pending"):
        table.ledger.recurring.run_now(task, table.clock.now, "tasks")
    table.settle()
    assert table.entry(task).task.recurring.next_run_at == due and [row.cause.kind for row in table.rows(task)] == ["manual"]


def test_the_clock_is_set_back_and_nothing_runs_for_a_year(table: Timetable) -> None:
    """What was skipped lies in the future after all, and runs when it comes; what has run does not run again."""
    hourly = table.add("hourly")
    table.tick(365 * DAY)
    table.settle()
    ahead = table.entry(hourly).run
    assert ahead is not None and ahead.cause.slot == table.clock.now
    table.tick(-365 * DAY + 5 * MINUTE)
    assert [row.state for row in table.rows(hourly)] == ["completed"]
    for _ in range(5):
        table.tick(HOUR)
        table.settle()
    assert len([row for row in table.rows(hourly) if row.state == "completed"]) == 6


def test_the_clock_is_set_back_by_an_hour_and_the_hour_runs_twice(table: Timetable) -> None:
    task = table.add("ci", every(10 * MINUTE, table.clock.now))
    for _ in range(12):
        table.tick(10 * MINUTE)
        table.settle()
    table.tick(-HOUR)
    for _ in range(12):
        table.tick(10 * MINUTE)
        table.settle()
    slots = [row.cause.slot for row in table.rows(task)]
    assert len(slots) == len(set(slots)) == 18


def test_a_slot_that_ran_before_the_clock_was_set_back_stops_all_others(table: Timetable) -> None:
    """It is passed over; nothing else waits for it, in whatever order the slots were dealt with."""
    task, other = table.add("ci", every(MINUTE, table.clock.now)), table.add("other", every(MINUTE, table.clock.now))
    start = table.clock.now
    table.tick(MINUTE)
    works = table.ledger.runs.claim(ENGINE, ME, 10, table.clock.now)
    table.tick(MINUTE)  # skipped: the run before is at work
    table.ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, table.clock.now, 0) for work in works], ME)
    table.tick(MINUTE)
    table.settle()
    table.clock.now = start + MINUTE + 5000
    for _ in range(4):
        table.tick()
        table.settle()
        table.pass_time(MINUTE)
    for one in (task, other):
        slots = sorted((row.cause.slot - start) // MINUTE for row in table.rows(one) if row.cause.slot)
        assert slots == [1, 2, 3, 4] and {row.state for row in table.rows(one)} == {"completed"}


def test_a_task_unpaused_after_the_clock_was_set_back_is_stuck(table: Timetable) -> None:
    task = table.add("ci")
    for _ in range(3):
        table.tick(HOUR)
        table.settle()
    table.ledger.recurring.pause(task, "by hand", table.clock.now)
    table.pass_time(-2 * HOUR - MINUTE)
    table.ledger.recurring.unpause(task, table.clock.now, 20)
    for _ in range(5):
        table.tick(HOUR)
        table.settle()
    assert [row.state for row in table.rows(task)] == ["completed"] * 5


def test_many_that_wait_their_turn_starve_the_rest(tmp_path: Path) -> None:
    table = Timetable(tmp_path, max_active="1000")
    for number in range(510):
        table.add(f"a{number:03}", Schedule(every_ms=MINUTE, anchor=table.clock.now, missed=ALL))
    last = table.add("z", every(MINUTE, table.clock.now))
    table.tick(MINUTE)
    for work in table.ledger.runs.claim(ENGINE, ME, 1000, table.clock.now):
        if work.task.task_id == last:
            table.ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, table.clock.now, 0)], ME)
    for _ in range(3):
        table.tick(MINUTE)
        table.settle()
    assert len(table.rows(last)) == 4


def test_the_slot_is_claimed_in_another_transaction_than_the_run(table: Timetable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the two would lose the slot or run it twice; there is no between."""
    task = table.add("ci")
    due = table.entry(task).task.recurring.next_run_at

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(RunWriter, "add", crash)
        table.tick(HOUR)
    assert table.entry(task).task.recurring.next_run_at == due and table.rows(task) == []
    table.tick()
    assert [row.cause.slot for row in table.rows(task)] == [due]


def test_more_active_tasks_than_are_allowed(tmp_path: Path) -> None:
    table = Timetable(tmp_path, max_active="2")
    first, _ = table.add("a"), table.add("b")
    with pytest.raises(BadInput, match="There are already 2 active recurring tasks"):
        table.add("c")
    table.add("later", Schedule(at=table.clock.now + HOUR))  # a one-shot does not count
    table.ledger.recurring.pause(first, "by hand", table.clock.now)
    table.add("c")
    with pytest.raises(BadInput, match="There are already 2 active"):
        table.ledger.recurring.unpause(first, table.clock.now, 2)
    assert table.entry(first).status == "paused"


def test_old_runs_are_kept_for_ever(table: Timetable) -> None:
    task = table.add("ci")
    for _ in range(30 * 24):
        table.tick(HOUR)
        table.settle()
    gone = table.ledger.recurring.compact(table.clock.now - 7 * DAY, table.clock.now)
    rows = table.rows(task)
    assert len(gone) + len(rows) == 30 * 24 and len(rows) == 7 * 24 + 1
    assert all(os.path.basename(folder).startswith("task_ci") for folder in gone)
    assert table.ledger.recurring.compact(table.clock.now + DAY, table.clock.now) and len(table.rows(task)) == 1  # the latest stays
    assert json.dumps(table.entry(task).status) == '"active"'


# -- what was found by trying to break it


def test_one_task_that_cannot_be_read_stops_all_the_others(table: Timetable) -> None:
    bad, good = table.add("bad"), table.add("good")
    table.ledger.database.execute("UPDATE tasks SET schedule = ? WHERE task_id = ?", ('{"every_ms": 1000, "colour": "red"}', bad))
    table.tick(HOUR)
    table.settle()
    assert table.entry(good).run is not None and table.entry(bad).status == "paused"
    assert any("its schedule cannot be read" in text for text in table.notices())


def test_pausing_and_going_on_forgets_what_was_used(table: Timetable) -> None:
    task = table.add("ci", budget={"day_runs": 2.0})
    for _ in range(2):
        table.tick(HOUR)
        table.settle()
        table.ledger.recurring.pause(task, "by hand", table.clock.now)
        table.ledger.recurring.unpause(task, table.clock.now, 20)
    table.tick(HOUR)
    assert table.entry(task).status == "paused"
    with pytest.raises(BadInput, match="has used 2 of 2 runs today"):
        table.ledger.recurring.run_now(task, table.clock.now, "tasks")


def test_a_task_that_comes_after_another_has_no_limits(table: Timetable) -> None:
    first = table.add("first")
    counted = table.add("counted", Schedule(), after=(first,), budget={"day_runs": 1.0})
    timed = table.add("timed", Schedule(until=table.clock.now + HOUR + MINUTE), after=(first,))
    for _ in range(3):
        table.tick(HOUR)
        table.settle()
        table.settle()
    assert sum(row.n > 0 for row in table.rows(counted)) == 1 and table.entry(counted).status == "paused"
    assert sum(row.n > 0 for row in table.rows(timed)) == 1 and table.entry(timed).status == "done"


def test_a_retry_waits_for_a_time_that_the_clock_was_set_back_from(table: Timetable) -> None:
    task = table.add("ci")
    table.tick(HOUR)
    table.settle("failed")
    table.tick(-30 * DAY)
    table.pass_time(MINUTE)
    assert [run.task_id for run in table.settle()] == [task]


def test_what_is_paused_is_tried_again(table: Timetable) -> None:
    task = table.add("ci")
    table.tick(HOUR)
    table.settle("failed")
    table.ledger.recurring.pause(task, "by hand", table.clock.now)
    table.pass_time(HOUR)
    assert table.settle() == []  # it is held
    table.ledger.recurring.unpause(task, table.clock.now, 20)
    assert len(table.settle()) == 1


def test_pausing_during_the_last_run_gives_one_more(table: Timetable) -> None:
    task = table.add("once", every(HOUR, table.clock.now)._replace(max_runs=1))
    later = table.add("later", Schedule(at=table.clock.now + HOUR))
    table.tick(HOUR)
    works = table.ledger.runs.claim(ENGINE, ME, 9, table.clock.now)
    for one in (task, later):
        table.ledger.recurring.pause(one, "by hand", table.clock.now)
    table.ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, table.clock.now, 0) for work in works], ME)
    assert table.entry(task).status == table.entry(later).status == "done"


def test_a_oneshot_that_was_paused_over_its_time_is_lost(table: Timetable) -> None:
    task = table.add("later", Schedule(at=table.clock.now + HOUR))
    table.ledger.recurring.pause(task, "by hand", table.clock.now)
    table.pass_time(DAY)
    table.ledger.recurring.unpause(task, table.clock.now, 20)
    table.tick()
    assert table.settle() and table.entry(task).status == "done"


def test_a_run_out_of_turn_at_the_last_slot_leaves_a_task_for_ever(table: Timetable) -> None:
    task = table.add("last", every(HOUR, table.clock.now)._replace(until=table.clock.now + HOUR))
    table.ledger.recurring.run_now(task, table.clock.now, "tasks")
    works = table.ledger.runs.claim(ENGINE, ME, 9, table.clock.now)
    table.tick(HOUR)
    table.ledger.runs.settle([RunResult(work.run.run_id, RunState.COMPLETED, Result.EXIT, table.clock.now, 0) for work in works], ME)
    assert table.entry(task).status == "done"


def test_what_comes_after_a_cancelled_task_waits_for_ever(table: Timetable) -> None:
    first = table.add("first")
    second = table.add("second", Schedule(), after=(first,))
    table.ledger.tasks.request_cancel(first, table.clock.now)
    assert table.entry(second).status == "paused" and any("which it follows" in text for text in table.notices())
