"""`logs`, `send` and `events`: the output of a task, its input, and the event log."""

import argparse
import json
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator

from backburner.core import formatting, task_text
from backburner.core.errors import BadInput
from backburner.core.events import Event
from backburner.core.models import Caller, Entry
from backburner.core.states import Result
from backburner.core.terminal_text import visible
from backburner.interfaces.cli.live_output import Output
from backburner.interfaces.cli.tasks import LIST_LIMIT, hint
from backburner.services.app import App, now_ms
from backburner.services.log_follower import LogFollower
from backburner.system.log_file import position_of


def logs(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Print the output of a task so far; with `-f`, continue until the task ends."""
    entry = app.queries.find(args.id, caller)
    if entry.run is None:
        raise BadInput(f"Task {entry.task.task_id} is {entry.status}; it has no output yet.")
    if args.json and args.follow:
        raise BadInput("`logs -f` does not support --json. Use `logs --json`, which prints a cursor for --since.")
    follower = _follower(app, entry, args)
    pieces = follower.pieces() if args.follow else follower.now()
    if args.grep is not None:
        pieces = _matching(pieces, _pattern(args.grep), args.tail)
    try:
        if args.json:
            output = b"".join(pieces).decode("utf-8", "replace")
            result = {"task_id": entry.task.task_id, "log": app.runs.log_path(entry) or None, "output": output}
            task_text.print_json({**result, "cursor": _cursor(follower), "status": follower.entry.status})
            return 0
        _print(pieces, raw=args.raw)
    except FileNotFoundError:
        _report_missing_log(app, entry, as_json=args.json)
    if args.follow:
        hint(task_text.ended_line(follower.entry, now_ms()))
    elif args.since is not None:
        hint(f"Continue with: --since {_cursor(follower)}")
    return 0


def _report_missing_log(app: App, entry: Entry, *, as_json: bool) -> None:
    """Handle a missing log file: an error if the run has ended, empty output if it has printed nothing yet."""
    if entry.run and entry.run.end.result not in (None, Result.UNSTARTED, Result.DENIED, Result.DEPENDENCY):
        path = app.runs.log_path(entry) or "its log"
        raise BadInput(f"The output of {entry.task.task_id} is missing: {path} does not exist.")
    if as_json:
        result = {
            "task_id": entry.task.task_id,
            "log": app.runs.log_path(entry) or None,
            "output": "",
            "cursor": f"{entry.task.run_count}:0",
        }
        task_text.print_json({**result, "status": entry.status})


def _follower(app: App, entry: Entry, args: argparse.Namespace) -> LogFollower:
    count = entry.task.run_count
    if args.run is not None and not 1 <= args.run <= count:
        runs = "1 run" if count == 1 else f"{count} runs"
        raise BadInput(f"Task {entry.task.task_id} has {runs}; run {args.run} does not exist.")
    n, since = args.run, 0
    if args.since is not None:
        n, since = position_of(args.since, count)
    elif n is not None and n < count:
        entry = entry._replace(task=entry.task._replace(run_count=n))
    return LogFollower(app, entry, raw=args.raw, lines=args.tail if args.grep is None else None, n=n, since=since, tell=hint)


def _cursor(follower: LogFollower) -> str:
    return f"{follower.n}:{follower.cursor}"


def _pattern(text: str) -> "re.Pattern[str]":
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(f"'{text}' is not a regular expression: {error}.") from None


def _matching(pieces: Iterable[bytes], pattern: "re.Pattern[str]", last: int | None) -> Iterator[bytes]:
    """The lines that match; with `last`, only the last ones."""
    rest, kept = b"", deque[bytes](maxlen=last)
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        matches = [line + b"\n" for line in lines if pattern.search(line.decode("utf-8", "replace"))]
        if last is not None:
            kept += matches
        else:
            yield b"".join(matches)
    if rest and pattern.search(rest.decode("utf-8", "replace")):
        kept.append(rest + b"\n")
    yield b"".join(kept)


def _print(pieces: Iterable[bytes], *, raw: bool) -> None:
    output = Output(raw=raw)
    try:
        for piece in pieces:
            if piece:
                output.write(piece)
    finally:
        output.close()


def send(app: App, caller: Caller, args: argparse.Namespace) -> int:
    data = _input(args)
    entry = app.tasks.send(args.id, data, caller, end=args.eof)
    if args.json:
        task_text.print_json({"task_id": entry.task.task_id, "bytes": len(data)})
    elif sys.stderr.isatty():
        hint(f"Sent {len(data)} bytes to {entry.task.task_id}{' and closed its input' if args.eof else ''}.")
    return 0


def _input(args: argparse.Namespace) -> bytes:
    if args.text is not None:
        return args.text.encode("utf-8", "surrogateescape") + b"\n"
    return b"" if args.eof else sys.stdin.buffer.read()


def events(app: App, caller: Caller, args: argparse.Namespace) -> int:
    """Print events, oldest first; with `-f`, follow new ones. `-f --json` prints one object per line."""
    limit = LIST_LIMIT if args.limit is None else args.limit
    after, as_json = args.since if args.since is not None else -limit, args.json
    if not args.follow:
        events = list(_events(app, after, limit or None))
        if as_json:
            task_text.print_json([task_text.event_json(event) for event in events])
        for event in events if not as_json else []:
            print(_event_line(event))
        if args.limit is None and len(events) == LIST_LIMIT:
            which = (
                f"the last {LIST_LIMIT} events"
                if args.since is None
                else f"{LIST_LIMIT} events; continue with --since {events[-1].event_id}"
            )
            hint(f"Showing {which}; use --limit 0 for all.")
        return 0
    for _ in app.changes.changes(interval=60):
        for event in _events(app, after):
            after = event.event_id
            print(json.dumps(task_text.event_json(event)) if as_json else _event_line(event))
        sys.stdout.flush()
    return 0


def _events(app: App, after: int, limit: int | None = None) -> Iterator[Event]:
    """The events after a number, read page by page."""
    count = 0
    while page := app.queries.events(after):
        for event in page:
            if limit is not None and count >= limit:
                return
            yield event
            count += 1
        after = page[-1].event_id


def _event_line(event: Event) -> str:
    data = " ".join(f"{name}={_event_value(value)}" for name, value in event.data.items() if value not in (None, []))
    subject = event.run_id or event.task_id or "-"
    return f"{event.event_id:>6}  {formatting.local_time(event.at)}  {event.kind:<18} {subject}  {data}".rstrip()


def _event_value(value: object) -> str:
    """A value of an event as one word, or in quotes."""
    match value:
        case list():
            text = visible("; ".join(map(str, value)))
        case bool():
            text = str(value).lower()
        case _:
            text = visible(str(value))
    return json.dumps(text, ensure_ascii=False) if set(text) & set(" \"'") or not text else text
