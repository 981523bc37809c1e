"""What every ledger must do: one suite, run by each adapter.

An adapter brings a fixture `open_store` that opens the same, at first empty, ledger again with every call, as another
process would.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from backburner.errors import BackburnerError, BadInput, IllegalTransition, LedgerUnavailable, StaleRun, TaskNotFound
from backburner.lifecycle import Result, RunState, TaskState
from backburner.models import ENGINE, RECORD, Approval, Ending, Entry, ProcessId, Run, Submission, Task

NOW = 1_770_000_000_000
DAY = 86_400_000
OURS, THEIRS = ProcessId(11, "111", "boot"), ProcessId(22, "222", "boot")
YES = Approval("user", "cli", NOW)
EMBEDDER = f"{THEIRS}:token"
Open = Callable[[], Any]


def propose(
    store: Any, wanted: str = "task_x", *, approval: Approval | None = None, project: str = "/p", now: int = NOW, **more: Any
) -> Entry:
    runner, expires = more.pop("runner", ENGINE), more.pop("expires_at", now + DAY)
    submission = Submission(**{"command": ("make", "all"), "cwd": "/p/src", "environment": {"PATH": "/bin", "N": "1"}, **more})
    return store.submit(
        submission, project=project, wanted_id=wanted, approval=approval, reasons=("why",), runner=runner, folder="tasks", now=now, expires_at=expires
    )  # fmt: skip


def submit(store: Any, wanted: str = "task_x", **more: Any) -> Entry:
    return propose(store, wanted, approval=YES, **more)


def running(store: Any, wanted: str = "task_x", owner: ProcessId = OURS, **more: Any) -> Run:
    """A task that `owner` has claimed, with nothing else pending."""
    submit(store, wanted, **more)
    (work,) = store.claim(more.get("runner", ENGINE), owner, 1, NOW + 10)
    return work.run


def done(run: Run | str, state: RunState = RunState.COMPLETED, result: Result = Result.EXIT, **more: Any) -> Ending:
    run_id = run if isinstance(run, str) else run.run_id
    return Ending(run_id, state, result, more.pop("ended_at", NOW + 1000), more.pop("exit_code", 0), **more)


def ended(store: Any, wanted: str = "task_x", **more: Any) -> Run:
    run = running(store, wanted)
    store.settle([done(run, **more)], OURS)
    return shown(store, run.task_id).run  # type: ignore[return-value]


def shown(store: Any, task_id: str) -> Entry:
    entry = store.show(task_id)
    assert entry is not None
    return entry


def kinds(store: Any, task_id: str | None = None) -> list[str]:
    return [event.kind for event in store.events(0, 10_000) if task_id is None or event.task_id == task_id]


def whole(store: Any) -> tuple[object, ...]:
    """Everything there is to see, to prove that a refused verb changed nothing."""
    return (
        store.list(status=None, project=None, limit=None),
        store.live_runs(),
        store.events(0, 10_000),
        store.notices(project=None, unread=False),
    )


class StoreContract:
    @pytest.fixture
    def store(self, open_store: Open) -> Any:
        return open_store()

    # -- submit

    def test_an_approved_task_has_a_pending_run_at_once(self, store: Any) -> None:
        entry = submit(store, name="nightly", description="all", env={"A": "b"}, timeout_ms=5, restarted_from="task_w")
        task, run = entry
        assert (task.task_id, task.state, task.run_count) == ("task_x", TaskState.ACTIVE, 1)
        assert (task.command, task.cwd, task.project, task.env) == (("make", "all"), "/p/src", "/p", {"A": "b"})
        assert (task.name, task.description, task.timeout_ms, task.restarted_from) == ("nightly", "all", 5, "task_w")
        assert (task.approved_by, task.approved_via, task.approved_at, task.reasons) == ("user", "cli", NOW, ("why",))
        assert task.expires_at is None
        assert run is not None
        assert (run.run_id, run.n, run.state, run.runner, run.folder) == ("task_x", 1, RunState.PENDING, ENGINE, "tasks/task_x")
        assert (run.owner, run.process, run.started_at, run.ended_at, run.result) == (None,) * 5
        assert kinds(store) == ["task_submitted"]

    def test_what_submit_returns_is_what_is_stored_for_everybody(self, store: Any, open_store: Open) -> None:
        approved, proposed = submit(store), propose(store, "task_y")
        other = open_store()
        assert (other.show("task_x"), other.show("task_y")) == (approved, proposed)

    def test_a_task_that_nobody_approved_is_a_proposal_without_a_run(self, store: Any) -> None:
        task, run = propose(store)
        assert (task.state, task.run_count, task.expires_at, task.approved_by, run) == (TaskState.PROPOSED, 0, NOW + DAY, None, None)
        assert kinds(store) == ["task_proposed"]
        assert store.claim(ENGINE, OURS, 5, NOW) == []

    def test_an_id_that_is_taken_is_counted_on(self, store: Any) -> None:
        assert [submit(store).task.task_id for _ in range(3)] == ["task_x", "task_x_2", "task_x_3"]

    def test_an_id_that_looks_counted_is_not_handed_out_twice(self, store: Any) -> None:
        made = [submit(store, wanted).task.task_id for wanted in ("task_x_2", "task_x", "task_x", "task_x_2", "task_x")]
        assert len(set(made)) == 5

    def test_many_processes_that_submit_at_once_get_ids_of_their_own(self, open_store: Open) -> None:
        stores = [open_store() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda store: [submit(store).task.task_id for _ in range(10)], stores))
        flat = [task_id for some in made for task_id in some]
        assert len(set(flat)) == 40
        events = stores[0].events(0, 100)
        assert [event.event_id for event in events] == sorted({event.event_id for event in events})

    def test_every_run_has_marks_of_its_own(self, store: Any) -> None:
        runs = [submit(store).run for _ in range(3)]
        assert len({run.mark for run in runs}) == len({run.span_id for run in runs}) == len({run.trace_id for run in runs}) == 3

    def test_words_of_any_kind_are_kept(self, store: Any, open_store: Open) -> None:
        odd = ("'\"\\\n\t%_", "日本語", b"\xff\xfe".decode("utf-8", "surrogateescape"), "")
        submit(store, command=odd, env={"Ü=": "\n"}, description="é\n", name="a'b")
        task = shown(open_store(), "task_x").task
        assert (task.command, task.env, task.description, task.name) == (odd, {"Ü=": "\n"}, "é\n", "a'b")

    # -- approve and refuse

    def test_a_yes_makes_a_proposal_a_pending_run(self, store: Any) -> None:
        propose(store)
        task, run = store.approve("task_x", Approval("user", "chat", NOW + 5), runner=ENGINE, folder="tasks")
        assert (task.state, task.run_count, task.approved_by, task.approved_via, task.approved_at) == (
            TaskState.ACTIVE,
            1,
            "user",
            "chat",
            NOW + 5,
        )
        assert run is not None and (run.state, run.created_at, run.folder) == (RunState.PENDING, NOW + 5, "tasks/task_x")
        assert shown(store, "task_x") == (task, run)
        assert kinds(store) == ["task_proposed", "task_approved"]
        assert [work.run.run_id for work in store.claim(ENGINE, OURS, 5, NOW + 6)] == ["task_x"]

    @pytest.mark.parametrize(("expired", "state"), [(False, TaskState.REJECTED), (True, TaskState.EXPIRED)])
    def test_a_no_or_nobodys_answer_ends_a_proposal(self, store: Any, expired: bool, state: TaskState) -> None:
        propose(store)
        assert store.refuse("task_x", expired=expired, now=NOW + 5).task.state == state
        assert shown(store, "task_x").task.state == state
        assert kinds(store) == ["task_proposed", f"task_{state}"]
        assert store.notices(project=None, unread=True) == []

    @pytest.mark.parametrize("answer", ["approve", "reject", "expire"])
    @pytest.mark.parametrize("before", ["approved", "rejected", "expired", "submitted"])
    def test_only_a_proposal_can_be_answered_and_only_once(self, store: Any, before: str, answer: str) -> None:
        submit(store) if before == "submitted" else propose(store)
        match before:
            case "approved":
                store.approve("task_x", YES, runner=ENGINE, folder="tasks")
            case "rejected" | "expired":
                store.refuse("task_x", expired=before == "expired", now=NOW)
        unchanged = whole(store)
        with pytest.raises(IllegalTransition):
            if answer == "approve":
                store.approve("task_x", YES, runner=ENGINE, folder="tasks")
            else:
                store.refuse("task_x", expired=answer == "expire", now=NOW)
        assert whole(store) == unchanged

    def test_a_task_that_is_not_there_cannot_be_answered(self, store: Any) -> None:
        with pytest.raises(TaskNotFound):
            store.approve("task_x", YES, runner=ENGINE, folder="tasks")
        with pytest.raises(TaskNotFound):
            store.refuse("task_x", expired=False, now=NOW)
        with pytest.raises(TaskNotFound):
            store.request_cancel("task_x", NOW)
        assert kinds(store) == []

    def test_proposals_are_overdue_when_their_time_has_come(self, store: Any) -> None:
        propose(store, "task_a", expires_at=NOW + 10)
        propose(store, "task_b", expires_at=NOW + 20)
        propose(store, "task_c", expires_at=NOW + 5)
        store.refuse("task_c", expired=False, now=NOW)
        assert store.overdue_proposals(NOW + 9) == []
        assert store.overdue_proposals(NOW + 10) == ["task_a"]
        assert sorted(store.overdue_proposals(NOW + 20)) == ["task_a", "task_b"]

    # -- claim

    def test_the_oldest_are_claimed_first_and_never_more_than_asked_for(self, store: Any) -> None:
        for letter in "cab":
            submit(store, f"task_{letter}", now=NOW - ord(letter))
        claimed = [[work.run.run_id for work in store.claim(ENGINE, OURS, 2, NOW + n)] for n in range(3)]
        assert claimed == [["task_c", "task_a"], ["task_b"], []]

    def test_a_proposal_takes_its_place_in_the_queue_when_it_is_approved(self, store: Any) -> None:
        propose(store, "task_early")
        submit(store, "task_late")
        store.approve("task_early", YES, runner=ENGINE, folder="tasks")
        assert [work.run.run_id for work in store.claim(ENGINE, OURS, 5, NOW)] == ["task_late", "task_early"]

    @pytest.mark.parametrize("limit", [0, -1])
    def test_without_room_nothing_is_claimed(self, store: Any, limit: int) -> None:
        submit(store)
        assert store.claim(ENGINE, OURS, limit, NOW) == []
        assert shown(store, "task_x").status == "pending"

    def test_a_claimed_run_has_its_owner_and_all_it_needs_to_start(self, store: Any, open_store: Open) -> None:
        submit(store, env={"A": "b"})
        ((task, run, environment),) = store.claim(ENGINE, OURS, 1, NOW + 3)
        assert (run.state, run.owner, run.started_at) == (RunState.RUNNING, OURS, NOW + 3)
        assert environment == {"PATH": "/bin", "N": "1"}
        assert open_store().show("task_x") == (task, run)
        assert kinds(store) == ["task_submitted", "run_started"]

    def test_each_run_is_started_in_the_environment_of_its_own_door(self, store: Any) -> None:
        for n in "112":
            submit(store, f"task_{n}", environment={"N": n})
        assert [work.environment["N"] for work in store.claim(ENGINE, OURS, 9, NOW)] == ["1", "1", "2"]

    def test_who_claims_gets_only_what_is_meant_for_it(self, store: Any) -> None:
        submit(store, "task_engine")
        submit(store, "task_embedded", runner=EMBEDDER)
        assert [work.run.run_id for work in store.claim(EMBEDDER, THEIRS, 9, NOW)] == ["task_embedded"]
        assert [work.run.run_id for work in store.claim(ENGINE, OURS, 9, NOW)] == ["task_engine"]

    def test_two_that_claim_at_once_never_get_the_same_run(self, open_store: Open) -> None:
        first, second = open_store(), open_store()
        for _ in range(60):
            submit(first)

        def claim(store: Any, owner: ProcessId) -> list[str]:
            mine: list[str] = []
            while some := store.claim(ENGINE, owner, 3, NOW):
                mine += [work.run.run_id for work in some]
            return mine

        with ThreadPoolExecutor(2) as pool:
            one, other = pool.submit(claim, first, OURS), pool.submit(claim, second, THEIRS)
            mine, theirs = one.result(), other.result()
        assert len(mine) + len(theirs) == 60 and not set(mine) & set(theirs)

    # -- record_process

    def test_the_process_of_a_run_is_remembered(self, store: Any) -> None:
        run = running(store)
        store.record_process(run.run_id, OURS, ProcessId(77, "7", "boot"))
        assert shown(store, "task_x").run == run._replace(process=ProcessId(77, "7", "boot"))

    def test_only_the_owner_can_say_which_process_a_run_is(self, store: Any) -> None:
        run = running(store)
        with pytest.raises(StaleRun):
            store.record_process(run.run_id, THEIRS, ProcessId(77, "7", "boot"))
        with pytest.raises(StaleRun):
            store.record_process("task_missing", OURS, ProcessId(77, "7", "boot"))
        assert shown(store, "task_x").run == run

    # -- settle

    def test_an_end_is_state_event_and_notice_at_once(self, store: Any) -> None:
        run = running(store, project="/q")
        assert store.settle([done(run, RunState.FAILED, exit_code=2, summary="1 failed", lines=9, error="why")], OURS).run_ids == ["task_x"]
        task, after = shown(store, "task_x")
        assert task.state == TaskState.FAILED
        assert after == run._replace(
            state=RunState.FAILED, result=Result.EXIT, exit_code=2, summary="1 failed", lines=9, error="why", ended_at=NOW + 1000
        )
        (notice,) = store.notices(project=None, unread=True)
        assert (notice.task_id, notice.run_id, notice.project, notice.told_at) == ("task_x", "task_x", "/q", None)
        assert "task_x failed" in notice.text and "exit 2" in notice.text and "1 failed" in notice.text
        last = [event for event in store.events(0, 100) if event.kind == "run_failed"]
        assert [(event.run_id, event.data) for event in last] == [("task_x", {"result": "exit", "exit_code": 2, "summary": "1 failed"})]

    @pytest.mark.parametrize(
        ("state", "result", "of_task"),
        [
            (RunState.COMPLETED, Result.EXIT, TaskState.DONE),
            (RunState.FAILED, Result.EXIT, TaskState.FAILED),
            (RunState.FAILED, Result.LOST, TaskState.FAILED),
            (RunState.FAILED, Result.TIMEOUT, TaskState.FAILED),
            (RunState.FAILED, Result.AMBIGUOUS, TaskState.FAILED),
            (RunState.FAILED, Result.UNSTARTED, TaskState.FAILED),
            (RunState.CANCELLED, Result.SIGNAL, TaskState.CANCELLED),
        ],
    )
    def test_the_end_of_its_run_ends_a_one_shot_task(self, store: Any, state: RunState, result: Result, of_task: TaskState) -> None:
        run = running(store)
        store.settle([done(run, state, result)], OURS)
        entry = shown(store, "task_x")
        assert (entry.status, entry.run.result, entry.task.state, entry.ended) == (state, result, of_task, True)  # type: ignore[union-attr]

    def test_the_end_that_another_owner_tells_is_ignored(self, store: Any) -> None:
        run = running(store)
        unchanged = whole(store)
        assert store.settle([done(run)], THEIRS).run_ids == []
        assert store.settle([done("task_missing")], OURS).run_ids == []
        assert whole(store) == unchanged

    def test_an_end_that_is_told_twice_gives_one_notice(self, store: Any) -> None:
        run = running(store)
        assert store.settle([done(run)], OURS).run_ids == ["task_x"]
        once = whole(store)
        assert store.settle([done(run, RunState.FAILED)], OURS).run_ids == []
        assert store.settle([done(run), done(run)], OURS).run_ids == []
        assert whole(store) == once
        assert len(store.notices(project=None, unread=False)) == 1

    def test_a_pending_run_cannot_be_settled(self, store: Any) -> None:
        submit(store)
        unchanged = whole(store)
        assert store.settle([done("task_x")], OURS).run_ids == []
        assert whole(store) == unchanged

    def test_ends_that_come_in_together_are_written_together(self, store: Any) -> None:
        runs = [running(store, f"task_{n}") for n in range(3)]
        assert store.settle([done(run) for run in runs], OURS).run_ids == ["task_0", "task_1", "task_2"]
        assert [notice.run_id for notice in store.notices(project=None, unread=True)] == ["task_0", "task_1", "task_2"]

    @pytest.mark.parametrize(
        "impossible", [(RunState.SKIPPED, Result.EXIT), (RunState.PENDING, Result.EXIT), (RunState.COMPLETED, Result.SIGNAL)]
    )
    def test_an_impossible_end_is_refused_and_nothing_of_its_company_is_written(
        self, store: Any, impossible: tuple[RunState, Result]
    ) -> None:
        first, second = running(store, "task_a"), running(store, "task_b")
        unchanged = whole(store)
        with pytest.raises(BackburnerError):
            store.settle([done(first), done(second, *impossible)], OURS)
        assert whole(store) == unchanged

    def test_a_clock_that_ran_back_does_not_end_a_run_before_it_began(self, store: Any) -> None:
        run = running(store)
        store.settle([done(run, ended_at=NOW - 5000)], OURS)
        assert shown(store, "task_x").run.ended_at == run.started_at  # type: ignore[union-attr]

    # -- adopt and release

    def test_a_run_is_taken_over_from_its_owner(self, store: Any) -> None:
        run = running(store, owner=THEIRS, runner=EMBEDDER)
        work = store.adopt(run, OURS)
        assert (work.run.owner, work.run.runner, work.run.state) == (OURS, ENGINE, RunState.RUNNING)
        assert work.environment == {"PATH": "/bin", "N": "1"}
        assert store.settle([done(run)], THEIRS).run_ids == []
        assert store.settle([done(run)], OURS).run_ids == ["task_x"]

    def test_of_two_that_take_a_run_over_one_is_too_late(self, store: Any, open_store: Open) -> None:
        run = running(store, owner=ProcessId(33, "3", "boot"))
        store.adopt(run, OURS)
        with pytest.raises(StaleRun, match="task_x"):
            open_store().adopt(run, THEIRS)
        assert shown(store, "task_x").run.owner == OURS  # type: ignore[union-attr]

    def test_a_run_that_ended_meanwhile_cannot_be_taken_over(self, store: Any) -> None:
        run = running(store)
        store.settle([done(run)], OURS)
        with pytest.raises(StaleRun):
            store.adopt(run, THEIRS)

    def test_what_a_dead_embedder_left_pending_goes_to_the_engine_in_its_order(self, store: Any) -> None:
        run = running(store, "task_held", owner=THEIRS, runner=EMBEDDER)
        submit(store, "task_a", runner=EMBEDDER)
        submit(store, "task_b")
        submit(store, "task_c", runner=EMBEDDER)
        submit(store, "task_d", runner="somebody:else")
        assert store.release(EMBEDDER) == 2
        assert store.release(EMBEDDER) == 0
        assert [work.run.run_id for work in store.claim(ENGINE, OURS, 9, NOW)] == ["task_a", "task_b", "task_c"]
        assert shown(store, run.task_id).run.owner == THEIRS  # type: ignore[union-attr]

    # -- request_cancel

    def test_a_pending_run_is_cancelled_at_once_and_told(self, store: Any) -> None:
        submit(store)
        entry = store.request_cancel("task_x", NOW + 5)
        assert (entry.status, entry.task.state, entry.run.result, entry.run.ended_at) == (
            "cancelled",
            TaskState.CANCELLED,
            Result.UNSTARTED,
            NOW + 5,
        )
        assert len(store.notices(project=None, unread=True)) == 1
        assert store.claim(ENGINE, OURS, 5, NOW + 6) == []

    def test_a_running_run_is_marked_for_its_owner_to_stop(self, store: Any) -> None:
        run = running(store)
        entry = store.request_cancel("task_x", NOW + 20)
        assert entry.run == run._replace(cancel_requested_at=NOW + 20)
        assert [one.cancel_requested_at for one in store.live_runs()] == [NOW + 20]
        assert store.notices(project=None, unread=True) == []
        assert store.settle([done(run, RunState.CANCELLED, Result.SIGNAL)], OURS).run_ids == ["task_x"]

    def test_asking_twice_to_cancel_is_asking_once(self, store: Any) -> None:
        running(store)
        first = store.request_cancel("task_x", NOW + 20)
        assert store.request_cancel("task_x", NOW + 30) == first
        assert kinds(store).count("cancel_requested") == 1

    def test_a_proposal_that_is_cancelled_is_rejected(self, store: Any) -> None:
        propose(store)
        assert store.request_cancel("task_x", NOW + 5).task.state == TaskState.REJECTED

    def test_what_has_ended_cannot_be_cancelled_any_more(self, store: Any) -> None:
        ended(store, "task_a")
        propose(store, "task_b")
        store.refuse("task_b", expired=True, now=NOW)
        unchanged = whole(store)
        assert store.request_cancel("task_a", NOW + 9999).status == "completed"
        assert store.request_cancel("task_b", NOW + 9999).status == "expired"
        assert whole(store) == unchanged

    # -- find, show and list

    def test_a_task_is_found_by_its_id_even_where_that_is_part_of_another(self, store: Any) -> None:
        submit(store, "task_x")
        submit(store, "task_xy")
        assert store.find("task_x", None) == ["task_x"]

    def test_a_task_is_found_by_a_part_of_its_id(self, store: Any) -> None:
        submit(store, "task_20260209_make")
        submit(store, "task_20260210_pytest")
        assert store.find("pytest", None) == ["task_20260210_pytest"]
        assert store.find("0209", None) == ["task_20260209_make"]

    def test_a_part_of_several_ids_finds_them_all_newest_first(self, store: Any) -> None:
        for letter in "abc":
            submit(store, f"task_{letter}")
        assert store.find("task", None) == ["task_c", "task_b", "task_a"]

    def test_a_label_goes_before_a_part_of_an_id(self, store: Any) -> None:
        submit(store, "task_nightly_old")
        submit(store, "task_other", name="nightly")
        assert store.find("nightly", None) == ["task_other"]

    def test_a_label_means_the_task_of_the_project_where_it_is_asked_for(self, store: Any) -> None:
        submit(store, "task_p", name="nightly", project="/p")
        submit(store, "task_q", name="nightly", project="/q")
        assert store.find("nightly", "/p") == ["task_p"]
        assert store.find("nightly", "/q") == ["task_q"]
        assert store.find("nightly", "/elsewhere") == ["task_q", "task_p"]

    def test_the_id_of_a_cleared_task_never_comes_to_mean_another_one(self, store: Any) -> None:
        ended(store, "task_x")
        submit(store, "task_x")
        store.clear(["task_x"], NOW)
        assert store.find("task_x", None) == []
        assert store.find("task_x_2", None) == ["task_x_2"]

    def test_last_is_the_newest_of_the_project(self, store: Any) -> None:
        assert store.find("last", "/p") == []
        submit(store, "task_a", project="/p")
        submit(store, "task_b", project="/q")
        assert store.find("last", "/p") == ["task_a"]
        assert store.find("last", None) == ["task_b"]

    @pytest.mark.parametrize("reference", ["%", "a_c", "t%k", "\\", "\\%", "TASK\\", "'", '"; --'])
    def test_what_a_database_would_take_for_a_pattern_is_plain_text(self, store: Any, reference: str) -> None:
        submit(store, "task_abc")
        assert store.find(reference, None) == []
        submit(store, f"task_{reference}")
        assert store.find(reference, None) == [f"task_{reference}"]

    def test_nothing_is_found_by_nothing(self, store: Any) -> None:
        submit(store)
        assert store.find("", None) == []
        assert store.find("task_y", None) == []

    def test_show_takes_a_whole_id_only(self, store: Any) -> None:
        submit(store)
        assert store.show("task") is None and store.show("task_y") is None

    def test_lists_are_newest_first_and_no_longer_than_asked_for(self, store: Any) -> None:
        for letter in "bac":
            submit(store, f"task_{letter}")
        assert self.listed(store) == ["task_c", "task_a", "task_b"]
        assert self.listed(store, limit=2) == ["task_c", "task_a"]
        assert self.listed(store, limit=0) == []

    def test_lists_are_filtered_by_status_and_project(self, store: Any) -> None:
        ended(store, "task_done")
        running(store, "task_running")
        submit(store, "task_pending", project="/q")
        propose(store, "task_proposed", project="/q")
        propose(store, "task_rejected")
        store.refuse("task_rejected", expired=False, now=NOW)
        for status in ("pending", "running", "proposed", "rejected"):
            assert self.listed(store, status=status) == [f"task_{status}"]
        assert self.listed(store, status="completed") == ["task_done"]
        assert self.listed(store, status="failed") == []
        assert self.listed(store, project="/q") == ["task_proposed", "task_pending"]
        assert self.listed(store, status="pending", project="/p") == []
        assert self.listed(store, status="pending", project="/q", limit=5) == ["task_pending"]

    @staticmethod
    def listed(store: Any, *, status: str | None = None, project: str | None = None, limit: int | None = None) -> list[str]:
        return [entry.task.task_id for entry in store.list(status=status, project=project, limit=limit)]

    def test_live_runs_are_those_that_have_not_ended(self, store: Any) -> None:
        ended(store, "task_done")
        running(store, "task_running")
        submit(store, "task_pending")
        propose(store, "task_proposed")
        assert [(run.run_id, run.state) for run in store.live_runs()] == [("task_running", "running"), ("task_pending", "pending")]

    # -- events

    def test_events_come_in_the_order_of_their_commits_whoever_wrote_them(self, store: Any, open_store: Open) -> None:
        other = open_store()
        seen = 0
        for n in range(6):
            submit((store, other)[n % 2], f"task_{n}")
            new = store.events(seen, 100)
            assert [event.task_id for event in new] == [f"task_{n}"]
            assert new[0].event_id > seen
            seen = new[0].event_id

    def test_events_can_be_read_page_by_page_and_from_the_end(self, store: Any) -> None:
        for n in range(5):
            submit(store, f"task_{n}", now=NOW + n)
        first = store.events(0, 2)
        assert [event.task_id for event in first] == ["task_0", "task_1"]
        assert [event.task_id for event in store.events(first[-1].event_id, 2)] == ["task_2", "task_3"]
        assert [event.task_id for event in store.events(-2, 100)] == ["task_3", "task_4"]
        assert len(store.events(-100, 100)) == 5
        assert [event.at for event in first] == [NOW, NOW + 1]

    def test_a_refused_verb_leaves_no_event(self, store: Any) -> None:
        propose(store)
        with pytest.raises(LedgerUnavailable):
            store.approve("task_x", Approval("nobody", "cli", NOW), runner=ENGINE, folder="tasks")
        assert kinds(store) == ["task_proposed"]
        assert shown(store, "task_x").status == "proposed"

    # -- notices

    def test_what_was_told_is_not_owed_any_more(self, store: Any) -> None:
        for letter in "abc":
            ended(store, f"task_{letter}")
        first, _, _ = store.notices(project=None, unread=True)
        store.tell(notice_ids=[first.notice_id], task_ids=["task_c"], now=NOW + 7)
        assert [notice.task_id for notice in store.notices(project=None, unread=True)] == ["task_b"]
        assert [notice.told_at for notice in store.notices(project=None, unread=False)] == [NOW + 7, None, NOW + 7]

    def test_telling_again_does_not_change_when_it_was_told(self, store: Any) -> None:
        ended(store)
        store.tell(task_ids=["task_x"], now=NOW + 7)
        store.tell(task_ids=["task_x", "task_missing"], notice_ids=[999], now=NOW + 1000)
        assert [notice.told_at for notice in store.notices(project=None, unread=False)] == [NOW + 7]

    def test_notices_are_owed_to_their_project(self, store: Any) -> None:
        for project in ("/p", "/q"):
            store.settle([done(running(store, f"task{project[1:]}", project=project))], OURS)
        assert [notice.task_id for notice in store.notices(project="/q", unread=True)] == ["taskq"]

    def test_every_notice_has_a_key_of_its_own(self, store: Any) -> None:
        for _ in range(3):
            ended(store)
        assert len({notice.key for notice in store.notices(project=None, unread=True)}) == 3

    # -- clear and outdated

    def test_a_cleared_task_is_gone_with_all_that_hung_on_it(self, store: Any) -> None:
        ended(store, "task_a")
        ended(store, "task_b")
        assert store.clear(["task_a"], NOW) == ["tasks/task_a"]
        assert store.show("task_a") is None
        assert [notice.task_id for notice in store.notices(project=None, unread=False)] == ["task_b"]
        assert kinds(store, "task_a") == ["task_cleared"]
        assert len(kinds(store, "task_b")) == 4

    def test_what_is_live_is_never_cleared(self, store: Any) -> None:
        running(store, "task_a")
        submit(store, "task_b")
        unchanged = whole(store)
        assert store.clear(["task_a", "task_b", "task_missing"], NOW) == []
        assert whole(store) == unchanged

    def test_event_ids_are_never_used_again(self, store: Any) -> None:
        ended(store)
        last = store.events(-1, 1)[0].event_id
        store.clear(["task_x"], NOW)
        assert [event.event_id > last for event in store.events(0, 100)] == [True]

    def test_a_cleared_id_can_be_used_again(self, store: Any) -> None:
        ended(store)
        store.clear(["task_x"], NOW)
        assert submit(store).task.task_id == "task_x"
        assert [work.environment for work in store.claim(ENGINE, OURS, 1, NOW)] == [{"PATH": "/bin", "N": "1"}]

    def test_clearing_one_task_leaves_the_environment_of_another(self, store: Any) -> None:
        ended(store, "task_a")
        submit(store, "task_b")
        store.clear(["task_a"], NOW)
        assert [work.environment["N"] for work in store.claim(ENGINE, OURS, 1, NOW)] == ["1"]

    def test_what_ended_before_a_moment_is_outdated(self, store: Any) -> None:
        ended(store, "task_old", ended_at=NOW + 100)
        ended(store, "task_new", ended_at=NOW + 200)
        running(store, "task_running")
        submit(store, "task_pending")
        propose(store, "task_proposed")
        propose(store, "task_refused")
        store.refuse("task_refused", expired=False, now=NOW)
        assert sorted(store.outdated(NOW + 200)) == ["task_old", "task_refused"]
        assert store.outdated(NOW) == []

    # -- rows kept by hand, and rows that cannot be

    def test_a_task_kept_by_hand_is_shown_and_never_run(self, store: Any) -> None:
        task, run = self.by_hand(store)
        store.record(task, run)
        assert shown(store, "task_hand") == (task, run)
        assert [one.run_id for one in store.live_runs()] == ["task_model"]
        with pytest.raises(BadInput):
            store.record(task, run)

    def test_a_task_kept_by_hand_changes_as_a_run_can_go(self, store: Any) -> None:
        task, run = self.by_hand(store)
        store.record(task, run)
        over = run._replace(state=RunState.COMPLETED, result=Result.EXIT, ended_at=NOW + 1000)
        store.change_record(task._replace(state=TaskState.DONE), over)
        assert shown(store, "task_hand").status == "completed"
        with pytest.raises(IllegalTransition):
            store.change_record(task, run)
        assert shown(store, "task_hand").status == "completed"

    def test_what_is_not_kept_by_hand_cannot_be_changed_so(self, store: Any) -> None:
        run = running(store)
        with pytest.raises(BadInput):
            store.change_record(
                shown(store, "task_x").task, run._replace(state=RunState.COMPLETED, result=Result.EXIT, ended_at=NOW + 1000)
            )
        assert shown(store, "task_x").run == run

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
            {"task_id": "task_missing"},
        ],
        ids=str,
    )
    def test_an_impossible_run_is_refused(self, store: Any, impossible: dict[str, object]) -> None:
        task, run = self.by_hand(store)
        unchanged = whole(store)
        with pytest.raises(LedgerUnavailable):
            store.record(task, run._replace(**impossible))
        assert whole(store) == unchanged

    @pytest.mark.parametrize(
        "impossible",
        [
            {"approved_by": None},
            {"approved_at": None},
            {"approved_by": None, "approved_at": None},
            {"approved_by": "robot"},
            {"state": TaskState.PROPOSED},
            {"state": "strange"},
            {"type": "strange"},
            {"kind": "strange"},
            {"timeout_ms": 0},
            {"task_id": ""},
            {"run_count": -1},
        ],
        ids=str,
    )
    def test_an_impossible_task_is_refused(self, store: Any, impossible: dict[str, object]) -> None:
        task, run = self.by_hand(store)
        unchanged = whole(store)
        with pytest.raises(LedgerUnavailable):
            store.record(task._replace(**impossible), run._replace(task_id=impossible.get("task_id", run.task_id)))
        assert whole(store) == unchanged

    @staticmethod
    def by_hand(store: Any) -> tuple[Task, Run]:
        """A running task as an embedder keeps it."""
        run = running(store, "task_model")
        task = shown(store, "task_model").task
        return task._replace(task_id="task_hand"), run._replace(task_id="task_hand", run_id="task_hand", runner=RECORD, folder="tasks/hand")
