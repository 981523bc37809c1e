"""Notices for users and sessions: pending ones, leases for delivering them, and acknowledgements."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from backburner.core.notices import Notice
from backburner.core.recipients import INBOX
from backburner.store.parameters import groups, places
from backburner.store.rows import FOR_CHANNEL, NOTICE, notice_of

if TYPE_CHECKING:
    from backburner.store.database import Database


class NoticeRepository:
    """The inbox of the user and of every session. Notices for channels belong to the delivery repository."""

    def __init__(self, db: "Database") -> None:
        self._db = db

    def notices(
        self, *, project: str | None = None, unread: bool = True, channels: Sequence[str] | None = None, limit: int | None = None
    ) -> Sequence[Notice]:
        """Notices, oldest first: for some recipients, or for all. With `limit`, only the newest."""
        where, values = [f"NOT ({FOR_CHANNEL})"], []
        if unread:
            where.append("acknowledged_at IS NULL")
        if project is not None:
            where.append("project = ?")
            values.append(project)
        if channels is None:
            return self._select(where, values, limit)
        found = [
            notice
            for group in groups(channels)
            for notice in self._select([*where, f"channel IN ({places(group)})"], [*values, *group], limit)
        ]
        found.sort(key=lambda notice: notice.notice_id)
        return found if limit is None else found[-limit:]

    def unread_count(self, channels: Sequence[str]) -> int:
        """How many notices of some recipients were not acknowledged."""
        where = f"acknowledged_at IS NULL AND NOT ({FOR_CHANNEL})"
        counts = (
            self._db.execute(f"SELECT count(*) FROM notices WHERE {where} AND channel IN ({places(group)})", group)
            for group in groups(channels)
        )
        return sum(int(rows[0][0]) for rows in counts)

    def acknowledge(self, *, notice_ids: Iterable[int] = (), task_ids: Iterable[str] = (), channel: str = INBOX, now: int) -> None:
        """Mark notices as acknowledged: by their ids, or those of some tasks for one recipient."""
        with self._db.transaction():
            for notice_id in notice_ids:
                self._db.write("UPDATE notices SET acknowledged_at = ? WHERE acknowledged_at IS NULL AND notice_id = ?", (now, notice_id))
            for task_id in task_ids:
                # Of a recurring task only its latest run was shown.
                shown = "SELECT r.run_id FROM runs r JOIN tasks t ON t.task_id = r.task_id AND (t.schedule = '{}' OR r.n = t.run_count)"
                self._db.write(
                    "UPDATE notices SET acknowledged_at = ? WHERE acknowledged_at IS NULL AND task_id = ? AND channel = ?"
                    f" AND (run_id IS NULL OR run_id IN ({shown} WHERE r.task_id = ?))",
                    (now, task_id, channel, task_id),
                )

    def lease(self, notice_ids: Sequence[int], now: int, until: int) -> Sequence[int]:
        """Reserve notices until `until` for one process that delivers them; returns the ids that were not reserved already."""
        if not notice_ids:
            return []
        available = "acknowledged_at IS NULL AND (leased_until IS NULL OR leased_until <= ?)"
        reserve = f"UPDATE notices SET leased_until = ? WHERE notice_id = ? AND {available}"
        with self._db.transaction(durable=False):
            return [notice_id for notice_id in notice_ids if self._db.write(reserve, (until, notice_id, now))]

    def channels_with_notices(self) -> Sequence[str]:
        """The recipients that have pending notices."""
        rows = self._db.execute(f"SELECT DISTINCT channel FROM notices WHERE acknowledged_at IS NULL AND NOT ({FOR_CHANNEL})")
        return [row[0] for row in rows]

    def _select(self, where: Sequence[str], values: Sequence[object], limit: int | None) -> Sequence[Notice]:
        newest = f"SELECT {NOTICE} FROM notices WHERE {' AND '.join(where)} ORDER BY notice_id DESC"
        rows = self._db.execute(newest if limit is None else f"{newest} LIMIT {limit}", values)
        return [notice_of(row) for row in reversed(rows)]
