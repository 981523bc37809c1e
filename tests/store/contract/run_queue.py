"""Claiming, running, settling and taking over runs."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from backburner.core.errors import BackburnerError, StaleRun
from backburner.core.models import AGENT_LANE, ENGINE, ProcessId, Wait
from backburner.core.session_records import InteractiveLease
from backburner.core.states import NoticeKind, Result, RunState, TaskState, WaitKind
from backburner.store.ledger import Ledger
from backburner.testing.records import changed_run
from contract.cases import (
    DAY,
    EMBEDDER,
    ENDS,
    NOW,
    OURS,
    THEIRS,
    YES,
    Open,
    agent,
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
    queue,
    recurring,
    running,
    submit,
    waiting_agent_run,
)


class RunQueueContract:
    def test_the_oldest_runs_are_claimed_first_up_to_the_limit(self, ledger: Ledger) -> None:
        for letter in "cab":
            submit(ledger, f"task_{letter}", now=NOW - ord(letter))
        claimed = [[work.run.run_id for work in ledger.runs.claim(ENGINE, OURS, 2, NOW + n)] for n in range(3)]
        assert claimed == [["task_c", "task_a"], ["task_b"], []]

    def test_a_proposal_is_queued_when_it_is_approved(self, ledger: Ledger) -> None:
        propose(ledger, "task_early")
        submit(ledger, "task_late")
        ledger.tasks.approve("task_early", YES, runner=ENGINE, folder="tasks")
        assert [work.run.run_id for work in ledger.runs.claim(ENGINE, OURS, 5, NOW)] == ["task_late", "task_early"]

    @pytest.mark.parametrize("limit", [0, -1])
    def test_nothing_is_claimed_without_capacity(self, ledger: Ledger, limit: int) -> None:
        submit(ledger)
        assert ledger.runs.claim(ENGINE, OURS, limit, NOW) == []
        assert entry_of_task(ledger, "task_x").status == "pending"

    def test_a_claimed_run_has_its_owner_and_everything_to_start(self, ledger: Ledger, open_ledger: Open) -> None:
        submit(ledger, env={"A": "b"})
        ((task, run, environment),) = ledger.runs.claim(ENGINE, OURS, 1, NOW + 3)
        assert (run.state, run.owner, run.started_at) == (RunState.RUNNING, OURS, NOW + 3)
        assert environment == {"PATH": "/bin", "N": "1"}
        assert open_ledger().queries.get("task_x") == (task, run)
        assert kinds(ledger) == ["task_submitted", "run_started"]

    def test_each_run_has_the_environment_of_its_own_caller(self, ledger: Ledger) -> None:
        for n in "112":
            submit(ledger, f"task_{n}", environment={"N": n})
        assert [work.environment["N"] for work in ledger.runs.claim(ENGINE, OURS, 9, NOW)] == ["1", "1", "2"]

    def test_a_runner_claims_only_runs_of_its_own_queue(self, ledger: Ledger) -> None:
        submit(ledger, "task_engine")
        submit(ledger, "task_embedded", runner=EMBEDDER)
        assert [work.run.run_id for work in ledger.runs.claim(EMBEDDER, THEIRS, 9, NOW)] == ["task_embedded"]
        assert [work.run.run_id for work in ledger.runs.claim(ENGINE, OURS, 9, NOW)] == ["task_engine"]

    def test_concurrent_claims_never_get_the_same_run(self, open_ledger: Open) -> None:
        first, second = open_ledger(), open_ledger()
        for _ in range(60):
            submit(first)

        def claim(ledger: Ledger, owner: ProcessId) -> list[str]:
            mine: list[str] = []
            while some := ledger.runs.claim(ENGINE, owner, 3, NOW):
                mine += [work.run.run_id for work in some]
            return mine

        with ThreadPoolExecutor(2) as pool:
            one, other = pool.submit(claim, first, OURS), pool.submit(claim, second, THEIRS)
            mine, theirs = one.result(), other.result()
        assert len(mine) + len(theirs) == 60 and not set(mine) & set(theirs)

    def test_the_process_of_a_run_is_recorded(self, ledger: Ledger) -> None:
        run = running(ledger)
        ledger.runs.record_process(run.run_id, OURS, ProcessId(77, "7", "boot"))
        assert entry_of_task(ledger, "task_x").run == run._replace(process=ProcessId(77, "7", "boot"))

    def test_only_the_owner_can_record_the_process_of_a_run(self, ledger: Ledger) -> None:
        run = running(ledger)
        with pytest.raises(StaleRun):
            ledger.runs.record_process(run.run_id, THEIRS, ProcessId(77, "7", "boot"))
        with pytest.raises(StaleRun):
            ledger.runs.record_process("task_missing", OURS, ProcessId(77, "7", "boot"))
        assert entry_of_task(ledger, "task_x").run == run

    def test_the_sandbox_of_a_run_is_recorded_by_its_owner_only(self, ledger: Ledger) -> None:
        run = running(ledger)
        ledger.runs.record_sandbox(run.run_id, OURS, '{"level": "full"}')
        assert entry_of_task(ledger, "task_x").run == run._replace(sandbox='{"level": "full"}')
        with pytest.raises(StaleRun):
            ledger.runs.record_sandbox(run.run_id, THEIRS, None)

    def test_an_ended_run_is_not_changed_by_an_owner_that_was_late(self, ledger: Ledger) -> None:
        run = running(ledger, "task_x")
        ledger.runs.settle([done(run.run_id)._replace(state=RunState.FAILED, result=Result.LOST, exit_code=None, error="given up")], OURS)
        with pytest.raises(StaleRun):
            ledger.runs.record_process(run.run_id, OURS, ProcessId(77, "7", "boot"))
        with pytest.raises(StaleRun):
            ledger.runs.record_sandbox(run.run_id, OURS, '{"level": "full"}')
        assert latest(ledger, "task_x").error == "given up"

    def test_a_command_that_failed_because_of_the_sandbox_is_proposed_without_it(self, ledger: Ledger) -> None:
        run = running(ledger)
        ending = done(run, RunState.FAILED, exit_code=1, error="no network")
        ledger.runs.settle([ending._replace(problem="sandbox", notes=("a note",))], OURS)
        task, after = entry_of_task(ledger, "task_x")
        assert after and (after.end.problem, after.end.notes) == ("sandbox", "a note")
        offer = entry_of_task(ledger, "task_x_outside")
        assert (offer.task.state, offer.run, offer.task.restarted_from) == (TaskState.PROPOSED, None, "task_x")
        assert offer.task.spec.command == task.spec.command and offer.task.decision.reasons == ("no network",)
        (notice,) = ledger.notices.notices(project=None, unread=True)
        assert "backburner approve task_x_outside" in notice.text and "a note" in notice.text

    def test_the_end_of_a_run_writes_state_event_and_notice(self, ledger: Ledger) -> None:
        run = running(ledger, project="/q")
        assert ledger.runs.settle([done(run, RunState.FAILED, exit_code=2, summary="1 failed", lines=9, error="why")], OURS).run_ids == [
            "task_x"
        ]
        task, after = entry_of_task(ledger, "task_x")
        assert task.state == TaskState.FAILED
        assert after == changed_run(
            run, state=RunState.FAILED, result=Result.EXIT, exit_code=2, summary="1 failed", lines=9, error="why", ended_at=NOW + 1000
        )
        (notice,) = ledger.notices.notices(project=None, unread=True)
        assert (notice.task_id, notice.run_id, notice.project, notice.acknowledged_at) == ("task_x", "task_x", "/q", None)
        assert "task_x failed" in notice.text and "exit 2" in notice.text and "1 failed" in notice.text
        last = [event for event in ledger.events.events(0, 100) if event.kind == "run_failed"]
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
    def test_a_one_shot_task_ends_with_its_run(self, ledger: Ledger, state: RunState, result: Result, of_task: TaskState) -> None:
        run = running(ledger)
        ledger.runs.settle([done(run, state, result)], OURS)
        entry = entry_of_task(ledger, "task_x")
        assert (entry.status, entry.run.end.result, entry.task.state, entry.has_ended) == (state, result, of_task, True)  # type: ignore[union-attr]

    def test_an_end_reported_by_another_owner_is_ignored(self, ledger: Ledger) -> None:
        run = running(ledger)
        unchanged = ledger_content(ledger)
        assert ledger.runs.settle([done(run)], THEIRS).run_ids == []
        assert ledger.runs.settle([done("task_missing")], OURS).run_ids == []
        assert ledger_content(ledger) == unchanged

    def test_an_end_reported_twice_creates_one_notice(self, ledger: Ledger) -> None:
        run = running(ledger)
        assert ledger.runs.settle([done(run)], OURS).run_ids == ["task_x"]
        once = ledger_content(ledger)
        assert ledger.runs.settle([done(run, RunState.FAILED)], OURS).run_ids == []
        assert ledger.runs.settle([done(run), done(run)], OURS).run_ids == []
        assert ledger_content(ledger) == once
        assert len(ledger.notices.notices(project=None, unread=False)) == 1

    def test_a_pending_run_cannot_be_settled(self, ledger: Ledger) -> None:
        submit(ledger)
        unchanged = ledger_content(ledger)
        assert ledger.runs.settle([done("task_x")], OURS).run_ids == []
        assert ledger_content(ledger) == unchanged

    def test_several_ends_are_settled_together(self, ledger: Ledger) -> None:
        runs = [running(ledger, f"task_{n}") for n in range(3)]
        assert ledger.runs.settle([done(run) for run in runs], OURS).run_ids == ["task_0", "task_1", "task_2"]
        assert [notice.run_id for notice in ledger.notices.notices(project=None, unread=True)] == ["task_0", "task_1", "task_2"]

    @pytest.mark.parametrize(
        "impossible", [(RunState.SKIPPED, Result.EXIT), (RunState.PENDING, Result.EXIT), (RunState.COMPLETED, Result.SIGNAL)]
    )
    def test_an_impossible_end_rolls_back_all_ends_settled_with_it(self, ledger: Ledger, impossible: tuple[RunState, Result]) -> None:
        first, second = running(ledger, "task_a"), running(ledger, "task_b")
        unchanged = ledger_content(ledger)
        with pytest.raises(BackburnerError):
            ledger.runs.settle([done(first), done(second, *impossible)], OURS)
        assert ledger_content(ledger) == unchanged

    def test_a_run_never_ends_before_its_start_after_a_clock_change(self, ledger: Ledger) -> None:
        run = running(ledger)
        ledger.runs.settle([done(run, ended_at=NOW - 5000)], OURS)
        assert entry_of_task(ledger, "task_x").run.ended_at == run.started_at  # type: ignore[union-attr]

    def test_a_run_is_adopted_from_its_owner(self, ledger: Ledger) -> None:
        run = running(ledger, owner=THEIRS, runner=EMBEDDER)
        work = ledger.runs.adopt(run, OURS)
        assert (work.run.owner, work.run.runner, work.run.state) == (OURS, queue(ledger), RunState.RUNNING)
        assert work.environment == {"PATH": "/bin", "N": "1"}
        assert ledger.runs.settle([done(run)], THEIRS).run_ids == []
        assert ledger.runs.settle([done(run)], OURS).run_ids == ["task_x"]

    def test_only_one_of_two_processes_adopts_a_run(self, ledger: Ledger, open_ledger: Open) -> None:
        run = running(ledger, owner=ProcessId(33, "3", "boot"))
        ledger.runs.adopt(run, OURS)
        with pytest.raises(StaleRun, match="task_x"):
            open_ledger().runs.adopt(run, THEIRS)
        assert entry_of_task(ledger, "task_x").run.owner == OURS  # type: ignore[union-attr]

    def test_a_run_that_has_ended_cannot_be_adopted(self, ledger: Ledger) -> None:
        run = running(ledger)
        ledger.runs.settle([done(run)], OURS)
        with pytest.raises(StaleRun):
            ledger.runs.adopt(run, THEIRS)

    def test_pending_runs_of_a_dead_embedding_program_go_to_the_engine_in_order(self, ledger: Ledger) -> None:
        run = running(ledger, "task_held", owner=THEIRS, runner=EMBEDDER)
        submit(ledger, "task_a", runner=EMBEDDER)
        submit(ledger, "task_b")
        submit(ledger, "task_c", runner=EMBEDDER)
        submit(ledger, "task_d", runner="another:runner")
        assert ledger.runs.release(EMBEDDER) == 2
        assert ledger.runs.release(EMBEDDER) == 0
        assert [work.run.run_id for work in ledger.runs.claim(ENGINE, OURS, 9, NOW)] == ["task_a", "task_b", "task_c"]
        assert entry_of_task(ledger, run.task_id).run.owner == THEIRS  # type: ignore[union-attr]

    def test_waiting_runs_of_a_dead_embedding_program_go_to_the_engine(self, ledger: Ledger) -> None:
        run = running(ledger, owner=THEIRS, runner=EMBEDDER)
        ledger.runs.suspend(run.run_id, THEIRS, "it changed", NOW)
        ledger.runs.release(EMBEDDER)
        assert [one.runner for one in ledger.live_work.live_runs()] == [queue(ledger)]

    def test_live_runs_are_those_that_have_not_ended(self, ledger: Ledger) -> None:
        ended(ledger, "task_done")
        running(ledger, "task_running")
        submit(ledger, "task_pending")
        propose(ledger, "task_proposed")
        assert [(run.run_id, run.state) for run in ledger.live_work.live_runs()] == [
            ("task_running", "running"),
            ("task_pending", "pending"),
        ]

    def test_active_runs_are_those_that_were_claimed_and_have_not_ended(self, ledger: Ledger) -> None:
        ended(ledger, "task_done")
        running(ledger, "task_running")
        waiting = running(ledger, "task_waiting")
        ledger.runs.suspend(waiting.run_id, OURS, "it changed", NOW)
        submit(ledger, "task_pending")
        assert [(run.run_id, run.state) for run in ledger.live_work.active_runs()] == [
            ("task_running", "running"),
            ("task_waiting", "waiting"),
        ]

    def test_pending_runners_are_each_named_once(self, ledger: Ledger) -> None:
        assert ledger.live_work.pending_runners() == []
        for number, runner in enumerate([ENGINE, EMBEDDER, ENGINE]):
            submit(ledger, f"task_{number}", runner=runner)
        submit(ledger, "task_blocked", runner="9:9:blocked", after=("task_0",))
        running(ledger, "task_running", runner="8:8:running")
        assert sorted(ledger.live_work.pending_runners()) == sorted([queue(ledger), EMBEDDER, "9:9:blocked"])

    def test_a_run_that_is_due_is_claimed_by_priority_with_the_others(self, ledger: Ledger) -> None:
        submit(ledger, "task_now")
        submit(ledger, "task_due", start_at=NOW + 10, priority=1)
        submit(ledger, "task_later", start_at=NOW + 10_000)
        assert ledger.runs.queued(ENGINE, NOW, 9) == ["task_now"]
        assert ledger.runs.next_due(ENGINE, NOW) == NOW + 10
        assert ledger.runs.queued(ENGINE, NOW + 10, 9) == ["task_due", "task_now"]
        claimed = ledger.runs.claim(ENGINE, OURS, 1, NOW + 10)
        assert [work.run.run_id for work in claimed] == ["task_due"]
        assert ledger.runs.queued(ENGINE, NOW + 10, 9) == ["task_now"]
        assert ledger.runs.next_due(ENGINE, NOW + 10) == NOW + 10_000

    def test_a_run_that_is_due_joins_the_queue_even_if_another_is_claimed(self, ledger: Ledger) -> None:
        submit(ledger, "task_now")
        submit(ledger, "task_due", start_at=NOW + 10)
        assert claimed(ledger, 1, NOW + 10) == ["task_now"]
        assert ledger.queries.get("task_due").run.due_at is None  # type: ignore[union-attr]

    def test_runs_are_claimed_by_priority_and_then_by_age(self, ledger: Ledger) -> None:
        for number, priority in enumerate([0, -1, 1, 0, 1, -1]):
            submit(ledger, f"task_{number}", priority=priority, now=NOW - number)
        assert claimed(ledger, 3) == ["task_2", "task_4", "task_0"]
        submit(ledger, "task_urgent", priority=1)
        assert claimed(ledger) == ["task_urgent", "task_3", "task_1", "task_5"]

    def test_a_run_that_is_not_due_does_not_start_or_block_others(self, ledger: Ledger) -> None:
        submit(ledger, "task_blocker", start_at=NOW + 1000)
        submit(ledger, "task_blocked", start_at=NOW + 10, after=("task_blocker",))
        submit(ledger, "task_theirs", start_at=NOW + 20, runner=EMBEDDER)
        submit(ledger, "task_later", start_at=NOW + 100, priority=1)
        submit(ledger, "task_low", priority=-1)
        submit(ledger, "task_soon", start_at=NOW + 50)
        submit(ledger, "task_past", start_at=NOW - 50)
        assert (ledger.runs.next_due(ENGINE, NOW), ledger.runs.next_due(EMBEDDER, NOW), ledger.runs.next_due("nobody", NOW)) == (
            NOW + 50,
            NOW + 20,
            None,
        )
        assert claimed(ledger, 1, NOW + 49) == ["task_past"]
        assert ledger.runs.queued(ENGINE, NOW + 50, 9) == ["task_soon", "task_low"]
        assert claimed(ledger, 9, NOW + 100) == ["task_later", "task_soon", "task_low"]
        assert ledger.runs.next_due(ENGINE, NOW + 100) == NOW + 1000
        assert ledger.runs.next_due(ENGINE, NOW + 1000) is None

    def test_ends_and_following_claims_are_one_transaction(self, ledger: Ledger, open_ledger: Open) -> None:
        first = running(ledger, "task_first")
        submit(ledger, "task_next", after=("task_first",))
        submit(ledger, "task_other")
        submit(ledger, "task_urgent", priority=1, start_at=NOW + 2000)
        settled = ledger.runs.settle([done(first), done("task_missing")], OURS, runner=ENGINE, limit=2, now=NOW + 2000)
        assert settled.run_ids == ["task_first"]
        assert [work.run.run_id for work in settled.claimed] == ["task_urgent", "task_next"]
        assert {(work.run.owner, work.run.started_at) for work in settled.claimed} == {(OURS, NOW + 2000)}
        assert [open_ledger().queries.get(work.task.task_id) for work in settled.claimed] == [work[:2] for work in settled.claimed]
        assert [work.run.run_id for work in ledger.runs.settle([], OURS, runner=ENGINE, limit=9, now=NOW).claimed] == ["task_other"]
        assert ledger.runs.settle([], OURS).claimed == []

    def test_nothing_is_claimed_together_with_an_impossible_end(self, ledger: Ledger) -> None:
        run = running(ledger, "task_a")
        submit(ledger, "task_b")
        unchanged = ledger_content(ledger)
        with pytest.raises(BackburnerError):
            ledger.runs.settle([done(run, RunState.SKIPPED)], OURS, runner=ENGINE, limit=1, now=NOW)
        assert ledger_content(ledger) == unchanged

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
    def test_restarts_are_delayed_more_and_more_until_the_limit(
        self, ledger: Ledger, most: int, lasted: list[float], delays: list[int]
    ) -> None:
        """`lasted` and `delays` are seconds."""
        submit(ledger, restarts=most, priority=1)
        due = NOW
        for n, (seconds, delay) in enumerate(zip(lasted, [*delays, None], strict=True), 1):
            ((_, run, _),) = ledger.runs.claim(ENGINE, OURS, 9, due)
            name = "task_x" if n == 1 else f"task_x.{n}"
            assert (run.run_id, run.n, run.folder) == (name, n, f"tasks/{name}")
            ended_at, result = due + int(seconds * 1000), (Result.EXIT, Result.SIGNAL)[n % 2]
            assert ledger.runs.settle([failed(run, result=result, ended_at=ended_at)], OURS).run_ids == [run.run_id]
            if delay is None:
                break
            due = ended_at + delay * 1000
            again = latest(ledger, "task_x")
            assert (again.state, again.due_at, again.priority, again.blocked) == (RunState.PENDING, due, 1, False)
            assert entry_of_task(ledger, "task_x").task.state == TaskState.ACTIVE
            assert (claimed(ledger, now=due - 1), ledger.runs.next_due(ENGINE, due - 1)) == ([], due)
            assert ledger.runs.settle([done(run)], OURS).run_ids == [] and notified_tasks(ledger) == []
        task, last = entry_of_task(ledger, "task_x").task, latest(ledger, "task_x")
        assert (task.state, task.run_count, last.state) == (TaskState.FAILED, len(lasted), RunState.FAILED)
        (notice,) = ledger.notices.notices(project=None, unread=True)
        assert notice.run_id == last.run_id and f", {most + 1} times in a row" in notice.text
        delays_in_events = [event.data.get("restarts_in_ms") for event in ledger.events.events(0, 1000) if event.kind == "run_failed"]
        assert delays_in_events == [*(1000 * delay for delay in delays), None]
        assert claimed(ledger, now=due + DAY) == []

    def test_a_restarted_run_keeps_its_origin(self, ledger: Ledger) -> None:
        submit(ledger, "task_a")
        ((_, first, _),) = ledger.runs.claim(ENGINE, OURS, 9, NOW)
        ledger.runs.settle([done(first)], OURS)
        submit(ledger, "task_x", after=("task_a",), restarts=1)
        ((_, run, _),) = ledger.runs.claim(ENGINE, OURS, 9, NOW)
        ledger.runs.settle([failed(run)], OURS)
        assert (run.cause.origin, latest(ledger, "task_x").n, latest(ledger, "task_x").cause.origin) == ("task_a", 2, "task_a")

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
    def test_only_a_command_that_failed_on_its_own_is_restarted(self, ledger: Ledger, state: RunState, result: Result) -> None:
        run = running(ledger, restarts=5)
        ledger.runs.settle([done(run, state, result)], OURS)
        entry = entry_of_task(ledger, "task_x")
        assert (entry.status, entry.task.run_count, entry.has_ended, len(notified_tasks(ledger))) == (state, 1, True, 1)

    def test_a_run_that_fails_after_a_cancel_request_is_not_restarted(self, ledger: Ledger) -> None:
        run = running(ledger, restarts=5)
        ledger.tasks.request_cancel("task_x", NOW + 20)
        ledger.runs.settle([failed(run)], OURS)
        entry = entry_of_task(ledger, "task_x")
        assert (entry.status, entry.task.state, entry.task.run_count, notified_tasks(ledger)) == ("failed", TaskState.FAILED, 1, ["task_x"])

    def test_a_task_cancelled_between_restarts_stays_cancelled(self, ledger: Ledger) -> None:
        run = running(ledger, restarts=5)
        submit(ledger, "task_after", after=("task_x",))
        ledger.runs.settle([failed(run)], OURS)
        task, last = ledger.tasks.request_cancel("task_x", NOW + 1500)
        assert (task.state, task.run_count, last.run_id, last.end.result) == (TaskState.CANCELLED, 2, "task_x.2", Result.UNSTARTED)
        assert claimed(ledger, now=NOW + DAY) == [] and ledger.runs.next_due(ENGINE, NOW) is None
        assert latest(ledger, "task_after").error == "dependency task_x was cancelled"
        assert sorted(notified_tasks(ledger)) == ["task_after", "task_x"]

    @pytest.mark.parametrize("ends", ["failed failed", "failed completed"])
    def test_a_dependent_of_a_restarted_task_waits_for_its_final_result(self, ledger: Ledger, ends: str) -> None:
        running(ledger, restarts=1)
        submit(ledger, "task_b", after=("task_x",))
        submit(ledger, "task_c", after=("task_b",))
        ledger.runs.settle([failed("task_x")], OURS)
        assert latest(ledger, "task_b").blocked and ledger.queries.failed_dependents("task_x") == []
        submit(ledger, "task_late", after=("task_x",))
        assert claimed(ledger, now=NOW + 2000) == ["task_x.2"]
        assert [latest(ledger, task_id).blocked for task_id in ("task_b", "task_late")] == [True, True]
        end_task(ledger, ends.split()[1], "task_x.2")
        fell = [one.task.task_id for one in ledger.queries.failed_dependents("task_x")]
        if ends == "failed completed":
            assert (fell, claimed(ledger, now=NOW + 2000)) == ([], ["task_b", "task_late"])
        else:
            assert (sorted(fell), claimed(ledger, now=NOW + 2000)) == (["task_b", "task_c", "task_late"], [])

    def test_a_task_between_restarts_is_live_and_later_cleared_with_all_runs(self, ledger: Ledger) -> None:
        run = running(ledger, restarts=1)
        ledger.runs.settle([failed(run)], OURS)
        assert ledger.tasks.clear(["task_x"], NOW) == ledger.tasks.ended_before(NOW + DAY) == []
        assert claimed(ledger, now=NOW + 2000) == ["task_x.2"]
        ledger.runs.settle([failed("task_x.2", ended_at=NOW + 3000)], OURS)
        assert ledger.tasks.ended_before(NOW + 3000) == [] and ledger.tasks.ended_before(NOW + 3001) == ["task_x"]
        assert sorted(ledger.tasks.clear(["task_x"], NOW)) == ["tasks/task_x", "tasks/task_x.2"]
        assert ledger.queries.find("task_x.2", None) == []

    def test_only_the_owner_can_record_that_a_server_is_ready_and_once(self, ledger: Ledger) -> None:
        run = running(ledger, ready_when="up")
        with pytest.raises(StaleRun):
            ledger.runs.record_ready(run.run_id, THEIRS, NOW + 20)
        assert not entry_of_task(ledger, "task_x").is_ready
        ledger.runs.record_ready(run.run_id, OURS, NOW + 30)
        assert entry_of_task(ledger, "task_x").is_ready and entry_of_task(ledger, "task_x").run == run._replace(ready_at=NOW + 30)
        with pytest.raises(StaleRun):
            ledger.runs.record_ready(run.run_id, OURS, NOW + 40)
        assert kinds(ledger).count("run_ready") == 1

    def test_a_restarted_server_must_become_ready_again(self, ledger: Ledger) -> None:
        run = running(ledger, ready_when="up", restarts=1)
        ledger.runs.record_ready(run.run_id, OURS, NOW + 30)
        ledger.runs.settle([failed(run)], OURS)
        assert claimed(ledger, now=NOW + 2000) == ["task_x.2"]
        assert not entry_of_task(ledger, "task_x").is_ready
        ledger.runs.record_ready("task_x.2", OURS, NOW + 3000)
        assert latest(ledger, "task_x").ready_at == NOW + 3000

    def test_an_ended_run_cannot_become_ready(self, ledger: Ledger) -> None:
        run = ended(ledger)
        unchanged = ledger_content(ledger)
        with pytest.raises(StaleRun):
            ledger.runs.record_ready(run.run_id, OURS, NOW + 2000)
        assert ledger_content(ledger) == unchanged

    # -- runs that cannot start yet

    def test_a_claimed_run_without_capacity_is_postponed_with_the_reason(self, ledger: Ledger) -> None:
        run = running(ledger)
        assert ledger.live_work.delayed_because() is None
        ledger.runs.postpone(run.run_id, OURS, "no file is free", NOW + 50, notify=False)
        put_off = latest(ledger, "task_x")
        assert (put_off.state, put_off.error, put_off.started_at) == (RunState.RUNNING, "no file is free", NOW + 50)
        assert ledger.live_work.delayed_because() == "no file is free" and ledger.notices.notices() == []
        ledger.runs.postpone(run.run_id, OURS, "no file is free", NOW + 60, notify=True)
        ledger.runs.postpone(run.run_id, OURS, "no file is free", NOW + 60, notify=True)
        assert [(notice.kind, notice.channel) for notice in ledger.notices.notices()] == [(NoticeKind.DELAYED, "inbox")] * 2
        assert kinds(ledger).count("run_delayed") == 2
        ledger.runs.record_process(run.run_id, OURS, ProcessId(77, "7", "boot"))
        assert ledger.live_work.delayed_because() is None

    def test_only_the_owner_can_postpone_a_run_and_only_an_active_one(self, ledger: Ledger) -> None:
        run = running(ledger, "task_a")
        submit(ledger, "task_b")
        waiting = waiting_agent_run(ledger)
        unchanged = ledger_content(ledger)
        for run_id, owner in ((run.run_id, THEIRS), ("task_b", OURS), (waiting.run_id, OURS), ("task_missing", OURS)):
            with pytest.raises(StaleRun):
                ledger.runs.postpone(run_id, owner, "no", NOW, notify=True)
        assert ledger_content(ledger) == unchanged

    # -- runs that wait

    @pytest.mark.parametrize("kind", [WaitKind.APPROVAL, WaitKind.TOOL, WaitKind.BUDGET])
    def test_a_run_is_suspended_until_a_user_answers(self, ledger: Ledger, kind: WaitKind) -> None:
        agent(ledger)
        run = ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)[0].run
        ledger.runs.suspend(run.run_id, OURS, "it wants more", NOW + 1, kind, asked="print1")
        waiting = latest(ledger, "task_g")
        assert (waiting.state, waiting.error, waiting.wait) == (RunState.WAITING, "it wants more", Wait(kind, fingerprint="print1"))
        assert (waiting.owner, waiting.started_at) == (OURS, NOW)
        assert kinds(ledger)[-1] == "run_suspended" and ledger.runs.claim(AGENT_LANE, OURS, 9, NOW + 2) == []

    def test_a_resumed_run_can_be_suspended(self, ledger: Ledger) -> None:
        agent(ledger)
        ledger.runs.settle([done(ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)[0].run)], OURS)
        ledger.tasks.resume("task_g", "go on", runner=AGENT_LANE, now=NOW + 2000)
        run = ledger.runs.claim(AGENT_LANE, OURS, 1, NOW + 2001)[0].run
        assert run.state == RunState.RESUMED
        ledger.runs.suspend(run.run_id, OURS, "it wants more", NOW + 2002, WaitKind.TOOL)
        assert latest(ledger, "task_g").state == RunState.WAITING

    def test_only_the_owner_can_suspend_a_run_and_only_an_active_one(self, ledger: Ledger) -> None:
        run = running(ledger, "task_a")
        submit(ledger, "task_b")
        waiting = waiting_agent_run(ledger)
        unchanged = ledger_content(ledger)
        for run_id, owner in ((run.run_id, THEIRS), ("task_b", OURS), (waiting.run_id, OURS), ("task_missing", OURS)):
            with pytest.raises(StaleRun):
                ledger.runs.suspend(run_id, owner, "no", NOW)
        assert ledger_content(ledger) == unchanged

    def test_a_run_with_a_cancel_request_is_not_suspended(self, ledger: Ledger) -> None:
        run = running(ledger)
        ledger.tasks.request_cancel("task_x", NOW + 20)
        ledger.runs.suspend(run.run_id, OURS, "it changed", NOW + 30)
        assert entry_of_task(ledger, "task_x").status == "cancelled"

    @pytest.mark.parametrize("how", ENDS)
    def test_a_run_that_waits_for_a_task_continues_when_that_ends(self, ledger: Ledger, how: str) -> None:
        create_task_that_ends(ledger, how)
        waiting = waiting_agent_run(ledger, waits_for=(WaitKind.TASK, "task_a"))
        assert waiting.state == RunState.WAITING
        end_task(ledger, how)
        assert latest(ledger, "task_g").state == RunState.PENDING
        waiting_agent_run(ledger, "task_late", waits_for=(WaitKind.TASK, "task_a"), priority=1)
        assert latest(ledger, "task_late").state == RunState.PENDING  # the other task ended before the run was suspended

    def test_a_run_that_waits_for_a_missing_task_continues(self, ledger: Ledger) -> None:
        assert waiting_agent_run(ledger, "task_a", waits_for=(WaitKind.TASK, "task_missing")).state == RunState.PENDING
        assert waiting_agent_run(ledger, "task_b", waits_for=(WaitKind.REATTACH, None), priority=1).state == RunState.PENDING
        assert waiting_agent_run(ledger, "task_c", waits_for=(WaitKind.INTERACTIVE, AGENT_LANE), priority=1).state == RunState.PENDING

    def test_the_user_is_notified_when_another_host_asks_for_approval(self, ledger: Ledger) -> None:
        submit(ledger, "task_x", place="/gpu")
        (work,) = ledger.runs.claim("engine/gpu", OURS, 1, NOW)
        ledger.runs.suspend(work.run.run_id, OURS, "on host gpu1, pip installs packages", NOW + 1, asked="print1")
        (notice,) = ledger.notices.notices()
        assert notice.kind == NoticeKind.WAITING
        assert "on host gpu1, pip installs packages" in notice.text and "backburner approve task_x" in notice.text

    def test_the_user_is_notified_each_time_a_recurring_task_waits_for_them(self, ledger: Ledger) -> None:
        recurring(ledger)
        propose(ledger, "task_p")
        for number, waits_for in enumerate(((WaitKind.APPROVAL, None), (WaitKind.TASK, "task_p"), (WaitKind.BUDGET, None))):
            ledger.recurring.run_now("task_r", NOW, "tasks")
            run = ledger.runs.claim(ENGINE, OURS, 1, NOW)[0].run
            ledger.runs.suspend(run.run_id, OURS, "it changed", NOW + 1, *waits_for, asked="abcdef0123456789" if number == 0 else None)
            ledger.tasks.request_cancel("task_r", NOW + 2, only_run=True)
        texts = [notice.text for notice in ledger.notices.notices() if notice.kind == NoticeKind.WAITING]
        assert "it changed (fingerprint abcdef" in texts[0] and "backburner approve task_r" in texts[0]
        assert "it wants to run `make all` (why)" in texts[1] and "backburner approve task_p" in texts[1]
        assert len(texts) == 3

    def test_no_notice_when_a_recurring_task_yields_or_waits_for_a_running_task(self, ledger: Ledger) -> None:
        running(ledger)
        ledger.sessions.begin_interactive(InteractiveLease(THEIRS, AGENT_LANE, None, NOW))
        for number, waits_for in enumerate(((WaitKind.INTERACTIVE, AGENT_LANE), (WaitKind.TASK, "task_x"))):
            recurring(ledger, f"task_{number}")
            ledger.recurring.run_now(f"task_{number}", NOW, "tasks")
            ledger.runs.suspend(ledger.runs.claim(ENGINE, OURS, 1, NOW)[0].run.run_id, OURS, "it waits", NOW + 1, *waits_for)
            assert latest(ledger, f"task_{number}").state == RunState.WAITING
        assert ledger.notices.notices() == []

    def test_a_run_that_waits_for_a_tool_approval_can_be_requeued_without_an_answer(self, ledger: Ledger) -> None:
        run = waiting_agent_run(ledger)
        ledger.runs.resume_suspended(run.run_id, NOW + 5)
        again = latest(ledger, "task_g")
        assert (again.state, again.reply, again.owner) == (RunState.PENDING, None, None)
        with pytest.raises(StaleRun):
            ledger.runs.resume_suspended(run.run_id, NOW + 6)

    def test_an_answer_counts_for_one_question_and_not_after_a_take_over(self, ledger: Ledger) -> None:
        run = waiting_agent_run(ledger)
        ledger.tasks.approve("task_g", YES, runner=AGENT_LANE, folder="tasks")
        (work,) = ledger.runs.claim(AGENT_LANE, THEIRS, 1, NOW + 5)
        assert (work.run.run_id, work.run.reply) == (run.run_id, "yes")
        adopted = ledger.runs.adopt(work.run, OURS).run  # its agent process has died, and the agent goes on in its server
        ledger.runs.suspend(adopted.run_id, OURS, "its agent process ended", NOW + 6, WaitKind.REATTACH)
        again = latest(ledger, "task_g")
        assert (again.state, again.wait_kind, again.reply) == (RunState.PENDING, WaitKind.REATTACH, None)

    @pytest.mark.parametrize("kind", [WaitKind.APPROVAL, WaitKind.BUDGET])
    def test_no_other_waiting_run_is_requeued_without_an_answer(self, ledger: Ledger, kind: WaitKind) -> None:
        run = waiting_agent_run(ledger, waits_for=(kind, None))
        unchanged = ledger_content(ledger)
        for run_id in (run.run_id, "task_missing"):
            with pytest.raises(StaleRun):
                ledger.runs.resume_suspended(run_id, NOW + 5)
        assert ledger_content(ledger) == unchanged

    # -- cancel requests and processes

    def test_cancel_requests_are_listed_until_the_runs_end(self, ledger: Ledger) -> None:
        run = running(ledger, "task_a")
        running(ledger, "task_b")
        ledger.tasks.request_cancel("task_a", NOW + 20)
        assert ledger.runs.cancel_requests() == ["task_a"]
        ledger.runs.settle([done(run, RunState.CANCELLED, Result.SIGNAL)], OURS)
        assert ledger.runs.cancel_requests() == []

    def test_processes_of_live_runs_are_found_by_their_exact_pid(self, ledger: Ledger) -> None:
        for name, pid in (("task_a", 7), ("task_b", 77), ("task_c", 7)):
            ledger.runs.record_process(running(ledger, name).run_id, OURS, ProcessId(pid, name, "boot"))
        assert sorted(one.started for one in ledger.runs.processes(7)) == ["task_a", "task_c"]
        ledger.runs.settle([done("task_a")], OURS)
        assert [one.started for one in ledger.runs.processes(7)] == ["task_c"] and ledger.runs.processes(8) == []

    # -- a ledger that comes from a backup

    def test_runs_that_may_have_continued_elsewhere_end_as_lost(self, ledger: Ledger) -> None:
        running(ledger, "task_a")
        submit(ledger, "task_b")
        submit(ledger, "task_c", after=("task_b",))
        submit(ledger, "task_d", start_at=NOW + DAY)
        submit(ledger, "task_e", after=("task_d",))
        waiting_agent_run(ledger, "task_g")
        waiting_agent_run(ledger, "task_h", (WaitKind.TASK, "task_a"))
        assert ledger.runs.end_unobserved("it was restored", NOW + 50) == 3
        states = {name: latest(ledger, f"task_{name}") for name in "abcdegh"}
        assert [run.state for run in states.values()] == ["failed", "failed", "failed", "pending", "pending", "waiting", "failed"]
        assert [states[name].end.result for name in "abch"] == ["lost", "lost", "dependency", "lost"]
        assert states["a"].error == "it was restored" and kinds(ledger).count("home_restored") == 1
        assert claimed(ledger, now=NOW + 60) == [] and claimed(ledger, now=NOW + 60, runner=AGENT_LANE) == []
        assert ledger.runs.end_unobserved("again", NOW + 60) == 0

    # -- agents with a pre-check command

    def test_a_run_continues_with_the_agent_when_its_precheck_triggers(self, ledger: Ledger) -> None:
        task = recurring(ledger, agent="claude", prompt="look", terms={"wake": "output"}, lane=AGENT_LANE)
        ledger.recurring.run_now(task.task_id, NOW, "tasks")
        run = ledger.runs.claim(ENGINE, OURS, 1, NOW)[0].run
        ledger.runs.settle([done(run, lines=3, digest="d1")], OURS)
        handed = latest(ledger, task.task_id)
        assert (handed.run_id, handed.state, handed.runner, handed.owner) == (run.run_id, RunState.PENDING, queue(ledger, AGENT_LANE), None)
        assert kinds(ledger)[-1] == "run_passed_to_agent" and ledger.notices.notices() == []
        ledger.runs.settle([done(ledger.runs.claim(AGENT_LANE, OURS, 1, NOW)[0].run, answer="found it")], OURS)
        assert "found it" in ledger.notices.notices()[0].text and entry_of_task(ledger, task.task_id).task.recurring.precheck_hash == "d1"

    def test_a_run_ends_when_its_precheck_does_not_trigger(self, ledger: Ledger) -> None:
        task = recurring(ledger, agent="claude", prompt="look", terms={"wake": "output"}, lane=AGENT_LANE)
        ledger.recurring.run_now(task.task_id, NOW, "tasks")
        ledger.runs.settle([done(ledger.runs.claim(ENGINE, OURS, 1, NOW)[0].run, lines=0)], OURS)
        assert latest(ledger, task.task_id).end.summary == "nothing new; the agent was not asked"
        assert ledger.notices.notices() == []
