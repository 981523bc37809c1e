"""Trigger events of a task that have no run yet. They are kept, and one run handles all of them."""

import json

from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Task
from backburner.core.states import TaskState

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.run_writer import RunWriter
    from backburner.store.task_reader import TaskReader
    from backburner.store.task_transitions import TaskTransitions
    from backburner.store.usage import Usage

_MAX_WAITING = 20  # trigger events that are kept in full while a run is active; further ones are only counted


class PendingTriggers:
    """Trigger events that wait for a run. Runs inside the caller's transaction."""

    def __init__(self, db: "Database", reader: "TaskReader", usage: "Usage", transitions: "TaskTransitions", runs: "RunWriter") -> None:
        self._db, self._reader, self._usage, self._transitions, self._runs = db, reader, usage, transitions, runs

    def ensure_row(self, task_id: str) -> None:
        """Create the row for the source of a task if it is missing."""
        self._db.write("INSERT INTO source_states (task_id) VALUES (?) ON CONFLICT DO NOTHING", (task_id,))

    def add(self, task_id: str, payload: dict[str, object]) -> None:
        """Keep a trigger event for the next run."""
        self.ensure_row(task_id)
        stored = self._db.one("SELECT waiting FROM source_states WHERE task_id = ?", (task_id,))[0]
        waiting = json.loads(stored or '{"events": [], "more": 0}')
        if len(waiting["events"]) < _MAX_WAITING:
            waiting["events"].append(payload)
        else:
            waiting["more"] += 1
        self._db.write("UPDATE source_states SET waiting = ? WHERE task_id = ?", (json.dumps(waiting), task_id))

    def start_run(self, task: Task, folder: str, now: int) -> None:
        """Add one run for all waiting trigger events; pauses the task instead if it has used up its daily budget."""
        row = self._db.one("SELECT waiting FROM source_states WHERE task_id = ? AND waiting IS NOT NULL", (task.task_id,))
        if not row or task.state != TaskState.ACTIVE:
            return
        if reason := self._usage.daily_budget_exceeded(task, now):
            self._transitions.pause_over_budget(task, reason, now)
            return
        self._db.write("UPDATE source_states SET waiting = NULL WHERE task_id = ?", (task.task_id,))
        self._db.write("UPDATE tasks SET fired = fired + 1 WHERE task_id = ?", (task.task_id,))
        self._runs.add_recurring(self._reader.get(task.task_id).task, folder, now, cause="event", payload=row[0])
