"""The chat without its face: lines that are said or commanded, turns one after the other, notices, questions, and how things stand."""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from backburner.core.errors import BackburnerError, BadInput, NotResumable, QuestionChanged
from backburner.core.models import Caller, Entry
from backburner.core.notices import Notice
from backburner.core.states import RUNNING_STATES, NoticeKind, RunState
from backburner.core.terminal_text import clean, readable, shortened
from backburner.interfaces.cli.questions import Question, open_questions, settle
from backburner.interfaces.tui.chat import slash_commands as commands
from backburner.interfaces.tui.chat.conversation import ChatConversation, Piece
from backburner.services.app import App
from backburner.services.async_app import AsyncApp
from backburner.system.home import project_of
from backburner.system.processes import is_alive

_MOST_NOTICES = 5  # that are shown one by one; more are gathered
_GATHER_SECONDS, _AGAIN_SECONDS = 0.2, 1.0
_READ_ALONG_MS = 1500  # how long an agent has to say itself how a command of its turn ended
_LISTED = 200
_ENDINGS = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})


class ChatView(Protocol):
    """How a chat looks to its person."""

    def show(self, text: str, style: str = "") -> None:
        """A block of text: what was `said`, a `notice`, an `error`, a `hint`, a `tool`, a `note` of ours, or plain."""

    def say(self, piece: str) -> None:
        """A piece of the agent's answer."""

    def said(self) -> None:
        """The agent pauses: all it said so far is to be seen."""

    def refresh(self) -> None:
        """How things stand has changed."""


class StatusLine(NamedTuple):
    """How things stand, for the bar."""

    running: int = 0
    waiting: int = 0
    unread: int = 0
    spent: str = ""
    model: str = ""
    tasks: Sequence[tuple[str, str]] = ()


class ChatSession:
    """One chat at work. `doing` is what the turn does just now, empty between turns; `questions` are what waits for an answer."""

    def __init__(self, home: AsyncApp, talk: ChatConversation, face: ChatView, root: str, *, terminal: bool) -> None:
        self._home, self.talk, self._face, self._root, self._terminal = home, talk, face, root, terminal
        self.doing, self.stands = "", StatusLine()
        self.questions: list[Question] = []
        self.aside: set[tuple[str, str]] = set()  # questions that the person put off
        self.left = asyncio.Event()
        self._asked: set[str] = set()  # what the person themself asked for here, that needs an answer
        self._shown: set[int] = set()
        self._said: deque[str] = deque()
        self.saying = asyncio.Lock()  # held while something is handed to the agent: nobody leaves in the middle of that
        self._more = asyncio.Event()
        self._verbs = asyncio.Lock()
        self._work: set[asyncio.Future[bool]] = set()

    # -- what the person does

    def submit_line(self, line: str) -> None:
        """A line was sent off: a command is done now, also in the middle of a turn; anything else is said when it is its turn."""
        try:
            command = commands.parse(line)
        except BadInput as error:
            self._face.show(str(error), "error")
            return
        if command is None:
            self._said.append(line.removeprefix("/") if line.startswith("//") else line)
            self._more.set()
            if self.doing:
                self._face.show("It is said after this answer.", "hint")
        else:
            self._spawn(self._command(*command))

    async def run_line(self, line: str) -> bool:
        """The same, done before this returns; whether it is something to say, which is left to the caller."""
        try:
            command = commands.parse(line)
        except BadInput as error:
            self._face.show(str(error), "error")
            return False
        if command:
            await self._guarded(self._command(*command))
        return command is None

    async def answer_now(self, question: Question, word: str) -> None:
        """The person's word to a question, done before this returns."""
        await self._guarded(self._settle(question, question.answers[word]))

    def answer(self, question: Question, word: str) -> None:
        """The person's word to a question, one of its own."""
        self._spawn(self._settle(question, question.answers[word]))

    def stop(self) -> None:
        """End the turn, not the background work; what was to be said after it is not."""
        for line in self._said:
            self._face.show(unsent_message(line), "hint")
        self._said.clear()
        self._spawn(self.talk.stop())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._guarded(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _guarded(self, work: Coroutine[Any, Any, object]) -> bool:
        """Whatever goes wrong is said, in a sentence; whether it went well."""
        try:
            await work
            return True
        except BackburnerError as error:
            self._face.show(str(error), "error")
        except OSError as error:
            self._face.show(f"{error.filename or 'It'}: {error.strerror}.", "error")
        except Exception as error:
            self._face.show(f"Backburner made a mistake: {type(error).__name__}: {error}.", "error")
        return False

    async def _command(self, name: str, rest: str) -> None:
        match name:
            case "help":
                self._face.show(commands.manual())
            case "quit":
                await self._quit(rest)
            case "background":
                entry = await self._home.call(lambda app: commands.start(app, self.talk.caller, rest))
                await self._started(entry)
            case "logs":
                self._face.show(await self._home.call(lambda app: commands.output(app, self.talk.caller, rest)))
            case "model":
                name = await (self.talk.set_model(rest) if rest else self.talk.model_name())
                self._face.show(f"{name} answers{' from now on' * bool(rest)}.", "note")
                await self.refresh()
            case "approve" | "reject":
                await self._answer(name, commands.words_of(rest))
            case "schedule" if not rest:
                self._face.show(await self._home.call(lambda app: _standing(app, self.talk.caller)))
            case _:
                await self._verb(name, rest)

    async def _verb(self, name: str, rest: str) -> None:
        loop = asyncio.get_running_loop()

        def emit(text: str) -> None:
            loop.call_soon_threadsafe(self._face.show, text)

        async with self._verbs:  # they print, and only one at a time may
            waits = await asyncio.to_thread(commands.call, name, rest, self._root, emit, session=self.talk.session, terminal=self._terminal)
        if waits:
            self._asked.add(waits)
        await self.refresh()

    async def _started(self, entry: Entry) -> None:
        task_id = entry.task.task_id
        if entry.status == "proposed":
            await self.refresh()
        else:
            self._face.show(f"Started background task {task_id}. Use /status {task_id} to check progress.", "note")

    async def _answer(self, verb: str, known: list[str]) -> None:
        if not known and verb == "approve":
            self.aside.clear()
            await self.refresh()
            if not self.questions:
                self._face.show("Nothing waits for your answer.", "note")
            return
        if not known:
            raise BadInput(f"Say which: {commands.SLASHES[verb].usage}")
        for reference in known:
            entry = await self._home.call(lambda app, reference=reference: app.queries.find(reference, self.talk.caller))
            if entry.task.in_chat and verb == "approve":
                raise BadInput("Its steps are shown before they are answered: /approve")
            task_id = entry.task.task_id
            try:
                entry = await self._home.call(
                    lambda app, known=task_id: (
                        app.approvals.approve(known, self.talk.caller)
                        if verb == "approve"
                        else app.approvals.reject(known, self.talk.caller)
                    )
                )
            except QuestionChanged:  # it is shown as it is now, and can be answered then
                self._asked.add(task_id)
                self.aside = {one for one in self.aside if one[0] != task_id}
                await self.refresh()
                raise
            self._face.show(f"Task {entry.task.task_id} {verb}{'d' if verb == 'approve' else 'ed'}.", "note")
        await self.refresh()

    async def _settle(self, question: Question, answer: str) -> None:
        self.questions = [one for one in self.questions if one.what != question.what]
        entry = await self._home.call(lambda app: settle(app, self.talk.caller, question, answer))
        if answer == "no":
            self._face.show("Not started." if question.about != self._chat_id() else "You said no.", "note")
        elif entry.run and question.about != self._chat_id() and not entry.task.is_recurring:
            self._face.show(f"Started background task {question.about}. Use /status {question.about} to check progress.", "note")
        else:
            self._face.show("You said yes.", "note")
        await self.refresh()

    def _chat_id(self) -> str:
        return self.talk.entry.task.task_id if self.talk.entry else ""

    async def _quit(self, rest: str) -> None:
        if rest not in ("", "--end"):
            raise BadInput(f"Write: {commands.SLASHES['quit'].usage}")
        if rest:
            gone = await self._home.call(lambda app: app.tasks.end_session(self.talk.session))
            self._face.show(f"The chat is ended; {len(gone)} tasks went with it.", "note")
        self.left.set()

    # -- what happens by itself

    async def live(self) -> None:
        """Turns and notices, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._turns())
            group.create_task(self._watch())

    async def _turns(self) -> None:
        while True:
            if not self.talk.live:
                self.doing = ""
                self._face.refresh()
                await self._more.wait()
                if not self._said:
                    self._more.clear()
                    continue
                async with self.saying:
                    await self._guarded(self._say(self._said.popleft()))
            if self.talk.live and not await self._guarded(self.turn()):
                await asyncio.sleep(_AGAIN_SECONDS)
                with contextlib.suppress(BackburnerError):
                    await self.talk.refresh()

    async def _say(self, message: str) -> None:
        try:
            await self.talk.say(message)
        except NotResumable:
            await self.talk.refresh()
            if not self.talk.live:
                raise
            self._said.appendleft(message)  # the same chat answers somebody elsewhere: that is heard first

    def unsent_lines(self) -> list[str]:
        """What was to be said, and was not."""
        return list(self._said)

    async def turn(self) -> Piece:
        """The turn under way, to its end."""
        self.doing = "thinking"
        last = Piece("over")
        async for last in self.talk.listen():
            match last.kind:
                case "text":
                    self.doing = "answering"
                    self._face.say(last.text)
                case "end":
                    self._face.said()
                    self.doing = "thinking"
                case "tool":
                    self.doing = f"{clean(last.text)} {shortened(clean(last.about), longest=160)}"
                    self._face.show(self.doing, "tool")
                case "waits":
                    self.doing = f"waiting: {last.text}" if last.text else "thinking"
                case "over":
                    self._face.said()
                    if last.text:
                        self._face.show(last.text, "error" if last.about == "failed" else "hint")
            self._face.refresh()
        self.doing = ""
        return last

    async def _watch(self) -> None:
        async for _ in self._home.changes():
            with contextlib.suppress(BackburnerError, OSError):  # the next look may work
                await self.refresh()
            await asyncio.sleep(_GATHER_SECONDS)  # what happens together is told together

    async def refresh(self) -> None:
        """See how things stand, what is asked, and what is to be told."""
        self.stands, self.questions, notices = await self._home.call(self._looked)
        self.aside &= {one.what for one in self.questions}
        if notices:
            told = await self._tell(notices)
            self.stands = self.stands._replace(unread=self.stands.unread - told)
        self._face.refresh()

    def _looked(self, app: App) -> tuple[StatusLine, list[Question], Sequence[Notice]]:
        entries = app.queries.list(self.talk.caller, limit=_LISTED)
        questions = open_questions(app, self.talk.caller, self.talk.session, self._asked)
        unread = app.inbox.notices(project=project_of(self.talk.cwd))
        chat = app.conversations.chat(self.talk.session)
        others = {one.session_id for one in app.conversations.chats(self.talk.caller) if is_alive(one.process)} - {self.talk.session}
        unread = [one for one in unread if not (chat and one.task_id == chat.task.task_id) and _asker(app, one) not in others]
        fresh = [one for one in unread if one.notice_id not in self._shown and not self._read_along(app, one)]
        model = self.talk.model
        with contextlib.suppress(BackburnerError):
            model = model or app.agents.settings(self.talk.agent)["model"]
        return _stands(app, entries, chat, questions, len(unread), model), questions, fresh

    def _read_along(self, app: App, notice: Notice) -> bool:
        """Whether the agent is about to say itself how a command of its own turn ended."""
        entry = app.queries.get_or_none(notice.task_id) if self.doing and time.time() * 1000 - notice.created_at < _READ_ALONG_MS else None
        return entry is not None and entry.task.parent_run is not None and entry.task.parent_task == self._chat_id()

    async def _tell(self, notices: Sequence[Notice]) -> int:
        """Each of a few; of many how many: those stay in the inbox. How many were told."""
        if len(notices) > _MOST_NOTICES:
            self._shown |= {one.notice_id for one in notices}
            kinds = Counter(await self._home.call(lambda app: [_ending(app, one) for one in notices]))
            counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
            self._face.show(f"{len(notices)} notices: {counts}. /inbox shows them.", "notice")
            return 0
        mine = await self._home.call(lambda app: app.inbox.lease(notices))
        for one in mine:
            self._shown.add(one.notice_id)
            self._face.show(readable(one.text).rstrip(), "notice")
            await self._home.call(lambda app, one=one: app.inbox.acknowledge(notice_ids=[one.notice_id]))
        return len(mine)


def unsent_message(line: str) -> str:
    return f"Not said: {shortened(readable(line), longest=200)}"


def _ending(app: App, notice: Notice) -> str:
    """How the run ended that a notice is about; `more` where it is about something else."""
    entry = app.queries.get_or_none(notice.task_id)
    if entry is None or notice.kind != NoticeKind.ENDED:
        return "more"
    run = entry.run
    if run is None or run.run_id != notice.run_id:  # a recurring task has run again since
        run = next((one for one in app.queries.history(entry, _LISTED) if one.run_id == notice.run_id), None)
    return str(run.state) if run and run.state in _ENDINGS else "more"


def _asker(app: App, notice: Notice) -> str | None:
    entry = app.queries.get_or_none(notice.task_id)
    return entry.task.session if entry else None


def _stands(app: App, entries: Sequence[Entry], chat: Entry | None, questions: Sequence[Question], unread: int, model: str) -> StatusLine:
    at_work = [entry for entry in entries if entry.run and (entry.run.state in RUNNING_STATES or entry.run.state == RunState.PENDING)]
    waiting = {entry.task.task_id for entry in entries if entry.status == "proposed"} | {one.about for one in questions}
    used: Counter[str] = Counter()
    for run in app.queries.history(chat, _LISTED) if chat else ():
        used.update({name: value for name, value in run.end.usage.items() if name in ("tokens", "cost")})  # type: ignore[arg-type]
    spent = f"${used['cost']:.2f}" if used["cost"] else _tokens(used["tokens"])
    tasks = [(entry.task.task_id, entry.task.spec.description) for entry in entries]
    return StatusLine(len(at_work), len(waiting), unread, spent, model, tasks)


def _tokens(count: float) -> str:
    return "" if not count else f"{count:.0f} tokens" if count < 1000 else f"{count / 1000:.1f}k tokens"


def _standing(app: App, caller: Caller) -> str:
    from backburner.core import task_text as render
    from backburner.services.app import now_ms

    entries = app.queries.list(caller, standing=True)
    return render.table(entries, now_ms(), plain=True) if entries else "No standing tasks here."
