"""A chat conversation without a view: messages go into the ledger, and the agent's answer is read from the files of its run.

The conversation is an agent task, and each turn is a run of it. A turn therefore continues when the process that shows it dies,
and another process can show it again.
"""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import NamedTuple

from backburner.core.errors import BackburnerError, BadInput, TaskNotFound
from backburner.core.models import PRIORITIES, Caller, Entry, Submission
from backburner.core.notice_text import is_notification
from backburner.core.sessions import Client, SessionId
from backburner.core.task_spec import AgentSpec, Order, TaskSpec, options_from
from backburner.core.terminal_text import shortened
from backburner.services.app import App
from backburner.services.async_app import AsyncApp
from backburner.system.caller_identity import environment_for_commands
from backburner.system.file_watch import FileWatch
from backburner.system.home import read_plain
from backburner.system.paths import project_of
from backburner.system.processes import myself
from backburner.system.run_files import STREAM

_POLL_INTERVAL = 1.0  # seconds
_MAX_PAST_MESSAGES = 12  # that a resumed chat shows
_READ_SIZE = 1 << 20  # bytes


class TurnEvent(NamedTuple):
    """Something that happened in a turn.

    `kind` is `text` (a piece of the answer), `end` (the end of a paragraph), `tool` (a tool call), `waits` (what the turn
    waits for; empty when it no longer waits) or `over` (the end of the turn; `text` is empty if the turn was answered).
    """

    kind: str
    text: str = ""
    detail: str = ""


class PastMessage(NamedTuple):
    """A message of an earlier turn. `author` is `you`, `agent` or `tool`."""

    author: str
    text: str


def new_session_id() -> str:
    """A session id for a new chat."""
    return str(SessionId(Client.CHAT, f"{time.strftime('%Y%m%d_%H%M%S')}_{os.urandom(2).hex()}"))


class ChatConversation:
    """One chat. `entry` is its agent task as last read from the ledger; None before the first message."""

    def __init__(self, app: AsyncApp, session_id: str, cwd: str, agent: str = "default") -> None:
        self._app, self.session_id, self.cwd, self.agent = app, session_id, cwd, agent
        self.caller = Caller(cwd, app.environ, "chat", session_id)
        self.model = ""
        self.entry: Entry | None = None

    async def open(self) -> None:
        """Register the session, so that notices for this chat are kept until it shows them."""

        def register(app: App) -> Entry | None:
            app.sessions.register(self.session_id, Client.CHAT, project_of(self.caller.cwd), myself())
            app.sessions.record_activity("chat")
            return app.conversations.chat(self.session_id)

        self.entry = await self._app.call(register)
        if self.entry:
            self.agent, self.model = self.entry.task.spec.agent_name or self.agent, self.entry.task.spec.options.model

    async def model_name(self) -> str:
        """The model of this chat. Raises BadInput, which says how to configure one, if there is none."""
        return self.model or (await self._app.call(lambda app: app.agents.settings(self.agent)))["model"]

    async def set_model(self, name: str) -> str:
        """Use another agent or another model from the next message on; returns the name of the model."""
        agents = await self._app.call(lambda app: {"default", *app.config.agents})
        if name not in agents and ":" not in name:
            known = ", ".join(sorted(agents))
            raise BadInput(f"Unknown agent '{name}'. Known agents: {known}. Or give a model, such as ollama:qwen3.")
        agent, model = (name, "") if name in agents else (self.agent, name)
        await self._app.call(lambda app: app.agents.settings(agent))
        if self.entry:
            self.entry = await self._app.call(lambda app: app.conversations.set_model(self.session_id, agent, model))
        self.agent, self.model = agent, model
        return await self.model_name()

    async def send(self, message: str) -> None:
        """Start a turn with this message; `events` reports what happens in it."""

        def submit(app: App) -> Entry:
            app.sessions.record_activity("chat")
            self.entry = app.conversations.chat(self.session_id)  # read again: another process may have ended it
            if self.entry is not None:
                return app.conversations.resume(self.entry.task.task_id, message, self.caller)
            return app.submissions.submit(
                Submission(
                    spec=TaskSpec(
                        cwd=self.cwd,
                        agent=AgentSpec(self.agent, message, options_from({"chat": True, **({"model": self.model} if self.model else {})})),
                        description=shortened(" ".join(message.split()), longest=80),
                        order=Order(priority=PRIORITIES["high"]),
                    ),
                    environment=environment_for_commands(self.caller.environ),
                    session=self.session_id,
                    opened=self.cwd,
                ),
                self.caller,
            )

        self.entry = await self._app.call(submit)

    async def refresh(self) -> None:
        """Read the task of the conversation again."""
        self.entry = await self._app.call(lambda app: app.conversations.chat(self.session_id))

    @property
    def is_live(self) -> bool:
        """Whether a turn has not ended."""
        return self.entry is not None and self.entry.is_live

    async def events(self) -> AsyncGenerator[TurnEvent]:
        """Yield the events of the current turn, from its beginning to its end. The turn has interactive priority meanwhile."""
        assert self.entry is not None and self.entry.run is not None
        task, path = self.entry.task, os.path.join(await self._app.call(lambda app: app.runs.folder(self._entry())), STREAM)
        priority = await self._app.call(lambda app: app.sessions.interactive(task.lane, task.task_id))
        await self._app.call(lambda _: priority.__enter__())
        try:
            async for event in self._read_events(path):
                yield event
        finally:
            await self._app.call(lambda _: priority.__exit__(None, None, None))
            with contextlib.suppress(BackburnerError):
                await self._app.call(lambda app: app.inbox.acknowledge(task_ids=[task.task_id]))

    async def _read_events(self, path: str) -> AsyncGenerator[TurnEvent]:
        stream, waits = _StreamFile(path), ""
        async with _ledger_changes(self._app, stream) as changed:
            while True:
                changed.clear()
                entry = self.entry = await self._app.call(lambda app: _read_entry(app, self._entry().task.task_id))
                # The file is read after the ledger, so that everything written before the end is reported before the end.
                for event in stream.read_all() if not entry.is_live else stream.read():
                    yield event
                if not entry.is_live:
                    yield TurnEvent("over", _failure_text(entry), str(entry.status))
                    return
                now = entry.run.error or "" if entry.run and entry.status == "waiting" else ""
                if now != waits:
                    waits = now
                    yield TurnEvent("waits", now, (entry.run.wait.target or entry.run.wait.kind) if entry.run and entry.run.wait else "")
                while not changed.is_set():  # while the ledger does not change, only the file is read
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_POLL_INTERVAL):
                            await stream.grew.wait()
                        stream.grew.clear()
                        for event in stream.read():
                            yield event
                        continue
                    break

    def _entry(self) -> Entry:
        assert self.entry is not None
        return self.entry

    async def stop(self) -> None:
        """Cancel the current turn. Background tasks that it started continue."""
        if self.entry and self.entry.run:
            with contextlib.suppress(BackburnerError):  # the turn had already ended
                await self._app.call(lambda app: app.tasks.cancel(self._entry().task.task_id, self.caller))

    async def past(self) -> list[PastMessage]:
        """The last messages of the stored conversation, without the answer of a turn that has not ended: `events` reports that one."""
        if self.entry is None:
            return []
        try:
            stored = json.loads(await self._app.call(lambda app: read_plain(app.conversations.path(self._entry().task), 1 << 28)))
            past = [part for message in stored["messages"] for part in _visible_parts(message)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []
        if self.is_live:
            last = max((index for index, message in enumerate(past) if message.author == "you"), default=-1)
            past = past[: last + 1]
        return past[-_MAX_PAST_MESSAGES:]


class _StreamFile:
    """Reads the events that the agent process writes into a file of the run. `grew` is set when there may be more to read."""

    def __init__(self, path: str) -> None:
        self.path, self.grew = path, asyncio.Event()
        self._offset, self._partial_line = 0, b""
        self.watch = FileWatch()
        with contextlib.suppress(OSError):  # only a file that exists can be watched
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600))

    def read(self) -> list[TurnEvent]:
        """The next events, from at most 1 MiB of the file."""
        self.watch.arm(self.path)
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_SIZE)
                if len(data) == _READ_SIZE:
                    self.grew.set()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        return [event for event in map(_parse_event, lines) if event]

    def read_all(self) -> Iterator[TurnEvent]:
        """All events up to the current end of the file."""
        before = -1
        while before != self._offset:
            before = self._offset
            yield from self.read()


def _parse_event(line: bytes) -> TurnEvent | None:
    with contextlib.suppress(ValueError):
        match json.loads(line):
            case {"text": str(text)}:
                return TurnEvent("text", text)
            case {"end": True}:
                return TurnEvent("end")
            case {"tool": str(name), "about": str(arguments)}:
                return TurnEvent("tool", name, arguments)
    return None


@contextlib.asynccontextmanager
async def _ledger_changes(app: AsyncApp, stream: _StreamFile) -> AsyncGenerator[asyncio.Event]:
    """An event that is set at every change of the ledger. Also sets `stream.grew` when the file has grown."""
    changed, loop = asyncio.Event(), asyncio.get_running_loop()

    async def follow_ledger() -> None:
        async for _ in app.changes():
            changed.set()
            stream.grew.set()

    def on_growth() -> None:
        stream.watch.fired()
        stream.grew.set()

    following = asyncio.create_task(follow_ledger())
    if stream.watch.works:
        loop.add_reader(stream.watch.fileno(), on_growth)
    try:
        yield changed
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        if stream.watch.works:
            loop.remove_reader(stream.watch.fileno())
        stream.watch.close()


def _read_entry(app: App, task_id: str) -> Entry:
    app.supervisor.ensure_supervised()
    if (entry := app.queries.get_or_none(task_id)) is None:
        raise TaskNotFound(task_id=task_id)
    return entry


def _failure_text(entry: Entry) -> str:
    """Why a turn ended without an answer; empty if it was answered."""
    run = entry.run
    if run is None or entry.status == "completed":
        return ""
    if entry.status == "cancelled":
        return "Stopped."
    if run.end.result == "lost":
        return "The agent was interrupted. Its steps up to the last completed one are saved; send a message to continue."
    return f"The agent failed: {run.error or run.end.result}"


def _visible_parts(message: dict[str, list[dict[str, str]]]) -> list[PastMessage]:
    """The parts of a stored message that are shown to the user; notifications are left out."""
    readers: dict[str, Callable[[dict[str, str]], PastMessage]] = {
        "user-prompt": lambda part: PastMessage("you", part["content"]),
        "text": lambda part: PastMessage("agent", part["content"]),
        "tool-call": lambda part: PastMessage("tool", part["tool_name"]),
    }
    found = [readers[part["part_kind"]](part) for part in message["parts"] if part.get("part_kind") in readers]
    return [part for part in found if isinstance(part.text, str) and not is_notification(part.text)]
