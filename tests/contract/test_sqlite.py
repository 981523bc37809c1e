"""The contract, kept by SQLite."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("store_contract")

from store_contract import Open, StoreContract  # noqa: E402

from backburner.store.sqlite import SQLiteStore  # noqa: E402


class TestSQLite(StoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Iterator[Open]:
        opened: list[SQLiteStore] = []

        def open_store() -> SQLiteStore:
            opened.append(SQLiteStore(str(tmp_path / "ledger.db")))
            return opened[-1]

        yield open_store
        for store in opened:
            store.close()
