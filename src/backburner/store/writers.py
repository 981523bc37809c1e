"""The repositories that write tasks and runs, and the parts they share: the end of a run involves all of them."""

from backburner.core.light_typing import TYPE_CHECKING
from backburner.store.claims import Claims
from backburner.store.dependencies import Dependencies
from backburner.store.environments import Environments
from backburner.store.event_writer import EventWriter
from backburner.store.notice_writer import NoticeWriter
from backburner.store.on_first_use import on_first_use
from backburner.store.recurring_activation import RecurringActivation
from backburner.store.run_writer import RunWriter
from backburner.store.task_transitions import TaskTransitions
from backburner.store.tasks import TaskRepository
from backburner.store.waiting_runs import WaitingRuns

if TYPE_CHECKING:
    from backburner.core.store_ports import DispatchStore, HostStore, LiveWork, RecurringStore, RunQueue, TaskStore, TriggerStore
    from backburner.store.database import Database
    from backburner.store.pending_triggers import PendingTriggers
    from backburner.store.run_endings import RunEndings
    from backburner.store.task_reader import TaskReader
    from backburner.store.usage import Usage


class Writers:
    """Composes the repositories; nothing else does. What is not needed to submit a task is imported on first use."""

    def __init__(self, db: "Database", root: str, reader: "TaskReader", live: "LiveWork") -> None:
        """`root` is the home directory, which contains the logs that notices refer to."""
        self._db, self._root, self._reader, self._live = db, root, reader, live
        self._events, self._notices, self._activation = EventWriter(db), NoticeWriter(db), RecurringActivation(db)
        environments = Environments(db)
        self._runs, self._waiting, self._dependencies = RunWriter(db, self._events), WaitingRuns(db, self._events), Dependencies(db, reader)
        self._transitions = TaskTransitions(db, self._events, self._notices)
        self._claims = Claims(db, self._events, environments)
        self.tasks: TaskStore = TaskRepository(
            db,
            reader,
            self._events,
            self._notices,
            environments,
            self._transitions,
            self._dependencies,
            self._activation,
            self._runs,
            self._claims,
            self._waiting,
            self._endings,
        )

    @on_first_use
    def runs(self) -> "RunQueue":
        from backburner.store.run_queue import RunQueueRepository

        return RunQueueRepository(self._db, self._reader, self._events, self._notices, self._claims, self._waiting, self._endings)

    @on_first_use
    def dispatch(self) -> "DispatchStore":
        from backburner.store.dispatch import DispatchRepository

        return DispatchRepository(self._db, self._claims)

    @on_first_use
    def hosts(self) -> "HostStore":
        from backburner.store.hosts import HostRepository

        return HostRepository(self._db, self._reader, self._events, self._notices, self._endings)

    @on_first_use
    def recurring(self) -> "RecurringStore":
        from backburner.store.recurring import RecurringRepository

        return RecurringRepository(
            self._db,
            self._live,
            self._reader,
            self._events,
            self._transitions,
            self._activation,
            self._runs,
            self._usage,
            self._pending,
            self._endings,
        )

    @on_first_use
    def triggers(self) -> "TriggerStore":
        from backburner.store.triggers import TriggerRepository
        from backburner.store.watched_tasks import WatchedTasks

        return TriggerRepository(self._db, self._reader, self._events, WatchedTasks(self._db), self._pending, self._endings)

    @on_first_use
    def _usage(self) -> "Usage":
        from backburner.store.usage import Usage

        return Usage(self._db)

    @on_first_use
    def _pending(self) -> "PendingTriggers":
        from backburner.store.pending_triggers import PendingTriggers

        return PendingTriggers(self._db, self._reader, self._usage, self._transitions, self._runs)

    @on_first_use
    def _endings(self) -> "RunEndings":
        from backburner.store.recurring_endings import RecurringEndings
        from backburner.store.run_endings import RunEndings

        db, root, reader, events, notices = self._db, self._root, self._reader, self._events, self._notices
        transitions, runs = self._transitions, self._runs
        recurring = RecurringEndings(db, root, reader, events, notices, transitions, runs, self._usage, self._pending)
        return RunEndings(db, root, reader, events, notices, transitions, runs, self._waiting, self._dependencies, recurring)
