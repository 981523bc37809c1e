"""Records what the agent process does with its runs."""

import contextlib
from typing import TYPE_CHECKING

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.publisher import Publisher
from backburner.core.errors import LedgerUnavailable, StaleRun
from backburner.core.events import STEP_DECIDED
from backburner.core.models import Clock, ProcessId, Run, Task
from backburner.core.sessions import session_of
from backburner.services.queries import Queries
from backburner.system.processes import myself

if TYPE_CHECKING:
    from backburner.core.store_ports import EventStore, RunQueue, TaskStore


class AgentRuns:
    """Agent runs, as the agent process needs them."""

    def __init__(
        self,
        task_store: "TaskStore",
        run_queue: "RunQueue",
        event_store: "EventStore",
        queries: Queries,
        changes: ChangeFeed,
        publisher: Publisher,
        clock: Clock,
    ) -> None:
        self._task_store, self._run_queue, self._event_store, self._queries = task_store, run_queue, event_store, queries
        self._changes = changes
        self._publisher, self._clock = publisher, clock

    def record_process(self, run: Run, process: ProcessId) -> None:
        """Record the process of an external agent."""
        with contextlib.suppress(StaleRun, LedgerUnavailable):  # the process can also be found by its process tag
            self._run_queue.record_process(run.run_id, myself(), process)

    def record_step(self, run: Run, question: str, *, allowed: bool, reason: str) -> None:
        """Record that the gate decided on a step of an external agent without a person."""
        answer = "yes" if allowed else "no"
        with contextlib.suppress(LedgerUnavailable):  # it must not stop the agent
            self._event_store.append(
                STEP_DECIDED, run.task_id, run.run_id, self._clock(), by="gate", answer=answer, question=question, reason=reason
            )

    def rejection_reason(self, run: Run) -> str | None:
        """Return the reason that a person gave for rejecting the step that a run waited for; None if there is none."""
        if run.reply != "no":
            return None
        decided = [event for event in self._event_store.decisions(run.task_id) if event.data.get("by") == "user"]
        reason = decided[-1].data.get("reason") if decided else None
        return str(reason) if reason else None

    def resume_suspended(self, run_id: str) -> bool:
        """Continue a run that waited for approval of a step that is no longer requested; False if it is not waiting."""
        try:
            self._run_queue.resume_suspended(run_id, self._clock())
        except StaleRun:
            return False
        self._changes.announce()
        return True

    def cancel_commands_of(self, task: Task) -> None:
        """Cancel the commands that a run of a recurring task started, after the run timed out."""
        for entry in self._queries.requested_by(session_of(task)) if task.is_recurring else ():
            if entry.is_live and entry.task.spec.agent_name is None:
                self._publisher.publish(self._task_store.request_cancel(entry.task.task_id, self._clock()))
