"""What is shown while it happens: output as it comes, a line that tells how long, ends as they come in."""

import json
import os
import sys
from collections.abc import Iterator, Sequence

from backburner import words
from backburner.doors import render
from backburner.errors import ApprovalRequired, BadInput
from backburner.follow import Follower
from backburner.lifecycle import Result
from backburner.models import Entry, Event
from backburner.runtime import Runtime, now_ms


class LiveLine:
    """One line at the bottom of the terminal that is rewritten in place; nothing at all where there is no terminal."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    def show(self, text: str) -> None:
        if self._on:
            width = render.columns(2) - 1
            sys.stderr.write(f"\r\x1b[K{text[:width]}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def follow(runtime: Runtime, entry: Entry, *, timeout: float | None, silent: bool) -> Entry:
    """Show a task's output until its end or until the time is up; the task as it is then."""
    follower, line = Follower(runtime, entry), LiveLine()
    out = sys.stdout.buffer
    at_start = True
    try:
        for piece in follower.pieces(timeout):
            if piece and not silent:
                line.clear()
                out.write(piece)
                out.flush()
                at_start = piece.endswith(b"\n")
            elif follower.entry.status == "waiting":
                break
            elif not silent and at_start:
                line.show(_running(follower.entry))
    finally:
        line.clear()
    if not at_start and follower.entry.live:
        out.write(b"\n")  # the id that comes next must stand alone
        out.flush()
    return follower.entry


def _running(entry: Entry) -> str:
    took = words.elapsed(entry, now_ms())
    return f"{entry.status} {words.duration(took) if took is not None else ''} · {entry.task.task_id} · Ctrl-C leaves it in the background"


def print_log(runtime: Runtime, entry: Entry, *, follow: bool, lines: int | None, raw: bool) -> int:
    """The log of a task, to its present end or on to its last line."""
    out = sys.stdout.buffer
    follower = Follower(runtime, entry, raw=raw, lines=lines)
    try:
        for piece in follower.pieces() if follow else follower.now():
            if piece:
                out.write(piece)
                out.flush()
    except FileNotFoundError:
        if entry.run and entry.run.result not in (None, Result.UNSTARTED, Result.DENIED):
            raise BadInput(f"The output of {entry.task.task_id} is gone: {runtime.log_path(entry)} does not exist.") from None
    if follow and sys.stderr.isatty():
        print(render.ended_line(follower.entry, now_ms()), file=sys.stderr)
    return 0


def wait_for(runtime: Runtime, task_ids: list[str], timeout: float | None, *, silent: bool) -> Sequence[Entry]:
    """Wait for tasks and say how each ended, as they end; the tasks as they are then."""
    line, told = LiveLine(), set()
    entries: Sequence[Entry] = ()
    look = 1.0 if sys.stderr.isatty() else 5.0
    try:
        for entries in runtime.watch(task_ids, timeout, look):
            for entry in entries:
                if entry.run and entry.status == "waiting":
                    raise ApprovalRequired(task_id=entry.task.task_id, reason=entry.run.error)
                if not entry.live and entry.task.task_id not in told:
                    told.add(entry.task.task_id)
                    line.clear()
                    if not silent:
                        print(render.ended_line(entry, now_ms()), flush=True)
            if len(told) == len(set(task_ids)):
                break
            line.show(f"waiting for {len(set(task_ids)) - len(told)} of {len(set(task_ids))} · Ctrl-C leaves them in the background")
    finally:
        line.clear()
    return entries


def print_events(runtime: Runtime, *, follow: bool, after: int, as_json: bool) -> int:
    """What happened, oldest first; with `follow` as it happens. Following in JSON is one object a line."""
    if not follow:
        events = list(_events(runtime, after))
        if as_json:
            render.print_json([render.event_json(event) for event in events])
        for event in events if not as_json else []:
            print(_event_line(event))
        return 0
    ear = runtime.listen()
    try:
        while True:
            events = list(_events(runtime, after))
            for event in events:
                after = event.event_id
                print(json.dumps(render.event_json(event)) if as_json else _event_line(event))
            sys.stdout.flush()
            if not events:
                ear.wait(60)
    finally:
        ear.close()


def _events(runtime: Runtime, after: int) -> Iterator[Event]:
    """Everything there is after an event, page by page."""
    while page := runtime.events(after):
        yield from page
        after = page[-1].event_id


def _event_line(event: Event) -> str:
    about = " ".join(f"{name}={value}" for name, value in event.data.items() if value not in (None, []))
    subject = event.run_id or event.task_id or "-"
    return f"{event.event_id:>6}  {words.local(event.at)}  {event.kind:<18} {subject}  {about}".rstrip()
