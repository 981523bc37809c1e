"""The chat in a terminal: an input line at the bottom, and everything else above it.

Output never changes the line that is being typed. A question replaces the input line only when the line is empty and no key was
pressed recently; keys pressed right after it appears still go to the input line. A question that a command of the user led to
appears at once and takes the next key.
"""

import asyncio
import os
import re
import textwrap
import time
from collections.abc import Callable
from functools import partial

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.formatted_text import FormattedText, fragment_list_width
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from backburner.core.terminal_text import readable, shortened
from backburner.interfaces.cli.questions import Question
from backburner.interfaces.tui.chat.line_editing import OptionalFileHistory, SlashCompleter
from backburner.interfaces.tui.chat.markdown import Markdown
from backburner.interfaces.tui.chat.session import ChatSession, StatusLine

_TYPING_PAUSE = 0.8  # seconds without a key after which a question may replace an empty input line
_QUESTION_GUARD = 0.6  # seconds after a question appears in which keys still go to the input line
_PRINT_INTERVAL = 0.04  # seconds
_PRINT_TIMEOUT = 3.0  # seconds; the terminal may be gone
_EXIT_WINDOW = 2.0  # seconds in which a second Ctrl-C exits
_MAX_INLINE_PASTE = 1000  # characters; a longer paste is shown as a placeholder
_MAX_INLINE_PASTE_LINES = 12
_MAX_PREVIEW_ROWS = 6  # of the unfinished line of an answer
_PROMPT = "› "
_STYLE = {
    "prompt": "bold",
    "question": "bold",
    "activity": "#888888",
    "bottom-toolbar": "noreverse #888888",
    "bottom-toolbar.waits": "noreverse bold #d7af00",
}
_COLOURS = {"notice": "36", "box": "36", "error": "31", "hint": "2", "tool": "2", "sent": "1", "question": "33"}
_WRAPPED_STYLES = {"notice", "box", "error", "hint", "note", "tool", "sent", "help"}  # wrapped at words; other text is shown unchanged
# Of all control characters, only those that set colours reach the terminal.
_CONTROL_CHARACTERS = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x1a\x1c-\x1f\x7f-\x9f]")
_CONTROL_AND_COLOURS = re.compile(rf"\x1b\[[0-9;]*m|{_CONTROL_CHARACTERS.pattern}")
_PREFIXES = {"notice": "● ", "tool": "⚙ "}


class ChatScreen:
    """The view of a chat in a terminal. `session` is None until the home is open."""

    session: ChatSession | None = None

    def __init__(self, history: str | None, *, colour: bool) -> None:
        self._colour = colour
        self._prompt_session: PromptSession[str] = PromptSession(
            message=self._prompt_text,
            multiline=True,
            prompt_continuation=lambda width, line, soft: "" if soft else "· ".rjust(width),
            history=self._open_history(history),
            completer=SlashCompleter(lambda: [] if self._question or not self.session else self.session.status.tasks),
            complete_while_typing=Condition(lambda: self._question is None and self._prompt_session.default_buffer.text.startswith("/")),
            reserve_space_for_menu=6,
            bottom_toolbar=self._status_bar,
            key_bindings=self._key_bindings(),
            style=Style.from_dict(_STYLE) if colour else Style.from_dict({"bottom-toolbar": "noreverse"}),
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
            editing_mode=EditingMode.EMACS,
            erase_when_done=True,
            enable_suspend=True,
        )
        app = self._prompt_session.app
        app.ttimeoutlen, app.timeoutlen = 0.05, 0.25
        app.key_processor.before_key_press += lambda _: self._record_key()
        app.min_redraw_interval = _PRINT_INTERVAL
        self._markdown = Markdown(self._width, colour=colour)
        self._question: Question | None = None
        self._showing_question: asyncio.Future[None] | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._question_shown, self._held_lines = False, list[str]()  # whether a question is on the screen, and the lines held back by it
        self._question_at = self._last_key_at = self._ctrl_c_at = 0.0
        self._pasted = list[str]()
        self._lines, self._early_lines = list[str](), list[str]()
        self._printing: asyncio.Future[None] | None = None

    @staticmethod
    def _open_history(path: str | None) -> History:
        if path is None:
            return InMemoryHistory()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        return OptionalFileHistory(path)

    async def run(self, started: Callable[[], None]) -> None:
        """Read input until the user exits."""
        await self._prompt_session.prompt_async(pre_run=started)

    def attach(self, session: ChatSession) -> None:
        """Connect the session, and submit the lines that were entered before it existed."""
        self.session = session
        for line in self._early_lines:
            session.submit_line(line)
        self._early_lines.clear()

    def unsent_lines(self) -> list[str]:
        """The lines that were entered but not sent to the agent."""
        return self.session.unsent_lines() if self.session else self._early_lines

    def close(self) -> None:
        """End `run`."""
        if self._prompt_session.app.is_running and not self._prompt_session.app.is_done:
            self._prompt_session.app.exit(result="")

    async def wait_printed(self) -> None:
        """Return when all output is on the screen, or after a few seconds."""
        deadline = time.monotonic() + _PRINT_TIMEOUT
        while (self._lines or self._printing) and time.monotonic() < deadline:
            await asyncio.sleep(_PRINT_INTERVAL)

    # -- output above the input line

    def show(self, text: str, style: str = "") -> None:
        prefix = _PREFIXES.get(style, "")
        for number, line in enumerate(text.split("\n")):
            indent = "      " if style == "help" else ""
            rows = _wrap(line, self._width() - len(prefix), indent) if style in _WRAPPED_STYLES else [line]
            for row, part in enumerate(rows):
                is_first = number == 0 and row == 0
                self._print(self._styled((prefix if is_first else " " * len(prefix)) + part, style))

    def add_answer(self, piece: str) -> None:
        for line in self._markdown.feed(piece):
            self._print(line)
        self._prompt_session.app.invalidate()

    def end_paragraph(self) -> None:
        for line in self._markdown.close():
            self._print(line)

    def refresh(self) -> None:
        if self._question and self.session and self._question.what not in {question.what for question in self.session.questions}:
            self._close_question("The question was answered elsewhere or no longer applies.")
        self._show_next_question()
        self._prompt_session.app.invalidate()

    def _styled(self, line: str, style: str) -> str:
        code = _COLOURS.get(style)
        return f"\x1b[{code}m{line}\x1b[0m" if code and self._colour and line else line

    def _print(self, line: str) -> None:
        """Queue a line for printing. Lines are printed in groups, because each printing redraws the input line.

        While a question is shown, other lines are held back: what is above its prompt must be the question.
        """
        if self._question_shown:
            self._held_lines.append(line)
            return
        self._lines.append(line)
        if self._printing is None:
            self._printing = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        await asyncio.sleep(_PRINT_INTERVAL)
        lines, self._lines = self._lines, []

        def write() -> None:
            output = self._prompt_session.app.output
            for line in lines:
                output.write_raw((_CONTROL_CHARACTERS if self._colour else _CONTROL_AND_COLOURS).sub("", line) + "\r\n")
            output.flush()

        try:
            if self._prompt_session.app.is_running:
                await run_in_terminal(write)
            else:
                write()
        finally:
            # Lines of a question that was shown meanwhile are in `_lines` and must be printed, not held back.
            self._printing = asyncio.ensure_future(self._flush()) if self._lines else None

    def _width(self) -> int:
        return max(20, self._prompt_session.app.output.get_size().columns - 1)

    # -- the input line and the status bar

    @property
    def _activity(self) -> str:
        return self.session.activity if self.session else ""

    def request_exit(self) -> None:
        """Exit; also called for SIGTERM and SIGHUP."""
        if self.session:
            self.session.exit_requested.set()
        else:
            self.close()

    def _prompt_text(self) -> FormattedText:
        if self._question:
            return FormattedText([("class:question", f"{self._question.line} ")])
        rest = last_rows(readable(self._markdown.rest), self._width(), _MAX_PREVIEW_ROWS)
        above = [("", f"{rest}\n")] if rest else []
        if self._activity and not rest:
            above = [("class:activity", f"{shortened(readable(self._activity).replace(chr(10), ' '), longest=self._width() - 2)} …\n")]
        return FormattedText([*above, ("class:prompt", _PROMPT)])

    def _status_bar(self) -> FormattedText:
        status = self.session.status if self.session else StatusLine()
        parts = [f"{status.running} running"] if status.running else []
        waits = f"{status.waiting} waiting for approval" if status.waiting else ""
        unread = [f"{status.unread} unread"] if status.unread else []
        if self._activity and not self._question:
            hint = "Esc stops the answer"
        elif waits and not self._question:
            hint = "/approve to answer"
        else:
            hint = "y or n, then Enter; Esc to postpone" if self._question else "/help"
        fragments: list[tuple[str, str]] = []
        for text in filter(None, [*parts, waits, *unread, status.spent, status.model, hint]):
            fragments += [("", " · ")] if fragments else []
            fragments.append(("class:bottom-toolbar.waits" if text == waits else "", text))
        while len(fragments) > 2 and fragment_list_width(list(fragments)) > self._width():
            del fragments[-2:]  # drop the last parts in a narrow terminal
        return FormattedText(fragments)

    # -- questions

    def _record_key(self) -> None:
        self._last_key_at = time.monotonic()

    def _show_next_question(self) -> None:
        """Show the next question if the line is empty and no key was pressed recently; otherwise try again a little later."""
        questions = self.session.questions if self.session else []
        open_questions = [question for question in questions if self.session and question.what not in self.session.postponed]
        if self._retry_timer:
            self._retry_timer.cancel()
            self._retry_timer = None
        if self._question or self._showing_question or not open_questions or not self._prompt_session.app.is_running:
            return
        assert self.session
        expected = self.session.expected
        if not self._is_line_empty:
            expected.clear()  # the user is writing something else
        question = min(open_questions, key=lambda question: question.about not in expected)
        if not self._may_ask(question):
            self._retry_timer = asyncio.get_running_loop().call_later(_TYPING_PAUSE / 2, self._show_next_question)
            return
        self._showing_question = asyncio.ensure_future(self._show_question(question))

    async def _show_question(self, question: Question) -> None:
        """Print the whole question, then replace the input line by its prompt, unless the user has started to type meanwhile."""
        try:
            rule = "─" * min(60, self._width())
            self.show(f"{rule}\n{question.text}\n{rule}", "question")
            self._question_shown = True
            await self.wait_printed()
        finally:
            self._showing_question = None
        if self._may_ask(question):
            assert self.session
            self._question, self._question_at = question, 0.0 if question.about in self.session.expected else time.monotonic()
            self.session.expected.discard(question.about)
            self._prompt_session.app.invalidate()
        else:
            self._print_held_lines()
            self._show_next_question()

    def _may_ask(self, question: Question) -> bool:
        """Whether the input line is empty, and the user expects this question or has pressed no key recently."""
        is_expected = self.session is not None and question.about in self.session.expected
        return self._is_line_empty and (is_expected or time.monotonic() - self._last_key_at >= _TYPING_PAUSE)

    @property
    def _is_line_empty(self) -> bool:
        """Whether the input line is empty and no search is open."""
        buffer = self._prompt_session.default_buffer
        return not buffer.text and self._prompt_session.app.layout.has_focus(buffer)

    def _print_held_lines(self) -> None:
        """Print the lines that were held back while a question was shown."""
        self._question_shown, held, self._held_lines = False, self._held_lines, []
        for line in held:
            self._print(line)

    def _close_question(self, reason: str = "") -> None:
        """Replace the prompt of the question by the input line."""
        self._question = None
        self._prompt_session.default_buffer.reset()
        self._print_held_lines()
        if reason:
            self.show(reason, "hint")

    def _postpone_question(self) -> None:
        assert self._question and self.session
        task_id, step = self._question.what
        self.session.postponed.add(self._question.what)
        if step:
            self._close_question("Postponed. Use /approve to show it again.")
        else:
            self._close_question(f"Postponed. Answer with /approve {task_id} or /reject {task_id}.")
        self.refresh()

    def _submit_answer(self, text: str) -> None:
        question = self._question
        assert question and self.session
        word = text.strip().lower()
        if word not in question.answers:
            self._close_question("Please answer y or n. Your text is kept, and the question is shown again.")
            self._prompt_session.default_buffer.insert_text(text)
            return
        self._question_shown = False
        self.show(f"{question.line} {word}", "sent")
        self._close_question()
        self._last_key_at = time.monotonic()
        self.session.answer(question, word)

    # -- keys

    def _key_bindings(self) -> KeyBindings:
        keys = KeyBindings()
        asking = Condition(lambda: self._question is not None)
        guarded = Condition(lambda: self._question is not None and time.monotonic() - self._question_at < _QUESTION_GUARD)

        @keys.add(Keys.Any, filter=guarded, eager=True)
        def _(event: KeyPressEvent) -> None:
            """The key was meant for the input line: close the question, which is shown again when the line is empty."""
            self._close_question()
            event.current_buffer.insert_text(event.data if event.data.isprintable() else "")
            self.refresh()

        @keys.add(Keys.CPRResponse, filter=guarded, eager=True)
        def _(event: KeyPressEvent) -> None:
            """The terminal reports its cursor position; this is not a key."""
            event.app.renderer.report_absolute_cursor_row(int(event.data[2:-1].partition(";")[0]))

        @keys.add("enter", filter=~guarded & ~is_searching)
        @keys.add("enter", filter=guarded, eager=True)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if self._question:
                if time.monotonic() - self._question_at >= _QUESTION_GUARD:
                    self._submit_answer(buffer.text)
            elif buffer.complete_state and buffer.complete_state.current_completion and " " not in buffer.text:
                buffer.insert_text(" ")  # a completed command continues with its arguments
            elif buffer.text.endswith("\\"):
                if buffer.document.is_cursor_at_the_end:
                    buffer.delete_before_cursor()
                buffer.insert_text("\n")
            elif buffer.text.strip():
                self._send()

        @keys.add("escape", "enter", filter=~asking)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("escape", filter=~guarded)
        def _(event: KeyPressEvent) -> None:
            if self._question:
                self._postpone_question()
            elif event.current_buffer.complete_state:
                event.current_buffer.cancel_completion()
            elif self.session and self._activity:
                self.session.stop()

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            now, before = time.monotonic(), self._ctrl_c_at
            if self._question:
                self._postpone_question()
            elif event.current_buffer.text:
                event.current_buffer.reset()
                self._pasted.clear()
            elif self.session and self._activity:
                self.session.stop()
            elif now - before < _EXIT_WINDOW:
                self.request_exit()
            else:
                self._ctrl_c_at = now
                self.show("Press Ctrl-C again or Ctrl-D, or type /quit, to exit. Background tasks continue.", "hint")

        @keys.add("c-d")
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text and not self._question:
                event.current_buffer.delete()
            else:
                self.request_exit()

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            if self._question:  # a paste is never an answer
                self._close_question()
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            if len(text) > _MAX_INLINE_PASTE or text.count("\n") > _MAX_INLINE_PASTE_LINES:
                self._pasted.append(text)
                text = f"[pasted {len(text):,} characters #{len(self._pasted)}]"
            event.current_buffer.insert_text(text)

        return keys

    def _send(self) -> None:
        """Submit the input line, with the text that was pasted into it."""
        buffer = self._prompt_session.default_buffer
        shown, pasted = buffer.text, list(self._pasted)
        buffer.append_to_history()
        buffer.reset()
        self._pasted.clear()
        for number, line in enumerate(shown.split("\n")):
            self.show((_PROMPT if number == 0 else "  ") + line, "sent")
        line = re.sub(r"\[pasted [\d,]+ characters #(\d+)\]", partial(_replace_placeholder, pasted), shown)
        if self.session:
            self.session.submit_line(line)
        else:
            self._early_lines.append(line)


def _replace_placeholder(pasted: list[str], found: "re.Match[str]") -> str:
    number = int(found[1])
    return pasted[number - 1] if 0 < number <= len(pasted) else found[0]


def _wrap(line: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    ) or [""]


def last_rows(text: str, width: int, max_rows: int) -> str:
    """The end of a text that takes at most `max_rows` rows of a terminal."""
    return text if len(text) <= width * max_rows else f"…{text[-(width * max_rows) + 1 :]}"
