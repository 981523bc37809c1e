"""The post host: the one process of a home that talks to the world by itself. Started by the engine when something is owed or watched.

Heavy libraries live here. Killed at any moment it leaves notices that are still owed and sources that remember what they saw last.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from backburner.coordination.config_file import load_config
from backburner.coordination.daemon_process import be_host
from backburner.core.errors import BackburnerError
from backburner.core.models import OUT
from backburner.core.optional_dependencies import need
from backburner.core.ports import Answer, Channel, Letter, Undelivered
from backburner.integrations.delivery import Worker
from backburner.integrations.source_watcher import Watcher, received
from backburner.services.async_runtime import Awaited
from backburner.services.runtime import Runtime, open_runtime
from backburner.system.home import Home, stamp

log = logging.getLogger("backburner")
_AGAIN_SECONDS, _GIVEN_UP_SECONDS = 2.0, 600.0
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


class Broken:
    """A channel whose settings are wrong: every letter comes back with what is."""

    def __init__(self, error: BackburnerError) -> None:
        self._error = error

    async def send(self, letter: Letter) -> str | None:
        raise Undelivered(str(self._error))

    async def answers(self) -> AsyncIterator[Answer]:
        for answer in ():
            yield answer

    async def close(self) -> None:
        return


def _opened(name: str, settings: dict[str, str], environ: dict[str, str]) -> Channel:
    try:
        return open_channel(name, settings, environ)
    except BackburnerError as error:
        return Broken(error)


class Post:
    """Everything that is at work: a worker per channel, a watcher per source, a receiver for webhooks."""

    def __init__(self, home: Home, awaited: Awaited, environ: dict[str, str], config_seen: tuple[int, int] | None) -> None:
        self._home, self._awaited, self._environ = home, awaited, environ
        self._workers: dict[str, Worker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._config_seen = config_seen  # the file as it was before it was read

    async def run(self) -> None:
        """Until nothing is owed or watched for a while."""
        patience = await self._awaited.do(lambda runtime: runtime.config.number("post.idle_exit_seconds"))
        busy_at = asyncio.get_running_loop().time()
        async for _ in self._awaited.changes():
            await self._reload()
            wanted = await self._wanted()
            await self._end(self._tasks.keys() - wanted.keys())
            for key, start in wanted.items():
                if key not in self._tasks or self._tasks[key].done():
                    self._tasks[key] = asyncio.create_task(self._guarded(key, start()))
            now = asyncio.get_running_loop().time()
            if wanted:
                busy_at = now
            if now - busy_at > patience:
                break
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

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
        except Undelivered as error:
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

        def look(runtime: Runtime) -> tuple[set[str], set[str], list[Any], dict[str, dict[str, str]]]:
            owed = {notice.channel.removeprefix(OUT) for notice in runtime.outgoing()}
            asked = {name for name in runtime.config.channels if runtime.questions(OUT + name)}
            return owed, asked, list(runtime.watched()), runtime.config.channels

        owed, asked, watched, channels = await self._awaited.do(look)
        wanted: dict[str, Any] = {}
        for name in owed | asked:
            if name not in channels:
                await self._awaited.do(lambda runtime, name=name: _without_channel(runtime, name))
                continue
            if name not in self._workers:
                self._workers[name] = Worker(self._awaited, name, _opened(name, channels[name], self._environ))
            worker = self._workers[name]
            wanted[f"channel {name}"] = worker.run
            if name in asked:
                wanted[f"answers of {name}"] = worker.listen
        for task in watched:
            if task.source["kind"] != "webhook":
                wanted[f"source of {task.task_id}"] = Watcher(self._awaited, task).run
        if any(task.source["kind"] == "webhook" for task in watched):
            wanted["webhooks"] = self._receive
        return wanted

    async def _receive(self) -> None:
        """Webhooks, over HTTP on loopback."""
        from backburner.integrations.sources.webhook import Hook, receiver
        from backburner.system.http_server import http_server

        async def hook(name: str) -> Hook | None:
            return await self._awaited.do(lambda runtime: _hook(runtime, name))

        port = await self._awaited.do(lambda runtime: runtime.config.whole("hooks.port"))
        hosts = await self._awaited.do(lambda runtime: runtime.config.text("hooks.hosts"))
        app = receiver(hook, lambda name, delivery, event: received(self._awaited, name, delivery, event), hosts=frozenset(_names(hosts)))
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

    async def _reload(self) -> None:
        """Take a changed config.toml over: what it concerns starts anew, the rest goes on. A wrong one is said and changes nothing."""
        if (seen := stamp(self._home.config)) == self._config_seen:
            return
        self._config_seen = seen
        try:
            config = load_config(self._home, self._environ)
        except BackburnerError as error:
            log.warning("%s; the settings of before stay for channels and webhooks", error)
            return
        before = await self._awaited.do(lambda runtime: runtime.config)
        await self._awaited.do(lambda runtime: setattr(runtime, "config", config))
        channels = [name for name in self._workers if before.channels.get(name) != config.channels.get(name)]
        changed = {key for name in channels for key in (f"channel {name}", f"answers of {name}")}
        if any(before.values[name] != config.values[name] for name in ("hooks.port", "hooks.hosts")):
            changed.add("webhooks")
        await self._end(self._tasks.keys() & changed)
        for name in channels:
            await self._workers.pop(name).channel.close()


def _without_channel(runtime: Runtime, name: str) -> None:
    """A channel that config.toml has no more: what was owed to it is a dead letter."""
    ids = [notice.notice_id for notice in runtime.outgoing(OUT + name)]
    runtime.undelivered(ids, f"there is no [channels.{name}] in config.toml", None)


def _hook(runtime: Runtime, name: str) -> Any:
    from backburner.integrations.sources.webhook import Hook

    task = runtime.hook(name)
    if task is None:
        return None
    variable = task.source.get("secret_env", "")
    secret = runtime.environment(runtime.known_as(task.task_id)).get(variable, "")
    style = "github" if task.source.get("style") == "github" else "backburner"
    return Hook(name, secret, style) if secret else None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


async def _serve(home: Home, environ: dict[str, str]) -> None:
    done, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, done.set)
    seen = stamp(home.config)
    async with Awaited(lambda: open_runtime(home, environ)) as awaited:
        running = asyncio.create_task(Post(home, awaited, environ, seen).run())
        stopping = asyncio.create_task(done.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        failed = running.exception() if running.done() else None
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
        if failed:
            raise failed


def main(arguments: list[str]) -> int:
    """`host HOME`: be the post host until there is nothing to do."""
    return be_host(Home(arguments[0]), "post", lambda home: _serve(home, dict(os.environ)))
