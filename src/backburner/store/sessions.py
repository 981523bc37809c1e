"""Sessions of callers and their open work, user activity, and interactive priority on models."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.core.models import ProcessId
from backburner.core.session_records import InteractiveLease, Session
from backburner.store.parameters import places
from backburner.store.rows import LIVE_RUNS, plain

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.waiting_runs import WaitingRuns


class SessionRepository:
    """Sessions of agents, and the activity and interactive leases of users."""

    def __init__(self, db: "Database", waiting: "WaitingRuns") -> None:
        self._db, self._waiting, self.host_id = db, waiting, db.host_id

    def register(self, session: Session) -> None:
        """Record that a session is active in this process. Not synced to disk: sessions register again."""
        with self._db.transaction(durable=False):
            self._db.write(
                "INSERT INTO sessions (session_id, client, project, process, created_at, seen_at, host) VALUES (?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (session_id) DO UPDATE SET process = excluded.process, seen_at = excluded.seen_at, host = excluded.host",
                tuple(map(plain, session._replace(host=self._db.host_id))),
            )

    def sessions(self, client: str | None = None) -> Sequence[Session]:
        """All sessions, most recently seen first. The process of a session on another host is not known here."""
        where, values = ("", ()) if client is None else ("WHERE client = ?", (client,))
        rows = self._db.execute(f"SELECT {', '.join(Session._fields)} FROM sessions {where} ORDER BY seen_at DESC", values)
        found = map(Session._make, rows)
        return [
            session._replace(
                process=ProcessId.parse(str(session.process)) if session.process and session.host == self._db.host_id else None
            )
            for session in found
        ]

    def has_open_work(self, sessions: Sequence[str]) -> bool:
        """Whether these sessions have tasks that are live or waiting for approval."""
        if not sessions:
            return False
        of_sessions = f"session IN ({places(sessions)})"
        live = f"SELECT 1 FROM tasks WHERE task_id IN (SELECT task_id FROM runs WHERE {LIVE_RUNS}) AND {of_sessions}"
        proposed = f"SELECT 1 FROM tasks WHERE state = 'proposed' AND {of_sessions}"
        return bool(self._db.one(live, sessions) or self._db.one(proposed, sessions))

    def record_activity(self, interface: str, now: int) -> None:
        """Record user activity at an interface. Not synced to disk."""
        with self._db.transaction(durable=False):
            self._db.write(
                "INSERT INTO user_activity (interface, at) VALUES (?, ?) ON CONFLICT (interface) DO UPDATE SET at = excluded.at",
                (interface, now),
            )

    def last_activity(self) -> int | None:
        """The time of the latest user activity at any interface."""
        return self._db.one("SELECT max(at) FROM user_activity")[0]

    def begin_interactive(self, turn: InteractiveLease) -> None:
        """Give a user priority on a lane: background runs there yield at their next safe point, and the task they wait for continues."""
        with self._db.transaction(durable=False):
            self._db.write("DELETE FROM interactive_leases WHERE process = ?", (str(turn.process),))
            self._db.insert("interactive_leases", {**turn._asdict(), "host": self._db.host_id})
            self._waiting.continue_interactive(turn.lane, turn.since)

    def end_interactive(self, process: ProcessId, now: int) -> bool:
        """End interactive priority; runs that yielded are requeued unless another user has priority on the lane. False if there was none."""
        with self._db.transaction():
            row = self._db.one("SELECT lane FROM interactive_leases WHERE process = ?", (str(process),))
            self._db.write("DELETE FROM interactive_leases WHERE process = ?", (str(process),))
            if row:
                self._waiting.continue_interactive(row[0], now)
        return bool(row)

    def must_yield(self, task_id: str, lane: str) -> bool:
        """Whether users have priority on the lane and none of them waits for this task."""
        return self._waiting.must_yield(task_id, lane)

    def interactive_leases(self) -> Sequence[InteractiveLease]:
        """The current interactive leases of all lanes on this host, oldest first."""
        leases = "SELECT process, lane, task_id, since FROM interactive_leases WHERE host = ? ORDER BY since"
        rows = self._db.execute(leases, (self._db.host_id,))
        return [InteractiveLease(ProcessId.parse(row[0]), *row[1:]) for row in rows]
