"""Lists of tasks for overviews of all projects: pages with filters, the sections of a board, and counts. Writes nothing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from backburner.coordination.supervision import EngineSupervisor
from backburner.core.models import Clock, Entry
from backburner.core.states import PauseKind, RunState, TaskState
from backburner.core.task_filter import DecisionFilter, Listed, Page, TaskFilter
from backburner.services.queries import Queries

if TYPE_CHECKING:
    from backburner.core.events import Event
    from backburner.core.store_ports import TaskPages

MAX_ROWS = 200  # of a section that may be cut
_MAX_LIVE = 5000
_RECENT_MS = 86_400_000


class Board(NamedTuple):
    """The sections of a board. Only `recent` is limited to the newest; `counts` has the true numbers."""

    needs_you: Sequence[Listed]
    running: Sequence[Listed]
    queued: Sequence[Listed]
    next: Sequence[Listed]
    recent: Page
    ended: Mapping[str, int]
    last_event: int


class Overview:
    """Reads many tasks at once, from all projects."""

    def __init__(self, pages: "TaskPages", queries: Queries, supervisor: EngineSupervisor, clock: Clock) -> None:
        self._pages, self._queries, self._supervisor, self._clock = pages, queries, supervisor, clock

    def page(self, wanted: TaskFilter, before: str | None = None, limit: int = 100) -> Page:
        """Return one page of the tasks that match, newest first."""
        self._supervisor.ensure_supervised()
        found = self._pages.page(wanted, before, limit, count=True)
        return found._replace(items=[self._as_of_now(item) for item in found.items])

    def listed(self, task_ids: Sequence[str]) -> Sequence[Listed]:
        """Return the tasks with these ids that still exist."""
        return [self._as_of_now(item) for item in self._pages.listed(task_ids)]

    def board(self, wanted: TaskFilter) -> Board:
        """Return what runs, waits for a person, is queued, comes next and has ended, of all projects or as `wanted` says."""
        self._supervisor.ensure_supervised()
        last_event = self._pages.last_event()  # first: what changes while the sections are read is sent again by a stream
        waiting = self._read(wanted._replace(statuses=("proposed",)))
        live = self._read(wanted._replace(live=True))
        recurring = self._read(wanted._replace(recurring=True, statuses=("active", "paused")))
        found = {item.entry.task.task_id: item for item in (*waiting, *live, *recurring)}
        items = [item for item in found.values() if item.entry.status != TaskState.EXPIRED]
        needs_you = [item for item in items if needs_person(item.entry)]
        rest = [item for item in items if not needs_person(item.entry)]
        queued = [item for item in rest if _run_state(item.entry) is RunState.PENDING and not item.entry.task.is_recurring]
        running = [item for item in rest if item not in queued and item.entry.is_live and (_run_state(item.entry) is not RunState.PENDING)]
        upcoming = [item for item in rest if item not in running and item not in queued]
        recent = self._pages.page(wanted._replace(ended=True, quiet=True), None, MAX_ROWS)
        return Board(
            sorted(needs_you, key=lambda item: item.seq),
            sorted(running, key=lambda item: (item.entry.run and item.entry.run.started_at) or 0),
            sorted(queued, key=lambda item: item.seq),
            sorted(upcoming, key=lambda item: (item.entry.task.recurring.next_run_at is None, item.entry.task.recurring.next_run_at or 0)),
            recent,
            self._pages.ended_since(self._clock() - _RECENT_MS),
            last_event,
        )

    def counts(self) -> dict[str, int]:
        """Return how many runs are running and queued, and how many tasks wait for a person."""
        live = self._pages.live_counts()
        waiting = [*self._read(TaskFilter(statuses=("proposed",))), *self._read(TaskFilter(recurring=True, statuses=("paused",)))]
        if live.get(RunState.WAITING):
            waiting += self._read(TaskFilter(live=True))
        needs_you = {item.entry.task.task_id for item in waiting if needs_person(item.entry)}
        running = live.get(RunState.RUNNING, 0) + live.get(RunState.RESUMED, 0)
        return {"running": running, "queued": live.get(RunState.PENDING, 0), "needs_you": len(needs_you)}

    def projects(self) -> Mapping[str, int]:
        """Return the number of tasks of each project."""
        return self._pages.projects()

    def clients(self) -> Sequence[str]:
        """Return the clients that submitted tasks; people are `you`."""
        return [client or "you" for client in self._pages.clients()]

    def last_event(self) -> int:
        """Return the id of the newest event."""
        return self._pages.last_event()

    def events_after(self, event_id: int) -> Sequence[tuple[int, str, str | None]]:
        """Return the id, the kind and the task of each event after the one with this id, oldest first."""
        return self._pages.events_after(event_id)

    def events_of(self, task_id: str, limit: int) -> "Sequence[Event]":
        """Return the latest events of a task, oldest first."""
        return self._pages.events_of(task_id, limit)

    def same_command(self, entry: Entry, limit: int = 5) -> Sequence[Entry]:
        """Return the latest other tasks with the same command in the same folder that were allowed or approved."""
        return self._pages.same_command(entry.task, limit) if entry.task.spec.command.words else []

    def decided(self, wanted: DecisionFilter, before: tuple[int, int], limit: int) -> Sequence[Listed]:
        """Return tasks in the order of their decisions, newest first, before a time and the number of a task."""
        return [self._as_of_now(item) for item in self._pages.decided(wanted, before, limit)]

    def _read(self, wanted: TaskFilter) -> Sequence[Listed]:
        return [self._as_of_now(item) for item in self._pages.page(wanted, None, _MAX_LIVE).items]

    def _as_of_now(self, item: Listed) -> Listed:
        return item._replace(entry=self._queries.as_of_now(item.entry))


def needs_person(entry: Entry) -> bool:
    """Return whether a task waits for the answer of a person: a proposal, a step, or a budget."""
    if entry.run and entry.run.state == RunState.WAITING:
        return entry.run.wait is None or entry.run.wait.is_for_person
    if entry.task.state == TaskState.PAUSED:
        return entry.task.recurring.pause_kind is PauseKind.BUDGET
    return entry.task.state == TaskState.PROPOSED


def _run_state(entry: Entry) -> RunState | None:
    return entry.run.state if entry.run else None
