"""Recurring tasks in the ledger: due slots, pause and unpause, manual runs, and usage."""

from collections.abc import Callable, Sequence
from itertools import takewhile

from backburner.core import recurring
from backburner.core.errors import BadInput, LedgerUnavailable, StaleTask
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Entry, Task
from backburner.core.states import PauseKind, TaskEvent, TaskState
from backburner.store.parameters import groups, places
from backburner.store.rows import ENTRY, entry_of, plain, task_row
from backburner.store.run_folders import leave_to_hosts

if TYPE_CHECKING:
    from backburner.core.schedule import Plan
    from backburner.core.store_ports import LiveWork
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter
    from backburner.store.pending_triggers import PendingTriggers
    from backburner.store.recurring_activation import RecurringActivation
    from backburner.store.run_endings import RunEndings
    from backburner.store.run_writer import RunWriter
    from backburner.store.task_reader import TaskReader
    from backburner.store.task_transitions import TaskTransitions
    from backburner.store.usage import Usage

Decide = Callable[[Entry], "tuple[Plan, str | None]"]
_TASKS_AT_ONCE = 500
_COUNTED_MS = 2 * 86_400_000  # covers one day in any time zone


class RecurringRepository:
    """Tasks that run on a schedule, on an event, or after other tasks."""

    def __init__(
        self,
        db: "Database",
        live: "LiveWork",
        reader: "TaskReader",
        events: "EventWriter",
        transitions: "TaskTransitions",
        activation: "RecurringActivation",
        runs: "RunWriter",
        usage: "Usage",
        pending: "PendingTriggers",
        endings: "RunEndings",
    ) -> None:
        self._live = live
        self._db, self._reader, self._events, self._transitions, self._activation = db, reader, events, transitions, activation
        self._runs, self._usage, self._pending, self._endings = runs, usage, pending, endings

    def list(self) -> Sequence[Entry]:
        """Every recurring task that has a next slot."""
        return [entry_of(row) for row in self._db.execute(f"{ENTRY} WHERE t.next_run_at IS NOT NULL ORDER BY t.seq")]

    def fire(self, decide: Decide, now: int, folder: str) -> int:
        """Process all due slots: advance the task, add its run, and add a row for each skipped slot; one transaction per group of tasks.

        Returns how many tasks were advanced. Tasks that wait for their previous run before catching up on another slot are not counted.
        """
        if (due := self._live.next_slot_at()) is None or due > now:
            return 0
        advanced = 0
        last = -1, 0
        due_now = "t.next_run_at IS NOT NULL AND t.next_run_at <= ? AND (t.next_run_at, t.seq) > (?, ?)"
        select = f"SELECT t.task_id, t.next_run_at, t.seq FROM tasks t WHERE {due_now} ORDER BY t.next_run_at, t.seq LIMIT ?"
        while rows := self._db.execute(select, (now, *last, _TASKS_AT_ONCE)):
            with self._db.transaction():
                for task_id, _, _ in rows:
                    entry = self._reader.get(task_id)
                    if entry.task.recurring.next_run_at is None or entry.task.recurring.next_run_at > now:
                        continue  # another engine processed it first
                    try:
                        plan, over = decide(entry)
                    except LedgerUnavailable:
                        raise
                    except Exception as error:  # an unreadable schedule must not stop the other tasks
                        text = f"{recurring.title(entry.task)} is paused: its schedule cannot be read ({error})."
                        self._transitions.pause(entry.task, f"its schedule cannot be read: {error}", now, text)
                        continue
                    if plan.next != entry.task.recurring.next_run_at:
                        self._fire(entry, plan, over, now, folder)
                        advanced += 1
            last = rows[-1][1:]
        return advanced

    def check_name(self, name: str | None, project: str, except_task: str = "") -> None:
        """BadInput if another open recurring task of the project has this name."""
        self._activation.check_name(name, project, except_task)

    def replan(self, task_id: str, due: int, now: int) -> None:
        """Move the next slot back to `due` because the clock was set back: skipped slots that are in the future again are removed."""
        with self._db.transaction():
            task = self._reader.get(task_id).task
            if task.recurring.next_run_at is None or task.recurring.next_run_at <= due:
                return
            remaining = self._counted_before(task, now)
            self._db.write("DELETE FROM runs WHERE task_id = ? AND n < 0 AND cause = 'schedule' AND slot > ?", (task_id, now))
            if remaining and remaining[0] not in self._processed_slots(task_id, remaining[0], remaining[0]):
                self._runs.skip(task, [remaining], now, cause="schedule")
            move = "UPDATE tasks SET next_run_at = ? WHERE task_id = ? AND next_run_at = ?"
            if not self._db.write(move, (due, task_id, task.recurring.next_run_at)):
                raise StaleTask(task_id=task_id)
            self._events.write(now, "task_replanned", task_id, None, before=task.recurring.next_run_at, after=due)

    def has_run(self, task_id: str, slot: int) -> bool:
        """Whether a slot has a run."""
        ran = "SELECT 1 FROM runs WHERE task_id = ? AND slot = ? AND cause = 'schedule' AND n > 0"
        return bool(self._db.one(ran, (task_id, slot)))

    def edit(self, before: Task, after: Task, changed: Sequence[str], now: int, max_active: int) -> Entry:
        """Replace what a task is by what a person has changed; `changed` names that for the event. StaleTask if it is no longer as `before`.

        A new schedule counts from now on. A current run is not affected.
        """
        with self._db.transaction(by_person=True):
            task = self._recurring_task(before.task_id)
            if (task.spec, task.state) != (before.spec, before.state):
                raise StaleTask(task_id=task.task_id)
            edited = task._replace(kind=after.kind, spec=after.spec, decision=after.decision)  # it may have run in the meantime
            old, new = task_row(task), task_row(edited)
            changes = {name: plain(value) for name, value in new.items() if value != old[name]}
            if changes:
                assignments = ", ".join(f"{name} = ?" for name in changes)
                self._db.write(f"UPDATE tasks SET {assignments} WHERE task_id = ?", (*changes.values(), task.task_id))
            if edited.spec.schedule != task.spec.schedule and edited.state == TaskState.ACTIVE:
                self._activation.activate(edited, now, max_active)
            approved = after.decision != before.decision
            data = {"by": after.decision.by, "via": after.decision.via} if approved else {}
            self._events.write(now, "task_edited", task.task_id, None, changed=list(changed), **data)
        return self._reader.get(before.task_id)

    def pause(self, task_id: str, because: str, now: int) -> Entry:
        """Start no more runs of a task until it is unpaused; an active run continues."""
        with self._db.transaction():
            self._transitions.pause(self._recurring_task(task_id), because, now)
        return self._reader.get(task_id)

    def unpause(self, task_id: str, now: int, max_active: int, folder: str = "tasks") -> Entry:
        """Continue with the next slot. Resets the count of failures, and the daily usage if the budget had paused the task.

        An active task whose budget is used up, but which no slot has paused yet, may use the same amount again.
        """
        task = self._recurring_task(task_id)
        is_extended = task.recurring.pause_kind == PauseKind.BUDGET or self._usage.daily_budget_exceeded(task, now) is not None
        with self._db.transaction(by_person=is_extended):
            task = self._recurring_task(task_id)
            if task.state == TaskState.ACTIVE and (reason := self._usage.daily_budget_exceeded(task, now)):
                self._db.write("UPDATE tasks SET counted_from = ? WHERE task_id = ?", (now, task_id))
                self._events.write(now, "budget_extended", task_id, None, because=reason)
                return self._reader.get(task_id)
            task = self._transitions.apply(task, TaskEvent.UNPAUSED, now)
            counted_from = now if task.recurring.pause_kind == PauseKind.BUDGET else task.recurring.counted_from
            self._db.write(
                "UPDATE tasks SET failures = 0, paused_because = NULL, pause_kind = NULL, counted_from = ? WHERE task_id = ?",
                (counted_from, task_id),
            )
            self._activation.activate(task, now, max_active)
            self._db.write("UPDATE runs SET blocked = 0 WHERE task_id = ? AND state = 'pending'", (task_id,))
            entry = self._reader.get(task_id)
            if task.spec.source and not entry.is_live:
                self._pending.start_run(entry.task, folder, now)
        return self._reader.get(task_id)

    def run_now(self, task_id: str, now: int, folder: str) -> Entry:
        """Add a manual run; the schedule does not change. Fails while another run is active."""
        with self._db.transaction():
            self._recurring_task(task_id)
            entry = self._reader.get(task_id)
            if entry.task.state not in (TaskState.ACTIVE, TaskState.PAUSED):
                raise BadInput(f"Task {task_id} is {entry.status}; only active or paused tasks can be run.")
            if reason := self._usage.daily_budget_exceeded(entry.task, now):
                raise BadInput(
                    f"{recurring.title(entry.task)} cannot run: {reason}. To allow the same amount again: backburner unpause {task_id}"
                )
            if entry.is_live and entry.run:
                raise BadInput(f"Task {task_id} already has a run that is {entry.run.state}: {entry.run.run_id}")
            self._runs.add_recurring(entry.task, folder, now, cause="manual")
        return self._reader.get(task_id)

    def usage(self, task_id: str | None, since: int, until: int | None = None) -> dict[str, float]:
        """Usage of a task, or of all recurring tasks, since a time: tokens, cost, seconds and number of runs."""
        return self._usage.total(task_id, since, until)

    def clock_set_back(self, now: int) -> None:
        """Adjust to a clock that was set back: delayed runs keep their remaining delay, counted from the new time."""
        with self._db.transaction():
            self._db.write(
                "UPDATE runs SET due_at = ? + (due_at - created_at), created_at = ? WHERE state = 'pending' AND cause <> '' AND created_at > ?"
                " AND due_at IS NOT NULL",
                (now, now, now),
            )
            self._db.write("UPDATE tasks SET counted_from = ? WHERE counted_from > ?", (now, now))

    def daily_budget_exceeded(self, task: Task, now: int) -> str | None:
        """Which daily budget a task has used up; None if it has not."""
        return self._usage.daily_budget_exceeded(task, now)

    def compact(self, before: int, now: int, task_ids: Sequence[str] | None = None, limit: int | None = None) -> Sequence[str]:
        """Delete old runs of recurring tasks, except the latest of each and those that a budget still counts; returns their folders.

        A run without a folder, such as a skipped slot, counts as an empty text. Without `task_ids`, at most `limit` runs are deleted.
        """
        old = (
            "SELECT r.run_id, r.folder, r.host FROM runs r JOIN tasks t ON t.task_id = r.task_id AND t.schedule <> '{}'"
            " WHERE r.ended_at < ? AND r.n <> t.run_count AND (r.ended_at < ? OR r.usage = '{}' AND t.budget = '{}')"
        )
        values = before, now - _COUNTED_MS
        with self._db.transaction():
            if task_ids is None:
                rows = self._db.execute(old if limit is None else f"{old} LIMIT {limit}", values)
            else:
                named = [(f"{old} AND t.task_id IN ({places(group)})", (*values, *group)) for group in groups(task_ids)]
                rows = [row for select, which in named for row in self._db.execute(select, which)]
            for run_id, _, _ in rows:
                self._db.write("DELETE FROM runs WHERE run_id = ?", (run_id,))
            if rows:
                self._events.write(now, "runs_compacted", None, None, runs=len(rows))
            leave_to_hosts(self._db, ((folder, host) for _, folder, host in rows))
        return [folder for _, folder, _ in rows]

    def _fire(self, entry: Entry, plan: "Plan", over: str | None, now: int, folder: str) -> None:
        from backburner.core.schedule import delay

        task = entry.task
        # After the clock was set back, some slots have been processed before.
        processed = self._processed_slots(task.task_id, task.recurring.next_run_at or 0, now)
        plan = plan._replace(run=None if plan.run in processed else plan.run)
        skipped = [(slot, reason, 0) for slot, reason in plan.skipped if slot not in processed]
        if plan.uncounted and skipped:
            skipped[0] = (*skipped[0][:2], plan.uncounted)
        # A task that runs only once is not skipped: it waits for the user's answer.
        if over is not None and plan.run is not None and task.spec.schedule.at is None:
            skipped.append((plan.run, over, 0))
        self._runs.skip(task, skipped, now, cause="schedule")
        fired = task.recurring.fired + (plan.run is not None and over is None)
        schedule = task.spec.schedule
        following = None if schedule.max_runs is not None and fired >= schedule.max_runs else plan.next
        advanced = self._db.write(
            "UPDATE tasks SET next_run_at = ?, fired = ? WHERE task_id = ? AND next_run_at = ?",
            (following, fired, task.task_id, task.recurring.next_run_at),
        )
        if not advanced:
            raise StaleTask(task_id=task.task_id)
        task = task._replace(recurring=task.recurring._replace(next_run_at=following, fired=fired))
        if over is not None and plan.run is not None:
            self._transitions.pause_over_budget(task, over, now)
        elif plan.run is not None:
            late = delay(schedule, task.task_id, plan.run)
            due_at = plan.run + late if late and plan.run + late > now else None
            self._runs.add_recurring(task, folder, now, cause="schedule", slot=plan.run, due_at=due_at)
        elif following is None and not entry.is_live:
            self._endings.finish(task, TaskEvent.DONE, now)

    def _processed_slots(self, task_id: str, first: int, last: int) -> set[int]:
        between = "SELECT slot FROM runs WHERE task_id = ? AND cause = 'schedule' AND slot BETWEEN ? AND ?"
        return {slot for (slot,) in self._db.execute(between, (task_id, first, last))}

    def _counted_before(self, task: Task, now: int) -> tuple[int, str, int] | None:
        """Skipped slots before `now` that are counted only in a row of a future slot, which will be deleted: as a row for the last of them."""
        from backburner.core.schedule import latest, slots

        shared = "task_id = ? AND n < 0 AND cause = 'schedule' AND slot > ? AND skipped_before > 0"
        row = self._db.one(f"SELECT slot, error, skipped_before FROM runs WHERE {shared} ORDER BY slot LIMIT 1", (task.task_id, now))
        schedule = task.spec.schedule
        if not row or (last := latest(schedule, now)) is None:
            return None
        future = sum(1 for _ in takewhile(lambda slot: slot < row[0], slots(schedule, now)))
        left = row[2] - future
        return (last, row[1], left - 1) if left > 0 else None

    def _recurring_task(self, task_id: str) -> Task:
        task = self._reader.get(task_id).task
        if not task.is_recurring:
            raise BadInput(f"Task {task_id} has no schedule; only recurring tasks can be paused or run manually.")
        return task
