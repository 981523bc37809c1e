"""The contract of the ledger, fulfilled by Postgres: by the newest server, and by the system's in a database with an ICU collation.

On the second, `scripts/test` runs what depends on the order and comparison of text, and `scripts/test --long` everything.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import test_sqlite_contract
from conftest import LONG
from contract.cases import Open, OpenOn
from postgres_server import HOST_ID, LedgerDatabase

from backburner.store import ledger as ledgers

globals().update({name: suite for name, suite in vars(test_sqlite_contract).items() if name.startswith("Test")})
_ORDERED = ("TestDatabase", "TestDeliveries", "TestGrants", "TestMemory", "TestNotices", "TestQueries", "TestRecords", "TestTaskPages")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    with_icu = LONG or (metafunc.cls is not None and metafunc.cls.__name__ in _ORDERED)
    metafunc.parametrize("database", ["bytes", "icu"] if with_icu else ["bytes"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def database(request: pytest.FixtureRequest) -> LedgerDatabase:
    server = request.getfixturevalue("system_postgres_server" if request.param == "icu" else "postgres_server")
    return LedgerDatabase(server, f"contract_{request.param}", request.param)


@pytest.fixture
def open_ledger(database: LedgerDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    database.empty()
    opened: list[ledgers.Ledger] = []

    def open_ledger() -> ledgers.Ledger:
        opened.append(ledgers.open_postgres_ledger(database.url, str(tmp_path_factory.getbasetemp()), HOST_ID))
        return opened[-1]

    yield open_ledger
    for ledger in opened:
        ledger.close()


@pytest.fixture
def open_on(database: LedgerDatabase, tmp_path: Path) -> Iterator[OpenOn]:
    database.empty()
    opened: list[ledgers.Ledger] = []

    def open_on(host_id: str) -> ledgers.Ledger:
        database.join(host_id)
        opened.append(ledgers.open_postgres_ledger(database.url, str(tmp_path / host_id), host_id, {"HOST": host_id}))
        return opened[-1]

    yield open_on
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Open) -> ledgers.Ledger:
    return open_ledger()
