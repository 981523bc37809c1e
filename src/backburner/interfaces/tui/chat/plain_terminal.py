"""The chat without a screen: one message and its answer, lines from a pipe, and terminals that can do no more than print."""

import asyncio
import os
import sys
import termios
from collections.abc import Callable

from backburner.core.errors import ApprovalRequired
from backburner.core.terminal_text import Screen, readable
from backburner.interfaces.tui.chat.markdown import Markdown
from backburner.interfaces.tui.chat.session import ChatSession

_PROMPT = "> "
_LOOK_SECONDS = 0.3


class PlainTerminal:
    """Prints what comes. The answer goes to the output, all else to the error output where the input is no person."""

    room: ChatSession

    def __init__(self, *, drawn: Callable[[], int] | None, colour: bool, person: bool) -> None:
        self._markdown = Markdown(drawn, colour=colour) if drawn else None
        self._screen = Screen() if sys.stdout.isatty() else None  # what an agent says moves nobody's cursor
        self._beside = sys.stdout if person else sys.stderr
        self._person = person
        self._fresh = True  # whether the output stands at the beginning of a line
        self._typed = b""

    def show(self, text: str, style: str = "") -> None:
        if style != "tool" or self._person:
            print(readable(text), file=self._beside, flush=True)

    def say(self, piece: str) -> None:
        if self._markdown:
            for line in self._markdown.feed(piece):
                print(line, flush=True)
            return
        shown = self._screen.feed(piece.encode("utf-8", "replace")).decode() if self._screen else piece
        sys.stdout.write(shown)
        sys.stdout.flush()
        self._fresh = shown.endswith("\n") if shown else self._fresh

    def said(self) -> None:
        for line in self._markdown.close() if self._markdown else ():
            print(line)
        if not self._fresh:
            print()
        self._fresh = True
        sys.stdout.flush()

    def refresh(self) -> None:
        return

    async def once(self, message: str) -> int:
        """One message and its answer; the exit code."""
        await self.room.talk.say(message)
        turn = asyncio.create_task(self.room.turn())
        try:
            while not turn.done():
                await asyncio.wait({turn}, timeout=_LOOK_SECONDS)
                await self.room.refresh()
                entry = self.room.talk.entry
                if self.room.questions and not turn.done() and entry and entry.status == "waiting":
                    if not self._person:
                        raise ApprovalRequired(task_id=self.room.questions[0].about, reason=entry.run.error if entry.run else "")
                    await self._ask()
        finally:
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)
        return 0 if turn.result().about == "completed" else 1

    async def lines(self) -> int:
        """A line at a time, until there are no more."""
        print("Backburner chat. /help lists the commands, Ctrl-D leaves.", flush=True)
        while not self.room.left.is_set():
            await self.room.refresh()
            while self.room.questions:
                await self._ask()
            if (line := await self._line(_PROMPT)) is None:
                print()
                return 0
            if line.strip() and await self.room.run_line(line):
                await self.once(line.removeprefix("/") if line.startswith("//") else line)
        return 0

    async def _ask(self) -> None:
        question = self.room.questions[0]
        self._typed = b""
        termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before the question is no answer to it
        print(f"{question.text}\n", flush=True)
        while True:
            word = await self._line(f"{question.line} ")
            if word is None:
                raise ApprovalRequired(task_id=question.about, reason="nobody answered")
            if word.strip().lower() in question.answers:
                await self.room.answer_now(question, word.strip().lower())
                return

    async def _line(self, prompt: str) -> str | None:
        """What the person enters next; None where there is no more. Nothing is read ahead of what is asked for."""
        print(prompt, end="", flush=True)
        loop, there = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(0, there.set)
        try:
            while b"\n" not in self._typed:
                there.clear()
                await there.wait()
                if not (piece := os.read(0, 1 << 16)):
                    return None
                self._typed += piece
        finally:
            loop.remove_reader(0)
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode("utf-8", "replace")
