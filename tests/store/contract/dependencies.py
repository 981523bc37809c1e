"""Dependencies between tasks: what `TaskStore` and `RunQueue` do together."""

import itertools

import pytest

from backburner.core.errors import TaskNotFound
from backburner.core.models import ENGINE
from backburner.core.states import Result, RunState, TaskState
from backburner.store.ledger import Ledger
from contract.cases import (
    DAY,
    ENDS,
    NOW,
    OURS,
    approve,
    claimed,
    create_task_that_ends,
    done,
    end_task,
    ended,
    entry_of_task,
    failed,
    kinds,
    latest,
    ledger_content,
    notified_tasks,
    propose,
    submit,
)


class DependencyContract:
    @pytest.mark.parametrize("late", [False, True], ids=["asked for before that", "asked for after that"])
    @pytest.mark.parametrize("how", ENDS)
    def test_a_task_starts_when_its_dependency_completes_and_fails_otherwise(self, ledger: Ledger, how: str, late: bool) -> None:
        create_task_that_ends(ledger, how)
        if not late:
            assert submit(ledger, "task_b", after=("task_a",)).run.blocked  # type: ignore[union-attr]
            assert "task_b" not in ledger.runs.queued(ENGINE, NOW + DAY, 9)
        end_task(ledger, how)
        if late:
            submit(ledger, "task_b", after=("task_a",))
        task, run = entry_of_task(ledger, "task_b")
        assert run is not None and not run.blocked
        if how == "completed":
            assert (task.state, run.state, ledger.queries.failed_dependents("task_a")) == (TaskState.ACTIVE, RunState.PENDING, [])
            assert claimed(ledger) == ["task_b"]
            return
        assert (task.state, run.state, run.end.result, run.started_at) == (TaskState.FAILED, RunState.FAILED, Result.DEPENDENCY, None)
        assert run.error is not None and run.error.startswith("dependency task_a ")
        assert notified_tasks(ledger).count("task_b") == 1 and kinds(ledger, "task_b") == ["task_submitted", "task_failed", "run_failed"]
        assert late or ledger.queries.failed_dependents("task_a") == [(task, run)]
        assert claimed(ledger) == []

    def test_a_task_after_a_proposal_waits_for_its_approval_and_its_end(self, ledger: Ledger) -> None:
        propose(ledger, "task_a")
        submit(ledger, "task_b", after=("task_a",))
        approve(ledger, "task_a")
        assert claimed(ledger) == ["task_a"]
        assert latest(ledger, "task_b").blocked
        ledger.runs.settle([done("task_a")], OURS)
        assert claimed(ledger) == ["task_b"]

    @pytest.mark.parametrize("order", list(itertools.permutations("ab")), ids="".join)
    @pytest.mark.parametrize("ends", ["completed completed", "completed failed", "failed completed", "failed failed"])
    def test_a_task_with_two_dependencies_fails_once_when_the_first_one_fails(
        self, ledger: Ledger, ends: str, order: tuple[str, ...]
    ) -> None:
        for name in "ab":
            create_task_that_ends(ledger, "failed", f"task_{name}")
        submit(ledger, "task_c", after=("task_a", "task_b", "task_a"))
        end_task(ledger, ends.split()[0], f"task_{order[0]}")
        once = latest(ledger, "task_c")
        end_task(ledger, ends.split()[1], f"task_{order[1]}")
        last = latest(ledger, "task_c")
        assert (once.state, once.blocked) == (("failed", False) if ends.startswith("failed") else ("pending", True))
        assert last.state == ("failed" if "failed" in ends else "pending")
        if ends.startswith("failed"):
            assert last == once
        assert notified_tasks(ledger).count("task_c") == ("failed" in ends)
        assert claimed(ledger) == ([] if "failed" in ends else ["task_c"])
        cleared = [ledger.tasks.clear([task_id], NOW) for task_id in ("task_a", "task_b")]
        assert all(cleared) and entry_of_task(ledger, "task_c").status == ("failed" if "failed" in ends else "running")

    def test_a_failure_fails_all_transitive_dependents_once(self, ledger: Ledger) -> None:
        graph = {"a": "", "x": "", "b": "a", "c": "a", "d": "bc", "e": "dx", "f": "x", "g": "a", "h": "g"}
        for name, before in graph.items():
            submit(ledger, f"task_{name}", after=tuple(f"task_{other}" for other in before))
        ledger.tasks.request_cancel("task_g", NOW)
        assert claimed(ledger) == ["task_a", "task_x"]
        ledger.runs.settle([failed("task_a")], OURS)
        fell = {entry.task.task_id[-1]: entry.run for entry in ledger.queries.list(status="failed", project=None, limit=None)}
        assert "".join(sorted(fell)) == "abcdeh"
        assert {name: run.error.split()[1][-1] for name, run in fell.items() if name in "bcdeh"}.items() <= {
            ("b", "a"), ("c", "a"), ("d", "b"), ("d", "c"), ("e", "d"), ("h", "g")
        }  # fmt: skip
        assert "was cancelled" in fell["h"].error
        assert sorted(notified_tasks(ledger)) == [f"task_{name}" for name in "abcdegh"]
        for task_id, dependents in (("task_a", "bcde"), ("task_d", "e"), ("task_g", "h"), ("task_f", "")):
            assert sorted(one.task.task_id for one in ledger.queries.failed_dependents(task_id)) == [f"task_{name}" for name in dependents]
        ledger.runs.settle([done("task_x")], OURS)
        assert claimed(ledger) == ["task_f"]

    def test_a_dependency_must_exist(self, ledger: Ledger) -> None:
        ended(ledger, "task_gone")
        ledger.tasks.clear(["task_gone"], NOW)
        submit(ledger, "task_a")
        unchanged = ledger_content(ledger)
        for unknown in ("task_missing", "task_gone", "task_b"):
            with pytest.raises(TaskNotFound, match=unknown):
                submit(ledger, "task_b", after=("task_a", unknown))
        assert ledger_content(ledger) == unchanged

    @pytest.mark.parametrize("answer", ["yes", "no"])
    @pytest.mark.parametrize("how", ENDS)
    def test_a_proposal_with_an_ended_dependency_fails_or_starts_on_approval(self, ledger: Ledger, how: str, answer: str) -> None:
        create_task_that_ends(ledger, how)
        propose(ledger, "task_b", after=("task_a",))
        submit(ledger, "task_c", after=("task_b",))
        end_task(ledger, how)
        assert [entry_of_task(ledger, task_id).status for task_id in ("task_b", "task_c")] == ["proposed", "pending"]
        if answer == "no":
            ledger.tasks.refuse("task_b", expired=False, now=NOW + 2000)
            assert latest(ledger, "task_c").error == "dependency task_b was rejected"
            return
        entry = approve(ledger, "task_b", NOW + 2000)
        assert entry == entry_of_task(ledger, "task_b")
        if how == "completed":
            assert claimed(ledger, now=NOW + 2000) == ["task_b"]
            assert latest(ledger, "task_c").blocked
            return
        fell = [latest(ledger, task_id) for task_id in ("task_b", "task_c")]
        assert {(run.state, run.end.result, run.ended_at) for run in fell} == {(RunState.FAILED, Result.DEPENDENCY, NOW + 2000)}
        assert [notified_tasks(ledger).count(task_id) for task_id in ("task_b", "task_c")] == [1, 1]
        assert [one.task.task_id for one in ledger.queries.failed_dependents("task_b")] == ["task_c"]

    def test_an_approved_proposal_waits_in_the_queue_for_its_dependency(self, ledger: Ledger) -> None:
        create_task_that_ends(ledger, "completed")
        propose(ledger, "task_b", after=("task_a",), start_at=NOW + 5000)
        assert approve(ledger, "task_b").run.blocked  # type: ignore[union-attr]
        end_task(ledger, "completed")
        assert (claimed(ledger, now=NOW + 4999), claimed(ledger, now=NOW + 5000)) == ([], ["task_b"])

    @pytest.mark.parametrize("how", ["completed", "failed"])
    def test_a_proposal_keeps_the_result_of_a_cleared_dependency(self, ledger: Ledger, how: str) -> None:
        create_task_that_ends(ledger, how)
        propose(ledger, "task_b", after=("task_a",))
        end_task(ledger, how)
        ledger.tasks.clear(["task_a"], NOW)
        assert approve(ledger, "task_b").status == ("pending" if how == "completed" else "failed")

    def test_an_unanswered_proposal_is_not_cleared(self, ledger: Ledger) -> None:
        propose(ledger, "task_a")
        submit(ledger, "task_b", after=("task_a",))
        unchanged = ledger_content(ledger)
        assert ledger.tasks.clear(["task_a"], NOW) == []
        assert ledger_content(ledger) == unchanged
