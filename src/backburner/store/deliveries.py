"""Deliveries of notices to channels: pending, delivered and failed ones, and messages that wait for an answer."""

from collections.abc import Sequence

from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.notices import Notice
from backburner.store.parameters import places
from backburner.store.rows import NOTICE, OUTGOING, notice_of

if TYPE_CHECKING:
    from backburner.store.database import Database
    from backburner.store.event_writer import EventWriter
    from backburner.store.watched_tasks import WatchedTasks

# Messages that wait for a user's answer: the latest message of each proposal and of each waiting run.
_PROPOSED = (
    "FROM tasks t JOIN notices n ON n.task_id = t.task_id AND n.kind = 'proposed' WHERE t.state = 'proposed' AND n.notice_id ="
    " (SELECT max(m.notice_id) FROM notices m WHERE m.task_id = n.task_id AND m.channel = n.channel AND m.kind = 'proposed')"
)
_WAITING = (
    "FROM runs r JOIN notices n ON n.task_id = r.task_id AND n.run_id = r.run_id AND n.kind = 'waiting'"
    " WHERE r.ended_at IS NULL AND r.state = 'waiting' AND n.notice_id ="
    " (SELECT max(m.notice_id) FROM notices m WHERE m.task_id = n.task_id AND m.run_id = n.run_id AND m.channel = n.channel AND m.kind = 'waiting')"
)
_MAX_OUTGOING = 200


class DeliveryRepository:
    """The outbox of the channels."""

    def __init__(self, db: "Database", events: "EventWriter", watched: "WatchedTasks") -> None:
        self._db, self._events, self._watched = db, events, watched

    def pending(self, channel: str | None = None) -> Sequence[Notice]:
        """The notices to deliver, to one channel or to all, oldest first; at most 200."""
        channel_filter, values = ("", ()) if channel is None else (" AND channel = ?", (channel,))
        select = f"SELECT {NOTICE} FROM notices WHERE {OUTGOING}{channel_filter} ORDER BY notice_id LIMIT ?"
        return [notice_of(row) for row in self._db.execute(select, (*values, _MAX_OUTGOING))]

    def reserve(self, notice_ids: Sequence[int], now: int, until: int) -> bool:
        """Reserve notices until `until`, in order to send them; False if another host has one of them, or has sent it.

        In a ledger file nobody else sends any.
        """
        if not self._db.host_id:
            return True
        available = f"{OUTGOING} AND (leased_until IS NULL OR leased_until <= ?) AND notice_id IN ({places(notice_ids)})"
        with self._db.transaction():
            (count,) = self._db.one(f"SELECT count(*) FROM notices WHERE {available}", (now, *notice_ids))
            if count < len(notice_ids):
                return False
            self._db.write(f"UPDATE notices SET leased_until = ? WHERE notice_id IN ({places(notice_ids)})", (until, *notice_ids))
            return True

    def mark_delivered(self, notice_ids: Sequence[int], external: str | None, now: int) -> None:
        """Mark notices as delivered; `external` is the channel's own id of the message. Notices that were acknowledged before do not change."""
        with self._db.transaction():
            for notice_id in notice_ids:
                self._db.write(
                    "UPDATE notices SET acknowledged_at = ?, external_id = ?, error = NULL WHERE notice_id = ? AND acknowledged_at IS NULL",
                    (now, external, notice_id),
                )

    def mark_failed(self, notice_ids: Sequence[int], error: str, retry_at: int | None, now: int) -> None:
        """Record a failed attempt to deliver notices. They are tried again at `retry_at`, or never if that is None."""
        with self._db.transaction():
            for notice_id in notice_ids:
                self._db.write(
                    "UPDATE notices SET attempts = attempts + 1, error = ?, next_attempt_at = ?, failed_at = ?, leased_until = NULL WHERE notice_id = ? AND acknowledged_at IS NULL",
                    (error, retry_at, now if retry_at is None else None, notice_id),
                )
            if retry_at is None:
                self._events.write(now, "notice_undeliverable", None, None, notices=list(notice_ids), error=error)

    def failed(self) -> Sequence[Notice]:
        """The notices whose delivery was given up."""
        rows = self._db.execute(f"SELECT {NOTICE} FROM notices WHERE failed_at IS NOT NULL AND acknowledged_at IS NULL ORDER BY notice_id")
        return [notice_of(row) for row in rows]

    def retry(self, notice_ids: Sequence[int]) -> None:
        """Schedule notices whose delivery was given up for another attempt."""
        with self._db.transaction():
            for notice_id in notice_ids:
                self._db.write(
                    "UPDATE notices SET failed_at = NULL, next_attempt_at = NULL, attempts = 0 WHERE notice_id = ?", (notice_id,)
                )

    def find_sent(self, channel: str, external: str) -> Notice | None:
        """The notice that was sent as this message of a channel."""
        row = self._db.one(f"SELECT {NOTICE} FROM notices WHERE channel = ? AND external_id = ?", (channel, external))
        return notice_of(row) if row else None

    def open_questions(self, channel: str | None = None) -> Sequence[str]:
        """The ids of messages that no user has answered yet, of one channel or of all."""
        channel_filter, values = ("", ()) if channel is None else (" AND n.channel = ?", (channel,))
        selects = [f"SELECT n.external_id {where} AND n.external_id IS NOT NULL{channel_filter}" for where in (_PROPOSED, _WAITING)]
        return [row[0] for select in selects for row in self._db.execute(select, values)]

    def integrations_needed(self, *, leads: bool = True) -> bool:
        """Whether the integrations process has work: a delivery, a source to watch, or a message that can still be answered.

        On a host that does not lead, only the files of its own tasks are watched.
        """
        if not leads:
            return any(task.spec.source_kind == "file" for task in self._watched.find())
        return bool(self._db.one(f"SELECT 1 FROM notices WHERE {OUTGOING} LIMIT 1") or self._watched.find() or self.open_questions())
