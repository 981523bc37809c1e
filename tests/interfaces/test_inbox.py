"""`inbox --ack`: with several readers each notice is printed once; a notice that was not printed is shown again."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

import apsw
from conftest import Place, wait_until

from backburner.services.app import open_app

ACK = [sys.executable, "-m", "backburner", "inbox", "--ack"]
LEASE_MS = 31_000


def finish_with_notice(place: Place, *words: str) -> str:
    """The ID of a finished task with a pending notice."""
    task_id = place.run("echo", *words)
    wait_until(lambda: place.status(task_id)["status"] == "completed", "the end")
    return task_id


def start_reader(place: Place, stdout: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(ACK, cwd=place.cwd, env=place.environ, stdin=subprocess.DEVNULL, stdout=stdout, text=True)


def leased(place: Place) -> int:
    with contextlib.closing(apsw.Connection(place.home.ledger)) as ledger:
        ledger.set_busy_timeout(5000)
        return len(ledger.execute("SELECT 1 FROM notices WHERE leased_until IS NOT NULL").fetchall())


@contextlib.contextmanager
def full_pipe() -> Iterator[int]:
    """The writing end of a full pipe: a process that writes to it blocks."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    try:
        yield writing
    finally:
        os.close(reading)
        os.close(writing)


def test_several_readers_at_once_print_each_notice_once(place: Place) -> None:
    tasks = sorted(finish_with_notice(place, str(number)) for number in range(6))
    readers = [start_reader(place, subprocess.PIPE) for _ in range(6)]
    printed = "".join(reader.communicate(timeout=60)[0] for reader in readers)
    assert sorted(re.findall(r"Background task (\S+) completed", printed)) == tasks
    assert place.json("inbox") == []


def test_a_leased_notice_is_printed_once_and_again_if_its_reader_dies(place: Place) -> None:
    task_id = finish_with_notice(place, "hello")
    with full_pipe() as writing:
        reader = start_reader(place, writing)
        try:
            wait_until(lambda: leased(place), "the reader to lease the notice")
            assert place.ok("inbox", "--ack") == ""
        finally:
            reader.send_signal(signal.SIGKILL)
            reader.wait(20)
    assert place.ok("inbox", "--ack") == ""
    with open_app(place.home, place.environ) as app:
        now = app.now()
        app.clock = lambda: now + LEASE_MS
        (notice,) = app.inbox.lease(app.inbox.notices())
        assert notice.task_id == task_id


def test_a_notice_that_could_not_be_printed_is_not_acknowledged(place: Place) -> None:
    task_id = place.ok("run", "--", "true").strip()
    wait_until(lambda: place.status(task_id)["status"] == "completed", "the end")
    for target in ("| true", "> /dev/full"):
        subprocess.run(f"{shlex.join(ACK)} {target}", shell=True, env=place.environ, cwd=place.cwd, capture_output=True, timeout=40)
    notices = place.json("inbox")
    assert isinstance(notices, list) and len(notices) == 1
