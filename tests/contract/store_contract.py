"""What every ledger must do: one suite, run by each adapter.

An adapter brings a fixture `open_store` that opens the same, at first empty, ledger again with every call, as another
process would.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from backburner.core.errors import BackburnerError, BadInput, IllegalTransition, LedgerUnavailable, StaleRun, TaskNotFound
from backburner.core.models import ENGINE, RECORD, Approval, Ending, Entry, ProcessId, Run, Session, Submission, Task
from backburner.core.states import Result, RunState, TaskState
from backburner.core.trace_context import Parent

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
    parent, owner = more.pop("parent", None), more.pop("owner", None)
    submission = Submission(**{"command": ("make", "all"), "cwd": "/p/src", "environment": {"PATH": "/bin", "N": "1"}, **more})
    return store.submit(
        submission, project=project, wanted_id=wanted, approval=approval, reasons=("why",), runner=runner, folder="tasks", now=now,
        expires_at=expires, parent=parent, owner=owner
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


def failed(run: Run | str, **more: Any) -> Ending:
    return done(run, RunState.FAILED, more.pop("result", Result.EXIT), exit_code=1, **more)


def ended(store: Any, wanted: str = "task_x", **more: Any) -> Run:
    run = running(store, wanted)
    store.settle([done(run, **more)], OURS)
    return shown(store, run.task_id).run  # type: ignore[return-value]


def shown(store: Any, task_id: str) -> Entry:
    entry = store.show(task_id)
    assert entry is not None
    return entry


def claimed(store: Any, limit: int = 9, now: int = NOW, runner: str = ENGINE) -> list[str]:
    return [work.run.run_id for work in store.claim(runner, OURS, limit, now)]


def approve(store: Any, task_id: str, now: int = NOW) -> Entry:
    return store.approve(task_id, Approval("user", "cli", now), runner=ENGINE, folder="tasks")


def told(store: Any) -> list[str]:
    """The task of every notice there is, oldest first."""
    return [notice.task_id for notice in store.notices(project=None, unread=False)]


# Every way in which something can end that others come after: as a proposal, in the queue, at work, or waiting for a yes.
ENDS = ["completed", "failed", "timed out", "lost", "cancelled", "cancelled in the queue", "denied", "rejected", "expired", "withdrawn"]


def begun(store: Any, how: str, task_id: str = "task_a") -> None:
    """A task that can go this way."""
    if how in ("rejected", "expired", "withdrawn"):
        propose(store, task_id)
        return
    submit(store, task_id, priority=1)
    if how != "cancelled in the queue":
        assert claimed(store, 1) == [task_id]
    if how == "denied":
        store.park(task_id, OURS, "it changed", NOW)


def over(store: Any, how: str, task_id: str = "task_a") -> None:
    """The end of a task that `begun` made."""
    match how:
        case "completed":
            store.settle([done(task_id)], OURS)
        case "failed":
            store.settle([failed(task_id)], OURS)
        case "timed out":
            store.settle([done(task_id, RunState.FAILED, Result.TIMEOUT)], OURS)
        case "lost":
            store.settle([done(task_id, RunState.FAILED, Result.LOST)], OURS)
        case "cancelled":
            store.request_cancel(task_id, NOW)
            store.settle([done(task_id, RunState.CANCELLED, Result.SIGNAL)], OURS)
        case "cancelled in the queue" | "withdrawn":
            store.request_cancel(task_id, NOW + 1000)
        case _:
            store.refuse(task_id, expired=how == "expired", now=NOW + 1000)


def latest(store: Any, task_id: str) -> Run:
    run = shown(store, task_id).run
    assert run is not None
    return run


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

    def test_what_a_dead_embedder_left_waiting_for_a_yes_goes_to_the_engine_too(self, store: Any) -> None:
        run = running(store, owner=THEIRS, runner=EMBEDDER)
        store.park(run.run_id, THEIRS, "it changed", NOW)
        store.release(EMBEDDER)
        assert [one.runner for one in store.live_runs()] == [ENGINE]

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

    # -- sessions

    def test_the_end_of_a_task_is_owed_to_whoever_asked(self, store: Any) -> None:
        for name, session in (("task_a", "claude:1"), ("task_b", "codex:2"), ("task_c", None)):
            store.settle([done(running(store, name, session=session))], OURS)
        owed = {notice.task_id: notice.channel for notice in store.notices(project=None, unread=True)}
        assert owed == {"task_a": "session:claude:1", "task_b": "session:codex:2", "task_c": "inbox"}
        assert [one.task_id for one in store.notices(project=None, unread=True, channels=["inbox", "session:codex:2"])] == [
            "task_b",
            "task_c",
        ]
        assert sorted(store.owing()) == ["inbox", "session:claude:1", "session:codex:2"]

    def test_what_one_channel_was_told_is_still_owed_to_another(self, store: Any) -> None:
        store.settle([done(running(store, "task_a", session="claude:1"))], OURS)
        store.tell(task_ids=["task_a"], now=NOW)
        assert store.owing() == ["session:claude:1"]
        store.tell(task_ids=["task_a"], channel="session:claude:1", now=NOW)
        assert store.owing() == []

    @pytest.mark.parametrize("expired", [False, True])
    def test_a_session_is_told_that_its_proposal_was_refused(self, store: Any, expired: bool) -> None:
        propose(store, "task_a", session="claude:1")
        propose(store, "task_b")
        for task_id in ("task_a", "task_b"):
            store.refuse(task_id, expired=expired, now=NOW)
        (notice,) = store.notices(project=None, unread=True)
        assert (notice.task_id, notice.run_id, notice.channel) == ("task_a", None, "session:claude:1")
        assert ("nobody answered" if expired else "rejected") in notice.text and "did not run" in notice.text

    def test_a_session_is_known_from_when_it_was_met_and_where_it_is_now(self, store: Any) -> None:
        store.register(Session("claude:1", "claude", "/p", OURS, NOW, NOW))
        store.register(Session("codex:2", "codex", "/p", None, NOW + 1, NOW + 1))
        store.register(Session("claude:1", "claude", "/q", THEIRS, NOW + 5, NOW + 5))
        first, second = store.sessions()
        assert first == Session("claude:1", "claude", "/p", THEIRS, NOW, NOW + 5) and second.session_id == "codex:2"
        assert [one.session_id for one in store.sessions("codex")] == ["codex:2"]

    def test_a_session_has_open_work_until_the_last_of_it_ended(self, store: Any) -> None:
        assert not store.open_work(["claude:1"])
        propose(store, "task_a", session="claude:1")
        run = running(store, "task_b", session="claude:1")
        assert store.open_work(["claude:1", "x:y"]) and not store.open_work(["x:y"])
        store.refuse("task_a", expired=False, now=NOW)
        assert store.open_work(["claude:1"])
        store.settle([done(run)], OURS)
        assert not store.open_work(["claude:1"])

    # -- clear and outdated

    def test_a_cleared_task_is_gone_with_all_that_hung_on_it(self, store: Any) -> None:
        ended(store, "task_a")
        ended(store, "task_b")
        assert store.clear(["task_a"], NOW) == ["tasks/task_a"]
        assert store.show("task_a") is None
        assert [notice.task_id for notice in store.notices(project=None, unread=False)] == ["task_b"]
        assert kinds(store, "task_a") == ["task_cleared"]
        assert len(kinds(store, "task_b")) == 4

    def test_clearing_twice_is_clearing_once(self, store: Any) -> None:
        ended(store)
        assert store.clear(["task_x", "task_x"], NOW) == ["tasks/task_x"]
        assert kinds(store) == ["task_cleared"]
        assert store.clear(["task_x"], NOW) == []
        assert kinds(store) == ["task_cleared"]

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

    def test_a_cleared_id_is_not_given_to_another_task(self, store: Any) -> None:
        ended(store)
        store.clear(["task_x"], NOW)
        assert submit(store).task.task_id == "task_x_2"
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

    # -- order: priorities, times, and who is claimed at once

    def test_everything_that_was_asked_for_is_kept(self, store: Any, open_store: Open) -> None:
        asked = {
            "batch": "nightly", "key": "k", "priority": -1, "start_at": NOW + 5, "limits": {"nice": 5, "memory_mb": 64},
            "stdin": True, "ready_when": "up$", "restarts": 3,
        }  # fmt: skip
        submit(store, "task_a")
        entry = submit(store, **asked, after=("task_a",))
        assert {name: getattr(entry.task, name) for name in asked} == asked
        run = latest(store, "task_x")
        assert (entry.task.after, run.blocked, run.due_at, run.priority) == (("task_a",), True, NOW + 5, -1)
        assert open_store().show("task_x") == entry

    def test_claims_go_by_priority_and_then_by_age(self, store: Any) -> None:
        for number, priority in enumerate([0, -1, 1, 0, 1, -1]):
            submit(store, f"task_{number}", priority=priority, now=NOW - number)
        assert claimed(store, 3) == ["task_2", "task_4", "task_0"]
        submit(store, "task_urgent", priority=1)
        assert claimed(store) == ["task_urgent", "task_3", "task_1", "task_5"]

    def test_nothing_starts_before_its_time_and_what_waits_for_it_holds_nobody_up(self, store: Any) -> None:
        submit(store, "task_blocker", start_at=NOW + 1000)
        submit(store, "task_blocked", start_at=NOW + 10, after=("task_blocker",))
        submit(store, "task_theirs", start_at=NOW + 20, runner=EMBEDDER)
        submit(store, "task_later", start_at=NOW + 100, priority=1)
        submit(store, "task_low", priority=-1)
        submit(store, "task_soon", start_at=NOW + 50)
        submit(store, "task_past", start_at=NOW - 50)
        assert (store.next_due(ENGINE, NOW), store.next_due(EMBEDDER, NOW), store.next_due("nobody", NOW)) == (NOW + 50, NOW + 20, None)
        assert claimed(store, 1, NOW + 49) == ["task_past"]
        assert store.queued(ENGINE, NOW + 50, 9) == ["task_soon", "task_low"]
        assert claimed(store, 9, NOW + 100) == ["task_later", "task_soon", "task_low"]
        assert store.next_due(ENGINE, NOW + 100) == NOW + 1000
        assert store.next_due(ENGINE, NOW + 1000) is None

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
        self, store: Any, open_store: Open, before: dict[str, Any], asked: dict[str, Any], at_once: bool
    ) -> None:
        submit(store, "task_before", **before)
        entry = submit(store, owner=OURS, **asked)
        assert open_store().show("task_x") == entry
        run = latest(store, "task_x")
        assert (run.state, run.owner, run.started_at) == (("running", OURS, NOW) if at_once else ("pending", None, None))
        assert kinds(store, "task_x") == ["task_submitted", "run_started"][: 1 + at_once]
        assert "task_x" not in claimed(store, now=NOW + 9) or not at_once

    def test_what_nobody_approved_or_what_cannot_run_is_not_claimed_by_who_submits_it(self, store: Any) -> None:
        ended(store, "task_a", state=RunState.FAILED)
        assert propose(store, "task_b", owner=OURS).run is None
        assert submit(store, "task_c", owner=OURS, after=("task_a",)).run.result == Result.DEPENDENCY  # type: ignore[union-attr]

    def test_ends_and_the_claim_of_what_they_make_room_for_are_one_step(self, store: Any, open_store: Open) -> None:
        first = running(store, "task_first")
        submit(store, "task_next", after=("task_first",))
        submit(store, "task_other")
        submit(store, "task_urgent", priority=1, start_at=NOW + 2000)
        settled = store.settle([done(first), done("task_missing")], OURS, runner=ENGINE, limit=2, now=NOW + 2000)
        assert settled.run_ids == ["task_first"]
        assert [work.run.run_id for work in settled.claimed] == ["task_urgent", "task_next"]
        assert {(work.run.owner, work.run.started_at) for work in settled.claimed} == {(OURS, NOW + 2000)}
        assert [open_store().show(work.task.task_id) for work in settled.claimed] == [work[:2] for work in settled.claimed]
        assert [work.run.run_id for work in store.settle([], OURS, runner=ENGINE, limit=9, now=NOW).claimed] == ["task_other"]
        assert store.settle([], OURS).claimed == []

    def test_with_an_impossible_end_nothing_is_claimed_either(self, store: Any) -> None:
        run = running(store, "task_a")
        submit(store, "task_b")
        unchanged = whole(store)
        with pytest.raises(BackburnerError):
            store.settle([done(run, RunState.SKIPPED)], OURS, runner=ENGINE, limit=1, now=NOW)
        assert whole(store) == unchanged

    # -- keys and batches

    def test_a_key_that_was_used_gives_the_task_of_then_whatever_became_of_it(self, store: Any, open_store: Open) -> None:
        submit(store, "task_a", key="k")
        run = store.claim(ENGINE, OURS, 1, NOW)[0].run
        for _ in range(2):
            before, unchanged = shown(store, "task_a"), whole(store)
            other = {"command": ("rm",), "after": ("task_missing",), "owner": THEIRS, "priority": 1, "batch": "b"}
            assert submit(open_store(), "task_b", key="k", **other) == before
            assert propose(store, "task_c", key="k") == before
            assert whole(store) == unchanged
            store.settle([failed(run)], OURS)
        assert store.by_key("/p", "k").status == "failed"

    def test_a_key_means_a_task_of_its_own_in_every_project_and_again_once_that_was_cleared(self, store: Any) -> None:
        ended(store, "task_x")
        made = [submit(store, f"task{project[1:]}", key="k", project=project).task.task_id for project in ("/p", "/q")]
        assert made == ["taskp", "taskq"]
        assert submit(store, "task_y", key="K").task.task_id == "task_y"
        store.request_cancel("taskp", NOW)
        store.clear(["taskp"], NOW)
        assert store.by_key("/p", "k") is None
        assert submit(store, "task_again", key="k").task.task_id == "task_again"
        assert store.by_key("/q", "k").task.task_id == "taskq"

    def test_of_many_that_use_one_key_at_once_all_get_the_same_task(self, open_store: Open) -> None:
        stores = [open_store() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda store: {submit(store, key=f"k{n}").task.task_id for n in range(10)}, stores))
        assert made[0] == made[1] == made[2] == made[3] and len(made[0]) == 10

    def test_a_batch_counts_its_tasks_by_how_they_stand(self, store: Any) -> None:
        for name, batch, project in (("a", "one", "/p"), ("b", "one", "/p"), ("c", "two", "/p"), ("d", "one", "/q"), ("e", None, "/p")):
            submit(store, f"task_{name}", batch=batch, project=project)
        propose(store, "task_f", batch="one")
        assert claimed(store, 1) == ["task_a"]
        store.settle([failed("task_a")], OURS)
        assert [(one.batch, one.project, one.created_at, one.counts) for one in store.batches()] == [
            ("one", "/p", NOW, {"failed": 1, "pending": 1, "proposed": 1}),
            ("two", "/p", NOW, {"pending": 1}),
            ("one", "/q", NOW, {"pending": 1}),
        ]
        assert [one.project for one in store.batches("/q")] == ["/q"]
        listed = [entry.task.task_id for entry in store.list(status=None, project="/p", batch="one", limit=None)]
        assert listed == ["task_f", "task_b", "task_a"]
        assert store.list(status=None, project=None, batch="three", limit=None) == []

    # -- dependencies

    @pytest.mark.parametrize("late", [False, True], ids=["asked for before that", "asked for after that"])
    @pytest.mark.parametrize("how", ENDS)
    def test_a_task_starts_once_what_it_comes_after_completed_and_else_fails_with_it(self, store: Any, how: str, late: bool) -> None:
        begun(store, how)
        if not late:
            assert submit(store, "task_b", after=("task_a",)).run.blocked  # type: ignore[union-attr]
            assert "task_b" not in store.queued(ENGINE, NOW + DAY, 9)
        over(store, how)
        if late:
            submit(store, "task_b", after=("task_a",))
        task, run = shown(store, "task_b")
        assert run is not None and not run.blocked
        if how == "completed":
            assert (task.state, run.state, store.fallen("task_a")) == (TaskState.ACTIVE, RunState.PENDING, [])
            assert claimed(store) == ["task_b"]
            return
        assert (task.state, run.state, run.result, run.started_at) == (TaskState.FAILED, RunState.FAILED, Result.DEPENDENCY, None)
        assert run.error is not None and run.error.startswith("task_a, which it comes after, ")
        assert told(store).count("task_b") == 1 and kinds(store, "task_b") == ["task_submitted", "task_failed", "run_failed"]
        assert late or store.fallen("task_a") == [(task, run)]
        assert claimed(store) == []

    def test_what_comes_after_a_proposal_waits_for_the_yes_and_then_for_the_end(self, store: Any) -> None:
        propose(store, "task_a")
        submit(store, "task_b", after=("task_a",))
        approve(store, "task_a")
        assert claimed(store) == ["task_a"]
        assert latest(store, "task_b").blocked
        store.settle([done("task_a")], OURS)
        assert claimed(store) == ["task_b"]

    @pytest.mark.parametrize("order", list(itertools.permutations("ab")), ids="".join)
    @pytest.mark.parametrize("ends", ["completed completed", "completed failed", "failed completed", "failed failed"])
    def test_of_two_that_a_task_comes_after_both_must_complete_and_the_first_failure_is_the_only_one(
        self, store: Any, ends: str, order: tuple[str, ...]
    ) -> None:
        for name in "ab":
            begun(store, "failed", f"task_{name}")
        submit(store, "task_c", after=("task_a", "task_b", "task_a"))
        over(store, ends.split()[0], f"task_{order[0]}")
        once = latest(store, "task_c")
        over(store, ends.split()[1], f"task_{order[1]}")
        last = latest(store, "task_c")
        assert (once.state, once.blocked) == (("failed", False) if ends.startswith("failed") else ("pending", True))
        assert last.state == ("failed" if "failed" in ends else "pending")
        if ends.startswith("failed"):
            assert last == once
        assert told(store).count("task_c") == ("failed" in ends)
        assert claimed(store) == ([] if "failed" in ends else ["task_c"])
        cleared = [store.clear([task_id], NOW) for task_id in ("task_a", "task_b")]
        assert all(cleared) and shown(store, "task_c").status == ("failed" if "failed" in ends else "running")

    def test_just_those_fall_that_come_after_what_failed_and_each_of_them_once(self, store: Any) -> None:
        graph = {"a": "", "x": "", "b": "a", "c": "a", "d": "bc", "e": "dx", "f": "x", "g": "a", "h": "g"}
        for name, before in graph.items():
            submit(store, f"task_{name}", after=tuple(f"task_{other}" for other in before))
        store.request_cancel("task_g", NOW)
        assert claimed(store) == ["task_a", "task_x"]
        store.settle([failed("task_a")], OURS)
        fell = {entry.task.task_id[-1]: entry.run for entry in store.list(status="failed", project=None, limit=None)}
        assert "".join(sorted(fell)) == "abcdeh"
        assert {name: run.error.split(",")[0][-1] for name, run in fell.items() if name in "bcdeh"}.items() <= {
            ("b", "a"), ("c", "a"), ("d", "b"), ("d", "c"), ("e", "d"), ("h", "g")
        }  # fmt: skip
        assert "was cancelled" in fell["h"].error
        assert sorted(told(store)) == [f"task_{name}" for name in "abcdegh"]
        for task_id, fallen in (("task_a", "bcde"), ("task_d", "e"), ("task_g", "h"), ("task_f", "")):
            assert sorted(one.task.task_id for one in store.fallen(task_id)) == [f"task_{name}" for name in fallen]
        store.settle([done("task_x")], OURS)
        assert claimed(store) == ["task_f"]

    def test_a_task_cannot_come_after_what_is_not_known(self, store: Any) -> None:
        ended(store, "task_gone")
        store.clear(["task_gone"], NOW)
        submit(store, "task_a")
        unchanged = whole(store)
        for unknown in ("task_missing", "task_gone", "task_b"):
            with pytest.raises(TaskNotFound, match=unknown):
                submit(store, "task_b", after=("task_a", unknown))
        assert whole(store) == unchanged

    @pytest.mark.parametrize("answer", ["yes", "no"])
    @pytest.mark.parametrize("how", ENDS)
    def test_a_proposal_outlives_what_it_comes_after_and_learns_of_its_end_with_the_answer(self, store: Any, how: str, answer: str) -> None:
        begun(store, how)
        propose(store, "task_b", after=("task_a",))
        submit(store, "task_c", after=("task_b",))
        over(store, how)
        assert [shown(store, task_id).status for task_id in ("task_b", "task_c")] == ["proposed", "pending"]
        if answer == "no":
            store.refuse("task_b", expired=False, now=NOW + 2000)
            assert latest(store, "task_c").error == "task_b, which it comes after, was rejected"
            return
        entry = approve(store, "task_b", NOW + 2000)
        assert entry == shown(store, "task_b")
        if how == "completed":
            assert claimed(store, now=NOW + 2000) == ["task_b"]
            assert latest(store, "task_c").blocked
            return
        fell = [latest(store, task_id) for task_id in ("task_b", "task_c")]
        assert {(run.state, run.result, run.ended_at) for run in fell} == {(RunState.FAILED, Result.DEPENDENCY, NOW + 2000)}
        assert [told(store).count(task_id) for task_id in ("task_b", "task_c")] == [1, 1]
        assert [one.task.task_id for one in store.fallen("task_b")] == ["task_c"]

    def test_a_proposal_that_is_approved_while_it_has_to_wait_waits_in_the_queue(self, store: Any) -> None:
        begun(store, "completed")
        propose(store, "task_b", after=("task_a",), start_at=NOW + 5000)
        assert approve(store, "task_b").run.blocked  # type: ignore[union-attr]
        over(store, "completed")
        assert (claimed(store, now=NOW + 4999), claimed(store, now=NOW + 5000)) == ([], ["task_b"])

    @pytest.mark.parametrize("how", ["completed", "failed"])
    def test_a_proposal_remembers_how_what_it_comes_after_ended_when_that_is_cleared(self, store: Any, how: str) -> None:
        begun(store, how)
        propose(store, "task_b", after=("task_a",))
        over(store, how)
        store.clear(["task_a"], NOW)
        assert approve(store, "task_b").status == ("pending" if how == "completed" else "failed")

    def test_a_proposal_that_nobody_answered_is_not_cleared_so_that_nothing_waits_for_it_in_vain(self, store: Any) -> None:
        propose(store, "task_a")
        submit(store, "task_b", after=("task_a",))
        unchanged = whole(store)
        assert store.clear(["task_a"], NOW) == []
        assert whole(store) == unchanged

    # -- restarts

    @pytest.mark.parametrize(
        ("most", "lasted", "delays"),
        [
            (1, [0, 0], [1]),
            (3, [0, 5, 0, 59], [1, 2, 4]),
            (9, [0] * 10, [1, 2, 4, 8, 16, 32, 60, 60, 60]),
            (2, [0, 0, 60, 0, 0], [1, 2, 1, 2]),
            (1, [60, 60, 61, 3600, 59.999], [1, 1, 1, 1]),
            (1, [59.999, 59.999], [1]),
        ],
    )
    def test_what_fails_is_run_again_later_and_later_until_it_failed_too_often_in_a_row(
        self, store: Any, most: int, lasted: list[float], delays: list[int]
    ) -> None:
        """`lasted` and `delays` are seconds."""
        submit(store, restarts=most, priority=1)
        due = NOW
        for n, (seconds, delay) in enumerate(zip(lasted, [*delays, None], strict=True), 1):
            ((_, run, _),) = store.claim(ENGINE, OURS, 9, due)
            name = "task_x" if n == 1 else f"task_x.{n}"
            assert (run.run_id, run.n, run.folder) == (name, n, f"tasks/{name}")
            ended_at, result = due + int(seconds * 1000), (Result.EXIT, Result.SIGNAL)[n % 2]
            assert store.settle([failed(run, result=result, ended_at=ended_at)], OURS).run_ids == [run.run_id]
            if delay is None:
                break
            due = ended_at + delay * 1000
            again = latest(store, "task_x")
            assert (again.state, again.due_at, again.priority, again.blocked) == (RunState.PENDING, due, 1, False)
            assert shown(store, "task_x").task.state == TaskState.ACTIVE
            assert (claimed(store, now=due - 1), store.next_due(ENGINE, due - 1)) == ([], due)
            assert store.settle([done(run)], OURS).run_ids == [] and told(store) == []
        task, last = shown(store, "task_x").task, latest(store, "task_x")
        assert (task.state, task.run_count, last.state) == (TaskState.FAILED, len(lasted), RunState.FAILED)
        (notice,) = store.notices(project=None, unread=True)
        assert notice.run_id == last.run_id and f", {most + 1} times in a row" in notice.text
        said = [event.data.get("restarts_in_ms") for event in store.events(0, 1000) if event.kind == "run_failed"]
        assert said == [*(1000 * delay for delay in delays), None]
        assert claimed(store, now=due + DAY) == []

    def test_a_run_that_is_repeated_comes_after_the_same_run(self, store: Any) -> None:
        submit(store, "task_a")
        ((_, first, _),) = store.claim(ENGINE, OURS, 9, NOW)
        store.settle([done(first)], OURS)
        submit(store, "task_x", after=("task_a",), restarts=1)
        ((_, run, _),) = store.claim(ENGINE, OURS, 9, NOW)
        store.settle([failed(run)], OURS)
        assert (run.origin, latest(store, "task_x").n, latest(store, "task_x").origin) == ("task_a", 2, "task_a")

    @pytest.mark.parametrize(
        ("state", "result"),
        [
            (RunState.COMPLETED, Result.EXIT),
            (RunState.CANCELLED, Result.SIGNAL),
            (RunState.FAILED, Result.LOST),
            (RunState.FAILED, Result.TIMEOUT),
            (RunState.FAILED, Result.AMBIGUOUS),
            (RunState.FAILED, Result.UNSTARTED),
        ],
    )
    def test_only_what_failed_by_itself_is_run_again(self, store: Any, state: RunState, result: Result) -> None:
        run = running(store, restarts=5)
        store.settle([done(run, state, result)], OURS)
        entry = shown(store, "task_x")
        assert (entry.status, entry.task.run_count, entry.ended, len(told(store))) == (state, 1, True, 1)

    def test_a_run_that_was_to_be_cancelled_and_fails_first_is_not_run_again(self, store: Any) -> None:
        run = running(store, restarts=5)
        store.request_cancel("task_x", NOW + 20)
        store.settle([failed(run)], OURS)
        entry = shown(store, "task_x")
        assert (entry.status, entry.task.state, entry.task.run_count, told(store)) == ("failed", TaskState.FAILED, 1, ["task_x"])

    def test_a_task_that_is_cancelled_before_it_is_run_again_is_cancelled_for_good(self, store: Any) -> None:
        run = running(store, restarts=5)
        submit(store, "task_after", after=("task_x",))
        store.settle([failed(run)], OURS)
        task, last = store.request_cancel("task_x", NOW + 1500)
        assert (task.state, task.run_count, last.run_id, last.result) == (TaskState.CANCELLED, 2, "task_x.2", Result.UNSTARTED)
        assert claimed(store, now=NOW + DAY) == [] and store.next_due(ENGINE, NOW) is None
        assert latest(store, "task_after").error == "task_x, which it comes after, was cancelled"
        assert sorted(told(store)) == ["task_after", "task_x"]

    @pytest.mark.parametrize("ends", ["failed failed", "failed completed"])
    def test_what_comes_after_a_task_that_is_run_again_waits_for_its_last_word(self, store: Any, ends: str) -> None:
        running(store, restarts=1)
        submit(store, "task_b", after=("task_x",))
        submit(store, "task_c", after=("task_b",))
        store.settle([failed("task_x")], OURS)
        assert latest(store, "task_b").blocked and store.fallen("task_x") == []
        submit(store, "task_late", after=("task_x",))
        assert claimed(store, now=NOW + 2000) == ["task_x.2"]
        assert [latest(store, task_id).blocked for task_id in ("task_b", "task_late")] == [True, True]
        over(store, ends.split()[1], "task_x.2")
        fell = [one.task.task_id for one in store.fallen("task_x")]
        if ends == "failed completed":
            assert (fell, claimed(store, now=NOW + 2000)) == ([], ["task_b", "task_late"])
        else:
            assert (sorted(fell), claimed(store, now=NOW + 2000)) == (["task_b", "task_c", "task_late"], [])

    def test_a_task_between_two_runs_is_live_and_afterwards_all_its_runs_are_cleared(self, store: Any) -> None:
        run = running(store, restarts=1)
        store.settle([failed(run)], OURS)
        assert store.clear(["task_x"], NOW) == store.outdated(NOW + DAY) == []
        assert claimed(store, now=NOW + 2000) == ["task_x.2"]
        store.settle([failed("task_x.2", ended_at=NOW + 3000)], OURS)
        assert store.outdated(NOW + 3000) == [] and store.outdated(NOW + 3001) == ["task_x"]
        assert sorted(store.clear(["task_x"], NOW)) == ["tasks/task_x", "tasks/task_x.2"]
        assert store.find("task_x.2", None) == []

    # -- servers

    def test_a_server_is_ready_once_and_only_its_owner_can_say_so(self, store: Any) -> None:
        run = running(store, ready_when="up")
        with pytest.raises(StaleRun):
            store.record_ready(run.run_id, THEIRS, NOW + 20)
        assert not shown(store, "task_x").ready
        store.record_ready(run.run_id, OURS, NOW + 30)
        assert shown(store, "task_x").ready and shown(store, "task_x").run == run._replace(ready_at=NOW + 30)
        with pytest.raises(StaleRun):
            store.record_ready(run.run_id, OURS, NOW + 40)
        assert kinds(store).count("run_ready") == 1

    def test_a_server_that_was_restarted_has_to_become_ready_again(self, store: Any) -> None:
        run = running(store, ready_when="up", restarts=1)
        store.record_ready(run.run_id, OURS, NOW + 30)
        store.settle([failed(run)], OURS)
        assert claimed(store, now=NOW + 2000) == ["task_x.2"]
        assert not shown(store, "task_x").ready
        store.record_ready("task_x.2", OURS, NOW + 3000)
        assert latest(store, "task_x").ready_at == NOW + 3000

    def test_what_has_ended_cannot_become_ready_any_more(self, store: Any) -> None:
        run = ended(store)
        unchanged = whole(store)
        with pytest.raises(StaleRun):
            store.record_ready(run.run_id, OURS, NOW + 2000)
        assert whole(store) == unchanged

    # -- traces and who follows the events

    def test_a_task_and_all_its_runs_are_pieces_of_the_trace_of_who_asked(self, store: Any) -> None:
        asker = Parent("a" * 32, "b" * 16)
        run = running(store, "task_a", parent=asker, restarts=1)
        store.settle([failed(run)], OURS)
        submit(store, "task_b", parent=Parent("a" * 32, run.span_id))
        submit(store, "task_else")
        task, again = shown(store, "task_a").task, latest(store, "task_a")
        spans = store.spans("a" * 32)
        assert [(span.task_id, span.run_id, span.parent_span_id) for span in spans] == [
            ("task_a", None, "b" * 16), ("task_a", "task_a", task.span_id), ("task_a", "task_a.2", task.span_id),
            ("task_b", None, run.span_id), ("task_b", "task_b", shown(store, "task_b").task.span_id)
        ]  # fmt: skip
        assert len({span.span_id for span in spans}) == 5 and {span.trace_id for span in spans} == {"a" * 32} == {again.trace_id}
        assert [(span.started_at, span.ended_at, span.status) for span in store.task_spans("task_a")] == [
            (NOW, NOW, "active"), (NOW + 10, NOW + 1000, "failed"), (None, None, "pending")
        ]  # fmt: skip
        assert {store.trace_of(span.span_id) for span in spans} == {"a" * 32} == {store.trace_of("b" * 16)}
        assert store.trace_of("c" * 16) is None and store.task_spans("task_missing") == [] == store.spans("d" * 32)
        own = shown(store, "task_else").task.trace_id
        assert len(own) == 32 and own == latest(store, "task_else").trace_id != "a" * 32

    def test_everybody_who_follows_the_events_has_a_place_of_its_own(self, store: Any, open_store: Open) -> None:
        assert store.cursor("otlp") == 0
        for position in (5, 9):
            store.advance_cursor("otlp", position)
        store.advance_cursor("other", 3)
        assert [open_store().cursor(name) for name in ("otlp", "other", "third")] == [9, 3, 0]

    def test_what_changes_no_state_can_be_noted(self, store: Any) -> None:
        before = submit(store)
        store.note("input_sent", "task_x", "task_x", NOW + 5, bytes=3)
        event = store.events(-1, 1)[0]
        assert (event.kind, event.at, event.run_id, event.data) == ("input_sent", NOW + 5, "task_x", {"bytes": 3})
        assert shown(store, "task_x") == before

    # -- environments, which are kept once and whose numbers are used again

    @pytest.mark.parametrize(
        ("first", "second"), [("one", "two"), ("plumless", "buckeroo")], ids=["different checksums", "the same checksum"]
    )
    def test_a_run_gets_the_environment_it_was_asked_for_in_whatever_was_cleared_before(
        self, store: Any, open_store: Open, first: str, second: str
    ) -> None:
        other = open_store()
        submit(store, "task_a", environment={"A": first})
        (work,) = store.claim(ENGINE, OURS, 1, NOW)
        store.settle([done(work.run)], OURS)
        assert other.clear(["task_a"], NOW) == ["tasks/task_a"]
        submit(other, "task_b", environment={"A": second})
        submit(store, "task_c", environment={"A": first})
        submit(store, "task_d", environment={"A": second, "B": ""})
        wanted = [{"A": second}, {"A": first}, {"A": second, "B": ""}]
        assert [store.environment(f"task_{name}") for name in "bcd"] == wanted
        assert [work.environment for work in store.claim(ENGINE, OURS, 9, NOW)] == wanted

    def test_a_submission_that_was_refused_leaves_nothing_of_its_environment_behind(self, store: Any) -> None:
        with pytest.raises(LedgerUnavailable):
            submit(store, "task_a", priority=5)
        submit(store, "task_b")
        assert [work.environment for work in store.claim(ENGINE, OURS, 9, NOW)] == [{"PATH": "/bin", "N": "1"}]

    def test_what_a_caller_does_to_an_environment_changes_nobody_elses(self, store: Any) -> None:
        mine = {"A": "1"}
        submit(store, "task_a", environment=mine)
        mine["A"] = "2"
        submit(store, "task_b", environment=mine)
        assert [work.environment["A"] for work in store.claim(ENGINE, OURS, 9, NOW)] == ["1", "2"]

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

    def test_the_words_of_a_task_that_was_restarted_can_be_changed(self, store: Any) -> None:
        run = running(store, restarts=1)
        store.settle([failed(run)], OURS)
        task, again = shown(store, "task_x")
        store.change_record(task._replace(description="tried again"), again)
        assert shown(store, "task_x") == (task._replace(description="tried again"), again)

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
            {"priority": 2},
            {"restarts": -1},
            {"stdin": 2},
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
