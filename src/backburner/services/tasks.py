"""Cancels and clears tasks, and writes to the input of running commands."""

import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from backburner.coordination.publisher import Publisher
from backburner.core.errors import BadInput, NotRunning, WaitTimedOut
from backburner.core.ids import is_later_run
from backburner.core.models import EXTERNAL, Caller, Clock, Entry, Run
from backburner.core.queues import is_for_agents
from backburner.core.sessions import session_of
from backburner.core.states import RunState, TaskState
from backburner.services.identity import Identity
from backburner.services.proposals import Proposals
from backburner.services.queries import Queries
from backburner.services.refusals import DELETED, Refusals
from backburner.services.retention import Retention
from backburner.services.runs import Runs
from backburner.services.waiting import Waiting
from backburner.system.processes import end_all, is_alive, members

if TYPE_CHECKING:
    from backburner.core.store_ports import EventStore, TaskStore

_AGENT_STOP_TIMEOUT = 10.0
_SESSION_END_TIMEOUT = 30.0


class Tasks:
    """Actions on submitted tasks."""

    def __init__(
        self,
        task_store: "TaskStore",
        event_store: "EventStore",
        queries: Queries,
        runs: Runs,
        waiting: Waiting,
        retention: Retention,
        proposals: Proposals,
        refusals: Refusals,
        identity: Identity,
        publisher: Publisher,
        clock: Clock,
    ) -> None:
        self._task_store, self._event_store, self._queries, self._runs = task_store, event_store, queries, runs
        self._waiting, self._retention = waiting, retention
        self._proposals, self._refusals, self._identity = proposals, refusals, identity
        self._publisher, self._clock = publisher, clock

    def cancel(self, reference: str, caller: Caller, *, permanent: bool = False) -> Entry:
        """Cancel a pending task, or request that a running one be stopped; use `wait` to know when all its processes are gone.

        With `permanent`, agents may not submit a recurring task again.
        """
        entry = self._queries.find(reference, caller)
        only_run = entry.task.is_recurring and is_later_run(reference, entry.task.task_id)
        if only_run and not (entry.is_live and entry.run and entry.run.run_id == reference):
            raise NotRunning(task_id=reference, status="over")
        if entry.has_ended or (entry.run and entry.run.runner == EXTERNAL):
            raise NotRunning(task_id=entry.task.task_id, status=entry.status)
        waiting = entry.run if entry.run and entry.run.state == RunState.WAITING and is_for_agents(entry.run.runner) else None
        entry = self._task_store.request_cancel(entry.task.task_id, self._clock(), only_run=only_run)
        self._publisher.publish(entry)
        if waiting:
            _stop_external_agent(waiting)
        if permanent and not only_run:
            self._refusals.record(entry.task, DELETED)
        if entry.task.spec.source_kind == "command" and not only_run:  # its helper task was created for it
            self._task_store.request_cancel(entry.task.spec.order.after[0], self._clock())
        if entry.task.spec.agent_name is not None:
            self._reject_questions_of(entry)
        return entry

    def _reject_questions_of(self, entry: Entry) -> None:
        """Reject the open proposals of a cancelled agent, because it no longer waits for them."""
        turn = entry.run.run_id if entry.task.in_chat and entry.run else None  # other tasks of a chat continue
        for requested in self._queries.requested_by(session_of(entry.task)):
            if requested.status == TaskState.PROPOSED and turn in (None, requested.task.parent_run):
                self._publisher.publish(self._task_store.refuse(requested.task.task_id, expired=False, now=self._clock()))

    def clear(
        self,
        references: Iterable[str],
        caller: Caller,
        *,
        ended: bool = False,
        batch: str | None = None,
        everywhere: bool = False,
    ) -> Sequence[str]:
        """Delete finished tasks and their folders: those given, those of a batch, or all finished ones. Returns their ids."""
        named = [self._queries.find(reference, caller) for reference in references]
        entries = list({entry.task.task_id: entry for entry in named}.values())
        for entry in entries:
            if not entry.has_ended:
                raise BadInput(f"Task {entry.task.task_id} is {entry.status}; only finished tasks can be cleared.")
        if ended or batch is not None:
            entries += self._queries.list(caller, everywhere=everywhere, batch=batch)
        if any(entry.status == TaskState.EXPIRED for entry in entries):
            self._proposals.expire_overdue()
        return self._retention.forget([entry.task.task_id for entry in entries if entry.has_ended])

    def end_session(self, session: str) -> Sequence[str]:
        """Cancel and delete the tasks that a session submitted, except recurring tasks; returns their ids."""
        entries = [entry for entry in self._queries.requested_by(session) if not entry.task.is_recurring]
        for entry in entries:
            if not entry.has_ended:
                self._publisher.publish(self._task_store.request_cancel(entry.task.task_id, self._clock()))
        task_ids = [entry.task.task_id for entry in entries]
        live = [task_id for task_id in task_ids if (entry := self._queries.get_or_none(task_id)) and entry.is_live]
        with contextlib.suppress(WaitTimedOut):
            self._waiting.wait(live, _SESSION_END_TIMEOUT)
        return self._retention.forget(
            [task_id for task_id in task_ids if (entry := self._queries.get_or_none(task_id)) and entry.has_ended]
        )

    def send(self, reference: str, data: bytes, caller: Caller, *, end: bool = False) -> Entry:
        """Write to the standard input of a command that was started with `--stdin`; with `end`, close the input afterwards."""
        from backburner.system.stdin_pipe import close_stdin, write_stdin

        entry = self._queries.find(reference, caller)
        if not entry.is_live or entry.run is None:
            raise NotRunning(task_id=entry.task.task_id, status=entry.status)
        if not entry.task.spec.command.stdin:
            raise BadInput(f"Task {entry.task.task_id} accepts no input: it was not started with `run --stdin`.")
        self._identity.require_own(entry.task, "send to", caller)
        if remote := self._runs.remote(entry.run.run_id):
            remote.send(data, end=end)
        else:
            folder, starting = self._runs.folder(entry), entry.run.process is None
            if data:
                write_stdin(folder, data, entry.task.task_id, starting=starting)
            if end:
                close_stdin(folder, entry.task.task_id, starting=starting)
        self._event_store.append("input_sent", entry.task.task_id, entry.run.run_id, self._clock(), bytes=len(data), end=end)
        return entry


def _stop_external_agent(run: Run) -> None:
    """Stop an external agent that was kept alive for a waiting run: after up to 10 s for a clean exit, it is killed."""
    deadline = time.monotonic() + _AGENT_STOP_TIMEOUT
    while members(run.process, run.process_tag) and is_alive(run.owner) and time.monotonic() < deadline:
        time.sleep(0.05)
    end_all(run.process, run.process_tag)
