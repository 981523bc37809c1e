"""Adds runs to tasks: first runs, further runs, and rows for skipped slots. Runs inside the caller's transaction."""

import os
from collections.abc import Sequence

from backburner.core import ids, trace_context
from backburner.core.errors import StaleTask
from backburner.core.light_typing import TYPE_CHECKING, Any
from backburner.core.models import ENGINE, ProcessId, Run, RunCause, Task
from backburner.core.queues import at, is_queue
from backburner.core.random_ids import random_id
from backburner.core.states import Result, RunEvent, RunState, advance
from backburner.store.rows import new_run_row

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter


class RunWriter:
    """Adds pending and skipped runs."""

    def __init__(self, db: "Database", events: "EventWriter") -> None:
        self._db, self._events = db, events

    def count_up(self, task: Task) -> Task:
        """Increment the run count of a task; the run itself is added afterwards."""
        run_count = task.run_count + 1
        counted = "UPDATE tasks SET run_count = ? WHERE task_id = ? AND run_count = ?"
        if not self._db.write(counted, (run_count, task.task_id, task.run_count)):
            raise StaleTask(task_id=task.task_id)
        return task._replace(run_count=run_count)

    def add(
        self,
        task: Task,
        runner: str,
        folder: str,
        now: int,
        *,
        blocked: bool = False,
        due_at: int | None = None,
        message: str | None = None,
        cause: str = "",
        slot: int | None = None,
        origin: str | None = None,
        payload: str | None = None,
        owner: ProcessId | None = None,
    ) -> Run:
        """Add the run that `task.run_count` already counts: pending, or with an `owner` as claimed by it.

        A `runner` without a place is for the place of the task.
        """
        run_id = ids.run_id(task.task_id, task.run_count)
        runner = at(runner, task.place)
        run = Run(
            run_id=run_id,
            task_id=task.task_id,
            n=task.run_count,
            state=advance(RunState.PENDING, RunEvent.CLAIMED) if owner else RunState.PENDING,
            folder=os.path.join(folder, run_id),
            process_tag=random_id(),
            trace_id=task.trace.trace_id or trace_context.new_trace_id(),
            span_id=trace_context.new_span_id(),
            runner=runner,
            created_at=now,
            owner=owner,
            started_at=now if owner else None,
            priority=task.spec.order.priority,
            blocked=blocked,
            due_at=due_at,
            message=message,
            sandbox=task.decision.sandbox,
            host="" if not self._db.host_id or is_queue(runner) else self._db.host_id,
            cause=RunCause(cause, slot, origin, payload),
        )
        self._db.insert("runs", new_run_row(run))
        if owner:
            self._events.write(now, RunEvent.CLAIMED, task.task_id, run_id)
        return run

    def add_recurring(self, task: Task, folder: str, now: int, *, cause: str, due_at: int | None = None, **fields: Any) -> Run:
        """Add one more run of a recurring task: for the engine if it has a command, otherwise for the lane of its agent."""
        runner = ENGINE if task.spec.command.words else task.lane
        message = task.spec.prompt if task.spec.agent_name is not None else None
        return self.add(self.count_up(task), runner, folder, now, due_at=due_at, message=message, cause=cause, **fields)

    def skip(self, task: Task, skipped: Sequence[tuple[int, str, int]], now: int, *, cause: str, origin: str | None = None) -> None:
        """Add a row for each skipped slot, with its reason and the number of earlier slots that the row also stands for."""
        lowest = self._db.one("SELECT min(n) FROM runs WHERE task_id = ? AND n < 0", (task.task_id,))[0] or 0
        empty = {"process_tag": "", "trace_id": task.trace.trace_id, "span_id": "", "folder": "", "runner": ENGINE, "usage": "{}"}
        for offset, (slot, reason, before) in enumerate(skipped, 1):
            n = lowest - offset
            identity = {
                "run_id": ids.run_id(task.task_id, n),
                "task_id": task.task_id,
                "n": n,
                "cause": cause,
                "slot": slot,
                "origin": origin,
            }
            state = {"state": RunState.SKIPPED, "result": Result.UNSTARTED, "error": reason, "created_at": now, "ended_at": now}
            self._db.insert("runs", {**empty, **identity, **state, "skipped_before": before})
        if skipped:
            first, last = skipped[0], skipped[-1]
            self._events.write(now, RunEvent.SKIPPED, task.task_id, None, slots=len(skipped), first=first[0], last=last[0], reason=last[1])
