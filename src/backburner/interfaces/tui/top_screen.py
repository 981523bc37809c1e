"""The board on the terminal: draws what `board` composes and handles the keys.

Sleeps until a key, a change of the ledger, new output of the selected task or a new terminal size wakes it. While a task has not
ended, it also reads the ledger at an interval. The terminal is restored on every exit.
"""

import asyncio
import contextlib
import locale
import signal
import sys
import termios
from collections.abc import Callable
from functools import partial
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.styles import Style

from backburner.core import task_table
from backburner.core.errors import BackburnerError
from backburner.core.models import Entry
from backburner.core.terminal_text import cells
from backburner.interfaces.cli.main import discard_stdout
from backburner.interfaces.cli.tasks import hint
from backburner.interfaces.tui import board
from backburner.interfaces.tui.top import BoardTasks
from backburner.services.app import now_ms
from backburner.system.file_watch import FileWatch
from backburner.system.wakeups import WakeupListener

_CLOCK_INTERVAL = 1.0  # seconds; updates the durations while a task runs
_READ_INTERVAL = 5.0  # seconds; reading the ledger also makes sure that live tasks have a running engine
_MIN_REDRAW_INTERVAL = 0.1  # seconds, however fast a command prints; keys are handled immediately
_ESCAPE_TIMEOUT = 0.025  # seconds after which an escape character counts as the Esc key
_LOG_LINES = "1000"
_COLOURS = {"2": "dim", "31": "ansired", "32": "ansigreen", "33": "ansiyellow", "35": "ansimagenta", "36": "ansicyan"}
STYLES = {
    **{status: _COLOURS[code] for status, code in task_table.COLOURS.items()},
    "resumed": "ansicyan",
    "waiting": "ansimagenta",
    "bold": "bold",
    "dim": "dim",
    "selected": "reverse",
}
_ASCII = {"─": "-", "·": "-", "…": "~", "↑": "^", "↓": "v", "█": "#", "░": "-", "→": ">"}


class TopScreen:
    """One board on one terminal."""

    def __init__(self, tasks: BoardTasks, listener: WakeupListener, *, everywhere: bool) -> None:
        self._tasks = tasks
        self._listener = listener
        self._log_watch = FileWatch()
        self._board = board.Board("", [], 0, tasks.progress, tasks.pending_reason, tasks.tail, everywhere=everywhere)
        self._confirming: tuple[str, str] | None = None  # the verb and the task that the user must confirm
        self._problem = self._note = ""
        self._is_stale = False  # whether the ledger has changed since it was read
        self._unicode = "utf" in locale.nl_langinfo(locale.CODESET).lower()
        keys = KeyBindings()
        keys.add(Keys.Any)(self._pressed)
        # The result is an exit code, or a function to run on the plain screen before the board is shown again.
        self._app = Application[int | Callable[[], None]](
            Layout(Window(FormattedTextControl(self._rows, show_cursor=False))),
            style=Style.from_dict(STYLES),
            key_bindings=keys,
            full_screen=True,
            erase_when_done=True,
            terminal_size_polling_interval=None,
            before_render=self._reset_cursor,
        )
        self._app.ttimeoutlen = _ESCAPE_TIMEOUT

    def run(self) -> int:
        """Show the board until the user exits or a signal ends it; returns the exit code."""
        with contextlib.closing(self._log_watch):
            self._read()
            while callable(result := asyncio.run(self._show())):
                result()
            return result

    async def _show(self) -> int | Callable[[], None]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._failed)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave, 128 + number)
        self._woken = asyncio.Event()
        loop.add_reader(self._listener, self._ledger_changed)
        if self._log_watch.works:
            loop.add_reader(self._log_watch, self._log_grew)
        try:
            return await self._app.run_async(self._start_following, set_exception_handler=False, handle_sigint=False)
        except (EOFError, OSError):
            if sys.stdin.isatty():
                raise
            discard_stdout()  # the terminal is gone, and what is left in the buffer cannot be written
            return 0

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error in any callback ends the board, and is reported once the terminal is restored."""
        if self._app.is_running and not self._app.is_done:
            self._app.exit(exception=context.get("exception") or RuntimeError(context["message"]))

    def _leave(self, result: int | Callable[[], None] = 0) -> None:
        if not self._app.is_done:
            self._app.exit(result=result)

    # -- reading the ledger, and following changes

    def _read(self) -> None:
        """Read the ledger. The selection stays on its task or, if the task is gone, on its position."""
        now, old = now_ms(), self._board
        try:
            entries = board.arranged(self._tasks.read(everywhere=old.everywhere), now)
            free = self._tasks.free_capacity()
        except BackburnerError as error:
            self._problem = str(error)
            return
        self._problem = ""
        position, ids = self._position(), [entry.task.task_id for entry in entries]
        selected = old.selected if old.selected in ids else ids[min(position, len(ids) - 1)] if ids else None
        where = self._tasks.location(everywhere=old.everywhere)
        self._board = old._replace(where=where, entries=entries, selected=selected, free=free)

    def _start_following(self) -> None:
        self._app.create_background_task(self._follow())

    async def _follow(self) -> None:
        """Redraw after every change, and at the interval."""
        while True:
            try:
                async with asyncio.timeout(self._interval()):
                    await self._woken.wait()
            except TimeoutError:
                self._is_stale = True
            self._woken.clear()
            if self._is_stale:
                self._is_stale = False
                self._read()
            self._app.invalidate()
            await asyncio.sleep(_MIN_REDRAW_INTERVAL)

    def _interval(self) -> float | None:
        if any(board.section_of(entry) is board.Section.RUNNING for entry in self._board.entries):
            return _CLOCK_INTERVAL
        return _READ_INTERVAL if self._problem or any(entry.is_live for entry in self._board.entries) else None

    def _ledger_changed(self) -> None:
        self._listener.drain()
        self._is_stale = True
        self._woken.set()

    def _log_grew(self) -> None:
        self._log_watch.fired()
        self._woken.set()

    # -- drawing

    def _reset_cursor(self, _: object) -> None:
        """Move the cursor to the top left: another program may have written to the terminal since the last drawing."""
        if self._app.renderer.last_rendered_screen:
            self._app.output.cursor_goto()

    def _rows(self) -> StyleAndTextTuples:
        entry = self._board.selected_entry
        if entry and entry.is_live:
            self._log_watch.arm(self._tasks.log_path(entry))  # before it is read, so that nothing is missed
        lines, columns = self._app.output.get_size()
        question = ""
        if self._confirming:
            verb, task_id = self._confirming
            question = f"{verb.capitalize()} {board.short(task_id, columns)}? y/n"
        shown = self._board._replace(now=now_ms(), message=question or self._note or self._problem)
        pieces: StyleAndTextTuples = []
        for row in board.compose(shown, columns, lines):
            pieces += [(f"class:{style}", text if self._unicode else _ascii(text)) for text, style in row]
            pieces.append(("", "\n"))
        return pieces[:-1]

    # -- keys

    def _pressed(self, event: KeyPressEvent) -> None:
        key = event.key_sequence[0].key
        pending_keys = event.app.key_processor.input_queue
        if key == Keys.Escape and pending_keys:
            pending_keys.clear()  # the rest of the sequence of an unknown key
            return
        self._note = ""
        entry, count = self._board.selected_entry, len(self._board.entries)
        page = board.page(self._board, self._app.output.get_size().rows)
        steps = {Keys.Up: -1, "k": -1, Keys.Down: 1, "j": 1, Keys.PageUp: -page, Keys.PageDown: page, Keys.Home: -count, Keys.End: count}
        match key:
            case Keys.ControlC:
                self._leave()
            case Keys.ControlZ:
                self._app.suspend_to_background()
            case _ if self._confirming:
                self._answer(*self._confirming, key)
            case "q":
                self._leave()
            case _ if self._board.help:
                self._board = self._board._replace(help=False)
            case _ if key in steps and entry:
                position = max(0, min(self._position() + steps[key], count - 1))
                self._board = self._board._replace(selected=self._board.entries[position].task.task_id)
            case "c" if entry and entry.has_ended:
                self._note = f"Task {entry.task.task_id} is not running (status: {entry.status})."
            case "c" if entry:
                self._confirming = "cancel", entry.task.task_id
            case "a" | "n" if entry and board.section_of(entry) is not board.Section.WAITING:
                self._note = f"Task {entry.task.task_id} is not waiting for approval (status: {entry.status})."
            case "a" if entry:
                self._leave(partial(self._run_command, "approve", _question_of(entry)))
            case "n" if entry:
                self._confirming = "reject", _question_of(entry)
            case "r" if entry:
                self._leave(partial(self._restart, entry.task.task_id))
            case "l" if entry:
                self._leave(partial(self._run_command, "logs", "--follow", "--tail", _LOG_LINES, entry.task.task_id))
            case "o" | Keys.Enter | Keys.ControlJ:
                self._board = self._board._replace(zoomed=not self._board.zoomed)
            case "p":
                self._board = self._board._replace(everywhere=not self._board.everywhere)
                self._read()
                self._woken.set()  # the interval may have changed
            case "?":
                self._board = self._board._replace(help=True)
            case Keys.ControlL:
                self._app.output.cursor_goto()
                self._app.renderer.erase(leave_alternate_screen=False)
            case Keys.Escape if self._board.zoomed:
                self._board = self._board._replace(zoomed=False)
            case Keys.Escape:
                self._leave()

    def _position(self) -> int:
        """The index of the selected task in the list."""
        ids = [entry.task.task_id for entry in self._board.entries]
        return ids.index(self._board.selected) if self._board.selected in ids else 0

    def _answer(self, verb: str, task_id: str, key: str) -> None:
        """Cancel or reject the task if the user confirmed it. Does not wait: the board shows the result."""
        self._confirming = None
        if key not in ("y", "Y"):
            return
        try:
            (self._tasks.cancel if verb == "cancel" else self._tasks.reject)(task_id)
        except BackburnerError as error:
            self._note = str(error)
        self._read()
        self._woken.set()

    # -- commands on the plain screen

    def _restart(self, task_id: str) -> None:
        """Restart a task, which may ask for approval, and select the new task."""
        before = {entry.task.task_id for entry in self._board.entries}
        self._run_command("restart", task_id)
        for entry in self._board.entries:
            if entry.task.restarted_from == task_id and entry.task.task_id not in before:
                self._board = self._board._replace(selected=entry.task.task_id)

    def _run_command(self, verb: str, *arguments: str) -> None:
        hint(f"backburner {verb} {' '.join(arguments)}")
        try:
            self._tasks.run_command(verb, *arguments)
        except BackburnerError as error:
            hint(str(error))
        except KeyboardInterrupt:
            hint("")
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdout.flush()
            termios.tcflush(0, termios.TCIFLUSH)
            print("Press Enter to return to the board. ", end="", file=sys.stderr, flush=True)
            sys.stdin.readline()
        self._read()


def _question_of(entry: Entry) -> str:
    """The ID of the task to approve or reject; an agent can wait for the approval of another task."""
    return entry.run.wait.target if entry.run and entry.run.wait and entry.run.wait.target else entry.task.task_id


def _ascii(text: str) -> str:
    """`text` with the same width, without characters that a terminal without UTF-8 cannot show."""
    return "".join(c if c.isascii() else _ASCII.get(c, "?" * cells(c)) for c in text)
