"""The scheduler of recurring tasks: processes every due slot, and returns the time until the next one.

It keeps no important state in memory. A slot is advanced and its run is added in one transaction before anything starts, so that
after a crash no slot runs twice and none is lost. A slot that is skipped leaves a row with the reason.
"""

import contextlib

from backburner.coordination.config_file import ConfigFile
from backburner.core.formatting import local_time
from backburner.core.models import Clock, Entry, Run, Task
from backburner.core.schedule import Plan, plan, slots
from backburner.core.states import RunState
from backburner.core.store_ports import LiveWork, RecurringStore
from backburner.services.budgets import daily_limit_reached

_SET_BACK_MS = 1000  # a smaller step back is a normal clock correction


class Scheduler:
    """`tick()` fires the slots that are due. The engine calls it in every pass."""

    def __init__(self, recurring: RecurringStore, live_work: LiveWork, folder: str, clock: Clock, config: ConfigFile) -> None:
        self._recurring, self._live_work, self._folder = recurring, live_work, folder
        self._clock, self._config = clock, config
        self._last_now: int | None = None
        self.moved = 0  # how many tasks were advanced in the last tick

    def tick(self) -> float | None:
        """Fire every slot that is due. Returns the seconds until the next call is needed; None if nothing is scheduled."""
        config, now = self._config.current, self._clock()
        if not config.flag("tasks.enabled"):
            return None
        if self._last_now is None or now < self._last_now - _SET_BACK_MS:
            self._replan(now)
        self._last_now = now
        self.moved = 0
        while moved := self._recurring.fire(lambda entry: self._decide(entry, now), now, self._folder):
            self.moved += moved
        if self._live_work.next_slot_at() is None:
            return None
        due, max_wait = self._live_work.next_slot_at(now), config.number("tasks.tick_interval_ms") / 1000
        return max_wait if due is None else min(max_wait, max(0.0, (due - self._clock()) / 1000))

    def _decide(self, entry: Entry, now: int) -> tuple[Plan, str | None]:
        """What to do with the due slots of one task, and why the task must be paused (None if it must not)."""
        task = entry.task
        assert task.recurring.next_run_at is not None
        schedule = task.spec.schedule
        decided = plan(schedule, task.recurring.next_run_at, now, busy=_busy(entry.run) if entry.is_live and entry.run else None)
        if decided.run is None:
            return decided, None
        return decided, self._recurring.daily_budget_exceeded(task, now) or daily_limit_reached(
            self._recurring, self._config.current, task, now
        )

    def _replan(self, now: int) -> None:
        """After a start, and after the clock was set back: move each task's due time to its next slot if that is earlier."""
        self._recurring.clock_set_back(now)
        for task, _ in self._recurring.list():
            with contextlib.suppress(Exception):  # an unreadable schedule is handled when it is due
                self._replan_one(task, now)

    def _replan_one(self, task: Task, now: int) -> None:
        for slot in slots(task.spec.schedule, now):
            if task.recurring.next_run_at is None or slot >= task.recurring.next_run_at:
                break
            if not self._recurring.has_run(task.task_id, slot):
                self._recurring.replan(task.task_id, slot, now)
                break


def _busy(run: Run) -> str:
    """Why a slot is skipped while another run is active."""
    if run.state == RunState.PENDING and run.cause.kind == "retry":
        return f"a retry is pending, at {local_time(run.due_at)}"
    return f"the previous run ({run.run_id}) is still {run.state}"
