"""Looks for the line by which a server says that it is ready. The pattern is somebody else's, and so is the output."""

import re
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from backburner.system.log_file import Log

_LONGEST_LINE = 4096
_MATCH_TIMEOUT = 0.5  # seconds of CPU time that one look may spend in the pattern


class ReadyPattern:
    """The output of a run, each line looked at once."""

    def __init__(self, folder: str, pattern: str) -> None:
        self._folder, self._pattern = folder, re.compile(pattern)
        self._cursor = 0
        self._rest = b""
        self.more = False  # whether there is output that was not looked at yet

    def look(self) -> bool | None:
        """Whether a line of the next piece of output fits; None where the pattern takes for ever to tell."""
        self.more = False
        try:
            with Log(self._folder) as log:
                for after, piece in log.chunks(log.position(self._cursor)):
                    self._cursor, self.more = log.cursor(after), after < log.size
                    *lines, rest = (self._rest + piece).split(b"\n")
                    self._rest = rest[:_LONGEST_LINE]
                    with _limited(_MATCH_TIMEOUT):
                        return any(self._fits(line) for line in (*lines, self._rest))
        except FileNotFoundError:
            return False
        except TimeoutError:
            return None
        return False

    def _fits(self, line: bytes) -> bool:
        return self._pattern.search(line[:_LONGEST_LINE].decode("utf-8", "replace")) is not None


@contextmanager
def _limited(seconds: float) -> Generator[None]:
    """Raise TimeoutError in what takes more CPU time. Only the main thread can be stopped like that: the engine's loop runs in it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError

    before, began = signal.signal(signal.SIGVTALRM, stop), time.process_time()
    left, interval = signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        if left:  # somebody else's timer goes on
            signal.setitimer(signal.ITIMER_VIRTUAL, max(1e-6, left - (time.process_time() - began)), interval)
