"""Challenges for passkeys, and every attempt to approve with one, with its proof."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.core.devices import Attempt, Challenge

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter

_CHALLENGE, _ATTEMPT = ", ".join(Challenge._fields), ", ".join(Attempt._fields)
_KEPT_MS = 86_400_000  # challenges are deleted a day after they have expired


class ProofRepository:
    """Proofs that a person approved something. A refused attempt is also an event."""

    def __init__(self, db: "Database", events: "EventWriter") -> None:
        self._db, self._events = db, events

    def add_challenge(self, challenge: Challenge) -> None:
        with self._db.transaction(durable=False, by_person=True):
            self._db.write("DELETE FROM challenges WHERE expires_at < ?", (challenge.expires_at - _KEPT_MS,))
            self._db.insert("challenges", challenge._asdict())

    def use_challenge(self, nonce: str, now: int) -> Challenge | None:
        """Take a challenge: it is returned once. None if it is unknown or was used before."""
        with self._db.transaction(by_person=True):
            if not self._db.write("UPDATE challenges SET used_at = ? WHERE nonce = ? AND used_at IS NULL", (now, nonce)):
                return None
            return Challenge._make(self._db.one(f"SELECT {_CHALLENGE} FROM challenges WHERE nonce = ?", (nonce,)))

    def record_attempt(self, attempt: Attempt) -> int:
        """Store an attempt to approve and return its number; a refused one is also an event."""
        with self._db.transaction(by_person=True):
            row = {name: value for name, value in attempt._asdict().items() if name != "attempt_id"}
            self._db.insert("approval_attempts", row)
            if attempt.outcome == "refused":
                self._write_refusal(attempt)
            return self._db.one("SELECT max(attempt_id) FROM approval_attempts")[0]

    def settle_attempt(self, attempt_id: int, outcome: str, reason: str | None) -> None:
        """Record what became of a verified attempt."""
        with self._db.transaction(by_person=True):
            self._db.write("UPDATE approval_attempts SET outcome = ?, reason = ? WHERE attempt_id = ?", (outcome, reason, attempt_id))
            if outcome == "refused":
                row = self._db.one(f"SELECT {_ATTEMPT} FROM approval_attempts WHERE attempt_id = ?", (attempt_id,))
                self._write_refusal(Attempt._make(row))

    def _write_refusal(self, attempt: Attempt) -> None:
        self._events.write(attempt.at, "approval_refused", attempt.task_id, None, via=attempt.via, reason=attempt.reason)

    def attempts(self, outcome: str, before: tuple[int, int], limit: int, *, since: int = 0) -> Sequence[Attempt]:
        """Attempts to approve with an outcome, newest first, before a time and a number of an attempt."""
        where = "outcome = ? AND (at, attempt_id) < (?, ?) AND at >= ?"
        sql = f"SELECT {_ATTEMPT} FROM approval_attempts WHERE {where} ORDER BY at DESC, attempt_id DESC LIMIT ?"
        return [Attempt._make(row) for row in self._db.execute(sql, (outcome, *before, since, limit))]

    def proof_of(self, task_id: str) -> Attempt | None:
        """The latest attempt that approved a task."""
        where = "task_id = ? AND outcome = 'approved' ORDER BY attempt_id DESC LIMIT 1"
        row = self._db.one(f"SELECT {_ATTEMPT} FROM approval_attempts WHERE {where}", (task_id,))
        return Attempt._make(row) if row else None
