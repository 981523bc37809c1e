"""Follows one task: its output as it is written, and its end."""

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator

from backburner.core.models import Entry
from backburner.services.app import App
from backburner.system.file_watch import FileWatch
from backburner.system.log_file import NAME, Log

_PULSE_SECONDS = 1.0


class LogFollower:
    """`pieces()` yields output as it comes and an empty piece now and then; `entry` is the task as last seen.

    A task that is restarted is followed from run to run. `cursor` says how far it came.
    """

    def __init__(
        self, app: App, entry: Entry, *, raw: bool = False, lines: int | None = None, n: int | None = None, since: int = 0
    ) -> None:
        self.entry = entry
        self.n, self.cursor = n or entry.task.run_count, since
        self._app, self._raw, self._lines = app, raw, lines

    def now(self) -> Iterator[bytes]:
        """What there is, without waiting; nothing is written, so a home that can only be read will do."""
        while True:
            with contextlib.ExitStack() as held:
                try:
                    log = held.enter_context(Log(self._folder()))
                except FileNotFoundError:
                    if self._last:
                        raise
                else:
                    position, start = self._start(log)
                    self.cursor = log.cursor(position)
                    yield start
                    for after, piece in log.chunks(position):
                        self.cursor = log.cursor(after)
                        yield piece
            if self._last:
                return
            self._next_run()

    def pieces(self, timeout: float | None = None) -> Iterator[bytes]:
        """Until the task has ended and all of its output was given, or the time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        ear, watch = self._app.changes.listen(), FileWatch()
        log: Log | None = None
        position = 0
        try:
            while True:
                self._look()
                if log is None and self.entry.run and (log := self._open()):
                    position, start = self._start(log)
                    yield start
                if log:
                    watch.arm(os.path.join(self._folder(), NAME))
                    for after, piece in log.chunks(position):
                        position = after
                        yield piece
                    self.cursor = log.cursor(position)
                if not self._last:
                    if log:
                        log.close()
                    log = None
                    self._next_run()
                    continue
                if not self.entry.is_live:
                    return
                yield b""
                left = _PULSE_SECONDS if deadline is None else min(_PULSE_SECONDS, deadline - time.monotonic())
                if left <= 0:
                    return
                if log is None or watch.works:
                    select.select([ear, watch] if watch.works else [ear], [], [], left)
                else:
                    watch.wait(left)
                ear.drain()
                if watch.works:
                    watch.fired()
        finally:
            if log:
                log.close()
            watch.close()
            ear.close()

    @property
    def _last(self) -> bool:
        return self.n >= self.entry.task.run_count

    def _next_run(self) -> None:
        self.n, self.cursor, self._lines = self.n + 1, 0, None

    def _folder(self) -> str:
        return self._app.runs.folder(self.entry, self.n)

    def _look(self) -> None:
        self._app.supervisor.ensure_supervised()
        self.entry = self._app.queries.get(self.entry.task.task_id)
        self.n = self.n or self.entry.task.run_count

    def _open(self) -> Log | None:
        try:
            log = Log(self._folder())
        except FileNotFoundError:
            return None
        if log.size:
            return log
        log.close()  # its header is about to be written
        return None

    def _start(self, log: Log) -> tuple[int, bytes]:
        """Where to go on from, and what comes first."""
        if self._lines is not None:
            end = log.size
            return end, log.tail(self._lines, longest=sys.maxsize, end=end)
        if self._raw and not self.cursor:
            return 0, b""
        return log.position(self.cursor), b""
