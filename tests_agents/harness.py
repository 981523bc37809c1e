"""Runs real agents under Backburner: a home, a user's home directory with settings for each agent, and a scripted model server.

The prompt contains the script; `ScriptedModel.requests` has what the model received. Everything is on loopback and has a time limit.
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
from real import CLIENTS, CONFIG, PATIENCE, HomeCli, nothing_left, wait_until

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


class AgentKind:
    """One agent: its settings for use without a network, and how its model runs a command."""

    name = ""
    shell, argument = "", "command"
    more: Step = {}  # further arguments of the shell tool
    asking: Step = {}  # arguments that make it request permission
    variables: dict[str, str] = {}  # `{url}` is the address of the model
    settings = ""  # for Backburner's config.toml
    cut = 1  # number of model turns in its history for an interrupted tool call
    refusal = "The user rejected this."  # the text that its model gets after a rejection: ours, or the agent's own

    @classmethod
    def set_up(cls, agents_home: "AgentsHome") -> None:
        """Write the settings that a user would have."""

    @classmethod
    def command_step(cls, command: str, *, asks: bool = False) -> Step:
        """The script step in which its model runs a command."""
        return {"tool": cls.shell, "args": {cls.argument: command, **cls.more, **(cls.asking if asks else {})}}


class OpenCode(AgentKind):
    name, shell, more = "opencode", "bash", {"description": "a command"}
    variables = {"OPENCODE_DISABLE_MODELS_FETCH": "1"}

    @classmethod
    def set_up(cls, agents_home: "AgentsHome") -> None:
        model = {"name": "Fake 1", "tool_call": True, "limit": {"context": 128000, "output": 8192}}
        options = {"baseURL": f"{agents_home.model.url}/v1", "apiKey": "fake-key"}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "Fake", "options": options, "models": {"fake-1": model}}
        used = {"model": "fake/fake-1", "small_model": "fake/fake-1"}
        config = {**used, "autoupdate": False, "share": "disabled", "provider": {"fake": provider}}
        folder = agents_home.user_home / ".config" / "opencode"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "opencode.json").write_text(json.dumps(config))


class OpenCodeAcp(OpenCode):
    name = "opencode-acp"


class Claude(AgentKind):
    name, shell, more = "claude", "Bash", {"description": "a command"}
    cut, refusal = 2, "User refused permission to run tool"
    variables = {
        "ANTHROPIC_BASE_URL": "{url}",
        "ANTHROPIC_API_KEY": "fake-key",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "2",
    }

    @classmethod
    def set_up(cls, agents_home: "AgentsHome") -> None:
        """Claude Code refuses to run as root; in that case, run it as another user with another home directory."""
        if os.getuid() == 0:
            user_home = agents_home.root / "nobody"
            user_home.mkdir()
            os.chown(user_home, NOBODY, NOBODY)
            os.chown(agents_home.home_cli.cwd, -1, NOBODY)
            agents_home.home_cli.cwd.chmod(0o775)  # a folder that every user may write to is no project
            _allow_traversal(agents_home.root)
            _allow_traversal(agents_home.home_cli.cwd)
            prefix = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"
            wrapper = agents_home.bin / "claude-agent-acp"
            wrapper.write_text(f'#!/bin/sh\nHOME={user_home} exec {prefix} {CLIENTS}/claude-agent-acp "$@"\n')
            wrapper.chmod(0o755)


class Codex(AgentKind):
    name, shell, argument = "codex", "exec_command", "cmd"
    asking = {"sandbox_permissions": "require_escalated", "justification": "it writes"}

    @classmethod
    def environ(cls, agents_home: "AgentsHome") -> dict[str, str]:
        provider = {"name": "Fake", "base_url": f"{agents_home.model.url}/v1", "wire_api": "responses", "env_key": "FAKE_KEY"}
        config = {"model": "fake-1", "model_provider": "fake", "model_providers": {"fake": provider}}
        return {"CODEX_CONFIG": json.dumps(config), "FAKE_KEY": "x"}


class Gemini(AgentKind):
    name, shell, more = "gemini", "run_shell_command", {"description": "a command"}
    refusal = "was canceled by the user"
    variables = {"GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": "{url}"}
    settings = '[agents.gemini]\ntype = "acp"\nmodel = "gemini-2.5-flash"\n'


class Qwen(AgentKind):
    name, shell, more = "qwen", "run_shell_command", {"description": "a command", "is_background": False}
    variables = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "fake", "OPENAI_MODEL": "fake-1"}


class Goose(AgentKind):
    name, shell = "goose", "shell"
    cut, refusal = 0, "The user has declined to run this tool."
    variables = {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": "fake-1",
        "GOOSE_DISABLE_KEYRING": "1",
        "OPENAI_HOST": "{url}",
        "OPENAI_API_KEY": "fake",
    }


class BuiltIn(AgentKind):
    """The built-in agent, for comparison."""

    name, shell = "default", "run_command"
    variables = {"OPENAI_API_KEY": "fake"}


KINDS: dict[str, type[AgentKind]] = {kind.name: kind for kind in (OpenCode, OpenCodeAcp, Claude, Codex, Gemini, Qwen, Goose, BuiltIn)}


class AgentsHome:
    """A home with real agents, which all use one scripted model."""

    def __init__(self, root: Path, model: ScriptedModel) -> None:
        self.root, self.model = root, model
        project = root / "project"
        project.mkdir()
        self.home_cli = HomeCli(root / "home", project)
        self.user_home, self.bin = root / "person", root / "bin"
        self.user_home.mkdir()
        self.bin.mkdir()
        self.bin.chmod(0o755)
        plain = {
            name: value
            for name, value in self.home_cli.environ.items()
            if not name.startswith(("ANTHROPIC", "OPENAI", "GOOGLE", "GOOSE", "QWEN", "XDG_"))
        }
        path = f"{self.bin}:{CLIENTS}:{self.home_cli.environ['PATH']}"
        self.home_cli.environ = {**plain, "PATH": path, "TERM": "xterm-256color", "LANG": "C.UTF-8", "SHELL": "/bin/bash"}
        for kind in KINDS.values():
            kind.set_up(self)
        self.runner: asyncio.Runner | None = None
        self.configure()
        self.runner = asyncio.Runner()
        self.home = AsyncApp(lambda: open_app(str(self.home_cli.root), dict(self.home_cli.environ)))
        self.runner.run(self.home.__aenter__())
        self._numbers = itertools.count(1)

    def configure(self, more: str = "", capacity: int = 8) -> None:
        """Write Backburner's settings, followed by `more`."""
        models = f'[models]\ndefault = "openai-chat:scripted"\nbase_url = "{self.model.url}/v1"\nmax_concurrent = {capacity}\n'
        own = "".join(kind.settings for kind in KINDS.values())
        self.home_cli.configure(f"{CONFIG}{models}[tasks]\nmax_concurrent = 4\n{own}{more}")
        if self.runner:
            self.call_app(lambda app: app.config_file.reload_if_changed())

    def environ(self, name: str) -> dict[str, str]:
        """The environment of a user of this agent."""
        kind = KINDS.get(name, OpenCode)
        own = kind.environ(self) if issubclass(kind, Codex) else {}
        return {**self.home_cli.environ, **own, **{key: value.format(url=self.model.url) for key, value in kind.variables.items()}}

    def session(self, agent: str) -> "Session":
        """A new session that uses this agent."""
        return Session(self, agent, f"tests:{agent}-{next(self._numbers)}")

    def call_app(self, call: Callable[[App], Any]) -> Any:
        assert self.runner
        return self.runner.run(self.home.call(call))

    def gate(self) -> "Gate":
        return Gate(self.home_cli.cwd, f"gate-{next(self._numbers)}")

    def script(self) -> tuple[str, Path]:
        """A command that needs approval, and the file that it creates."""
        number = next(self._numbers)
        created = self.home_cli.cwd / f"made-{number}.txt"
        (self.home_cli.cwd / f"work-{number}.sh").write_text(f"echo made > {created.name}\n")
        return f"sh work-{number}.sh", created

    @property
    def servers(self) -> list[dict[str, Any]]:
        """The records of the OpenCode servers that Backburner started."""
        folder = self.home_cli.root / OPENCODE_SERVERS
        return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))] if folder.exists() else []

    def kill(self, module: str) -> None:
        """Kill Backburner's own processes that run a module."""
        for host in self.home_cli.hosts(module):
            process.send(host, signal.SIGKILL)
            wait_until(lambda host=host: not process.is_alive(host), "the process to end")

    def live_runs(self) -> list[str]:
        return [run.run_id for run in self.call_app(lambda app: list(app._ledger.live_work.live_runs())) if run.state in LIVE]

    def settle(self) -> None:
        """Cancel runs that a failed test has left, and check that no process of any run remains."""
        for run_id in self.live_runs():
            self.home_cli.cli("cancel", run_id.partition("/")[0])
        try:
            wait_until(lambda: not self.live_runs(), "all runs to end", 30)
        except AssertionError:
            self.kill("agents.process")  # so that the next test is not affected
            raise
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.unknown_processes(), "the last process to end", 15)
        assert not self.unknown_processes(), "processes without a run"

    def unknown_processes(self) -> list[bytes]:
        """Processes whose tag belongs neither to a live run nor to a server of Backburner."""
        tags = {run.process_tag for run in self.call_app(lambda app: list(app._ledger.live_work.live_runs()))} | {
            server["mark"] for server in self.servers
        }
        found = []
        for pid, env, words in processes():
            prefix = f"{process.TAG_VARIABLE}=".encode()
            tag = next((variable.removeprefix(prefix).decode() for variable in env if variable.startswith(prefix)), None)
            if f"BACKBURNER_HOME={self.home_cli.root}".encode() in env and tag and tag not in tags and process.identify(pid):
                found.append(words)
        return found

    def close(self) -> None:
        """Stop Backburner, and check that no process of an agent remains."""
        assert self.runner
        self.runner.run(self.home.__aexit__())
        self.runner.close()
        self.home_cli.stop_engine()
        nothing_left(self.remaining_processes, 15)

    def remaining_processes(self) -> dict[ProcessId, bytes]:
        """The running processes whose environment contains a path of this home."""
        found = {}
        for pid, env, words in processes():
            if str(self.root).encode() in b"\0".join(env) and (one := process.identify(pid)):
                found[one] = words
        return found


class Session:
    """A session that uses one agent through the background tools."""

    def __init__(self, agents_home: AgentsHome, agent: str, name: str) -> None:
        self.agents_home, self.agent, self.name = agents_home, agent, name
        self.kind = KINDS.get(agent, OpenCode)
        environ = agents_home.environ(agent)
        project = str(agents_home.home_cli.cwd)
        self._context = ToolContext(agents_home.home, session=name, cwd=project, environ=environ, opened=project)
        self._dispatcher = ToolDispatcher(toolset())

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The result of a tool. Its notices are not acknowledged."""
        return self.agents_home.runner.run(self._dispatcher.answer(self._context, tool, arguments)).result

    def ask(self, *steps: Step, words: str = "Please do this.", **more: Any) -> str:
        """Start the agent with a model that performs these steps, and return the task id."""
        started = self.call("background_task", description="A task", prompt=prompt(*steps, words=words), agent=self.agent, **more)
        assert "task_id" in started, started
        return started["task_id"]

    def status(self, task_id: str) -> str:
        return self.output(task_id)["status"]

    def output(self, task_id: str) -> dict[str, Any]:
        return self.call("background_output", task_id=task_id)

    def wait_for(self, task_id: str, *statuses: str, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait until the task has one of these statuses, and return its output."""
        last_output: dict[str, Any] = {}

        def has_status() -> bool:
            nonlocal last_output
            last_output = self.output(task_id)
            return last_output["status"] in statuses

        try:
            wait_until(has_status, f"{task_id} to be {statuses}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {last_output} {self.diagnostics(task_id)}") from None
        return last_output

    def answer(self, task_id: str, seconds: float = PATIENCE) -> str:
        """The answer of the agent; fails if it did not complete."""
        last_output = self.wait_for(task_id, "completed", "error", "cancelled", "waiting", seconds=seconds)
        assert last_output["status"] == "completed", (last_output, self.diagnostics(task_id))
        return last_output["result"]

    def failure(self, task_id: str, seconds: float = PATIENCE) -> str:
        """The error of the agent; fails if it did not fail."""
        last_output = self.wait_for(task_id, "completed", "error", "cancelled", "waiting", seconds=seconds)
        assert last_output["status"] == "error", last_output
        return last_output["error"]

    def resume(self, task_id: str, *steps: Step, words: str = "And now this.") -> dict[str, Any]:
        return self.call("background_resume", task_id=task_id, message=prompt(*steps, words=words))

    def notices(self, task_id: str) -> list[str]:
        """All notices of this session about the end of a task."""
        found = self.agents_home.call_app(lambda app: list(app.inbox.notices(session=self.name, unread=False)))
        return [notice.text for notice in found if notice.task_id == task_id and notice.kind != "waiting"]

    def requests(self, text: str) -> list[dict[str, Any]]:
        """The model requests of the conversation that contains this text."""
        return [request for request in list(self.agents_home.model.requests) if request.get("tools") and text in said(request)]

    def diagnostics(self, task_id: str) -> str:
        """The stderr of the agent and the logs of Backburner."""
        folder = self.agents_home.home_cli.folder(task_id)
        errors = [path.read_text(errors="replace")[-1500:] for path in folder.rglob("agent.err")]
        logs = [path.read_text(errors="replace")[-1500:] for path in self.agents_home.home_cli.root.glob("*.log")]
        return "\n".join(errors + logs)


class Gate(real.Gate):
    """A gate whose waiting processes can be listed."""

    def readers(self) -> list[int]:
        """The processes that wait at the gate."""
        return [pid for pid, _, words in processes() if words.split(b"\0")[:2] == [b"cat", self.name.encode()] and process.identify(pid)]

    def wait_until_reached(self, seconds: float = PATIENCE) -> None:
        wait_until(self.readers, f"`{self.command}` to run", seconds)

    def wait_until_left(self) -> None:
        wait_until(lambda: not self.readers(), f"`{self.command}` to be gone", 10)


class UserServer:
    """An OpenCode server that the user has started, with the user's settings."""

    def __init__(self, agents_home: AgentsHome) -> None:
        self.agents_home = agents_home
        self._log = agents_home.root / "serve.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        env = {name: value for name, value in self.agents_home.environ("opencode").items() if name != "BACKBURNER_HOME"}
        with open(self._log, "wb") as file:
            self._process = subprocess.Popen(
                ["opencode", "serve", "--hostname", "127.0.0.1", "--port", str(self.port)],
                env=env,
                executable=f"{CLIENTS}/opencode",
                cwd=self.agents_home.home_cli.cwd,
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
    """A proxy in front of a server that records requests and can block the event stream permanently."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.requests: list[str] = []
        self.blocks_events = False
        self._events: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def block_events(self) -> None:
        """Close the open event stream and block new ones."""
        self.blocks_events = True
        for line in self._events:
            _close_socket(line)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        except OSError:
            return _close_socket(client)
        server.settimeout(None)
        threading.Thread(target=_copy, args=(server, client), daemon=True).start()
        with contextlib.suppress(OSError):
            while piece := client.recv(1 << 16):
                for request in re.findall(rb"^(?:GET|POST|PATCH|DELETE) \S+", piece, re.MULTILINE):
                    self.requests.append(request.decode())
                    if b"/global/event" in request:
                        self._events.append(client)
                        if self.blocks_events:
                            raise ConnectionError
                server.sendall(piece)
        _close_socket(client)
        return _close_socket(server)

    def close(self) -> None:
        # close() alone does not end the accept() of the other thread.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@contextlib.contextmanager
def open_agents_home(root: Path) -> Iterator[AgentsHome]:
    with ScriptedModel() as model:
        created = AgentsHome(root, model)
        try:
            yield created
        finally:
            created.close()


def call(url: str, method: str, path: str, body: object = None, password: str = "") -> Any:
    """Send a request to an OpenCode server."""
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
    """All processes except this one: pid, environment and command line."""
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


def _allow_traversal(folder: Path) -> None:
    """Allow other users to traverse a directory and its parents, up to the first one that already allows it."""
    for one in (folder, *folder.parents):
        if one != folder and (one.stat().st_mode & 0o001 or one.stat().st_uid != os.getuid()):
            return
        one.chmod(one.stat().st_mode | 0o011)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    _close_socket(target)
    _close_socket(source)


def _close_socket(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()
