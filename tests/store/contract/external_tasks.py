"""Tasks that an embedding program runs itself, and rows that are impossible."""

import pytest

from backburner.core.errors import BadInput, IllegalTransition, LedgerUnavailable, TaskNotFound
from backburner.core.models import EXTERNAL, Run, Task
from backburner.core.states import Result, RunState, TaskState
from backburner.store.ledger import Ledger
from backburner.testing.records import changed, changed_run
from contract.cases import NOW, OURS, entry_of_task, failed, latest, ledger_content, propose, running


class ExternalTaskContract:
    def test_an_external_task_is_listed_but_never_run(self, ledger: Ledger) -> None:
        task, run = external_task(ledger)
        ledger.external_tasks.record(task, run)
        assert entry_of_task(ledger, "task_hand") == (task, run)
        assert [one.run_id for one in ledger.live_work.live_runs()] == ["task_model"]
        with pytest.raises(BadInput):
            ledger.external_tasks.record(task, run)

    def test_an_external_run_can_only_make_legal_transitions(self, ledger: Ledger) -> None:
        task, run = external_task(ledger)
        ledger.external_tasks.record(task, run)
        over = changed_run(run, state=RunState.COMPLETED, result=Result.EXIT, ended_at=NOW + 1000)
        ledger.external_tasks.change_record(task._replace(state=TaskState.DONE), over)
        assert entry_of_task(ledger, "task_hand").status == "completed"
        with pytest.raises(IllegalTransition):
            ledger.external_tasks.change_record(task, run)
        assert entry_of_task(ledger, "task_hand").status == "completed"

    def test_a_task_that_is_not_external_cannot_be_overwritten(self, ledger: Ledger) -> None:
        run = running(ledger)
        with pytest.raises(BadInput):
            ledger.external_tasks.change_record(
                entry_of_task(ledger, "task_x").task, changed_run(run, state=RunState.COMPLETED, result=Result.EXIT, ended_at=NOW + 1000)
            )
        assert entry_of_task(ledger, "task_x").run == run

    def test_the_descriptive_fields_of_a_restarted_task_can_be_changed(self, ledger: Ledger) -> None:
        run = running(ledger, restarts=1)
        ledger.runs.settle([failed(run)], OURS)
        task, again = entry_of_task(ledger, "task_x")
        ledger.external_tasks.change_record(changed(task, description="tried again"), again)
        assert entry_of_task(ledger, "task_x") == (changed(task, description="tried again"), again)

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
        task, run = external_task(ledger)
        unchanged = ledger_content(ledger)
        with pytest.raises(LedgerUnavailable):
            ledger.external_tasks.record(task, changed_run(run, **impossible))
        assert ledger_content(ledger) == unchanged

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
        task, run = external_task(ledger)
        unchanged = ledger_content(ledger)
        with pytest.raises(LedgerUnavailable):
            ledger.external_tasks.record(changed(task, **impossible), run._replace(task_id=impossible.get("task_id", run.task_id)))
        assert ledger_content(ledger) == unchanged

    def test_an_external_task_can_only_make_legal_transitions(self, ledger: Ledger) -> None:
        task, run = external_task(ledger)
        ledger.external_tasks.record(task, run)
        unchanged = ledger_content(ledger)
        for state in (TaskState.REJECTED, TaskState.EXPIRED, TaskState.PROPOSED):
            with pytest.raises(IllegalTransition, match=f"The task is active and cannot be {state}"):
                ledger.external_tasks.change_record(changed(task, state=state, approved_by=None, approved_at=None, run_count=0), run)
        assert ledger_content(ledger) == unchanged

    def test_a_missing_external_task_cannot_be_changed(self, ledger: Ledger) -> None:
        with pytest.raises(TaskNotFound):
            ledger.external_tasks.change_record(*external_task(ledger))
        propose(ledger, "task_p")
        with pytest.raises(BadInput):
            ledger.external_tasks.change_record(entry_of_task(ledger, "task_p").task, latest(ledger, "task_model"))


def external_task(ledger: Ledger) -> tuple[Task, Run]:
    """A running task that an embedding program has recorded."""
    run = running(ledger, "task_model")
    task = entry_of_task(ledger, "task_model").task
    return task._replace(task_id="task_hand"), run._replace(task_id="task_hand", run_id="task_hand", runner=EXTERNAL, folder="tasks/hand")
