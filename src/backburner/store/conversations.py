"""What agents need of the ledger: waiting, being talked to again, a result that was read, and what they remember."""

import os
from collections.abc import Sequence

from backburner.core import recurring as standing
from backburner.core.errors import StaleRun
from backburner.core.formatting import short
from backburner.core.masking import masked_line
from backburner.core.models import ELSEWHERE, TURN, Ending, Entry, ProcessId
from backburner.core.states import LIVE, NoticeKind, Result, RunEvent, RunState, TaskEvent, TaskState
from backburner.core.terminal_text import shortened
from backburner.store.rows import plain
from backburner.store.run_endings import Endings


class Agents(Endings):
    """Verbs for tasks of agents."""

    def resume(self, task_id: str, message: str, *, runner: str, now: int) -> Entry:
        """One more run of an agent's task, in the same conversation. Guarded: of many at once one wins."""
        with self._transaction():
            task, run = self._entry(task_id)
            assert run is not None
            if run.state in LIVE:
                raise StaleRun(run_id=run.run_id)
            task = self._change_task(task, TaskEvent.RESUMED, now)._replace(run_count=task.run_count + 1)
            self._db.execute("UPDATE tasks SET run_count = ?, retrieved_at = NULL WHERE task_id = ?", (task.run_count, task_id))
            made = self._add_run(task, runner, os.path.dirname(run.folder), now, message=message)
            return Entry(task._replace(retrieved_at=None), made)

    def park(self, run_id: str, owner: ProcessId, reason: str, now: int, waits_on: str | None = None, asked: str | None = None) -> None:
        """A run waits: a command that has not begun for a person's yes, an agent for that, a budget, or the end of a task.

        `asked` is the fingerprint of the command that a yes would be for.
        """
        with self._transaction():
            self._db.execute(
                "UPDATE runs SET state = 'waiting', error = ?, waits_on = ?, reply = NULL, asked = ?"
                " WHERE run_id = ? AND state IN ('running', 'resumed') AND owner = ?",
                (reason, waits_on, asked, run_id, str(owner)),
            )
            self._guard(run_id)
            task_id = self._task_of(run_id)
            self._event(now, RunEvent.PARKED, task_id, run_id, reason=reason)
            entry = self._entry(task_id)
            if entry.run and entry.run.cancel_requested_at is not None:  # it was to be stopped: it does not wait for anybody
                self._end(entry, Ending(run_id, RunState.CANCELLED, Result.SIGNAL, now, error="it was stopped"))
                return
            if waits_on == ELSEWHERE:
                self._requeue_run(run_id, now, task_id=task_id)
                return
            if waits_on is not None and waits_on.startswith(TURN):
                if not self._one("SELECT 1 FROM turns WHERE lane = ?", waits_on.removeprefix(TURN)):
                    self._requeue_run(run_id, now, task_id=task_id)  # that was over before we waited
                return
            other = self.show(waits_on) if waits_on not in (None, "budget", "tool") else None
            if waits_on not in (None, "budget", "tool") and (other is None or other.ended):
                self._requeue_run(run_id, now, task_id=task_id)  # it ended before we waited
            elif entry.task.standing and entry.run and (other is None or other.status == TaskState.PROPOSED):
                # nobody looks on: they are told, each time anew
                reason = f"{reason} (fingerprint {short(asked)})" if asked else reason
                answer = other.task.task_id if other else task_id
                if other:
                    line = masked_line(other.task.command, other.task.shell)
                    reason = f"it wants to run `{shortened(line, longest=400)}` ({'; '.join(other.task.reasons)})"
                self._notice(entry.task, entry.run, standing.waiting(entry.task, reason, answer), now, NoticeKind.WAITING, again=True)

    def unpark(self, run_id: str, now: int) -> None:
        """A run waits for a person no more, without their word. Guarded: it waits for one on a step."""
        with self._transaction():
            if not self._one("SELECT 1 FROM runs WHERE run_id = ? AND state = 'waiting' AND waits_on = 'tool'", run_id):
                raise StaleRun(run_id=run_id)
            self._requeue_run(run_id, now, task_id=self._task_of(run_id))

    def retrieve(self, task_id: str, now: int) -> None:
        """Somebody has read the result of a task."""
        with self._transaction(durable=False):
            self._db.execute("UPDATE tasks SET retrieved_at = ? WHERE task_id = ? AND retrieved_at IS NULL", (now, task_id))

    def choose(self, task_id: str, agent: str, terms: dict[str, object], lane: str) -> None:
        """Have another agent go on with a conversation from its next run on."""
        with self._transaction():
            self._db.execute("UPDATE tasks SET agent = ?, terms = ?, lane = ? WHERE task_id = ?", (agent, plain(terms), lane, task_id))

    def remember(self, project: str, key: str, value: str | None, now: int) -> None:
        """Keep something under a name for the agents of a project; nothing forgets it."""
        with self._transaction():
            if value is None:
                self._db.execute("DELETE FROM memory WHERE project = ? AND key = ?", (project, key))
                return
            self._db.execute(
                "INSERT INTO memory (project, key, value, set_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (project, key) DO UPDATE SET value = excluded.value, set_at = excluded.set_at",
                (project, key, value, now),
            )

    def asked_by(self, session: str) -> Sequence[str]:
        """The tasks that a session asked for, and those that the agents among them asked for, and so on."""
        rows = self._all(
            "WITH RECURSIVE asked (task_id) AS (SELECT task_id FROM tasks WHERE session = ?"
            " UNION SELECT t.task_id FROM asked a CROSS JOIN tasks t WHERE t.session IN ('agent:' || a.task_id, 'task:' || a.task_id)) SELECT task_id FROM asked",
            session,
        )
        return [row[0] for row in rows]
