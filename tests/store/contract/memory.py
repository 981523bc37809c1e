"""Memory that the agents of a project share."""

from backburner.store.ledger import Ledger
from contract.cases import NOW, Open


class MemoryContract:
    def test_memory_belongs_to_its_project(self, ledger: Ledger, open_ledger: Open) -> None:
        ledger.memory.set("/p", "colour", "red", NOW)
        ledger.memory.set("/q", "colour", "blue\n日本語", NOW)
        assert open_ledger().memory.all("/p") == {"colour": "red"} and ledger.memory.all("/q") == {"colour": "blue\n日本語"}
        assert ledger.memory.all("/nowhere") == {}

    def test_a_new_value_replaces_the_old_one(self, ledger: Ledger) -> None:
        for value in ("red", "", "green"):
            ledger.memory.set("/p", "colour", value, NOW)
        ledger.memory.set("/p", "a", "first", NOW)
        assert list(ledger.memory.all("/p").items()) == [("a", "first"), ("colour", "green")]

    def test_only_the_named_value_is_deleted(self, ledger: Ledger) -> None:
        for key in ("a", "b"):
            ledger.memory.set("/p", key, key, NOW)
        ledger.memory.set("/q", "a", "a", NOW)
        for key in ("a", "missing"):
            ledger.memory.set("/p", key, None, NOW)
        assert ledger.memory.all("/p") == {"b": "b"} and ledger.memory.all("/q") == {"a": "a"}
