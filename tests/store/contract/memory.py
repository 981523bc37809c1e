"""What the agents of a project remember."""

from backburner.store.ledger import Ledger
from contract.cases import NOW, Open


class MemoryContract:
    def test_what_is_remembered_belongs_to_its_project(self, ledger: Ledger, open_ledger: Open) -> None:
        ledger.memory.remember("/p", "colour", "red", NOW)
        ledger.memory.remember("/q", "colour", "blue\n日本語", NOW)
        assert open_ledger().memory.memory("/p") == {"colour": "red"} and ledger.memory.memory("/q") == {"colour": "blue\n日本語"}
        assert ledger.memory.memory("/nowhere") == {}

    def test_what_is_remembered_under_a_name_replaces_what_was(self, ledger: Ledger) -> None:
        for value in ("red", "", "green"):
            ledger.memory.remember("/p", "colour", value, NOW)
        ledger.memory.remember("/p", "a", "first", NOW)
        assert list(ledger.memory.memory("/p").items()) == [("a", "first"), ("colour", "green")]

    def test_nothing_is_forgotten_but_by_its_name(self, ledger: Ledger) -> None:
        for key in ("a", "b"):
            ledger.memory.remember("/p", key, key, NOW)
        ledger.memory.remember("/q", "a", "a", NOW)
        for key in ("a", "missing"):
            ledger.memory.remember("/p", key, None, NOW)
        assert ledger.memory.memory("/p") == {"b": "b"} and ledger.memory.memory("/q") == {"a": "a"}
