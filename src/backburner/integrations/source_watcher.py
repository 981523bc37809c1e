"""Watches the source of each task and records its trigger events, which start runs.

The state of a source and the event that goes with it are stored in one transaction. A watcher continues from the stored state.
"""

import asyncio
import contextlib
import logging
import time

from backburner.core.errors import BadInput
from backburner.core.models import Task
from backburner.core.optional_dependencies import need
from backburner.core.ports import Source, TriggerEvent
from backburner.core.task_spec import SourceKind, source_fields
from backburner.integrations.sources import SourceBroken
from backburner.services.daemon_parts import IntegrationParts, Services

log = logging.getLogger("backburner")
_MIN_RETRY_DELAY, _MAX_RETRY_DELAY = 5.0, 600.0  # seconds


def open_source(task: Task, environ: dict[str, str], parts: IntegrationParts) -> Source:
    """Open the source of a task. Its tokens are read from `environ`, the environment of the caller that added the task."""
    source = task.spec.source
    assert source is not None
    need(source.kind, "It needs")
    if source.kind is SourceKind.FILE:
        from backburner.integrations.sources import file

        return file.open_source(source_fields(source), parts.clock)
    from backburner.integrations.sources import github

    return github.open_source(source_fields(source), environ, parts.clock, base_url=source.base_url or "https://api.github.com")


class SourceWatcher:
    """Watches the source of one task until it is cancelled."""

    def __init__(self, services: Services, task: Task) -> None:
        self._services, self.task = services, task

    async def run(self) -> None:
        """Watch the source; after an error, record the reason and start again with growing delays."""
        delay = _MIN_RETRY_DELAY
        while True:
            started = time.monotonic()
            try:
                await self._watch()
            except (SourceBroken, BadInput) as error:
                await self._mark_broken(str(error))
            except Exception as error:
                log.exception("watching for %s failed", self.task.task_id)
                await self._mark_broken(f"{type(error).__name__}: {error}")
            delay = _MIN_RETRY_DELAY if time.monotonic() - started > _MAX_RETRY_DELAY else min(_MAX_RETRY_DELAY, delay * 2)
            await asyncio.sleep(delay)

    async def _watch(self) -> None:
        task_id = self.task.task_id
        environ = await self._services.call(lambda parts: parts.queries.environment(parts.queries.get(task_id)))
        source = await self._services.call(lambda parts: open_source(self.task, environ, parts))
        last_state = await self._services.call(lambda parts: parts.triggers.state(task_id))
        async with contextlib.aclosing(source.watch(last_state)) as changes:  # type: ignore[type-var]
            async for state, event in changes:
                await self._services.call(lambda parts, state=state, event=event: parts.triggers.record(task_id, state, event))

    async def _mark_broken(self, reason: str) -> None:
        log.warning("%s: %s", self.task.task_id, reason)
        await self._services.call(lambda parts: parts.triggers.mark_broken(self.task.task_id, reason))


async def record_webhook(services: Services, name: str, delivery: str, event: TriggerEvent) -> bool:
    """Record a webhook request as a trigger event. Return False if it is a duplicate or if no task uses the hook."""

    def record(parts: IntegrationParts) -> bool:
        task = parts.triggers.task_of_webhook(name)
        return task is not None and parts.triggers.record(task.task_id, None, event, delivery)

    return await services.call(record)
