"""A conversation between a person and an agent, without a face: what is said goes into the ledger, what comes back is read from disk.

The conversation is an agent's task, each turn a run of it. So a turn goes on when whoever shows it dies, and can be looked at again.
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
from backburner.system.home import project_of, read_plain
from backburner.system.processes import myself
from backburner.system.run_files import STREAM

_LOOK_SECONDS = 1.0
_REMEMBERED = 12  # pieces of the past that a resumed chat shows
_LONGEST_PIECE = 1 << 20


class Piece(NamedTuple):
    """Something that comes of a turn: `text` and `end` of what the agent says, a `tool` it calls, what it `waits` for, or its end (`over`)."""

    kind: str
    text: str = ""
    about: str = ""


class PastMessage(NamedTuple):
    """Something that was said before."""

    who: str
    text: str


def fresh_session() -> str:
    """A name for a chat that nobody had before."""
    return str(SessionId(Client.CHAT, f"{time.strftime('%Y%m%d_%H%M%S')}_{os.urandom(2).hex()}"))


class ChatConversation:
    """One chat. `entry` is its conversation as it was last seen; None before the first word."""

    def __init__(self, home: AsyncApp, session: str, cwd: str, agent: str = "default") -> None:
        self.home, self.session, self.cwd, self.agent = home, session, cwd, agent
        self.caller = Caller(cwd, home.environ, "chat", session)
        self.model = ""
        self.entry: Entry | None = None

    async def open(self) -> None:
        """Be there: what is owed to the chat waits for it from now on."""

        def register(app: App) -> Entry | None:
            app.sessions.register(self.session, Client.CHAT, project_of(self.caller.cwd), myself())
            app.sessions.record_activity("chat")
            return app.conversations.chat(self.session)

        self.entry = await self.home.call(register)
        if self.entry:
            self.agent, self.model = self.entry.task.spec.agent_name or self.agent, self.entry.task.spec.options.model

    async def model_name(self) -> str:
        """The model that answers; BadInput, with how to get one, where there is none."""
        return self.model or (await self.home.call(lambda app: app.agents.settings(self.agent)))["model"]

    async def set_model(self, name: str) -> str:
        """Have another agent, or another model, answer from now on; its model."""
        agents = await self.home.call(lambda app: {"default", *app.config.agents})
        if name not in agents and ":" not in name:
            raise BadInput(f"There is no agent '{name}'; there are {', '.join(sorted(agents))}, or name a model, such as ollama:qwen3.")
        agent, model = (name, "") if name in agents else (self.agent, name)
        await self.home.call(lambda app: app.agents.settings(agent))
        if self.entry:
            self.entry = await self.home.call(lambda app: app.conversations.set_model(self.session, agent, model))
        self.agent, self.model = agent, model
        return await self.model_name()

    async def say(self, message: str) -> None:
        """One more turn; `listen` hears it."""

        def ask(app: App) -> Entry:
            app.sessions.record_activity("chat")
            self.entry = app.conversations.chat(self.session)  # as it is now: it may have been ended elsewhere
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
                    session=self.session,
                    opened=self.cwd,
                ),
                self.caller,
            )

        self.entry = await self.home.call(ask)

    async def refresh(self) -> None:
        """See what became of the conversation."""
        self.entry = await self.home.call(lambda app: app.conversations.chat(self.session))

    @property
    def live(self) -> bool:
        """Whether a turn is under way."""
        return self.entry is not None and self.entry.is_live

    async def listen(self) -> AsyncGenerator[Piece]:
        """What comes of the turn under way, from its beginning to its end. A person waits meanwhile for the model."""
        assert self.entry is not None and self.entry.run is not None
        task, path = self.entry.task, os.path.join(await self.home.call(lambda app: app.runs.folder(self._entry())), STREAM)
        turn = await self.home.call(lambda app: app.sessions.interactive(task.lane, task.task_id))
        await self.home.call(lambda _: turn.__enter__())
        try:
            async for piece in self._pieces(path):
                yield piece
        finally:
            await self.home.call(lambda _: turn.__exit__(None, None, None))
            with contextlib.suppress(BackburnerError):
                await self.home.call(lambda app: app.inbox.acknowledge(task_ids=[task.task_id]))

    async def _pieces(self, path: str) -> AsyncGenerator[Piece]:
        heard, waits = _Heard(path), ""
        async with _nudges(self.home, heard) as nudged:
            while True:
                nudged.clear()
                entry = self.entry = await self.home.call(lambda app: _known(app, self._entry().task.task_id))
                # After the look: what was written before its end is heard before it, all of it.
                for piece in heard.everything() if not entry.is_live else heard.pieces():
                    yield piece
                if not entry.is_live:
                    yield Piece("over", _how(entry), str(entry.status))
                    return
                now = entry.run.error or "" if entry.run and entry.status == "waiting" else ""
                if now != waits:
                    waits = now
                    yield Piece("waits", now, (entry.run.wait.target or entry.run.wait.kind) if entry.run and entry.run.wait else "")
                while not nudged.is_set():  # nobody but the agent has done anything: only that is looked at
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_SECONDS):
                            await heard.grew.wait()
                        heard.grew.clear()
                        for piece in heard.pieces():
                            yield piece
                        continue
                    break

    def _entry(self) -> Entry:
        assert self.entry is not None
        return self.entry

    async def stop(self) -> None:
        """End the turn under way. What it started in the background goes on."""
        if self.entry and self.entry.run:
            with contextlib.suppress(BackburnerError):  # it had ended
                await self.home.call(lambda app: app.tasks.cancel(self._entry().task.task_id, self.caller))

    async def past(self) -> list[PastMessage]:
        """The end of what was said before, as far as it is on disk; the turn under way is heard, not remembered."""
        if self.entry is None:
            return []
        try:
            kept = json.loads(await self.home.call(lambda app: read_plain(app.conversations.path(self._entry().task), 1 << 28)))
            said = [one for message in kept["messages"] for one in _said(message)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return []
        if self.live:
            last = max((place for place, one in enumerate(said) if one.who == "you"), default=-1)
            said = said[: last + 1]
        return said[-_REMEMBERED:]


class _Heard:
    """The pieces that an agent has written down; `grew` is set when there are more."""

    def __init__(self, path: str) -> None:
        self.path, self.grew = path, asyncio.Event()
        self._at, self._rest = 0, b""
        self.watch = FileWatch()
        with contextlib.suppress(OSError):  # what is not there cannot be watched
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600))

    def pieces(self) -> list[Piece]:
        self.watch.arm(self.path)
        try:
            with open(self.path, "rb") as file:
                file.seek(self._at)
                data = file.read(_LONGEST_PIECE)
                if len(data) == _LONGEST_PIECE:
                    self.grew.set()
        except FileNotFoundError:
            return []
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [piece for piece in map(_piece, lines) if piece]

    def everything(self) -> Iterator[Piece]:
        """All that there is by now."""
        before = -1
        while before != self._at:
            before = self._at
            yield from self.pieces()


def _piece(line: bytes) -> Piece | None:
    with contextlib.suppress(ValueError):
        match json.loads(line):
            case {"text": str(text)}:
                return Piece("text", text)
            case {"end": True}:
                return Piece("end")
            case {"tool": str(name), "about": str(about)}:
                return Piece("tool", name, about)
    return None


@contextlib.asynccontextmanager
async def _nudges(home: AsyncApp, heard: _Heard) -> AsyncGenerator[asyncio.Event]:
    """An event that is set with every change of the ledger; `heard` is told when its file grows."""
    nudged, loop = asyncio.Event(), asyncio.get_running_loop()

    async def ring() -> None:
        async for _ in home.changes():
            nudged.set()
            heard.grew.set()

    def grown() -> None:
        heard.watch.fired()
        heard.grew.set()

    ringing = asyncio.create_task(ring())
    if heard.watch.works:
        loop.add_reader(heard.watch.fileno(), grown)
    try:
        yield nudged
    finally:
        ringing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ringing
        if heard.watch.works:
            loop.remove_reader(heard.watch.fileno())
        heard.watch.close()


def _known(app: App, task_id: str) -> Entry:
    app.supervisor.ensure_supervised()
    if (entry := app.queries.get_or_none(task_id)) is None:
        raise TaskNotFound(task_id=task_id)
    return entry


def _how(entry: Entry) -> str:
    """Why a turn has no answer; empty where it has."""
    run = entry.run
    if run is None or entry.status == "completed":
        return ""
    if entry.status == "cancelled":
        return "Stopped."
    if run.end.result == "lost":
        return "It was interrupted. What it did up to its last step is kept: say something, and it goes on from there."
    return f"It failed: {run.error or run.end.result}"


def _said(message: dict[str, list[dict[str, str]]]) -> list[PastMessage]:
    """What a message of a kept conversation has for people."""
    who: dict[str, Callable[[dict[str, str]], PastMessage]] = {
        "user-prompt": lambda part: PastMessage("you", part["content"]),
        "text": lambda part: PastMessage("agent", part["content"]),
        "tool-call": lambda part: PastMessage("tool", part["tool_name"]),
    }
    found = [who[part["part_kind"]](part) for part in message["parts"] if part.get("part_kind") in who]
    return [one for one in found if isinstance(one.text, str) and not is_notification(one.text)]
