"""Real agents at work for Backburner: a home, a person's folder with settings for each of them, and a scripted model in place of theirs.

A prompt holds the script; what the model was shown comes out of `ScriptedModel.requests`. Everything is on loopback and has a time limit.
"""

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import real
from real import CLIENTS, CONFIG, PATIENCE, Place, nothing_left, wait_until

from backburner.agent_tools.context import ToolContext
from backburner.agent_tools.dispatcher import ToolDispatcher
from backburner.agent_tools.registry import toolset
from backburner.core.models import ProcessId
from backburner.core.states import LIVE
from backburner.services.app import App, open_app
from backburner.services.async_app import AsyncApp
from backburner.system import processes as process
from backburner.system.home import OPENCODE_SERVERS
from backburner.testing.request_texts import conversation_text as said
from backburner.testing.scripted_model import ScriptedModel

NOBODY = 65534
Step = dict[str, Any]


class Kind:
    """One agent: what it needs to be asked without a network, and how its model runs a command."""

    name = ""
    shell, argument = "", "command"
    more: Step = {}  # that the shell is called with besides
    asking: Step = {}  # what makes it ask for permission
    variables: dict[str, str] = {}  # `{url}` is where the model is
    settings = ""  # of ours
    cut = 1  # how many turns of its model are in its history for a call that was cut off
    refusal = "A person said no."  # what its model hears of a no: our words, or its own

    @classmethod
    def set_up(cls, office: "Office") -> None:
        """Write what a person would have."""

    @classmethod
    def runs(cls, command: str, *, asks: bool = False) -> Step:
        """The step in which its model runs a command."""
        return {"tool": cls.shell, "args": {cls.argument: command, **cls.more, **(cls.asking if asks else {})}}


class OpenCode(Kind):
    name, shell, more = "opencode", "bash", {"description": "a command"}
    variables = {"OPENCODE_DISABLE_MODELS_FETCH": "1"}

    @classmethod
    def set_up(cls, office: "Office") -> None:
        model = {"name": "Fake 1", "tool_call": True, "limit": {"context": 128000, "output": 8192}}
        options = {"baseURL": f"{office.model.url}/v1", "apiKey": "fake-key"}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "Fake", "options": options, "models": {"fake-1": model}}
        used = {"model": "fake/fake-1", "small_model": "fake/fake-1"}
        config = {**used, "autoupdate": False, "share": "disabled", "provider": {"fake": provider}}
        folder = office.person / ".config" / "opencode"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "opencode.json").write_text(json.dumps(config))


class OpenCodeAcp(OpenCode):
    name = "opencode-acp"


class Claude(Kind):
    name, shell, more = "claude", "Bash", {"description": "a command"}
    cut, refusal = 2, "User refused permission to run tool"
    variables = {
        "ANTHROPIC_BASE_URL": "{url}",
        "ANTHROPIC_API_KEY": "fake-key",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "2",
    }

    @classmethod
    def set_up(cls, office: "Office") -> None:
        """It does not work for root: there it is somebody else, with a folder of their own."""
        if os.getuid() == 0:
            own = office.root / "nobody"
            own.mkdir()
            os.chown(own, NOBODY, NOBODY)
            office.place.cwd.chmod(0o777)
            _let_through(office.root)
            _let_through(office.place.cwd)
            word = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"
            wrapper = office.bin / "claude-agent-acp"
            wrapper.write_text(f'#!/bin/sh\nHOME={own} exec {word} {CLIENTS}/claude-agent-acp "$@"\n')
            wrapper.chmod(0o755)


class Codex(Kind):
    name, shell, argument = "codex", "exec_command", "cmd"
    asking = {"sandbox_permissions": "require_escalated", "justification": "it writes"}

    @classmethod
    def environ(cls, office: "Office") -> dict[str, str]:
        provider = {"name": "Fake", "base_url": f"{office.model.url}/v1", "wire_api": "responses", "env_key": "FAKE_KEY"}
        config = {"model": "fake-1", "model_provider": "fake", "model_providers": {"fake": provider}}
        return {"CODEX_CONFIG": json.dumps(config), "FAKE_KEY": "x"}


class Gemini(Kind):
    name, shell, more = "gemini", "run_shell_command", {"description": "a command"}
    refusal = "was canceled by the user"
    variables = {"GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": "{url}"}
    settings = '[agents.gemini]\ntype = "acp"\nmodel = "gemini-2.5-flash"\n'


class Qwen(Kind):
    name, shell, more = "qwen", "run_shell_command", {"description": "a command", "is_background": False}
    variables = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "fake", "OPENAI_MODEL": "fake-1"}


class Goose(Kind):
    name, shell = "goose", "shell"
    cut, refusal = 0, "The user has declined to run this tool."
    variables = {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": "fake-1",
        "GOOSE_DISABLE_KEYRING": "1",
        "OPENAI_HOST": "{url}",
        "OPENAI_API_KEY": "fake",
    }


class BuiltIn(Kind):
    """Ours, for comparison."""

    name, shell = "default", "run_command"
    variables = {"OPENAI_API_KEY": "fake"}


KINDS: dict[str, type[Kind]] = {one.name: one for one in (OpenCode, OpenCodeAcp, Claude, Codex, Gemini, Qwen, Goose, BuiltIn)}


class Office:
    """A home whose agents are all real, with one model behind all of them."""

    def __init__(self, root: Path, model: ScriptedModel) -> None:
        self.root, self.model = root, model
        project = root / "project"
        project.mkdir()
        self.place = Place(root / "home", project)
        self.person, self.bin = root / "person", root / "bin"
        self.person.mkdir()
        self.bin.mkdir()
        self.bin.chmod(0o755)
        plain = {
            name: value
            for name, value in self.place.environ.items()
            if not name.startswith(("ANTHROPIC", "OPENAI", "GOOGLE", "GOOSE", "QWEN", "XDG_"))
        }
        path = f"{self.bin}:{CLIENTS}:{self.place.environ['PATH']}"
        self.place.environ = {**plain, "PATH": path, "TERM": "xterm-256color", "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        for kind in KINDS.values():
            kind.set_up(self)
        self.runner: asyncio.Runner | None = None
        self.configure()
        self.runner = asyncio.Runner()
        self.home = AsyncApp(lambda: open_app(str(self.place.root), dict(self.place.environ)))
        self.runner.run(self.home.__aenter__())
        self._numbers = itertools.count(1)

    def configure(self, more: str = "", capacity: int = 8) -> None:
        """Our settings, with more of them."""
        models = f'[models]\ndefault = "openai-chat:scripted"\nbase_url = "{self.model.url}/v1"\nmax_concurrent = {capacity}\n'
        own = "".join(kind.settings for kind in KINDS.values())
        self.place.configure(f"{CONFIG}{models}[tasks]\nmax_concurrent = 4\n{own}{more}")
        if self.runner:
            self.do(lambda app: app.config_file.reload_if_changed())

    def environ(self, name: str) -> dict[str, str]:
        """What somebody has in their environment who asks an agent."""
        kind = KINDS.get(name, OpenCode)
        own = kind.environ(self) if issubclass(kind, Codex) else {}
        return {**self.place.environ, **own, **{key: value.format(url=self.model.url) for key, value in kind.variables.items()}}

    def session(self, agent: str) -> "Session":
        """Somebody who asks just this agent."""
        return Session(self, agent, f"tests:{agent}-{next(self._numbers)}")

    def do(self, call: Callable[[App], Any]) -> Any:
        assert self.runner
        return self.runner.run(self.home.call(call))

    def gate(self) -> "Gate":
        return Gate(self.place.cwd, f"gate-{next(self._numbers)}")

    def script(self) -> tuple[str, Path]:
        """A command for which a person is asked, and the file that it makes."""
        number = next(self._numbers)
        made = self.place.cwd / f"made-{number}.txt"
        (self.place.cwd / f"work-{number}.sh").write_text(f"echo made > {made.name}\n")
        return f"sh work-{number}.sh", made

    @property
    def servers(self) -> list[dict[str, Any]]:
        """The OpenCode servers of ours, as they are written down."""
        folder = self.place.root / OPENCODE_SERVERS
        return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))] if folder.exists() else []

    def kill(self, module: str) -> None:
        """SIGKILL for our own processes that run a module."""
        for one in self.place.hosts(module):
            process.send(one, signal.SIGKILL)
            wait_until(lambda one=one: not process.is_alive(one), "it to be dead")

    def live(self) -> list[str]:
        return [run.run_id for run in self.do(lambda app: list(app._ledger.live_work.live_runs())) if run.state in LIVE]

    def settle(self) -> None:
        """Nobody works any more: what a failed test left is stopped, and that nothing of any run is left is checked."""
        for run_id in self.live():
            self.place.cli("cancel", run_id.partition("/")[0])
        try:
            wait_until(lambda: not self.live(), "all of it to end", 30)
        except AssertionError:
            self.kill("agents.process")  # the next test is not to suffer from it
            raise
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.unknown(), "the last of it to go", 15)
        assert not self.unknown(), "nobody knows of these"

    def unknown(self) -> list[bytes]:
        """Processes with one of our marks that neither a living run nor a server of ours has."""
        marks = {run.mark for run in self.do(lambda app: list(app._ledger.live_work.live_runs()))} | {one["mark"] for one in self.servers}
        found = []
        for pid, env, words in processes():
            mark = next((one.partition(b"=")[2].decode() for one in env if one.startswith(b"BACKBURNER_MARK=")), None)
            if f"BACKBURNER_HOME={self.place.root}".encode() in env and mark and mark not in marks and process.identify(pid):
                found.append(words)
        return found

    def close(self) -> None:
        """Everything of ours ends; nothing of an agent's may be left then."""
        assert self.runner
        self.runner.run(self.home.__aexit__())
        self.runner.close()
        self.place.stop_engine()
        nothing_left(self.left, 15)

    def left(self) -> dict[ProcessId, bytes]:
        """The living processes that have anything of this office in their environment."""
        found = {}
        for pid, env, words in processes():
            if str(self.root).encode() in b"\0".join(env) and (one := process.identify(pid)):
                found[one] = words
        return found


class Session:
    """Somebody who asks one agent through our tools."""

    def __init__(self, office: Office, agent: str, name: str) -> None:
        self.office, self.agent, self.name = office, agent, name
        self.kind = KINDS.get(agent, OpenCode)
        environ = office.environ(agent)
        self._caller = ToolContext(office.home, session=name, cwd=str(office.place.cwd), environ=environ)
        self._desk = ToolDispatcher(toolset())

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a tool of ours answers; the notices that come with it stay owed."""
        return self.office.runner.run(self._desk.answer(self._caller, tool, arguments)).result

    def ask(self, *steps: Step, words: str = "Please do this.", **more: Any) -> str:
        """Start the agent with a model that does just this; its task's id."""
        asked = self.call("background_task", description="A task", prompt=prompt(*steps, words=words), agent=self.agent, **more)
        assert "task_id" in asked, asked
        return asked["task_id"]

    def status(self, task_id: str) -> str:
        return self.look(task_id)["status"]

    def look(self, task_id: str) -> dict[str, Any]:
        return self.call("background_output", task_id=task_id)

    def until(self, task_id: str, *statuses: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """How the task stands once it has one of these."""
        looked: dict[str, Any] = {}

        def stands() -> bool:
            nonlocal looked
            looked = self.look(task_id)
            return looked["status"] in statuses

        try:
            wait_until(stands, f"{task_id} to be {statuses}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {looked} {self.why(task_id)}") from None
        return looked

    def answer(self, task_id: str, seconds: float = PATIENCE) -> str:
        """What the agent answered; its end must be a good one."""
        looked = self.until(task_id, "completed", "error", "cancelled", "waiting", seconds=seconds)
        assert looked["status"] == "completed", (looked, self.why(task_id))
        return looked["result"]

    def failure(self, task_id: str, seconds: float = PATIENCE) -> str:
        """Why the agent failed, as it must."""
        looked = self.until(task_id, "completed", "error", "cancelled", "waiting", seconds=seconds)
        assert looked["status"] == "error", looked
        return looked["error"]

    def resume(self, task_id: str, *steps: Step, words: str = "And now this.") -> dict[str, Any]:
        return self.call("background_resume", task_id=task_id, message=prompt(*steps, words=words))

    def notices(self, task_id: str) -> list[str]:
        """All that was ever owed to this session for a task that ended."""
        found = self.office.do(lambda app: list(app.inbox.notices(session=self.name, unread=False)))
        return [one.text for one in found if one.task_id == task_id and one.kind != "waiting"]

    def asked(self, word: str) -> list[dict[str, Any]]:
        """The requests of one conversation to the model, which has this word in it."""
        return [one for one in list(self.office.model.requests) if one.get("tools") and word in said(one)]

    def why(self, task_id: str) -> str:
        """What the agent complained about, and what the host wrote."""
        folder = self.office.place.folder(task_id)
        complaints = [path.read_text(errors="replace")[-1500:] for path in folder.rglob("agent.err")]
        logs = [path.read_text(errors="replace")[-1500:] for path in self.office.place.root.glob("*.log")]
        return "\n".join(complaints + logs)


class Gate(real.Gate):
    """One of which can be seen who is at it."""

    def readers(self) -> list[int]:
        """The processes of that command."""
        return [pid for pid, _, words in processes() if words.split(b"\0")[:2] == [b"cat", self.name.encode()] and process.identify(pid)]

    def reached(self, seconds: float = PATIENCE) -> None:
        wait_until(self.readers, f"`{self.command}` to run", seconds)

    def left(self) -> None:
        wait_until(lambda: not self.readers(), f"`{self.command}` to be gone", 10)


class Server:
    """An OpenCode server that a person has, in the person's own folder."""

    def __init__(self, office: Office) -> None:
        self.office = office
        self._log = office.root / "serve.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        env = {name: value for name, value in self.office.environ("opencode").items() if name != "BACKBURNER_HOME"}
        with open(self._log, "wb") as file:
            self._process = subprocess.Popen(
                ["opencode", "serve", "--hostname", "127.0.0.1", "--port", str(self.port)],
                env=env,
                executable=f"{CLIENTS}/opencode",
                cwd=self.office.place.cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

        def listening() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            return "listening on" in self._log.read_text()

        wait_until(listening, "the server to listen", PATIENCE)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)


class Proxy:
    """A way to a server that notes what is asked for, and that can cut off the events for good."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.requests: list[str] = []
        self.deaf = False
        self._events: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """No events from now on, neither on the line that is open nor on a new one."""
        self.deaf = True
        for line in self._events:
            _hang_up(line)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        except OSError:
            return _hang_up(client)
        server.settimeout(None)
        threading.Thread(target=_copy, args=(server, client), daemon=True).start()
        with contextlib.suppress(OSError):
            while piece := client.recv(1 << 16):
                for request in re.findall(rb"^(?:GET|POST|PATCH|DELETE) \S+", piece, re.MULTILINE):
                    self.requests.append(request.decode())
                    if b"/global/event" in request:
                        self._events.append(client)
                        if self.deaf:
                            raise ConnectionError
                server.sendall(piece)
        _hang_up(client)
        return _hang_up(server)

    def close(self) -> None:
        # A thread that waits for the next one keeps a listener open that is only closed.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@contextlib.contextmanager
def an_office(root: Path) -> Iterator[Office]:
    with ScriptedModel() as model:
        made = Office(root, model)
        try:
            yield made
        finally:
            made.close()


def call(url: str, method: str, path: str, body: object = None, password: str = "") -> Any:
    """One request to an OpenCode server."""
    import base64

    headers = {"Content-Type": "application/json"}
    if password:
        headers["Authorization"] = "Basic " + base64.b64encode(f"opencode:{password}".encode()).decode()
    request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def prompt(*steps: Step, words: str = "Please do this.") -> str:
    return f"{words} [[script: {json.dumps(steps)}]]]"


def processes() -> Iterator[tuple[int, list[bytes], bytes]]:
    """Every process but this one: its number, its environment and its words."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) == os.getpid():
            continue
        try:
            yield int(name), Path(f"/proc/{name}/environ").read_bytes().split(b"\0"), Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _let_through(folder: Path) -> None:
    """Let everybody pass through a folder and those above it, up to where they may already."""
    for one in (folder, *folder.parents):
        if one != folder and (one.stat().st_mode & 0o001 or one.stat().st_uid != os.getuid()):
            return
        one.chmod(one.stat().st_mode | 0o011)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    _hang_up(target)
    _hang_up(source)


def _hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()
