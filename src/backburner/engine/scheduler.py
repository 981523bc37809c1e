"""The clock of standing tasks: deals with every slot that is due, and says how long there is until the next.

It keeps nothing in memory that matters. Slots are advanced and claimed in the ledger in one transaction before anything runs, so that
whatever dies, none is run twice and none is forgotten; one that is not run leaves a row that says why.
"""

import contextlib

from backburner.coordination.config_file import ConfigFile
from backburner.core.formatting import local_time
from backburner.core.models import Clock, Entry, Run, Task
from backburner.core.schedule import Plan, plan, slots
from backburner.core.states import RunState
from backburner.core.store_ports import LiveWork, RecurringStore
from backburner.services.budgets import daily_limit_reached

_SET_BACK_MS = 1000  # a clock that goes back by less is being trimmed


class Scheduler:
    """`tick()` fires what is due. The engine calls it whenever it wakes."""

    def __init__(self, recurring: RecurringStore, live_work: LiveWork, folder: str, clock: Clock, config: ConfigFile) -> None:
        self._recurring, self._live_work, self._folder = recurring, live_work, folder
        self._clock, self._config = clock, config
        self._seen: int | None = None
        self.moved = 0  # how many tasks went on at the last tick

    def tick(self) -> float | None:
        """Fire every slot that is due; the seconds until it is to be called again, None where nothing is scheduled."""
        config, now = self._config.current, self._clock()
        if not config.flag("tasks.enabled"):
            return None
        if self._seen is None or now < self._seen - _SET_BACK_MS:
            self._replan(now)
        self._seen = now
        self.moved = 0
        while moved := self._recurring.fire(lambda entry: self._decide(entry, now), now, self._folder):
            self.moved += moved
        if self._live_work.next_slot_at() is None:
            return None
        due, longest = self._live_work.next_slot_at(now), config.number("tasks.tick_interval_ms") / 1000
        return longest if due is None else min(longest, max(0.0, (due - self._clock()) / 1000))

    def _decide(self, entry: Entry, now: int) -> tuple[Plan, str | None]:
        """What becomes of the slots of one task, and why it is to be paused, where it is."""
        task = entry.task
        assert task.recurring.next_run_at is not None
        schedule = task.spec.schedule
        made = plan(schedule, task.recurring.next_run_at, now, busy=_busy(entry.run) if entry.is_live and entry.run else None)
        if made.run is None:
            return made, None
        return made, self._recurring.daily_budget_exceeded(task, now) or daily_limit_reached(
            self._recurring, self._config.current, task, now
        )

    def _replan(self, now: int) -> None:
        """After a start, and where the clock was set back: no task waits for a moment that is further away than its next slot."""
        self._recurring.clock_set_back(now)
        for task, _ in self._recurring.list():
            with contextlib.suppress(Exception):  # one that cannot be read is dealt with when it is due
                self._replan_one(task, now)

    def _replan_one(self, task: Task, now: int) -> None:
        for slot in slots(task.spec.schedule, now):
            if task.recurring.next_run_at is None or slot >= task.recurring.next_run_at:
                break
            if not self._recurring.has_run(task.task_id, slot):
                self._recurring.replan(task.task_id, slot, now)
                break


def _busy(run: Run) -> str:
    """Why a slot is skipped while another run is under way."""
    if run.state == RunState.PENDING and run.cause.kind == "retry":
        return f"a retry is to come first, at {local_time(run.due_at)}"
    return f"the run before it ({run.run_id}) is still {run.state}"
