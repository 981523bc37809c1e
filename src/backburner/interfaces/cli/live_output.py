"""What is shown while it happens: output as it comes, how far each task is, ends as they come in."""

import os
import sys
from collections.abc import Sequence

from backburner.core import task_text as render
from backburner.core.errors import ApprovalRequired
from backburner.core.models import Entry
from backburner.core.terminal_text import Screen, cells, cut
from backburner.services.app import App, now_ms
from backburner.services.log_follower import LogFollower

_ASIDE = "Ctrl-C leaves {} in the background"


class LiveBlock:
    """A few lines at the bottom of the terminal that are rewritten in place; nothing at all where there is no terminal."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown: list[str] = []

    @property
    def room(self) -> tuple[int, int]:
        """The columns and lines there are for it."""
        width, height = render.terminal(2) if self._on else (80, 24)
        return width - 1, max(1, height - 2)

    def show(self, lines: Sequence[str]) -> None:
        """Put these lines, each of which fits, in place of those before."""
        if self._on:
            sys.stderr.write(self._back() + "\n".join(lines))
            sys.stderr.flush()
            self._shown = list(lines)

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(self._back())
            sys.stderr.flush()
            self._shown = []

    def _back(self) -> str:
        """To the start of what is shown, and rid of it; a terminal that became narrower has wrapped the lines."""
        width = self.room[0] + 1
        height = sum(max(1, -(-cells(line) // width)) for line in self._shown)
        return "\r" + (f"\x1b[{height - 1}A" if height > 1 else "") + "\x1b[J"


class Output:
    """The command's own output on our output: as it is for a program, cleaned for a terminal."""

    def __init__(self, *, raw: bool = False) -> None:
        self._screen = Screen() if sys.stdout.isatty() and not raw else None
        self.at_start = True

    def write(self, piece: bytes) -> None:
        shown = self._screen.feed(piece) if self._screen else piece
        sys.stdout.buffer.write(shown)
        sys.stdout.buffer.flush()
        if shown:
            self.at_start = shown.endswith(b"\n")

    def close(self) -> None:
        if self._screen:
            sys.stdout.buffer.write(self._screen.close())
            sys.stdout.buffer.flush()


def follow(app: App, entry: Entry, *, timeout: float | None, silent: bool) -> Entry:
    """Show a task's output until its end or until the time is up; the task as it is then."""
    follower, block, output = LogFollower(app, entry), LiveBlock(), Output()
    try:
        for piece in follower.pieces(timeout):
            if piece and not silent:
                block.clear()
                output.write(piece)
            elif follower.entry.status == "waiting":
                break
            elif not silent and output.at_start:
                block.show([_line(app, follower.entry, block.room[0], _ASIDE.format("it"))])
    finally:
        block.clear()
        output.close()
    if not output.at_start and follower.entry.is_live:
        sys.stdout.buffer.write(b"\n")  # the id that comes next must stand alone
        sys.stdout.buffer.flush()
    return follower.entry


def _line(app: App, entry: Entry, width: int, aside: str = "") -> str:
    return render.live_line(entry, app.runs.progress(entry), app.runs.pending_reason(entry), now_ms(), width, aside)


def wait_for(app: App, task_ids: list[str], timeout: float | None, *, silent: bool, ready: bool = False) -> Sequence[Entry]:
    """Wait for tasks and say how each ended, or became ready, as that happens; the tasks as they are then."""
    block, told = LiveBlock(), set()
    entries: Sequence[Entry] = ()
    look = 1.0 if sys.stderr.isatty() else 5.0
    try:
        for entries in app.waiting.watch(task_ids, timeout, look):
            for entry in entries:
                if entry.run and entry.status == "waiting":
                    raise ApprovalRequired(task_id=entry.task.task_id, reason=entry.run.error)
                if (not entry.is_live or (ready and entry.is_ready)) and entry.task.task_id not in told:
                    told.add(entry.task.task_id)
                    block.clear()
                    if not silent:
                        print(
                            render.ready_line(entry, app.runs.inspect(entry).ports)
                            if entry.is_live
                            else render.ended_line(entry, now_ms()),
                            flush=True,
                        )
            if len(told) == len(set(task_ids)):
                break
            block.show(_board(app, [entry for entry in entries if entry.task.task_id not in told], len(entries), block))
    finally:
        block.clear()
    return entries


def _board(app: App, entries: Sequence[Entry], of: int, block: LiveBlock) -> list[str]:
    """A line for each that is waited for, those at work first, as many as fit, and one that counts them."""
    width, height = block.room
    ordered = sorted(entries, key=lambda entry: entry.run is None or entry.run.started_at is None)
    shown = ordered if len(ordered) < height else ordered[: height - 1]
    more = f", {len(ordered) - len(shown)} more" if len(shown) < len(ordered) else ""
    last = f"waiting for {len(entries)} of {of}{more} · {_ASIDE.format('them' if of > 1 else 'it')}"
    return [*(_line(app, entry, width) for entry in shown), cut(last, width)]
