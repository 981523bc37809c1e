"""Offering runs of lanes to the hosts that serve them."""

from backburner.store.ledger import Ledger
from contract.cases import NOW, claimed, submit

GPU, CPU = "engine/gpu", "engine/cpu"


class DispatchContract:
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
