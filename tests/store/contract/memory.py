"""What the agents of a project remember."""

from backburner.store.ledger import Ledger
from contract.cases import NOW, Open


class MemoryContract:
    def test_what_is_remembered_belongs_to_its_project(self, ledger: Ledger, open_ledger: Open) -> None:
        ledger.memory.set("/p", "colour", "red", NOW)
        ledger.memory.set("/q", "colour", "blue\n日本語", NOW)
        assert open_ledger().memory.all("/p") == {"colour": "red"} and ledger.memory.all("/q") == {"colour": "blue\n日本語"}
        assert ledger.memory.all("/nowhere") == {}

    def test_what_is_remembered_under_a_name_replaces_what_was(self, ledger: Ledger) -> None:
        for value in ("red", "", "green"):
            ledger.memory.set("/p", "colour", value, NOW)
        ledger.memory.set("/p", "a", "first", NOW)
        assert list(ledger.memory.all("/p").items()) == [("a", "first"), ("colour", "green")]

    def test_nothing_is_forgotten_but_by_its_name(self, ledger: Ledger) -> None:
        for key in ("a", "b"):
            ledger.memory.set("/p", key, key, NOW)
        ledger.memory.set("/q", "a", "a", NOW)
        for key in ("a", "missing"):
            ledger.memory.set("/p", key, None, NOW)
        assert ledger.memory.all("/p") == {"b": "b"} and ledger.memory.all("/q") == {"a": "a"}
