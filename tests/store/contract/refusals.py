"""Tasks that a user refused."""

import pytest

from backburner.core.models import Task
from backburner.store.ledger import Ledger
from backburner.testing.records import changed
from contract.cases import DAY, NOW, propose


class RefusalContract:
    @pytest.fixture
    def task(self, ledger: Ledger) -> Task:
        return propose(ledger, name="Nightly-Check").task

    def test_a_refusal_is_found_by_name_or_by_digest(self, ledger: Ledger, task: Task) -> None:
        ledger.refusals.record(task, "digest", "rejected", NOW)
        for name, digest in (("nightly check", "other"), ("NIGHTLY_check", "other"), ("else", "digest")):
            assert ledger.refusals.refused_since("/p", name, digest, NOW, "rejected") == NOW
        assert ledger.refusals.refused_since("/p", "else", "other", 0, "rejected") is None

    def test_a_refusal_is_limited_to_its_project_reason_and_time(self, ledger: Ledger, task: Task) -> None:
        ledger.refusals.record(task, "digest", "rejected", NOW)
        ledger.refusals.record(task, "digest", "rejected", NOW + 5)
        assert ledger.refusals.refused_since("/p", "", "digest", 0, "rejected") == NOW + 5
        assert ledger.refusals.refused_since("/q", "", "digest", 0, "rejected") is None
        assert ledger.refusals.refused_since("/p", "", "digest", 0, "deleted") is None
        assert ledger.refusals.refused_since("/p", "", "digest", NOW + 6, "rejected") is None

    def test_tasks_without_a_name_do_not_match_by_name(self, ledger: Ledger, task: Task) -> None:
        ledger.refusals.record(changed(task, name=None), "digest", "rejected", NOW)
        assert ledger.refusals.refused_since("/p", "", "other", 0, "rejected") is None

    def test_a_refusal_is_deleted_after_a_year(self, ledger: Ledger, task: Task) -> None:
        ledger.refusals.record(task, "old", "rejected", NOW)
        ledger.refusals.record(changed(task, name="other"), "new", "rejected", NOW + 366 * DAY)
        assert ledger.refusals.refused_since("/p", "", "old", 0, "rejected") is None
