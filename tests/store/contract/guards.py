"""Guarded updates check the number of changed rows: a caller with outdated data is refused, and nothing is written.

On SQLite there is one writer at a time that reads and writes in its transaction, so this cannot happen; on another database it can.
"""

import pytest

from backburner.core.errors import StaleRun, StaleTask
from backburner.core.models import Entry
from backburner.core.states import RunState, TaskEvent, TaskState
from backburner.store.claims import Claims
from backburner.store.environments import Environments
from backburner.store.event_writer import EventWriter
from backburner.store.ledger import Ledger
from backburner.store.notice_writer import NoticeWriter
from backburner.store.run_writer import RunWriter
from backburner.store.task_transitions import TaskTransitions
from backburner.store.waiting_runs import WaitingRuns
from contract.cases import (
    AGENT_LANE,
    HOUR,
    NOW,
    OURS,
    THEIRS,
    done,
    entry_of_task,
    latest,
    ledger_content,
    plan_at,
    recurring,
    running,
    submit,
    waiting_agent_run,
)


def transitions(ledger: Ledger) -> TaskTransitions:
    return TaskTransitions(ledger.database, EventWriter(ledger.database), NoticeWriter(ledger.database))


class GuardContract:
    def test_a_task_that_was_changed_concurrently_is_not_changed(self, ledger: Ledger) -> None:
        before = recurring(ledger)
        ledger.recurring.pause("task_r", "by hand", NOW)
        unchanged = ledger_content(ledger)
        for event in (TaskEvent.PAUSED, TaskEvent.CANCELLED, TaskEvent.DONE):
            with pytest.raises(StaleTask, match="task_r"), ledger.database.transaction():
                transitions(ledger).apply(before, event, NOW)
        with pytest.raises(StaleTask), ledger.database.transaction():
            transitions(ledger).pause(before, "again", NOW, "a notice")
        assert ledger_content(ledger) == unchanged and entry_of_task(ledger, "task_r").task.state == TaskState.PAUSED

    def test_a_run_is_not_counted_twice(self, ledger: Ledger) -> None:
        task = recurring(ledger)
        ledger.recurring.run_now("task_r", NOW, "tasks")
        unchanged = ledger_content(ledger)
        runs = RunWriter(ledger.database, EventWriter(ledger.database))
        with pytest.raises(StaleTask, match="task_r"), ledger.database.transaction():
            runs.add_recurring(task, "tasks", NOW, cause="manual")
        assert ledger_content(ledger) == unchanged

    def test_a_run_that_was_claimed_by_another_owner_is_not_claimed(self, ledger: Ledger) -> None:
        pending = submit(ledger).run
        assert pending
        ledger.runs.claim(pending.runner, OURS, 1, NOW)
        claims = Claims(ledger.database, EventWriter(ledger.database), Environments(ledger.database))
        with pytest.raises(StaleRun, match="task_x"), ledger.database.transaction():
            claims.take(pending, THEIRS, NOW)
        assert latest(ledger, "task_x").owner == OURS

    def test_a_run_that_no_longer_waits_is_not_requeued(self, ledger: Ledger) -> None:
        run = waiting_agent_run(ledger)
        ledger.runs.resume_suspended(run.run_id, NOW)
        ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)
        with pytest.raises(StaleRun), ledger.database.transaction():
            WaitingRuns(ledger.database, EventWriter(ledger.database)).requeue(run.run_id, NOW, task_id=run.task_id)
        assert latest(ledger, "task_g").state == RunState.RUNNING

    @pytest.mark.parametrize("way", ["end", "slot"])
    def test_a_call_that_reads_outdated_data_writes_nothing(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
        """Simulates a database that returns older data than the data that is updated."""
        run = running(ledger)
        recurring(ledger)
        old: dict[str, Entry] = {task_id: entry_of_task(ledger, task_id) for task_id in ("task_x", "task_r")}
        if way == "end":
            ledger.runs.settle([done(run)], OURS)
            monkeypatch.setattr(ledger.runs._reader, "by_latest_run", lambda _: old["task_x"])  # type: ignore[attr-defined]
        else:
            monkeypatch.setattr(ledger.recurring._reader, "get", lambda _: old["task_r"])  # type: ignore[attr-defined]
            monkeypatch.setattr(ledger.live_work, "next_slot_at", lambda: NOW + HOUR)
            ledger.database.write("UPDATE tasks SET next_run_at = ? WHERE task_id = 'task_r'", (NOW + HOUR + 1,))
        unchanged = ledger_content(ledger)
        if way == "end":
            with pytest.raises(StaleRun, match="task_x"):
                ledger.runs.settle([done(run)], OURS)
        else:
            with pytest.raises(StaleTask, match="task_r"):
                ledger.recurring.fire(plan_at(NOW + 2 * HOUR), NOW + 2 * HOUR, "tasks")
        assert ledger_content(ledger) == unchanged
