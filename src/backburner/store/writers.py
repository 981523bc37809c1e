"""The repositories that write tasks and runs, and the parts they share: the end of a run involves all of them."""

from typing import TYPE_CHECKING

from backburner.store.claims import Claims
from backburner.store.dependencies import Dependencies
from backburner.store.environments import Environments
from backburner.store.event_writer import EventWriter
from backburner.store.notice_writer import NoticeWriter
from backburner.store.pending_triggers import PendingTriggers
from backburner.store.recurring import RecurringRepository
from backburner.store.recurring_activation import RecurringActivation
from backburner.store.recurring_endings import RecurringEndings
from backburner.store.run_endings import RunEndings
from backburner.store.run_queue import RunQueueRepository
from backburner.store.run_writer import RunWriter
from backburner.store.task_transitions import TaskTransitions
from backburner.store.tasks import TaskRepository
from backburner.store.triggers import TriggerRepository
from backburner.store.usage import Usage
from backburner.store.waiting_runs import WaitingRuns
from backburner.store.watched_tasks import WatchedTasks

if TYPE_CHECKING:
    from backburner.core.store_ports import LiveWork, RecurringStore, RunQueue, TaskStore, TriggerStore
    from backburner.store.database import Database
    from backburner.store.task_reader import TaskReader


class Writers:
    """Composes the repositories; nothing else does."""

    def __init__(self, db: "Database", root: str, reader: "TaskReader", live: "LiveWork") -> None:
        """`root` is the home directory, which contains the logs that notices refer to."""
        events, notices, environments = EventWriter(db), NoticeWriter(db), Environments(db)
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
        self.recurring: RecurringStore = RecurringRepository(
            db, live, reader, events, transitions, activation, runs, usage, pending, endings
        )
        self.triggers: TriggerStore = TriggerRepository(db, reader, events, watched, pending, endings)
