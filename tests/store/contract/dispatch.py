"""Offering runs of lanes to the hosts that serve them."""

from backburner.core.states import RunState
from backburner.store.ledger import Ledger
from contract.cases import NOW, OURS, THEIRS, Open, claimed, done, latest, submit

GPU, CPU = "engine/gpu", "engine/cpu"


class DispatchContract:
    def test_the_runs_that_a_host_was_handed_are_claimed_unless_somebody_has_them(self, ledger: Ledger, open_ledger: Open) -> None:
        for name in "abcd":
            submit(ledger, f"task_{name}", runner=GPU, after=("task_a",) if name == "d" else ())
        other = open_ledger()
        assert [work.run.run_id for work in other.dispatch.take(("task_b",), THEIRS, NOW)] == ["task_b"]
        taken = ledger.dispatch.take(("task_c", "task_b", "task_a", "task_d", "task_gone"), OURS, NOW)
        assert [(work.run.run_id, work.run.owner, work.run.state) for work in taken] == [
            (run_id, OURS, RunState.RUNNING) for run_id in ("task_c", "task_a")
        ]
        assert latest(ledger, "task_b").owner == THEIRS and latest(ledger, "task_d").state == RunState.PENDING

    def test_a_run_that_a_host_was_handed_can_be_moved_to_a_queue_of_that_host(self, ledger: Ledger) -> None:
        for name in "abc":
            submit(ledger, f"task_{name}", runner=GPU)
        ledger.dispatch.take(("task_b",), OURS, NOW)
        assert [ledger.dispatch.move(f"task_{name}", "engine@h1") for name in "aba"] == [True, False, False]
        assert claimed(ledger, runner="engine@h1") == ["task_a"]
        ledger.runs.settle([done("task_a")], OURS)
        assert sorted(ledger.dispatch.occupying(("task_a", "task_b", "task_c", "task_gone"))) == ["task_b", "task_c"]

    def test_a_run_that_nobody_has_claimed_and_that_may_start_is_found(self, ledger: Ledger) -> None:
        for name, more in (("free", {}), ("taken", {}), ("later", {"start_at": NOW + 10}), ("blocked", {"after": ("task_free",)})):
            submit(ledger, f"task_{name}", runner=GPU, **more)
        ledger.dispatch.take(("task_taken",), OURS, NOW)
        assert ledger.dispatch.unclaimed(("task_free", "task_taken", "task_later", "task_blocked", "task_gone")) == ["task_free"]

    def test_runs_whose_time_has_come_are_offered(self, ledger: Ledger) -> None:
        for name, runner, start_at in (
            ("now", GPU, None),
            ("soon", GPU, NOW + 10),
            ("late", CPU, NOW + 20),
            ("other", "engine/x", NOW + 5),
        ):
            submit(ledger, f"task_{name}", runner=runner, start_at=start_at)
        assert ledger.dispatch.offer_due((GPU, CPU), NOW) == NOW + 10
        assert ledger.dispatch.offer_due((GPU, CPU), NOW + 10) == NOW + 20
        assert claimed(ledger, now=NOW, runner=GPU) == ["task_now", "task_soon"]
        assert ledger.dispatch.offer_due((GPU, CPU), NOW + 99) is None
        assert claimed(ledger, now=NOW, runner=CPU) == ["task_late"]
        assert claimed(ledger, now=NOW, runner="engine/x") == []

    def test_a_run_that_waits_for_another_task_is_not_offered(self, ledger: Ledger) -> None:
        submit(ledger, "task_a", runner=GPU)
        submit(ledger, "task_b", runner=GPU, start_at=NOW + 10, after=("task_a",))
        assert ledger.dispatch.offer_due((GPU,), NOW + 99) is None
        assert ledger.dispatch.offer_due((), NOW + 99) is None
