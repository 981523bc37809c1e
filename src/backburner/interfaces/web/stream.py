"""The live stream of a page: rows of tasks that changed, output of runs that it follows, and questions, as server-sent events.

One hub reads the ledger once for all clients. Each client has only the latest row of each task that it was not sent yet, so a slow one
costs a bounded amount of memory. Output is read from the log at the client's own cursor, so nothing is lost over a restart.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Collection, Generator, Mapping
from typing import TYPE_CHECKING, Any

from backburner.core import formatting
from backburner.core.errors import BackburnerError, HostUnreachable, LedgerUnavailable
from backburner.interfaces.web.backlog import Backlog
from backburner.interfaces.web.calls import Call
from backburner.interfaces.web.home import counts
from backburner.interfaces.web.logs import FoundRun, locate
from backburner.interfaces.web.rows import row
from backburner.services.app import App
from backburner.services.async_app import AsyncApp
from backburner.system.file_watch import FileWatch
from backburner.system.log_file import NAME, Log, position_of

if TYPE_CHECKING:
    from backburner.services.remote_run import RemoteRun
    from backburner.system.remote_log import RemoteLog

MAX_STREAMS = 64
MAX_FOLLOWED = 8
FLUSH_SECONDS = 0.04  # between two pieces of output for one client
_MIN_PAUSE_SECONDS = 0.03
_MAX_PAUSE_SECONDS = 1.0
_PAUSE_PER_TASK_SECONDS = 0.05  # for each task but the first that changed since the last time
COMMENT_SECONDS = 15.0
_PROGRESS_SECONDS = 2.0
_PROGRESS_ROWS = 8
_MAX_MISSED_EVENTS = 10_000
_MAX_MISSED_TASKS = 500
_POLL_SECONDS = 0.5
_GROWTH_SECONDS = 0.1  # how long to wait for output of another host before others get their turn
_PIECE_BYTES = 64 << 10
_MAX_BEHIND_BYTES = 1 << 20
_MAX_CHARACTER_BYTES = 4
_LIVE = ("pending", "running", "waiting", "resumed")


class Followed:
    """The output of one run, as far as a client was sent it."""

    def __init__(self, run: FoundRun, offset: int) -> None:
        self.run, self.offset, self.is_live = run, offset, run.is_live
        self._remote: RemoteRun | None = None
        self._log: RemoteLog | None = None

    @contextlib.contextmanager
    def _open(self) -> Generator[Log]:
        """The log as it is now. That of another host stays open, because it has a connection of its own."""
        if self.run.remote is None:
            with Log(self.run.folder) as log:
                yield log
            return
        if self._remote is None:
            self._remote = self.run.remote()
        if self._log is None or self._log.growth is None or not self.is_live:
            self._log = self._remote.open_log()
        else:
            self._log.growth.wait(_GROWTH_SECONDS)
        yield self._log
        self._log.forget(self.offset)

    def close(self) -> None:
        if self._log:
            self._log.close()
        if self._remote:
            self._remote.close()

    def read(self) -> dict[str, object] | None:
        """The next piece of the output; None if there is nothing new. `live` is false in the last one."""
        try:
            with self._open() as log:
                start, size = log.position(self.offset), log.size
                gap = 0
                if size - start > _MAX_BEHIND_BYTES:
                    behind, start = start, size - _PIECE_BYTES
                    gap = log.cursor(start) - log.cursor(behind)
                after, data = log.piece(start, _PIECE_BYTES)
                if self.is_live and after >= size:
                    data, after = _whole(data, after)
                begin, self.offset = log.cursor(start), log.cursor(after)
                is_over = not self.is_live and after >= size
        except (FileNotFoundError, HostUnreachable):
            begin, gap, data, is_over = self.offset, 0, b"", not self.is_live
        if not data and not gap and not is_over:
            return None
        piece: dict[str, object] = {"run_id": self.run.run_id, "start": f"{self.run.n}:{begin}", "cursor": f"{self.run.n}:{self.offset}"}
        if gap:
            piece |= {"start": f"{self.run.n}:{begin - gap}", "gap": gap}
        return {**piece, "text": data.decode("utf-8", "backslashreplace"), "live": not is_over}


def _whole(data: bytes, end: int) -> tuple[bytes, int]:
    """Leave out the beginning of a character whose rest is not written yet."""
    for back in range(1, min(_MAX_CHARACTER_BYTES, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 != 0x80:
            width = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return (data[:-back], end - back) if width > back else (data, end)
    return data, end


class Client:
    """One open stream."""

    def __init__(self, call: Call, *, quiet: bool) -> None:
        self.call, self.quiet = call, quiet
        self.rows: dict[str, dict[str, object] | None] = {}  # the latest row of each task that was not sent yet; None if it is gone
        self.asks: dict[str, dict[str, object]] = {}
        self.later: dict[str, None] = {}  # tasks that changed, but whose rows come later
        self.is_behind = False  # whether it was told that rows come later
        self.must_reset = False  # whether it must load everything again
        self.followed: list[Followed] = []
        self.counts: dict[str, int] | None = None
        self.at: str | None = None  # when the rows were read
        self.woken = asyncio.Event()
        self.must_poll = False  # whether a log that it follows cannot be watched
        self.must_check = False  # whether its credential may have been revoked
        self.is_over = False

    def wants(self, found: Mapping[str, object]) -> bool:
        return not self.quiet or bool(found["needs_you"]) or found["status"] not in (*_LIVE, "active")


class Hub:
    """Reads changes of the ledger while there are clients, and passes them on."""

    def __init__(self, async_app: AsyncApp) -> None:
        self._app = async_app
        self.clients: set[Client] = set()
        self.last_event = 0
        self._known: dict[str, dict[str, object]] = {}  # what was last sent about running tasks, to notice progress
        self._asking: set[str] = set()
        self._backlog = Backlog()
        self.sent_until = 0  # the last event before the first one whose task was put off
        self._pause = 0.0
        self._unread: int | None = None  # notices, as last counted
        self._task: asyncio.Task[None] | None = None
        self._watch = FileWatch()
        self._watched: dict[int, Client] = {}
        self._is_closed = False

    async def add(self, client: Client) -> None:
        if self._task is None or self._task.done():
            self.last_event = self.sent_until = await self._app.call(lambda app: app.overview.last_event())
            self._backlog, self._unread = Backlog(), None
            self._asking, running = await self._app.call(_asking_and_running)
            self._task = asyncio.create_task(self._read(running))
            if self._watch.works:
                asyncio.get_running_loop().add_reader(self._watch.fileno(), self._log_changed)
        self.clients.add(client)

    def remove(self, client: Client) -> None:
        self.clients.discard(client)
        for followed in client.followed:
            asyncio.get_running_loop().run_in_executor(None, followed.close)
        self._watched = {number: other for number, other in self._watched.items() if other is not client}
        if not self.clients and self._task is not None:
            self._task.cancel()
            self._task = None
            if self._watch.works:
                asyncio.get_running_loop().remove_reader(self._watch.fileno())

    def close(self) -> None:
        """Say goodbye to all clients."""
        self._is_closed = True
        for client in self.clients:
            client.is_over = True
            client.woken.set()

    @property
    def is_behind(self) -> bool:
        """Whether tasks have changed whose rows come later."""
        return not self._backlog.is_empty

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def arm(self, client: Client) -> bool:
        """Wake a client when one of the logs that it follows grows. False if one of them cannot be watched, or does not exist yet."""
        numbers = [self._watch.arm(f"{followed.run.folder}/{NAME}") for followed in client.followed]
        self._watched |= {number: client for number in numbers if number >= 0}
        return all(number >= 0 for number in numbers)

    def _log_changed(self) -> None:
        for number in self._watch.fired():
            if client := self._watched.pop(number, None):
                # Several clients may follow the same file, which has one number: all of them look.
                for other in self.clients:
                    if other is client or other.followed:
                        other.woken.set()

    async def _read(self, running: set[str]) -> None:
        """Read what has changed after each change of the ledger; while tasks run, also their progress every two seconds."""
        looked_at = 0.0
        async for _ in self._app.changes(lambda: _PROGRESS_SECONDS if running else COMMENT_SECONDS, lambda: self._pause):
            self._pause = 0
            try:
                found = await self._read_changes(running)
                if (now := time.monotonic()) - looked_at >= _PROGRESS_SECONDS:
                    looked_at = now
                    await self._read_progress(running, running - found["rows"].keys())
                self._pause = _pause(found)
            except LedgerUnavailable:
                self._backlog.lose()  # what it had just chosen was not read

    async def _read_changes(self, running: set[str]) -> dict[str, Any]:
        """Read and pass on what happened since the last event. Returns what was found."""
        after, backlog = self.last_event, self._backlog
        at_once = self._asking | running | {followed.run.task_id for client in self.clients for followed in client.followed}
        unread = self._unread
        found = await self._app.call(lambda app: _changed(app, after, backlog, at_once, unread))
        self.last_event, self._unread = found["last_event"], found["counts"].get("inbox", unread)
        if backlog.is_empty:
            self.sent_until = self.last_event
        for task_id, changed in found["rows"].items():
            if changed is not None and changed["status"] in ("running", "resumed"):
                running.add(task_id)
            else:
                running.discard(task_id)
        self._pass_on(found)
        return found

    async def _read_progress(self, running: set[str], wanted: set[str]) -> None:
        """Read and pass on the rows of running tasks: a few at a time, so that changes of the ledger do not wait for all of them."""
        waiting = list(wanted)
        while waiting:
            part, waiting = waiting[:_PROGRESS_ROWS], waiting[_PROGRESS_ROWS:]
            self._pass_on(await self._app.call(lambda app, part=part: _found(app, part)))
            if waiting:
                await self._read_changes(running)
                waiting = [task_id for task_id in waiting if task_id in running]

    def _pass_on(self, found: dict[str, Any]) -> None:
        changed = {task_id: new for task_id, new in found["rows"].items() if self._is_news(task_id, new)}
        asks = {}
        for task_id, new in changed.items():
            if new is not None and new["needs_you"]:
                if task_id not in self._asking:
                    asks[task_id] = new
                self._asking.add(task_id)
            else:
                self._asking.discard(task_id)
        for client in self.clients:
            client.must_check = client.must_check or found["revoked"]
            client.rows |= {task_id: new for task_id, new in changed.items() if new is None or client.wants(new)}
            client.must_reset = client.must_reset or found["must_reset"]
            if not client.quiet:
                client.later |= dict.fromkeys(found["later"])
                client.later = {task_id: None for task_id in client.later if task_id not in found["rows"]}
            client.asks |= asks
            if changed or found["counts"]:
                client.counts, client.at = found["counts"] or client.counts, found["at"]
            for followed in client.followed:
                if (new := found["rows"].get(followed.run.task_id)) is not None:
                    followed.is_live = new["run_id"] == followed.run.run_id and new["run_status"] in _LIVE
            if changed or found["revoked"] or found["must_reset"] or client.followed or client.is_behind is self._backlog.is_empty:
                client.woken.set()

    def _is_news(self, task_id: str, new: dict[str, object] | None) -> bool:
        """Whether a row differs from the one before in more than the time that has passed."""
        known = self._known.pop(task_id, None)
        if new is None or new["status"] not in ("running", "resumed"):
            return True
        self._known[task_id] = {**new, "duration_seconds": None}
        return self._known[task_id] != known


def _asking_and_running(app: App) -> tuple[set[str], set[str]]:
    """The tasks that wait for a person, and those that run."""
    from backburner.core.task_filter import TaskFilter

    board = app.overview.board(TaskFilter())
    return {item.entry.task.task_id for item in board.needs_you}, {item.entry.task.task_id for item in board.running}


def _pause(found: dict[str, Any]) -> float:
    """The seconds during which further changes are collected: at most a quarter of the time is spent on reading.

    After many changes at once it is longer, because the tasks, and pages that draw them, need the same processors. Time that other
    processes took from this one does not count.
    """
    if not found["rows"]:
        return 0
    for_tasks = _PAUSE_PER_TASK_SECONDS * (found["changed"] - 1)
    return min(_MAX_PAUSE_SECONDS, max(_MIN_PAUSE_SECONDS, for_tasks, 3 * found["spent"]))


def _changed(app: App, after: int, backlog: Backlog, at_once: Collection[str], unread: int | None) -> dict[str, Any]:
    """What happened after an event, the rows of tasks that changed, and the CPU time that this took in seconds.

    While tasks are put off, unread notices are not counted again, because that takes the longer the more there are.
    """
    start = time.thread_time()
    events = app.overview.events_after(after)
    choice = backlog.choose(events, at_once)
    return {
        **_found(app, choice.now),
        **choice._asdict(),
        "counts": counts(app, unread if choice.later else None) if choice.now or choice.must_reset else {},
        "last_event": events[-1][0] if events else after,
        "revoked": any(kind == "device_revoked" for _, kind, _ in events),
        "spent": time.thread_time() - start,
    }


def _found(app: App, task_ids: Collection[str]) -> dict[str, Any]:
    """The rows of tasks as they are now, None for those that were cleared."""
    rows: dict[str, dict[str, object] | None] = dict.fromkeys(task_ids)
    rows |= {item.entry.task.task_id: _stream_row(app, item) for item in app.overview.listed(list(task_ids))}
    return {"rows": rows, "later": (), "counts": {}, "revoked": False, "must_reset": False, "at": formatting.iso(app.now())}


def _stream_row(app: App, item: Any) -> dict[str, object]:
    return {**row(app, item), "run_status": item.entry.run.state if item.entry.run else None}


class Stream:
    """Serves `/stream`: one connection per browser."""

    def __init__(self, async_app: AsyncApp, hub: Hub, about: Mapping[str, object]) -> None:
        self._app, self._hub, self._about = async_app, hub, about

    async def open(self, call: Call) -> Client:
        """Check the parameters and register a client; raises BackburnerError before anything is sent."""
        client = Client(call, quiet=call.get("quiet", False))
        runs, cursors = call.get("run", []), call.get("cursor", [])
        for number, run_id in enumerate(runs[:MAX_FOLLOWED]):
            wanted = call._replace(path={"id": run_id})
            run = await self._app.call(lambda app, wanted=wanted: locate(app, wanted))
            offset = position_of(cursors[number], max(1, run.n))[1] if number < len(cursors) else 0
            client.followed.append(Followed(run, offset))
        await self._hub.add(client)
        return client

    async def messages(self, client: Client, still_known: Any) -> AsyncGenerator[bytes]:
        """The events of a stream, until the client goes, the server stops or the credential is revoked."""
        loop = asyncio.get_running_loop()
        hub = self._hub
        after = client.call.get("after", client.call.last_event_id)
        yield b"retry: 2000\n\n"
        now = await self._app.call(lambda app: formatting.iso(app.now()))
        yield _message("hello", {**self._about, "last_event": hub.sent_until, "at": now}, hub.sent_until if after is None else None)
        if after is not None and str(after).lstrip("-").isdecimal():
            missed = await self._app.call(lambda app: _missed(app, int(after)))
            if missed is None:
                client.must_reset = True
            else:
                client.rows = {**missed["rows"], **client.rows}
                client.counts, client.at = client.counts or missed["counts"], client.at or missed["at"]
        client.woken.set()
        sent_at = loop.time()
        while not client.is_over:
            left = max(0.01, COMMENT_SECONDS - (loop.time() - sent_at))
            try:
                async with asyncio.timeout(min(left, _POLL_SECONDS) if client.must_poll else left):
                    await client.woken.wait()
            except TimeoutError:
                if client.must_poll and loop.time() - sent_at < COMMENT_SECONDS:
                    client.woken.set()
                    continue
                if not await still_known():
                    return
                yield b": still here\n\n"
                sent_at = loop.time()
                continue
            client.woken.clear()
            if client.must_check:
                client.must_check = False
                if not await still_known():
                    return
            for message in await self._pending(client):
                yield message
                sent_at = loop.time()
            if client.followed:
                await asyncio.sleep(FLUSH_SECONDS)
        yield _message("bye", {"reason": "restart"})

    async def _pending(self, client: Client) -> list[bytes]:
        """What a client was not sent yet."""
        messages = [_message("ask", {"task": asked}) for asked in client.asks.values()]
        client.asks = {}
        if client.must_reset:  # before the rows, whose number would say that nothing is missing
            client.must_reset = False
            messages.append(_message("reset", {"last_event": self._hub.sent_until}, self._hub.sent_until))
        is_behind = self._hub.is_behind
        if client.rows or client.later or client.is_behind is not is_behind:
            rows, client.rows = client.rows, {}
            later, client.later, client.is_behind = list(client.later), {}, is_behind
            tasks = [found for found in rows.values() if found is not None]
            gone = [task_id for task_id, found in rows.items() if found is None]
            data = {"tasks": tasks, "gone": gone, "later": later, "more": is_behind, "counts": client.counts, "at": client.at}
            messages.append(_message("rows", data, self._hub.sent_until))
        if client.followed:
            client.must_poll = not self._hub.arm(client)  # before reading: what is written afterwards wakes it again
            for followed in list(client.followed):
                piece = await asyncio.to_thread(followed.read)
                if piece is None:
                    continue
                messages.append(_message("log", piece))
                if not piece["live"]:
                    client.followed.remove(followed)
                    await asyncio.to_thread(followed.close)
                else:
                    client.woken.set()  # there may be more
        return messages


def _missed(app: App, after: int) -> dict[str, Any] | None:
    """The rows of tasks that changed since an event; None if that is too much."""
    if app.overview.last_event() - after > _MAX_MISSED_EVENTS:
        return None
    task_ids = {task_id for _, _, task_id in app.overview.events_after(after) if task_id}
    return None if len(task_ids) > _MAX_MISSED_TASKS else {**_found(app, task_ids), "counts": counts(app) if task_ids else {}}


def _message(kind: str, data: object, number: int | None = None) -> bytes:
    start = f"id: {number}\n" if number is not None else ""
    return f"{start}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


async def event_messages(async_app: AsyncApp, after: int) -> AsyncGenerator[bytes]:
    """The event log as server-sent events, from an event on."""
    from backburner.core.task_text import event_json

    yield b"retry: 2000\n\n"
    async for _ in async_app.changes(lambda: COMMENT_SECONDS):
        sent = False
        try:
            while events := await async_app.call(lambda app, after=after: app.queries.events(after)):
                for event in events:
                    yield _message(event.kind, event_json(event), event.event_id)
                after, sent = events[-1].event_id, True
        except BackburnerError:
            return
        if not sent:
            yield b": still here\n\n"
