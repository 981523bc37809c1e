"""The write-ahead log of a ledger file keeps its size, so that a commit does not wait until the disk has recorded another one."""

import os
import shutil
from pathlib import Path

import apsw
import pytest

from backburner.store.sqlite import SqliteDatabase

_TEXT = "x" * 5000


def fill(database: SqliteDatabase, count: int) -> None:
    for number in range(count):
        with database.transaction():
            database.write("INSERT INTO memory (project, key, value, set_at) VALUES ('/p', ?, ?, 1)", (f"{number:04d}", _TEXT))


def size(path: Path) -> int:
    return os.stat(f"{path}-wal").st_size


def test_commits_do_not_change_the_size_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    database = SqliteDatabase(str(path))
    before = size(path)
    fill(database, 600)
    assert size(path) == before > 1 << 20
    database.close()


def test_an_older_ledger_gets_a_log_of_this_size_for_its_own_pages(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    older = apsw.Connection(str(path))
    older.execute("PRAGMA page_size = 4096; CREATE TABLE other (x); PRAGMA user_version = 0").fetchall()
    older.close()
    database = SqliteDatabase(str(path))
    before = size(path)
    fill(database, 600)
    assert size(path) == before > 2 << 20
    database.close()


def test_after_a_checkpoint_the_ledger_file_alone_is_complete_and_the_log_has_its_size(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    database = SqliteDatabase(str(path))
    before = size(path)
    fill(database, 100)
    database.checkpoint()
    assert size(path) == before and not any(Path(f"{path}-wal").read_bytes())
    shutil.copy(path, tmp_path / "copy.db")
    copy = SqliteDatabase(str(tmp_path / "copy.db"))
    assert copy.one("SELECT count(*) FROM memory") == (100,) and copy.check() == []
    copy.close()
    fill_again = SqliteDatabase(str(path))
    with fill_again.transaction():
        fill_again.write("DELETE FROM memory WHERE key < '0050'")
    assert database.one("SELECT count(*) FROM memory") == (50,)
    fill_again.close()
    database.close()


def test_a_log_that_cannot_be_filled_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("builtins.open", refuse)
    path = tmp_path / "ledger.db"
    database = SqliteDatabase(str(path))
    monkeypatch.undo()
    fill(database, 3)
    assert size(path) < 1 << 20 and database.one("SELECT count(*) FROM memory") == (3,)
    database.close()
