"""OpenCode servers: a server of the user, found by its URL, or one that we start. Ours survives our process and is found again.

A server is recorded on disk before it is started, so that no process can be left that nobody knows about.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import os
import re
import secrets
import socket
import subprocess
from typing import Any

import httpx2

from backburner.agents import child_process
from backburner.agents.external.turn import AgentFailed
from backburner.core.models import ProcessId
from backburner.core.recurring import AUTH, TRANSIENT
from backburner.core.terminal_text import clean, shortened
from backburner.system import processes
from backburner.system.home import OPENCODE_SERVERS as FOLDER
from backburner.system.home import Home, lock, read_plain, write_atomically

log = logging.getLogger("backburner")
_START_TIMEOUT_SECONDS = 90.0
_RECONNECT_TIMEOUT_SECONDS = 60.0  # for a server of the user
_REQUEST_TIMEOUT_SECONDS = 60.0
_FIRST_EVENT_TIMEOUT_SECONDS = 5.0  # a server that is still starting may never send one
_SILENCE_TIMEOUT_SECONDS = 25.0  # the server sends a heartbeat every 10 s
_MAX_LOG_BYTES = 4 << 20
_PAYLOAD = '"payload":{'
# Frequent events whose content is also sent in other events.
_IGNORED_EVENTS = re.compile(_PAYLOAD.replace("{", r"\{") + r'(?:"id":"[^"]*",)?"type":"(?:message\.part\.delta|sync)"')
# Variables of a single terminal, which are not passed to a shared server. For any other difference in the environment another server is
# started: a command that was approved for one environment must not run in another.
_TERMINAL_VARIABLES = re.compile(
    r"_|PWD|OLDPWD|SHLVL|LINES|COLUMNS|TERM\w*|COLORTERM|WINDOWID|DISPLAY|WAYLAND_DISPLAY|VTE_\w+|TMUX\w*|STY|SSH_(TTY|CONNECTION|CLIENT)"
    r"|GPG_TTY|XDG_SESSION_\w+|DBUS_SESSION_BUS_ADDRESS|\w*_SESSION_ID|TRACEPARENT"
)
# Added to the events. After STREAM_OPEN, earlier events may have been missed; after STREAM_LOST, later ones are.
STREAM_OPEN: dict[str, Any] = {"type": "backburner.connected"}
STREAM_LOST: dict[str, Any] = {"type": "backburner.cut"}


class ServerUnreachable(Exception):
    """The server does not answer."""


class NotFound(Exception):
    """The requested object does not exist, or no longer exists."""


class OpenCodeServer:
    """An OpenCode server and its event stream. `process_tag` marks the processes of a server that we started."""

    def __init__(self, url: str, password: str, leader: ProcessId | None = None, process_tag: str = "", user: str = "opencode") -> None:
        self.url, self.leader, self.process_tag = url.rstrip("/"), leader, process_tag
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Basic {credentials}"} if password else {},
            timeout=httpx2.Timeout(_REQUEST_TIMEOUT_SECONDS, connect=5.0),
            trust_env=False,
        )
        self._listeners: dict[str, list[asyncio.Queue[dict[str, Any]]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None, *, directory: str = "", seconds: float = 0) -> Any:
        """Send a request and return the JSON answer. ServerUnreachable, NotFound, or AgentFailed with the server's text."""
        try:
            answer = await self._client.request(
                method,
                path,
                json=body,
                params={"directory": directory} if directory else None,
                timeout=httpx2.Timeout(seconds) if seconds else httpx2.USE_CLIENT_DEFAULT,
            )
        except (httpx2.TransportError, RuntimeError) as error:  # RuntimeError: the client was closed meanwhile
            raise ServerUnreachable(f"the OpenCode server at {self.url} does not answer ({type(error).__name__})") from None
        if answer.status_code == 401:
            raise AgentFailed(f"the OpenCode server at {self.url} requires a password: see password_env in docs/asking.md", AUTH)
        if answer.status_code == 404:
            raise NotFound(path)
        if answer.status_code >= 400:
            raise AgentFailed(
                f"OpenCode answered {answer.status_code} to {method} {path}: {shortened(answer.text, longest=500)}", TRANSIENT
            )
        try:
            return answer.json() if answer.content else None
        except ValueError:
            raise AgentFailed(f"{self.url} is not an OpenCode server: its answer is not JSON") from None

    async def is_healthy(self) -> bool:
        """Whether the server answers a health check. A server that is still starting drops requests."""
        with contextlib.suppress(ServerUnreachable, NotFound, AgentFailed):
            answer = await self.call("GET", "/global/health", seconds=1.0)
            return isinstance(answer, dict) and bool(answer.get("healthy"))
        return False

    @contextlib.asynccontextmanager
    async def listen(self, session: str) -> Any:
        """A queue with the events of one session."""
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._listeners.setdefault(session, []).append(queue)
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._read_events())
        try:
            yield queue
        finally:
            self._listeners[session].remove(queue)
            if not self._listeners[session]:
                del self._listeners[session]

    async def _read_events(self) -> None:
        pause = 0.1
        while True:
            try:
                timeout = httpx2.Timeout(_SILENCE_TIMEOUT_SECONDS, connect=5.0)
                async with (
                    asyncio.timeout(_FIRST_EVENT_TIMEOUT_SECONDS) as first_event,
                    self._client.stream("GET", "/global/event", timeout=timeout) as answer,
                ):
                    answer.raise_for_status()
                    async for line in answer.aiter_lines():
                        if line.startswith("data:"):
                            first_event.reschedule(None)
                            self._on_event(line[5:])
                            pause = 0.1
            except (httpx2.HTTPError, ValueError, TimeoutError) as error:
                log.info("event stream of %s: %s", self.url, error)
            if self.connected.is_set():
                self.connected.clear()
                self._broadcast(STREAM_LOST)
            await asyncio.sleep(pause)
            pause = min(5.0, pause * 2)

    def _on_event(self, line: str) -> None:
        if _IGNORED_EVENTS.match(line, line.find(_PAYLOAD)):
            return
        event = json.loads(line)
        payload = event.get("payload") if isinstance(event, dict) else None
        properties = (payload.get("properties") or {}) if isinstance(payload, dict) else None
        if not isinstance(payload, dict) or not isinstance(properties, dict):
            return
        kind = payload.get("type")
        if kind == "server.connected":
            self.connected.set()
            self._broadcast(STREAM_OPEN)
            return
        info, part = (found if isinstance(found, dict) else {} for found in (properties.get("info"), properties.get("part")))
        info_session = info.get("id") if str(kind).startswith("session.") else info.get("sessionID")
        session = properties.get("sessionID") or info_session or part.get("sessionID")
        for queue in self._listeners.get(str(session), ()):
            queue.put_nowait(payload)

    def _broadcast(self, event: dict[str, Any]) -> None:
        for queues in self._listeners.values():
            for queue in queues:
                queue.put_nowait(event)

    async def close(self) -> None:
        if self._reader:
            self._reader.cancel()
            await asyncio.wait({self._reader})
        await self._client.aclose()


class OpenCodeServers:
    """The servers of one home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._servers: dict[str, OpenCodeServer] = {}
        self._starting = asyncio.Lock()
        self._started_keys: set[str] = set()

    async def find(self, settings: dict[str, str], environ: dict[str, str], *, was_lost: bool = False) -> OpenCodeServer:
        """The server for an agent; starts one if the settings name none and none runs. With `was_lost`, waits for it to return or restarts it."""
        if url := settings.get("url"):
            password = environ.get(settings.get("password_env") or "OPENCODE_SERVER_PASSWORD", "")
            name = f"{url}#{hashlib.sha256(password.encode()).hexdigest()}"
            if name not in self._servers:
                self._servers[name] = OpenCodeServer(url, password, user=environ.get("OPENCODE_SERVER_USERNAME") or "opencode")
            server = self._servers[name]
            if not await self._wait_until_healthy(server, _RECONNECT_TIMEOUT_SECONDS if was_lost else 10.0):
                with contextlib.suppress(ServerUnreachable, NotFound):
                    await server.call("GET", "/global/health", seconds=5.0)  # raises AgentFailed if the server gives a reason
                raise AgentFailed(f"no OpenCode server answers at {url}: start it with `opencode serve --port {_port(url)}`", TRANSIENT)
            return server
        env = child_process.without_client_variables(environ)
        env = {name: value for name, value in env.items() if not _TERMINAL_VARIABLES.fullmatch(name)}
        key = hashlib.sha256(json.dumps([settings["command"], env], sort_keys=True).encode()).hexdigest()[:12]
        async with self._starting:
            server = self._servers.get(key)
            if server and processes.is_alive(server.leader) and (not was_lost or await self._wait_until_healthy(server, 10.0)):
                return server
            if server:
                await server.close()
                del self._servers[key]
            os.makedirs(os.path.join(self._home.root, FOLDER), 0o700, exist_ok=True)
            lock_file = await asyncio.to_thread(lock, os.path.join(self._home.root, FOLDER, "start.lock"), wait=True)
            try:
                server = await self._reattach(key) or await self._start(key, settings["command"], env)
            finally:
                if lock_file is not None:
                    os.close(lock_file)
            self._servers[key] = server
            return server

    async def _reattach(self, key: str) -> OpenCodeServer | None:
        """Reconnect to a server that an earlier process started. If it is dead, terminate its remaining processes and return None."""
        try:
            record = json.loads(read_plain(self._record_path(key), 1 << 16))
            leader = ProcessId.parse(record["process"]) if record.get("process") else None
            server = OpenCodeServer(record["url"], record["password"], leader, record["mark"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if processes.is_alive(leader) and await self._wait_until_healthy(server, _START_TIMEOUT_SECONDS):
            return server
        await server.close()
        await child_process.terminate_tree(leader, record["mark"])
        return None

    async def _start(self, key: str, command: str, env: dict[str, str]) -> OpenCodeServer:
        path = processes.executable_of(command, os.getcwd(), env.get("PATH", os.defpath))
        if path is None:
            raise AgentFailed(f"{command} is not on the PATH: npm install -g opencode-ai")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        record = {"url": f"http://127.0.0.1:{port}", "password": secrets.token_urlsafe(24), "mark": secrets.token_hex(16)}
        write_atomically(self._record_path(key), json.dumps(record))  # before the process exists, so that it can always be found
        env = {
            **env,
            "OPENCODE_SERVER_PASSWORD": record["password"],
            "OPENCODE_SERVER_USERNAME": "opencode",
            "BACKBURNER_TASK_ID": "opencode",  # marks it as an agent, which cannot approve anything
            "BACKBURNER_HOME": self._home.root,
            processes.TAG_VARIABLE: record["mark"],
        }
        output = os.path.join(self._home.root, FOLDER, f"{key}.log")
        with open(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
            started = subprocess.Popen(
                [path, "serve", "--hostname", "127.0.0.1", "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self._home.root,
                env=env,
                start_new_session=True,
            )
        processes.mark_inside(started.pid)  # `agents --check` starts it from a person's terminal
        leader = processes.identify(started.pid)
        write_atomically(self._record_path(key), json.dumps({**record, **({"process": str(leader)} if leader else {})}))
        server = OpenCodeServer(record["url"], record["password"], leader, record["mark"])
        self._started_keys.add(key)
        deadline = asyncio.get_running_loop().time() + _START_TIMEOUT_SECONDS
        while b"listening on" not in (output_text := await asyncio.to_thread(_read_log, output)):
            if started.poll() is not None or asyncio.get_running_loop().time() > deadline:
                await self._end(key, server)
                raise AgentFailed(
                    f"{command} serve did not start: {clean(output_text.decode('utf-8', 'replace').strip()[-500:])}", TRANSIENT
                )
            await asyncio.sleep(0.05)
        return server

    @staticmethod
    async def _wait_until_healthy(server: OpenCodeServer, seconds: float) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        while not await server.is_healthy():
            if asyncio.get_running_loop().time() > deadline or (server.leader and not processes.is_alive(server.leader)):
                return False
            await asyncio.sleep(0.2)
        return True

    def _record_path(self, key: str) -> str:
        return os.path.join(self._home.root, FOLDER, f"{key}.json")

    async def _end(self, key: str, server: OpenCodeServer) -> None:
        await server.close()
        await child_process.terminate_tree(server.leader, server.process_tag)
        for name in (f"{key}.json", f"{key}.log"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._home.root, FOLDER, name))

    async def close(self, *, keep_running: bool, stop_started: bool = False) -> None:
        """Disconnect from all servers, and end those that we or an earlier process of ours started, unless `keep_running`.

        With `stop_started`, the servers that this object has started are ended in any case.
        """
        folder = os.path.join(self._home.root, FOLDER)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            key, ending = os.path.splitext(name)
            if ending == ".json" and key not in self._servers and not keep_running:
                if (server := await self._reattach(key)) is not None:
                    await self._end(key, server)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._record_path(key))
        for key, server in self._servers.items():
            if server.process_tag and (not keep_running or (stop_started and key in self._started_keys)):
                await self._end(key, server)
            else:
                await server.close()
        self._servers.clear()


def _port(url: str) -> str:
    return url.rstrip("/").rpartition(":")[2] if url.count(":") > 1 else "4096"


def _read_log(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MAX_LOG_BYTES)
