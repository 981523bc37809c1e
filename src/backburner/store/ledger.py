"""The ledger of a home: its repositories over one database. This is the only place where they are composed."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property

from backburner.core.light_typing import TYPE_CHECKING
from backburner.store.live_work import LiveWorkRepository
from backburner.store.on_first_use import on_first_use
from backburner.store.queries import QueryRepository
from backburner.store.task_reader import TaskReader

if TYPE_CHECKING:
    from backburner.core.store_ports import (
        DeliveryStore,
        DeviceStore,
        DispatchStore,
        EventStore,
        ExternalTaskStore,
        GrantStore,
        HostRequestStore,
        HostStore,
        LedgerQueries,
        LiveWork,
        MemoryStore,
        NoticeStore,
        OutputExcerptStore,
        ProofStore,
        RecordStore,
        RecurringStore,
        RefusalStore,
        RunQueue,
        SessionStore,
        TaskPages,
        TaskStore,
        TriggerStore,
    )
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter
    from backburner.store.writers import Writers


class Ledger:
    """The repositories of one home. Each of their methods is one transaction. Not thread-safe."""

    def __init__(self, database: "Database", root: str) -> None:
        """`root` is the home directory, which contains the logs that notices refer to."""
        self.database, self._root, self._reader = database, root, TaskReader(database)
        self.live_work: LiveWork = LiveWorkRepository(database)
        self.queries: LedgerQueries = QueryRepository(database, self._reader)

    # Many commands need none of the following, so each is imported on first use.

    @cached_property
    def _writers(self) -> "Writers":
        from backburner.store.writers import Writers

        return Writers(self.database, self._root, self._reader, self.live_work)

    @property
    def tasks(self) -> "TaskStore":
        return self._writers.tasks

    @property
    def runs(self) -> "RunQueue":
        return self._writers.runs

    @property
    def dispatch(self) -> "DispatchStore":
        return self._writers.dispatch

    @property
    def hosts(self) -> "HostStore":
        return self._writers.hosts

    @property
    def recurring(self) -> "RecurringStore":
        return self._writers.recurring

    @property
    def triggers(self) -> "TriggerStore":
        return self._writers.triggers

    @on_first_use
    def records(self) -> "RecordStore":
        from backburner.store.records import RecordRepository

        return RecordRepository(self.database)

    @on_first_use
    def sessions(self) -> "SessionStore":
        from backburner.store.sessions import SessionRepository
        from backburner.store.waiting_runs import WaitingRuns

        return SessionRepository(self.database, WaitingRuns(self.database, self._events))

    @on_first_use
    def deliveries(self) -> "DeliveryStore":
        from backburner.store.deliveries import DeliveryRepository
        from backburner.store.watched_tasks import WatchedTasks

        return DeliveryRepository(self.database, self._events, WatchedTasks(self.database))

    @on_first_use
    def _events(self) -> "EventWriter":
        from backburner.store.event_writer import EventWriter

        return EventWriter(self.database)

    @on_first_use
    def events(self) -> "EventStore":
        from backburner.store.events import EventRepository

        return EventRepository(self.database, self._events)

    @on_first_use
    def notices(self) -> "NoticeStore":
        from backburner.store.notices import NoticeRepository

        return NoticeRepository(self.database)

    @on_first_use
    def pages(self) -> "TaskPages":
        from backburner.store.task_pages import TaskPageRepository

        return TaskPageRepository(self.database)

    @on_first_use
    def devices(self) -> "DeviceStore":
        from backburner.store.devices import DeviceRepository

        return DeviceRepository(self.database, self._events)

    @on_first_use
    def proofs(self) -> "ProofStore":
        from backburner.store.proofs import ProofRepository

        return ProofRepository(self.database, self._events)

    @on_first_use
    def grants(self) -> "GrantStore":
        from backburner.store.grants import GrantRepository

        return GrantRepository(self.database, self._events)

    @on_first_use
    def memory(self) -> "MemoryStore":
        from backburner.store.memory import MemoryRepository

        return MemoryRepository(self.database)

    @on_first_use
    def refusals(self) -> "RefusalStore":
        from backburner.store.refusals import RefusalRepository

        return RefusalRepository(self.database)

    @on_first_use
    def host_requests(self) -> "HostRequestStore":
        from backburner.store.host_requests import HostRequestRepository

        return HostRequestRepository(self.database)

    @on_first_use
    def output_excerpts(self) -> "OutputExcerptStore":
        from backburner.store.output_excerpts import OutputExcerptRepository

        return OutputExcerptRepository(self.database)

    @on_first_use
    def external_tasks(self) -> "ExternalTaskStore":
        from backburner.store.external_tasks import ExternalTaskRepository

        return ExternalTaskRepository(self.database, self._reader, self._events)

    def checkpoint(self) -> None:
        """Write the write-ahead log back into the ledger file, so that a copy of that file alone is complete."""
        self.database.checkpoint()

    def copy_to(self, path: str) -> None:
        """Write the ledger as it is at one moment to a new file, while other processes may write."""
        self.database.copy_to(path)

    def unexpected_objects(self) -> Sequence[str]:
        """The tables, indexes, triggers and views that a ledger does not have, by name."""
        return self.database.unexpected_objects()

    def check(self, seconds: float | None = None) -> Sequence[str] | None:
        """The problems that the database's own integrity check finds; None if it took longer than `seconds` and was stopped."""
        return self.database.check(seconds)

    def close(self) -> None:
        self.database.close()


def open_ledger(path: str, *, setup_lock: str | None = None, vfs: str | None = None, exclusive: bool = False) -> Ledger:
    """Open the ledger file of a home; creates it or migrates it to the current schema if needed."""
    from backburner.store.sqlite import SqliteDatabase

    return Ledger(SqliteDatabase(path, vfs=vfs, exclusive=exclusive, setup_lock=setup_lock), os.path.dirname(path))


def open_postgres_ledger(
    url: str,
    root: str,
    host_id: str = "",
    environment: Mapping[str, str] | None = None,
    person: str = "",
    *,
    for_lease: bool = False,
) -> Ledger:
    """Open a ledger on Postgres for the home `root`. Changes nothing: `backburner migrate` creates and upgrades its tables.

    `environment` is for runs that were submitted on another host. `person` is the database user that decides, if it is another.
    `for_lease` as in `PostgresDatabase`.
    """
    from backburner.store.postgres import PostgresDatabase

    private = os.path.join(root, "environments")
    database = PostgresDatabase(url, host_id=host_id, private_folder=private, environment=environment, person=person, for_lease=for_lease)
    return Ledger(database, root)
