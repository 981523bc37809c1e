"""The chat without cursor control: one message and its answer, lines from a pipe, and terminals that can only print."""

import asyncio
import os
import sys
import termios
from collections.abc import Callable, Sequence

from backburner.core.errors import ApprovalRequired, BackburnerError
from backburner.core.terminal_text import Screen, readable
from backburner.interfaces.tui.chat.markdown import Markdown
from backburner.interfaces.tui.chat.session import ChatSession

_PROMPT = "> "
_POLL_INTERVAL = 0.3  # seconds


class PlainTerminal:
    """Prints the answer to standard output. Everything else goes to standard error, or to standard output if `interactive`."""

    session: ChatSession

    def __init__(self, *, markdown_width: Callable[[], int] | None, colour: bool, interactive: bool) -> None:
        self._markdown = Markdown(markdown_width, colour=colour) if markdown_width else None
        self._screen = Screen() if sys.stdout.isatty() else None  # removes the escape sequences of the agent's text
        self._info_stream = sys.stdout if interactive else sys.stderr
        self._interactive = interactive
        self._at_line_start = True  # whether the cursor is at the beginning of a line
        self._input_buffer = b""

    def show(self, text: str, style: str = "") -> None:
        if style != "tool" or self._interactive:
            print(readable(text), file=self._info_stream, flush=True)

    def add_answer(self, piece: str) -> None:
        if self._markdown:
            for line in self._markdown.feed(piece):
                print(line, flush=True)
            return
        shown = self._screen.feed(piece.encode("utf-8", "replace")).decode() if self._screen else piece
        sys.stdout.write(shown)
        sys.stdout.flush()
        self._at_line_start = shown.endswith("\n") if shown else self._at_line_start

    def end_paragraph(self) -> None:
        for line in self._markdown.close() if self._markdown else ():
            print(line)
        if not self._at_line_start:
            print()
        self._at_line_start = True
        sys.stdout.flush()

    def refresh(self) -> None:
        return

    async def run_message(self, message: str) -> int:
        """Send one message and print its answer; returns the exit code."""
        await self.session.conversation.send(message)
        turn = asyncio.create_task(self.session.run_turn())
        try:
            while not turn.done():
                await asyncio.wait({turn}, timeout=_POLL_INTERVAL)
                await self.session.refresh()
                entry = self.session.conversation.entry
                if self.session.questions and not turn.done() and entry and entry.status == "waiting":
                    if not self._interactive:
                        raise ApprovalRequired(task_id=self.session.questions[0].about, reason=entry.run.error if entry.run else "")
                    await self._ask_question()
        finally:
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)
        return 0 if turn.result().detail == "completed" else 1

    async def run_parts(self, parts: Sequence[tuple[bool, str]]) -> int:
        """Run the commands (True) and send the messages (False) of piped input in order; returns the exit code.

        The first error of a message is raised at the end, so that it does not prevent later commands.
        """
        exit_code, first_error = 0, None
        for is_command, text in parts:
            if self.session.exit_requested.is_set():
                break
            if is_command:
                await self.session.run_line(text)
                continue
            try:
                await self.session.conversation.model_name()  # raises before anything is sent if no model is configured
                exit_code = await self.run_message(text) or exit_code
            except BackburnerError as error:
                first_error = first_error or error
        if first_error:
            raise first_error
        return exit_code

    async def run_lines(self) -> int:
        """Read and handle one line at a time until the end of the input."""
        print("Backburner chat. Type /help for the commands, Ctrl-D to exit.", flush=True)
        while not self.session.exit_requested.is_set():
            await self.session.refresh()
            while self.session.questions:
                await self._ask_question()
            if (line := await self._read_line(_PROMPT)) is None:
                print()
                return 0
            if line.strip() and await self.session.run_line(line):
                await self.run_message(line.removeprefix("/") if line.startswith("//") else line)
        return 0

    async def _ask_question(self) -> None:
        question = self.session.questions[0]
        self._input_buffer = b""
        termios.tcflush(sys.stdin, termios.TCIFLUSH)  # text typed before the question must not answer it
        print(f"{question.text}\n", flush=True)
        while True:
            answer = await self._read_line(f"{question.line} ")
            if answer is None:
                raise ApprovalRequired(task_id=question.about, reason="no answer was given")
            if answer.strip().lower() in question.answers:
                await self.session.answer_now(question, answer.strip().lower())
                return

    async def _read_line(self, prompt: str) -> str | None:
        """The next line of the user, or None at the end of the input. Reads nothing before it is needed."""
        print(prompt, end="", flush=True)
        loop, has_input = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(0, has_input.set)
        try:
            while b"\n" not in self._input_buffer:
                has_input.clear()
                await has_input.wait()
                if not (piece := os.read(0, 1 << 16)):
                    return None
                self._input_buffer += piece
        finally:
            loop.remove_reader(0)
        line, _, self._input_buffer = self._input_buffer.partition(b"\n")
        return line.decode("utf-8", "replace")
