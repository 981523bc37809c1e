"""What sources see becomes runs: each is watched from where it was left, and what it remembers is kept together with what follows."""

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
_AGAIN_SECONDS, _LONGEST_AGAIN_SECONDS = 5.0, 600.0


def open_source(task: Task, environ: dict[str, str], parts: IntegrationParts) -> Source:
    """The source of a task; its keys come from the environment of whoever added it."""
    source = task.spec.source
    assert source is not None
    need(source.kind, "It needs")
    if source.kind is SourceKind.FILE:
        from backburner.integrations.sources import file

        return file.open_source(source_fields(source), parts.clock)
    from backburner.integrations.sources import github

    return github.open_source(source_fields(source), environ, parts.clock, base_url=source.base_url or "https://api.github.com")


class SourceWatcher:
    """Watches the source of one task, for as long as it runs."""

    def __init__(self, services: Services, task: Task) -> None:
        self._services, self.task = services, task

    async def run(self) -> None:
        """Go on whatever happens to the source; what is wrong with it is said."""
        wait = _AGAIN_SECONDS
        while True:
            began = time.monotonic()
            try:
                await self._watch()
            except (SourceBroken, BadInput) as error:
                await self._broken(str(error))
            except Exception as error:
                log.exception("watching for %s failed", self.task.task_id)
                await self._broken(f"{type(error).__name__}: {error}")
            wait = _AGAIN_SECONDS if time.monotonic() - began > _LONGEST_AGAIN_SECONDS else min(_LONGEST_AGAIN_SECONDS, wait * 2)
            await asyncio.sleep(wait)

    async def _watch(self) -> None:
        task_id = self.task.task_id
        environ = await self._services.call(lambda parts: parts.queries.environment(parts.queries.get(task_id)))
        source = await self._services.call(lambda parts: open_source(self.task, environ, parts))
        last = await self._services.call(lambda parts: parts.triggers.state(task_id))
        async with contextlib.aclosing(source.watch(last)) as seen:  # type: ignore[type-var]
            async for state, happening in seen:
                await self._services.call(lambda parts, state=state, happening=happening: parts.triggers.record(task_id, state, happening))

    async def _broken(self, reason: str) -> None:
        log.warning("%s: %s", self.task.task_id, reason)
        await self._services.call(lambda parts: parts.triggers.mark_broken(self.task.task_id, reason))


async def received(services: Services, name: str, delivery: str, happening: TriggerEvent) -> bool:
    """A webhook came in; False where it did before, or nobody waits for it."""

    def deliver(parts: IntegrationParts) -> bool:
        task = parts.triggers.task_of_webhook(name)
        return task is not None and parts.triggers.record(task.task_id, None, happening, delivery)

    return await services.call(deliver)
