"""Delivers notices: each channel has a worker that sends its pending notices in order.

Delivery is at least once: a notice counts as delivered only after the ledger has recorded it. A notice that fails blocks the ones behind
it, so that the order is kept. The retry delays grow; after three days it becomes a failed delivery, which `inbox` and `doctor` show.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Sequence
from typing import NamedTuple

from backburner.core.errors import BackburnerError
from backburner.core.notice_text import is_question
from backburner.core.notices import Notice
from backburner.core.ports import Channel, ChannelReply, DeliveryFailed, OutgoingMessage
from backburner.core.settings import Config
from backburner.core.terminal_text import visible
from backburner.core.time_input import quiet_until
from backburner.services.daemon_parts import IntegrationParts, Services

log = logging.getLogger("backburner")
_MIN_RETRY_DELAY_MS, _MAX_RETRY_DELAY_MS = 5_000, 3_600_000
_MAX_ATTEMPTS = 80  # three days, with delays of up to an hour
_MAX_DIGEST_NOTICES = 50
_SEND_TIMEOUT = 60.0  # seconds
_RESERVED_MARGIN = 30.0  # seconds to record the result of a message that took the whole timeout
_RESERVED_INTERVAL = 1.0  # seconds until a message is looked at again that another host is sending
_MAX_POLL_INTERVAL = 5.0  # seconds


class DeliveryBatch(NamedTuple):
    """The notices of one message: a single notice, or several as a digest."""

    notices: tuple[Notice, ...]
    not_before: int

    def message(self, title: str) -> OutgoingMessage:
        """The message to send; `title` is the name of the task of a single notice."""
        first = self.notices[0]
        if len(self.notices) == 1:
            return OutgoingMessage(
                first.key, first.task_id, visible(title), first.text, first.priority, first.created_at, is_question(first)
            )
        keys = hashlib.sha256("\n".join(notice.key for notice in self.notices).encode()).hexdigest()[:32]
        text = "\n\n".join(notice.text for notice in self.notices)
        return OutgoingMessage(f"digest:{keys}", first.task_id, f"{len(self.notices)} notices", text, 0, first.created_at, False)


def next_batch(notices: Sequence[Notice], config: Config, now: int) -> DeliveryBatch | None:
    """Return what a channel has to send next, and when.

    Ordinary notices wait for the end of quiet hours and for the digest interval. Questions and warnings are sent immediately, and so is
    everything that precedes them.
    """
    if not notices:
        return None
    first, digest_ms = notices[0], int(config.number("notify.digest_minutes") * 60_000)
    has_urgent = any(notice.priority > 0 for notice in notices)  # an urgent notice must not wait for those before it
    batch = [first]
    not_before = max(now, first.next_attempt_at or 0)
    if digest_ms and first.priority <= 0:
        digest_end = first.created_at + digest_ms
        for notice in notices[1:_MAX_DIGEST_NOTICES]:
            if notice.priority > 0 or notice.created_at > digest_end:
                break
            batch.append(notice)
        if not has_urgent:
            not_before = max(not_before, digest_end)
    if first.priority <= 0 and not has_urgent:
        not_before = max(not_before, quiet_until(config.text("notify.quiet_hours"), not_before))
    return DeliveryBatch(tuple(batch), not_before)


def retry_delay(attempts: int) -> int:
    """Return the delay after that many failed attempts, in milliseconds."""
    return min(_MAX_RETRY_DELAY_MS, _MIN_RETRY_DELAY_MS << min(attempts, 16))


class DeliveryWorker:
    """Sends the notices of one channel until it is cancelled."""

    def __init__(self, services: Services, name: str, channel: Channel) -> None:
        self._services, self.name, self.channel = services, name, channel
        self.idle = False

    async def run(self) -> None:
        async for _ in self._services.changes(self._poll_interval):
            is_taken = False
            while not is_taken and (batch := await self._next_batch()) and batch.not_before <= await self._now():
                is_taken = not await self._send(batch)
            shortest = _RESERVED_INTERVAL if is_taken else 0.05
            self._wait_seconds = None if batch is None else max(shortest, (batch.not_before - await self._now()) / 1000)
            self.idle = batch is None

    _wait_seconds: float | None = None

    def _poll_interval(self) -> float | None:
        return min(_MAX_POLL_INTERVAL, self._wait_seconds) if self._wait_seconds is not None else None

    async def _now(self) -> int:
        return await self._services.call(lambda parts: parts.clock())

    async def _next_batch(self) -> DeliveryBatch | None:
        def read(parts: IntegrationParts) -> DeliveryBatch | None:
            return next_batch(parts.deliveries.pending(self.name), parts.config, parts.clock())

        return await self._services.call(read)

    async def _send(self, batch: DeliveryBatch) -> bool:
        """Send a message and record how that went; False if another host, which also thinks that it leads, has it."""
        ids, task_id = [notice.notice_id for notice in batch.notices], batch.notices[0].task_id
        title = await self._services.call(lambda parts: parts.queries.get(task_id).task.spec.name or task_id)
        if not await self._services.call(lambda parts: parts.deliveries.reserve(ids, _SEND_TIMEOUT + _RESERVED_MARGIN)):
            return False
        try:
            async with asyncio.timeout(_SEND_TIMEOUT):
                message_id = await self.channel.send(batch.message(title))
        except (DeliveryFailed, TimeoutError) as error:
            await self._record_failure(batch, error if isinstance(error, DeliveryFailed) else DeliveryFailed("no answer in time"))
            return True
        except Exception as error:  # an error of a client library: record it and retry
            log.exception("sending to %s failed", self.name)
            await self._record_failure(batch, DeliveryFailed(f"{type(error).__name__}: {error}"))
            return True
        await self._services.call(lambda parts: parts.deliveries.mark_delivered(ids, message_id))
        return True

    async def _record_failure(self, batch: DeliveryBatch, error: DeliveryFailed) -> None:
        first = batch.notices[0]
        ids, now = [notice.notice_id for notice in batch.notices], await self._now()
        delay = max(retry_delay(first.attempts), int((error.retry_after or 0) * 1000))
        retry_at = None if error.permanent or first.attempts >= _MAX_ATTEMPTS else now + delay
        log.warning("%s to %s: %s%s", first.key, self.name, error, "" if retry_at else "; giving up")
        await self._services.call(lambda parts: parts.deliveries.mark_failed(ids, str(error), retry_at))

    async def listen(self) -> None:
        """Apply the replies that users send, including those sent while this process was not running."""
        catch_up = getattr(self.channel, "catch_up", None)
        if catch_up is not None:
            questions = await self._services.call(lambda parts: parts.deliveries.open_questions(self.name))
            for reply in await catch_up(questions) if questions else ():
                await self.apply_reply(reply)
        async for reply in self.channel.replies():
            await self.apply_reply(reply)
        await asyncio.Event().wait()  # the channel has no replies; without this the caller would start `listen` again

    async def apply_reply(self, reply: ChannelReply) -> None:
        with contextlib.suppress(BackburnerError):  # the question is already answered or has expired
            await self._services.call(lambda parts: parts.approvals.answer(self.name, reply))
