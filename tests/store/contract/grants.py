"""Permanent permissions: trusted projects, and commands that are always allowed in a project."""

import pytest

from backburner.core.errors import LedgerUnavailable
from backburner.store.ledger import Ledger
from contract.cases import NOW, Open, kinds


class GrantContract:
    def test_a_permission_is_valid_in_its_project(self, ledger: Ledger, open_ledger: Open) -> None:
        assert ledger.grants.grants() == []
        ledger.grants.grant("trust", "/p", (), "cli", NOW)
        ledger.grants.grant("always", "/p", ("make", "ü b"), "chat", NOW + 1)
        ledger.grants.grant("always", "/q", ("make",), "cli", NOW + 2)
        trust, always = open_ledger().grants.grants("/p")
        assert (trust.kind, trust.project, trust.command, trust.via, trust.created_at) == ("trust", "/p", (), "cli", NOW)
        assert (always.kind, always.command, always.via) == ("always", ("make", "ü b"), "chat")
        assert [grant.project for grant in ledger.grants.grants()] == ["/p", "/p", "/q"] and ledger.grants.grants("/nowhere") == []

    def test_granting_a_permission_twice_stores_it_once(self, ledger: Ledger) -> None:
        for now in (NOW, NOW + 1):
            ledger.grants.grant("trust", "/p", (), "cli", now)
        assert [grant.created_at for grant in ledger.grants.grants()] == [NOW] and kinds(ledger) == ["granted"]

    def test_a_secret_in_a_command_is_not_written_into_the_log(self, ledger: Ledger) -> None:
        ledger.grants.grant("always", "/p", ("curl", "--password=hunter2"), "cli", NOW)
        assert "hunter2" not in str(ledger.events.events(0)) and ledger.grants.grants()[0].command[1] == "--password=hunter2"

    def test_a_permission_is_revoked_once_and_its_id_is_not_reused(self, ledger: Ledger) -> None:
        ledger.grants.grant("trust", "/p", (), "cli", NOW)
        (grant,) = ledger.grants.grants()
        assert ledger.grants.revoke(grant.grant_id, NOW + 1) and not ledger.grants.revoke(grant.grant_id, NOW + 2)
        assert ledger.grants.grants() == [] and kinds(ledger) == ["granted", "revoked"]
        ledger.grants.grant("trust", "/p", (), "cli", NOW + 3)
        assert ledger.grants.grants()[0].grant_id > grant.grant_id

    @pytest.mark.parametrize(("kind", "command"), [("trust", ("make",)), ("always", ()), ("strange", ())])
    def test_an_impossible_permission_is_refused(self, ledger: Ledger, kind: str, command: tuple[str, ...]) -> None:
        with pytest.raises(LedgerUnavailable):
            ledger.grants.grant(kind, "/p", command, "cli", NOW)
        assert ledger.grants.grants() == [] and kinds(ledger) == []
