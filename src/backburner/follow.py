"""Following one task: its output as it is written, and its end. For doors that watch while a person looks on."""

import select
import sys
import time
from collections.abc import Iterator

from backburner.errors import TaskNotFound
from backburner.models import Entry
from backburner.output import Log
from backburner.runtime import Runtime
from backburner.watch import FileWatch

_PULSE_SECONDS = 1.0


class Follower:
    """`pieces()` yields output as it comes and an empty piece now and then; `entry` is the task as last seen."""

    def __init__(self, runtime: Runtime, entry: Entry, *, raw: bool = False, lines: int | None = None) -> None:
        self.entry = entry
        self._runtime, self._raw, self._lines = runtime, raw, lines

    def now(self) -> Iterator[bytes]:
        """What there is, without waiting; nothing is written, so a home that can only be read will do."""
        with Log(self._runtime.folder(self.entry)) as log:
            position, start = self._start(log)
            yield start
            for _, piece in log.chunks(position):
                yield piece

    def pieces(self, timeout: float | None = None) -> Iterator[bytes]:
        """Until the task has ended and all of its output was given, or the time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        ear, watch = self._runtime.listen(), FileWatch()
        log: Log | None = None
        position = 0
        try:
            while True:
                self._look()
                if log is None and self.entry.run and (log := self._open()):
                    position, start = self._start(log)
                    yield start
                if log:
                    watch.arm(self._runtime.log_path(self.entry))
                    for after, piece in log.chunks(position):
                        position = after
                        yield piece
                if not self.entry.live:
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

    def _look(self) -> None:
        self._runtime.refresh()
        found = self._runtime.store.show(self.entry.task.task_id)
        if found is None:
            raise TaskNotFound(task_id=self.entry.task.task_id)
        self.entry = found

    def _open(self) -> Log | None:
        try:
            log = Log(self._runtime.folder(self.entry))
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
        return (0 if self._raw else log.body_start()), b""
