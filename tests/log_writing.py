"""Writes logs for tests: a header, numbered lines, and a log that is limited while it grows, as the log writer does it."""

import os
from pathlib import Path

from backburner.execution.output_limit import OutputLimit
from backburner.system.log_file import header

HEADER = header(
    {"Background task": "task_x", "Command": "echo hi", "Approved by": "user at then via cli", "Started": "2026-02-09T14:30:22.000Z"}
)


class LimitedLog:
    """A log that is limited while data is appended to it."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._limit = OutputLimit(str(folder), limit)
        self._log = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT)
        os.lseek(self._log, 0, os.SEEK_END)

    def append(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._log, data) :]
        self._log = self._limit.check(self._log)

    def finish(self) -> None:
        os.close(self._log)
        self._limit.finish()


def numbered(first: int, last: int) -> bytes:
    """Numbered lines of sixteen bytes each, so that a position in the log can be computed."""
    return b"".join(b"line %010d\n" % number for number in range(first, last))
