"""Environments, which are stored once and whose ids are reused: what `TaskStore` and `RunQueue` do together."""

import pytest

from backburner.core.errors import LedgerUnavailable
from backburner.core.models import ENGINE
from backburner.store.ledger import Ledger
from contract.cases import NOW, OURS, Open, done, submit


class EnvironmentContract:
    @pytest.mark.parametrize(
        ("first", "second"), [("one", "two"), ("plumless", "buckeroo")], ids=["different checksums", "the same checksum"]
    )
    def test_a_run_gets_its_own_environment_after_others_were_cleared(
        self, ledger: Ledger, open_ledger: Open, first: str, second: str
    ) -> None:
        other = open_ledger()
        submit(ledger, "task_a", environment={"A": first})
        (work,) = ledger.runs.claim(ENGINE, OURS, 1, NOW)
        ledger.runs.settle([done(work.run)], OURS)
        assert other.tasks.clear(["task_a"], NOW) == ["tasks/task_a"]
        submit(other, "task_b", environment={"A": second})
        submit(ledger, "task_c", environment={"A": first})
        submit(ledger, "task_d", environment={"A": second, "B": ""})
        wanted = [{"A": second}, {"A": first}, {"A": second, "B": ""}]
        assert [ledger.queries.environment(f"task_{name}") for name in "bcd"] == wanted
        assert [work.environment for work in ledger.runs.claim(ENGINE, OURS, 9, NOW)] == wanted

    def test_a_refused_submission_leaves_no_environment_behind(self, ledger: Ledger) -> None:
        with pytest.raises(LedgerUnavailable):
            submit(ledger, "task_a", priority=5)
        submit(ledger, "task_b")
        assert [work.environment for work in ledger.runs.claim(ENGINE, OURS, 9, NOW)] == [{"PATH": "/bin", "N": "1"}]

    def test_changing_an_environment_after_submission_has_no_effect(self, ledger: Ledger) -> None:
        mine = {"A": "1"}
        submit(ledger, "task_a", environment=mine)
        mine["A"] = "2"
        submit(ledger, "task_b", environment=mine)
        assert [work.environment["A"] for work in ledger.runs.claim(ENGINE, OURS, 9, NOW)] == ["1", "2"]

    def test_runs_with_the_same_environment_share_it(self, ledger: Ledger, open_ledger: Open) -> None:
        """A process that keeps many runs, or verdicts about them, must not keep a copy of the environment for each."""
        other, found = open_ledger(), []
        for number in range(3):
            submit(other, f"task_a{number}", environment={"A": "1"})
            submit(other, f"task_b{number}", environment={"B": "2"})
            found += [work.environment for work in ledger.runs.claim(ENGINE, OURS, 9, NOW)]
        assert found == [{"A": "1"}, {"B": "2"}] * 3 and len({id(environment) for environment in found}) == 2
