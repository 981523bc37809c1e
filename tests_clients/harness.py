"""Drives real coding agents: each has its own HOME, is set up by `backburner install`, and uses a scripted model.

The prompt of a turn contains the script of the model; `ScriptedModel.requests` records what the model was sent. All connections
are on loopback, and every wait has a time limit.
"""

import contextlib
import fcntl
import html
import json
import os
import re
import signal
import struct
import subprocess
import termios
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from real import CLIENTS, PATIENCE, HomeCli, wait_until

from backburner.core.notice_text import NOTICE_PREFIX
from backburner.interfaces.client_setup.wiring import own_command
from backburner.system.processes import identify, is_alive
from backburner.testing.request_texts import conversation_text as said
from backburner.testing.request_texts import joined_strings as shown
from backburner.testing.scripted_model import ScriptedModel

Script = list[dict[str, Any]]


class Terminal:
    """A pseudo-terminal with a program. With `detached`, the program is not a descendant of this process, like in a user's own terminal."""

    def __init__(self, command: list[str], env: dict[str, str], cwd: Path, *, detached: bool = False) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        words = ["setsid", "--ctty", *(["--fork"] if detached else []), *command]
        self.process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=cwd)
        os.close(slave)
        self.shown = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: no process has the other end open
            while piece := os.read(self._master, 1 << 16):
                self.shown += piece

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self, seconds: float = PATIENCE) -> str:
        """Wait until all programs in the terminal have ended; returns what was shown."""
        self._reader.join(seconds)
        is_stuck = self._reader.is_alive()
        if is_stuck:
            self.process.kill()
            self._reader.join(10)
        self.process.wait(10)
        os.close(self._master)
        assert not is_stuck, f"it did not end: {self.shown[-3000:]!r}"
        return self.shown.decode("utf-8", "replace")


def approve_in_users_terminal(home_cli: HomeCli, task_id: str) -> str:
    """Run `backburner approve` in a user's own terminal and answer its prompt with yes; returns what was shown."""
    line = [*own_command(home_cli.environ), "approve", task_id]
    env = {name: home_cli.environ[name] for name in ("HOME", "PATH")} | {"TERM": "xterm", "LANG": "C.UTF-8"}
    terminal = Terminal(["sh", "-c", '"$@"; echo "exit $?"', "sh", *line], env, home_cli.cwd, detached=True)
    try:
        wait_until(lambda: b"[y/n" in terminal.shown or b"exit " in terminal.shown, "the prompt", 40)
        terminal.type("y\r")
    finally:
        shown = terminal.end(40)
    assert "exit 0" in shown, shown
    return shown


class Client:
    """One client with one conversation; `turn` continues it."""

    name = ""
    shell = ""  # the tool with which its model runs shell commands
    argument = "command"
    keeps_hook_output = True  # in the history that it sends to its model

    def __init__(self, home_cli: HomeCli, model: ScriptedModel) -> None:
        self.home_cli, self.model = home_cli, model
        self.user_home = Path(home_cli.environ["HOME"])
        self.session: str | None = None
        self.environ = {
            name: value
            for name, value in home_cli.environ.items()
            if name != "BACKBURNER_HOME" and not name.startswith(("ANTHROPIC", "OPENAI", "GOOGLE", "XDG_"))
        } | {"PATH": f"{CLIENTS}:{home_cli.environ['PATH']}", "PWD": str(home_cli.cwd), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        self.set_up()
        home_cli.ok("install", self.name, "--yes", env={"PATH": self.environ["PATH"]})

    def set_up(self) -> None:
        """Write the configuration of an ordinary user: the model and its key."""
        raise NotImplementedError

    def run_turn(self, prompt: str) -> None:
        """Run one turn with this prompt to its end."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop all processes that the client left running."""

    def search_steps(self, tool: str) -> Script:
        """The steps with which its model loads a tool that is not always available."""
        return []

    def turn(self, *script: dict[str, Any]) -> str:
        """Run one turn with this script of the model; returns the conversation that the model was sent last."""
        before = len(self.requests())
        self.run_turn(prompt(list(script)))
        assert len(self.requests()) > before, "the model got no request"
        return self.conversation()

    def requests(self) -> list[dict[str, Any]]:
        """The requests of the conversation, without those for titles and similar."""
        return [request for request in list(self.model.requests) if request.get("tools")]

    def conversation(self) -> str:
        """The whole text of the last request."""
        return said(requests[-1]) if (requests := self.requests()) else ""

    def offered_tools(self) -> str:
        """Everything that the model was sent about tools: descriptions, or the names of tools that it can search for."""
        return "".join(shown(request) for request in self.requests())

    def run(self, *command: str) -> str:
        """Run the client to its end; returns what it printed."""
        process = subprocess.Popen(
            command,
            env=self.environ,
            cwd=self.home_cli.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=PATIENCE)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        assert process.returncode == 0, (command[0], process.returncode, out[-3000:], errors[-3000:])
        return out


class Claude(Client):
    name, shell = "claude", "Bash"

    def set_up(self) -> None:
        self.environ |= {
            "ANTHROPIC_BASE_URL": self.model.url,
            "ANTHROPIC_API_KEY": "fake-key",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "MCP_CONNECTION_NONBLOCKING": "0",
            "MCP_CONNECT_TIMEOUT_MS": "60000",  # on a busy machine, its own limit of five seconds is too short
        }
        known = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": ["fake-key"], "rejected": []},
            "projects": {str(self.home_cli.cwd): {"hasTrustDialogAccepted": True}},
        }
        state = self.user_home / ".claude.json"
        if not state.exists():
            state.write_text(json.dumps(known, indent=2))

    def run_turn(self, prompt: str) -> None:
        resume = ["--resume", self.session] if self.session else []
        self.session = json.loads(self.run("claude", "-p", prompt, "--allowedTools", "Bash", *resume, "--output-format", "json"))[
            "session_id"
        ]

    def search_steps(self, tool: str) -> Script:
        return [{"tool": "ToolSearch", "args": {"query": f"select:mcp__backburner__{tool}", "max_results": 5}}]


class Codex(Client):
    name, shell, argument = "codex", "exec_command", "cmd"
    hooks_are_trusted = True

    def set_up(self) -> None:
        self.environ |= {"FAKE_KEY": "x"}
        provider = f'name = "Fake"\nbase_url = "{self.model.url}/v1"\nwire_api = "responses"\nenv_key = "FAKE_KEY"\n'
        # Without its own sandbox, every refusal in the tests comes from Backburner.
        text = f'model = "fake-1"\nmodel_provider = "fake"\nsandbox_mode = "danger-full-access"\n\n[model_providers.fake]\n{provider}'
        (self.user_home / ".codex").mkdir()
        (self.user_home / ".codex" / "config.toml").write_text(text)

    def run_turn(self, prompt: str) -> None:
        options = ["--json", "--skip-git-repo-check", *(["--dangerously-bypass-hook-trust"] if self.hooks_are_trusted else [])]
        out = self.run("codex", "exec", *options, *(["resume", self.session] if self.session else []), prompt)
        events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        self.session = next(event["thread_id"] for event in events if event["type"] == "thread.started")


class Gemini(Client):
    name, shell, keeps_hook_output = "gemini", "run_shell_command", False

    def set_up(self) -> None:
        self.environ |= {"GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": self.model.url}
        (self.user_home / ".gemini").mkdir()
        settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
        (self.user_home / ".gemini" / "settings.json").write_text(json.dumps(settings, indent=2))

    def run_turn(self, prompt: str) -> None:
        resume = ["--resume", "latest"] if self.session else []
        options = ["--skip-trust", "-m", "gemini-2.5-flash", "--approval-mode", "yolo", "--output-format", "json"]
        out = self.run("gemini", *options, *resume, "-p", prompt)
        self.session = json.loads(out[out.index("{") :])["session_id"]


class OpenCode(Client):
    """Uses `opencode serve`, which is started at the first turn; each turn is one request to it."""

    name, shell = "opencode", "bash"
    _server: "subprocess.Popen[bytes] | None" = None

    def set_up(self) -> None:
        self.environ |= {"OPENCODE_DISABLE_MODELS_FETCH": "1"}
        model = {"name": "Fake 1", "tool_call": True, "limit": {"context": 128000, "output": 8192}}
        options = {"baseURL": f"{self.model.url}/v1", "apiKey": "fake-key"}
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "Fake", "options": options, "models": {"fake-1": model}}
        config = {
            "model": "fake/fake-1",
            "small_model": "fake/fake-1",
            "autoupdate": False,
            "share": "disabled",
            "provider": {"fake": provider},
        }
        folder = self.user_home / ".config" / "opencode"
        folder.mkdir(parents=True)
        (folder / "opencode.json").write_text(json.dumps(config, indent=2))

    def run_turn(self, prompt: str) -> None:
        self.serve()
        done = self.post(f"/session/{self.session}/message", {"parts": [{"type": "text", "text": prompt}]})
        assert not done["info"].get("error"), done

    def run_once(self, *script: dict[str, Any]) -> str:
        """Run one turn with `opencode run`; returns the conversation that the model was sent."""
        resume = ["--session", self.session] if self.session else []
        out = self.run("opencode", "run", "--format", "json", *resume, prompt(list(script)))
        self.session = json.loads(out.splitlines()[0])["sessionID"]
        return self.conversation()

    def serve(self) -> None:
        if self._server is None:
            log = self.user_home / "serve.log"
            with open(log, "wb") as file:
                self._server = subprocess.Popen(
                    ["opencode", "serve", "--port", "0"],
                    env=self.environ,
                    cwd=self.home_cli.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                )

            def listening() -> "re.Match[str] | None":
                assert self._server and self._server.poll() is None, log.read_text()
                return re.search(r"listening on (http://[\d.:]+)", log.read_text())

            wait_until(listening, "the server to listen", PATIENCE)
            found = listening()
            assert found
            self.url = found[1]
        if self.session is None:
            self.session = self.post("/session", {"title": "a test"})["id"]

    def post(self, path: str, body: object) -> Any:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())

    def close(self) -> None:
        if self._server is not None:
            self._server.terminate()
            try:
                self._server.wait(20)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait(20)


AGENTS = {client.name: client for client in (Claude, Codex, OpenCode, Gemini)}


@contextlib.contextmanager
def client(kind: type[Client], home_cli: HomeCli) -> Iterator[Any]:
    """A client that was just set up, with its own scripted model."""
    with ScriptedModel() as model:
        instance = kind(home_cli, model)
        try:
            yield instance
        finally:
            instance.close()


class Mcpdo:
    """`mcpdo` of MCP Inspector: its daemon keeps one connection to the server, and each call runs a program."""

    def __init__(self, home_cli: HomeCli, era: str) -> None:
        self._place = home_cli
        self._environ = {**home_cli.environ, "PATH": f"{CLIENTS}:{home_cli.environ['PATH']}", "MCP_INSPECTOR_SECRET_STORE": "memory"}
        self("connect", "--era", era, "--cwd", str(home_cli.cwd), "--transport", "stdio", "--", *own_command(home_cli.environ), "mcp")

    def __call__(self, *words: str) -> Any:
        line = ["mcpdo", "--format", "json", "--connection", "bb", *words]
        done = subprocess.run(
            line, env=self._environ, cwd=self._place.cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self("tools/call", tool, json.dumps(arguments))

    def close(self) -> None:
        daemon = identify(self("daemon", "status")["pid"])
        self("daemon", "stop")
        wait_until(lambda: daemon is None or not is_alive(daemon), "its daemon to exit", 30)


def prompt(script: Script) -> str:
    return f"Please do this. [[script: {json.dumps(script)}]]]"


def notices_of(task_id: str, text: str) -> int:
    """How many notices about the end of a task a text contains, with tags (which some clients escape) or without."""
    plain = html.unescape(text).replace("<\\", "<")
    return len(re.findall(rf"<task-id>{task_id}</task-id>|- Background task {task_id} ", plain)) if NOTICE_PREFIX in plain else 0


def start(command: str, description: str = "In the background", **options: Any) -> dict[str, Any]:
    return {"tool": "backburner_start_background_task", "args": {"command": command, "description": description, **options}}


def wait_for(*task_ids: str) -> dict[str, Any]:
    return {"tool": "backburner_wait_for_background_tasks", "args": {"task_ids": list(task_ids)}}


def task_in(text: str) -> str:
    """The id of the last task in a text."""
    return re.findall(r"task_\d{8}_\d{6}_[\w-]+", text)[-1]


def has_started(text: str) -> bool:
    """Whether a text contains the result of starting a task; on a busy machine the task may still be pending then."""
    return re.search(r"[Bb]ackground task task_\d", text) is not None


def questions_in(text: str) -> set[str]:
    """The ids of the tasks that a text asks the user to approve."""
    return set(re.findall(r"approve (task_[\w-]+)", text))
