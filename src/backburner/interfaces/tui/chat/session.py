"""The logic of a chat, without a view: queued messages, slash commands, turns, notices, approval questions and the status line."""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from backburner.core.errors import BackburnerError, BadInput, NotResumable, QuestionChanged
from backburner.core.models import Caller, Entry
from backburner.core.notice_text import first_lines
from backburner.core.notices import Notice
from backburner.core.states import RUNNING_STATES, NoticeKind, RunState
from backburner.core.terminal_text import clean, readable, shortened
from backburner.interfaces.cli.inbox import box
from backburner.interfaces.cli.questions import Question, open_questions, settle, waiting_for_person
from backburner.interfaces.tui.chat import slash_commands as commands
from backburner.interfaces.tui.chat.conversation import ChatConversation, TurnEvent
from backburner.services.app import App
from backburner.services.async_app import AsyncApp
from backburner.system.paths import project_of
from backburner.system.processes import is_alive

_MAX_NOTICE_LINES = 20
_MAX_SINGLE_NOTICES = 5  # with more at once, only their number is shown
_REFRESH_INTERVAL = 0.2  # seconds; changes within it are shown together
_RETRY_INTERVAL = 1.0  # seconds
_AGENT_REPORT_MS = 1500  # milliseconds in which the agent may report the end of a command of its turn before the notice is shown
_LIST_LIMIT = 200
_END_STATES = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})


class ChatView(Protocol):
    """Shows a chat to the user."""

    def show(self, text: str, style: str = "") -> None:
        """Show a block of text. Styles: `sent`, `notice`, `error`, `hint`, `tool`, `note`, `help`, or empty for plain text."""

    def add_answer(self, piece: str) -> None:
        """Add a piece to the agent's answer."""

    def end_paragraph(self) -> None:
        """Show everything that was added to the answer so far: the agent pauses."""

    def refresh(self) -> None:
        """Show the changed status and questions."""


class StatusLine(NamedTuple):
    """The content of the status bar. `tasks` are the ids that can be completed, each with its description."""

    running: int = 0
    waiting: int = 0
    unread: int = 0
    spent: str = ""
    model: str = ""
    tasks: Sequence[tuple[str, str]] = ()


class ChatSession:
    """One open chat.

    `activity` says what the current turn is doing and is empty between turns. `questions` are all that wait for an answer of the
    user; those whose key is in `postponed` are not shown until the user asks for them. `expected` are the tasks whose question the
    user expects next, because a command of the user led to it.
    """

    def __init__(self, app: AsyncApp, conversation: ChatConversation, view: ChatView, root: str, *, terminal: bool) -> None:
        self._app, self.conversation, self._view, self._root, self._terminal = app, conversation, view, root, terminal
        self.activity, self.status = "", StatusLine()
        self.questions: list[Question] = []
        self.postponed: set[tuple[str, str]] = set()
        self.expected: set[str] = set()
        self.exit_requested = asyncio.Event()
        self._own_requests: set[str] = set()  # tasks that the user requested with a slash command and that need approval
        self._shown_notices: set[int] = set()
        self._queue: deque[str] = deque()
        self.sending = asyncio.Lock()  # held while a message is submitted, so that the chat does not exit halfway
        self._queued = asyncio.Event()
        self._command_lock = asyncio.Lock()
        self._background: set[asyncio.Future[bool]] = set()

    # -- input of the user

    def submit_line(self, line: str) -> None:
        """Handle an input line: run a slash command now, even during a turn; queue anything else as a message."""
        try:
            command = commands.parse(line)
        except BadInput as error:
            self._view.show(str(error), "error")
            return
        if command is None:
            self._queue.append(line.removeprefix("/") if line.startswith("//") else line)
            self._queued.set()
            if self.activity:
                self._view.show("Queued; it is sent after this answer.", "hint")
        else:
            self._spawn(self._run_command(*command))

    async def run_line(self, line: str) -> bool:
        """Run a slash command to its end. Returns True if the line is a message, which the caller must send."""
        try:
            command = commands.parse(line)
        except BadInput as error:
            self._view.show(str(error), "error")
            return False
        if command:
            await self._guarded(self._run_command(*command))
        return command is None

    async def answer_now(self, question: Question, word: str) -> None:
        """Like `answer`, and return when it is recorded."""
        await self._guarded(self._settle(question, question.answers[word]))

    def answer(self, question: Question, word: str) -> None:
        """Record the user's answer; `word` is one of `question.answers`."""
        self._spawn(self._settle(question, question.answers[word]))

    def stop(self) -> None:
        """Cancel the current turn and drop queued messages. Background tasks continue."""
        for line in self._queue:
            self._view.show(unsent_message(line), "hint")
        self._queue.clear()
        self._spawn(self.conversation.stop())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._guarded(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _guarded(self, work: Coroutine[Any, Any, object]) -> bool:
        """Await `work` and show any error as one sentence. Returns True if there was none."""
        try:
            await work
            return True
        except BackburnerError as error:
            self._view.show(str(error), "error")
        except OSError as error:
            self._view.show(f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}.", "error")
        except Exception as error:
            self._view.show(f"Internal error: {type(error).__name__}: {error}.", "error")
        return False

    async def _run_command(self, name: str, rest: str) -> None:
        match name:
            case "help":
                self._view.show(commands.manual(), "help")
            case "quit":
                await self._quit(rest)
            case "background":
                entry = await self._app.call(lambda app: commands.start(app, self.conversation.caller, rest))
                await self._show_started(entry)
            case "logs":
                self._view.show(await self._app.call(lambda app: commands.output(app, self.conversation.caller, rest)))
            case "model" if rest:
                self._view.show(f"Model set to {await self.conversation.set_model(rest)}.", "note")
                await self.refresh()
            case "model":
                self._view.show(f"Model: {await self.conversation.model_name()}.", "note")
                await self.refresh()
            case "approve" | "reject":
                await self._approve_or_reject(name, commands.split_arguments(rest))
            case "schedule" if not rest:
                self._view.show(await self._app.call(lambda app: _recurring_table(app, self.conversation.caller)))
            case _:
                await self._run_cli_command(name, rest)

    async def _run_cli_command(self, name: str, rest: str) -> None:
        loop, session_id = asyncio.get_running_loop(), self.conversation.session_id

        def emit(text: str) -> None:
            loop.call_soon_threadsafe(self._view.show, text)

        async with self._command_lock:  # they redirect standard output, which only one at a time may do
            proposed = await asyncio.to_thread(commands.call, name, rest, self._root, emit, session_id=session_id, terminal=self._terminal)
        if proposed:
            self._own_requests.add(proposed)
            self.expected.add(proposed)
        await self.refresh()

    async def _show_started(self, entry: Entry) -> None:
        task_id = entry.task.task_id
        if entry.status == "proposed":
            self.expected.add(task_id)
            await self.refresh()
        else:
            self._view.show(f"Started background task {task_id}. Use /status {task_id} to check progress.", "note")

    async def _approve_or_reject(self, verb: str, references: list[str]) -> None:
        if not references and verb == "approve":
            self.postponed.clear()
            self._own_requests |= await self._app.call(self._waiting_here)
            self.expected |= {question.about for question in self.questions} | self._own_requests
            await self.refresh()
            if not self.questions:
                self._view.show("Nothing is waiting for approval.", "note")
            return
        if not references:
            raise BadInput(f"Which task? Usage: {commands.SLASH_COMMANDS[verb].usage}")
        for reference in references:
            entry = await self._app.call(lambda app, reference=reference: app.queries.find(reference, self.conversation.caller))
            if entry.task.in_chat and verb == "approve":
                raise BadInput("/approve ID cannot be used for a chat. Use /approve, which shows each request before you answer.")
            task_id = entry.task.task_id
            try:
                entry = await self._app.call(
                    lambda app, task_id=task_id: (
                        app.approvals.approve(task_id, self.conversation.caller)
                        if verb == "approve"
                        else app.approvals.reject(task_id, self.conversation.caller)
                    )
                )
            except QuestionChanged:  # show the question as it is now, so that it can be answered
                self._own_requests.add(task_id)
                self.postponed = {what for what in self.postponed if what[0] != task_id}
                await self.refresh()
                raise
            self._view.show(f"Task {entry.task.task_id} {verb}{'d' if verb == 'approve' else 'ed'}.", "note")
        await self.refresh()

    async def _settle(self, question: Question, answer: str) -> None:
        self.questions = [other for other in self.questions if other.what != question.what]
        entry = await self._app.call(lambda app: settle(app, self.conversation.caller, question, answer))
        is_agent_step = question.about == self._chat_task_id()
        if answer == "no":
            self._view.show("Rejected." if is_agent_step else "Not started.", "note")
        elif entry.run and not is_agent_step and not entry.task.is_recurring:
            self._view.show(f"Started background task {question.about}. Use /status {question.about} to check progress.", "note")
        else:
            self._view.show("Approved.", "note")
        await self.refresh()

    def _waiting_here(self, app: App) -> set[str]:
        """The tasks of the project that wait for a person."""
        return waiting_for_person(app.queries.list(self.conversation.caller, limit=_LIST_LIMIT))

    def _chat_task_id(self) -> str:
        return self.conversation.entry.task.task_id if self.conversation.entry else ""

    async def _quit(self, rest: str) -> None:
        if rest not in ("", "--end"):
            raise BadInput(f"Usage: {commands.SLASH_COMMANDS['quit'].usage}")
        if rest:
            deleted = await self._app.call(lambda app: app.tasks.end_session(self.conversation.session_id))
            self._view.show(f"Chat ended; tasks cancelled and deleted: {len(deleted)}.", "note")
        self.exit_requested.set()

    # -- turns and notices

    async def run(self) -> None:
        """Run the turns and show the notices, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_turns())
            group.create_task(self._watch_ledger())

    async def _run_turns(self) -> None:
        while True:
            if not self.conversation.is_live:
                self.activity = ""
                self._view.refresh()
                await self._queued.wait()
                if not self._queue:
                    self._queued.clear()
                    continue
                async with self.sending:
                    await self._guarded(self._send(self._queue.popleft()))
            if self.conversation.is_live and not await self._guarded(self.run_turn()):
                await asyncio.sleep(_RETRY_INTERVAL)
                with contextlib.suppress(BackburnerError):
                    await self.conversation.refresh()

    async def _send(self, message: str) -> None:
        try:
            await self.conversation.send(message)
        except NotResumable:
            await self.conversation.refresh()
            if not self.conversation.is_live:
                raise
            self._queue.appendleft(message)  # another process started a turn of this chat: show that one first

    def unsent_lines(self) -> list[str]:
        """The messages that are still queued."""
        return list(self._queue)

    async def run_turn(self) -> TurnEvent:
        """Show the current turn to its end; returns the last event."""
        self.activity = "thinking"
        event = TurnEvent("over")
        async for event in self.conversation.events():
            match event.kind:
                case "text":
                    self.activity = "answering"
                    self._view.add_answer(event.text)
                case "end":
                    self._view.end_paragraph()
                    self.activity = "thinking"
                case "tool":
                    self.activity = f"{clean(event.text)} {shortened(clean(event.detail), longest=160)}"
                    self._view.show(self.activity, "tool")
                case "waits":
                    self.activity = f"waiting: {event.text}" if event.text else "thinking"
                case "over":
                    self._view.end_paragraph()
                    if event.text:
                        self._view.show(event.text, "error" if event.detail == "failed" else "hint")
            self._view.refresh()
        self.activity = ""
        return event

    async def _watch_ledger(self) -> None:
        async for _ in self._app.changes():
            with contextlib.suppress(BackburnerError, OSError):  # the next attempt may succeed
                await self.refresh()
            await asyncio.sleep(_REFRESH_INTERVAL)

    async def refresh(self) -> None:
        """Read the status, the open questions and the new notices, and show them."""
        self.status, self.questions, notices = await self._app.call(self._read)
        self.postponed &= {question.what for question in self.questions}
        if notices:
            acknowledged = await self._show_notices(notices)
            self.status = self.status._replace(unread=self.status.unread - acknowledged)
        self._view.refresh()

    def _read(self, app: App) -> tuple[StatusLine, list[Question], Sequence[Notice]]:
        """The status, the open questions, and the notices that this chat has not shown yet."""
        caller, session_id = self.conversation.caller, self.conversation.session_id
        entries = app.queries.list(caller, limit=_LIST_LIMIT)
        questions = open_questions(app, caller, session_id, self._own_requests)
        chat = app.conversations.chat(session_id)
        other_chats = {other.session_id for other in app.conversations.chats(caller) if is_alive(other.process)} - {session_id}
        unread = [
            notice
            for notice in app.inbox.notices(project=project_of(self.conversation.cwd))
            if not (chat and notice.task_id == chat.task.task_id) and _session_of(app, notice) not in other_chats
        ]
        new = [n for n in unread if n.notice_id not in self._shown_notices and not self._agent_will_report(app, n)]
        model = self.conversation.model
        with contextlib.suppress(BackburnerError):
            model = model or app.agents.settings(self.conversation.agent)["model"]
        return _status_line(app, entries, chat, questions, len(unread), model), questions, new

    def _agent_will_report(self, app: App, notice: Notice) -> bool:
        """Whether the agent is likely to report in this turn how a command of its own ended."""
        if not self.activity or time.time() * 1000 - notice.created_at >= _AGENT_REPORT_MS:
            return False
        entry = app.queries.get_or_none(notice.task_id)
        return entry is not None and entry.task.parent_run is not None and entry.task.parent_task == self._chat_task_id()

    async def _show_notices(self, notices: Sequence[Notice]) -> int:
        """Show a few notices one by one and acknowledge them; of many show only the number, and leave them in the inbox.

        Returns how many were acknowledged.
        """
        if len(notices) > _MAX_SINGLE_NOTICES:
            self._shown_notices |= {notice.notice_id for notice in notices}
            results = Counter(await self._app.call(lambda app: [_result_of(app, notice) for notice in notices]))
            counts = ", ".join(f"{count} {result}" for result, count in results.most_common())
            self._view.show(f"{len(notices)} notices: {counts}. /inbox shows them.", "notice")
            return 0
        leased = await self._app.call(lambda app: app.inbox.lease(notices))
        for notice in leased:
            self._shown_notices.add(notice.notice_id)
            text = first_lines(notice, _MAX_NOTICE_LINES)
            if await self._app.call(lambda app, notice=notice: _is_recurring(app, notice)):
                self._view.show(box(notice, text), "box")
            else:
                self._view.show(readable(text).rstrip(), "notice")
            await self._app.call(lambda app, notice=notice: app.inbox.acknowledge(notice_ids=[notice.notice_id]))
        return len(leased)


def unsent_message(line: str) -> str:
    return f"Not sent: {shortened(readable(line), longest=200)}"


def _result_of(app: App, notice: Notice) -> str:
    """How the run of a notice ended; `other` if the notice is not about the end of a run."""
    entry = app.queries.get_or_none(notice.task_id)
    if entry is None or notice.kind != NoticeKind.ENDED:
        return "other"
    run = entry.run
    if run is None or run.run_id != notice.run_id:  # a recurring task has run again since
        run = next((earlier for earlier in app.queries.history(entry, _LIST_LIMIT) if earlier.run_id == notice.run_id), None)
    return str(run.state) if run and run.state in _END_STATES else "other"


def _is_recurring(app: App, notice: Notice) -> bool:
    entry = app.queries.get_or_none(notice.task_id)
    return entry is not None and entry.task.is_recurring


def _session_of(app: App, notice: Notice) -> str | None:
    entry = app.queries.get_or_none(notice.task_id)
    return entry.task.session if entry else None


def _status_line(
    app: App, entries: Sequence[Entry], chat: Entry | None, questions: Sequence[Question], unread: int, model: str
) -> StatusLine:
    active = [entry for entry in entries if entry.run and (entry.run.state in RUNNING_STATES or entry.run.state == RunState.PENDING)]
    waiting = waiting_for_person(entries) | {question.about for question in questions}
    used: Counter[str] = Counter()
    for run in app.queries.history(chat, _LIST_LIMIT) if chat else ():
        used.update({name: value for name, value in run.end.usage.items() if name in ("tokens", "cost")})  # type: ignore[arg-type]
    spent = f"${used['cost']:.2f}" if used["cost"] else _token_text(used["tokens"])
    tasks = [(entry.task.task_id, entry.task.spec.description) for entry in entries]
    return StatusLine(len(active), len(waiting), unread, spent, model, tasks)


def _token_text(count: float) -> str:
    if not count:
        return ""
    return f"{count:.0f} tokens" if count < 1000 else f"{count / 1000:.1f}k tokens"


def _recurring_table(app: App, caller: Caller) -> str:
    from backburner.core import task_text
    from backburner.services.app import now_ms

    entries = app.queries.list(caller, recurring=True)
    return task_text.table(entries, now_ms(), plain=True) if entries else "No recurring tasks in this project."
