"""Standing tasks at the Runtime: what is usual for them, pausing and going on, runs out of turn, looking back, and a person's turn."""

import contextlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from backburner.core.errors import BadInput, IllegalTransition, LedgerUnavailable
from backburner.core.models import AGENTS, DISCOVERY, LOCAL, Entry, PersonsTurn, Run, Submission, Task, session_of
from backburner.core.recurring import used_up
from backburner.core.settings import Config, agent_settings, is_local
from backburner.core.states import PauseKind, TaskState
from backburner.core.terminal_text import visible
from backburner.services.conversations import Dialogue
from backburner.system import run_files as folders
from backburner.system import wakeups as wake
from backburner.system.processes import myself

if TYPE_CHECKING:
    from backburner.core.ports import Store

_DAY_MS = 86_400_000
_TIME_SEEN = "time_seen"  # the cursor of clean-ups: the time that the clock said at the last one
_SOURCES = {"file": "path", "command": "command", "github": "repo", "webhook": "name"}  # with what tells which one it is


def over_all(store: "Store", config: Config, task: Task, now: int) -> str | None:
    """What all standing tasks together have used up today; None where there is something left, or this one uses nothing."""
    if task.agent is None:
        return None
    from backburner.core.schedule import Schedule, day_of

    since = max(day_of(Schedule.of(task.schedule), now), task.counted_from or 0)
    for name in ("tokens", "cost"):
        if (most := config.number(f"tasks.max_{name}_per_day")) and (spent := store.spent(None, since, now)[name]) >= most:
            return used_up(spent, most, name, "all standing tasks together have")
    return None


class Timetable(Dialogue):
    """The verbs for tasks that run by a schedule or after others."""

    def _usual(self, submission: Submission) -> Submission:
        """What a standing task gets where nothing was said."""
        timeout = submission.timeout_ms or self.config.whole("tasks.task_timeout_ms")
        return submission._replace(timeout_ms=timeout, notify=submission.notify or "on_change")

    def _kind(self, submission: Submission) -> str:
        if not submission.standing or "at" in submission.schedule:
            return "oneshot"
        return "event" if submission.after or submission.source.get("kind") in _SOURCES else "scheduled"

    def _lane(self, submission: Submission) -> str:
        """Where its agent's model answers: one on this machine has a lane of its own."""
        if submission.agent is None:
            return ""
        standing, model = submission.standing or submission.session == DISCOVERY, str(submission.terms.get("model") or "")
        return LOCAL if is_local(agent_settings(self.config, submission.agent, standing=standing, model=model)) else AGENTS

    def explain(self, task: Task | Submission, *, upcoming: bool = True) -> str:
        """When a standing task runs, in plain words; with its next time unless nothing is `upcoming`."""
        from backburner.core.schedule import Schedule, explain

        if about := _SOURCES.get(task.source.get("kind", "")):
            return f"each time when {task.source['kind']} {visible(task.source[about])} changes" + " or is called" * (about == "name")
        if isinstance(task, Task) and task.kind == "event":
            return f"each time after {', '.join(task.after)}"
        if isinstance(task, Submission) and task.after:
            return f"each time after {', '.join(task.after)}"
        return explain(Schedule.of(task.schedule), self.clock(), task.next_run_at if isinstance(task, Task) else None, upcoming=upcoming)

    def pause(self, reference: str) -> Entry:
        """Run a standing task no more until it is unpaused. A run at work goes on."""
        entry = self.store.pause(self.show(reference).task.task_id, "a person or an agent paused it", self.clock())
        if entry.task.source.get("kind") == "command":
            with contextlib.suppress(IllegalTransition):
                self.store.pause(entry.task.after[0], f"{entry.task.task_id} is paused", self.clock())
        wake.ring_all(self.home.bells)
        return entry

    def unpause(self, reference: str, *, via: str) -> Entry:
        """Let a paused task go on. Where it had used up what it may, that is a person's yes to as much again."""
        task = self.show(reference).task
        if task.state == TaskState.PAUSED and task.pause_kind == PauseKind.BUDGET:
            self.require_person(via)
        return self._unpause(task)

    def _unpause(self, task: Task) -> Entry:
        entry = self.store.unpause(task.task_id, self.clock(), self.config.whole("tasks.max_active"), self.home.tasks)
        if task.source.get("kind") == "command":
            with contextlib.suppress(IllegalTransition):
                self.store.unpause(task.after[0], self.clock(), self.config.whole("tasks.max_active"))
        self._publish(entry)
        return entry

    def run_now(self, reference: str) -> Entry:
        """One run out of turn; the schedule stays as it is. Not where a budget of the day is used up."""
        task = self.show(reference).task
        if reason := over_all(self.store, self.config, task, self.clock()):
            raise BadInput(f"{reason}; see [tasks] in config.toml.")
        entry = self.store.run_now(self.show(reference).task.task_id, self.clock(), self.home.tasks)
        self._publish(entry)
        return entry

    def history(self, entry: Entry, limit: int = 10) -> Sequence[Run]:
        """The latest runs of a task and the slots that were skipped, newest first."""
        return self.store.history(entry.task.task_id, limit)

    def spent(self, task: Task) -> dict[str, float]:
        """What a standing task has used today, as far as it counts."""
        from backburner.core.schedule import Schedule, day_of

        now = self.clock()
        return self.store.spent(task.task_id, max(day_of(Schedule.of(task.schedule), now), task.counted_from or 0), now)

    def confirmed_time(self) -> int | None:
        """When this was asked last, once the clock has gone on for a day since then; None before that, or where it was set back.

        A clock that leaps ahead is believed only after a day in which nobody has set it back, so that nothing is deleted for it.
        """
        now, seen = self.clock(), self.store.cursor(_TIME_SEEN)
        if seen and seen <= now < seen + _DAY_MS:
            return None
        try:
            self.store.advance_cursor(_TIME_SEEN, now)
        except LedgerUnavailable:
            return None  # the disk is full, perhaps; there is another time
        return seen if 0 < seen < now else None

    def compact(self, references: Sequence[str] = (), days: float | None = None, *, as_of: int | None = None) -> int:
        """Forget runs of standing tasks that ended longer ago than the retention, but for the latest; how many folders went."""
        days = self.config.number("commands.retention_days") if days is None else days
        named = [self.show(reference).task.task_id for reference in references] or None
        now = self.clock() if as_of is None else as_of
        gone = self.store.compact(now - int(days * _DAY_MS), now, named)
        for folder in gone:
            folders.remove(self.home.folder(folder))
        return len(gone)

    @contextlib.contextmanager
    def turn(self, lane: str, task_id: str | None = None) -> Generator[None]:
        """A person waits for a model: background runs in its lane stand aside after their present tool call, and go on afterwards.

        What the task asks, and whom it asks in turn, belongs to the turn.
        """
        process = myself()
        self.store.begin_turn(PersonsTurn(process, lane, task_id, self.clock()))
        wake.ring_all(self.home.bells)
        try:
            yield
        finally:
            self.store.end_turn(process, self.clock())
            wake.ring_all(self.home.bells)

    def stands_aside(self, task: Task) -> bool:
        """Whether a person has a turn in the lane of an agent's task that it does not belong to."""
        turns = [turn for turn in self.store.turns() if turn.lane == task.lane]
        return bool(turns) and not any(self._of_turn(turn, task) for turn in turns)

    def _of_turn(self, turn: PersonsTurn, task: Task) -> bool:
        """Whether a person waits for this one, or for whoever asked for it."""
        own = self.store.show(turn.task_id) if turn.task_id else None
        return own is not None and (own.task.task_id == task.task_id or task.task_id in self.store.asked_by(session_of(own.task)))

    def stop_asked(self, task: Task) -> None:
        """Stop the commands that a run of a standing task started: its time is up, and nobody waits for them."""
        for entry in self._asked_by(session_of(task)) if task.standing else ():
            if entry.live and entry.task.agent is None:
                self._publish(self.store.request_cancel(entry.task.task_id, self.clock()))
