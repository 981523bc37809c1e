"""Finds and lists tasks, runs, events and traces. Writes nothing: an overdue proposal is shown as expired; the engine records that."""

from collections.abc import Sequence

from backburner.coordination.supervision import EngineSupervisor
from backburner.core.errors import AmbiguousId, BadInput, BatchNotFound, NoTasks, SpanNotFound, TaskNotFound
from backburner.core.ids import is_later_run, outside_id
from backburner.core.light_typing import TYPE_CHECKING, Any
from backburner.core.models import SANDBOX, Batch, Caller, Clock, Entry, Run
from backburner.core.states import LIVE, RunState, TaskState
from backburner.system.paths import project_of

if TYPE_CHECKING:
    from backburner.core.events import Event, Span
    from backburner.core.store_ports import EventStore, LedgerQueries

_EVENTS_PER_PAGE = 1000
_OPEN = (*sorted(LIVE), TaskState.PROPOSED, TaskState.ACTIVE, TaskState.PAUSED)
_MAX_OPEN = 1000  # of each status

_MAX_RUNS = 100_000


class Queries:
    """Reads tasks. `find` and `list` first make sure that all live runs have an owner."""

    def __init__(self, ledger_queries: "LedgerQueries", event_store: "EventStore", supervisor: EngineSupervisor, clock: Clock) -> None:
        self._ledger_queries, self._event_store, self._supervisor, self._clock = ledger_queries, event_store, supervisor, clock

    def find(self, reference: str, caller: Caller) -> Entry:
        """Return the one task that matches `reference`: an id, a unique part of an id, a label (its newest task), or `last`."""
        self._supervisor.ensure_supervised()
        found = self._ledger_queries.find(reference, project_of(caller.cwd))
        entries = [entry for entry in map(self.get_or_none, found) if entry]
        if not entries:
            raise NoTasks(task_id=reference) if reference == "last" else TaskNotFound(task_id=reference)
        if len(entries) > 1:
            raise AmbiguousId(reference=reference, candidates=[f"{entry.task.task_id} ({entry.status})" for entry in entries])
        return entries[0]

    def find_run(self, reference: str, caller: Caller) -> tuple[Entry, Run]:
        """The run that a reference names by its id, or the latest run of the task that it names."""
        entry = self.find(reference, caller)
        if entry.run is None:
            raise TaskNotFound(task_id=f"{entry.task.task_id} (run)")
        if not is_later_run(reference, entry.task.task_id) or entry.run.run_id == reference:
            return entry, entry.run
        for found in self.history(entry, _MAX_RUNS):
            if found.run_id == reference:
                return entry, found
        raise TaskNotFound(task_id=reference)

    def find_question(self, reference: str, caller: Caller) -> Entry:
        """Like `find`, for an answer: for a command that failed in its sandbox, return the open offer to run it without."""
        entry = self.find(reference, caller)
        if not entry.run or entry.run.end.problem != SANDBOX:
            return entry
        offer = self.get_or_none(outside_id(entry.task.task_id))
        return offer if offer and offer.status == TaskState.PROPOSED else entry

    def get(self, task_id: str) -> Entry:
        """Return the task with exactly this id, directly from the ledger; raises TaskNotFound."""
        if (entry := self.get_or_none(task_id)) is None:
            raise TaskNotFound(task_id=task_id)
        return entry

    def get_or_none(self, task_id: str) -> Entry | None:
        """Return the task with exactly this id; None if it does not exist or was cleared."""
        entry = self._ledger_queries.get(task_id)
        return entry and self.as_of_now(entry)

    def list(
        self,
        caller: Caller,
        *,
        status: str | None = None,
        everywhere: bool = False,
        batch: str | None = None,
        limit: int | None = None,
        recurring: bool = False,
        quiet: bool = True,
    ) -> Sequence[Entry]:
        """Return the tasks of the caller's project, newest first; with `everywhere`, of all projects.

        A batch is also found in other projects. `recurring` returns only recurring tasks. `quiet` hides chats and successful commands
        that recurring tasks started.
        """
        known = {*map(str, RunState), *map(str, TaskState)}
        if status is not None and status not in known:
            raise BadInput(f"Unknown status '{status}'. Valid values: {', '.join(sorted(known))}.")
        self._supervisor.ensure_supervised()
        if everywhere:
            project = None
        elif batch is not None:
            project = self._project_of_batch(batch, caller)
        else:
            project = project_of(caller.cwd)

        def read(stored: str | None, max_count: int | None) -> list[Entry]:
            hide = quiet and status is None and batch is None
            entries = self._ledger_queries.list(
                status=stored, project=project, batch=batch, limit=max_count, recurring=recurring, quiet=hide
            )
            return [self.as_of_now(entry) for entry in entries]

        if status not in (TaskState.PROPOSED, TaskState.EXPIRED):
            return read(status, limit)
        # Whether a proposal is still open depends on the clock, so it is decided here and not in the ledger.
        entries = read(TaskState.PROPOSED, None) + (read(status, limit) if status == TaskState.EXPIRED else [])
        entries = [entry for entry in entries if entry.status == status]
        return entries if limit is None else entries[:limit]

    def open_and_recent(self, caller: Caller, *, everywhere: bool = False, limit: int) -> Sequence[Entry]:
        """Return the newest `limit` tasks, and older ones that have not ended; without chats."""
        entries = {entry.task.task_id: entry for entry in self.list(caller, everywhere=everywhere, limit=limit)}
        if len(entries) == limit:
            for status in _OPEN:
                for entry in self.list(caller, status=status, everywhere=everywhere, limit=_MAX_OPEN):
                    if not entry.task.in_chat:
                        entries.setdefault(entry.task.task_id, entry)
        return list(entries.values())

    def batches(self, caller: Caller, *, everywhere: bool = False) -> Sequence[Batch]:
        """Return the batches of the caller's project with the number of tasks in each status, oldest first."""
        self._supervisor.ensure_supervised()
        return self._ledger_queries.batches(None if everywhere else project_of(caller.cwd))

    def requested_by(self, session: str) -> Sequence[Entry]:
        """Return the tasks that a session submitted, including those that its agents submitted in turn."""
        return [entry for entry in map(self.get_or_none, self._ledger_queries.requested_by(session)) if entry]

    def descendants_of(self, session: str) -> set[str]:
        """Return the ids of the tasks that a session submitted, including those that its agents submitted in turn."""
        return set(self._ledger_queries.requested_by(session))

    def history(self, entry: Entry, limit: int = 10) -> Sequence[Run]:
        """Return the latest runs and skipped slots of a task, newest first."""
        return self._ledger_queries.history(entry.task.task_id, limit)

    def environment(self, entry: Entry) -> dict[str, str]:
        """Return the environment that a task was submitted with."""
        return self._ledger_queries.environment(entry.task.task_id)

    def events(self, after: int) -> "Sequence[Event]":
        """Return up to 1,000 events after the one with this id, oldest first; a negative `after` counts from the end."""
        return self._event_store.events(after, _EVENTS_PER_PAGE)

    def rejection(self, entry: Entry) -> "Event | None":
        """Return the event of the rejection of a task, whose data has `via` and `reason`; None if it was not rejected."""
        return self._event_store.rejection(entry.task.task_id) if entry.status == TaskState.REJECTED else None

    def events_of_kinds(self, kinds: Sequence[str], before: tuple[int, int], limit: int, *, since: int = 0) -> "Sequence[Event]":
        """Return events of some kinds, newest first, before a time and an event id."""
        return self._event_store.of_kinds(kinds, before, limit, since=since)

    def decided_steps(self, task_id: str) -> "Sequence[dict[str, Any]]":
        """Return the decisions on steps of a task, oldest first: when, by whom, answer and question."""
        names = ("by", "via", "answer", "question", "reason")
        return [{"at": event.at, **{name: event.data.get(name) for name in names}} for event in self._event_store.decisions(task_id)]

    def trace(self, reference: str | None, caller: Caller, *, span_id: str | None = None) -> "Sequence[Span]":
        """Return all spans of the trace that a task or a span belongs to."""
        trace_id = self._ledger_queries.trace_of(span_id) if span_id else self.find(reference or "last", caller).task.trace.trace_id
        if trace_id is None:
            raise SpanNotFound(span_id=span_id)
        return self._ledger_queries.spans(trace_id)

    def _project_of_batch(self, batch: str, caller: Caller) -> str | None:
        """Return the caller's project if it has a batch of that name; None (all projects) if only another one has."""
        here = project_of(caller.cwd)
        if self._ledger_queries.list(status=None, project=here, batch=batch, limit=1):
            return here
        if not self._ledger_queries.list(status=None, project=None, batch=batch, limit=1):
            raise BatchNotFound(batch=batch)
        return None

    def as_of_now(self, entry: Entry) -> Entry:
        """Return the entry with an overdue proposal shown as expired, even if the engine has not recorded that yet."""
        task = entry.task
        if task.state == TaskState.PROPOSED and task.expires_at is not None and task.expires_at <= self._clock():
            return entry._replace(task=task._replace(state=TaskState.EXPIRED))
        return entry
