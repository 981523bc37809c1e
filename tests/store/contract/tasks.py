"""Submitting, answering, cancelling and forgetting tasks."""

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
    asking,
    claimed,
    done,
    ended,
    failed,
    kinds,
    latest,
    propose,
    recurring,
    run_once,
    running,
    shown,
    submit,
    whole,
)


class TaskContract:
    def test_an_approved_task_has_a_pending_run_at_once(self, ledger: Ledger) -> None:
        entry = submit(ledger, name="nightly", description="all", env={"A": "b"}, timeout_ms=5, restarted_from="task_w")
        task, run = entry
        assert (task.task_id, task.state, task.run_count) == ("task_x", TaskState.ACTIVE, 1)
        assert (task.spec.command.words, task.spec.cwd, task.project, task.spec.env) == (("make", "all"), "/p/src", "/p", {"A": "b"})
        assert (task.spec.name, task.spec.description, task.spec.timeout_ms, task.restarted_from) == ("nightly", "all", 5, "task_w")
        assert (task.decision.by, task.decision.via, task.decision.at, task.decision.reasons) == ("user", "cli", NOW, ("why",))
        assert task.expires_at is None
        assert run is not None
        assert (run.run_id, run.n, run.state, run.runner, run.folder) == ("task_x", 1, RunState.PENDING, ENGINE, "tasks/task_x")
        assert (run.owner, run.process, run.started_at, run.ended_at, run.end.result) == (None,) * 5
        assert kinds(ledger) == ["task_submitted"]

    def test_what_submit_returns_is_what_is_stored_for_everybody(self, ledger: Ledger, open_ledger: Open) -> None:
        approved, proposed = submit(ledger), propose(ledger, "task_y")
        other = open_ledger()
        assert (other.queries.get("task_x"), other.queries.get("task_y")) == (approved, proposed)

    def test_a_task_that_nobody_approved_is_a_proposal_without_a_run(self, ledger: Ledger) -> None:
        task, run = propose(ledger)
        assert (task.state, task.run_count, task.expires_at, task.decision.by, run) == (TaskState.PROPOSED, 0, NOW + DAY, None, None)
        assert kinds(ledger) == ["task_proposed"]
        assert ledger.runs.claim(ENGINE, OURS, 5, NOW) == []

    def test_an_id_that_is_taken_is_counted_on(self, ledger: Ledger) -> None:
        assert [submit(ledger).task.task_id for _ in range(3)] == ["task_x", "task_x_2", "task_x_3"]

    def test_an_id_that_looks_counted_is_not_handed_out_twice(self, ledger: Ledger) -> None:
        made = [submit(ledger, wanted).task.task_id for wanted in ("task_x_2", "task_x", "task_x", "task_x_2", "task_x")]
        assert len(set(made)) == 5

    def test_many_processes_that_submit_at_once_get_ids_of_their_own(self, open_ledger: Open) -> None:
        ledgers = [open_ledger() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda ledger: [submit(ledger).task.task_id for _ in range(10)], ledgers))
        flat = [task_id for some in made for task_id in some]
        assert len(set(flat)) == 40
        events = ledgers[0].events.events(0, 100)
        assert [event.event_id for event in events] == sorted({event.event_id for event in events})

    def test_every_run_has_marks_of_its_own(self, ledger: Ledger) -> None:
        runs = [submit(ledger).run for _ in range(3)]
        assert len({run.process_tag for run in runs}) == len({run.span_id for run in runs}) == len({run.trace_id for run in runs}) == 3

    def test_words_of_any_kind_are_kept(self, ledger: Ledger, open_ledger: Open) -> None:
        odd = ("'\"\\\n\t%_", "日本語", b"\xff\xfe".decode("utf-8", "surrogateescape"), "")
        submit(ledger, command=odd, env={"Ü=": "\n"}, description="é\n", name="a'b")
        task = shown(open_ledger(), "task_x").task
        assert (task.spec.command.words, task.spec.env, task.spec.description, task.spec.name) == (odd, {"Ü=": "\n"}, "é\n", "a'b")

    def test_a_yes_makes_a_proposal_a_pending_run(self, ledger: Ledger) -> None:
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
        assert shown(ledger, "task_x") == (task, run)
        assert kinds(ledger) == ["task_proposed", "task_approved"]
        assert [work.run.run_id for work in ledger.runs.claim(ENGINE, OURS, 5, NOW + 6)] == ["task_x"]

    @pytest.mark.parametrize(("expired", "state"), [(False, TaskState.REJECTED), (True, TaskState.EXPIRED)])
    def test_a_no_or_nobodys_answer_ends_a_proposal(self, ledger: Ledger, expired: bool, state: TaskState) -> None:
        propose(ledger)
        assert ledger.tasks.refuse("task_x", expired=expired, now=NOW + 5).task.state == state
        assert shown(ledger, "task_x").task.state == state
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
        unchanged = whole(ledger)
        with pytest.raises(IllegalTransition):
            if answer == "approve":
                ledger.tasks.approve("task_x", YES, runner=ENGINE, folder="tasks")
            else:
                ledger.tasks.refuse("task_x", expired=answer == "expire", now=NOW)
        assert whole(ledger) == unchanged

    def test_a_task_that_is_not_there_cannot_be_answered(self, ledger: Ledger) -> None:
        with pytest.raises(TaskNotFound):
            ledger.tasks.approve("task_x", YES, runner=ENGINE, folder="tasks")
        with pytest.raises(TaskNotFound):
            ledger.tasks.refuse("task_x", expired=False, now=NOW)
        with pytest.raises(TaskNotFound):
            ledger.tasks.request_cancel("task_x", NOW)
        assert kinds(ledger) == []

    def test_proposals_are_overdue_when_their_time_has_come(self, ledger: Ledger) -> None:
        propose(ledger, "task_a", expires_at=NOW + 10)
        propose(ledger, "task_b", expires_at=NOW + 20)
        propose(ledger, "task_c", expires_at=NOW + 5)
        ledger.tasks.refuse("task_c", expired=False, now=NOW)
        assert ledger.live_work.overdue_proposals(NOW + 9) == []
        assert ledger.live_work.overdue_proposals(NOW + 10) == ["task_a"]
        assert sorted(ledger.live_work.overdue_proposals(NOW + 20)) == ["task_a", "task_b"]

    def test_a_pending_run_is_cancelled_at_once_and_told(self, ledger: Ledger) -> None:
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

    def test_asking_twice_to_cancel_is_asking_once(self, ledger: Ledger) -> None:
        running(ledger)
        first = ledger.tasks.request_cancel("task_x", NOW + 20)
        assert ledger.tasks.request_cancel("task_x", NOW + 30) == first
        assert kinds(ledger).count("cancel_requested") == 1

    def test_a_proposal_that_is_cancelled_is_rejected(self, ledger: Ledger) -> None:
        propose(ledger)
        assert ledger.tasks.request_cancel("task_x", NOW + 5).task.state == TaskState.REJECTED

    def test_what_has_ended_cannot_be_cancelled_any_more(self, ledger: Ledger) -> None:
        ended(ledger, "task_a")
        propose(ledger, "task_b")
        ledger.tasks.refuse("task_b", expired=True, now=NOW)
        unchanged = whole(ledger)
        assert ledger.tasks.request_cancel("task_a", NOW + 9999).status == "completed"
        assert ledger.tasks.request_cancel("task_b", NOW + 9999).status == "expired"
        assert whole(ledger) == unchanged

    def test_a_cleared_task_is_gone_with_all_that_hung_on_it(self, ledger: Ledger) -> None:
        ended(ledger, "task_a")
        ended(ledger, "task_b")
        assert ledger.tasks.clear(["task_a"], NOW) == ["tasks/task_a"]
        assert ledger.queries.get("task_a") is None
        assert [notice.task_id for notice in ledger.notices.notices(project=None, unread=False)] == ["task_b"]
        assert kinds(ledger, "task_a") == ["task_cleared"]
        assert len(kinds(ledger, "task_b")) == 4

    def test_clearing_twice_is_clearing_once(self, ledger: Ledger) -> None:
        ended(ledger)
        assert ledger.tasks.clear(["task_x", "task_x"], NOW) == ["tasks/task_x"]
        assert kinds(ledger) == ["task_cleared"]
        assert ledger.tasks.clear(["task_x"], NOW) == []
        assert kinds(ledger) == ["task_cleared"]

    def test_what_is_live_is_never_cleared(self, ledger: Ledger) -> None:
        running(ledger, "task_a")
        submit(ledger, "task_b")
        unchanged = whole(ledger)
        assert ledger.tasks.clear(["task_a", "task_b", "task_missing"], NOW) == []
        assert whole(ledger) == unchanged

    def test_a_cleared_id_is_not_given_to_another_task(self, ledger: Ledger) -> None:
        ended(ledger)
        ledger.tasks.clear(["task_x"], NOW)
        assert submit(ledger).task.task_id == "task_x_2"
        assert [work.environment for work in ledger.runs.claim(ENGINE, OURS, 1, NOW)] == [{"PATH": "/bin", "N": "1"}]

    def test_clearing_one_task_leaves_the_environment_of_another(self, ledger: Ledger) -> None:
        ended(ledger, "task_a")
        submit(ledger, "task_b")
        ledger.tasks.clear(["task_a"], NOW)
        assert [work.environment["N"] for work in ledger.runs.claim(ENGINE, OURS, 1, NOW)] == ["1"]

    def test_what_ended_before_a_moment_is_outdated(self, ledger: Ledger) -> None:
        ended(ledger, "task_old", ended_at=NOW + 100)
        ended(ledger, "task_new", ended_at=NOW + 200)
        running(ledger, "task_running")
        submit(ledger, "task_pending")
        propose(ledger, "task_proposed")
        propose(ledger, "task_refused")
        ledger.tasks.refuse("task_refused", expired=False, now=NOW)
        assert sorted(ledger.tasks.ended_before(NOW + 200)) == ["task_old", "task_refused"]
        assert ledger.tasks.ended_before(NOW) == []

    def test_everything_that_was_asked_for_is_kept(self, ledger: Ledger, open_ledger: Open) -> None:
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
    def test_who_has_room_gets_what_it_submits_at_once_unless_something_else_comes_first(
        self, ledger: Ledger, open_ledger: Open, before: dict[str, Any], asked: dict[str, Any], at_once: bool
    ) -> None:
        submit(ledger, "task_before", **before)
        entry = submit(ledger, owner=OURS, **asked)
        assert open_ledger().queries.get("task_x") == entry
        run = latest(ledger, "task_x")
        assert (run.state, run.owner, run.started_at) == (("running", OURS, NOW) if at_once else ("pending", None, None))
        assert kinds(ledger, "task_x") == ["task_submitted", "run_started"][: 1 + at_once]
        assert "task_x" not in claimed(ledger, now=NOW + 9) or not at_once

    def test_what_nobody_approved_or_what_cannot_run_is_not_claimed_by_who_submits_it(self, ledger: Ledger) -> None:
        ended(ledger, "task_a", state=RunState.FAILED)
        assert propose(ledger, "task_b", owner=OURS).run is None
        assert submit(ledger, "task_c", owner=OURS, after=("task_a",)).run.end.result == Result.DEPENDENCY  # type: ignore[union-attr]

    def test_a_key_that_was_used_gives_the_task_of_then_whatever_became_of_it(self, ledger: Ledger, open_ledger: Open) -> None:
        submit(ledger, "task_a", key="k")
        run = ledger.runs.claim(ENGINE, OURS, 1, NOW)[0].run
        for _ in range(2):
            before, unchanged = shown(ledger, "task_a"), whole(ledger)
            other = {"command": ("rm",), "after": ("task_missing",), "owner": THEIRS, "priority": 1, "batch": "b"}
            assert submit(open_ledger(), "task_b", key="k", **other) == before
            assert propose(ledger, "task_c", key="k") == before
            assert whole(ledger) == unchanged
            ledger.runs.settle([failed(run)], OURS)
        assert ledger.queries.by_key("/p", "k").status == "failed"

    def test_a_key_means_a_task_of_its_own_in_every_project_and_again_once_that_was_cleared(self, ledger: Ledger) -> None:
        ended(ledger, "task_x")
        made = [submit(ledger, f"task{project[1:]}", key="k", project=project).task.task_id for project in ("/p", "/q")]
        assert made == ["taskp", "taskq"]
        assert submit(ledger, "task_y", key="K").task.task_id == "task_y"
        ledger.tasks.request_cancel("taskp", NOW)
        ledger.tasks.clear(["taskp"], NOW)
        assert ledger.queries.by_key("/p", "k") is None
        assert submit(ledger, "task_again", key="k").task.task_id == "task_again"
        assert ledger.queries.by_key("/q", "k").task.task_id == "taskq"

    def test_of_many_that_use_one_key_at_once_all_get_the_same_task(self, open_ledger: Open) -> None:
        ledgers = [open_ledger() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda ledger: {submit(ledger, key=f"k{n}").task.task_id for n in range(10)}, ledgers))
        assert made[0] == made[1] == made[2] == made[3] and len(made[0]) == 10

    def test_a_question_is_owed_to_the_person_and_to_the_channels_of_the_task(self, ledger: Ledger) -> None:
        propose(ledger, channels=("phone",), session="claude:1", question=lambda task_id: f"May {task_id} run?", asked="print1")
        (notice,) = ledger.notices.notices()
        assert (notice.channel, notice.kind, notice.text) == ("inbox", NoticeKind.PROPOSED, "May task_x run?")
        assert [letter.channel for letter in ledger.deliveries.pending()] == ["to:phone"]
        assert shown(ledger, "task_x").question_fingerprint == "print1"
        approve(ledger, "task_x")
        assert ledger.notices.notices() == [] == ledger.deliveries.pending()

    def test_a_recurring_task_is_due_first_when_it_is_approved(self, ledger: Ledger) -> None:
        fields = every(HOUR, NOW)
        proposed = propose(ledger, "task_r", schedule=fields, kind="scheduled", notify="always", most_active=1)
        assert (proposed.task.state, proposed.task.recurring.next_run_at, proposed.run) == (TaskState.PROPOSED, None, None)
        late = Approval("user", "cli", NOW + 90 * 60 * SECOND)
        task, run = ledger.tasks.approve("task_r", late, runner=ENGINE, folder="tasks", most_active=1)
        assert (task.state, task.recurring.next_run_at, task.run_count, run) == (TaskState.ACTIVE, NOW + 2 * HOUR, 0, None)
        assert shown(ledger, "task_r").task == task._replace(expires_at=None)

    def test_there_is_room_for_so_many_active_recurring_tasks_and_one_of_a_name(self, ledger: Ledger) -> None:
        recurring(ledger, "task_a", most_active=1)
        unchanged = whole(ledger)
        with pytest.raises(BadInput, match="already 1 active recurring tasks"):
            recurring(ledger, "task_b", most_active=1)
        with pytest.raises(BadInput, match="'a' already exists here: task_a"):
            recurring(ledger, "task_b", name="a")
        assert whole(ledger) == unchanged
        recurring(ledger, "task_c", name="a", project="/q")

    def test_a_recurring_task_that_would_never_be_due_is_refused(self, ledger: Ledger) -> None:
        with pytest.raises(BadInput, match="would never run again"):
            recurring(ledger, "task_r", every(HOUR, NOW)._replace(until=NOW + 1))
        assert ledger.queries.get("task_r") is None

    # -- answering a run that waits

    @pytest.mark.parametrize(("kind", "extensions"), [(WaitKind.APPROVAL, 0), (WaitKind.TOOL, 0), (WaitKind.BUDGET, 1)])
    def test_a_yes_lets_a_run_go_on_that_waits_for_a_person(self, ledger: Ledger, kind: WaitKind, extensions: int) -> None:
        run = asking(ledger, waits_on=(kind, None))
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

    def test_a_no_ends_a_run_that_waits_or_lets_it_go_on_without_the_step(self, ledger: Ledger) -> None:
        ends = {WaitKind.APPROVAL: Result.DENIED, WaitKind.BUDGET: Result.BUDGET}
        for number, (kind, result) in enumerate(ends.items()):
            asking(ledger, f"task_{number}", waits_on=(kind, None))
            task, run = ledger.tasks.refuse(f"task_{number}", expired=False, now=NOW + 9)
            assert run and (task.state, run.state, run.end.result, run.wait) == (TaskState.FAILED, RunState.FAILED, result, None)
        asking(ledger, "task_step")
        task, run = ledger.tasks.refuse("task_step", expired=False, now=NOW + 9)
        assert run and (task.state, run.state, run.reply) == (TaskState.ACTIVE, RunState.PENDING, "no")

    @pytest.mark.parametrize("answer", ["approve", "reject"])
    def test_what_waits_for_another_task_or_for_a_turn_cannot_be_answered(self, ledger: Ledger, answer: str) -> None:
        propose(ledger, "task_other")
        ledger.sessions.begin_interactive(InteractiveLease(THEIRS, AGENT_LANE, None, NOW))
        asking(ledger, "task_a", waits_on=(WaitKind.TASK, "task_other"))
        asking(ledger, "task_b", waits_on=(WaitKind.INTERACTIVE, AGENT_LANE))
        unchanged = whole(ledger)
        for task_id, why in (("task_a", f"backburner {answer} task_other"), ("task_b", "stop using the same model")):
            with pytest.raises(BadInput, match=why):
                if answer == "approve":
                    approve(ledger, task_id)
                else:
                    ledger.tasks.refuse(task_id, expired=False, now=NOW)
        assert whole(ledger) == unchanged

    # -- agents

    def test_an_ended_conversation_is_resumed_with_another_run(self, ledger: Ledger) -> None:
        agent(ledger)
        ledger.runs.settle([done(ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)[0].run, answer="hello")], OURS)
        ledger.tasks.mark_retrieved("task_g", NOW + 2000)
        task, run = ledger.tasks.resume("task_g", "and now?", runner=AGENT_LANE, now=NOW + 3000)
        assert run and (task.state, task.run_count, task.retrieved_at) == (TaskState.ACTIVE, 2, None)
        assert (run.run_id, run.state, run.message, run.folder) == ("task_g.2", RunState.PENDING, "and now?", "tasks/task_g.2")
        assert shown(ledger, "task_g") == (task, run)
        assert ledger.runs.claim(AGENT_LANE, OURS, 1, NOW + 3001)[0].run.state == RunState.RESUMED
        assert kinds(ledger)[-2:] == ["task_resumed", "run_resumed"]

    def test_of_two_that_resume_a_conversation_one_is_too_late(self, ledger: Ledger, open_ledger: Open) -> None:
        agent(ledger)
        with pytest.raises(StaleRun):
            ledger.tasks.resume("task_g", "already?", runner=AGENT_LANE, now=NOW)
        ledger.runs.settle([done(ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)[0].run)], OURS)
        ledger.tasks.resume("task_g", "mine", runner=AGENT_LANE, now=NOW + 3000)
        unchanged = whole(ledger)
        with pytest.raises(StaleRun):
            open_ledger().tasks.resume("task_g", "mine too", runner=AGENT_LANE, now=NOW + 3000)
        assert whole(ledger) == unchanged
        with pytest.raises(TaskNotFound):
            ledger.tasks.resume("task_missing", "hello?", runner=AGENT_LANE, now=NOW)

    def test_the_first_time_that_a_result_is_read_counts(self, ledger: Ledger) -> None:
        ended(ledger)
        for now in (NOW + 2000, NOW + 3000):
            ledger.tasks.mark_retrieved("task_x", now)
        ledger.tasks.mark_retrieved("task_missing", NOW)
        assert shown(ledger, "task_x").task.retrieved_at == NOW + 2000

    def test_another_agent_goes_on_with_a_conversation(self, ledger: Ledger) -> None:
        before = agent(ledger).task
        options = AgentOptions(model="small")
        ledger.tasks.set_model("task_g", "local", options, LOCAL_AGENT_LANE)
        spec = before.spec._replace(agent=AgentSpec("local", "look", options))
        assert shown(ledger, "task_g").task == before._replace(spec=spec, lane=LOCAL_AGENT_LANE)
        ledger.tasks.set_model("task_missing", "local", AgentOptions(), LOCAL_AGENT_LANE)

    def test_a_proposal_that_changed_is_asked_about_again(self, ledger: Ledger) -> None:
        propose(ledger, channels=("phone",), question=lambda _: "May it?", asked="print1")
        ledger.tasks.ask_again("task_x", "task_x", "print2", "May it now?", NOW + 5)
        assert shown(ledger, "task_x").question_fingerprint == "print2"
        assert [letter.text for letter in ledger.deliveries.pending()] == ["May it?", "May it now?"]

    def test_a_waiting_run_that_changed_is_asked_about_again_where_its_asker_is_told(self, ledger: Ledger) -> None:
        task = recurring(ledger, channels=("phone",))
        ledger.recurring.run_now(task.task_id, NOW, "tasks")
        run = ledger.runs.claim(ENGINE, OURS, 1, NOW)[0].run
        ledger.runs.suspend(run.run_id, OURS, "it changed", NOW + 1, asked="print1")
        ledger.tasks.ask_again("task_r", "task_r", "print2", "And now?", NOW + 2)
        assert shown(ledger, "task_r").question_fingerprint == "print2"
        letters = ledger.deliveries.pending()
        assert [(letter.kind, letter.run_id) for letter in letters] == [(NoticeKind.WAITING, run.run_id)] * 2
        assert letters[-1].text == "And now?"

    def test_nothing_is_asked_again_that_was_answered_meanwhile(self, ledger: Ledger) -> None:
        propose(ledger, "task_a", channels=("phone",), asked="print1")
        approve(ledger, "task_a")
        asking(ledger, "task_b")
        unchanged = whole(ledger), ledger.deliveries.pending()
        for task_id in ("task_a", "task_b"):
            ledger.tasks.ask_again(task_id, task_id, "print2", "May it now?", NOW + 5)
        assert (whole(ledger), ledger.deliveries.pending()) == unchanged
        with pytest.raises(TaskNotFound):
            ledger.tasks.ask_again("task_missing", "task_missing", "print2", "May it?", NOW)

    # -- cancelling and forgetting recurring tasks

    def test_a_recurring_task_that_is_cancelled_ends_with_its_pending_run(self, ledger: Ledger) -> None:
        recurring(ledger)
        ledger.recurring.run_now("task_r", NOW, "tasks")
        task, run = ledger.tasks.request_cancel("task_r", NOW + 5)
        assert run and (task.state, task.recurring.next_run_at, run.state) == (TaskState.CANCELLED, None, RunState.CANCELLED)
        assert ledger.live_work.next_slot_at() is None

    def test_only_the_run_of_a_recurring_task_can_be_cancelled(self, ledger: Ledger) -> None:
        before = recurring(ledger)
        ledger.recurring.run_now("task_r", NOW, "tasks")
        task, run = ledger.tasks.request_cancel("task_r", NOW + 5, only_run=True)
        assert run and (task.state, task.recurring.next_run_at, run.state) == (
            TaskState.ACTIVE,
            before.recurring.next_run_at,
            RunState.CANCELLED,
        )

    def test_what_is_recurring_proposed_or_still_to_be_delivered_is_never_cleared(self, ledger: Ledger) -> None:
        recurring(ledger)
        propose(ledger, "task_p")
        ledger.runs.settle([done(running(ledger, channels=("phone",)))], OURS)
        assert ledger.tasks.clear(["task_r", "task_p", "task_x"], NOW) == []
        ledger.deliveries.mark_delivered([letter.notice_id for letter in ledger.deliveries.pending()], None, NOW)
        assert ledger.tasks.clear(["task_x"], NOW) == ["tasks/task_x"]
        ledger.tasks.request_cancel("task_r", NOW)
        assert ledger.tasks.clear(["task_r"], NOW) == [] and ledger.queries.get("task_r") is None

    def test_many_tasks_are_cleared_at_once(self, ledger: Ledger) -> None:
        ids = [submit(ledger, f"task_{n}", owner=OURS).task.task_id for n in range(600)]
        ledger.runs.settle([done(task_id) for task_id in ids], OURS)
        assert len(ledger.tasks.clear(ids, NOW)) == 600
        assert kinds(ledger) == ["task_cleared"] * 600 and ledger.queries.list() == []

    def test_old_sessions_that_asked_for_nothing_any_more_are_forgotten_with_what_is_cleared(self, ledger: Ledger) -> None:
        for name in ("claude:1", "claude:2"):
            ledger.sessions.register(Session(name, "claude", "/p", None, NOW, NOW))
        submit(ledger, session="claude:1")
        ledger.tasks.clear([], NOW + 31 * DAY)
        assert [one.session_id for one in ledger.sessions.sessions()] == ["claude:1"]

    @pytest.mark.parametrize("kind", ["agent", "recurring"])
    def test_what_may_still_be_gone_on_with_is_not_outdated(self, ledger: Ledger, kind: str) -> None:
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
    def test_the_next_free_number_follows_the_last_one(self, ledger: Ledger, count: int) -> None:
        for _ in range(count):
            submit(ledger)
        assert submit(ledger).task.task_id == f"task_x_{count + 1}"
