"""Ends runs inside the caller's transaction: state, event and notice, the next run, and the tasks that depend on it."""

import os
from collections.abc import Sequence

from backburner.core import recurring
from backburner.core.claims import RunResult
from backburner.core.errors import StaleRun
from backburner.core.formatting import agent_notice, describe_result, notice_text
from backburner.core.ids import outside_id
from backburner.core.light_typing import TYPE_CHECKING, Any
from backburner.core.models import DISCOVERY, SANDBOX, Decision, Entry, Run, Task
from backburner.core.queues import at, at_host, base_of, is_for_agents, place_of
from backburner.core.states import (
    Result,
    RunEvent,
    RunState,
    TaskEvent,
    TaskState,
    advance,
    event_between,
    restart_delay,
    task_event_for,
)
from backburner.core.task_spec import SourceKind
from backburner.store.dependencies import dependency_failed, failure_reason
from backburner.store.recurring_endings import EndedTask
from backburner.store.rows import new_task_row, plain

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.dependencies import Dependencies
    from backburner.store.event_writer import EventWriter
    from backburner.store.notice_writer import NoticeWriter
    from backburner.store.recurring_endings import RecurringEndings
    from backburner.store.run_writer import RunWriter
    from backburner.store.task_reader import TaskReader
    from backburner.store.task_transitions import TaskTransitions
    from backburner.store.waiting_runs import WaitingRuns

_OFFER_MS = 24 * 3_600_000  # how long a person can approve a command that failed because of the sandbox
_STEADY_MS = 60_000  # a run that lasted this long is not counted as a failed start
_ANY_DEPENDENT = """
    SELECT 1 FROM dependencies WHERE after_id = ? UNION ALL SELECT 1 FROM chains WHERE after_id = ?
    UNION ALL SELECT 1 FROM runs WHERE wait_target = ? AND state = 'waiting'
"""


class RunEndings:
    """Ends runs and tasks, and applies all consequences."""

    def __init__(
        self,
        db: "Database",
        root: str,
        reader: "TaskReader",
        events: "EventWriter",
        notices: "NoticeWriter",
        transitions: "TaskTransitions",
        runs: "RunWriter",
        waiting: "WaitingRuns",
        dependencies: "Dependencies",
        recurring_endings: "RecurringEndings",
    ) -> None:
        self._db, self._root, self._reader, self._events, self._notices = db, root, reader, events, notices
        self._transitions, self._runs, self._waiting = transitions, runs, waiting
        self._dependencies, self._recurring = dependencies, recurring_endings

    def end(self, entry: Entry, ending: RunResult) -> None:
        """Write the end of a run and apply all its consequences."""
        for ended in self._write(entry, ending):
            self.follow_up(ended.task_id, ended.state, ending.ended_at)

    def run_again(self, entry: Entry, ending: RunResult) -> str:
        """Write the end of a run of a task that may run twice, and add its next run; nobody is notified. Returns the next run."""
        task, run = entry
        assert run is not None
        event, now, folder = event_between(run.state, ending.state), ending.ended_at, os.path.dirname(run.folder)
        self._write_run(run, ending)
        cause: dict[str, Any] = {"slot": run.cause.slot, "origin": run.cause.origin, "payload": run.cause.payload}
        if task.is_recurring:
            added = self._runs.add_recurring(task, folder, now, cause="retry", **cause)
        else:
            added = self._runs.add(self._runs.count_up(task), base_of(run.runner) or run.runner, folder, now, message=run.message, **cause)
        self._events.write(now, event, task.task_id, run.run_id, result=ending.result, error=ending.error, run_again=added.run_id)
        return added.run_id

    def finish(self, task: Task, event: TaskEvent, now: int) -> None:
        """End a recurring task without the end of a run."""
        ended = self._recurring.finish(task, event, now)
        self.follow_up(ended.task_id, ended.state, now)

    def end_watcher(self, task: Task, now: int) -> None:
        """End the task that runs the watch command of a task that will not run."""
        self._recurring.end_watcher(task, now)

    def follow_up(self, task_id: str, state: TaskState, now: int) -> None:
        """Process the dependents of a task that has ended, recursively."""
        if not self._db.one(_ANY_DEPENDENT, (task_id, task_id, task_id)):
            return
        self._recurring.pause_followers(EndedTask(task_id, state), now)
        ended = [EndedTask(task_id, state)]
        while ended:
            after_id, state = ended.pop(0)
            self._waiting.continue_after(after_id, now)
            for dependent in self._dependencies.dependents(after_id):
                entry = self._reader.get(dependent)
                if state == TaskState.DONE:
                    self._dependencies.completed(dependent, after_id)
                elif entry.run and entry.run.state == RunState.PENDING:
                    ended += self._write(entry, dependency_failed(entry, failure_reason(after_id, str(state)), now))

    def _write(self, entry: Entry, ending: RunResult) -> Sequence[EndedTask]:
        """Write state, event and notice of an ended run. Returns the tasks that ended with it; none if it will run again."""
        task, run = entry
        assert run is not None
        agent_asked = True
        if task.has_precheck and not is_for_agents(run.runner):
            if recurring.precheck_triggers_agent(task, ending) and run.cancel_requested_at is None:
                self._continue_with_agent(task, run, ending)
                return []
            if ending.state == RunState.COMPLETED or recurring.precheck_declined(task, ending):
                agent_asked, ending = False, ending._replace(state=RunState.COMPLETED, summary="nothing new; the agent was not asked")
        source = task.spec.source
        if source and source.kind is SourceKind.POLL and source.compare == "exit" and ending.result == Result.EXIT:
            ending = ending._replace(state=RunState.COMPLETED, digest=str(ending.exit_code))  # the exit code is the result that is compared
        event = event_between(run.state, ending.state)
        self._write_run(run, ending)
        if task.is_recurring:
            return self._recurring.run_ended(task, run, event, ending, agent_asked=agent_asked)
        failures, delay = self._restart(task, run, ending)
        reached = None
        if delay is None and task.kind == "oneshot":
            reached = self._transitions.apply(task, task_event_for(ending.state), ending.ended_at).state
        data = {"result": ending.result, "exit_code": ending.exit_code, "summary": ending.summary}
        restarts = {"restarts_in_ms": delay} if delay is not None else {}
        self._events.write(ending.ended_at, event, task.task_id, run.run_id, **data, **restarts)
        if delay is not None:
            folder, due_at = os.path.dirname(run.folder), ending.ended_at + delay
            self._runs.add(self._runs.count_up(task), run.runner, folder, ending.ended_at, due_at=due_at, origin=run.cause.origin)
            return []
        if task.session != DISCOVERY or ending.state != RunState.COMPLETED:  # what discovery finds is proposed, with a notice of its own
            self._notices.write(task, run, self._text(task, run, ending, failures), ending.ended_at)
        if ending.problem == SANDBOX:
            self._offer(task, ending)
        return [EndedTask(task.task_id, reached)] if reached else []

    def _offer(self, task: Task, ending: RunResult) -> None:
        """Propose the same command without a sandbox; it runs only if a person approves it."""
        offer_id = outside_id(task.task_id)
        if self._reader.find(offer_id):
            return
        order = task.spec.order._replace(key=None, after=(), start_at=None)
        offer = task._replace(
            task_id=offer_id,
            state=TaskState.PROPOSED,
            created_at=ending.ended_at,
            spec=task.spec._replace(order=order),
            decision=Decision((ending.error or "",), SANDBOX),
            run_count=0,
            restarted_from=task.task_id,
            retrieved_at=None,
            expires_at=ending.ended_at + _OFFER_MS,
        )
        copied = self._db.one("SELECT client, environment_id FROM tasks WHERE task_id = ?", (task.task_id,))
        self._db.insert("tasks", {**new_task_row(offer), "client": copied[0], "environment_id": copied[1]})
        self._events.write(ending.ended_at, "task_proposed", offer_id, None, rule=SANDBOX, reasons=list(offer.decision.reasons))

    def _write_run(self, run: Run, ending: RunResult) -> None:
        changed = self._db.write(
            "UPDATE runs SET state = ?, result = ?, exit_code = ?, error = ?, summary = ?, lines = ?, blocked = 0, process = coalesce(?, process),"
            " ended_at = CASE WHEN started_at > ? THEN started_at ELSE ? END, usage = ?, problem = ?, notes = ?, wait_kind = NULL, wait_target = NULL WHERE run_id = ? AND state = ?",
            (ending.state, ending.result, ending.exit_code, ending.error, ending.summary, ending.lines, plain(ending.process))
            + (
                ending.ended_at,
                ending.ended_at,
                plain(ending.usage),
                ending.problem,
                "\n".join(ending.notes) or None,
                ending.run_id,
                run.state,
            ),
        )
        if not changed:
            raise StaleRun(run_id=ending.run_id)

    def _continue_with_agent(self, task: Task, run: Run, ending: RunResult) -> None:
        """Requeue the run for the agent, because the pre-check command decided that the agent is needed."""
        after = advance(run.state, RunEvent.PASSED_TO_AGENT)
        changed = self._db.write(
            "UPDATE runs SET state = ?, runner = ?, owner = NULL, process = NULL, started_at = NULL, digest = ? WHERE run_id = ? AND state = ?",
            (after, at(at_host(task.lane, run.host), place_of(run.runner)), ending.digest, run.run_id, run.state),
        )
        if not changed:
            raise StaleRun(run_id=run.run_id)
        self._events.write(ending.ended_at, RunEvent.PASSED_TO_AGENT, task.task_id, run.run_id, summary=ending.summary)

    def _restart(self, task: Task, run: Run, ending: RunResult) -> tuple[int, int | None]:
        """How many times in a row a task with restarts has failed, and the delay in milliseconds before it runs again (None: not again)."""
        ended_alone = ending.state == RunState.FAILED and ending.result in (Result.EXIT, Result.SIGNAL)
        if not task.spec.command.restarts or not ended_alone or run.cancel_requested_at is not None:
            return 0, None
        failures = 0
        latest_first = "SELECT started_at, ended_at FROM runs WHERE task_id = ? ORDER BY n DESC"
        for started, ended in self._db.execute(latest_first, (task.task_id,)):
            failures += 1
            if ended - started >= _STEADY_MS:
                break
        return failures, restart_delay(task.spec.command.restarts, failures)

    def _text(self, task: Task, run: Run, ending: RunResult, failures: int) -> str:
        outcome = ""
        if ending.state != RunState.COMPLETED:
            agent = task.spec.agent_name is not None
            outcome = describe_result(ending.result, ending.exit_code, ending.error, task.spec.timeout_ms, agent=agent)
        if failures > 1:
            outcome += f", {failures} times in a row"
        if task.spec.agent_name is not None:
            return agent_notice(task, run.n, ending.state, outcome, ending.answer)
        log = "" if self._db.host_id else os.path.join(self._root, run.folder, "output.log")
        if ending.problem == SANDBOX:
            outcome += f"; {ending.error}. A person can run it without the sandbox: backburner approve {outside_id(task.task_id)}"
        return notice_text(task.task_id, ending.state, outcome, ending.summary, log, ending.artifacts, ending.notes, ending.output)
