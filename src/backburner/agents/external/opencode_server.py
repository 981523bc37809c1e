"""OpenCode servers: one that a person has, found by its URL, or one of ours, which lives on when we die and is found again.

What we start is written down before it is started, so that nothing of it can be left that nobody knows.
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

from backburner.agents import child_process as child
from backburner.agents.external.turn import Failed
from backburner.core.models import ProcessId
from backburner.core.recurring import AUTH, TRANSIENT
from backburner.core.terminal_text import clean, shortened
from backburner.system import processes as process
from backburner.system.home import OPENCODE_SERVERS as FOLDER
from backburner.system.home import Home, lock, read_plain, write_atomically

log = logging.getLogger("backburner")
_START_SECONDS = 90.0
_BACK_SECONDS = 60.0  # how long a person's server may be away
_CALL_SECONDS = 60.0
_HELLO_SECONDS = 5.0  # within which it greets, unless it was still starting
_SILENCE_SECONDS = 25.0  # it has a heartbeat every 10
_LONGEST_LOG = 4 << 20
_PAYLOAD = '"payload":{'
# Events that come often, with nothing in them that does not come whole as well.
_IGNORED_EVENTS = re.compile(_PAYLOAD.replace("{", r"\{") + r'(?:"id":"[^"]*",)?"type":"(?:message\.part\.delta|sync)"')
# Variables of one terminal, which a server that is for all of them does not have. With any other difference it is another server:
# what is judged in one environment must not run in another.
_PASSING = re.compile(
    r"_|PWD|OLDPWD|SHLVL|LINES|COLUMNS|TERM\w*|COLORTERM|WINDOWID|DISPLAY|WAYLAND_DISPLAY|VTE_\w+|TMUX\w*|STY|SSH_(TTY|CONNECTION|CLIENT)"
    r"|GPG_TTY|XDG_SESSION_\w+|DBUS_SESSION_BUS_ADDRESS|\w*_SESSION_ID|TRACEPARENT"
)
# Among the events: what came before may have been missed, and what comes will be.
STREAM_OPEN: dict[str, Any] = {"type": "backburner.connected"}
STREAM_LOST: dict[str, Any] = {"type": "backburner.cut"}


class ServerUnreachable(Exception):
    """The server does not answer."""


class NotFound(Exception):
    """What was asked for is not there, or not any more."""


class OpenCodeServer:
    """An OpenCode server, and what is heard from it. `mark` is on the processes of one that is ours."""

    def __init__(self, url: str, password: str, leader: ProcessId | None = None, mark: str = "", user: str = "opencode") -> None:
        self.url, self.leader, self.mark = url.rstrip("/"), leader, mark
        word = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Basic {word}"} if password else {},
            timeout=httpx2.Timeout(_CALL_SECONDS, connect=5.0),
            trust_env=False,
        )
        self._listeners: dict[str, list[asyncio.Queue[dict[str, Any]]]] = {}
        self._following: asyncio.Task[None] | None = None
        self.connected = asyncio.Event()

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None, *, directory: str = "", seconds: float = 0) -> Any:
        """One request. Unreachable, Gone, or Failed with what it said."""
        try:
            answer = await self._client.request(
                method,
                path,
                json=body,
                params={"directory": directory} if directory else None,
                timeout=httpx2.Timeout(seconds) if seconds else httpx2.USE_CLIENT_DEFAULT,
            )
        except (httpx2.TransportError, RuntimeError) as error:  # RuntimeError: it was given up meanwhile
            raise ServerUnreachable(f"the OpenCode server at {self.url} does not answer ({type(error).__name__})") from None
        if answer.status_code == 401:
            raise Failed(f"the OpenCode server at {self.url} wants a password: see password_env in docs/asking.md", AUTH)
        if answer.status_code == 404:
            raise NotFound(path)
        if answer.status_code >= 400:
            raise Failed(f"OpenCode answered {answer.status_code} to {method} {path}: {shortened(answer.text, longest=500)}", TRANSIENT)
        try:
            return answer.json() if answer.content else None
        except ValueError:
            raise Failed(f"{self.url} does not answer as OpenCode does") from None

    async def awake(self) -> bool:
        """Whether it answers: one that is still starting swallows requests."""
        with contextlib.suppress(ServerUnreachable, NotFound, Failed):
            answer = await self.call("GET", "/global/health", seconds=1.0)
            return isinstance(answer, dict) and bool(answer.get("healthy"))
        return False

    @contextlib.asynccontextmanager
    async def listening(self, session: str) -> Any:
        """The events of one session, as they come."""
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._listeners.setdefault(session, []).append(queue)
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow())
        try:
            yield queue
        finally:
            self._listeners[session].remove(queue)
            if not self._listeners[session]:
                del self._listeners[session]

    async def _follow(self) -> None:
        pause = 0.1
        while True:
            try:
                timeout = httpx2.Timeout(_SILENCE_SECONDS, connect=5.0)
                async with asyncio.timeout(_HELLO_SECONDS) as hello, self._client.stream("GET", "/global/event", timeout=timeout) as answer:
                    answer.raise_for_status()
                    async for line in answer.aiter_lines():
                        if line.startswith("data:"):
                            hello.reschedule(None)
                            self._heard(line[5:])
                            pause = 0.1
            except (httpx2.HTTPError, ValueError, TimeoutError) as error:
                log.info("the events of %s: %s", self.url, error)
            if self.connected.is_set():
                self.connected.clear()
                self._all(STREAM_LOST)
            await asyncio.sleep(pause)
            pause = min(5.0, pause * 2)

    def _heard(self, line: str) -> None:
        if _IGNORED_EVENTS.match(line, line.find(_PAYLOAD)):
            return
        event = json.loads(line)
        payload = event.get("payload") if isinstance(event, dict) else None
        about = (payload.get("properties") or {}) if isinstance(payload, dict) else None
        if not isinstance(payload, dict) or not isinstance(about, dict):
            return
        kind = payload.get("type")
        if kind == "server.connected":
            self.connected.set()
            self._all(STREAM_OPEN)
            return
        info, part = (found if isinstance(found, dict) else {} for found in (about.get("info"), about.get("part")))
        of_session = info.get("id") if str(kind).startswith("session.") else info.get("sessionID")
        session = about.get("sessionID") or of_session or part.get("sessionID")
        for queue in self._listeners.get(str(session), ()):
            queue.put_nowait(payload)

    def _all(self, event: dict[str, Any]) -> None:
        for queues in self._listeners.values():
            for queue in queues:
                queue.put_nowait(event)

    async def close(self) -> None:
        if self._following:
            self._following.cancel()
            await asyncio.wait({self._following})
        await self._client.aclose()


class OpenCodeServers:
    """The servers of one home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._known: dict[str, OpenCodeServer] = {}
        self._starting = asyncio.Lock()
        self._started: set[str] = set()

    async def find(self, settings: dict[str, str], environ: dict[str, str], *, away: bool = False) -> OpenCodeServer:
        """The server for an agent, started where it is ours and does not run. One that went away is waited for, or started again."""
        if url := settings.get("url"):
            password = environ.get(settings.get("password_env") or "OPENCODE_SERVER_PASSWORD", "")
            named = f"{url}#{hashlib.sha256(password.encode()).hexdigest()}"
            if named not in self._known:
                self._known[named] = OpenCodeServer(url, password, user=environ.get("OPENCODE_SERVER_USERNAME") or "opencode")
            server = self._known[named]
            if not await self._wait(server, _BACK_SECONDS if away else 10.0):
                with contextlib.suppress(ServerUnreachable, NotFound):
                    await server.call("GET", "/global/health", seconds=5.0)  # what is wrong with it, where it says so
                raise Failed(f"no OpenCode server answers at {url}: start it with `opencode serve --port {_port(url)}`", TRANSIENT)
            return server
        env = child.without_client_variables(environ)
        env = {name: value for name, value in env.items() if not _PASSING.fullmatch(name)}
        key = hashlib.sha256(json.dumps([settings["command"], env], sort_keys=True).encode()).hexdigest()[:12]
        async with self._starting:
            server = self._known.get(key)
            if server and process.is_alive(server.leader) and (not away or await self._wait(server, 10.0)):
                return server
            if server:
                await server.close()
                del self._known[key]
            os.makedirs(os.path.join(self._home.root, FOLDER), 0o700, exist_ok=True)
            held = await asyncio.to_thread(lock, os.path.join(self._home.root, FOLDER, "start.lock"), wait=True)
            try:
                server = await self._again(key) or await self._start(key, settings["command"], env)
            finally:
                os.close(held) if held is not None else None
            self._known[key] = server
            return server

    async def _again(self, key: str) -> OpenCodeServer | None:
        """One that a host before us had started; what is left of a dead one goes."""
        try:
            about = json.loads(read_plain(self._record(key), 1 << 16))
            leader = ProcessId.parse(about["process"]) if about.get("process") else None
            server = OpenCodeServer(about["url"], about["password"], leader, about["mark"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if process.is_alive(leader) and await self._wait(server, _START_SECONDS):
            return server
        await server.close()
        await child.terminate_tree(leader, about["mark"])
        return None

    async def _start(self, key: str, command: str, env: dict[str, str]) -> OpenCodeServer:
        path = process.executable_of(command, os.getcwd(), env.get("PATH", os.defpath))
        if path is None:
            raise Failed(f"{command} is not on the PATH: npm install -g opencode-ai")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        about = {"url": f"http://127.0.0.1:{port}", "password": secrets.token_urlsafe(24), "mark": secrets.token_hex(16)}
        write_atomically(self._record(key), json.dumps(about))  # before there is a process that only this can find
        env = {
            **env,
            "OPENCODE_SERVER_PASSWORD": about["password"],
            "OPENCODE_SERVER_USERNAME": "opencode",
            "BACKBURNER_TASK_ID": "opencode",  # nothing in it can say yes
            "BACKBURNER_HOME": self._home.root,
            process.TAG_VARIABLE: about["mark"],
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
        process.mark_inside(started.pid)  # `agents --check` starts it from a person's terminal
        leader = process.identify(started.pid)
        write_atomically(self._record(key), json.dumps({**about, **({"process": str(leader)} if leader else {})}))
        server = OpenCodeServer(about["url"], about["password"], leader, about["mark"])
        self._started.add(key)
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while b"listening on" not in (said := await asyncio.to_thread(_said, output)):
            if started.poll() is not None or asyncio.get_running_loop().time() > deadline:
                await self._end(key, server)
                raise Failed(f"{command} serve did not start: {clean(said.decode('utf-8', 'replace').strip()[-500:])}", TRANSIENT)
            await asyncio.sleep(0.05)
        return server

    @staticmethod
    async def _wait(server: OpenCodeServer, seconds: float) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        while not await server.awake():
            if asyncio.get_running_loop().time() > deadline or (server.leader and not process.is_alive(server.leader)):
                return False
            await asyncio.sleep(0.2)
        return True

    def _record(self, key: str) -> str:
        return os.path.join(self._home.root, FOLDER, f"{key}.json")

    async def _end(self, key: str, server: OpenCodeServer) -> None:
        await server.close()
        await child.terminate_tree(server.leader, server.mark)
        for name in (f"{key}.json", f"{key}.log"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._home.root, FOLDER, name))

    async def close(self, *, leave: bool, started: bool = False) -> None:
        """Let go of all; those of ours end with it, also the ones that hosts before us had started, unless something goes on in them.

        `started`: those end at any rate that we have started ourselves.
        """
        folder = os.path.join(self._home.root, FOLDER)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            key, ending = os.path.splitext(name)
            if ending == ".json" and key not in self._known and not leave:
                if (server := await self._again(key)) is not None:
                    await self._end(key, server)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._record(key))
        for key, server in self._known.items():
            if server.mark and (not leave or (started and key in self._started)):
                await self._end(key, server)
            else:
                await server.close()
        self._known.clear()


def _port(url: str) -> str:
    return url.rstrip("/").rpartition(":")[2] if url.count(":") > 1 else "4096"


def _said(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_LONGEST_LOG)
