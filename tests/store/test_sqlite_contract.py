"""The contract of the ledger, fulfilled by SQLite."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("contract")

from contract.cases import Open, OpenOn  # noqa: E402
from contract.database import DatabaseContract  # noqa: E402
from contract.deliveries import DeliveryContract  # noqa: E402
from contract.dependencies import DependencyContract  # noqa: E402
from contract.devices import DeviceContract  # noqa: E402
from contract.dispatch import DispatchContract  # noqa: E402
from contract.environments import EnvironmentContract  # noqa: E402
from contract.events import EventContract  # noqa: E402
from contract.external_tasks import ExternalTaskContract  # noqa: E402
from contract.grants import GrantContract  # noqa: E402
from contract.guards import GuardContract  # noqa: E402
from contract.host_requests import HostRequestContract  # noqa: E402
from contract.hosts import HostContract  # noqa: E402
from contract.memory import MemoryContract  # noqa: E402
from contract.notices import NoticeContract  # noqa: E402
from contract.output_excerpts import OutputExcerptContract  # noqa: E402
from contract.places import PlaceContract  # noqa: E402
from contract.queries import QueryContract  # noqa: E402
from contract.records import RecordContract  # noqa: E402
from contract.recurring import RecurringContract  # noqa: E402
from contract.refusals import RefusalContract  # noqa: E402
from contract.run_queue import RunQueueContract  # noqa: E402
from contract.sessions import SessionContract  # noqa: E402
from contract.task_pages import TaskPageContract  # noqa: E402
from contract.tasks import TaskContract  # noqa: E402
from contract.triggers import TriggerContract  # noqa: E402

from backburner.store import ledger as ledgers  # noqa: E402
from backburner.store.sqlite import SqliteDatabase  # noqa: E402


@pytest.fixture
def open_ledger(tmp_path: Path) -> Iterator[Open]:
    opened: list[ledgers.Ledger] = []

    def open_ledger() -> ledgers.Ledger:
        opened.append(ledgers.open_ledger(str(tmp_path / "ledger.db")))
        return opened[-1]

    yield open_ledger
    for ledger in opened:
        ledger.close()


@pytest.fixture
def open_on(tmp_path: Path) -> Iterator[OpenOn]:
    opened: list[ledgers.Ledger] = []

    def open_on(host_id: str) -> ledgers.Ledger:
        database = SqliteDatabase(str(tmp_path / "ledger.db"))
        database.host_id, database.host_environment = host_id, {"HOST": host_id}
        opened.append(ledgers.Ledger(database, str(tmp_path)))
        with database.transaction():
            joined = "INSERT INTO hosts (host_id, name, state, changed_at, seen_at) VALUES (?, ?, 'left', 0, 0) ON CONFLICT DO NOTHING"
            database.write(joined, (host_id, f"host {host_id}"))
        return opened[-1]

    yield open_on
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Open) -> ledgers.Ledger:
    return open_ledger()


class TestDatabase(DatabaseContract): ...


class TestDependencies(DependencyContract): ...


class TestDispatch(DispatchContract): ...


class TestEnvironments(EnvironmentContract): ...


class TestEvents(EventContract): ...


class TestExternalTasks(ExternalTaskContract): ...


class TestNotices(NoticeContract): ...


class TestHosts(HostContract): ...


class TestPlaces(PlaceContract): ...


class TestQueries(QueryContract): ...


class TestRunQueue(RunQueueContract): ...


class TestSessions(SessionContract): ...


class TestTasks(TaskContract): ...


class TestDeliveries(DeliveryContract): ...


class TestTriggers(TriggerContract): ...


class TestRecurring(RecurringContract): ...


class TestGrants(GrantContract): ...


class TestGuards(GuardContract): ...


class TestMemory(MemoryContract): ...


class TestRefusals(RefusalContract): ...


class TestRecords(RecordContract): ...


class TestDevices(DeviceContract): ...


class TestTaskPages(TaskPageContract): ...


class TestHostRequests(HostRequestContract): ...


class TestOutputExcerpts(OutputExcerptContract): ...
