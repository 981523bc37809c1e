"""The integrations process: channels, sources and webhooks of a home. The engine starts it when something is to be delivered or watched.

The heavy libraries are loaded here. Killed at any moment, it leaves undelivered notices in the ledger and sources that remember what they
saw last.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from backburner.coordination.config_file import ConfigFile
from backburner.coordination.daemon_process import DaemonProcess, run_alone
from backburner.core.errors import BackburnerError
from backburner.core.optional_dependencies import need
from backburner.core.ports import Channel, ChannelReply, DeliveryFailed, OutgoingMessage
from backburner.core.recipients import Recipient
from backburner.core.settings import Config
from backburner.core.task_spec import SourceKind
from backburner.integrations.delivery import DeliveryWorker
from backburner.integrations.source_watcher import SourceWatcher, received
from backburner.services.daemon_parts import IntegrationParts, Services, open_integration_parts
from backburner.system.home import Home

log = logging.getLogger("backburner")
_AGAIN_SECONDS, _GIVEN_UP_SECONDS = 2.0, 600.0
_POLL_INTERVAL = 5.0
_MAX_WEBHOOKS = 64  # connections at a time, each with a body of up to 1 MiB
_END_SECONDS = 5.0  # for what is at work to end


def open_channel(name: str, settings: dict[str, str], environ: dict[str, str]) -> Channel:
    """A channel as config.toml has it; its secrets stand there, or in the environment of whoever serves."""
    for key in ("token", "secret"):
        if settings.get(key):
            variable = f"BACKBURNER_CHANNEL_{key.upper()}"
            settings, environ = {**settings, f"{key}_env": variable}, {**environ, variable: settings[key]}
    need(settings["type"], "It needs")
    match settings["type"]:
        case "discord":
            from backburner.integrations.channels.discord import open_channel
        case "webhook":
            from backburner.integrations.channels.webhook import open_channel
        case _:
            from backburner.integrations.channels.apprise import open_channel
    return open_channel(name, settings, environ)


class BrokenChannel:
    """A channel whose settings are wrong: every letter comes back with what is."""

    def __init__(self, error: BackburnerError) -> None:
        self._error = error

    async def send(self, letter: OutgoingMessage) -> str | None:
        raise DeliveryFailed(str(self._error))

    async def replies(self) -> AsyncIterator[ChannelReply]:
        for answer in ():
            yield answer

    async def close(self) -> None:
        return


def _opened(name: str, settings: dict[str, str], environ: dict[str, str]) -> Channel:
    try:
        return open_channel(name, settings, environ)
    except BackburnerError as error:
        return BrokenChannel(error)


class IntegrationsProcess:
    """Keeps what is needed running: a worker per channel, a watcher per source, a receiver for webhooks."""

    def __init__(self, services: Services, config: ConfigFile, process: DaemonProcess) -> None:
        self._services, self._config, self._process = services, config, process
        self._applied = config.current
        self._workers: dict[str, DeliveryWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._update: asyncio.Task[None] | None = None
        self._again = False
        self._look_again: asyncio.TimerHandle | None = None

    def tick(self) -> None:
        """Begin an update; one that is under way is followed by another."""
        if self._update is None:
            self._update = asyncio.create_task(self._run_update())
        else:
            self._again = True

    def is_busy(self) -> bool:
        """Whether anything has to be delivered, watched or received."""
        return bool(self._tasks) or self._update is not None

    def config_changed(self, config: Config) -> None:
        """The update that follows applies the settings."""

    async def close(self) -> None:
        """End everything; what is not delivered stays in the ledger, and sources remember what they saw last."""
        if self._look_again:
            self._look_again.cancel()
        running = [*self._tasks.values(), *([self._update] if self._update else [])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run_update(self) -> None:
        try:
            await self._apply_settings()
            wanted = await self._wanted()
            await self._end(self._tasks.keys() - wanted.keys())
            for key, start in wanted.items():
                if key not in self._tasks or self._tasks[key].done():
                    self._tasks[key] = asyncio.create_task(self._guarded(key, start()))
        except BackburnerError as error:
            log.warning("%s", error)
        finally:
            self._update = None
        if self._look_again:
            self._look_again.cancel()
        # Nothing wakes us for an edited config.toml, or for a worker that ended.
        delay = 0.0 if self._again else _POLL_INTERVAL
        self._again = False
        self._look_again = asyncio.get_running_loop().call_later(delay, self._process.wake)

    async def _apply_settings(self) -> None:
        """Restart what changed settings concern; the rest goes on."""
        before, config = self._applied, self._config.current
        if config is before:
            return
        channels = [name for name in self._workers if before.channels.get(name) != config.channels.get(name)]
        changed = {key for name in channels for key in (f"channel {name}", f"answers of {name}")}
        if any(before.values[name] != config.values[name] for name in ("webhooks.port", "webhooks.hosts")):
            changed.add("webhooks")
        await self._end(self._tasks.keys() & changed)
        for name in channels:
            await self._workers.pop(name).channel.close()
        self._applied = config

    async def _end(self, keys: Iterable[str]) -> None:
        """End some of what is at work, and wait for it: a port must be free before it is listened on again."""
        ended = [self._tasks.pop(key) for key in keys]
        for task in ended:
            task.cancel()
        if ended:
            await asyncio.wait(ended, timeout=_END_SECONDS)

    async def _guarded(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except DeliveryFailed as error:
            log.warning("%s: %s", key, error)
            await asyncio.sleep(_GIVEN_UP_SECONDS if error.for_good else error.retry_after or _AGAIN_SECONDS)
        except BackburnerError as error:
            log.warning("%s: %s", key, error)
            await asyncio.sleep(_AGAIN_SECONDS)
        except Exception:
            log.exception("%s failed", key)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _wanted(self) -> dict[str, Any]:
        """What is to be at work now, by name: how to start it."""

        def look(parts: IntegrationParts) -> tuple[set[str], set[str], list[Any], dict[str, dict[str, str]]]:
            owed = {Recipient.parse(notice.channel).name for notice in parts.deliveries.pending()}
            asked = {name for name in parts.config.channels if parts.deliveries.open_questions(name)}
            return owed, asked, list(parts.triggers.watched_tasks()), parts.config.channels

        owed, asked, watched, channels = await self._services.call(look)
        wanted: dict[str, Any] = {}
        for name in owed | asked:
            if name not in channels:
                await self._services.call(lambda parts, name=name: _without_channel(parts, name))
                continue
            if name not in self._workers:
                self._workers[name] = DeliveryWorker(self._services, name, _opened(name, channels[name], self._services.environ))
            worker = self._workers[name]
            wanted[f"channel {name}"] = worker.run
            if name in asked:
                wanted[f"answers of {name}"] = worker.listen
        for task in watched:
            if task.spec.source_kind != SourceKind.WEBHOOK:
                wanted[f"source of {task.task_id}"] = SourceWatcher(self._services, task).run
        if any(task.spec.source_kind == SourceKind.WEBHOOK for task in watched):
            wanted["webhooks"] = self._receive
        return wanted

    async def _receive(self) -> None:
        """Webhooks, over HTTP on loopback."""
        from backburner.integrations.sources.webhook import Hook, receiver
        from backburner.system.http_server import http_server

        async def hook(name: str) -> Hook | None:
            return await self._services.call(lambda parts: _hook(parts, name))

        port = await self._services.call(lambda parts: parts.config.whole("webhooks.port"))
        hosts = await self._services.call(lambda parts: parts.config.text("webhooks.hosts"))
        app = receiver(hook, lambda name, delivery, event: received(self._services, name, delivery, event), hosts=frozenset(_names(hosts)))
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            listening.close()
            raise BackburnerError(f"port {port} of 127.0.0.1 cannot be listened on: {error.strerror}") from None
        server = http_server(app, max_connections=_MAX_WEBHOOKS, lifespan="off")
        setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010 - the signals are ours
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            # Cancelled itself it would leave its closed socket with the event loop, which then hears nothing of the next on that number.
            server.should_exit = True
            await serving
            raise
        finally:
            listening.close()


def _without_channel(parts: IntegrationParts, name: str) -> None:
    """A channel that config.toml has no more: what was owed to it is a dead letter."""
    ids = [notice.notice_id for notice in parts.deliveries.pending(name)]
    parts.deliveries.mark_failed(ids, f"there is no [channels.{name}] in config.toml", None)


def _hook(parts: IntegrationParts, name: str) -> Any:
    from backburner.integrations.sources.webhook import Hook

    task = parts.triggers.task_of_webhook(name)
    if task is None or task.spec.source is None:
        return None
    secret = parts.queries.environment(parts.queries.get(task.task_id)).get(task.spec.source.secret_env, "")
    style = "github" if task.spec.source.style == "github" else "backburner"
    return Hook(name, secret, style) if secret else None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


async def serve(home: Home) -> None:
    """Run the integrations process until nothing is to be delivered, watched or received for a while."""
    environ = dict(os.environ)
    config = ConfigFile(home, environ)
    async with Services(lambda: open_integration_parts(home, environ, config)) as services:
        process = DaemonProcess(home, config, idle_exit=lambda current: current.number("integrations.idle_exit_seconds"))
        await process.run(IntegrationsProcess(services, config, process))


def main(arguments: list[str]) -> int:
    """`process HOME`: run the integrations process of a home."""
    return run_alone(Home(arguments[0]), "integrations", serve)
