"""What only agents need of the ledger: being talked to again, a result that was read, and what they remember."""

import os
from collections.abc import Sequence

from backburner.errors import StaleRun
from backburner.lifecycle import LIVE, TaskEvent
from backburner.models import Entry
from backburner.stores.endings import Endings
from backburner.stores.rows import plain


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
