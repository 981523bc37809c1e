"""Follows the output of one task while it is written, until the task ends."""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator

from backburner.core.errors import HostUnreachable
from backburner.core.light_typing import TYPE_CHECKING
from backburner.core.models import Entry
from backburner.services.app import App
from backburner.system.file_watch import FileWatch
from backburner.system.log_file import NAME, Log

if TYPE_CHECKING:
    from typing import TypeGuard

    from backburner.system.remote_log import RemoteLog

_POLL_INTERVAL_SECONDS = 1.0
_REFRESH_SECONDS = 0.1  # between two looks at a task on another host while it writes


class LogFollower:
    """`pieces()` yields new output, and an empty piece at least once a second; `entry` is the latest state of the task.

    A restarted task is followed from run to run. `cursor` is the position in the log. `tell` is called with a sentence if the host of a
    run does not answer.
    """

    def __init__(
        self,
        app: App,
        entry: Entry,
        *,
        raw: bool = False,
        lines: int | None = None,
        n: int | None = None,
        since: int = 0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.entry, self._tell, self._told = entry, tell, ""
        self._refreshed_at = float("-inf")
        self.n, self.cursor = n or entry.task.run_count, since
        self._app, self._raw, self._lines = app, raw, lines

    def now(self) -> Iterator[bytes]:
        """Yield the existing output without waiting. Works on a read-only home, because nothing is written."""
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    log = stack.enter_context(self._opened())
                except FileNotFoundError:
                    if self._is_last_run:
                        raise
                else:
                    position, start = self._start(log)
                    self.cursor = log.cursor(position)
                    yield start
                    for after, piece in log.chunks(position):
                        self.cursor = log.cursor(after)
                        yield piece
            if self._is_last_run:
                return
            self._next_run()

    def pieces(self, timeout: float | None = None) -> Iterator[bytes]:
        """Yield output until the task has ended and all output was read, or `timeout` seconds have passed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        listener, watch = self._app.changes.listen(), FileWatch()
        log: Log | None = None
        position = 0
        try:
            while True:
                self._refresh(is_remote=_is_remote(log))
                if log is None and self.entry.run and (log := self._open()):
                    position, start = self._start(log)
                    yield start
                if _is_remote(log) and (log.growth is None or not self._is_last_run or not self.entry.is_live):
                    log = self._open_again(log)
                if log:
                    if not _is_remote(log):
                        watch.arm(os.path.join(self._folder(), NAME))
                    try:
                        for after, piece in log.chunks(position):
                            position = after
                            yield piece
                    except HostUnreachable as error:  # it is asked again
                        self._note(str(error))
                    self.cursor = log.cursor(position)
                if not self._is_last_run:
                    if log:
                        log.close()
                    log = None
                    self._next_run()
                    continue
                if not self.entry.is_live:
                    return
                yield b""
                left = _POLL_INTERVAL_SECONDS if deadline is None else min(_POLL_INTERVAL_SECONDS, deadline - time.monotonic())
                if left <= 0:
                    return
                if _is_remote(log):
                    self._wait_for_growth(log, position, left, listener.fileno())
                elif log is None or watch.works:
                    select.select([listener, watch] if watch.works else [listener], [], [], left)
                else:
                    watch.wait(left)
                if listener.drain():
                    self._refreshed_at = float("-inf")
                if watch.works:
                    watch.fired()
        finally:
            if log:
                log.close()
            watch.close()
            listener.close()

    @property
    def _is_last_run(self) -> bool:
        return self.n >= self.entry.task.run_count

    def _next_run(self) -> None:
        self.n, self.cursor, self._lines = self.n + 1, 0, None

    def _folder(self) -> str:
        return self._app.runs.folder(self.entry, self.n)

    def _wait_for_growth(self, log: "RemoteLog", position: int, seconds: float, listener: int) -> None:
        """Wait for more output of a run on another host."""
        log.forget(position)
        if log.growth is None:
            select.select([listener], [], [], seconds)
            return
        log.growth.wait(seconds, listener)
        if log.growth.is_silent:
            self._note(f"The host of {self.entry.task.task_id} does not answer; waiting for it.")

    def _note(self, note: str) -> None:
        if note and note != self._told:
            self._told = note
            self._tell(note)

    def _refresh(self, *, is_remote: bool = False) -> None:
        """Read the state of the task. While output of another host arrives, not for every piece of it."""
        if is_remote and time.monotonic() < self._refreshed_at + _REFRESH_SECONDS:
            return
        self._refreshed_at = time.monotonic()
        self._app.supervisor.ensure_supervised()
        self.entry = self._app.queries.get(self.entry.task.task_id)
        self.n = self.n or self.entry.task.run_count

    def _opened(self) -> Log:
        log = self._app.runs.open_log(self.entry, self.n)
        self._note(log.note)
        return log

    def _open_again(self, log: "RemoteLog") -> Log:
        """Read all that is known now of a log whose run has ended, or whose host did not answer. Positions stay valid."""
        try:
            newer = self._opened()
        except FileNotFoundError:
            return log
        log.close()
        return newer

    def _open(self) -> Log | None:
        try:
            log = self._opened()
        except FileNotFoundError:
            return None
        if log.size:
            return log
        log.close()  # its header is not written yet
        return None

    def _start(self, log: Log) -> tuple[int, bytes]:
        """Return the position to continue from, and the output to show first."""
        if self._lines is not None:
            end = log.size
            return end, log.tail(self._lines, longest=sys.maxsize, end=end)
        if self._raw and not self.cursor:
            return 0, b""
        return log.position(self.cursor), b""


def _is_remote(log: Log | None) -> "TypeGuard[RemoteLog]":
    return log is not None and log.is_remote
