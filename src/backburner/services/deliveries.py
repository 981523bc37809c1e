"""Notices on their way to channels: what is pending, and whether it arrived."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backburner.coordination.changes import ChangeFeed
from backburner.coordination.supervision import EngineSupervisor
from backburner.core.models import Clock
from backburner.core.notices import Notice
from backburner.core.recipients import to_channel

if TYPE_CHECKING:
    from backburner.core.store_ports import DeliveryStore


class Deliveries:
    """The outbox. The integrations process sends from it; `inbox --again` retries what failed."""

    def __init__(self, delivery_store: "DeliveryStore", changes: ChangeFeed, supervisor: EngineSupervisor, clock: Clock) -> None:
        self._delivery_store, self._changes, self._supervisor, self._clock = delivery_store, changes, supervisor, clock

    def pending(self, channel: str | None = None) -> Sequence[Notice]:
        """The notices that a channel, or any, still has to send, in order."""
        return self._delivery_store.pending(None if channel is None else to_channel(channel))

    def mark_delivered(self, notice_ids: Sequence[int], message_id: str | None) -> None:
        """Record that a channel accepted these notices, and what it calls the message if an answer to it can come back."""
        self._delivery_store.mark_delivered(notice_ids, message_id, self._clock())
        self._changes.announce()

    def mark_failed(self, notice_ids: Sequence[int], error: str, retry_at: int | None) -> None:
        """Record a failed attempt; `retry_at=None` gives up."""
        self._delivery_store.mark_failed(notice_ids, error, retry_at, self._clock())

    def failed(self) -> Sequence[Notice]:
        """The notices that were given up."""
        return self._delivery_store.failed()

    def retry(self, notice_ids: Sequence[int]) -> None:
        """Send failed notices again."""
        self._delivery_store.retry(notice_ids)
        self._supervisor.wake_or_start_engine()

    def open_questions(self, channel: str) -> Sequence[str]:
        """The messages of a channel that ask something and have no answer yet."""
        return self._delivery_store.open_questions(to_channel(channel))
