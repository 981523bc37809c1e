"""Tasks that come after others: what `TaskStore` and `RunQueue` do together."""

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
    begun,
    claimed,
    done,
    ended,
    failed,
    kinds,
    latest,
    over,
    propose,
    shown,
    submit,
    told,
    whole,
)


class DependencyContract:
    @pytest.mark.parametrize("late", [False, True], ids=["asked for before that", "asked for after that"])
    @pytest.mark.parametrize("how", ENDS)
    def test_a_task_starts_once_what_it_comes_after_completed_and_else_fails_with_it(self, ledger: Ledger, how: str, late: bool) -> None:
        begun(ledger, how)
        if not late:
            assert submit(ledger, "task_b", after=("task_a",)).run.blocked  # type: ignore[union-attr]
            assert "task_b" not in ledger.runs.queued(ENGINE, NOW + DAY, 9)
        over(ledger, how)
        if late:
            submit(ledger, "task_b", after=("task_a",))
        task, run = shown(ledger, "task_b")
        assert run is not None and not run.blocked
        if how == "completed":
            assert (task.state, run.state, ledger.queries.failed_dependents("task_a")) == (TaskState.ACTIVE, RunState.PENDING, [])
            assert claimed(ledger) == ["task_b"]
            return
        assert (task.state, run.state, run.end.result, run.started_at) == (TaskState.FAILED, RunState.FAILED, Result.DEPENDENCY, None)
        assert run.error is not None and run.error.startswith("dependency task_a ")
        assert told(ledger).count("task_b") == 1 and kinds(ledger, "task_b") == ["task_submitted", "task_failed", "run_failed"]
        assert late or ledger.queries.failed_dependents("task_a") == [(task, run)]
        assert claimed(ledger) == []

    def test_what_comes_after_a_proposal_waits_for_the_yes_and_then_for_the_end(self, ledger: Ledger) -> None:
        propose(ledger, "task_a")
        submit(ledger, "task_b", after=("task_a",))
        approve(ledger, "task_a")
        assert claimed(ledger) == ["task_a"]
        assert latest(ledger, "task_b").blocked
        ledger.runs.settle([done("task_a")], OURS)
        assert claimed(ledger) == ["task_b"]

    @pytest.mark.parametrize("order", list(itertools.permutations("ab")), ids="".join)
    @pytest.mark.parametrize("ends", ["completed completed", "completed failed", "failed completed", "failed failed"])
    def test_of_two_that_a_task_comes_after_both_must_complete_and_the_first_failure_is_the_only_one(
        self, ledger: Ledger, ends: str, order: tuple[str, ...]
    ) -> None:
        for name in "ab":
            begun(ledger, "failed", f"task_{name}")
        submit(ledger, "task_c", after=("task_a", "task_b", "task_a"))
        over(ledger, ends.split()[0], f"task_{order[0]}")
        once = latest(ledger, "task_c")
        over(ledger, ends.split()[1], f"task_{order[1]}")
        last = latest(ledger, "task_c")
        assert (once.state, once.blocked) == (("failed", False) if ends.startswith("failed") else ("pending", True))
        assert last.state == ("failed" if "failed" in ends else "pending")
        if ends.startswith("failed"):
            assert last == once
        assert told(ledger).count("task_c") == ("failed" in ends)
        assert claimed(ledger) == ([] if "failed" in ends else ["task_c"])
        cleared = [ledger.tasks.clear([task_id], NOW) for task_id in ("task_a", "task_b")]
        assert all(cleared) and shown(ledger, "task_c").status == ("failed" if "failed" in ends else "running")

    def test_just_those_fall_that_come_after_what_failed_and_each_of_them_once(self, ledger: Ledger) -> None:
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
        assert sorted(told(ledger)) == [f"task_{name}" for name in "abcdegh"]
        for task_id, fallen in (("task_a", "bcde"), ("task_d", "e"), ("task_g", "h"), ("task_f", "")):
            assert sorted(one.task.task_id for one in ledger.queries.failed_dependents(task_id)) == [f"task_{name}" for name in fallen]
        ledger.runs.settle([done("task_x")], OURS)
        assert claimed(ledger) == ["task_f"]

    def test_a_task_cannot_come_after_what_is_not_known(self, ledger: Ledger) -> None:
        ended(ledger, "task_gone")
        ledger.tasks.clear(["task_gone"], NOW)
        submit(ledger, "task_a")
        unchanged = whole(ledger)
        for unknown in ("task_missing", "task_gone", "task_b"):
            with pytest.raises(TaskNotFound, match=unknown):
                submit(ledger, "task_b", after=("task_a", unknown))
        assert whole(ledger) == unchanged

    @pytest.mark.parametrize("answer", ["yes", "no"])
    @pytest.mark.parametrize("how", ENDS)
    def test_a_proposal_outlives_what_it_comes_after_and_learns_of_its_end_with_the_answer(
        self, ledger: Ledger, how: str, answer: str
    ) -> None:
        begun(ledger, how)
        propose(ledger, "task_b", after=("task_a",))
        submit(ledger, "task_c", after=("task_b",))
        over(ledger, how)
        assert [shown(ledger, task_id).status for task_id in ("task_b", "task_c")] == ["proposed", "pending"]
        if answer == "no":
            ledger.tasks.refuse("task_b", expired=False, now=NOW + 2000)
            assert latest(ledger, "task_c").error == "dependency task_b was rejected"
            return
        entry = approve(ledger, "task_b", NOW + 2000)
        assert entry == shown(ledger, "task_b")
        if how == "completed":
            assert claimed(ledger, now=NOW + 2000) == ["task_b"]
            assert latest(ledger, "task_c").blocked
            return
        fell = [latest(ledger, task_id) for task_id in ("task_b", "task_c")]
        assert {(run.state, run.end.result, run.ended_at) for run in fell} == {(RunState.FAILED, Result.DEPENDENCY, NOW + 2000)}
        assert [told(ledger).count(task_id) for task_id in ("task_b", "task_c")] == [1, 1]
        assert [one.task.task_id for one in ledger.queries.failed_dependents("task_b")] == ["task_c"]

    def test_a_proposal_that_is_approved_while_it_has_to_wait_waits_in_the_queue(self, ledger: Ledger) -> None:
        begun(ledger, "completed")
        propose(ledger, "task_b", after=("task_a",), start_at=NOW + 5000)
        assert approve(ledger, "task_b").run.blocked  # type: ignore[union-attr]
        over(ledger, "completed")
        assert (claimed(ledger, now=NOW + 4999), claimed(ledger, now=NOW + 5000)) == ([], ["task_b"])

    @pytest.mark.parametrize("how", ["completed", "failed"])
    def test_a_proposal_remembers_how_what_it_comes_after_ended_when_that_is_cleared(self, ledger: Ledger, how: str) -> None:
        begun(ledger, how)
        propose(ledger, "task_b", after=("task_a",))
        over(ledger, how)
        ledger.tasks.clear(["task_a"], NOW)
        assert approve(ledger, "task_b").status == ("pending" if how == "completed" else "failed")

    def test_a_proposal_that_nobody_answered_is_not_cleared_so_that_nothing_waits_for_it_in_vain(self, ledger: Ledger) -> None:
        propose(ledger, "task_a")
        submit(ledger, "task_b", after=("task_a",))
        unchanged = whole(ledger)
        assert ledger.tasks.clear(["task_a"], NOW) == []
        assert whole(ledger) == unchanged
