"""Letters on their way: each channel has a worker that sends what is owed, in order, until it has arrived or cannot.

At least once: a letter counts as delivered only when the ledger says so. One that fails holds those behind it, so that the order stays;
the waits grow, and after three days it is a dead letter that `inbox` and `doctor` show.
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
_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 5_000, 3_600_000
_MOST_ATTEMPTS = 80  # with waits of up to an hour: three days
_MOST_IN_DIGEST = 50
_SEND_SECONDS = 60.0


class DeliveryBatch(NamedTuple):
    """What is sent in one go: a notice, or many as a digest."""

    notices: tuple[Notice, ...]
    not_before: int

    def message(self) -> OutgoingMessage:
        first = self.notices[0]
        if len(self.notices) == 1:
            return OutgoingMessage(
                first.key, first.task_id, _title(first), first.text, first.priority, first.created_at, is_question(first)
            )
        keys = hashlib.sha256("\n".join(notice.key for notice in self.notices).encode()).hexdigest()[:32]
        text = "\n\n".join(notice.text for notice in self.notices)
        return OutgoingMessage(f"digest:{keys}", first.task_id, f"{len(self.notices)} notices", text, 0, first.created_at, False)


def next_batch(notices: Sequence[Notice], config: Config, now: int) -> DeliveryBatch | None:
    """What a channel is to send next, and when: not in quiet hours, and gathered where a digest is wanted; what asks or warns at once."""
    if not notices:
        return None
    first, digest = notices[0], int(config.number("notify.digest_minutes") * 60_000)
    gathered = [first]
    not_before = max(now, first.next_attempt_at or 0)
    if digest and first.priority <= 0:
        until = first.created_at + digest
        for notice in notices[1:_MOST_IN_DIGEST]:
            if notice.priority > 0 or notice.created_at > until:
                break
            gathered.append(notice)
        hurried = any(notice.priority > 0 for notice in notices)  # what comes behind it must not wait
        not_before = not_before if hurried else max(not_before, until)
    if first.priority <= 0 and not any(notice.priority > 0 for notice in notices):
        not_before = max(not_before, quiet_until(config.text("notify.quiet_hours"), not_before))
    return DeliveryBatch(tuple(gathered), not_before)


def retry_delay(attempts: int) -> int:
    """How long to wait after so many failures, in milliseconds."""
    return min(_LONGEST_WAIT_MS, _FIRST_WAIT_MS << min(attempts, 16))


class DeliveryWorker:
    """Sends what one channel is owed, for as long as it runs."""

    def __init__(self, services: Services, name: str, channel: Channel) -> None:
        self._services, self.name, self.channel = services, name, channel
        self.idle = False

    async def run(self) -> None:
        async for _ in self._services.changes(self._look):
            while (parcel := await self._next()) and parcel.not_before <= await self._now():
                await self._send(parcel)
            self._wait = None if parcel is None else max(0.05, (parcel.not_before - await self._now()) / 1000)
            self.idle = parcel is None

    _wait: float | None = None

    def _look(self) -> float | None:
        return min(5.0, self._wait) if self._wait is not None else None

    async def _now(self) -> int:
        return await self._services.call(lambda parts: parts.clock())

    async def _next(self) -> DeliveryBatch | None:
        def look(parts: IntegrationParts) -> DeliveryBatch | None:
            return next_batch(parts.deliveries.pending(self.name), parts.config, parts.clock())

        return await self._services.call(look)

    async def _send(self, parcel: DeliveryBatch) -> None:
        ids = [notice.notice_id for notice in parcel.notices]
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                external = await self.channel.send(parcel.message())
        except (DeliveryFailed, TimeoutError) as error:
            await self._failed(parcel, error if isinstance(error, DeliveryFailed) else DeliveryFailed("no answer in time"))
            return
        except Exception as error:  # whatever a library raises: it is tried again, and says why
            log.exception("sending to %s failed", self.name)
            await self._failed(parcel, DeliveryFailed(f"{type(error).__name__}: {error}"))
            return
        await self._services.call(lambda parts: parts.deliveries.mark_delivered(ids, external))

    async def _failed(self, parcel: DeliveryBatch, error: DeliveryFailed) -> None:
        first = parcel.notices[0]
        ids, now = [notice.notice_id for notice in parcel.notices], await self._now()
        wait = max(retry_delay(first.attempts), int((error.retry_after or 0) * 1000))
        again = None if error.for_good or first.attempts >= _MOST_ATTEMPTS else now + wait
        log.warning("%s to %s: %s%s", first.key, self.name, error, "" if again else "; given up")
        await self._services.call(lambda parts: parts.deliveries.mark_failed(ids, str(error), again))

    async def listen(self) -> None:
        """Carry out what people answer, also what they answered while nobody listened."""
        catch_up = getattr(self.channel, "catch_up", None)
        if catch_up is not None:
            asked = await self._services.call(lambda parts: parts.deliveries.open_questions(self.name))
            for answer in await catch_up(asked) if asked else ():
                await self.answered(answer)
        async for answer in self.channel.replies():
            await self.answered(answer)
        await asyncio.Event().wait()  # nobody can answer there: there is no use in asking again

    async def answered(self, answer: ChannelReply) -> None:
        with contextlib.suppress(BackburnerError):  # it was answered elsewhere, or is over
            await self._services.call(lambda parts: parts.approvals.answer(self.name, answer))


def _title(notice: Notice) -> str:
    return visible(notice.task_id)
