"""Rows that an embedder keeps by hand, and rows that cannot be."""

import pytest

from backburner.core.errors import BadInput, IllegalTransition, LedgerUnavailable, TaskNotFound
from backburner.core.models import EXTERNAL, Run, Task
from backburner.core.states import Result, RunState, TaskState
from backburner.store.ledger import Ledger
from backburner.testing.records import changed, changed_run
from contract.cases import NOW, OURS, failed, latest, propose, running, shown, whole


class ExternalTaskContract:
    def test_a_task_kept_by_hand_is_shown_and_never_run(self, ledger: Ledger) -> None:
        task, run = by_hand(ledger)
        ledger.external_tasks.record(task, run)
        assert shown(ledger, "task_hand") == (task, run)
        assert [one.run_id for one in ledger.live_work.live_runs()] == ["task_model"]
        with pytest.raises(BadInput):
            ledger.external_tasks.record(task, run)

    def test_a_task_kept_by_hand_changes_as_a_run_can_go(self, ledger: Ledger) -> None:
        task, run = by_hand(ledger)
        ledger.external_tasks.record(task, run)
        over = changed_run(run, state=RunState.COMPLETED, result=Result.EXIT, ended_at=NOW + 1000)
        ledger.external_tasks.change_record(task._replace(state=TaskState.DONE), over)
        assert shown(ledger, "task_hand").status == "completed"
        with pytest.raises(IllegalTransition):
            ledger.external_tasks.change_record(task, run)
        assert shown(ledger, "task_hand").status == "completed"

    def test_what_is_not_kept_by_hand_cannot_be_changed_so(self, ledger: Ledger) -> None:
        run = running(ledger)
        with pytest.raises(BadInput):
            ledger.external_tasks.change_record(
                shown(ledger, "task_x").task, changed_run(run, state=RunState.COMPLETED, result=Result.EXIT, ended_at=NOW + 1000)
            )
        assert shown(ledger, "task_x").run == run

    def test_the_words_of_a_task_that_was_restarted_can_be_changed(self, ledger: Ledger) -> None:
        run = running(ledger, restarts=1)
        ledger.runs.settle([failed(run)], OURS)
        task, again = shown(ledger, "task_x")
        ledger.external_tasks.change_record(changed(task, description="tried again"), again)
        assert shown(ledger, "task_x") == (changed(task, description="tried again"), again)

    @pytest.mark.parametrize(
        "impossible",
        [
            {"state": RunState.COMPLETED},
            {"state": RunState.COMPLETED, "ended_at": NOW + 1000},
            {"state": RunState.COMPLETED, "ended_at": NOW + 1000, "result": Result.SIGNAL},
            {"result": Result.EXIT},
            {"ended_at": NOW + 1000},
            {"owner": None},
            {"started_at": None},
            {"state": RunState.PENDING},
            {"state": RunState.FAILED, "result": Result.EXIT, "ended_at": NOW - 9},
            {"state": "strange"},
            {"result": "strange", "state": RunState.FAILED, "ended_at": NOW + 1000},
            {"n": 0},
            {"blocked": 2},
            {"task_id": "task_missing"},
        ],
        ids=str,
    )
    def test_an_impossible_run_is_refused(self, ledger: Ledger, impossible: dict[str, object]) -> None:
        task, run = by_hand(ledger)
        unchanged = whole(ledger)
        with pytest.raises(LedgerUnavailable):
            ledger.external_tasks.record(task, changed_run(run, **impossible))
        assert whole(ledger) == unchanged

    @pytest.mark.parametrize(
        "impossible",
        [
            {"approved_by": None},
            {"approved_at": None},
            {"approved_by": None, "approved_at": None},
            {"approved_by": "robot"},
            {"state": TaskState.PROPOSED},
            {"state": "strange"},
            {"kind": "strange"},
            {"timeout_ms": 0},
            {"task_id": ""},
            {"run_count": -1},
            {"priority": 2},
            {"restarts": -1},
            {"stdin": 2},
        ],
        ids=str,
    )
    def test_an_impossible_task_is_refused(self, ledger: Ledger, impossible: dict[str, object]) -> None:
        task, run = by_hand(ledger)
        unchanged = whole(ledger)
        with pytest.raises(LedgerUnavailable):
            ledger.external_tasks.record(changed(task, **impossible), run._replace(task_id=impossible.get("task_id", run.task_id)))
        assert whole(ledger) == unchanged

    def test_the_task_of_a_row_kept_by_hand_changes_as_a_task_can_go(self, ledger: Ledger) -> None:
        task, run = by_hand(ledger)
        ledger.external_tasks.record(task, run)
        unchanged = whole(ledger)
        for state in (TaskState.REJECTED, TaskState.EXPIRED, TaskState.PROPOSED):
            with pytest.raises(IllegalTransition, match=f"The task is active and cannot be {state}"):
                ledger.external_tasks.change_record(changed(task, state=state, approved_by=None, approved_at=None, run_count=0), run)
        assert whole(ledger) == unchanged

    def test_what_is_not_there_cannot_be_changed_by_hand(self, ledger: Ledger) -> None:
        with pytest.raises(TaskNotFound):
            ledger.external_tasks.change_record(*by_hand(ledger))
        propose(ledger, "task_p")
        with pytest.raises(BadInput):
            ledger.external_tasks.change_record(shown(ledger, "task_p").task, latest(ledger, "task_model"))


def by_hand(ledger: Ledger) -> tuple[Task, Run]:
    """A running task as an embedder keeps it."""
    run = running(ledger, "task_model")
    task = shown(ledger, "task_model").task
    return task._replace(task_id="task_hand"), run._replace(task_id="task_hand", run_id="task_hand", runner=EXTERNAL, folder="tasks/hand")
