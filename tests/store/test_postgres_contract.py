"""The contract of the ledger, fulfilled by Postgres: by the newest server, and by the system's in a database with an ICU collation.

On the second, `scripts/test` runs what depends on the order and comparison of text, and `scripts/test --long` everything.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import test_sqlite_contract
from conftest import LONG
from contract.cases import Open, OpenOn
from postgres_server import HOST_ID, PERSON, WORKER, LedgerDatabase

from backburner.store import ledger as ledgers
from backburner.store.postgres import PostgresDatabase

globals().update({name: suite for name, suite in vars(test_sqlite_contract).items() if name.startswith("Test")})
# A worker that clears a task leaves the events of what a person decided.
_ALL_EVENTS_CLEARED = (
    "test_a_cleared_task_is_deleted_with_all_its_rows",
    "test_what_a_clear_without_a_sweep_leaves_is_swept_in_parts",
    "test_clearing_twice_has_the_effect_of_once",
    "test_many_tasks_can_be_cleared_together",
)
# What these do is for people, or for tests alone: name the message of a notice, change stored tasks, send input to what a person approved.
_NOT_FOR_WORKERS = (
    "test_insert_converts_core_records",
    "test_event_ids_are_never_reused",
    "test_the_descriptive_fields_of_a_restarted_task_can_be_changed",
    "test_an_impossible_run_is_refused",
    "test_old_tasks_are_found_by_a_part_that_no_new_one_contains",
    "test_a_delivered_notice_stays_delivered",
    "test_a_delivered_notice_is_found_by_the_channels_message_id",
    "test_a_proposal_is_an_open_question_until_it_is_answered",
    "test_only_the_latest_question_about_a_proposal_can_be_answered",
    "test_a_waiting_recurring_run_is_an_open_question_until_it_continues",
    "test_integrations_are_needed_for_deliveries_sources_and_open_questions",
    "test_tasks_are_read_in_the_order_of_their_decisions",
    "test_input_is_taken_or_withdrawn_but_not_both",
    "test_requests_go_with_their_run",
)
_OF_ROLES = ("TestTasks", "TestRunQueue", "TestRecurring", "TestGuards", "TestDevices", "TestGrants")  # on a ledger with roles
_ORDERED = ("TestDatabase", "TestDeliveries", "TestGrants", "TestMemory", "TestNotices", "TestQueries", "TestRecords", "TestTaskPages")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    with_icu = LONG or (metafunc.cls is not None and metafunc.cls.__name__ in _ORDERED)
    databases = ["bytes", *(["icu"] if with_icu else []), *(["roles"] if _has_decisions(metafunc) else [])]
    metafunc.parametrize("database", databases, indirect=True, scope="module")


def _has_decisions(metafunc: pytest.Metafunc) -> bool:
    name = metafunc.function.__name__
    is_for_roles = metafunc.cls is not None and (LONG or metafunc.cls.__name__ in _OF_ROLES)
    return is_for_roles and name not in _ALL_EVENTS_CLEARED and name not in _NOT_FOR_WORKERS


class _WorkerAndPerson(PostgresDatabase):
    """Each transaction of a person has that person's login, and all others that of a worker."""

    def __init__(self, database: LedgerDatabase, folder: str, host_id: str) -> None:
        super().__init__(database.url_of(WORKER), host_id=host_id, private_folder=folder, environment={"HOST": host_id})
        self._logins = {False: self._connection, True: PostgresDatabase(database.url_of(PERSON), host_id=host_id)._connection}

    def begin(self, durable: bool, by_person: bool = False) -> None:
        self._connection = self._logins[by_person]
        super().begin(durable)

    def close(self) -> None:
        for connection in self._logins.values():
            connection.close()


def _opened(database: LedgerDatabase, folder: str, host_id: str) -> ledgers.Ledger:
    if database.name == "contract_roles":
        return ledgers.Ledger(_WorkerAndPerson(database, f"{folder}/environments", host_id), folder)
    return ledgers.open_postgres_ledger(database.url, folder, host_id, {"HOST": host_id})


@pytest.fixture(scope="module")
def database(request: pytest.FixtureRequest) -> LedgerDatabase:
    server = request.getfixturevalue("system_postgres_server" if request.param == "icu" else "postgres_server")
    if request.param == "roles":
        return LedgerDatabase(server, "contract_roles", "bytes", roles=True)
    return LedgerDatabase(server, f"contract_{request.param}", request.param)


@pytest.fixture
def open_ledger(database: LedgerDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    database.empty()
    opened: list[ledgers.Ledger] = []

    def open_ledger() -> ledgers.Ledger:
        opened.append(_opened(database, str(tmp_path_factory.getbasetemp()), HOST_ID))
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
        opened.append(_opened(database, str(tmp_path / host_id), host_id))
        return opened[-1]

    yield open_on
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Open) -> ledgers.Ledger:
    return open_ledger()
