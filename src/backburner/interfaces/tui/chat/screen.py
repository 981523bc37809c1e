"""The chat in a terminal: one line that is always there, and everything else above it.

What happens never touches the line being typed. A question has a prompt of its own: it takes the place of the line only when that is
empty and the person has paused, and what is typed in the moment of its coming goes to the line.
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
from backburner.interfaces.tui.chat.line_editing import KeptHistory, SlashCompleter
from backburner.interfaces.tui.chat.markdown import Markdown
from backburner.interfaces.tui.chat.session import ChatSession, StatusLine

_PAUSED_SECONDS = 0.8  # without a key: then a question may take the place of an empty line
_FRESH_SECONDS = 0.6  # a key so soon after a question came was not meant for it
_PRINT_SECONDS = 0.04
_LEAVE_SECONDS = 2.0  # a second Ctrl-C within them leaves
_LONG_PASTE, _TALL_PASTE = 1000, 12
_LIVE_LINES = 6
_PROMPT = "› "
_STYLE = {
    "prompt": "bold",
    "asking": "bold",
    "doing": "#888888",
    "bottom-toolbar": "noreverse #888888",
    "bottom-toolbar.waits": "noreverse bold #d7af00",
}
_COLOURS = {"notice": "36", "error": "31", "hint": "2", "tool": "2", "said": "1", "asking": "33"}
_SENTENCES = {"notice", "error", "hint", "note", "tool"}  # are wrapped at words; all else is shown as it is
# Whatever is printed, of its control characters only those that set colours reach the terminal.
_UNSHOWN = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x1a\x1c-\x1f\x7f-\x9f]")
_UNCOLOURED = re.compile(rf"\x1b\[[0-9;]*m|{_UNSHOWN.pattern}")
_MARKS = {"notice": "● ", "tool": "⚙ "}


class ChatScreen:
    """The face of a chat in a terminal."""

    room: ChatSession | None = None

    def __init__(self, history: str | None, *, colour: bool) -> None:
        self._colour = colour
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            multiline=True,
            prompt_continuation=lambda width, line, soft: "" if soft else "· ".rjust(width),
            history=self._history(history),
            completer=SlashCompleter(lambda: [] if self._asking or not self.room else self.room.stands.tasks),
            complete_while_typing=Condition(lambda: self._asking is None and self._session.default_buffer.text.startswith("/")),
            reserve_space_for_menu=6,
            bottom_toolbar=self._bar,
            key_bindings=self._keys(),
            style=Style.from_dict(_STYLE) if colour else Style.from_dict({"bottom-toolbar": "noreverse"}),
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
            editing_mode=EditingMode.EMACS,
            erase_when_done=True,
            enable_suspend=True,
        )
        app = self._session.app
        app.ttimeoutlen, app.timeoutlen = 0.05, 0.25
        app.key_processor.before_key_press += lambda _: self._pressed()
        app.min_redraw_interval = _PRINT_SECONDS
        self._markdown = Markdown(self._width, colour=colour)
        self._asking: Question | None = None
        self._opening: asyncio.Future[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._alone, self._held = False, list[str]()  # whether a question is on the screen, and what waits behind it
        self._asked_at = self._pressed_at = self._left_at = 0.0
        self._pasted = list[str]()
        self._lines, self._early = list[str](), list[str]()
        self._printing: asyncio.Future[None] | None = None

    @staticmethod
    def _history(path: str | None) -> History:
        if path is None:
            return InMemoryHistory()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        return KeptHistory(path)

    async def run(self, started: Callable[[], None]) -> None:
        """Until the person leaves."""
        await self._session.prompt_async(pre_run=started)

    def attach(self, room: ChatSession) -> None:
        """The home is open: what was sent off before is done now."""
        self.room = room
        for line in self._early:
            room.submit_line(line)
        self._early.clear()

    def unsaid(self) -> list[str]:
        """What was sent off, and was not said."""
        return self.room.unsent_lines() if self.room else self._early

    def leave(self) -> None:
        if self._session.app.is_running and not self._session.app.is_done:
            self._session.app.exit(result="")

    async def settled(self) -> None:
        """All that was to be shown is on the screen."""
        while self._lines or self._printing:
            await asyncio.sleep(_PRINT_SECONDS)

    # -- what is shown above the line

    def show(self, text: str, style: str = "") -> None:
        mark = _MARKS.get(style, "")
        for number, line in enumerate(text.split("\n")):
            start, rest = (mark if number == 0 else " " * len(mark)), " " * len(mark)
            rows = _wrapped(line, self._width() - len(mark)) if style in _SENTENCES else [line]
            for row, part in enumerate(rows):
                self._print(self._styled((rest if row else start) + part, style))

    def say(self, piece: str) -> None:
        for line in self._markdown.feed(piece):
            self._print(line)
        self._session.app.invalidate()

    def said(self) -> None:
        for line in self._markdown.close():
            self._print(line)

    def refresh(self) -> None:
        if self._asking and self.room and self._asking.what not in {one.what for one in self.room.questions}:
            self._put_back("It was answered elsewhere, or is over.")
        self._consider()
        self._session.app.invalidate()

    def _styled(self, line: str, style: str) -> str:
        code = _COLOURS.get(style)
        return f"\x1b[{code}m{line}\x1b[0m" if code and self._colour and line else line

    def _print(self, line: str) -> None:
        """Lines that come together are printed together: each time the line being typed is drawn anew.

        While a question is open nothing else is: what stands above its prompt is what is asked.
        """
        if self._alone:
            self._held.append(line)
            return
        self._lines.append(line)
        if self._printing is None:
            self._printing = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        await asyncio.sleep(_PRINT_SECONDS)
        lines, self._lines = self._lines, []

        def write() -> None:
            output = self._session.app.output
            for line in lines:
                output.write_raw((_UNSHOWN if self._colour else _UNCOLOURED).sub("", line) + "\r\n")
            output.flush()

        try:
            if self._session.app.is_running:
                await run_in_terminal(write)
            else:
                write()
        finally:
            # a question that came meanwhile is among what is left, and not held back behind itself
            self._printing = asyncio.ensure_future(self._flush()) if self._lines else None

    def _width(self) -> int:
        return max(20, self._session.app.output.get_size().columns - 1)

    # -- the line and the bar

    @property
    def _doing(self) -> str:
        return self.room.doing if self.room else ""

    def bye(self) -> None:
        """The person leaves, or is made to."""
        self.room.left.set() if self.room else self.leave()

    def _message(self) -> FormattedText:
        if self._asking:
            return FormattedText([("class:asking", f"{self._asking.line} ")])
        rest = shortened_rows(readable(self._markdown.rest), self._width(), _LIVE_LINES)
        above = [("", f"{rest}\n")] if rest else []
        if self._doing and not rest:
            above = [("class:doing", f"{shortened(readable(self._doing).replace(chr(10), ' '), longest=self._width() - 2)} …\n")]
        return FormattedText([*above, ("class:prompt", _PROMPT)])

    def _bar(self) -> FormattedText:
        stands = self.room.stands if self.room else StatusLine()
        parts = [f"{stands.running} running"] if stands.running else []
        waits = f"{stands.waiting} waiting for your yes" if stands.waiting else ""
        unread = [f"{stands.unread} unread"] if stands.unread else []
        if self._doing and not self._asking:
            hint = "Esc stops the answer"
        elif waits and not self._asking:
            hint = "/approve answers"
        else:
            hint = "y or n, then Enter; Esc puts it off" if self._asking else "/help"
        found: list[tuple[str, str]] = []
        for text in filter(None, [*parts, waits, *unread, stands.spent, stands.model, hint]):
            found += [("", " · ")] if found else []
            found.append(("class:bottom-toolbar.waits" if text == waits else "", text))
        while len(found) > 2 and fragment_list_width(list(found)) > self._width():
            del found[-2:]  # a narrow terminal has less to say
        return FormattedText(found)

    # -- questions

    def _pressed(self) -> None:
        self._pressed_at = time.monotonic()

    def _consider(self) -> None:
        """Ask the next question, where the line is empty and the person has paused; else look again a little later."""
        open_ = [one for one in self.room.questions if one.what not in self.room.aside] if self.room else []
        if self._later:
            self._later.cancel()
            self._later = None
        if self._asking or self._opening or not open_ or not self._session.app.is_running:
            return
        if not self._paused:
            self._later = asyncio.get_running_loop().call_later(_PAUSED_SECONDS / 2, self._consider)
            return
        self._opening = asyncio.ensure_future(self._ask(open_[0]))

    async def _ask(self, question: Question) -> None:
        """First all of it is to be seen, then it can be answered; not where the person began to type meanwhile."""
        try:
            rule = "─" * min(60, self._width())
            self.show(f"{rule}\n{question.text}\n{rule}", "asking")
            self._alone = True
            await self.settled()
        finally:
            self._opening = None
        if self._paused:
            self._asking, self._asked_at = question, time.monotonic()
            self._session.app.invalidate()
        else:
            self._release()
            self._consider()

    @property
    def _paused(self) -> bool:
        """Whether nothing is being typed: not into the line, and not into a search."""
        empty = not self._session.default_buffer.text and self._session.app.layout.has_focus(self._session.default_buffer)
        return empty and time.monotonic() - self._pressed_at >= _PAUSED_SECONDS

    def _release(self) -> None:
        """What was held back while a question was open is shown."""
        self._alone, held, self._held = False, self._held, []
        for line in held:
            self._print(line)

    def _put_back(self, why: str = "") -> None:
        """The line is the person's own again."""
        self._asking = None
        self._session.default_buffer.reset()
        self._release()
        if why:
            self.show(why, "hint")

    def _put_off(self) -> None:
        assert self._asking and self.room
        about, step = self._asking.what
        self.room.aside.add(self._asking.what)
        self._put_back("Put off. /approve asks again." if step else f"Put off. Answer with /approve {about} or /reject {about}.")
        self.refresh()

    def _answered(self, text: str) -> None:
        question = self._asking
        assert question and self.room
        word = text.strip().lower()
        if word not in question.answers:
            self._put_back("That is not an answer; your line is as you wrote it, and the question comes again.")
            self._session.default_buffer.insert_text(text)
            return
        self._alone = False
        self.show(f"{question.line} {word}", "said")
        self._put_back()
        self._pressed_at = time.monotonic()
        self.room.answer(question, word)

    # -- keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        asking = Condition(lambda: self._asking is not None)
        fresh = Condition(lambda: self._asking is not None and time.monotonic() - self._asked_at < _FRESH_SECONDS)

        @keys.add(Keys.Any, filter=fresh, eager=True)
        def _(event: KeyPressEvent) -> None:
            """It was meant for the line: the question comes again when that is empty."""
            self._put_back()
            event.current_buffer.insert_text(event.data if event.data.isprintable() else "")
            self.refresh()

        @keys.add(Keys.CPRResponse, filter=fresh, eager=True)
        def _(event: KeyPressEvent) -> None:
            """The terminal says where its cursor is: no key of a person's."""
            event.app.renderer.report_absolute_cursor_row(int(event.data[2:-1].partition(";")[0]))

        @keys.add("enter", filter=~fresh & ~is_searching)
        @keys.add("enter", filter=fresh, eager=True)
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if self._asking:
                if time.monotonic() - self._asked_at >= _FRESH_SECONDS:
                    self._answered(buffer.text)
            elif buffer.complete_state and buffer.complete_state.current_completion and " " not in buffer.text:
                buffer.insert_text(" ")  # a command was chosen, and is to be gone on with
            elif buffer.text.endswith("\\"):
                buffer.delete_before_cursor() if buffer.document.is_cursor_at_the_end else None
                buffer.insert_text("\n")
            elif buffer.text.strip():
                self._send()

        @keys.add("escape", "enter", filter=~asking)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("escape", filter=~fresh)
        def _(event: KeyPressEvent) -> None:
            if self._asking:
                self._put_off()
            elif event.current_buffer.complete_state:
                event.current_buffer.cancel_completion()
            elif self.room and self._doing:
                self.room.stop()

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            now, before = time.monotonic(), self._left_at
            if self._asking:
                self._put_off()
            elif event.current_buffer.text:
                event.current_buffer.reset()
                self._pasted.clear()
            elif self.room and self._doing:
                self.room.stop()
            elif now - before < _LEAVE_SECONDS:
                self.bye()
            else:
                self._left_at = now
                self.show("Ctrl-C again, Ctrl-D or /quit leaves; work in the background goes on.", "hint")

        @keys.add("c-d")
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text and not self._asking:
                event.current_buffer.delete()
            else:
                self.bye()

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            if self._asking:  # nobody pastes an answer
                self._put_back()
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            if len(text) > _LONG_PASTE or text.count("\n") > _TALL_PASTE:
                self._pasted.append(text)
                text = f"[pasted {len(text):,} characters #{len(self._pasted)}]"
            event.current_buffer.insert_text(text)

        return keys

    def _send(self) -> None:
        """The line is sent off, with what was pasted into it."""
        buffer = self._session.default_buffer
        shown, pasted = buffer.text, list(self._pasted)
        buffer.append_to_history()
        buffer.reset()
        self._pasted.clear()
        for number, line in enumerate(shown.split("\n")):
            self.show((_PROMPT if number == 0 else "  ") + line, "said")
        line = re.sub(r"\[pasted [\d,]+ characters #(\d+)\]", partial(_whole, pasted), shown)
        self.room.submit_line(line) if self.room else self._early.append(line)


def _whole(pasted: list[str], found: "re.Match[str]") -> str:
    number = int(found[1])
    return pasted[number - 1] if 0 < number <= len(pasted) else found[0]


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False) or [""]


def shortened_rows(text: str, width: int, most: int) -> str:
    """The end of a text that takes at most so many rows of a terminal."""
    return text if len(text) <= width * most else f"…{text[-(width * most) + 1 :]}"
