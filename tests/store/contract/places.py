"""Runs on several hosts: which host claims them, and that no host judges the processes of another."""

import pytest

from backburner.core.errors import StaleRun
from backburner.core.models import AGENT_LANE, ENGINE
from backburner.core.session_records import InteractiveLease, Session
from backburner.core.states import RunState, WaitKind
from contract.cases import (
    EMBEDDER,
    HOUR,
    NOW,
    OURS,
    THEIRS,
    YES,
    OpenOn,
    agent,
    claimed,
    done,
    entry_of_task,
    latest,
    plan_at,
    propose,
    recurring,
    running,
    submit,
    waiting_agent_run,
)


class PlaceContract:
    def test_a_run_is_for_the_host_that_submitted_it(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        submit(here)
        assert entry_of_task(there, "task_x").task.origin_host == "a"
        assert claimed(there) == [] and there.live_work.pending_runners() == []
        (work,) = here.runs.claim(ENGINE, OURS, 1, NOW)
        assert (work.run.host, work.run.epoch, latest(there, "task_x")) == ("a", 0, work.run)

    def test_a_proposal_that_another_host_approves_runs_where_it_was_made(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        propose(here)
        assert here.live_work.approvable_elsewhere() and not there.live_work.approvable_elsewhere()
        there.tasks.approve("task_x", YES, runner=ENGINE, folder="tasks")
        assert not here.live_work.approvable_elsewhere()
        assert claimed(there) == [] and claimed(here) == ["task_x"]

    def test_a_schedule_that_another_host_fires_runs_where_it_was_added(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        recurring(here)
        assert there.live_work.next_slot_at(everywhere=False) is None
        assert here.live_work.next_slot_at(everywhere=False) == there.live_work.next_slot_at() == NOW + HOUR
        assert there.recurring.fire(plan_at(NOW + HOUR), NOW + HOUR, "tasks") == 1
        assert claimed(there, now=NOW + HOUR) == [] and claimed(here, now=NOW + HOUR) == ["task_r"]

    def test_a_run_for_one_host_is_claimed_there(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        submit(here, place="@b")
        assert claimed(here) == [] and there.live_work.pending_runners() == ["engine@b"] and claimed(there) == ["task_x"]

    def test_a_run_in_a_lane_is_claimed_by_whoever_comes_first(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        for name in ("task_x", "task_y"):
            submit(here, name, place="/gpu")
        assert claimed(here) == [] and claimed(there) == []
        assert claimed(there, 1, runner="engine/gpu") == ["task_x"] and claimed(here, runner="engine/gpu") == ["task_y"]
        assert (latest(here, "task_x").host, latest(here, "task_y").host) == ("b", "a")

    def test_active_runs_processes_and_cancels_are_those_of_the_host(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        run = running(here)
        here.runs.record_process(run.run_id, OURS, THEIRS)
        there.tasks.request_cancel("task_x", NOW)
        assert [one.run_id for one in here.live_work.active_runs()] == ["task_x"] == list(here.runs.cancel_requests())
        assert here.runs.processes(THEIRS.pid) == [THEIRS] and here.live_work.is_here(run)
        assert there.live_work.active_runs() == there.live_work.live_runs() == there.runs.cancel_requests() == []
        assert there.runs.processes(THEIRS.pid) == [] and not there.live_work.is_here(run)

    def test_what_a_program_has_submitted_is_judged_on_its_host(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        submit(here, runner=EMBEDDER)
        assert here.live_work.pending_runners() == [EMBEDDER] and there.live_work.pending_runners() == []
        assert here.runs.release(EMBEDDER) == 1 and claimed(here) == ["task_x"]

    def test_a_suspended_run_of_a_lane_continues_on_the_host_that_began_it(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        submit(here, place="/gpu")
        assert claimed(there, runner="engine/gpu") == ["task_x"]
        there.runs.suspend("task_x", OURS, "it changed", NOW, WaitKind.APPROVAL, asked="f")
        here.tasks.approve("task_x", YES, runner=ENGINE, folder="tasks")
        assert claimed(here) == claimed(here, runner="engine/gpu") == [] and claimed(there) == ["task_x"]

    def test_a_conversation_continues_on_the_host_that_has_it(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        agent(here)
        (work,) = here.runs.claim(AGENT_LANE, OURS, 1, NOW)
        here.runs.settle([done(work.run)], OURS)
        there.tasks.resume("task_g", "go on", runner=AGENT_LANE, now=NOW)
        assert claimed(there, runner=AGENT_LANE) == [] and claimed(here, runner=AGENT_LANE) == ["task_g.2"]

    def test_another_host_does_not_know_the_process_of_a_session(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        here.sessions.register(Session("claude:1", "claude", "/p", OURS, NOW, NOW))
        assert [(one.process, one.host) for one in here.sessions.sessions()] == [(OURS, "a")]
        assert [(one.process, one.host) for one in there.sessions.sessions()] == [(None, "a")]

    def test_interactive_priority_is_for_the_models_of_one_host(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        here.sessions.begin_interactive(InteractiveLease(OURS, AGENT_LANE, None, NOW))
        agent(there, "task_g")
        assert not there.sessions.must_yield("task_g", AGENT_LANE) and there.sessions.interactive_leases() == []
        assert waiting_agent_run(here, "task_h", waits_for=(WaitKind.INTERACTIVE, AGENT_LANE)).state == RunState.WAITING
        there.sessions.begin_interactive(InteractiveLease(THEIRS, AGENT_LANE, None, NOW))
        there.sessions.end_interactive(THEIRS, NOW)
        assert latest(here, "task_h").state == RunState.WAITING
        here.sessions.end_interactive(OURS, NOW)
        assert latest(here, "task_h").state == RunState.PENDING

    def test_a_run_without_an_environment_here_gets_that_of_this_host(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        submit(here, place="@b", environment={"TOKEN": "secret"})
        (work,) = there.runs.claim(ENGINE, OURS, 1, NOW)
        assert work.environment in ({"TOKEN": "secret"}, {"HOST": "b"})  # in a file, the ledger has it

    def test_a_claimed_run_cannot_be_adopted_twice(self, open_on: OpenOn) -> None:
        here, there = open_on("a"), open_on("b")
        run = running(here)
        here.runs.adopt(run, THEIRS)
        with pytest.raises(StaleRun):
            there.runs.adopt(run, OURS)
