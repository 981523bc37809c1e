"""The chat without a screen: one message and its answer, lines from a pipe, and terminals that can do no more than print."""

import asyncio
import sys
from collections.abc import Callable

from backburner.doors.chat.markdown import Markdown
from backburner.doors.chat.room import Room
from backburner.errors import ApprovalRequired

_PROMPT = "> "


class Plain:
    """Prints what comes. The answer goes to the output, all else to the error output where the input is no person."""

    room: Room

    def __init__(self, *, drawn: Callable[[], int] | None, colour: bool, person: bool) -> None:
        self._markdown = Markdown(drawn, colour=colour) if drawn else None
        self._beside = sys.stdout if person else sys.stderr
        self._fresh = True  # whether the output stands at the beginning of a line

    def show(self, text: str, style: str = "") -> None:
        if style == "tool" and self._beside is sys.stderr:
            return
        print(text, file=self._beside, flush=True)

    def say(self, piece: str) -> None:
        if self._markdown:
            for line in self._markdown.feed(piece):
                print(line, flush=True)
            return
        sys.stdout.write(piece)
        sys.stdout.flush()
        self._fresh = piece.endswith("\n")

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
                await asyncio.wait({turn}, timeout=0.3)
                await self.room.look()
                entry = self.room.talk.entry
                if self.room.questions and not turn.done() and entry and entry.status == "waiting":
                    question = self.room.questions[0]
                    if self._beside is not sys.stdout:
                        raise ApprovalRequired(task_id=question.about, reason=entry.run.error if entry.run else "")
                    await self._ask()
        finally:
            turn.cancel()
            await asyncio.gather(turn, return_exceptions=True)
        return 0 if turn.result().about == "completed" else 1

    async def lines(self) -> int:
        """A line at a time, until there are no more."""
        print("Backburner chat. /help lists the commands, Ctrl-D leaves.", flush=True)
        while not self.room.left.is_set():
            await self.room.look()
            while self.room.questions:
                await self._ask()
            if (line := await _line(_PROMPT)) is None:
                print()
                return 0
            if line.strip():
                await self._entered(line)
        return 0

    async def _entered(self, line: str) -> None:
        """What was entered is done before the next prompt."""
        if await self.room.entered(line):
            await self.once(line)

    async def _ask(self) -> None:
        question = self.room.questions[0]
        print(f"{question.text}\n", flush=True)
        while True:
            word = await _line(f"{question.line} ")
            if word is None:
                raise ApprovalRequired(task_id=question.about, reason="nobody answered")
            if word.strip().lower() in question.answers:
                await self.room.settled(question, word.strip().lower())
                return


async def _line(prompt: str) -> str | None:
    """What the person enters next; None where there is no more."""
    print(prompt, end="", flush=True)
    line = await asyncio.to_thread(sys.stdin.readline)
    return line.rstrip("\n") if line else None
