"""Submitting, answering, cancelling and clearing tasks."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from backburner.core.errors import BadInput, IllegalTransition, StaleRun, TaskNotFound
from backburner.core.models import AGENT_LANE, ENGINE, LOCAL_AGENT_LANE, Approval
from backburner.core.schedule import every
from backburner.core.session_records import InteractiveLease, Session
from backburner.core.states import NoticeKind, Result, RunState, TaskState, WaitKind
from backburner.core.task_spec import AgentOptions, AgentSpec
from backburner.store.ledger import Ledger
from backburner.testing.records import request
from contract.cases import (
    DAY,
    EMBEDDER,
    HOUR,
    NOW,
    OURS,
    SECOND,
    THEIRS,
    YES,
    Open,
    agent,
    approve,
    claimed,
    done,
    ended,
    entry_of_task,
    failed,
    kinds,
    latest,
    ledger_content,
    propose,
    queue,
    recurring,
    run_once,
    running,
    submit,
    waiting_agent_run,
)


class TaskContract:
    def test_an_approved_task_has_a_pending_run(self, ledger: Ledger) -> None:
        entry = submit(ledger, name="nightly", description="all", env={"A": "b"}, timeout_ms=5, restarted_from="task_w")
        task, run = entry
        assert (task.task_id, task.state, task.run_count) == ("task_x", TaskState.ACTIVE, 1)
        assert (task.spec.command.words, task.spec.cwd, task.project, task.spec.env) == (("make", "all"), "/p/src", "/p", {"A": "b"})
        assert (task.spec.name, task.spec.description, task.spec.timeout_ms, task.restarted_from) == ("nightly", "all", 5, "task_w")
        assert (task.decision.by, task.decision.via, task.decision.at, task.decision.reasons) == ("user", "cli", NOW, ("why",))
        assert task.expires_at is None
        assert run is not None
        assert (run.run_id, run.n, run.state, run.runner, run.folder) == ("task_x", 1, RunState.PENDING, queue(ledger), "tasks/task_x")
        assert (run.owner, run.process, run.started_at, run.ended_at, run.end.result) == (None,) * 5
        assert kinds(ledger) == ["task_submitted"]

    def test_submit_returns_what_other_connections_read(self, ledger: Ledger, open_ledger: Open) -> None:
        approved, proposed = submit(ledger), propose(ledger, "task_y")
        other = open_ledger()
        assert (other.queries.get("task_x"), other.queries.get("task_y")) == (approved, proposed)

    def test_an_unapproved_task_is_a_proposal_without_a_run(self, ledger: Ledger) -> None:
        task, run = propose(ledger)
        assert (task.state, task.run_count, task.expires_at, task.decision.by, run) == (TaskState.PROPOSED, 0, NOW + DAY, None, None)
        assert kinds(ledger) == ["task_proposed"]
        assert ledger.runs.claim(ENGINE, OURS, 5, NOW) == []

    def test_a_taken_id_gets_a_number(self, ledger: Ledger) -> None:
        assert [submit(ledger).task.task_id for _ in range(3)] == ["task_x", "task_x_2", "task_x_3"]

    def test_an_id_that_ends_in_a_number_is_not_used_twice(self, ledger: Ledger) -> None:
        made = [submit(ledger, wanted).task.task_id for wanted in ("task_x_2", "task_x", "task_x", "task_x_2", "task_x")]
        assert len(set(made)) == 5

    def test_concurrent_submissions_get_different_ids(self, open_ledger: Open) -> None:
        ledgers = [open_ledger() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda ledger: [submit(ledger).task.task_id for _ in range(10)], ledgers))
        flat = [task_id for some in made for task_id in some]
        assert len(set(flat)) == 40
        events = ledgers[0].events.events(0, 100)
        assert [event.event_id for event in events] == sorted({event.event_id for event in events})

    def test_every_run_has_its_own_tag_and_span(self, ledger: Ledger) -> None:
        runs = [submit(ledger).run for _ in range(3)]
        assert len({run.process_tag for run in runs}) == len({run.span_id for run in runs}) == len({run.trace_id for run in runs}) == 3

    def test_commands_with_any_characters_are_stored(self, ledger: Ledger, open_ledger: Open) -> None:
        odd = ("'\"\\\n\t%_", "日本語", b"\xff\xfe".decode("utf-8", "surrogateescape"), "")
        submit(ledger, command=odd, env={"Ü=": "\n"}, description="é\n", name="a'b")
        task = entry_of_task(open_ledger(), "task_x").task
        assert (task.spec.command.words, task.spec.env, task.spec.description, task.spec.name) == (odd, {"Ü=": "\n"}, "é\n", "a'b")

    def test_approving_a_proposal_creates_a_pending_run(self, ledger: Ledger) -> None:
        propose(ledger)
        task, run = ledger.tasks.approve("task_x", Approval("user", "chat", NOW + 5), runner=ENGINE, folder="tasks")
        assert (task.state, task.run_count, task.decision.by, task.decision.via, task.decision.at) == (
            TaskState.ACTIVE,
            1,
            "user",
            "chat",
            NOW + 5,
        )
        assert run is not None and (run.state, run.created_at, run.folder) == (RunState.PENDING, NOW + 5, "tasks/task_x")
        assert entry_of_task(ledger, "task_x") == (task, run)
        assert kinds(ledger) == ["task_proposed", "task_approved"]
        assert [work.run.run_id for work in ledger.runs.claim(ENGINE, OURS, 5, NOW + 6)] == ["task_x"]

    @pytest.mark.parametrize(("expired", "state"), [(False, TaskState.REJECTED), (True, TaskState.EXPIRED)])
    def test_a_rejected_or_expired_proposal_ends(self, ledger: Ledger, expired: bool, state: TaskState) -> None:
        propose(ledger)
        assert ledger.tasks.refuse("task_x", expired=expired, now=NOW + 5).task.state == state
        assert entry_of_task(ledger, "task_x").task.state == state
        assert kinds(ledger) == ["task_proposed", f"task_{state}"]
        assert ledger.notices.notices(project=None, unread=True) == []

    @pytest.mark.parametrize("answer", ["approve", "reject", "expire"])
    @pytest.mark.parametrize("before", ["approved", "rejected", "expired", "submitted"])
    def test_only_a_proposal_can_be_answered_and_only_once(self, ledger: Ledger, before: str, answer: str) -> None:
        submit(ledger) if before == "submitted" else propose(ledger)
        match before:
            case "approved":
                ledger.tasks.approve("task_x", YES, runner=ENGINE, folder="tasks")
            case "rejected" | "expired":
                ledger.tasks.refuse("task_x", expired=before == "expired", now=NOW)
        unchanged = ledger_content(ledger)
        with pytest.raises(IllegalTransition):
            if answer == "approve":
                ledger.tasks.approve("task_x", YES, runner=ENGINE, folder="tasks")
            else:
                ledger.tasks.refuse("task_x", expired=answer == "expire", now=NOW)
        assert ledger_content(ledger) == unchanged

    def test_a_missing_task_cannot_be_answered(self, ledger: Ledger) -> None:
        with pytest.raises(TaskNotFound):
            ledger.tasks.approve("task_x", YES, runner=ENGINE, folder="tasks")
        with pytest.raises(TaskNotFound):
            ledger.tasks.refuse("task_x", expired=False, now=NOW)
        with pytest.raises(TaskNotFound):
            ledger.tasks.request_cancel("task_x", NOW)
        assert kinds(ledger) == []

    def test_proposals_are_overdue_when_they_expire(self, ledger: Ledger) -> None:
        propose(ledger, "task_a", expires_at=NOW + 10)
        propose(ledger, "task_b", expires_at=NOW + 20)
        propose(ledger, "task_c", expires_at=NOW + 5)
        ledger.tasks.refuse("task_c", expired=False, now=NOW)
        assert ledger.live_work.overdue_proposals(NOW + 9) == []
        assert ledger.live_work.overdue_proposals(NOW + 10) == ["task_a"]
        assert sorted(ledger.live_work.overdue_proposals(NOW + 20)) == ["task_a", "task_b"]

    def test_a_pending_run_is_cancelled_immediately_with_a_notice(self, ledger: Ledger) -> None:
        submit(ledger)
        entry = ledger.tasks.request_cancel("task_x", NOW + 5)
        assert (entry.status, entry.task.state, entry.run.end.result, entry.run.ended_at) == (
            "cancelled",
            TaskState.CANCELLED,
            Result.UNSTARTED,
            NOW + 5,
        )
        assert len(ledger.notices.notices(project=None, unread=True)) == 1
        assert ledger.runs.claim(ENGINE, OURS, 5, NOW + 6) == []

    def test_a_running_run_is_marked_for_its_owner_to_stop(self, ledger: Ledger) -> None:
        run = running(ledger)
        entry = ledger.tasks.request_cancel("task_x", NOW + 20)
        assert entry.run == run._replace(cancel_requested_at=NOW + 20)
        assert [one.cancel_requested_at for one in ledger.live_work.live_runs()] == [NOW + 20]
        assert ledger.notices.notices(project=None, unread=True) == []
        assert ledger.runs.settle([done(run, RunState.CANCELLED, Result.SIGNAL)], OURS).run_ids == ["task_x"]

    def test_cancelling_twice_has_the_effect_of_once(self, ledger: Ledger) -> None:
        running(ledger)
        first = ledger.tasks.request_cancel("task_x", NOW + 20)
        assert ledger.tasks.request_cancel("task_x", NOW + 30) == first
        assert kinds(ledger).count("cancel_requested") == 1

    def test_cancelling_a_proposal_rejects_it(self, ledger: Ledger) -> None:
        propose(ledger)
        assert ledger.tasks.request_cancel("task_x", NOW + 5).task.state == TaskState.REJECTED

    def test_an_ended_task_cannot_be_cancelled(self, ledger: Ledger) -> None:
        ended(ledger, "task_a")
        propose(ledger, "task_b")
        ledger.tasks.refuse("task_b", expired=True, now=NOW)
        unchanged = ledger_content(ledger)
        assert ledger.tasks.request_cancel("task_a", NOW + 9999).status == "completed"
        assert ledger.tasks.request_cancel("task_b", NOW + 9999).status == "expired"
        assert ledger_content(ledger) == unchanged

    def test_a_cleared_task_is_deleted_with_all_its_rows(self, ledger: Ledger) -> None:
        ended(ledger, "task_a")
        ended(ledger, "task_b")
        assert ledger.tasks.clear(["task_a"], NOW) == ["tasks/task_a"]
        assert ledger.queries.get("task_a") is None
        assert [notice.task_id for notice in ledger.notices.notices(project=None, unread=False)] == ["task_b"]
        assert kinds(ledger, "task_a") == ["task_cleared"]
        assert len(kinds(ledger, "task_b")) == 4

    def test_what_a_clear_without_a_sweep_leaves_is_swept_in_parts(self, ledger: Ledger) -> None:
        for name in ("task_a", "task_b", "task_c"):
            ended(ledger, name)
        ledger.tasks.clear(["task_a", "task_b"], NOW, sweep=False)
        assert len(kinds(ledger, "task_a")) > 1 and ledger.queries.get("task_a") is None
        position, parts = 0, 0
        while (found := ledger.tasks.sweep_cleared(position, NOW, 2)) is not None:
            position, parts = found, parts + 1
        assert parts > 3 and kinds(ledger, "task_a") == kinds(ledger, "task_b") == ["task_cleared"]
        assert len(kinds(ledger, "task_c")) > 1 and ledger.queries.environment("task_c")
        ledger.tasks.clear(["task_c"], NOW, sweep=False)
        while (found := ledger.tasks.sweep_cleared(position, NOW, 100)) is not None:
            position = found
        assert ledger.database.one("SELECT count(*) FROM environments") == (0,)

    def test_removed_output_is_recorded_and_reported_to_the_person(self, ledger: Ledger) -> None:
        ended(ledger, "task_a")
        ledger.tasks.report_removed_output("task_a", "removed", 3, NOW, notify=False)
        ledger.tasks.report_removed_output("task_a", "removed", 2, NOW, notify=True)
        assert kinds(ledger, "task_a")[-2:] == ["output_removed"] * 2
        assert [notice.text for notice in ledger.notices.notices() if notice.kind == "removed"] == ["removed"]

    def test_clearing_twice_has_the_effect_of_once(self, ledger: Ledger) -> None:
        ended(ledger)
        assert ledger.tasks.clear(["task_x", "task_x"], NOW) == ["tasks/task_x"]
        assert kinds(ledger) == ["task_cleared"]
        assert ledger.tasks.clear(["task_x"], NOW) == []
        assert kinds(ledger) == ["task_cleared"]

    def test_a_live_task_is_never_cleared(self, ledger: Ledger) -> None:
        running(ledger, "task_a")
        submit(ledger, "task_b")
        unchanged = ledger_content(ledger)
        assert ledger.tasks.clear(["task_a", "task_b", "task_missing"], NOW) == []
        assert ledger_content(ledger) == unchanged

    def test_a_cleared_id_is_not_given_to_another_task(self, ledger: Ledger) -> None:
        ended(ledger)
        ledger.tasks.clear(["task_x"], NOW)
        assert submit(ledger).task.task_id == "task_x_2"
        assert [work.environment for work in ledger.runs.claim(ENGINE, OURS, 1, NOW)] == [{"PATH": "/bin", "N": "1"}]

    def test_clearing_a_task_keeps_the_environment_of_another(self, ledger: Ledger) -> None:
        ended(ledger, "task_a")
        submit(ledger, "task_b")
        ledger.tasks.clear(["task_a"], NOW)
        assert [work.environment["N"] for work in ledger.runs.claim(ENGINE, OURS, 1, NOW)] == ["1"]

    def test_ended_before_lists_tasks_that_ended_before_a_time(self, ledger: Ledger) -> None:
        ended(ledger, "task_old", ended_at=NOW + 100)
        ended(ledger, "task_new", ended_at=NOW + 200)
        running(ledger, "task_running")
        submit(ledger, "task_pending")
        propose(ledger, "task_proposed")
        propose(ledger, "task_refused")
        ledger.tasks.refuse("task_refused", expired=False, now=NOW)
        assert sorted(ledger.tasks.ended_before(NOW + 200)) == ["task_old", "task_refused"]
        assert ledger.tasks.ended_before(NOW) == []

    def test_all_fields_of_a_submission_are_stored(self, ledger: Ledger, open_ledger: Open) -> None:
        asked = {
            "batch": "nightly", "key": "k", "priority": -1, "start_at": NOW + 5, "limits": {"nice": 5, "memory_mb": 64},
            "stdin": True, "ready_when": "up$", "restarts": 3,
        }  # fmt: skip
        submit(ledger, "task_a")
        entry = submit(ledger, **asked, after=("task_a",))
        assert entry.task.spec == request(("make", "all"), "/p/src", **asked, after=("task_a",)).spec
        run = latest(ledger, "task_x")
        assert (entry.task.spec.order.after, run.blocked, run.due_at, run.priority) == (("task_a",), True, NOW + 5, -1)
        assert open_ledger().queries.get("task_x") == entry

    @pytest.mark.parametrize(
        ("before", "asked", "at_once"),
        [
            ({}, {}, False),
            ({}, {"priority": 1}, True),
            ({"priority": -1}, {}, True),
            ({"priority": -1}, {"priority": -1}, False),
            ({"start_at": NOW}, {}, False),
            ({"start_at": NOW + 1}, {}, True),
            ({"start_at": NOW + 1}, {"start_at": NOW + 1}, False),
            ({"start_at": NOW + 1}, {"start_at": NOW}, True),
            ({"start_at": NOW + 1}, {"after": ("task_before",)}, False),
            ({"runner": EMBEDDER}, {}, True),
            ({"runner": EMBEDDER}, {"runner": EMBEDDER, "priority": -1}, False),
        ],
        ids=str,
    )
    def test_an_owner_with_capacity_claims_its_submission_unless_others_are_first(
        self, ledger: Ledger, open_ledger: Open, before: dict[str, Any], asked: dict[str, Any], at_once: bool
    ) -> None:
        submit(ledger, "task_before", **before)
        entry = submit(ledger, owner=OURS, **asked)
        assert open_ledger().queries.get("task_x") == entry
        run = latest(ledger, "task_x")
        assert (run.state, run.owner, run.started_at) == (("running", OURS, NOW) if at_once else ("pending", None, None))
        assert kinds(ledger, "task_x") == ["task_submitted", "run_started"][: 1 + at_once]
        assert "task_x" not in claimed(ledger, now=NOW + 9) or not at_once

    def test_an_unapproved_or_blocked_submission_is_not_claimed(self, ledger: Ledger) -> None:
        ended(ledger, "task_a", state=RunState.FAILED)
        assert propose(ledger, "task_b", owner=OURS).run is None
        assert submit(ledger, "task_c", owner=OURS, after=("task_a",)).run.end.result == Result.DEPENDENCY  # type: ignore[union-attr]

    def test_a_used_key_returns_the_existing_task_in_any_state(self, ledger: Ledger, open_ledger: Open) -> None:
        submit(ledger, "task_a", key="k")
        run = ledger.runs.claim(ENGINE, OURS, 1, NOW)[0].run
        for _ in range(2):
            before, unchanged = entry_of_task(ledger, "task_a"), ledger_content(ledger)
            other = {"command": ("rm",), "after": ("task_missing",), "owner": THEIRS, "priority": 1, "batch": "b"}
            assert submit(open_ledger(), "task_b", key="k", **other) == before
            assert propose(ledger, "task_c", key="k") == before
            assert ledger_content(ledger) == unchanged
            ledger.runs.settle([failed(run)], OURS)
        assert ledger.queries.by_key("/p", "k").status == "failed"

    def test_a_key_is_per_project_and_free_again_after_clearing(self, ledger: Ledger) -> None:
        ended(ledger, "task_x")
        made = [submit(ledger, f"task{project[1:]}", key="k", project=project).task.task_id for project in ("/p", "/q")]
        assert made == ["taskp", "taskq"]
        assert submit(ledger, "task_y", key="K").task.task_id == "task_y"
        ledger.tasks.request_cancel("taskp", NOW)
        ledger.tasks.clear(["taskp"], NOW)
        assert ledger.queries.by_key("/p", "k") is None
        assert submit(ledger, "task_again", key="k").task.task_id == "task_again"
        assert ledger.queries.by_key("/q", "k").task.task_id == "taskq"

    def test_concurrent_submissions_with_one_key_get_the_same_task(self, open_ledger: Open) -> None:
        ledgers = [open_ledger() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda ledger: {submit(ledger, key=f"k{n}").task.task_id for n in range(10)}, ledgers))
        assert made[0] == made[1] == made[2] == made[3] and len(made[0]) == 10

    def test_a_proposal_notifies_the_user_and_the_channels_of_the_task(self, ledger: Ledger) -> None:
        propose(ledger, channels=("phone",), session="claude:1", question=lambda task_id: f"May {task_id} run?", asked="print1")
        (notice,) = ledger.notices.notices()
        assert (notice.channel, notice.kind, notice.text) == ("inbox", NoticeKind.PROPOSED, "May task_x run?")
        assert [notice.channel for notice in ledger.deliveries.pending()] == ["to:phone"]
        assert entry_of_task(ledger, "task_x").question_fingerprint == "print1"
        approve(ledger, "task_x")
        assert ledger.notices.notices() == [] == ledger.deliveries.pending()

    def test_a_recurring_task_becomes_due_when_it_is_approved(self, ledger: Ledger) -> None:
        fields = every(HOUR, NOW)
        proposed = propose(ledger, "task_r", schedule=fields, kind="scheduled", notify="always", max_active=1)
        assert (proposed.task.state, proposed.task.recurring.next_run_at, proposed.run) == (TaskState.PROPOSED, None, None)
        late = Approval("user", "cli", NOW + 90 * 60 * SECOND)
        task, run = ledger.tasks.approve("task_r", late, runner=ENGINE, folder="tasks", max_active=1)
        assert (task.state, task.recurring.next_run_at, task.run_count, run) == (TaskState.ACTIVE, NOW + 2 * HOUR, 0, None)
        assert entry_of_task(ledger, "task_r").task == task._replace(expires_at=None)

    def test_active_recurring_tasks_are_limited_and_have_unique_names(self, ledger: Ledger) -> None:
        recurring(ledger, "task_a", max_active=1)
        unchanged = ledger_content(ledger)
        with pytest.raises(BadInput, match="already 1 active recurring tasks"):
            recurring(ledger, "task_b", max_active=1)
        with pytest.raises(BadInput, match="'a' already exists here: task_a"):
            recurring(ledger, "task_b", name="a")
        assert ledger_content(ledger) == unchanged
        recurring(ledger, "task_c", name="a", project="/q")

    def test_a_recurring_task_that_would_never_run_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(BadInput, match="would never run again"):
            recurring(ledger, "task_r", every(HOUR, NOW)._replace(until=NOW + 1))
        assert ledger.queries.get("task_r") is None

    # -- answering a waiting run

    @pytest.mark.parametrize(("kind", "extensions"), [(WaitKind.APPROVAL, 0), (WaitKind.TOOL, 0), (WaitKind.BUDGET, 1)])
    def test_approving_a_waiting_run_continues_it(self, ledger: Ledger, kind: WaitKind, extensions: int) -> None:
        run = waiting_agent_run(ledger, waits_for=(kind, None))
        yes = Approval("user", "chat", NOW + 9, "print2")
        task, again = ledger.tasks.approve("task_g", yes, runner=ENGINE, folder="tasks")
        assert again is not None and (again.run_id, again.state, again.owner, again.started_at) == (
            run.run_id,
            RunState.PENDING,
            None,
            None,
        )
        assert (again.reply, again.extensions, again.error) == ("yes", extensions, None)
        assert (task.decision.via, task.decision.fingerprint) == (("chat", "print2") if kind is WaitKind.APPROVAL else ("cli", None))
        assert kinds(ledger)[-1] == "run_requeued"
        assert ledger.runs.claim(AGENT_LANE, THEIRS, 1, NOW + 10)[0].run.extensions == extensions

    def test_rejecting_a_waiting_run_ends_it_or_continues_without_the_tool_call(self, ledger: Ledger) -> None:
        ends = {WaitKind.APPROVAL: Result.DENIED, WaitKind.BUDGET: Result.BUDGET}
        for number, (kind, result) in enumerate(ends.items()):
            waiting_agent_run(ledger, f"task_{number}", waits_for=(kind, None))
            task, run = ledger.tasks.refuse(f"task_{number}", expired=False, now=NOW + 9)
            assert run and (task.state, run.state, run.end.result, run.wait) == (TaskState.FAILED, RunState.FAILED, result, None)
        waiting_agent_run(ledger, "task_step")
        task, run = ledger.tasks.refuse("task_step", expired=False, now=NOW + 9)
        assert run and (task.state, run.state, run.reply) == (TaskState.ACTIVE, RunState.PENDING, "no")

    @pytest.mark.parametrize("answer", ["approve", "reject"])
    def test_a_run_that_waits_for_a_task_or_a_lease_cannot_be_answered(self, ledger: Ledger, answer: str) -> None:
        propose(ledger, "task_other")
        ledger.sessions.begin_interactive(InteractiveLease(THEIRS, AGENT_LANE, None, NOW))
        waiting_agent_run(ledger, "task_a", waits_for=(WaitKind.TASK, "task_other"))
        waiting_agent_run(ledger, "task_b", waits_for=(WaitKind.INTERACTIVE, AGENT_LANE))
        unchanged = ledger_content(ledger)
        for task_id, why in (("task_a", f"backburner {answer} task_other"), ("task_b", "stop using the same model")):
            with pytest.raises(BadInput, match=why):
                if answer == "approve":
                    approve(ledger, task_id)
                else:
                    ledger.tasks.refuse(task_id, expired=False, now=NOW)
        assert ledger_content(ledger) == unchanged

    # -- agents

    def test_an_ended_conversation_is_resumed_with_another_run(self, ledger: Ledger) -> None:
        agent(ledger)
        ledger.runs.settle([done(ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)[0].run, answer="hello")], OURS)
        ledger.tasks.mark_retrieved("task_g", NOW + 2000)
        task, run = ledger.tasks.resume("task_g", "and now?", runner=AGENT_LANE, now=NOW + 3000)
        assert run and (task.state, task.run_count, task.retrieved_at) == (TaskState.ACTIVE, 2, None)
        assert (run.run_id, run.state, run.message, run.folder) == ("task_g.2", RunState.PENDING, "and now?", "tasks/task_g.2")
        assert entry_of_task(ledger, "task_g") == (task, run)
        assert ledger.runs.claim(AGENT_LANE, OURS, 1, NOW + 3001)[0].run.state == RunState.RESUMED
        assert kinds(ledger)[-2:] == ["task_resumed", "run_resumed"]

    def test_only_one_of_two_concurrent_resumes_succeeds(self, ledger: Ledger, open_ledger: Open) -> None:
        agent(ledger)
        with pytest.raises(StaleRun):
            ledger.tasks.resume("task_g", "already?", runner=AGENT_LANE, now=NOW)
        ledger.runs.settle([done(ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)[0].run)], OURS)
        ledger.tasks.resume("task_g", "mine", runner=AGENT_LANE, now=NOW + 3000)
        unchanged = ledger_content(ledger)
        with pytest.raises(StaleRun):
            open_ledger().tasks.resume("task_g", "mine too", runner=AGENT_LANE, now=NOW + 3000)
        assert ledger_content(ledger) == unchanged
        with pytest.raises(TaskNotFound):
            ledger.tasks.resume("task_missing", "hello?", runner=AGENT_LANE, now=NOW)

    def test_only_the_first_read_of_a_result_is_recorded(self, ledger: Ledger) -> None:
        ended(ledger)
        for now in (NOW + 2000, NOW + 3000):
            ledger.tasks.mark_retrieved("task_x", now)
        ledger.tasks.mark_retrieved("task_missing", NOW)
        assert entry_of_task(ledger, "task_x").task.retrieved_at == NOW + 2000

    def test_another_agent_can_continue_a_conversation(self, ledger: Ledger) -> None:
        before = agent(ledger).task
        options = AgentOptions(model="small")
        ledger.tasks.set_model("task_g", "local", options, LOCAL_AGENT_LANE)
        spec = before.spec._replace(agent=AgentSpec("local", "look", options))
        assert entry_of_task(ledger, "task_g").task == before._replace(spec=spec, lane=LOCAL_AGENT_LANE)
        ledger.tasks.set_model("task_missing", "local", AgentOptions(), LOCAL_AGENT_LANE)

    def test_a_changed_proposal_is_asked_again(self, ledger: Ledger) -> None:
        propose(ledger, channels=("phone",), question=lambda _: "May it?", asked="print1")
        ledger.tasks.ask_again("task_x", "task_x", "print2", "May it now?", NOW + 5)
        assert entry_of_task(ledger, "task_x").question_fingerprint == "print2"
        assert [notice.text for notice in ledger.deliveries.pending()] == ["May it?", "May it now?"]

    def test_a_changed_waiting_run_is_asked_again_in_the_requesters_channel(self, ledger: Ledger) -> None:
        task = recurring(ledger, channels=("phone",))
        ledger.recurring.run_now(task.task_id, NOW, "tasks")
        run = ledger.runs.claim(ENGINE, OURS, 1, NOW)[0].run
        ledger.runs.suspend(run.run_id, OURS, "it changed", NOW + 1, asked="print1")
        ledger.tasks.ask_again("task_r", "task_r", "print2", "And now?", NOW + 2)
        assert entry_of_task(ledger, "task_r").question_fingerprint == "print2"
        notices = ledger.deliveries.pending()
        assert [(notice.kind, notice.run_id) for notice in notices] == [(NoticeKind.WAITING, run.run_id)] * 2
        assert notices[-1].text == "And now?"

    def test_an_answered_question_is_not_asked_again(self, ledger: Ledger) -> None:
        propose(ledger, "task_a", channels=("phone",), asked="print1")
        approve(ledger, "task_a")
        waiting_agent_run(ledger, "task_b")
        unchanged = ledger_content(ledger), ledger.deliveries.pending()
        for task_id in ("task_a", "task_b"):
            ledger.tasks.ask_again(task_id, task_id, "print2", "May it now?", NOW + 5)
        assert (ledger_content(ledger), ledger.deliveries.pending()) == unchanged
        with pytest.raises(TaskNotFound):
            ledger.tasks.ask_again("task_missing", "task_missing", "print2", "May it?", NOW)

    # -- cancelling and clearing recurring tasks

    def test_cancelling_a_recurring_task_ends_its_pending_run(self, ledger: Ledger) -> None:
        recurring(ledger)
        ledger.recurring.run_now("task_r", NOW, "tasks")
        task, run = ledger.tasks.request_cancel("task_r", NOW + 5)
        assert run and (task.state, task.recurring.next_run_at, run.state) == (TaskState.CANCELLED, None, RunState.CANCELLED)
        assert ledger.live_work.next_slot_at() is None

    def test_the_run_of_a_recurring_task_can_be_cancelled_alone(self, ledger: Ledger) -> None:
        before = recurring(ledger)
        ledger.recurring.run_now("task_r", NOW, "tasks")
        task, run = ledger.tasks.request_cancel("task_r", NOW + 5, only_run=True)
        assert run and (task.state, task.recurring.next_run_at, run.state) == (
            TaskState.ACTIVE,
            before.recurring.next_run_at,
            RunState.CANCELLED,
        )

    def test_recurring_proposed_and_undelivered_tasks_are_never_cleared(self, ledger: Ledger) -> None:
        recurring(ledger)
        propose(ledger, "task_p")
        ledger.runs.settle([done(running(ledger, channels=("phone",)))], OURS)
        assert ledger.tasks.clear(["task_r", "task_p", "task_x"], NOW) == []
        ledger.deliveries.mark_delivered([notice.notice_id for notice in ledger.deliveries.pending()], None, NOW)
        assert ledger.tasks.clear(["task_x"], NOW) == ["tasks/task_x"]
        ledger.tasks.request_cancel("task_r", NOW)
        assert ledger.tasks.clear(["task_r"], NOW) == [] and ledger.queries.get("task_r") is None

    def test_many_tasks_can_be_cleared_together(self, ledger: Ledger) -> None:
        ids = [submit(ledger, f"task_{n}", owner=OURS).task.task_id for n in range(600)]
        ledger.runs.settle([done(task_id) for task_id in ids], OURS)
        assert len(ledger.tasks.clear(ids, NOW)) == 600
        assert kinds(ledger) == ["task_cleared"] * 600 and ledger.queries.list() == []

    def test_old_sessions_without_tasks_are_deleted_on_clear(self, ledger: Ledger) -> None:
        for name in ("claude:1", "claude:2"):
            ledger.sessions.register(Session(name, "claude", "/p", None, NOW, NOW))
        submit(ledger, session="claude:1")
        ledger.tasks.clear([], NOW + 31 * DAY)
        assert [one.session_id for one in ledger.sessions.sessions()] == ["claude:1"]

    @pytest.mark.parametrize("kind", ["agent", "recurring"])
    def test_tasks_that_can_still_continue_are_not_outdated(self, ledger: Ledger, kind: str) -> None:
        if kind == "agent":
            agent(ledger, "task_x")
            ledger.runs.settle([done(ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)[0].run)], OURS)
            assert ledger.tasks.ended_before(NOW + DAY) == []
            return
        run_once(ledger, recurring(ledger, "task_x"), NOW)
        assert ledger.tasks.ended_before(NOW + DAY) == []
        ledger.tasks.request_cancel("task_x", NOW)
        assert ledger.tasks.ended_before(NOW + DAY) == ["task_x"]

    @pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 9, 17])
    def test_a_new_id_gets_the_next_free_number(self, ledger: Ledger, count: int) -> None:
        for _ in range(count):
            submit(ledger)
        assert submit(ledger).task.task_id == f"task_x_{count + 1}"
