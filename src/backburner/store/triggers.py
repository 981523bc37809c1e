"""Trigger events of sources: the state of each source, the runs that events start, and received webhooks."""

import json
from collections.abc import Sequence

from backburner.core import recurring
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Task
from backburner.core.states import TaskEvent, TaskState
from backburner.core.task_spec import SourceKind

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter
    from backburner.store.pending_triggers import PendingTriggers
    from backburner.store.run_endings import RunEndings
    from backburner.store.task_reader import TaskReader
    from backburner.store.watched_tasks import WatchedTasks

_RECEIVED_KEPT_MS = 7 * 86_400_000
_MAX_PAYLOAD_CHARACTERS = 64 << 10


class TriggerRepository:
    """The sources of tasks and their trigger events."""

    def __init__(
        self,
        db: "Database",
        reader: "TaskReader",
        events: "EventWriter",
        watched: "WatchedTasks",
        pending: "PendingTriggers",
        endings: "RunEndings",
    ) -> None:
        self._db, self._reader, self._events, self._watched, self._pending, self._endings = db, reader, events, watched, pending, endings

    def watched_tasks(self) -> Sequence[Task]:
        """The tasks whose sources the integrations process watches."""
        return self._watched.find()

    def source_state(self, task_id: str) -> dict[str, object]:
        """The stored state of a source: what it saw last."""
        row = self._db.one("SELECT state FROM source_states WHERE task_id = ?", (task_id,))
        return json.loads(row[0]) if row else {}

    def mark_broken(self, task_id: str, reason: str | None, now: int) -> None:
        """Record why a source cannot be watched, so that `status` can show it; None if it can be watched again."""
        with self._db.transaction(durable=False):
            self._pending.ensure_row(task_id)
            self._db.write("UPDATE source_states SET broken = ? WHERE task_id = ?", (reason, task_id))
            if reason:
                self._events.write(now, "source_broken", task_id, None, reason=reason)

    def broken_sources(self) -> dict[str, str]:
        """Why sources cannot be watched, by task id."""
        return dict(self._db.execute("SELECT task_id, broken FROM source_states WHERE broken IS NOT NULL"))

    def record(
        self,
        task_id: str,
        state: dict[str, object] | None,
        payload: dict[str, object] | None,
        now: int,
        folder: str,
        delivery: str = "",
        *,
        hold: bool = False,
    ) -> bool:
        """Store the new state of a source, and start a run for what it saw, in one transaction.

        While a run is active, or with `hold`, the event waits and is combined with later ones. False if this delivery was received before.
        """
        with self._db.transaction():
            entry = self._reader.get(task_id)
            if delivery and not self._receive(_name_of(entry.task), set(delivery.split("\n")), now):
                return False
            self._pending.ensure_row(task_id)
            if state is not None:
                self._db.write("UPDATE source_states SET state = ?, broken = NULL WHERE task_id = ?", (json.dumps(state), task_id))
            if payload is None or entry.task.state not in (TaskState.ACTIVE, TaskState.PAUSED):
                return True
            if recurring.is_over(entry.task, now) and not entry.is_live:
                self._endings.finish(entry.task, TaskEvent.DONE, now)
                return True
            if len(text := json.dumps(payload)) > _MAX_PAYLOAD_CHARACTERS:
                payload = {"summary": payload.get("summary"), "text": text[:_MAX_PAYLOAD_CHARACTERS], "cut": True}
            self._events.write(now, "source_event", task_id, None, summary=payload.get("summary"))
            self._pending.add(task_id, payload)
            if not entry.is_live and not hold:
                self._pending.start_run(entry.task, folder, now)
            return True

    def task_of_webhook(self, name: str) -> Task | None:
        """The active task of the webhook with this name."""
        return next((task for task in self.watched_tasks() if task.spec.source_kind is SourceKind.WEBHOOK and _name_of(task) == name), None)

    def _receive(self, webhook: str, deliveries: set[str], now: int) -> bool:
        """Record deliveries of a webhook; False if one of them was received before."""
        if any(
            self._db.one("SELECT 1 FROM received_webhooks WHERE webhook = ? AND delivery = ?", (webhook, delivery))
            for delivery in deliveries
        ):
            return False
        for delivery in deliveries:
            self._db.write("INSERT INTO received_webhooks (webhook, delivery, at) VALUES (?, ?, ?)", (webhook, delivery, now))
        self._db.write("DELETE FROM received_webhooks WHERE at < ?", (now - _RECEIVED_KEPT_MS,))
        return True


def _name_of(task: Task) -> str:
    """The name of a task's webhook."""
    return task.spec.source.target if task.spec.source else task.task_id
