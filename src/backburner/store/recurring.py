"""Standing tasks in the ledger: slots that are due, pausing and going on, runs out of turn, their history, and what they used up."""

import json
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from backburner.core import recurring as standing
from backburner.core.errors import BadInput, LedgerUnavailable
from backburner.core.models import TURN, Entry, PersonsTurn, ProcessId, Run, Task
from backburner.core.states import PauseKind, TaskEvent, TaskState
from backburner.store.conversations import Agents
from backburner.store.rows import ENTRY, RUN, entry_of, run_of

if TYPE_CHECKING:
    from backburner.core.schedule import Plan

Decide = Callable[[Entry], "tuple[Plan, str | None]"]
_MANY = 500
_COUNTED_MS = 2 * 86_400_000  # a day, in whatever zone


class Standing(Agents):
    """Verbs for tasks that run by a schedule or after others."""

    def _stand(self, task: Task, now: int, most_active: int) -> Entry:
        """A standing task that was approved just now: when it is due first, and what it comes after."""
        from backburner.core.schedule import Schedule, next_slot  # dates are slow to load, and most doors need none

        self._room(task, most_active)
        schedule = Schedule.of(task.schedule)
        due = next_slot(schedule, now) if task.kind != "event" else None
        if schedule.at is not None and task.fired == 0:
            due = schedule.at  # also where it is past: it was put off
        if schedule.max_runs is not None and task.fired >= schedule.max_runs:
            raise BadInput(f"It has run {task.fired} times, which is all it was to: backburner cancel {task.task_id}")
        if due is None and task.kind != "event":
            raise BadInput(f"Its time is over, and it would never be due again: backburner cancel {task.task_id}")
        self._db.execute("UPDATE tasks SET next_run_at = ?, expires_at = NULL WHERE task_id = ?", (due, task.task_id))
        if task.kind == "event" and task.after:
            self._db.execute(
                "INSERT INTO chains (task_id, after_id, changed) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (task.task_id, task.after[0], int(bool(task.source))),
            )
        return Entry(task._replace(next_run_at=due), None)

    def room(self, name: str | None, project: str, besides: str = "") -> None:
        """BadInput where another standing task of that name is open."""
        same = "schedule <> '{}' AND state IN ('proposed', 'active', 'paused') AND name = ? AND project = ? AND task_id <> ?"
        if other := self._one(f"SELECT task_id FROM tasks WHERE {same}", name, project, besides):
            raise BadInput(f"There is a standing task '{name}' here already: {other[0]}. Cancel it first: backburner cancel {other[0]}")

    def _room(self, task: Task, most_active: int) -> None:
        """Not too many at once, and none twice."""
        self.room(task.name, task.project, task.task_id)
        active = "SELECT count(*) FROM tasks WHERE schedule <> '{}' AND task_id <> ? AND state = 'active' AND kind <> 'oneshot'"
        if task.kind != "oneshot" and self._one(active, task.task_id)[0] >= most_active:
            raise BadInput(f"There are {most_active} active standing tasks already; pause or cancel one, or raise [tasks] max_active.")

    def next_slot_at(self, after: int = -1) -> int | None:
        """When the next standing task is due, after some moment."""
        return self._one("SELECT min(next_run_at) FROM tasks WHERE next_run_at IS NOT NULL AND next_run_at > ?", after)[0]

    def standing(self) -> Sequence[Entry]:
        """Every standing task that is due some time."""
        return [entry_of(row) for row in self._all(f"{ENTRY} WHERE t.next_run_at IS NOT NULL ORDER BY t.seq")]

    def fire(self, decide: Decide, now: int, folder: str) -> int:
        """Deal with slots that are due: advance the task, add the run, and a row for what is skipped; each task in one transaction.

        How many tasks went on; not those that wait for their run of before to make up for one more slot.
        """
        if (due := self.next_slot_at()) is None or due > now:
            return 0
        moved = 0
        last = -1, 0
        due_now = "t.next_run_at IS NOT NULL AND t.next_run_at <= ? AND (t.next_run_at, t.seq) > (?, ?)"
        select = f"SELECT t.task_id, t.next_run_at, t.seq FROM tasks t WHERE {due_now} ORDER BY t.next_run_at, t.seq LIMIT ?"
        while rows := self._all(select, now, *last, _MANY):
            with self._transaction():
                for task_id, _, _ in rows:
                    entry = self._entry(task_id)
                    if entry.task.next_run_at is None or entry.task.next_run_at > now:
                        continue  # another engine was quicker
                    try:
                        plan, over = decide(entry)
                    except LedgerUnavailable:
                        raise
                    except Exception as error:  # one that cannot be read must not stop the others
                        text = f"{standing.title(entry.task)} is paused: its schedule cannot be read ({error})."
                        self._pause(entry.task, f"its schedule cannot be read: {error}", now, text)
                        continue
                    if plan.next != entry.task.next_run_at:
                        self._fire(entry, plan, over, now, folder)
                        moved += 1
            last = rows[-1][1:]
        return moved

    def _fire(self, entry: Entry, plan: "Plan", over: str | None, now: int, folder: str) -> None:
        from backburner.core.schedule import Schedule, delay

        task = entry.task
        # Where the clock was set back, some were dealt with before.
        known = self._dealt_with(task.task_id, task.next_run_at or 0, now)
        plan = plan._replace(run=None if plan.run in known else plan.run)
        skipped = [(slot, reason, 0) for slot, reason in plan.skipped if slot not in known]
        if plan.uncounted and skipped:
            skipped[0] = (*skipped[0][:2], plan.uncounted)
        if over is not None and plan.run is not None and "at" not in task.schedule:  # once is not skipped: it waits for the answer
            skipped.append((plan.run, over, 0))
        self._skip(task, skipped, now, cause="schedule")
        fired = task.fired + (plan.run is not None and over is None)
        schedule = Schedule.of(task.schedule)
        following = None if schedule.max_runs is not None and fired >= schedule.max_runs else plan.next
        self._db.execute(
            "UPDATE tasks SET next_run_at = ?, fired = ? WHERE task_id = ? AND next_run_at = ?",
            (following, fired, task.task_id, task.next_run_at),
        )
        task = task._replace(next_run_at=following, fired=fired)
        if over is not None and plan.run is not None:
            self._pause_over(task, over, now)
        elif plan.run is not None:
            late = delay(schedule, task.task_id, plan.run)
            due_at = plan.run + late if late and plan.run + late > now else None
            self._run_again(task, folder, now, cause="schedule", slot=plan.run, due_at=due_at)
        elif following is None and not entry.live:
            self._finish(task, TaskEvent.DONE, now)

    def _dealt_with(self, task_id: str, first: int, last: int) -> set[int]:
        between = "task_id = ? AND cause = 'schedule' AND slot BETWEEN ? AND ?"
        return {slot for (slot,) in self._all(f"SELECT slot FROM runs WHERE {between}", task_id, first, last)}

    def replan(self, task_id: str, due: int, now: int) -> None:
        """The clock was set back: what it skips lies in the future after all, and is due when it comes."""
        with self._transaction():
            task = self._entry(task_id).task
            if task.next_run_at is None or task.next_run_at <= due:
                return
            early = self._counted_before(task, now)
            self._db.execute("DELETE FROM runs WHERE task_id = ? AND n < 0 AND cause = 'schedule' AND slot > ?", (task_id, now))
            if early and early[0] not in self._dealt_with(task_id, early[0], early[0]):
                self._skip(task, [early], now, cause="schedule")
            self._db.execute("UPDATE tasks SET next_run_at = ? WHERE task_id = ?", (due, task_id))
            self._event(now, "task_replanned", task_id, None, before=task.next_run_at, after=due)

    def _counted_before(self, task: Task, now: int) -> tuple[int, str, int] | None:
        """What a row that goes, because it lies in the future, has counted of slots that do not: as a row for the last of them."""
        from backburner.core.schedule import Schedule, latest, slots

        shared = "task_id = ? AND n < 0 AND cause = 'schedule' AND slot > ? AND skipped_before > 0"
        row = self._one(f"SELECT slot, error, skipped_before FROM runs WHERE {shared} ORDER BY slot LIMIT 1", task.task_id, now)
        schedule = Schedule.of(task.schedule)
        if not row or (last := latest(schedule, now)) is None:
            return None
        future = sum(1 for _ in takewhile(lambda slot: slot < row[0], slots(schedule, now)))
        left = row[2] - future
        return (last, row[1], left - 1) if left > 0 else None

    def set_back(self, now: int) -> None:
        """The clock was set back: what was put off is put off by as much from now on, not until the time of before."""
        with self._transaction():
            self._db.execute(
                "UPDATE runs SET due_at = ? + (due_at - created_at), created_at = ? WHERE state = 'pending' AND cause <> '' AND created_at > ?"
                " AND due_at IS NOT NULL",
                (now, now, now),
            )
            self._db.execute("UPDATE tasks SET counted_from = ? WHERE counted_from > ?", (now, now))

    def ran(self, task_id: str, slot: int) -> bool:
        """Whether a slot was run."""
        return bool(self._one("SELECT 1 FROM runs WHERE task_id = ? AND slot = ? AND cause = 'schedule' AND n > 0", task_id, slot))

    def pause(self, task_id: str, because: str, now: int) -> Entry:
        """Run it no more until it is unpaused; what is at work goes on."""
        with self._transaction():
            self._pause(self._standing_task(task_id), because, now)
        return self._entry(task_id)

    def unpause(self, task_id: str, now: int, most_active: int, folder: str = "tasks") -> Entry:
        """Go on with the next slot that comes; failures are forgotten, and what it may use in a day is counted anew."""
        with self._transaction():
            task = self._change_task(self._standing_task(task_id), TaskEvent.UNPAUSED, now)
            anew = now if task.pause_kind == PauseKind.BUDGET else task.counted_from
            self._db.execute(
                "UPDATE tasks SET failures = 0, paused_because = NULL, pause_kind = NULL, counted_from = ? WHERE task_id = ?",
                (anew, task_id),
            )
            self._stand(task, now, most_active)
            self._db.execute("UPDATE runs SET blocked = 0 WHERE task_id = ? AND state = 'pending'", (task_id,))
            entry = self._entry(task_id)
            if task.source and not entry.live:
                self._run_waiting(entry.task, folder, now)
        return self._entry(task_id)

    def run_now(self, task_id: str, now: int, folder: str) -> Entry:
        """A run out of turn; the schedule stays as it is. Guarded: not while one is under way."""
        with self._transaction():
            entry = self._entry(task_id)
            self._standing_task(task_id)
            if entry.task.state not in (TaskState.ACTIVE, TaskState.PAUSED):
                raise BadInput(f"Task {task_id} is {entry.status}; only what is active or paused can be run.")
            if reason := self.over_day(entry.task, now):
                raise BadInput(
                    f"{standing.title(entry.task)} may not: {reason}. A yes lets it use as much again: backburner unpause {task_id}"
                )
            if entry.live and entry.run:
                raise BadInput(f"Task {task_id} has a run that is {entry.run.state} already: {entry.run.run_id}")
            self._run_again(entry.task, folder, now, cause="manual")
        return self._entry(task_id)

    def _standing_task(self, task_id: str) -> Task:
        task = self._entry(task_id).task
        if not task.standing:
            raise BadInput(f"Task {task_id} has no schedule; only standing tasks can be paused or run out of turn.")
        return task

    # -- looking back

    def history(self, task_id: str, limit: int) -> Sequence[Run]:
        """The latest runs of a task, with the slots that were skipped, newest first."""
        return [
            run_of(row) for row in self._all(f"SELECT {RUN} FROM runs r WHERE r.task_id = ? ORDER BY r.seq DESC LIMIT ?", task_id, limit)
        ]

    def compact(self, before: int, now: int, task_ids: Sequence[str] | None = None) -> Sequence[str]:
        """Forget old runs of standing tasks, but for the latest of each, and those that a budget still counts; the folders they leave."""
        which = "" if task_ids is None else " AND t.task_id IN (SELECT value FROM json_each(?))"
        named = [] if task_ids is None else [json.dumps(list(task_ids))]
        with self._transaction():
            rows = self._all(
                "SELECT r.run_id, r.folder, r.task_id FROM runs r JOIN tasks t ON t.task_id = r.task_id AND t.schedule <> '{}'"
                f" WHERE r.ended_at < ? AND r.n <> t.run_count AND (r.ended_at < ? OR r.usage = '{{}}' AND t.budget = '{{}}'){which}",
                before,
                now - _COUNTED_MS,
                *named,
            )
            for run_id, _, _ in rows:
                self._db.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
            if rows:
                self._event(now, "runs_compacted", None, None, runs=len(rows))
        return [folder for _, folder, _ in rows if folder]

    # -- a person's turn on a model

    def begin_turn(self, turn: PersonsTurn) -> None:
        """A person waits for a model: what runs in the background there stands aside at its next safe point."""
        with self._transaction(durable=False):
            row: dict[str, object] = {"process": turn.process, "lane": turn.lane, "task_id": turn.task_id, "since": turn.since}
            self._db.execute("DELETE FROM turns WHERE process = ?", (str(turn.process),))
            self._insert("turns", row)

    def end_turn(self, process: ProcessId, now: int) -> bool:
        """The turn is over: what stood aside goes on, unless somebody else has a turn there."""
        with self._transaction():
            row = self._one("SELECT lane FROM turns WHERE process = ?", str(process))
            self._db.execute("DELETE FROM turns WHERE process = ?", (str(process),))
            if row and not self._one("SELECT 1 FROM turns WHERE lane = ?", row[0]):
                self._wake(TURN + row[0], now)
        return bool(row)

    def turns(self) -> Sequence[PersonsTurn]:
        """Whose turn it is, in any lane."""
        rows = self._all("SELECT process, lane, task_id, since FROM turns ORDER BY since")
        return [PersonsTurn(ProcessId.parse(row[0]), *row[1:]) for row in rows]
