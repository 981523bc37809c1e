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
from conftest import HomeCli, wait_until

from backburner.services.app import open_app

ACK = [sys.executable, "-m", "backburner", "inbox", "--ack"]
LEASE_MS = 31_000


def finish_with_notice(home_cli: HomeCli, *words: str) -> str:
    """The ID of a finished task with a pending notice."""
    task_id = home_cli.run("echo", *words)
    wait_until(lambda: home_cli.status(task_id)["status"] == "completed", "the end")
    return task_id


def start_reader(home_cli: HomeCli, stdout: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(ACK, cwd=home_cli.cwd, env=home_cli.environ, stdin=subprocess.DEVNULL, stdout=stdout, text=True)


def leased(home_cli: HomeCli) -> int:
    with contextlib.closing(apsw.Connection(home_cli.home.ledger)) as ledger:
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


def test_several_readers_at_once_print_each_notice_once(home_cli: HomeCli) -> None:
    tasks = sorted(finish_with_notice(home_cli, str(number)) for number in range(6))
    readers = [start_reader(home_cli, subprocess.PIPE) for _ in range(6)]
    printed = "".join(reader.communicate(timeout=60)[0] for reader in readers)
    assert sorted(re.findall(r"Background task (\S+) completed", printed)) == tasks
    assert home_cli.json("inbox") == []


def test_a_leased_notice_is_printed_once_and_again_if_its_reader_dies(home_cli: HomeCli) -> None:
    task_id = finish_with_notice(home_cli, "hello")
    with full_pipe() as writing:
        reader = start_reader(home_cli, writing)
        try:
            wait_until(lambda: leased(home_cli), "the reader to lease the notice")
            assert home_cli.ok("inbox", "--ack") == ""
        finally:
            reader.send_signal(signal.SIGKILL)
            reader.wait(20)
    assert home_cli.ok("inbox", "--ack") == ""
    with open_app(home_cli.home, home_cli.environ) as app:
        now = app.now()
        app.clock = lambda: now + LEASE_MS
        (notice,) = app.inbox.lease(app.inbox.notices())
        assert notice.task_id == task_id


def test_a_notice_that_could_not_be_printed_is_not_acknowledged(home_cli: HomeCli) -> None:
    task_id = home_cli.ok("run", "--", "true").strip()
    wait_until(lambda: home_cli.status(task_id)["status"] == "completed", "the end")
    for target in ("| true", "> /dev/full"):
        subprocess.run(f"{shlex.join(ACK)} {target}", shell=True, env=home_cli.environ, cwd=home_cli.cwd, capture_output=True, timeout=40)
    notices = home_cli.json("inbox")
    assert isinstance(notices, list) and len(notices) == 1


def test_of_many_notices_the_first_lines_are_printed(home_cli: HomeCli) -> None:
    ids = [home_cli.run("seq", "30") for _ in range(4)]
    home_cli.ok("wait", *ids)
    assert home_cli.ok("inbox", "--read").count("\n") == 4 * 10
    assert f"… 22 more lines: backburner logs {ids[0]}" in home_cli.ok("inbox", "--read")
    assert all(str(notice["text"]).endswith("\n29\n30") for notice in home_cli.json("inbox", "--read"))  # type: ignore[union-attr, index, call-overload]
