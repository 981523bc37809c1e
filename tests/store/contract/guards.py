"""Guarded updates look at the rows they changed: whoever comes with what is out of date is refused, and nothing is written.

On SQLite one writer at a time reads and writes in its transaction, so that no verb can meet this; on another database it can.
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
from contract.cases import AGENT_LANE, HOUR, NOW, OURS, THEIRS, asking, at, done, latest, recurring, running, shown, submit, whole


def transitions(ledger: Ledger) -> TaskTransitions:
    return TaskTransitions(ledger.database, EventWriter(ledger.database), NoticeWriter(ledger.database))


class GuardContract:
    def test_a_task_that_was_changed_meanwhile_is_not_changed_again(self, ledger: Ledger) -> None:
        before = recurring(ledger)
        ledger.recurring.pause("task_r", "by hand", NOW)
        unchanged = whole(ledger)
        for event in (TaskEvent.PAUSED, TaskEvent.CANCELLED, TaskEvent.DONE):
            with pytest.raises(StaleTask, match="task_r"), ledger.database.transaction():
                transitions(ledger).apply(before, event, NOW)
        with pytest.raises(StaleTask), ledger.database.transaction():
            transitions(ledger).pause(before, "again", NOW, "told")
        assert whole(ledger) == unchanged and shown(ledger, "task_r").task.state == TaskState.PAUSED

    def test_a_run_is_not_counted_twice(self, ledger: Ledger) -> None:
        task = recurring(ledger)
        ledger.recurring.run_now("task_r", NOW, "tasks")
        unchanged = whole(ledger)
        runs = RunWriter(ledger.database, EventWriter(ledger.database))
        with pytest.raises(StaleTask, match="task_r"), ledger.database.transaction():
            runs.add_recurring(task, "tasks", NOW, cause="manual")
        assert whole(ledger) == unchanged

    def test_a_run_that_somebody_else_claimed_is_not_claimed_again(self, ledger: Ledger) -> None:
        pending = submit(ledger).run
        assert pending
        ledger.runs.claim(pending.runner, OURS, 1, NOW)
        claims = Claims(ledger.database, EventWriter(ledger.database), Environments(ledger.database))
        with pytest.raises(StaleRun, match="task_x"), ledger.database.transaction():
            claims.take(pending, THEIRS, NOW)
        assert latest(ledger, "task_x").owner == OURS

    def test_a_run_that_waits_no_more_is_not_made_pending_again(self, ledger: Ledger) -> None:
        run = asking(ledger)
        ledger.runs.resume_suspended(run.run_id, NOW)
        ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)
        with pytest.raises(StaleRun), ledger.database.transaction():
            WaitingRuns(ledger.database, EventWriter(ledger.database)).requeue(run.run_id, NOW, task_id=run.task_id)
        assert latest(ledger, "task_g").state == RunState.RUNNING

    @pytest.mark.parametrize("way", ["end", "slot"])
    def test_a_verb_that_reads_what_is_out_of_date_writes_nothing(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
        """As another database would give it: what was read is older than what is written to."""
        run = running(ledger)
        recurring(ledger)
        old: dict[str, Entry] = {task_id: shown(ledger, task_id) for task_id in ("task_x", "task_r")}
        if way == "end":
            ledger.runs.settle([done(run)], OURS)
            monkeypatch.setattr(ledger.runs._reader, "by_latest_run", lambda _: old["task_x"])  # type: ignore[attr-defined]
        else:
            monkeypatch.setattr(ledger.recurring._reader, "get", lambda _: old["task_r"])  # type: ignore[attr-defined]
            monkeypatch.setattr(ledger.live_work, "next_slot_at", lambda: NOW + HOUR)
            ledger.database.write("UPDATE tasks SET next_run_at = ? WHERE task_id = 'task_r'", (NOW + HOUR + 1,))
        unchanged = whole(ledger)
        if way == "end":
            with pytest.raises(StaleRun, match="task_x"):
                ledger.runs.settle([done(run)], OURS)
        else:
            with pytest.raises(StaleTask, match="task_r"):
                ledger.recurring.fire(at(NOW + 2 * HOUR), NOW + 2 * HOUR, "tasks")
        assert whole(ledger) == unchanged
