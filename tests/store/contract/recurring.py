"""Recurring tasks: slots, pause and unpause, manual runs, budgets and history."""

from typing import Any

import pytest

from backburner.core.errors import BadInput, IllegalTransition, StaleTask, TaskNotFound
from backburner.core.models import ENGINE, Entry
from backburner.core.schedule import Plan, Schedule, every, plan
from backburner.core.states import NoticeKind, PauseKind, Result, RunState, TaskState
from backburner.store.ledger import Ledger
from contract.cases import (
    DAY,
    HOUR,
    NOW,
    OURS,
    Open,
    claimed,
    done,
    ended,
    entry_of_task,
    failed,
    kinds,
    latest,
    ledger_content,
    plan_at,
    propose,
    queue,
    recurring,
    run_once,
    submit,
)


def fire(ledger: Ledger, now: int, over: str | None = None) -> int:
    return ledger.recurring.fire(lambda entry: (plan_at(now)(entry)[0], over), now, "tasks")


def slots(ledger: Ledger, task_id: str = "task_r") -> list[tuple[int | None, str]]:
    return sorted((run.cause.slot, str(run.state)) for run in ledger.queries.history(task_id, 99))


class RecurringContract:
    # -- slots

    def test_the_next_slot_is_the_earliest_of_all_tasks(self, ledger: Ledger) -> None:
        assert ledger.live_work.next_slot_at() is None and ledger.recurring.list() == []
        recurring(ledger, "task_a")
        recurring(ledger, "task_b", every(HOUR // 2, NOW))
        recurring(ledger, "task_c", Schedule(), after=("task_a",))
        assert (ledger.live_work.next_slot_at(), ledger.live_work.next_slot_at(NOW + HOUR // 2)) == (NOW + HOUR // 2, NOW + HOUR)
        assert ledger.live_work.next_slot_at(NOW + HOUR) is None
        assert [entry.task.task_id for entry in ledger.recurring.list()] == ["task_a", "task_b"]

    def test_a_due_slot_becomes_a_run_and_the_next_slot_is_planned(self, ledger: Ledger, open_ledger: Open) -> None:
        recurring(ledger)
        assert fire(ledger, NOW + HOUR - 1) == 0
        assert fire(ledger, NOW + HOUR) == 1
        task, run = entry_of_task(open_ledger(), "task_r")
        assert run and (run.n, run.cause.slot, run.cause.kind, run.state, run.runner) == (
            1,
            NOW + HOUR,
            "schedule",
            RunState.PENDING,
            queue(ledger),
        )
        assert (task.recurring.next_run_at, task.recurring.fired, task.run_count) == (NOW + 2 * HOUR, 1, 1)
        assert fire(open_ledger(), NOW + HOUR) == 0

    def test_missed_slots_leave_a_row_with_the_reason(self, ledger: Ledger) -> None:
        recurring(ledger)
        fire(ledger, NOW + 3 * HOUR)
        assert slots(ledger) == [(NOW + HOUR, "skipped"), (NOW + 2 * HOUR, "skipped"), (NOW + 3 * HOUR, "pending")]
        (event,) = [event for event in ledger.events.events(0) if event.kind == "run_skipped"]
        assert (event.data["slots"], event.data["first"], event.data["last"]) == (2, NOW + HOUR, NOW + 2 * HOUR)

    def test_has_run_tells_whether_a_slot_was_run(self, ledger: Ledger) -> None:
        recurring(ledger)
        fire(ledger, NOW + 2 * HOUR)
        run_ends(ledger, NOW + 2 * HOUR)
        assert [ledger.recurring.has_run("task_r", NOW + hours * HOUR) for hours in (1, 2, 3)] == [False, True, False]

    def test_a_task_without_further_slots_is_done_after_its_last_run(self, ledger: Ledger) -> None:
        recurring(ledger, schedule=every(HOUR, NOW)._replace(max_runs=1))
        fire(ledger, NOW + HOUR)
        assert entry_of_task(ledger, "task_r").task.recurring.next_run_at is None
        run_ends(ledger, NOW + HOUR)
        assert entry_of_task(ledger, "task_r").task.state == TaskState.DONE

    def test_a_task_whose_schedule_has_ended_is_done_without_a_run(self, ledger: Ledger) -> None:
        recurring(ledger, schedule=every(HOUR, NOW)._replace(until=NOW + HOUR, missed="skip"))
        fire(ledger, NOW + 9 * HOUR)
        assert entry_of_task(ledger, "task_r").task.state == TaskState.DONE and slots(ledger) == [(NOW + HOUR, "skipped")]

    def test_a_task_with_an_unreadable_schedule_is_paused_alone(self, ledger: Ledger) -> None:
        recurring(ledger, "task_bad")
        recurring(ledger, "task_good")

        def decide(entry: Entry) -> tuple[Plan, str | None]:
            if entry.task.task_id == "task_bad":
                raise ValueError("what is this?")
            return plan_at(NOW + HOUR)(entry)

        assert ledger.recurring.fire(decide, NOW + HOUR, "tasks") == 1
        bad = entry_of_task(ledger, "task_bad").task
        assert (bad.state, bad.recurring.paused_because) == (TaskState.PAUSED, "its schedule cannot be read: what is this?")
        assert [notice.kind for notice in ledger.notices.notices()] == [NoticeKind.PAUSED] and claimed(ledger, now=NOW + HOUR) == [
            "task_good"
        ]

    def test_very_many_due_tasks_are_all_fired(self, ledger: Ledger) -> None:
        for number in range(510):
            recurring(ledger, f"task_{number}", max_active=999)
        assert fire(ledger, NOW + HOUR) == 510 and len(ledger.runs.queued(ENGINE, NOW + HOUR, 999)) == 510

    def test_a_task_over_budget_is_paused_instead_of_run(self, ledger: Ledger) -> None:
        recurring(ledger)
        assert fire(ledger, NOW + HOUR, over="it has used 3 of 3 runs today") == 1
        task = entry_of_task(ledger, "task_r").task
        assert (task.state, task.recurring.pause_kind, task.recurring.fired) == (TaskState.PAUSED, PauseKind.BUDGET, 0)
        assert slots(ledger) == [(NOW + HOUR, "skipped")] and "it has used 3 of 3 runs today" in ledger.notices.notices()[0].text

    # -- clock changes

    def test_slots_skipped_in_the_future_are_due_again_after_a_clock_change(self, ledger: Ledger) -> None:
        recurring(ledger)
        fire(ledger, NOW + 4 * HOUR)
        run_ends(ledger, NOW + 4 * HOUR)
        ledger.recurring.replan("task_r", NOW + 2 * HOUR, NOW + HOUR + 1)
        assert entry_of_task(ledger, "task_r").task.recurring.next_run_at == NOW + 2 * HOUR
        assert slots(ledger) == [(NOW + HOUR, "skipped"), (NOW + 4 * HOUR, "completed")] and kinds(ledger)[-1] == "task_replanned"
        fire(ledger, NOW + 2 * HOUR)
        run_ends(ledger, NOW + 2 * HOUR)
        fire(ledger, NOW + 4 * HOUR)
        assert (
            ledger.recurring.has_run("task_r", NOW + 2 * HOUR)
            and entry_of_task(ledger, "task_r").task.recurring.next_run_at == NOW + 5 * HOUR
        )
        assert slots(ledger)[2:] == [(NOW + 3 * HOUR, "skipped"), (NOW + 4 * HOUR, "completed")]  # no slot runs twice

    @pytest.mark.parametrize("due", [NOW + HOUR, NOW + 2 * HOUR])
    def test_replan_never_moves_a_slot_later(self, ledger: Ledger, due: int) -> None:
        recurring(ledger)
        unchanged = ledger_content(ledger)
        ledger.recurring.replan("task_r", due, NOW)
        assert ledger_content(ledger) == unchanged
        with pytest.raises(TaskNotFound):
            ledger.recurring.replan("task_missing", NOW, NOW)

    def test_a_retry_keeps_its_delay_after_a_clock_change(self, ledger: Ledger) -> None:
        recurring(ledger)
        ledger.recurring.run_now("task_r", NOW + DAY, "tasks")
        (run_id,) = claimed(ledger, now=NOW + DAY)
        ledger.runs.settle([failed(run_id, ended_at=NOW + DAY)], OURS)
        retry = latest(ledger, "task_r")
        assert (retry.cause.kind, retry.due_at) == ("retry", NOW + DAY + 30_000)
        ledger.recurring.clock_set_back(NOW + 5)
        assert (latest(ledger, "task_r").due_at, latest(ledger, "task_r").created_at) == (NOW + 5 + 30_000, NOW + 5)
        ledger.recurring.clock_set_back(NOW + 9)
        assert latest(ledger, "task_r").due_at == NOW + 5 + 30_000

    # -- pausing

    def test_an_edit_keeps_what_the_task_has_done_in_the_meantime(self, ledger: Ledger) -> None:
        recurring(ledger)
        before = entry_of_task(ledger, "task_r").task
        fire(ledger, NOW + HOUR)
        assert before.spec.recurrence
        spec = before.spec._replace(recurrence=before.spec.recurrence._replace(notify="always"), description="New")
        task, run = ledger.recurring.edit(before, before._replace(spec=spec), ["notify"], NOW + HOUR, 9)
        assert run and (task.spec.notify, task.spec.description, task.run_count, task.recurring.fired) == ("always", "New", 1, 1)
        assert task.recurring.next_run_at == NOW + 2 * HOUR and kinds(ledger)[-1] == "task_edited"
        with pytest.raises(StaleTask):
            ledger.recurring.edit(before, before._replace(spec=spec), ["notify"], NOW + HOUR, 9)

    def test_an_edited_schedule_counts_from_now_on_and_not_while_paused(self, ledger: Ledger) -> None:
        recurring(ledger)
        before = entry_of_task(ledger, "task_r").task
        assert before.spec.recurrence
        spec = before.spec._replace(recurrence=before.spec.recurrence._replace(schedule=every(DAY, NOW + 5)))
        task = ledger.recurring.edit(before, before._replace(spec=spec), ["schedule"], NOW + 5, 9).task
        assert task.recurring.next_run_at == NOW + 5 + DAY and fire(ledger, NOW + HOUR) == 0
        paused = ledger.recurring.pause("task_r", "by hand", NOW + 6).task
        task = ledger.recurring.edit(paused, paused._replace(spec=before.spec), ["schedule"], NOW + 7, 9).task
        assert (task.state, task.recurring.next_run_at) == (TaskState.PAUSED, None)
        assert ledger.recurring.unpause("task_r", NOW + 8, 9).task.recurring.next_run_at == NOW + HOUR

    def test_a_paused_task_is_not_due_and_holds_pending_runs(self, ledger: Ledger) -> None:
        recurring(ledger)
        fire(ledger, NOW + HOUR)
        task, run = ledger.recurring.pause("task_r", "by hand", NOW + HOUR)
        assert run and (task.state, task.recurring.paused_because, task.recurring.pause_kind) == (
            TaskState.PAUSED,
            "by hand",
            PauseKind.OTHER,
        )
        assert (task.recurring.next_run_at, run.blocked, ledger.live_work.next_slot_at()) == (None, True, None) and claimed(
            ledger, now=NOW + DAY
        ) == []
        assert ledger.notices.notices() == []
        task, run = ledger.recurring.unpause("task_r", NOW + 3 * HOUR, 9)
        assert run and (task.state, task.recurring.paused_because, task.recurring.next_run_at, run.blocked) == (
            TaskState.ACTIVE,
            None,
            NOW + 4 * HOUR,
            False,
        )
        assert kinds(ledger)[-1] == "task_unpaused"

    def test_pause_and_unpause_are_refused_in_other_states(self, ledger: Ledger) -> None:
        submit(ledger)
        recurring(ledger, "task_a")
        recurring(ledger, "task_b")
        ledger.recurring.pause("task_b", "by hand", NOW)
        unchanged = ledger_content(ledger)
        for task_id, error in (("task_x", BadInput), ("task_missing", TaskNotFound)):
            with pytest.raises(error):
                ledger.recurring.pause(task_id, "by hand", NOW)
            with pytest.raises(error):
                ledger.recurring.unpause(task_id, NOW, 9)
        with pytest.raises(IllegalTransition):
            ledger.recurring.pause("task_b", "again", NOW)
        with pytest.raises(IllegalTransition):
            ledger.recurring.unpause("task_a", NOW, 9)
        with pytest.raises(BadInput, match="already 1 active recurring tasks"):
            ledger.recurring.unpause("task_b", NOW, 1)
        assert ledger_content(ledger) == unchanged

    def test_unpause_resets_the_daily_usage_of_a_task_over_budget(self, ledger: Ledger) -> None:
        task = recurring(ledger, budget={"day_runs": 1})
        assert ledger.recurring.daily_budget_exceeded(task, NOW) is None
        run_once(ledger, task, NOW)
        assert ledger.recurring.daily_budget_exceeded(task, NOW + 1) == "it has used 1 of 1 runs today"
        assert ledger.recurring.daily_budget_exceeded(task, NOW + DAY) is None
        with pytest.raises(BadInput, match="it has used 1 of 1 runs today"):
            ledger.recurring.run_now("task_r", NOW + 1, "tasks")
        fire(ledger, NOW + HOUR, over="it has used 1 of 1 runs today")
        ledger.recurring.unpause("task_r", NOW + HOUR + 1, 9)
        assert ledger.recurring.daily_budget_exceeded(entry_of_task(ledger, "task_r").task, NOW + HOUR + 2) is None
        ledger.recurring.clock_set_back(NOW + 5)
        assert entry_of_task(ledger, "task_r").task.recurring.counted_from == NOW + 5

    def test_a_name_is_free_after_its_recurring_task_has_ended(self, ledger: Ledger) -> None:
        ledger.recurring.check_name("r", "/p")
        recurring(ledger)
        submit(ledger, "task_x", name="other")
        with pytest.raises(BadInput, match="'r' already exists here: task_r"):
            ledger.recurring.check_name("r", "/p")
        for name, project, except_task in (("r", "/q", ""), ("r", "/p", "task_r"), ("other", "/p", ""), (None, "/p", "")):
            ledger.recurring.check_name(name, project, except_task)
        ledger.tasks.request_cancel("task_r", NOW)
        ledger.recurring.check_name("r", "/p")

    # -- manual runs

    def test_a_manual_run_does_not_change_the_schedule(self, ledger: Ledger) -> None:
        before = recurring(ledger)
        task, run = ledger.recurring.run_now("task_r", NOW + 5, "tasks")
        assert run and (run.cause.kind, run.cause.slot, run.state, run.folder) == ("manual", None, RunState.PENDING, "tasks/task_r")
        assert (task.recurring.next_run_at, task.recurring.fired, task.run_count) == (before.recurring.next_run_at, 0, 1)
        with pytest.raises(BadInput, match="already has a run that is pending: task_r"):
            ledger.recurring.run_now("task_r", NOW + 6, "tasks")

    def test_a_paused_task_can_be_run_manually_but_not_an_ended_one(self, ledger: Ledger) -> None:
        recurring(ledger)
        ledger.recurring.pause("task_r", "by hand", NOW)
        ledger.recurring.run_now("task_r", NOW, "tasks")
        assert claimed(ledger) == ["task_r"]
        ledger.runs.settle([done("task_r")], OURS)
        ledger.tasks.request_cancel("task_r", NOW)
        ended(ledger, "task_x")
        for task_id, why in (("task_r", "is cancelled"), ("task_x", "has no schedule")):
            with pytest.raises(BadInput, match=why):
                ledger.recurring.run_now(task_id, NOW, "tasks")
        with pytest.raises(TaskNotFound):
            ledger.recurring.run_now("task_missing", NOW, "tasks")

    # -- the end of a run

    @pytest.mark.parametrize(
        ("notify", "notice_counts"), [("always", [1, 1, 1]), ("on_change", [1, 0, 1]), ("on_failure", [0, 0, 0]), ("never", [0, 0, 0])]
    )
    def test_notices_follow_the_notify_setting_of_the_task(self, ledger: Ledger, notify: str, notice_counts: list[int]) -> None:
        task = recurring(ledger, notify=notify)
        before, counts = 0, []
        for number, digest in enumerate(("a", "a", "b")):
            run_once(ledger, task, NOW + number, digest=digest, lines=1)
            now = len(ledger.notices.notices())
            counts.append(now - before)
            before = now
        assert counts == notice_counts and entry_of_task(ledger, "task_r").task.recurring.result_hash == "b"

    def test_a_failed_run_is_retried_once_and_then_the_task_is_paused(self, ledger: Ledger) -> None:
        recurring(ledger)
        fire(ledger, NOW + HOUR)
        run_ends(ledger, NOW + HOUR, fails=True)
        task, retry = entry_of_task(ledger, "task_r")
        assert retry and (task.recurring.failures, retry.cause.kind, retry.cause.slot, retry.due_at) == (
            1,
            "retry",
            NOW + HOUR,
            NOW + HOUR + 30_000,
        )
        assert ledger.notices.notices() == [] and claimed(ledger, now=NOW + HOUR + 29_999) == []
        run_ends(ledger, NOW + HOUR + 30_000, fails=True)
        task = entry_of_task(ledger, "task_r").task
        assert (task.state, task.recurring.failures, task.recurring.pause_kind) == (TaskState.PAUSED, 2, PauseKind.OTHER)
        assert "is paused because it failed twice in a row" in ledger.notices.notices()[0].text
        assert ledger.recurring.unpause("task_r", NOW + 2 * HOUR, 9).task.recurring.failures == 0

    def test_a_run_that_may_have_had_an_effect_is_not_retried(self, ledger: Ledger) -> None:
        recurring(ledger)
        fire(ledger, NOW + HOUR)
        run_ends(ledger, NOW + HOUR, fails=True, result=Result.LOST)
        task, run = entry_of_task(ledger, "task_r")
        assert run and (task.state, task.recurring.failures, run.n) == (TaskState.ACTIVE, 1, 1) and len(ledger.notices.notices()) == 1

    # -- tasks that run after others

    def test_a_following_task_runs_after_each_completed_run(self, ledger: Ledger) -> None:
        first = recurring(ledger, "task_a")
        recurring(ledger, "task_b", Schedule(), after=("task_a",))
        run = run_once(ledger, first, NOW)
        task, after = entry_of_task(ledger, "task_b")
        assert after and (task.recurring.fired, after.cause.kind, after.cause.origin, after.state) == (
            1,
            "after",
            run.run_id,
            RunState.PENDING,
        )
        run_once(ledger, first, NOW + 1)
        assert [(one.n, one.error) for one in ledger.queries.history("task_b", 9)] == [
            (-1, "task_a.2 completed while the previous run was still active"), (1, None)
        ]  # fmt: skip

    def test_a_following_task_is_skipped_while_paused_and_paused_at_the_end(self, ledger: Ledger) -> None:
        first = recurring(ledger, "task_a")
        recurring(ledger, "task_b", Schedule(), after=("task_a",))
        ledger.recurring.pause("task_b", "by hand", NOW)
        run_once(ledger, first, NOW)
        assert [run.error for run in ledger.queries.history("task_b", 9)] == ["task_a completed while it was paused"]
        ledger.recurring.unpause("task_b", NOW, 9)
        ledger.tasks.request_cancel("task_a", NOW + 1)
        task = entry_of_task(ledger, "task_b").task
        assert (task.state, task.recurring.paused_because) == (TaskState.PAUSED, "task_a, which it follows, is cancelled")

    def test_a_following_task_without_runs_left_is_done(self, ledger: Ledger) -> None:
        first = recurring(ledger, "task_a")
        recurring(ledger, "task_b", Schedule(until=NOW + 5), after=("task_a",))
        submit(ledger, "task_c", after=("task_b",))
        run_once(ledger, first, NOW + 6)
        assert entry_of_task(ledger, "task_b").task.state == TaskState.DONE and claimed(ledger, now=NOW + 6) == ["task_c"]

    def test_a_following_task_over_budget_is_paused(self, ledger: Ledger) -> None:
        first = recurring(ledger, "task_a")
        second = recurring(ledger, "task_b", Schedule(), after=("task_a",), budget={"day_runs": 1})
        run_once(ledger, second, NOW)
        run_once(ledger, first, NOW + 1)
        task = entry_of_task(ledger, "task_b").task
        assert (task.state, task.recurring.pause_kind) == (TaskState.PAUSED, PauseKind.BUDGET)

    # -- usage and history

    def test_usage_is_counted_in_a_period(self, ledger: Ledger) -> None:
        nothing = {"tokens": 0, "cost": 0, "seconds": 0, "runs": 0}
        one, other = recurring(ledger, "task_a"), recurring(ledger, "task_b")
        assert ledger.recurring.usage("task_a", 0) == nothing == ledger.recurring.usage(None, 0)
        for number in range(3):
            run_once(ledger, one, NOW + number, usage={"tokens": 10, "cost": 0.5})
        run_once(ledger, other, NOW + 9, usage={"tokens": 1})
        ended(ledger, "task_x")
        assert ledger.recurring.usage("task_a", 0) == {"tokens": 30, "cost": 1.5, "seconds": 0, "runs": 3}
        assert ledger.recurring.usage("task_a", NOW + 1)["runs"] == 2 and ledger.recurring.usage("task_a", NOW, NOW + 1)["runs"] == 2
        assert ledger.recurring.usage(None, 0) == {"tokens": 31, "cost": 1.5, "seconds": 0, "runs": 4}
        assert ledger.recurring.usage("task_missing", 0) == nothing

    def test_usage_of_very_many_runs_is_complete(self, ledger: Ledger) -> None:
        task = recurring(ledger)
        for number in range(210):
            run_once(ledger, task, NOW + number, usage={"tokens": 1})
        assert ledger.recurring.usage("task_r", 0)["tokens"] == 210 == ledger.recurring.usage(None, 0)["runs"]
        assert ledger.recurring.usage("task_r", NOW + 5)["tokens"] == 205

    def test_old_runs_are_deleted_except_the_latest_and_those_in_a_budget(self, ledger: Ledger) -> None:
        plain, counted = recurring(ledger, "task_a"), recurring(ledger, "task_b", budget={"day_runs": 9})
        for number in range(3):
            run_once(ledger, plain, NOW + number)
            run_once(ledger, counted, NOW + number)
        ended(ledger, "task_x")
        assert ledger.recurring.compact(NOW, NOW) == []
        assert ledger.recurring.compact(NOW + 9999, NOW + 9999, ["task_b"]) == [] == ledger.recurring.compact(NOW + 9999, NOW, [])
        gone = ledger.recurring.compact(NOW + 9999, NOW + 9999, ["task_a", *(f"task_{number}" for number in range(600))])
        assert sorted(gone) == ["tasks/task_a", "tasks/task_a.2"] and [run.n for run in ledger.queries.history("task_a", 9)] == [3]
        assert kinds(ledger)[-1] == "runs_compacted"
        assert sorted(ledger.recurring.compact(NOW + 9999, NOW + 3 * DAY)) == ["tasks/task_b", "tasks/task_b.2"]
        assert entry_of_task(ledger, "task_x").status == "completed"

    def test_old_runs_can_be_deleted_a_few_at_a_time(self, ledger: Ledger) -> None:
        task = recurring(ledger, "task_a")
        for number in range(6):
            run_once(ledger, task, NOW + number)
        assert [len(ledger.recurring.compact(NOW + 9999, NOW + 9999, None, 2)) for _ in range(4)] == [2, 2, 1, 0]

    def test_a_proposed_recurring_task_is_not_due(self, ledger: Ledger) -> None:
        propose(ledger, "task_r", schedule=every(HOUR, NOW), kind="scheduled", max_active=9)
        assert ledger.live_work.next_slot_at() is None and fire(ledger, NOW + DAY) == 0

    def test_a_busy_scheduled_task_waits_for_its_next_slot(self, ledger: Ledger) -> None:
        recurring(ledger)
        fire(ledger, NOW + HOUR)
        busy = plan(every(HOUR, NOW), NOW + 2 * HOUR, NOW + 2 * HOUR, busy="it is busy")
        ledger.recurring.fire(lambda _: (busy, None), NOW + 2 * HOUR, "tasks")
        assert slots(ledger) == [(NOW + HOUR, "pending"), (NOW + 2 * HOUR, "skipped")]


def run_ends(ledger: Ledger, now: int, *, fails: bool = False, **more: Any) -> None:
    """Claim the pending run and end it."""
    (run_id,) = claimed(ledger, now=now)
    ledger.runs.settle([(failed if fails else done)(run_id, ended_at=now, **more)], OURS)
