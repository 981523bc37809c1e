"""The ends of runs, inside a verb's transaction: state, event and notice, the run that follows, and the tasks that come after."""

import json
import os
from collections.abc import Sequence
from typing import Any

from backburner.core import ids
from backburner.core import recurring as standing
from backburner.core import trace_context as trace
from backburner.core.errors import StaleRun
from backburner.core.formatting import agent_notice as agent_notice_words
from backburner.core.formatting import ending as ending_words
from backburner.core.formatting import notice as notice_words
from backburner.core.models import CHAT, DAY, ENGINE, HOSTED, INBOX, OUT, Approval, Ending, Entry, Run, Task, channel_of
from backburner.core.states import (
    NoticeKind,
    PauseKind,
    Result,
    RunEvent,
    RunState,
    TaskEvent,
    TaskState,
    advance,
    advance_task,
    ending_of_task,
    event_between,
    restart_delay,
)
from backburner.store.external_tasks import Records
from backburner.store.rows import plain

_MOST_WAITING = 20  # happenings that are kept whole while a run is at work; of more only their number is
_STEADY_MS = 60_000  # a run that lasted this long had not failed to start


class Endings(Records):
    """What happens to tasks and runs; the verbs call these in their transactions."""

    def _change_task(self, task: Task, event: TaskEvent, now: int, approval: Approval | None = None, **about: object) -> Task:
        state = advance_task(task.state, event)
        fingerprint = approval.fingerprint if approval else task.fingerprint
        by, via, at = (approval.by, approval.via, approval.at) if approval else (task.approved_by, task.approved_via, task.approved_at)
        self._db.execute(
            "UPDATE tasks SET state = ?, approved_by = ?, approved_via = ?, approved_at = ?, fingerprint = ?,"
            " next_run_at = CASE WHEN ? = 'active' THEN next_run_at END WHERE task_id = ? AND state = ?",
            (state, by, via, at, fingerprint, state, task.task_id, task.state),
        )
        self._event(now, event, task.task_id, None, **({"by": by, "via": via} if approval else {}), **about)
        due = task.next_run_at if state == TaskState.ACTIVE else None
        return task._replace(state=state, approved_by=by, approved_via=via, approved_at=at, fingerprint=fingerprint, next_run_at=due)

    def _add_run(
        self,
        task: Task,
        runner: str,
        folder: str,
        now: int,
        *,
        blocked: bool = False,
        due_at: int | None = None,
        message: str | None = None,
        cause: str = "",
        slot: int | None = None,
        origin: str | None = None,
        payload: str | None = None,
    ) -> Run:
        """The run that `task.run_count` counts already."""
        run_id = ids.run_id(task.task_id, task.run_count)
        run = Run(
            run_id=run_id,
            task_id=task.task_id,
            n=task.run_count,
            state=RunState.PENDING,
            result=None,
            exit_code=None,
            error=None,
            summary=None,
            lines=None,
            folder=os.path.join(folder, run_id),
            mark=os.urandom(8).hex(),
            trace_id=task.trace_id or trace.new_trace_id(),
            span_id=trace.new_span_id(),
            runner=runner,
            owner=None,
            process=None,
            created_at=now,
            started_at=None,
            ended_at=None,
            cancel_requested_at=None,
            priority=task.priority,
            blocked=blocked,
            due_at=due_at,
            message=message,
            cause=cause,
            slot=slot,
            origin=origin,
            payload=payload,
        )
        self._insert("runs", run._asdict())
        return run

    def _run_again(self, task: Task, folder: str, now: int, *, cause: str, due_at: int | None = None, **about: Any) -> Run:
        """One more run of a standing task: by the engine where it has a command, else by its agent's host."""
        task = task._replace(run_count=task.run_count + 1)
        self._db.execute("UPDATE tasks SET run_count = ? WHERE task_id = ?", (task.run_count, task.task_id))
        runner = ENGINE if task.command else task.lane
        message = task.prompt if task.agent is not None else None
        return self._add_run(task, runner, folder, now, due_at=due_at, message=message, cause=cause, **about)

    def _end(self, entry: Entry, ending: Ending) -> None:
        """The end of a run and everything that follows from it, inside the caller's transaction."""
        state = self._write_end(entry, ending)
        if state is not None:
            self._follow_up(entry.task.task_id, state, ending.ended_at)

    def _follow_up(self, task_id: str, state: TaskState, now: int) -> None:
        """What the end of a task means for those that come after it, and for those after them."""
        for (follower,) in self._all("SELECT task_id FROM chains WHERE after_id = ?", task_id):
            other = self._entry(follower)
            if other.task.state == TaskState.ACTIVE and not other.live:
                reason = f"{task_id}, which it comes after, is {state}"
                self._pause(other.task, reason, now, f"{standing.title(other.task)} is paused: {reason}.")
        ended = [(task_id, state)]
        while ended:
            after_id, state = ended.pop(0)
            self._wake(after_id, now)
            for (dependant,) in self._all("SELECT task_id FROM dependencies WHERE after_id = ?", after_id):
                entry = self._entry(dependant)
                if state == TaskState.DONE:
                    self._db.execute("DELETE FROM dependencies WHERE task_id = ? AND after_id = ?", (dependant, after_id))
                    if not self._one("SELECT 1 FROM dependencies WHERE task_id = ?", dependant):
                        self._db.execute(
                            "UPDATE runs SET blocked = 0, origin = ? WHERE task_id = ? AND state = 'pending'",
                            (self._latest_run(after_id), dependant),
                        )
                elif entry.run and entry.run.state == RunState.PENDING:
                    failed = self._write_end(entry, dependency_failed(entry, failed_before(after_id, str(state)), now))
                    ended += [(dependant, failed)] if failed else []

    def _latest_run(self, task_id: str) -> str | None:
        entry = self.show(task_id)
        return entry.run.run_id if entry and entry.run else None

    def _wake(self, task_id: str, now: int) -> None:
        """Let agents go on that waited for the end of a task."""
        for (run_id,) in self._all("SELECT run_id FROM runs WHERE waits_on = ? AND state = 'waiting'", task_id):
            self._requeue_run(run_id, now, task_id=self._task_of(run_id))

    def _requeue_run(self, run_id: str, now: int, *, task_id: str, reply: str | None = None, **about: object) -> None:
        """A run that waited is pending again."""
        after = advance(RunState.WAITING, RunEvent.REQUEUED)
        self._db.execute(
            "UPDATE runs SET state = ?, owner = NULL, process = NULL, started_at = NULL, error = NULL, reply = ?,"
            " extensions = extensions + (waits_on IS 'budget' AND ? IS 'yes') WHERE run_id = ? AND state = 'waiting'",
            (after, reply, reply, run_id),
        )
        self._guard(run_id)
        self._event(now, RunEvent.REQUEUED, task_id, run_id, **about)

    def _write_end(self, entry: Entry, ending: Ending) -> TaskState | None:
        """State, event and notice of an end; the state that its task reaches, None where it is to be run again."""
        task, run = entry
        assert run is not None
        woken = True
        if task.gated and run.runner not in HOSTED:
            if standing.wakes(task, ending) and run.cancel_requested_at is None:
                return self._hand_on(task, run, ending)
            if ending.state == RunState.COMPLETED or standing.declined(task, ending):
                woken, ending = False, ending._replace(state=RunState.COMPLETED, summary="nothing new; its agent was not asked")
        if (
            task.source.get("kind") == "poll" and task.source.get("compare") == "exit" and ending.result == Result.EXIT
        ):  # its exit code is what it found
            ending = ending._replace(state=RunState.COMPLETED, digest=str(ending.exit_code))
        event = event_between(run.state, ending.state)
        self._db.execute(
            "UPDATE runs SET state = ?, result = ?, exit_code = ?, error = ?, summary = ?, lines = ?, blocked = 0, process = coalesce(?, process),"
            " ended_at = CASE WHEN started_at > ? THEN started_at ELSE ? END, usage = ?, problem = ?, waits_on = NULL WHERE run_id = ? AND state = ?",
            (ending.state, ending.result, ending.exit_code, ending.error, ending.summary, ending.lines, plain(ending.process))
            + (ending.ended_at, ending.ended_at, plain(ending.usage), ending.problem, ending.run_id, run.state),
        )
        self._guard(ending.run_id)
        if task.standing:
            return self._end_standing(task, run, event, ending, woken)
        failures, delay = self._restart(task, run, ending)
        reached = None
        if delay is None and task.kind == "oneshot":
            reached = self._change_task(task, ending_of_task(ending.state), ending.ended_at).state
        about = {"result": ending.result, "exit_code": ending.exit_code, "summary": ending.summary}
        self._event(ending.ended_at, event, task.task_id, run.run_id, **about, **({"restarts_in_ms": delay} if delay is not None else {}))
        if delay is not None:
            task = task._replace(run_count=task.run_count + 1)
            self._db.execute("UPDATE tasks SET run_count = ? WHERE task_id = ?", (task.run_count, task.task_id))
            self._add_run(task, run.runner, os.path.dirname(run.folder), ending.ended_at, due_at=ending.ended_at + delay, origin=run.origin)
            return None
        how = ending_words(ending.result, ending.exit_code, ending.error, task.timeout_ms)
        if failures > 1:
            how += f", {failures} times in a row"
        log = os.path.join(os.path.dirname(self.path), run.folder, "output.log")
        if task.agent is not None:
            text = agent_notice_words(task, run.n, ending.state, how, ending.answer)
        else:
            text = notice_words(task.task_id, ending.state, how, ending.summary, log, ending.artifacts)
        self._notice(task, run, text, ending.ended_at)
        return reached

    def _hand_on(self, task: Task, run: Run, ending: Ending) -> None:
        """The command in front of a prompt has said that its agent is to be asked: the same run is pending for that."""
        after = advance(run.state, RunEvent.HANDED_ON)
        self._db.execute(
            "UPDATE runs SET state = ?, runner = ?, owner = NULL, process = NULL, started_at = NULL, digest = ? WHERE run_id = ? AND state = ?",
            (after, task.lane, ending.digest, run.run_id, run.state),
        )
        self._guard(run.run_id)
        self._event(ending.ended_at, RunEvent.HANDED_ON, task.task_id, run.run_id, summary=ending.summary)

    def _end_standing(self, task: Task, run: Run, event: RunEvent, ending: Ending, woken: bool) -> TaskState | None:
        """What the end of a run means for a standing task, and for the one that is run after it."""
        now = ending.ended_at
        how = ending_words(ending.result, ending.exit_code, ending.error, task.timeout_ms)
        if ending.result == Result.EXIT and ending.error:
            how = ending.error
        after = standing.sequel(task, run, ending, how, over=standing.is_over(task, now) or self._follows_nothing(task))
        if not woken:
            after = after._replace(tell=False, result_hash=task.result_hash)
        about = {"result": ending.result, "exit_code": ending.exit_code, "summary": ending.summary, "cause": run.cause, "slot": run.slot}
        self._event(now, event, task.task_id, run.run_id, **about, **({"retry_in_ms": after.retry_ms} if after.retry_ms else {}))
        gate_hash = run.digest if ending.state == RunState.COMPLETED and run.digest else task.gate_hash
        self._db.execute(
            "UPDATE tasks SET failures = ?, result_hash = ?, gate_hash = ?, paused_because = coalesce(?, paused_because),"
            " pause_kind = CASE WHEN ? IS NULL THEN pause_kind ELSE 'other' END WHERE task_id = ?",
            (after.failures, after.result_hash, gate_hash, after.because, after.because, task.task_id),
        )
        reached = self._change_task(task, after.event, now, because=after.because).state if after.event else None
        if reached in (TaskState.DONE, TaskState.FAILED):
            self._end_watcher(task, now)
        if after.retry_ms is not None:
            about = {"slot": run.slot, "origin": run.origin, "payload": run.payload}
            self._run_again(task, os.path.dirname(run.folder), now, cause="retry", due_at=now + after.retry_ms, **about)
        elif after.tell:
            log = os.path.join(os.path.dirname(self.path), run.folder, "output.log")
            self._notice(task, run, standing.notice(task, run, ending, after, how, log), now)
        if ending.state == RunState.COMPLETED and woken:
            self._chain(task, run, now, changed=ending.digest != task.result_hash and task.result_hash is not None)
        if task.source and after.retry_ms is None and not after.event:
            self._run_waiting(task, os.path.dirname(run.folder), now)
        return reached if reached != TaskState.PAUSED else None

    def _finish(self, task: Task, event: TaskEvent, now: int) -> None:
        """A standing task is over, though no run of it ends."""
        self._end_watcher(task, now)
        self._follow_up(task.task_id, self._change_task(task, event, now).state, now)

    def _end_watcher(self, task: Task, now: int) -> None:
        """Whatever runs a command to see what it prints was made for the one task that is set off by it."""
        watcher = self.show(task.after[0]) if task.source.get("kind") == "command" else None
        if watcher and watcher.task.state in (TaskState.ACTIVE, TaskState.PAUSED):
            self._change_task(watcher.task, TaskEvent.CANCELLED, now)

    def _wait_with(self, task_id: str, payload: dict[str, object]) -> None:
        """Something happened that a run is to deal with."""
        self._db.execute("INSERT INTO watches (task_id) VALUES (?) ON CONFLICT DO NOTHING", (task_id,))
        waiting = json.loads(self._one("SELECT waiting FROM watches WHERE task_id = ?", task_id)[0] or '{"events": [], "more": 0}')
        if len(waiting["events"]) < _MOST_WAITING:
            waiting["events"].append(payload)
        else:
            waiting["more"] += 1
        self._db.execute("UPDATE watches SET waiting = ? WHERE task_id = ?", (json.dumps(waiting), task_id))

    def _run_waiting(self, task: Task, folder: str, now: int) -> None:
        """What happened at a source and was not dealt with is the payload of one run."""
        row = self._one("SELECT waiting FROM watches WHERE task_id = ? AND waiting IS NOT NULL", task.task_id)
        if row and task.state == TaskState.ACTIVE:
            if reason := self.over_day(task, now):
                self._pause_over(task, reason, now)
                return
            self._db.execute("UPDATE watches SET waiting = NULL WHERE task_id = ?", (task.task_id,))
            self._db.execute("UPDATE tasks SET fired = fired + 1 WHERE task_id = ?", (task.task_id,))
            self._run_again(self._entry(task.task_id).task, folder, now, cause="event", payload=row[0])

    def over_day(self, task: Task, now: int) -> str | None:
        """What a task has used up of what it may in a day; None where there is something left."""
        limits = {name.removeprefix(DAY): most for name, most in task.budget.items() if name.startswith(DAY)}
        if not limits:
            return None
        from backburner.core.schedule import Schedule, day_of

        used = self.spent(task.task_id, max(day_of(Schedule.of(task.schedule), now), task.counted_from or 0), now)
        for name, most in limits.items():
            if used[name] >= most:
                return standing.used_up(used[name], most, name)
        return None

    def _pause_over(self, task: Task, reason: str, now: int) -> None:
        """A task that has used up what it may is paused, and a person is asked."""
        self._pause(task, reason, now, standing.over_budget(task, reason), kind=PauseKind.BUDGET)

    def _pause(self, task: Task, because: str, now: int, told: str = "", kind: PauseKind = PauseKind.OTHER) -> None:
        """Nothing of it starts from now on: what waits to is held, what is at work goes on. `told` is for whoever did not pause it."""
        self._change_task(task, TaskEvent.PAUSED, now, because=because)
        self._db.execute("UPDATE tasks SET paused_because = ?, pause_kind = ? WHERE task_id = ?", (because, kind, task.task_id))
        self._db.execute("UPDATE runs SET blocked = 1 WHERE task_id = ? AND state = 'pending' AND cause <> 'manual'", (task.task_id,))
        if told:
            self._notice(task, None, told, now, NoticeKind.PAUSED, again=True)

    def _follows_nothing(self, task: Task) -> bool:
        """Whether a task comes after one that is over."""
        if task.kind != "event" or not task.after:
            return False
        other = self.show(task.after[0])
        return other is None or other.task.state in (TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED)

    def _chain(self, task: Task, run: Run, now: int, *, changed: bool) -> None:
        """Run what is run each time after this one, or each time that its result is another."""
        for (task_id,) in self._all("SELECT task_id FROM chains WHERE after_id = ? AND changed <= ?", task.task_id, int(changed)):
            other = self._entry(task_id)
            if other.task.state == TaskState.PAUSED:
                self._skip(other.task, [(now, f"{run.run_id} completed while it was paused", 0)], now, cause="after", origin=run.run_id)
            if other.task.state != TaskState.ACTIVE:
                continue
            if standing.is_over(other.task, now) and not other.live:
                self._finish(other.task, TaskEvent.DONE, now)
                continue
            if reason := self.over_day(other.task, now):
                self._pause_over(other.task, reason, now)
                continue
            if other.live and other.task.source:
                self._wait_with(task_id, {"summary": f"what {task.task_id} prints has changed", "run": run.run_id})
                continue
            if other.live:
                self._skip(
                    other.task,
                    [(now, f"{run.run_id} completed while the run before was still at work", 0)],
                    now,
                    cause="after",
                    origin=run.run_id,
                )
                continue
            self._db.execute("UPDATE tasks SET fired = fired + 1 WHERE task_id = ?", (task_id,))
            self._run_again(other.task, os.path.dirname(run.folder), now, cause="after", origin=run.run_id)

    def _skip(self, task: Task, skipped: Sequence[tuple[int, str, int]], now: int, *, cause: str, origin: str | None = None) -> None:
        """A row for every slot that is not run, with the reason, and how many more before it share the row."""
        lowest = self._one("SELECT min(n) FROM runs WHERE task_id = ? AND n < 0", task.task_id)[0] or 0
        blank = {"mark": "", "trace_id": task.trace_id, "span_id": "", "folder": "", "runner": ENGINE, "usage": "{}"}
        for place, (slot, reason, before) in enumerate(skipped, 1):
            n = lowest - place
            known = {"run_id": ids.run_id(task.task_id, n), "task_id": task.task_id, "n": n, "cause": cause, "slot": slot, "origin": origin}
            state = {"state": RunState.SKIPPED, "result": Result.UNSTARTED, "error": reason, "created_at": now, "ended_at": now}
            self._insert("runs", {**blank, **known, **state, "skipped_before": before})
        if skipped:
            first, last = skipped[0], skipped[-1]
            self._event(now, RunEvent.SKIPPED, task.task_id, None, slots=len(skipped), first=first[0], last=last[0], reason=last[1])

    def _restart(self, task: Task, run: Run, ending: Ending) -> tuple[int, int | None]:
        """How often in a row a task that is to be restarted failed, and after how many milliseconds it is run again."""
        by_itself = ending.state == RunState.FAILED and ending.result in (Result.EXIT, Result.SIGNAL)
        if not task.restarts or not by_itself or run.cancel_requested_at is not None:
            return 0, None
        failures = 0
        for started, ended in self._all("SELECT started_at, ended_at FROM runs WHERE task_id = ? ORDER BY n DESC", task.task_id):
            failures += 1
            if ended - started >= _STEADY_MS:
                break
        return failures, restart_delay(task.restarts, failures)

    def _notice(
        self, task: Task, run: Run | None, text: str, now: int, kind: NoticeKind = NoticeKind.ENDED, *, again: bool = False
    ) -> None:
        """What is owed to whoever asked. Once per kind, unless it may come `again` some other time."""
        run_id = run.run_id if run else None
        what = "" if kind == NoticeKind.ENDED else f":{kind}"
        if again:
            what += f":{now}.{os.urandom(3).hex()}"
        person = kind in (NoticeKind.PROPOSED, NoticeKind.DELAYED)  # it is for the person to do something about it
        row = {"task_id": task.task_id, "run_id": run_id, "project": task.project, "text": text, "created_at": now, "kind": kind}
        row["priority"] = 0 if kind in (NoticeKind.ENDED, NoticeKind.REFUSED) else 1
        owed = [INBOX if person or task.in_chat else channel_of(task.session)]
        if run and owed[0] != INBOX and str(task.session).startswith(CHAT):
            owed.append(INBOX)  # the person sits beside the agent that asked; their own no they know
        for channel in (*owed, *(OUT + name for name in task.channels)):
            self._insert("notices", {**row, "key": f"{run_id or task.task_id}{what}:{channel}", "channel": channel})

    def _guard(self, run_id: str) -> None:
        if self._db.changes() == 0:
            raise StaleRun(run_id=run_id)


def failed_before(after_id: str, state: str) -> str:
    """Why a task fails that comes after one which did not complete."""
    how = {"failed": "failed", "expired": "was not approved in time"}.get(state, f"was {state}")
    return f"{after_id}, which it comes after, {how}"


def dependency_failed(entry: Entry, reason: str, now: int) -> Ending:
    assert entry.run is not None
    return Ending(entry.run.run_id, RunState.FAILED, Result.DEPENDENCY, now, error=reason, lines=0)
