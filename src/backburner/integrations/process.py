"""The integrations process runs the channels, the sources and the webhook receiver of a home.

The engine starts it when a notice has to be delivered or a source has to be watched. The large client libraries are loaded only here.
It can be killed at any moment: undelivered notices and the last state of every source are in the ledger.
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
from backburner.core.ports import Channel, ChannelReply, DeliveryFailed, OutgoingMessage, TriggerEvent
from backburner.core.recipients import Recipient
from backburner.core.settings import Config
from backburner.core.task_spec import SourceKind
from backburner.integrations.delivery import DeliveryWorker
from backburner.integrations.source_watcher import SourceWatcher, record_webhook
from backburner.services.daemon_parts import IntegrationParts, Services, open_integration_parts
from backburner.system.home import Home

log = logging.getLogger("backburner")
_RETRY_DELAY, _PERMANENT_ERROR_RETRY_DELAY = 2.0, 600.0  # seconds
_POLL_INTERVAL = 5.0  # seconds
_MAX_WEBHOOK_CONNECTIONS = 64  # at a time, each with a body of up to 1 MiB
_STOP_TIMEOUT = 5.0  # seconds


def open_channel(name: str, settings: dict[str, str], environ: dict[str, str]) -> Channel:
    """Open a channel from its settings in config.toml. Secrets are read from the settings or from `environ`."""
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
    """Replaces a channel with invalid settings: every delivery fails with the settings error."""

    def __init__(self, error: BackburnerError) -> None:
        self._error = error

    async def send(self, message: OutgoingMessage) -> str | None:
        raise DeliveryFailed(str(self._error))

    async def check(self) -> None:
        raise DeliveryFailed(str(self._error))

    async def replies(self) -> AsyncIterator[ChannelReply]:
        for reply in ():
            yield reply

    async def close(self) -> None:
        return


def _open_channel_or_broken(name: str, settings: dict[str, str], environ: dict[str, str]) -> Channel:
    try:
        return open_channel(name, settings, environ)
    except BackburnerError as error:
        return BrokenChannel(error)


class IntegrationsProcess:
    """Runs one delivery worker per channel, one watcher per source, and one webhook receiver, as needed."""

    def __init__(self, services: Services, config: ConfigFile, process: DaemonProcess) -> None:
        self._services, self._config, self._process = services, config, process
        self._applied = config.current
        self._workers: dict[str, DeliveryWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._update: asyncio.Task[None] | None = None
        self._update_requested = False
        self._next_update: asyncio.TimerHandle | None = None

    def tick(self) -> None:
        """Start an update. If an update is already running, another one follows it."""
        if self._update is None:
            self._update = asyncio.create_task(self._run_update())
        else:
            self._update_requested = True

    def is_busy(self) -> bool:
        """Return whether there is anything to deliver, watch or receive."""
        return bool(self._tasks) or self._update is not None

    def config_changed(self, config: Config) -> None:
        """Do nothing: the next update applies the settings."""

    async def close(self) -> None:
        """Stop everything. Undelivered notices stay in the ledger, and so does the last state of every source."""
        if self._next_update:
            self._next_update.cancel()
        running = [*self._tasks.values(), *([self._update] if self._update else [])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _run_update(self) -> None:
        try:
            await self._apply_settings()
            required = await self._find_required()
            await self._cancel(self._tasks.keys() - required.keys())
            for key, start in required.items():
                if key not in self._tasks or self._tasks[key].done():
                    self._tasks[key] = asyncio.create_task(self._run_and_log_errors(key, start()))
        except BackburnerError as error:
            log.warning("%s", error)
        finally:
            self._update = None
        if self._next_update:
            self._next_update.cancel()
        # There is no wake-up for an edited config.toml or for a worker that has ended.
        delay = 0.0 if self._update_requested else _POLL_INTERVAL
        self._update_requested = False
        self._next_update = asyncio.get_running_loop().call_later(delay, self._process.wake)

    async def _apply_settings(self) -> None:
        """Restart the channels and the receiver whose settings changed; the others keep running."""
        before, config = self._applied, self._config.current
        if config is before:
            return
        channels = [name for name in self._workers if before.channels.get(name) != config.channels.get(name)]
        changed = {key for name in channels for key in (f"channel {name}", f"replies of {name}")}
        if any(before.values[name] != config.values[name] for name in ("webhooks.port", "webhooks.hosts")):
            changed.add("webhooks")
        await self._cancel(self._tasks.keys() & changed)
        for name in channels:
            await self._workers.pop(name).channel.close()
        self._applied = config

    async def _cancel(self, keys: Iterable[str]) -> None:
        """Cancel these tasks and wait for them: a port must be free before it is opened again."""
        ended = [self._tasks.pop(key) for key in keys]
        for task in ended:
            task.cancel()
        if ended:
            await asyncio.wait(ended, timeout=_STOP_TIMEOUT)

    async def _run_and_log_errors(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except DeliveryFailed as error:
            log.warning("%s: %s", key, error)
            await asyncio.sleep(_PERMANENT_ERROR_RETRY_DELAY if error.permanent else error.retry_after or _RETRY_DELAY)
        except BackburnerError as error:
            log.warning("%s: %s", key, error)
            await asyncio.sleep(_RETRY_DELAY)
        except Exception:
            log.exception("%s failed", key)
            await asyncio.sleep(_RETRY_DELAY)

    async def _find_required(self) -> dict[str, Any]:
        """Return the tasks that have to run now: a start function for each name."""

        def read(parts: IntegrationParts) -> tuple[set[str], set[str], list[Any], dict[str, dict[str, str]]]:
            if not parts.leads():
                files = [task for task in parts.triggers.watched_tasks() if task.spec.source_kind == SourceKind.FILE]
                return set(), set(), files, parts.config.channels
            pending = {Recipient.parse(notice.channel).name for notice in parts.deliveries.pending()}
            with_questions = {name for name in parts.config.channels if parts.deliveries.open_questions(name)}
            return pending, with_questions, list(parts.triggers.watched_tasks()), parts.config.channels

        pending, with_questions, watched, channels = await self._services.call(read)
        required: dict[str, Any] = {}
        for name in pending | with_questions:
            if name not in channels:
                await self._services.call(lambda parts, name=name: _fail_unknown_channel(parts, name))
                continue
            if name not in self._workers:
                channel = _open_channel_or_broken(name, channels[name], self._services.environ)
                self._workers[name] = DeliveryWorker(self._services, name, channel)
            worker = self._workers[name]
            required[f"channel {name}"] = worker.run
            if name in with_questions:
                required[f"replies of {name}"] = worker.listen
        for task in watched:
            if task.spec.source_kind != SourceKind.WEBHOOK:
                required[f"source of {task.task_id}"] = SourceWatcher(self._services, task).run
        if any(task.spec.source_kind == SourceKind.WEBHOOK for task in watched):
            required["webhooks"] = self._receive_webhooks
        return required

    async def _receive_webhooks(self) -> None:
        """Receive webhooks over HTTP on a loopback port."""
        from backburner.integrations.sources.webhook import Hook, receiver
        from backburner.system.http_server import http_server

        async def find_hook(name: str) -> Hook | None:
            return await self._services.call(lambda parts: _find_hook(parts, name))

        async def deliver(name: str, delivery: str, event: TriggerEvent) -> bool:
            return await record_webhook(self._services, name, delivery, event)

        port = await self._services.call(lambda parts: parts.config.whole("webhooks.port"))
        hosts = await self._services.call(lambda parts: parts.config.text("webhooks.hosts"))
        app = receiver(find_hook, deliver, hosts=frozenset(_split_names(hosts)))
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            listener.close()
            raise BackburnerError(f"cannot listen on 127.0.0.1 port {port}: {error.strerror}") from None
        server = http_server(app, max_connections=_MAX_WEBHOOK_CONNECTIONS, lifespan="off")
        setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010 - DaemonProcess handles signals
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            # A cancelled server leaves its closed socket registered with the event loop. The loop would then report nothing
            # for the next socket that gets the same file descriptor.
            server.should_exit = True
            await serving
            raise
        finally:
            listener.close()


def _fail_unknown_channel(parts: IntegrationParts, name: str) -> None:
    """Mark the notices for a channel that is no longer in config.toml as failed deliveries."""
    ids = [notice.notice_id for notice in parts.deliveries.pending(name)]
    parts.deliveries.mark_failed(ids, f"there is no [channels.{name}] in config.toml", None)


def _find_hook(parts: IntegrationParts, name: str) -> Any:
    from backburner.integrations.sources.webhook import Hook

    task = parts.triggers.task_of_webhook(name)
    if task is None or task.spec.source is None:
        return None
    secret = parts.queries.environment(parts.queries.get(task.task_id)).get(task.spec.source.secret_env, "")
    style = "github" if task.spec.source.style == "github" else "backburner"
    return Hook(name, secret, style) if secret else None


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


async def serve(home: Home) -> None:
    """Run the integrations process until there is nothing to deliver, watch or receive for `integrations.idle_exit_seconds`."""
    environ = dict(os.environ)
    config = ConfigFile(home, environ)
    async with Services(lambda: open_integration_parts(home, environ, config)) as services:
        process = DaemonProcess(home, config, idle_exit=lambda current: current.number("integrations.idle_exit_seconds"))
        await process.run(IntegrationsProcess(services, config, process))


def main(arguments: list[str]) -> int:
    """`process HOME`: run the integrations process of a home."""
    return run_alone(Home(arguments[0]), "integrations", serve)
