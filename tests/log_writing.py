"""Logs for tests: a header, numbered lines, and a process that appends as `cat` does for a command."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import wait_until

from backburner.system.log_file import header

HEADER = header(
    {"Background task": "task_x", "Command": "echo hi", "Approved by": "user at then via cli", "Started": "2026-02-09T14:30:22.000Z"}
)


@contextmanager
def writing(folder: Path) -> Iterator[tuple[int, Callable[[bytes], None]]]:
    """The pid of a process that appends to the log, as `cat` does for a command, and a function that makes it append."""
    path = folder / "output.log"
    with open(path, "ab") as log:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
    assert child.stdin is not None

    def append(data: bytes) -> None:
        assert child.stdin is not None
        child.stdin.write(data)
        child.stdin.flush()
        wait_until(lambda: path.read_bytes().endswith(data[-4096:]), "the output to arrive")

    yield child.pid, append
    child.stdin.close()
    assert child.wait() == 0


def numbered(first: int, last: int) -> bytes:
    """Lines of sixteen bytes each, so that positions can be recognized."""
    return b"".join(b"line %010d\n" % number for number in range(first, last))
