"""The connection to an ACP agent's program: starts it in its own session, exchanges JSON lines, and ends it with all its processes."""

import asyncio
import contextlib
import json
import os
import shlex
from collections.abc import AsyncGenerator, Callable
from typing import Any

from acp import PROTOCOL_VERSION, RequestError
from acp.core import Connection
from acp.meta import AGENT_METHODS

from backburner.agents import child_process
from backburner.agents.external.message_fields import error_message
from backburner.agents.external.turn import AgentFailed
from backburner.core.models import ProcessId
from backburner.core.terminal_text import clean
from backburner.system import processes

START_TIMEOUT_SECONDS = 120.0
_MAX_LINE_BYTES = 64 << 20
_MAX_ERRORS_BYTES, _KEPT_ERRORS_BYTES = 16 << 20, 1 << 20  # of the program's stderr file
_CHECK_INTERVAL_SECONDS = 1.0


class JsonLineConnection:
    """Messages to and from a program. `exit_timeout_seconds` is how long the program may take to exit after the connection is closed.

    `updates` counts the received updates. `updates_at_response` is that count at the last response: later updates do not belong to it.
    """

    def __init__(self, program: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.program, self._reader, self._writer = program, reader, writer
        self.exit_timeout_seconds, self.failure = 0.0, ""
        self.updates = self.updates_at_response = 0

    async def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next message, or None at the end. Lines that are not JSON objects are ignored."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                self.failure = f"{self.program} sent a line of more than {_MAX_LINE_BYTES >> 20} MiB"
                return None
            if not line:
                return None
            with contextlib.suppress(ValueError):
                if isinstance(message := json.loads(line), dict):
                    self._count(message)
                    return message

    def _count(self, message: dict[str, Any]) -> None:
        if message.get("method") == "session/update":
            self.updates += 1
        elif "method" not in message:
            self.updates_at_response = self.updates

    async def close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()


@contextlib.asynccontextmanager
async def start_program(
    settings: dict[str, str],
    env: dict[str, str],
    cwd: str,
    process_tag: str,
    errors: str,
    on_started: Callable[[ProcessId], None] | None = None,
) -> AsyncGenerator[JsonLineConnection]:
    """Start the agent's program. It is always ended when the context exits."""
    argv = shlex.split(settings["command"])
    path = processes.executable_of(argv[0], cwd, env.get("PATH", os.defpath))
    if path is None:
        package = f": npm install -g {settings['package']}" if settings.get("package") else ""
        raise AgentFailed(f"{argv[0]} is not on the PATH{package}")
    with open(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600), "wb") as file:
        program = await asyncio.create_subprocess_exec(
            path,
            *argv[1:],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
            cwd=cwd,
            env=env,
            limit=_MAX_LINE_BYTES,
            start_new_session=True,
        )
    processes.mark_inside(program.pid)  # `agents --check` starts it from a person's terminal; it does nothing before the first message
    assert program.stdin and program.stdout
    leader = processes.identify(program.pid)
    line = JsonLineConnection(argv[0], program.stdout, program.stdin)
    limiter = asyncio.ensure_future(_limit_errors_file(errors))
    try:
        if on_started and leader:
            on_started(leader)
        yield line
    finally:
        limiter.cancel()
        await line.close()
        await _kill_reliably(child_process.terminate_tree(leader, process_tag, program, exit_timeout_seconds=line.exit_timeout_seconds))


async def _limit_errors_file(errors: str) -> None:
    """Truncate the stderr file of a program whenever it becomes too large."""
    while True:
        await asyncio.sleep(_CHECK_INTERVAL_SECONDS)
        with contextlib.suppress(OSError), open(os.open(errors, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
            if file.seek(0, os.SEEK_END) > _MAX_ERRORS_BYTES:
                file.seek(-_KEPT_ERRORS_BYTES, os.SEEK_END)
                last = file.read()
                file.truncate(0)
                file.seek(0)
                file.write(last)


async def _kill_reliably(work: Any) -> None:
    """Wait for `work` to finish even if this task is cancelled meanwhile."""
    task, is_cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError


async def handshake(connection: Connection) -> dict[str, Any]:
    """Initialize the connection and return the agent's answer with its capabilities."""
    params = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": {}, "clientInfo": {"name": "backburner", "version": "1"}}
    try:
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            return await connection.send_request(AGENT_METHODS["initialize"], params) or {}
    except TimeoutError:
        raise AgentFailed(f"it did not answer the initialize request within {START_TIMEOUT_SECONDS:.0f} s") from None
    except RequestError as error:
        raise AgentFailed(error_message(error)) from None


def stderr_tail(errors: str) -> str:
    """The last line of the program's stderr, with a colon before it; empty if there is none."""
    try:
        with open(errors, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2000))
            lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return f": {clean(lines[-1])}" if lines else ""
