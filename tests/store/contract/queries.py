"""Reading tasks: by reference, in lists, by batch and by trace."""

import pytest

from backburner.core.models import ENGINE, Approval
from backburner.core.states import RunState
from backburner.core.trace_context import ParentSpan
from backburner.store.ledger import Ledger
from contract.cases import (
    HOUR,
    NOW,
    OURS,
    agent,
    claimed,
    done,
    ended,
    entry_of_task,
    failed,
    latest,
    plan_at,
    propose,
    recurring,
    run_once,
    running,
    submit,
)


class QueryContract:
    def test_a_task_is_found_by_its_id_even_if_another_id_contains_it(self, ledger: Ledger) -> None:
        submit(ledger, "task_x")
        submit(ledger, "task_xy")
        assert ledger.queries.find("task_x", None) == ["task_x"]

    def test_a_task_is_found_by_a_part_of_its_id(self, ledger: Ledger) -> None:
        submit(ledger, "task_20260209_make")
        submit(ledger, "task_20260210_pytest")
        assert ledger.queries.find("pytest", None) == ["task_20260210_pytest"]
        assert ledger.queries.find("0209", None) == ["task_20260209_make"]

    def test_a_part_of_several_ids_finds_all_of_them_newest_first(self, ledger: Ledger) -> None:
        for letter in "abc":
            submit(ledger, f"task_{letter}")
        assert ledger.queries.find("task", None) == ["task_c", "task_b", "task_a"]

    def test_an_id_without_its_date_takes_precedence_over_a_part_of_an_id(self, ledger: Ledger) -> None:
        submit(ledger, "task_20260209_120000_make")
        submit(ledger, "task_20260209_120000_make_2")
        assert ledger.queries.find("120000_make", None) == ["task_20260209_120000_make"]
        submit(ledger, "task_20260210_120000_make")
        assert ledger.queries.find("120000_make", None) == ["task_20260210_120000_make", "task_20260209_120000_make"]

    def test_old_tasks_are_found_by_a_part_that_no_new_one_contains(self, ledger: Ledger) -> None:
        old = ["task_20260101_120000_Build", "task_20260101_120000_Build_2", "task_20260102_120000_x"]
        for task_id in (*old, "task_20260103_130000_new"):
            submit(ledger, task_id)
        ledger.database.write("UPDATE tasks SET seq = seq + 20000 WHERE task_id = 'task_20260103_130000_new'")
        assert list(ledger.queries.find("0000_build", "/p")) == old[1::-1] and list(ledger.queries.find("120000_build", "/p")) == old[:1]
        assert list(ledger.queries.find("02_1", "/p")) == old[2:] and ledger.queries.find("nothing", "/p") == []
        assert list(ledger.queries.find("0000_", "/p")) == ["task_20260103_130000_new"]

    def test_a_label_takes_precedence_over_a_part_of_an_id(self, ledger: Ledger) -> None:
        submit(ledger, "task_nightly_old")
        submit(ledger, "task_other", name="nightly")
        assert ledger.queries.find("nightly", None) == ["task_other"]

    def test_a_label_means_the_task_of_the_current_project(self, ledger: Ledger) -> None:
        submit(ledger, "task_p", name="nightly", project="/p")
        submit(ledger, "task_q", name="nightly", project="/q")
        assert ledger.queries.find("nightly", "/p") == ["task_p"]
        assert ledger.queries.find("nightly", "/q") == ["task_q"]
        assert ledger.queries.find("nightly", "/elsewhere") == ["task_q"]

    def test_a_label_means_its_newest_task(self, ledger: Ledger) -> None:
        for letter in "abc":
            submit(ledger, f"task_{letter}", name="tests")
        assert ledger.queries.find("tests", None) == ["task_c"]

    def test_the_id_of_a_cleared_task_matches_no_other_task(self, ledger: Ledger) -> None:
        ended(ledger, "task_x")
        submit(ledger, "task_x")
        ledger.tasks.clear(["task_x"], NOW)
        assert ledger.queries.find("task_x", None) == []
        assert ledger.queries.find("task_x_2", None) == ["task_x_2"]

    def test_last_is_the_newest_task_of_the_project_but_no_chat(self, ledger: Ledger) -> None:
        assert ledger.queries.find("last", "/p") == []
        submit(ledger, "task_a", project="/p")
        submit(ledger, "task_b", project="/q")
        agent(ledger, "task_chat", project="/p", terms={"chat": True})
        assert ledger.queries.find("last", "/p") == ["task_a"]
        assert ledger.queries.find("last", None) == ["task_b"]

    @pytest.mark.parametrize("reference", ["%", "a_c", "t%k", "\\", "\\%", "TASK\\", "'", '"; --'])
    def test_pattern_characters_in_a_reference_are_plain_text(self, ledger: Ledger, reference: str) -> None:
        submit(ledger, "task_abc")
        assert ledger.queries.find(reference, None) == []
        submit(ledger, f"task_{reference}")
        assert ledger.queries.find(reference, None) == [f"task_{reference}"]

    def test_an_empty_reference_finds_nothing(self, ledger: Ledger) -> None:
        submit(ledger)
        assert ledger.queries.find("", None) == []
        assert ledger.queries.find("task_y", None) == []

    def test_get_takes_only_a_complete_id(self, ledger: Ledger) -> None:
        submit(ledger)
        assert ledger.queries.get("task") is None and ledger.queries.get("task_y") is None

    def test_lists_are_newest_first_and_limited(self, ledger: Ledger) -> None:
        for letter in "bac":
            submit(ledger, f"task_{letter}")
        assert listed(ledger) == ["task_c", "task_a", "task_b"]
        assert listed(ledger, limit=2) == ["task_c", "task_a"]
        assert listed(ledger, limit=0) == []

    def test_lists_are_filtered_by_status_and_project(self, ledger: Ledger) -> None:
        ended(ledger, "task_done")
        running(ledger, "task_running")
        submit(ledger, "task_pending", project="/q")
        propose(ledger, "task_proposed", project="/q")
        propose(ledger, "task_rejected")
        ledger.tasks.refuse("task_rejected", expired=False, now=NOW)
        for status in ("pending", "running", "proposed", "rejected"):
            assert listed(ledger, status=status) == [f"task_{status}"]
        assert listed(ledger, status="completed") == ["task_done"]
        assert listed(ledger, status="failed") == []
        assert listed(ledger, project="/q") == ["task_proposed", "task_pending"]
        assert listed(ledger, status="pending", project="/p") == []
        assert listed(ledger, status="pending", project="/q", limit=5) == ["task_pending"]

    def test_a_batch_counts_its_tasks_by_status(self, ledger: Ledger) -> None:
        for name, batch, project in (("a", "one", "/p"), ("b", "one", "/p"), ("c", "two", "/p"), ("d", "one", "/q"), ("e", None, "/p")):
            submit(ledger, f"task_{name}", batch=batch, project=project)
        propose(ledger, "task_f", batch="one")
        assert claimed(ledger, 1) == ["task_a"]
        ledger.runs.settle([failed("task_a")], OURS)
        assert [(one.batch, one.project, one.created_at, one.counts) for one in ledger.queries.batches()] == [
            ("one", "/p", NOW, {"failed": 1, "pending": 1, "proposed": 1}),
            ("two", "/p", NOW, {"pending": 1}),
            ("one", "/q", NOW, {"pending": 1}),
        ]
        assert [one.project for one in ledger.queries.batches("/q")] == ["/q"]
        listed = [entry.task.task_id for entry in ledger.queries.list(status=None, project="/p", batch="one", limit=None)]
        assert listed == ["task_f", "task_b", "task_a"]
        assert ledger.queries.list(status=None, project=None, batch="three", limit=None) == []

    def test_a_task_and_its_runs_are_spans_of_the_requesters_trace(self, ledger: Ledger) -> None:
        asker = ParentSpan("a" * 32, "b" * 16)
        run = running(ledger, "task_a", parent=asker, restarts=1)
        ledger.runs.settle([failed(run)], OURS)
        submit(ledger, "task_b", parent=ParentSpan("a" * 32, run.span_id))
        submit(ledger, "task_else")
        task, again = entry_of_task(ledger, "task_a").task, latest(ledger, "task_a")
        spans = ledger.queries.spans("a" * 32)
        assert [(span.task_id, span.run_id, span.parent_span_id) for span in spans] == [
            ("task_a", None, "b" * 16), ("task_a", "task_a", task.trace.span_id), ("task_a", "task_a.2", task.trace.span_id),
            ("task_b", None, run.span_id), ("task_b", "task_b", entry_of_task(ledger, "task_b").task.trace.span_id)
        ]  # fmt: skip
        assert len({span.span_id for span in spans}) == 5 and {span.trace_id for span in spans} == {"a" * 32} == {again.trace_id}
        assert [(span.started_at, span.ended_at, span.status) for span in ledger.queries.task_spans("task_a")] == [
            (NOW, NOW, "active"), (NOW + 10, NOW + 1000, "failed"), (None, None, "pending")
        ]  # fmt: skip
        assert {ledger.queries.trace_of(span.span_id) for span in spans} == {"a" * 32} == {ledger.queries.trace_of("b" * 16)}
        assert ledger.queries.trace_of("c" * 16) is None and ledger.queries.task_spans("task_missing") == [] == ledger.queries.spans(
            "d" * 32
        )
        own = entry_of_task(ledger, "task_else").task.trace.trace_id
        assert len(own) == 32 and own == latest(ledger, "task_else").trace_id != "a" * 32

    def test_a_task_is_found_by_a_run_id_and_by_a_part_ignoring_case(self, ledger: Ledger) -> None:
        run_once(ledger, recurring(ledger, "task_nightly"), NOW)
        run_once(ledger, entry_of_task(ledger, "task_nightly").task, NOW + 1)
        assert ledger.queries.find("task_nightly.2", None) == ["task_nightly"]
        assert ledger.queries.find("IGHT", None) == ["task_nightly"]

    def test_an_open_recurring_task_takes_precedence_over_others_of_its_name(self, ledger: Ledger) -> None:
        recurring(ledger, "task_a", name="nightly")
        submit(ledger, "task_b", name="nightly")
        assert ledger.queries.find("nightly", "/p") == ["task_a"]
        ledger.tasks.request_cancel("task_a", NOW)
        assert ledger.queries.find("nightly", "/p") == ["task_b"]

    def test_invalid_text_finds_nothing(self, ledger: Ledger) -> None:
        submit(ledger)
        odd = b"\xff".decode("utf-8", "surrogateescape")
        assert ledger.queries.get(odd) is None and ledger.queries.find(odd, None) == []

    def test_a_quiet_list_hides_chats_and_successful_runs_of_recurring_tasks(self, ledger: Ledger) -> None:
        recurring(ledger)
        for name, session in (("task_a", "task:task_r"), ("task_b", "task:task_r"), ("task_c", None)):
            submit(ledger, name, session=session, owner=OURS)
        ledger.runs.settle([done("task_a"), failed("task_b"), done("task_c")], OURS)
        agent(ledger, "task_chat", terms={"chat": True})
        assert [entry.task.task_id for entry in ledger.queries.list(quiet=True)] == ["task_c", "task_b", "task_r"]
        assert [entry.task.task_id for entry in ledger.queries.list(recurring=True)] == ["task_r"]

    def test_tasks_requested_by_a_session_include_those_of_its_agents(self, ledger: Ledger) -> None:
        asked = {"task_a": "claude:1", "task_b": "agent:task_a", "task_c": "agent:task_b", "task_d": "task:task_c", "task_e": "claude:2"}
        for name, session in asked.items():
            submit(ledger, name, session=session)
        assert [entry_of_task(ledger, name).task.parent_task for name in asked] == [None, "task_a", "task_b", "task_c", None]
        assert sorted(ledger.queries.requested_by("claude:1")) == ["task_a", "task_b", "task_c", "task_d"]
        assert ledger.queries.requested_by("agent:task_b") == ["task_c", "task_d"] and ledger.queries.requested_by("nobody") == []

    def test_an_agent_without_a_task_is_not_a_parent(self, ledger: Ledger) -> None:
        submit(ledger, "task_a", session="agent:a-program-of-my-own")
        submit(ledger, "task_b", session="claude:task_a")
        assert [entry_of_task(ledger, name).task.parent_task for name in ("task_a", "task_b")] == [None, None]
        assert ledger.queries.requested_by("agent:a-program-of-my-own") == ["task_a"] and ledger.queries.requested_by("agent:task_a") == []

    def test_a_task_has_the_run_that_requested_it(self, ledger: Ledger) -> None:
        agent(ledger, "task_chat", session="chat:1", terms={"chat": True})
        submit(ledger, "task_a", session="chat:1", parent_run="task_chat")
        submit(ledger, "task_b", session="chat:1", parent_run="gone")
        parents = [(task.parent_task, task.parent_run) for task in (entry_of_task(ledger, name).task for name in ("task_a", "task_b"))]
        assert parents == [("task_chat", "task_chat"), (None, "gone")]
        assert sorted(ledger.queries.requested_by("chat:1")) == ["task_a", "task_b", "task_chat"]

    def test_a_quiet_list_hides_runs_of_cleared_recurring_tasks(self, ledger: Ledger) -> None:
        recurring(ledger)
        submit(ledger, "task_a", session="task:task_r", owner=OURS)
        submit(ledger, "task_b", session="agent:task_r", owner=OURS)
        ledger.runs.settle([done("task_a"), done("task_b")], OURS)
        ledger.tasks.request_cancel("task_r", NOW + 1)
        ledger.tasks.clear(["task_r"], NOW + 2)
        assert [entry.task.task_id for entry in ledger.queries.list()] == ["task_b", "task_a"]
        assert [entry.task.task_id for entry in ledger.queries.list(quiet=True)] == ["task_b"]

    def test_history_has_runs_and_skipped_slots_newest_first(self, ledger: Ledger) -> None:
        task = recurring(ledger)
        ledger.recurring.fire(plan_at(NOW + 3 * HOUR), NOW + 3 * HOUR, "tasks")
        runs = ledger.queries.history("task_r", 9)
        assert [(run.n, run.cause.slot, run.state) for run in runs] == [
            (1, NOW + 3 * HOUR, RunState.PENDING), (-2, NOW + 2 * HOUR, RunState.SKIPPED), (-1, NOW + HOUR, RunState.SKIPPED)
        ]  # fmt: skip
        assert task.run_count == 0 and [run.n for run in ledger.queries.history("task_r", 2)] == [1, -2]
        assert ledger.queries.history("task_missing", 9) == []

    def test_a_command_that_failed_because_of_the_sandbox_is_found(self, ledger: Ledger) -> None:
        run = running(ledger)
        spec = entry_of_task(ledger, "task_x").task.spec
        ledger.runs.record_sandbox(run.run_id, OURS, '{"level": "full"}')
        assert not ledger.queries.failed_in_sandbox(spec.command.words, spec.command.shell, spec.cwd)
        ledger.runs.settle([done(run, RunState.FAILED, exit_code=1)._replace(problem="sandbox")], OURS)
        assert ledger.queries.failed_in_sandbox(spec.command.words, spec.command.shell, spec.cwd) == ['{"level": "full"}']
        assert not ledger.queries.failed_in_sandbox(spec.command.words, spec.command.shell, "/elsewhere")
        assert not ledger.queries.failed_in_sandbox(("other",), spec.command.shell, spec.cwd)

    def test_an_offer_that_nobody_accepted_is_found_only_by_its_own_id(self, ledger: Ledger) -> None:
        submit(ledger, name="tests")
        (claim,) = ledger.runs.claim(ENGINE, OURS, 5, NOW)
        ledger.runs.settle([done(claim.run, RunState.FAILED, exit_code=1)._replace(problem="sandbox")], OURS)
        assert [ledger.queries.find(reference, None) for reference in ("tests", "last", "task")] == [["task_x"]] * 3
        assert ledger.queries.find("_outside", None) == ["task_x_outside"]
        command, cwd = entry_of_task(ledger, "task_x").task.spec.command, entry_of_task(ledger, "task_x").task.spec.cwd
        assert ledger.queries.open_offers(command.words, command.shell, cwd) == ["task_x_outside"]
        assert not ledger.queries.open_offers(command.words, command.shell, "/elsewhere")
        ledger.tasks.approve("task_x_outside", Approval("user", "cli", NOW), runner=ENGINE, folder="tasks", max_active=20)
        assert ledger.queries.find("tests", None) == ledger.queries.find("last", None) == ["task_x_outside"]
        assert not ledger.queries.open_offers(command.words, command.shell, cwd)

    def test_a_command_that_fails_without_the_sandbox_too_did_not_fail_because_of_it(self, ledger: Ledger) -> None:
        run = running(ledger)
        spec = entry_of_task(ledger, "task_x").task.spec
        ledger.runs.record_sandbox(run.run_id, OURS, '{"level": "full"}')
        ledger.runs.settle([done(run, RunState.FAILED, exit_code=1)._replace(problem="sandbox")], OURS)
        ledger.tasks.approve("task_x_outside", Approval("user", "cli", NOW), runner=ENGINE, folder="tasks", max_active=20)
        (outside,) = ledger.runs.claim(ENGINE, OURS, 5, NOW)
        assert ledger.queries.failed_in_sandbox(spec.command.words, spec.command.shell, spec.cwd)
        ledger.runs.settle([done(outside.run, RunState.FAILED, exit_code=1)], OURS)
        assert not ledger.queries.failed_in_sandbox(spec.command.words, spec.command.shell, spec.cwd)

    def test_a_task_has_the_environment_it_was_submitted_with(self, ledger: Ledger) -> None:
        submit(ledger, environment={"A": "ü\n"})
        assert ledger.queries.environment("task_x") == {"A": "ü\n"} and ledger.queries.environment("task_missing") == {}


def listed(ledger: Ledger, *, status: str | None = None, project: str | None = None, limit: int | None = None) -> list[str]:
    return [entry.task.task_id for entry in ledger.queries.list(status=status, project=project, limit=limit)]
