"""What the repositories require of a database."""

import pytest

from backburner.core.errors import LedgerUnavailable
from backburner.core.states import RunState
from backburner.store.ledger import Ledger
from backburner.store.rows import run_row
from backburner.testing.records import changed_run
from contract.cases import NOW, OURS, Open, done, ended, entry_of_task, running, submit

COUNT = "SELECT count(*) FROM cursors"
ADD = "INSERT INTO cursors (name, position) VALUES (?, ?)"


class DatabaseContract:
    def test_write_returns_the_number_of_rows_it_changed(self, ledger: Ledger) -> None:
        db = ledger.database
        with db.transaction():
            assert [db.write(ADD, (name, 1)) for name in "abc"] == [1, 1, 1]
            assert db.write(f"{ADD} ON CONFLICT DO NOTHING", ("a", 9)) == 0
            assert db.write("UPDATE cursors SET position = 2 WHERE position = ?", (1,)) == 3
            assert db.write("UPDATE cursors SET position = 2 WHERE position = ?", (1,)) == 0
            assert db.write("DELETE FROM cursors WHERE name <> ?", ("a",)) == 2
            assert db.execute("SELECT name, position FROM cursors") == [("a", 2)]

    def test_rows_deleted_by_cascade_are_not_counted(self, ledger: Ledger) -> None:
        ended(ledger)
        with ledger.database.transaction():
            assert ledger.database.write("DELETE FROM tasks WHERE task_id = ?", ("task_x",)) == 1
        assert ledger.database.one("SELECT count(*) FROM runs") == (0,)

    def test_one_returns_the_first_row_or_an_empty_tuple(self, ledger: Ledger) -> None:
        assert ledger.database.one("SELECT name FROM cursors") == () and ledger.database.one(COUNT) == (0,)

    def test_insert_converts_core_records(self, ledger: Ledger) -> None:
        run = running(ledger)
        added = changed_run(run, run_id="task_x.2", n=2, state=RunState.PENDING, owner=None, started_at=None, usage={"tokens": 1.5})
        with ledger.database.transaction():
            ledger.database.insert("runs", run_row(added))
            ledger.database.write("UPDATE tasks SET run_count = 2 WHERE task_id = ?", ("task_x",))
        assert entry_of_task(ledger, "task_x").run == added

    @pytest.mark.parametrize("durable", [True, False])
    def test_a_transaction_becomes_visible_to_others_when_it_ends(self, ledger: Ledger, open_ledger: Open, durable: bool) -> None:
        other = open_ledger().database
        with ledger.database.transaction(durable=durable):
            ledger.database.write(ADD, ("a", 1))
            assert other.one(COUNT) == (0,) and ledger.database.one(COUNT) == (1,)
        assert other.one(COUNT) == (1,)

    def test_a_transaction_that_raises_is_rolled_back(self, ledger: Ledger, open_ledger: Open) -> None:
        for error in (KeyError, KeyboardInterrupt):
            with pytest.raises(error), ledger.database.transaction():
                ledger.database.write(ADD, ("a", 1))
                raise error
        assert open_ledger().database.one(COUNT) == (0,)
        with ledger.database.transaction():
            ledger.database.write(ADD, ("a", 1))
        assert ledger.database.one(COUNT) == (1,)

    def test_a_row_that_the_schema_forbids_rolls_back_the_transaction(self, ledger: Ledger) -> None:
        with pytest.raises(LedgerUnavailable), ledger.database.transaction():
            ledger.database.write(ADD, ("a", 1))
            ledger.database.write(ADD, ("a", 2))
        with pytest.raises(LedgerUnavailable), ledger.database.transaction():
            ledger.database.insert(
                "notices", {"key": "k", "task_id": "task_missing", "project": "", "channel": "", "text": "", "created_at": 1}
            )
        with pytest.raises(LedgerUnavailable):
            ledger.database.execute("SELECT nothing FROM nowhere")
        assert ledger.database.one(COUNT) == (0,) == ledger.database.one("SELECT count(*) FROM notices")

    def test_the_change_counter_changes_when_another_connection_commits(self, ledger: Ledger, open_ledger: Open) -> None:
        other = open_ledger()
        before = ledger.database.change_counter()
        submit(other)
        assert ledger.database.change_counter() != before

    def test_text_that_is_not_valid_matches_no_row(self, ledger: Ledger) -> None:
        assert ledger.database.execute("SELECT 1 FROM tasks WHERE task_id = ?", (b"\xff".decode("utf-8", "surrogateescape"),)) == []

    def test_a_new_ledger_passes_its_check_and_can_be_checkpointed(self, ledger: Ledger, open_ledger: Open) -> None:
        ledger.runs.settle([done(running(ledger), ended_at=NOW)], OURS)
        ledger.checkpoint()
        assert ledger.check() == [] and entry_of_task(open_ledger(), "task_x").status == "completed"

    def test_the_dialect_has_a_name(self, ledger: Ledger) -> None:
        assert ledger.database.dialect in ("sqlite", "postgres")
