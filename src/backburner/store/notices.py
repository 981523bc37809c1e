"""Who is told what in the ledger: notices that are leased and told, sessions that are here, and how far followers have come."""

from collections.abc import Iterable, Sequence

from backburner.core.models import INBOX, Session
from backburner.store.connection import Connection
from backburner.store.rows import plain


class Post(Connection):
    """Verbs for what is owed, and to whom."""

    def tell(self, *, notice_ids: Iterable[int] = (), task_ids: Iterable[str] = (), channel: str = INBOX, now: int) -> None:
        """Mark notices as told: by their ids, or what one channel owes of some tasks."""
        with self._transaction():
            for notice_id in notice_ids:
                self._db.execute("UPDATE notices SET told_at = ? WHERE told_at IS NULL AND notice_id = ?", (now, notice_id))
            for task_id in task_ids:
                # Of a standing task only its latest run was shown.
                shown = "SELECT r.run_id FROM runs r JOIN tasks t ON t.task_id = r.task_id AND (t.schedule = '{}' OR r.n = t.run_count)"
                self._db.execute(
                    "UPDATE notices SET told_at = ? WHERE told_at IS NULL AND task_id = ? AND channel = ?"
                    f" AND (run_id IS NULL OR run_id IN ({shown} WHERE r.task_id = ?))",
                    (now, task_id, channel, task_id),
                )

    def lease(self, notice_ids: Sequence[int], now: int, until: int) -> Sequence[int]:
        """Take notices that somebody is about to tell, so that nobody else does meanwhile; those that were still to be had."""
        if not notice_ids:
            return []
        free = "told_at IS NULL AND (leased_until IS NULL OR leased_until <= ?)"
        with self._transaction(durable=False):
            taken = [one for one in notice_ids if self._one(f"SELECT 1 FROM notices WHERE notice_id = ? AND {free}", one, now)]
            for notice_id in taken:
                self._db.execute("UPDATE notices SET leased_until = ? WHERE notice_id = ?", (until, notice_id))
            return taken

    def register(self, session: Session) -> None:
        """Somebody who asks is here, in this process. Not waited for: they register again."""
        with self._transaction(durable=False):
            self._db.execute(
                "INSERT INTO sessions (session_id, client, project, process, created_at, seen_at) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (session_id) DO UPDATE SET process = excluded.process, seen_at = excluded.seen_at",
                tuple(map(plain, session)),
            )

    def note(self, kind: str, task_id: str, run_id: str, now: int, **data: object) -> None:
        """Write down that something happened which changes no state."""
        with self._transaction(durable=False):
            self._event(now, kind, task_id, run_id, **data)

    def advance_cursor(self, name: str, position: int) -> None:
        """Somebody who follows the events has come this far."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO cursors (name, position) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET position = excluded.position",
                (name, position),
            )
