"""Trigger events of sources, and the runs that they start."""

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
    entry_of_task,
    kinds,
    latest,
    ledger_content,
    propose,
    recurring,
    run_once,
    submit,
    watching_task,
)

HOOK = {"kind": "webhook", "name": "deploy"}


def record_event(ledger: Ledger, summary: str = "a file came", now: int = NOW, task_id: str = "task_w", **more: Any) -> bool:
    return ledger.triggers.record(task_id, {"seen": summary}, {"summary": summary}, now, "tasks", **more)


def settle(ledger: Ledger, now: int = NOW) -> list[str]:
    """Run everything that is pending to its end; returns the payloads of these runs."""
    works = ledger.runs.claim(ENGINE, OURS, 99, now)
    ledger.runs.settle([done(work.run, ended_at=now) for work in works], OURS)
    return [event["summary"] for work in works for event in json.loads(work.run.cause.payload or '{"events": []}')["events"]]


class TriggerContract:
    def test_active_tasks_with_an_external_source_are_watched(self, ledger: Ledger) -> None:
        submit(ledger)
        recurring(ledger, "task_timed")
        watching_task(ledger, "task_a")
        watching_task(ledger, "task_b", HOOK)
        watching_task(ledger, "task_paused")
        ledger.recurring.pause("task_paused", "by hand", NOW)
        watching_task(ledger, "task_command", {"kind": "command"}, after=("task_timed",))
        propose(ledger, "task_asked", schedule=Schedule(), kind="event", source=HOOK, max_active=9)
        assert [task.task_id for task in ledger.triggers.watched_tasks()] == ["task_a", "task_b"]

    def test_a_webhook_belongs_to_the_active_task_of_its_name(self, ledger: Ledger) -> None:
        watching_task(ledger, "task_a", HOOK)
        watching_task(ledger, "task_b")
        found = ledger.triggers.task_of_webhook("deploy")
        assert found and found.task_id == "task_a" and ledger.triggers.task_of_webhook("inbox") is None
        ledger.recurring.pause("task_a", "by hand", NOW)
        assert ledger.triggers.task_of_webhook("deploy") is None

    def test_the_state_of_a_source_is_stored_with_the_run_it_starts(self, ledger: Ledger, open_ledger: Open) -> None:
        watching_task(ledger)
        assert ledger.triggers.source_state("task_w") == {}
        assert record_event(ledger)
        assert open_ledger().triggers.source_state("task_w") == {"seen": "a file came"}
        task, run = entry_of_task(ledger, "task_w")
        assert run and (task.recurring.fired, task.run_count, run.state, run.cause.kind) == (1, 1, RunState.PENDING, "event")
        assert json.loads(run.cause.payload or "") == {"events": [{"summary": "a file came"}], "more": 0}
        assert kinds(ledger)[-1] == "source_event"

    def test_the_first_state_of_a_source_starts_no_run(self, ledger: Ledger) -> None:
        watching_task(ledger)
        assert ledger.triggers.record("task_w", {"seen": 1}, None, NOW, "tasks")
        assert ledger.triggers.source_state("task_w") == {"seen": 1} and entry_of_task(ledger, "task_w").run is None

    def test_events_during_a_run_are_handled_by_one_later_run(self, ledger: Ledger) -> None:
        watching_task(ledger)
        record_event(ledger, "first")
        (work,) = ledger.runs.claim(ENGINE, OURS, 9, NOW)
        for number in range(25):
            record_event(ledger, f"event {number}")
        assert entry_of_task(ledger, "task_w").task.run_count == 1
        ledger.runs.settle([done(work.run)], OURS)
        payload = json.loads(latest(ledger, "task_w").cause.payload or "")
        assert [event["summary"] for event in payload["events"]] == [f"event {number}" for number in range(20)]
        assert payload["more"] == 5 and entry_of_task(ledger, "task_w").task.run_count == 2
        assert len(settle(ledger)) == 20 and settle(ledger) == []

    @pytest.mark.parametrize("why", ["held", "paused"])
    def test_events_wait_while_a_task_is_held_or_paused(self, ledger: Ledger, why: str) -> None:
        watching_task(ledger)
        if why == "paused":
            ledger.recurring.pause("task_w", "by hand", NOW)
        record_event(ledger, "first", hold=why == "held")
        assert entry_of_task(ledger, "task_w").run is None
        if why == "paused":
            ledger.recurring.unpause("task_w", NOW, 9)
        else:
            record_event(ledger, "second")
        assert settle(ledger) == (["first"] if why == "paused" else ["first", "second"])

    def test_a_delivery_that_was_received_before_is_refused(self, ledger: Ledger, open_ledger: Open) -> None:
        watching_task(ledger, source=HOOK)
        assert record_event(ledger, delivery="d1\nd2")
        unchanged = ledger_content(ledger)
        for delivery in ("d1", "d2", "d3\nd2"):
            assert not record_event(open_ledger(), delivery=delivery)
        assert ledger_content(ledger) == unchanged
        assert record_event(ledger, delivery="d3")
        assert record_event(ledger, now=NOW + 8 * DAY, delivery="d4")
        assert record_event(ledger, now=NOW + 8 * DAY, delivery="d1")  # it was deleted in the meantime

    def test_an_event_ends_a_task_without_runs_left(self, ledger: Ledger) -> None:
        recurring(ledger, "task_w", Schedule(max_runs=1), source=HOOK)
        record_event(ledger)
        settle(ledger)
        assert entry_of_task(ledger, "task_w").task.state == TaskState.DONE
        unchanged = ledger_content(ledger)
        assert record_event(ledger) and ledger_content(ledger) == unchanged
        recurring(ledger, "task_w2", Schedule(until=NOW + 5), source=HOOK)
        record_event(ledger, now=NOW + 6, task_id="task_w2")
        assert entry_of_task(ledger, "task_w2").task.state == TaskState.DONE

    def test_an_event_pauses_a_task_over_budget_and_is_kept(self, ledger: Ledger) -> None:
        task = watching_task(ledger, budget={"day_runs": 1})
        run_once(ledger, task, NOW)
        record_event(ledger, "first", now=NOW + 1)
        assert entry_of_task(ledger, "task_w").task.state == TaskState.PAUSED
        ledger.recurring.unpause("task_w", NOW + 2, 9)
        assert settle(ledger, NOW + 2) == ["first"]

    def test_a_payload_that_is_too_long_is_truncated(self, ledger: Ledger) -> None:
        watching_task(ledger)
        ledger.triggers.record("task_w", None, {"summary": "big", "body": "x" * 100_000}, NOW, "tasks")
        (event,) = json.loads(latest(ledger, "task_w").cause.payload or "")["events"]
        assert event["cut"] and event["summary"] == "big" and len(event["text"]) == 65_536
        assert ledger.triggers.source_state("task_w") == {}

    def test_an_event_for_a_missing_task_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(TaskNotFound):
            record_event(ledger)

    def test_the_reason_why_a_source_is_broken_is_kept_until_it_works(self, ledger: Ledger) -> None:
        for name in ("task_a", "task_b", "task_c"):
            watching_task(ledger, name)
            ledger.triggers.mark_broken(name, f"{name} has no folder", NOW)
        assert ledger.triggers.broken_sources() == {name: f"{name} has no folder" for name in ("task_a", "task_b", "task_c")}
        ledger.triggers.mark_broken("task_a", None, NOW + 1)
        record_event(ledger, task_id="task_b")
        assert ledger.triggers.broken_sources() == {"task_c": "task_c has no folder"}
        assert kinds(ledger).count("source_broken") == 3

    def test_changed_output_of_a_poll_command_triggers_its_task(self, ledger: Ledger) -> None:
        watcher = recurring(ledger, "task_poll", source={"kind": "poll", "compare": "exit"}, kind="scheduled")
        watching_task(ledger, "task_w", {"kind": "command"}, after=("task_poll",))
        for number, code in enumerate((0, 0, 1)):
            run_once(ledger, watcher, NOW + number, exit_code=code)
        task, run = entry_of_task(ledger, "task_w")
        assert run and (task.run_count, run.cause.kind, run.cause.origin) == (1, "after", "task_poll.3")
        ledger.tasks.request_cancel("task_w", NOW + 9)
        assert entry_of_task(ledger, "task_poll").task.state == TaskState.CANCELLED

    def test_a_proposed_source_is_watched_after_approval(self, ledger: Ledger) -> None:
        propose(ledger, "task_w", schedule=Schedule(), kind="event", source=HOOK, max_active=9)
        assert ledger.triggers.task_of_webhook("deploy") is None
        approve(ledger, "task_w", max_active=9)
        assert ledger.triggers.task_of_webhook("deploy") is not None
