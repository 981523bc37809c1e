"""Lists in the constraints of tables are stored as comparisons, and these allow the same."""

import apsw
import pytest

from backburner.core.errors import LedgerUnavailable
from backburner.store.sqlite import SqliteDatabase
from backburner.store.sqlite_constraints import as_comparisons


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("CHECK (state IN ('a', 'b', 'c'))", "CHECK ((state = 'a' OR state = 'b' OR state = 'c'))"),
        ("CHECK (state IN\n  ('a', 'b,c', ''))", "CHECK ((state = 'a' OR state = 'b,c' OR state = ''))"),
        ("CHECK ((x IS NULL) = (state IN ('a', 'b', 'c')))", "CHECK ((x IS NULL) = ((state = 'a' OR state = 'b' OR state = 'c')))"),
        ("CHECK (state IN ('a', 'b'))", "CHECK (state IN ('a', 'b'))"),
        ("CHECK (state NOT IN ('a', 'b', 'c'))", "CHECK (state NOT IN ('a', 'b', 'c'))"),
        ("CHECK (shell IN (0, 1))", "CHECK (shell IN (0, 1))"),
    ],
)
def test_a_list_of_more_than_two_texts_becomes_comparisons(before: str, after: str) -> None:
    assert as_comparisons(before) == after


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO runs (run_id) VALUES ('x')",
        "INSERT INTO tasks (task_id) VALUES ('x')",
        "INSERT INTO notices (key) VALUES ('x')",
        "UPDATE runs SET state = 'failed' WHERE run_id = 'x'",
        "UPDATE tasks SET state = 'done' WHERE task_id = 'x'",
    ],
)
def test_writing_a_row_needs_no_temporary_table(statement: str) -> None:
    database = SqliteDatabase(":memory:")
    steps = [row[1] for row in database.execute(f"EXPLAIN {statement}")]
    assert "Insert" in steps and "OpenEphemeral" not in steps
    assert database.check() == []


def test_a_state_that_is_not_in_the_list_is_refused() -> None:
    database = SqliteDatabase(":memory:")
    columns = "task_id, type, kind, description, command, shell, cwd, project, env, created_at, reasons, state"
    row = f"INSERT INTO tasks ({columns}) VALUES ('t', 'command', 'oneshot', '', '[]', 0, '/', '/', '{{}}', 1, '[]', ?)"
    database.write(row, ("proposed",))
    with pytest.raises(LedgerUnavailable):
        database.write(row.replace("'t'", "'u'"), ("unheard",))


def test_other_connections_see_the_changed_constraints(tmp_path: object) -> None:
    path = f"{tmp_path}/ledger.db"
    SqliteDatabase(path).close()
    tables = [sql for (sql,) in apsw.Connection(path).execute("SELECT sql FROM sqlite_schema WHERE type = 'table' AND sql IS NOT NULL")]
    assert tables == [as_comparisons(sql) for sql in tables] and any("state = 'pending' OR" in sql for sql in tables)
