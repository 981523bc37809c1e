"""Who asks: sessions and their open work, when a person was last there, and a person's turn on a model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.core.models import ProcessId
from backburner.core.session_records import InteractiveLease, Session
from backburner.core.states import WaitKind
from backburner.store.parameters import places
from backburner.store.rows import LIVE_RUNS, plain

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.waiting_runs import WaitingRuns


class SessionRepository:
    """Sessions of agents, and the presence and turns of people."""

    def __init__(self, db: "Database", waiting: "WaitingRuns") -> None:
        self._db, self._waiting = db, waiting

    def register(self, session: Session) -> None:
        """Record that somebody who asks is here, in this process. Not waited for: they register again."""
        with self._db.transaction(durable=False):
            self._db.write(
                "INSERT INTO sessions (session_id, client, project, process, created_at, seen_at) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (session_id) DO UPDATE SET process = excluded.process, seen_at = excluded.seen_at",
                tuple(map(plain, session)),
            )

    def sessions(self, client: str | None = None) -> Sequence[Session]:
        """Who asks, latest first."""
        where, values = ("", ()) if client is None else ("WHERE client = ?", (client,))
        rows = self._db.execute(f"SELECT {', '.join(Session._fields)} FROM sessions {where} ORDER BY seen_at DESC", values)
        return [Session(*row)._replace(process=ProcessId.parse(row[3]) if row[3] else None) for row in rows]

    def has_open_work(self, sessions: Sequence[str]) -> bool:
        """Whether sessions asked for anything that still runs, or waits to."""
        if not sessions:
            return False
        asked = f"session IN ({places(sessions)})"
        live = f"SELECT 1 FROM tasks WHERE task_id IN (SELECT task_id FROM runs WHERE {LIVE_RUNS}) AND {asked}"
        proposed = f"SELECT 1 FROM tasks WHERE state = 'proposed' AND {asked}"
        return bool(self._db.one(live, sessions) or self._db.one(proposed, sessions))

    def record_activity(self, interface: str, now: int) -> None:
        """Record that a person did something at an interface. Not waited for."""
        with self._db.transaction(durable=False):
            self._db.write(
                "INSERT INTO user_activity (interface, at) VALUES (?, ?) ON CONFLICT (interface) DO UPDATE SET at = excluded.at",
                (interface, now),
            )

    def last_activity(self) -> int | None:
        """When a person last did something, at any interface."""
        return self._db.one("SELECT max(at) FROM user_activity")[0]

    def begin_interactive(self, turn: InteractiveLease) -> None:
        """A person waits for a model: what runs in the background there stands aside at its next safe point."""
        with self._db.transaction(durable=False):
            self._db.write("DELETE FROM interactive_leases WHERE process = ?", (str(turn.process),))
            self._db.insert("interactive_leases", turn._asdict())

    def end_interactive(self, process: ProcessId, now: int) -> bool:
        """The turn is over: what stood aside goes on, unless somebody else has a turn there. False where there was no turn."""
        with self._db.transaction():
            row = self._db.one("SELECT lane FROM interactive_leases WHERE process = ?", (str(process),))
            self._db.write("DELETE FROM interactive_leases WHERE process = ?", (str(process),))
            if row and not self._db.one("SELECT 1 FROM interactive_leases WHERE lane = ?", (row[0],)):
                self._waiting.continue_runs(WaitKind.INTERACTIVE, row[0], now)
        return bool(row)

    def interactive_leases(self) -> Sequence[InteractiveLease]:
        """Whose turn it is, in any lane."""
        rows = self._db.execute("SELECT process, lane, task_id, since FROM interactive_leases ORDER BY since")
        return [InteractiveLease(ProcessId.parse(row[0]), *row[1:]) for row in rows]
