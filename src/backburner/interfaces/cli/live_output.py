"""Shows tasks live: their output, their progress, and a line when each one ends."""

import os
import sys
from collections.abc import Sequence

from backburner.core import task_table, task_text
from backburner.core.errors import ApprovalRequired
from backburner.core.models import Entry
from backburner.core.terminal_text import Screen, cells, cut
from backburner.services.app import App, now_ms
from backburner.services.log_follower import LogFollower

_DETACH_HINT = "Ctrl-C stops waiting; {} running"


class LiveBlock:
    """A few lines at the bottom of the terminal that are rewritten in place. Shows nothing without a terminal."""

    def __init__(self) -> None:
        self._enabled = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown: list[str] = []

    @property
    def size(self) -> tuple[int, int]:
        """The available columns and lines."""
        width, height = task_table.terminal(2) if self._enabled else (80, 24)
        return width - 1, max(1, height - 2)

    def show(self, lines: Sequence[str]) -> None:
        """Replace the shown lines. Each line must fit the width of the terminal."""
        if self._enabled:
            sys.stderr.write(self._erase() + "\n".join(lines))
            sys.stderr.flush()
            self._shown = list(lines)

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(self._erase())
            sys.stderr.flush()
            self._shown = []

    def _erase(self) -> str:
        """Control codes that erase the shown lines; if the terminal became narrower, it has wrapped them."""
        width = self.size[0] + 1
        height = sum(max(1, -(-cells(line) // width)) for line in self._shown)
        return "\r" + (f"\x1b[{height - 1}A" if height > 1 else "") + "\x1b[J"


class Output:
    """Writes a command's output to stdout: unchanged for a pipe or a file, with control codes removed for a terminal."""

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
    """Show a task's output until the task ends or `timeout` seconds have passed; return its latest state."""
    follower, block, output = LogFollower(app, entry, tell=_tell), LiveBlock(), Output()
    try:
        for piece in follower.pieces(timeout):
            if piece and not silent:
                block.clear()
                output.write(piece)
            elif follower.entry.status == "waiting":
                break
            elif not silent and output.at_start:
                block.show([_line(app, follower.entry, block.size[0], _DETACH_HINT.format("the task keeps"))])
    except KeyboardInterrupt:
        block.clear()
        if not silent:
            print(f"{'' if output.at_start else chr(10)}{_detached([entry.task.task_id])}", file=sys.stderr)
        raise
    finally:
        block.clear()
        output.close()
    if not output.at_start and follower.entry.is_live:
        sys.stdout.buffer.write(b"\n")  # the task ID that follows must be on its own line
        sys.stdout.buffer.flush()
    return follower.entry


def _tell(note: str) -> None:
    print(note, file=sys.stderr)


def _line(app: App, entry: Entry, width: int, note: str = "") -> str:
    return task_text.live_line(entry, app.runs.progress(entry), app.runs.pending_reason(entry), now_ms(), width, note)


def wait_for(app: App, task_ids: list[str], timeout: float | None, *, silent: bool, ready: bool = False) -> Sequence[Entry]:
    """Wait for tasks and print a line when each one ends or becomes ready; return their latest states."""
    block, reported = LiveBlock(), set()
    entries: Sequence[Entry] = ()
    interval = 1.0 if sys.stderr.isatty() else 5.0
    try:
        for entries in app.waiting.watch(task_ids, timeout, interval):
            for entry in entries:
                if entry.run and entry.status == "waiting":
                    raise ApprovalRequired(task_id=entry.task.task_id, reason=entry.run.error)
                if (not entry.is_live or (ready and entry.is_ready)) and entry.task.task_id not in reported:
                    reported.add(entry.task.task_id)
                    block.clear()
                    if not silent:
                        is_ready = entry.is_live
                        line = (
                            task_text.ready_line(entry, app.runs.inspect(entry).ports)
                            if is_ready
                            else task_text.ended_line(entry, now_ms(), before="before it was ready" if ready else "")
                        )
                        print(line, flush=True)
            if len(reported) == len(set(task_ids)):
                break
            block.show(_waiting_lines(app, [entry for entry in entries if entry.task.task_id not in reported], len(entries), block))
    except KeyboardInterrupt:
        block.clear()
        if not silent:
            print(_detached([task_id for task_id in task_ids if task_id not in reported]), file=sys.stderr)
        raise
    finally:
        block.clear()
    return entries


def _detached(task_ids: Sequence[str]) -> str:
    """What to print when the person stops waiting."""
    if len(task_ids) != 1:
        return f"Stopped waiting; {len(task_ids)} tasks continue in the background. To see them: backburner list"
    return f"Stopped waiting; {task_ids[0]} continues in the background. To follow it: backburner logs -f {task_ids[0]}"


def _waiting_lines(app: App, entries: Sequence[Entry], total: int, block: LiveBlock) -> list[str]:
    """A line for each open task, running tasks first, as many as fit; the last line counts them."""
    width, height = block.size
    ordered = sorted(entries, key=lambda entry: entry.run is None or entry.run.started_at is None)
    shown = ordered if len(ordered) < height else ordered[: height - 1]
    more = f", {len(ordered) - len(shown)} more" if len(shown) < len(ordered) else ""
    detach = _DETACH_HINT.format("the tasks keep" if total > 1 else "the task keeps")
    last = f"waiting for {len(entries)} of {total}{more} · {detach}"
    return [*(_line(app, entry, width) for entry in shown), cut(last, width)]
