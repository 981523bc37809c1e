"""The line to an agent's program: started in a session of its own, JSON in lines both ways, and ended with all that came of it."""

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

from backburner.agents import child_process as child
from backburner.agents.external.message_fields import error_message
from backburner.agents.external.turn import Failed
from backburner.core.models import ProcessId
from backburner.core.terminal_text import clean
from backburner.system import processes as process

START_SECONDS = 120.0
_LONGEST_LINE = 64 << 20
_MOST_ERRORS, _LAST_ERRORS = 16 << 20, 1 << 20  # how much of its complaints there may be, and how much of more is kept
_LOOK_SECONDS = 1.0


class JsonLineConnection:
    """Messages to and from a program. `patience` is how long it may take to end by itself when it is hung up on.

    `updates` counts what came of them, `ended` how many had come with the last answer: what follows it is not a part of that.
    """

    def __init__(self, program: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.program, self._reader, self._writer = program, reader, writer
        self.patience, self.broken = 0.0, ""
        self.updates = self.ended = 0

    async def send(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end. What is none is not ours to read."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                self.broken = f"{self.program} sent a line of more than {_LONGEST_LINE >> 20} MiB"
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
            self.ended = self.updates

    async def close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()


@contextlib.asynccontextmanager
async def started(
    settings: dict[str, str], env: dict[str, str], cwd: str, mark: str, errors: str, began: Callable[[ProcessId], None] | None = None
) -> AsyncGenerator[JsonLineConnection]:
    """The agent's program, ended when nobody needs it any more, whatever comes between."""
    words = shlex.split(settings["command"])
    path = process.executable_of(words[0], cwd, env.get("PATH", os.defpath))
    if path is None:
        package = f": npm install -g {settings['package']}" if settings.get("package") else ""
        raise Failed(f"{words[0]} is not on the PATH{package}")
    with open(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600), "wb") as file:
        program = await asyncio.create_subprocess_exec(
            path,
            *words[1:],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=file,
            cwd=cwd,
            env=env,
            limit=_LONGEST_LINE,
            start_new_session=True,
        )
    process.mark_inside(program.pid)  # `agents --check` starts it from a person's terminal; it does nothing before it is spoken to
    assert program.stdin and program.stdout
    leader = process.identify(program.pid)
    line = JsonLineConnection(words[0], program.stdout, program.stdin)
    looking = asyncio.ensure_future(_kept_short(errors))
    try:
        if began and leader:
            began(leader)
        yield line
    finally:
        looking.cancel()
        await line.close()
        await _kill_reliably(child.terminate_tree(leader, mark, program, patience=line.patience))


async def _kept_short(errors: str) -> None:
    """See that what a program complains of does not fill the disk."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        with contextlib.suppress(OSError), open(os.open(errors, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
            if file.seek(0, os.SEEK_END) > _MOST_ERRORS:
                file.seek(-_LAST_ERRORS, os.SEEK_END)
                last = file.read()
                file.truncate(0)
                file.seek(0)
                file.write(last)


async def _kill_reliably(work: Any) -> None:
    """See something to its end, also when we are told to stop meanwhile."""
    task, stopped = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            stopped = True
    if stopped:
        raise asyncio.CancelledError


async def handshake(connection: Connection) -> dict[str, Any]:
    """Say hello; what the agent can do."""
    about = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": {}, "clientInfo": {"name": "backburner", "version": "1"}}
    try:
        async with asyncio.timeout(START_SECONDS):
            return await connection.send_request(AGENT_METHODS["initialize"], about) or {}
    except TimeoutError:
        raise Failed(f"it did not greet back within {START_SECONDS:.0f} s") from None
    except RequestError as error:
        raise Failed(error_message(error)) from None


def stderr_tail(errors: str) -> str:
    """The end of what it complained about."""
    try:
        with open(errors, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2000))
            lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return f": {clean(lines[-1])}" if lines else ""
