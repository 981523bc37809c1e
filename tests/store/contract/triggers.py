"""What sources saw, and the runs that follow from it."""

import json
from typing import Any

import pytest

from backburner.core.errors import TaskNotFound
from backburner.core.models import ENGINE
from backburner.core.schedule import Schedule
from backburner.core.states import RunState, TaskState
from backburner.store.ledger import Ledger
from contract.cases import (
    DAY,
    NOW,
    OURS,
    Open,
    approve,
    done,
    kinds,
    latest,
    propose,
    recurring,
    run_once,
    shown,
    submit,
    watching,
    whole,
)

HOOK = {"kind": "webhook", "name": "deploy"}


def happened(ledger: Ledger, summary: str = "a file came", now: int = NOW, task_id: str = "task_w", **more: Any) -> bool:
    return ledger.triggers.record(task_id, {"seen": summary}, {"summary": summary}, now, "tasks", **more)


def settle(ledger: Ledger, now: int = NOW) -> list[str]:
    """Let everything run that is pending; what was handed to it."""
    works = ledger.runs.claim(ENGINE, OURS, 99, now)
    ledger.runs.settle([done(work.run, ended_at=now) for work in works], OURS)
    return [event["summary"] for work in works for event in json.loads(work.run.cause.payload or '{"events": []}')["events"]]


class TriggerContract:
    def test_active_tasks_with_a_source_outside_are_watched(self, ledger: Ledger) -> None:
        submit(ledger)
        recurring(ledger, "task_timed")
        watching(ledger, "task_a")
        watching(ledger, "task_b", HOOK)
        watching(ledger, "task_paused")
        ledger.recurring.pause("task_paused", "by hand", NOW)
        watching(ledger, "task_command", {"kind": "command"}, after=("task_timed",))
        propose(ledger, "task_asked", schedule=Schedule(), kind="event", source=HOOK, most_active=9)
        assert [task.task_id for task in ledger.triggers.watched_tasks()] == ["task_a", "task_b"]

    def test_a_webhook_is_for_the_active_task_of_its_name(self, ledger: Ledger) -> None:
        watching(ledger, "task_a", HOOK)
        watching(ledger, "task_b")
        found = ledger.triggers.task_of_webhook("deploy")
        assert found and found.task_id == "task_a" and ledger.triggers.task_of_webhook("inbox") is None
        ledger.recurring.pause("task_a", "by hand", NOW)
        assert ledger.triggers.task_of_webhook("deploy") is None

    def test_a_source_remembers_what_it_saw_with_the_run_that_follows(self, ledger: Ledger, open_ledger: Open) -> None:
        watching(ledger)
        assert ledger.triggers.source_state("task_w") == {}
        assert happened(ledger)
        assert open_ledger().triggers.source_state("task_w") == {"seen": "a file came"}
        task, run = shown(ledger, "task_w")
        assert run and (task.recurring.fired, task.run_count, run.state, run.cause.kind) == (1, 1, RunState.PENDING, "event")
        assert json.loads(run.cause.payload or "") == {"events": [{"summary": "a file came"}], "more": 0}
        assert kinds(ledger)[-1] == "source_event"

    def test_the_first_sight_of_a_source_starts_nothing(self, ledger: Ledger) -> None:
        watching(ledger)
        assert ledger.triggers.record("task_w", {"seen": 1}, None, NOW, "tasks")
        assert ledger.triggers.source_state("task_w") == {"seen": 1} and shown(ledger, "task_w").run is None

    def test_what_happens_during_a_run_is_dealt_with_by_one_run_afterwards(self, ledger: Ledger) -> None:
        watching(ledger)
        happened(ledger, "first")
        (work,) = ledger.runs.claim(ENGINE, OURS, 9, NOW)
        for number in range(25):
            happened(ledger, f"event {number}")
        assert shown(ledger, "task_w").task.run_count == 1
        ledger.runs.settle([done(work.run)], OURS)
        payload = json.loads(latest(ledger, "task_w").cause.payload or "")
        assert [event["summary"] for event in payload["events"]] == [f"event {number}" for number in range(20)]
        assert payload["more"] == 5 and shown(ledger, "task_w").task.run_count == 2
        assert len(settle(ledger)) == 20 and settle(ledger) == []

    @pytest.mark.parametrize("why", ["held", "paused"])
    def test_what_happens_while_a_task_is_held_or_paused_waits_until_it_goes_on(self, ledger: Ledger, why: str) -> None:
        watching(ledger)
        if why == "paused":
            ledger.recurring.pause("task_w", "by hand", NOW)
        happened(ledger, "first", hold=why == "held")
        assert shown(ledger, "task_w").run is None
        if why == "paused":
            ledger.recurring.unpause("task_w", NOW, 9)
        else:
            happened(ledger, "second")
        assert settle(ledger) == (["first"] if why == "paused" else ["first", "second"])

    def test_a_delivery_that_was_received_before_is_refused(self, ledger: Ledger, open_ledger: Open) -> None:
        watching(ledger, source=HOOK)
        assert happened(ledger, delivery="d1\nd2")
        unchanged = whole(ledger)
        for delivery in ("d1", "d2", "d3\nd2"):
            assert not happened(open_ledger(), delivery=delivery)
        assert whole(ledger) == unchanged
        assert happened(ledger, delivery="d3")
        assert happened(ledger, now=NOW + 8 * DAY, delivery="d4")
        assert happened(ledger, now=NOW + 8 * DAY, delivery="d1")  # it was forgotten by then

    def test_a_task_that_is_over_is_done_instead_of_run(self, ledger: Ledger) -> None:
        recurring(ledger, "task_w", Schedule(max_runs=1), source=HOOK)
        happened(ledger)
        settle(ledger)
        assert shown(ledger, "task_w").task.state == TaskState.DONE
        unchanged = whole(ledger)
        assert happened(ledger) and whole(ledger) == unchanged
        recurring(ledger, "task_w2", Schedule(until=NOW + 5), source=HOOK)
        happened(ledger, now=NOW + 6, task_id="task_w2")
        assert shown(ledger, "task_w2").task.state == TaskState.DONE

    def test_a_task_that_used_up_its_day_is_paused_and_keeps_what_happened(self, ledger: Ledger) -> None:
        task = watching(ledger, budget={"day_runs": 1})
        run_once(ledger, task, NOW)
        happened(ledger, "first", now=NOW + 1)
        assert shown(ledger, "task_w").task.state == TaskState.PAUSED
        ledger.recurring.unpause("task_w", NOW + 2, 9)
        assert settle(ledger, NOW + 2) == ["first"]

    def test_what_comes_in_is_cut_where_it_is_too_long(self, ledger: Ledger) -> None:
        watching(ledger)
        ledger.triggers.record("task_w", None, {"summary": "big", "body": "x" * 100_000}, NOW, "tasks")
        (event,) = json.loads(latest(ledger, "task_w").cause.payload or "")["events"]
        assert event["cut"] and event["summary"] == "big" and len(event["text"]) == 65_536
        assert ledger.triggers.source_state("task_w") == {}

    def test_nothing_happens_to_a_task_that_is_not_there(self, ledger: Ledger) -> None:
        with pytest.raises(TaskNotFound):
            happened(ledger)

    def test_it_is_known_why_a_source_cannot_be_watched_until_it_can(self, ledger: Ledger) -> None:
        for name in ("task_a", "task_b", "task_c"):
            watching(ledger, name)
            ledger.triggers.mark_broken(name, f"{name} has no folder", NOW)
        assert ledger.triggers.broken_sources() == {name: f"{name} has no folder" for name in ("task_a", "task_b", "task_c")}
        ledger.triggers.mark_broken("task_a", None, NOW + 1)
        happened(ledger, task_id="task_b")
        assert ledger.triggers.broken_sources() == {"task_c": "task_c has no folder"}
        assert kinds(ledger).count("source_broken") == 3

    def test_what_a_command_prints_sets_off_the_task_that_watches_it(self, ledger: Ledger) -> None:
        watcher = recurring(ledger, "task_poll", source={"kind": "poll", "compare": "exit"}, kind="scheduled")
        watching(ledger, "task_w", {"kind": "command"}, after=("task_poll",))
        for number, code in enumerate((0, 0, 1)):
            run_once(ledger, watcher, NOW + number, exit_code=code)
        task, run = shown(ledger, "task_w")
        assert run and (task.run_count, run.cause.kind, run.cause.origin) == (1, "after", "task_poll.3")
        ledger.tasks.request_cancel("task_w", NOW + 9)
        assert shown(ledger, "task_poll").task.state == TaskState.CANCELLED

    def test_a_proposal_is_watched_once_it_is_approved(self, ledger: Ledger) -> None:
        propose(ledger, "task_w", schedule=Schedule(), kind="event", source=HOOK, most_active=9)
        assert ledger.triggers.task_of_webhook("deploy") is None
        approve(ledger, "task_w", most_active=9)
        assert ledger.triggers.task_of_webhook("deploy") is not None
