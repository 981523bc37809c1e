"""Delivery of notices to channels: pending, delivered and failed deliveries."""

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
        """Return the notices that wait for delivery to a channel, or to any channel, in order."""
        return self._delivery_store.pending(None if channel is None else to_channel(channel))

    def reserve(self, notice_ids: Sequence[int], seconds: float) -> bool:
        """Reserve notices in order to send them within `seconds`; False if another host is sending one of them, or has sent it."""
        now = self._clock()
        return self._delivery_store.reserve(notice_ids, now, now + int(seconds * 1000))

    def mark_delivered(self, notice_ids: Sequence[int], message_id: str | None) -> None:
        """Record that a channel accepted these notices. `message_id` is set if the message can be answered."""
        self._delivery_store.mark_delivered(notice_ids, message_id, self._clock())
        self._changes.announce()

    def mark_failed(self, notice_ids: Sequence[int], error: str, retry_at: int | None) -> None:
        """Record a failed attempt; `retry_at=None` gives up."""
        self._delivery_store.mark_failed(notice_ids, error, retry_at, self._clock())

    def failed(self) -> Sequence[Notice]:
        """Return the notices whose delivery was given up."""
        return self._delivery_store.failed()

    def retry(self, notice_ids: Sequence[int]) -> None:
        """Send failed notices again."""
        self._delivery_store.retry(notice_ids)
        self._supervisor.wake_or_start_engine()

    def open_questions(self, channel: str) -> Sequence[str]:
        """Return the ids of a channel's messages that ask for approval and have no answer yet."""
        return self._delivery_store.open_questions(to_channel(channel))
