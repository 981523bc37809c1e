"""The ledger of a home: its repositories over one database, put together here and nowhere else."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from backburner.store.claims import Claims
from backburner.store.deliveries import DeliveryRepository
from backburner.store.dependencies import Dependencies
from backburner.store.environments import Environments
from backburner.store.event_writer import EventWriter
from backburner.store.notice_writer import NoticeWriter
from backburner.store.pending_triggers import PendingTriggers
from backburner.store.queries import QueryRepository
from backburner.store.recurring import RecurringRepository
from backburner.store.recurring_activation import RecurringActivation
from backburner.store.recurring_endings import RecurringEndings
from backburner.store.run_endings import RunEndings
from backburner.store.run_queue import RunQueueRepository
from backburner.store.run_writer import RunWriter
from backburner.store.task_reader import TaskReader
from backburner.store.task_transitions import TaskTransitions
from backburner.store.tasks import TaskRepository
from backburner.store.usage import Usage
from backburner.store.waiting_runs import WaitingRuns
from backburner.store.watched_tasks import WatchedTasks

if TYPE_CHECKING:
    from backburner.core.store_ports import (
        DeliveryStore,
        EventStore,
        ExternalTaskStore,
        GrantStore,
        LedgerQueries,
        MemoryStore,
        NoticeStore,
        RecurringStore,
        RefusalStore,
        RunQueue,
        SessionStore,
        TaskStore,
        TriggerStore,
    )
    from backburner.store.database import Database


class Ledger:
    """The repositories of one home. Every verb of theirs is one transaction; all of them belong to one thread."""

    def __init__(self, database: "Database", root: str) -> None:
        """`root` is the home's folder, below which the logs are that notices point to."""
        self.database = database
        db = database
        reader, events, notices, environments = TaskReader(db), EventWriter(db), NoticeWriter(db), Environments(db)
        usage, watched, activation = Usage(db), WatchedTasks(db), RecurringActivation(db)
        runs, waiting, dependencies = RunWriter(db, events), WaitingRuns(db, events), Dependencies(db, reader)
        transitions = TaskTransitions(db, events, notices)
        claims = Claims(db, events, environments)
        pending = PendingTriggers(db, reader, usage, transitions, runs)
        recurring_endings = RecurringEndings(db, root, reader, events, notices, transitions, runs, usage, pending)
        endings = RunEndings(db, root, reader, events, notices, transitions, runs, waiting, dependencies, recurring_endings)

        self.tasks: TaskStore = TaskRepository(
            db, reader, events, notices, environments, transitions, dependencies, activation, runs, claims, waiting, endings
        )
        self.runs: RunQueue = RunQueueRepository(db, reader, events, notices, claims, waiting, endings)
        self.queries: LedgerQueries = QueryRepository(db, reader)
        self.recurring: RecurringStore = RecurringRepository(db, reader, events, transitions, activation, runs, usage, pending, endings)
        self.deliveries: DeliveryStore = DeliveryRepository(db, events, watched)
        self._reader, self._events, self._waiting = reader, events, waiting
        self._watched, self._pending, self._endings = watched, pending, endings

    # Most commands need none of the following: each is loaded when it is first used.

    @cached_property
    def events(self) -> "EventStore":
        from backburner.store.events import EventRepository

        return EventRepository(self.database, self._events)

    @cached_property
    def notices(self) -> "NoticeStore":
        from backburner.store.notices import NoticeRepository

        return NoticeRepository(self.database)

    @cached_property
    def triggers(self) -> "TriggerStore":
        from backburner.store.triggers import TriggerRepository

        return TriggerRepository(self.database, self._reader, self._events, self._watched, self._pending, self._endings)

    @cached_property
    def sessions(self) -> "SessionStore":
        from backburner.store.sessions import SessionRepository

        return SessionRepository(self.database, self._waiting)

    @cached_property
    def grants(self) -> "GrantStore":
        from backburner.store.grants import GrantRepository

        return GrantRepository(self.database, self._events)

    @cached_property
    def memory(self) -> "MemoryStore":
        from backburner.store.memory import MemoryRepository

        return MemoryRepository(self.database)

    @cached_property
    def refusals(self) -> "RefusalStore":
        from backburner.store.refusals import RefusalRepository

        return RefusalRepository(self.database)

    @cached_property
    def external_tasks(self) -> "ExternalTaskStore":
        from backburner.store.external_tasks import ExternalTaskRepository

        return ExternalTaskRepository(self.database, self._reader, self._events)

    def fold(self) -> None:
        """Write a log that the database may keep beside the ledger back into it, so that a copy of the ledger alone is whole."""
        self.database.fold()

    def check(self) -> Sequence[str]:
        """What the database itself finds wrong with the ledger; empty when it is sound."""
        return self.database.check()

    def close(self) -> None:
        self.database.close()


def open_ledger(path: str, *, setup_lock: str | None = None, vfs: str | None = None, exclusive: bool = False) -> Ledger:
    """Open the ledger file of a home, which is made or brought to the present schema where that is needed."""
    from backburner.store.sqlite import SqliteDatabase

    return Ledger(SqliteDatabase(path, vfs=vfs, exclusive=exclusive, setup_lock=setup_lock), os.path.dirname(path))
