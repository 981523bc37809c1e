"""Hosts: epochs, beats, and what becomes of the runs of a host that is silent."""

import pytest

from backburner.core.errors import StaleRun
from backburner.core.hosts import Host
from backburner.core.models import ENGINE, Run
from backburner.core.states import NoticeKind, Result, RunState, TaskState, WaitKind
from backburner.store.ledger import Ledger
from contract.cases import (
    HOUR,
    NOW,
    OURS,
    THEIRS,
    OpenOn,
    claimed,
    done,
    entry_of_task,
    kinds,
    latest,
    notified_tasks,
    plan_at,
    recurring,
    submit,
)


def host(ledger: Ledger, host_id: str) -> Host:
    return next(host for host in ledger.hosts.list() if host.host_id == host_id)


def enrolled(open_on: OpenOn, *host_ids: str) -> list[Ledger]:
    ledgers = [open_on(host_id) for host_id in host_ids]
    for ledger in ledgers:
        ledger.hosts.enrol(NOW)
    return ledgers


def run_in_lane(ledger: Ledger, name: str = "task_x", **more: object) -> Run:
    submit(ledger, name, place="/gpu", **more)
    (work,) = ledger.runs.claim("engine/gpu", OURS, 1, NOW)
    return work.run


class HostContract:
    # -- epochs and beats

    def test_a_host_enrols_with_a_new_epoch_and_what_it_serves(self, open_on: OpenOn) -> None:
        ledger = open_on("a")
        assert (host(ledger, "a").state, host(ledger, "a").epoch) == ("left", 0)
        assert ledger.hosts.may_run_tasks() is True
        assert [ledger.hosts.enrol(NOW, lanes=["gpu"], capacity=4, version="1.0", integrations=True) for _ in range(2)] == [1, 2]
        found = host(ledger, "a")
        assert (found.state, found.epoch, found.beat, found.lanes, found.capacity) == ("active", 2, 0, ("gpu",), 4)
        assert (found.version, found.integrations, found.draining, found.changed_at) == ("1.0", True, False, NOW)
        assert found in ledger.hosts.beats() and kinds(ledger) == ["host_enrolled"] * 2

    def test_a_beat_counts_up_in_the_current_epoch_only(self, open_on: OpenOn) -> None:
        (ledger,) = enrolled(open_on, "a")
        assert ledger.hosts.beat(1, NOW + 5) and (host(ledger, "a").beat, host(ledger, "a").seen_at) == (1, NOW + 5)
        ledger.hosts.enrol(NOW)
        assert not ledger.hosts.beat(1, NOW) and ledger.hosts.beat(2, NOW)

    def test_a_new_epoch_keeps_the_active_runs_of_the_host(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        mine, theirs = run_in_lane(here, "task_x"), run_in_lane(there, "task_y")
        assert (mine.host, mine.epoch, theirs.host, theirs.epoch) == ("a", 1, "b", 1)
        here.hosts.enrol(NOW)
        assert (latest(here, "task_x").epoch, latest(here, "task_y").epoch) == (2, 1)
        assert here.runs.settle([done(mine)], OURS).run_ids == ["task_x"]

    def test_a_process_of_an_earlier_epoch_claims_nothing(self, open_on: OpenOn) -> None:
        here, again = open_on("a"), open_on("a")
        here.hosts.enrol(NOW)
        again.hosts.enrol(NOW)
        submit(here)
        assert claimed(here) == [] and claimed(again) == ["task_x"]
        submit(here, "task_y")
        assert claimed(open_on("a")) == ["task_y"]  # a process that did not enrol, such as the agent process

    def test_a_host_leaves_and_is_not_suspected(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        assert here.hosts.leave(1, NOW + 1) and host(there, "a").state == "left" and not here.hosts.leave(1, NOW + 1)
        assert there.hosts.suspect(host(there, "a"), NOW) is None and not here.hosts.beat(1, NOW)

    def test_a_host_is_listed_with_its_active_runs(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        run_in_lane(here)
        submit(here, "task_p")
        assert [(one.name, one.runs) for one in there.hosts.list()][-2:] == [("host a", 1), ("host b", 0)]

    def test_a_host_is_drained_until_it_enrols_again(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        there.hosts.drain(host(there, "a"), NOW)
        assert host(here, "a").draining and kinds(here)[-1] == "host_draining"
        here.hosts.enrol(NOW)
        assert not host(here, "a").draining

    # -- a silent host

    def test_the_runs_of_a_silent_host_stay_and_are_reported_once(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        runs = [run_in_lane(here, f"task_{name}") for name in "xy"]
        seen = host(there, "a")
        found = there.hosts.suspect(seen, NOW + 8)
        assert found == (2, []) and there.hosts.suspect(seen, NOW + 9) is None
        assert host(there, "a").state == "suspected" and host(there, "a").changed_at == NOW + 8
        assert [latest(there, run.task_id).state for run in runs] == [RunState.RUNNING] * 2
        (notice,) = there.notices.notices()
        assert notice.kind == NoticeKind.UNREACHABLE and notice.text.startswith("Host host a does not answer. 2 runs are there")
        assert kinds(there)[-1] == "host_suspected"

    def test_a_host_without_runs_is_suspected_without_a_notice(self, open_on: OpenOn) -> None:
        _, there = enrolled(open_on, "a", "b")
        assert there.hosts.suspect(host(there, "a"), NOW) == (0, []) and there.notices.notices() == []

    def test_a_host_that_has_beaten_in_the_meantime_is_not_suspected(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        seen = host(there, "a")
        here.hosts.beat(1, NOW)
        assert there.hosts.suspect(seen, NOW) is None and host(there, "a").state == "active"

    def test_a_suspected_host_that_beats_is_active_again_and_its_ends_count(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        run = run_in_lane(here)
        there.hosts.suspect(host(there, "a"), NOW)
        assert here.runs.settle([done(run, exit_code=7)], OURS).run_ids == ["task_x"] and latest(there, "task_x").end.exit_code == 7
        assert here.hosts.beat(1, NOW + 9) and host(there, "a").state == "active" and kinds(there)[-1] == "host_returned"

    def test_what_may_run_twice_is_queued_again_and_the_host_is_fenced(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        again, once = run_in_lane(here, "task_x", rerun=True), run_in_lane(here, "task_y")
        assert there.hosts.suspect(host(there, "a"), NOW + 8) == (1, ["task_x.2"])
        assert host(there, "a").state == "fenced" and kinds(there)[-2:] == ["run_failed", "host_fenced"]
        first, second = there.queries.history("task_x", 2)[::-1]
        assert (first.state, first.end.result, second.state, second.runner) == ("failed", Result.LOST, "pending", "engine/gpu")
        assert entry_of_task(there, "task_x").task.state == TaskState.ACTIVE and latest(there, "task_y").state == RunState.RUNNING
        assert len(there.notices.notices()) == 1 and "1 of its runs is run again" in there.notices.notices()[0].text
        assert claimed(there, runner="engine/gpu") == ["task_x.2"]
        assert here.runs.settle([done(again)], OURS).run_ids == []  # too late
        assert latest(there, "task_x").state == RunState.RUNNING
        assert here.runs.settle([done(once)], OURS).run_ids == ["task_y"]

    def test_a_fenced_host_claims_nothing_until_it_enrols_again(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        run_in_lane(here, rerun=True)
        there.hosts.suspect(host(there, "a"), NOW)
        submit(here, "task_y")
        assert not here.hosts.beat(1, NOW) and claimed(here) == [] and claimed(open_on("a")) == []
        with pytest.raises(StaleRun):
            submit(open_on("a"), "task_z", runner=f"{OURS}:x", owner=OURS)
        assert here.hosts.enrol(NOW) == 2 and claimed(here) == ["task_y"] and here.hosts.beat(2, NOW)

    def test_a_slot_of_a_schedule_runs_again_as_a_retry(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        recurring(here, place="/gpu", rerun=True)
        here.recurring.fire(plan_at(NOW + HOUR), NOW + HOUR, "tasks")
        assert claimed(here, now=NOW + HOUR, runner="engine/gpu") == ["task_r"]
        assert there.hosts.suspect(host(there, "a"), NOW + HOUR) == (0, ["task_r.2"])
        run = latest(there, "task_r")
        assert (run.cause.kind, run.cause.slot, run.runner, run.state) == ("retry", NOW + HOUR, "engine/gpu", "pending")

    def test_a_run_that_was_to_be_cancelled_does_not_run_again(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        run_in_lane(here, rerun=True)
        there.tasks.request_cancel("task_x", NOW)
        assert there.hosts.suspect(host(there, "a"), NOW) == (0, [])
        assert (latest(there, "task_x").state, latest(there, "task_x").n) == (RunState.CANCELLED, 1)

    # -- giving up

    def test_runs_of_a_host_that_stays_silent_are_lost_with_notices(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        run = run_in_lane(here)
        assert there.hosts.lose(host(there, "a"), NOW) is None  # it is not even suspected
        there.hosts.suspect(host(there, "a"), NOW)
        assert there.hosts.lose(host(there, "a"), NOW + 600) == 1 and there.hosts.lose(host(there, "a"), NOW + 600) == 0
        assert (latest(there, "task_x").state, latest(there, "task_x").end.result) == ("failed", Result.LOST)
        assert notified_tasks(there) == ["task_x", "task_x"] and kinds(there).count("run_failed") == 1 == kinds(there).count("host_lost")
        assert [lost.run_id for lost in here.hosts.given_up(NOW)] == ["task_x"]
        assert here.hosts.given_up(NOW + 601) == there.hosts.given_up(NOW) == []
        assert here.runs.settle([done(run)], OURS).run_ids == [] and not here.hosts.beat(1, NOW)

    def test_a_waiting_run_is_not_lost(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        run = run_in_lane(here)
        here.runs.suspend(run.run_id, OURS, "it changed", NOW, WaitKind.APPROVAL)
        assert there.hosts.suspect(host(there, "a"), NOW) == (0, []) and there.hosts.lose(host(there, "a"), NOW) == 0
        assert latest(there, "task_x").state == RunState.WAITING and host(there, "a").state == "left"

    def test_a_host_that_beats_before_it_is_given_up_keeps_its_runs(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        run_in_lane(here)
        there.hosts.suspect(host(there, "a"), NOW)
        seen = host(there, "a")
        here.hosts.beat(1, NOW)
        assert there.hosts.lose(seen, NOW + 600) is None and latest(there, "task_x").state == RunState.RUNNING

    def test_a_person_forgets_a_host_that_is_not_active(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        run_in_lane(here)
        assert there.hosts.forget(host(there, "a"), NOW) is None and latest(there, "task_x").state == RunState.RUNNING
        there.hosts.suspect(host(there, "a"), NOW)
        assert there.hosts.forget(host(there, "a"), NOW) == 1 and latest(there, "task_x").end.result == Result.LOST
        assert host(there, "a").state == "left" and not here.hosts.beat(1, NOW) and here.hosts.enrol(NOW) == 3

    # -- a host that ended a run itself

    def test_a_host_gives_back_a_run_whose_lease_was_over(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        run = run_in_lane(here, rerun=True)
        assert here.hosts.give_back(run.run_id, THEIRS, "its lease was over", NOW) is None
        assert here.hosts.give_back(run.run_id, OURS, "its lease was over", NOW) == "task_x.2"
        assert here.hosts.give_back(run.run_id, OURS, "its lease was over", NOW) is None
        assert claimed(there, runner="engine/gpu") == ["task_x.2"] and there.notices.notices() == []
        assert there.queries.history("task_x", 2)[1].error == "its lease was over" and claimed(here, runner=ENGINE) == []

    # -- a server that has lost commits

    def test_a_run_that_had_begun_before_the_server_lost_it_is_reported(self, open_on: OpenOn) -> None:
        here, there = enrolled(open_on, "a", "b")
        run = run_in_lane(here)
        here.hosts.record_found(run, NOW)
        (notice,) = there.notices.notices()
        assert notice.text.startswith("task_x had begun on host host a before the database server lost that. It was not started again.")
        assert kinds(there)[-1] == "run_found" and latest(there, "task_x").state == RunState.RUNNING
