"""Searches a server's output for the line that says it is ready. Neither the pattern nor the output is trusted."""

import re
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from backburner.system.log_file import Log

_MAX_LINE_BYTES = 4096
_MATCH_TIMEOUT = 0.5  # seconds of CPU time that one check may spend in the pattern


class ReadyPattern:
    """Searches the output of a run; each line is checked once."""

    def __init__(self, folder: str, pattern: str) -> None:
        self._folder, self._pattern = folder, re.compile(pattern)
        self._cursor = 0
        self._rest = b""
        self.more = False  # whether there is output that was not checked yet

    def check(self) -> bool | None:
        """Whether a line of the next chunk of output matches; None if the pattern takes too long."""
        self.more = False
        try:
            with Log(self._folder) as log:
                for after, piece in log.chunks(log.position(self._cursor)):
                    self._cursor, self.more = log.cursor(after), after < log.size
                    *lines, rest = (self._rest + piece).split(b"\n")
                    self._rest = rest[:_MAX_LINE_BYTES]
                    with _cpu_time_limit(_MATCH_TIMEOUT):
                        return any(self._matches(line) for line in (*lines, self._rest))
        except FileNotFoundError:
            return False
        except TimeoutError:
            return None
        return False

    def _matches(self, line: bytes) -> bool:
        return self._pattern.search(line[:_MAX_LINE_BYTES].decode("utf-8", "replace")) is not None


@contextmanager
def _cpu_time_limit(seconds: float) -> Generator[None]:
    """Raise TimeoutError if the block takes more CPU time. Works only in the main thread, in which the engine's loop runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError

    before, started = signal.signal(signal.SIGVTALRM, stop), time.process_time()
    left, interval = signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        if left:  # restart a timer that was active before
            signal.setitimer(signal.ITIMER_VIRTUAL, max(1e-6, left - (time.process_time() - started)), interval)
