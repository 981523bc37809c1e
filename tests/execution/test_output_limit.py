"""A log that grows without end keeps its beginning and its end, while it grows and when it is finished."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import wait_until

from backburner.execution import output_limit
from backburner.execution.output_limit import OutputLimit
from backburner.system import processes
from backburner.system.log_file import Log, cut_marker

LIMIT = 64 * 1024
HEAD = LIMIT // 2


def numbered(first: int, last: int) -> bytes:
    """Lines of sixteen bytes each, so that it is clear what is missing."""
    return b"".join(b"line %010d\n" % n for n in range(first, last))


def append(folder: Path, data: bytes) -> None:
    with open(folder / "output.log", "ab") as file:
        file.write(data)


def content(folder: Path) -> bytes:
    with Log(str(folder)) as log:
        return b"".join(piece for _, piece in log.chunks(0))


def on_disk(folder: Path) -> int:
    return os.stat(folder / "output.log").st_blocks * 512


def marked_bytes(data: bytes) -> int:
    """How many bytes are missing according to the markers."""
    pieces = data.split(b"[backburner: ")[1:]
    return sum(int(piece.split(b" ")[0].replace(b",", b"")) for piece in pieces)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """A process that appends to the log, as `cat` does for a command."""
    with open(tmp_path / "output.log", "ab") as log:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log)
    assert child.stdin is not None

    def feed(data: bytes) -> None:
        assert child.stdin is not None
        path = tmp_path / "output.log"
        child.stdin.write(data)
        child.stdin.flush()
        end = data[-16:]
        wait_until(lambda: path.read_bytes()[-16:] == end, "the output to arrive")

    feed.process = processes.identify(child.pid)  # type: ignore[attr-defined]
    yield feed
    child.stdin.close()
    assert child.wait() == 0


@pytest.fixture
def without_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a file system without support for holes."""
    monkeypatch.setattr(output_limit, "_punch", lambda *_: False)


def test_a_log_below_the_limit_is_not_changed(tmp_path: Path) -> None:
    one = OutputLimit(str(tmp_path), LIMIT, None)
    append(tmp_path, b"x" * LIMIT)
    one.check()
    one.finish()
    assert (tmp_path / "output.log").read_bytes() == b"x" * LIMIT
    assert os.listdir(tmp_path) == ["output.log"]


def test_a_missing_log_is_checked_again(tmp_path: Path) -> None:
    one = OutputLimit(str(tmp_path), LIMIT, None)
    assert one.check() > 0
    one.finish()
    assert os.listdir(tmp_path) == []


def test_a_growing_log_keeps_beginning_and_end_within_the_limit_on_disk(tmp_path: Path) -> None:
    one, sent = OutputLimit(str(tmp_path), LIMIT, None), b""
    for n in range(50):
        piece = numbered(n * 1000, n * 1000 + 1000)
        sent += piece
        append(tmp_path, piece)
        one.check()
        assert on_disk(tmp_path) <= LIMIT + 4096
    assert os.stat(tmp_path / "output.log").st_size == len(sent)
    shown = content(tmp_path)
    head, end = shown.split(cut_marker(marked_bytes(shown)))
    assert head == sent[:HEAD]
    assert sent.endswith(end) and len(end) > HEAD - 8192
    assert len(head) + marked_bytes(shown) + len(end) == len(sent)


def test_a_finished_log_is_plain_text_with_a_marker(tmp_path: Path) -> None:
    one, sent = OutputLimit(str(tmp_path), LIMIT, None), numbered(0, 20_000)
    append(tmp_path, sent)
    one.check()
    one.finish()
    written = (tmp_path / "output.log").read_bytes()
    head, end = written.split(cut_marker(marked_bytes(written)))
    assert head == sent[:HEAD]
    assert sent.endswith(end) and len(end) > HEAD - 8192
    assert len(head) + marked_bytes(written) + len(end) == len(sent)
    assert b"\0" not in written
    assert content(tmp_path) == written


@pytest.mark.parametrize("more", [0, 2048, 3540, 3583, 3584])
def test_finishing_a_log_twice_has_the_effect_of_once(tmp_path: Path, more: int) -> None:
    append(tmp_path, numbered(0, 20_000) + b"x" * more)
    for _ in range(2):
        one = OutputLimit(str(tmp_path), LIMIT, None)
        one.check()
        one.finish()
        one.finish()
    written = (tmp_path / "output.log").read_bytes()
    head, end = written.split(cut_marker(marked_bytes(written)))
    assert len(head) + marked_bytes(written) + len(end) == 20_000 * 16 + more


def test_another_process_finishes_a_log_the_same_way(tmp_path: Path) -> None:
    sent = numbered(0, 20_000)
    append(tmp_path, sent[:200_000])
    OutputLimit(str(tmp_path), LIMIT, None).check()
    append(tmp_path, sent[200_000:])
    second = OutputLimit(str(tmp_path), LIMIT, None)
    second.check()
    second.finish()
    written = (tmp_path / "output.log").read_bytes()
    head, end = written.split(cut_marker(marked_bytes(written)))
    assert (head, sent.endswith(end), len(head) + marked_bytes(written) + len(end)) == (sent[:HEAD], True, len(sent))


@pytest.mark.parametrize("limit", [LIMIT // 4, LIMIT * 2, LIMIT * 100])
def test_a_log_cut_with_another_limit_is_finished_without_zeros(tmp_path: Path, limit: int) -> None:
    append(tmp_path, numbered(0, 20_000))
    OutputLimit(str(tmp_path), LIMIT, None).check()
    second = OutputLimit(str(tmp_path), limit, None)
    second.check()
    second.finish()
    written = (tmp_path / "output.log").read_bytes()
    assert b"\0" not in written
    assert len(written) <= LIMIT + 4096 + len(cut_marker(10**6))
    assert marked_bytes(written) > 0


def test_a_fast_growing_log_is_checked_sooner(tmp_path: Path) -> None:
    one = OutputLimit(str(tmp_path), 1 << 30, None)
    append(tmp_path, b"x" * 10)
    quiet = one.check()
    append(tmp_path, b"x" * (2 << 20))
    assert one.check() < quiet


@pytest.mark.usefixtures("without_holes")
def test_without_holes_the_end_is_moved_while_the_writer_is_stopped(tmp_path: Path, writer: Callable[[bytes], None]) -> None:
    one, sent = OutputLimit(str(tmp_path), LIMIT, writer.process.pid), numbered(0, 20_000)  # type: ignore[attr-defined]
    writer(sent)
    one.check()
    assert os.stat(tmp_path / "output.log").st_size <= LIMIT
    writer(b"after the cut...")
    one.finish()
    written = (tmp_path / "output.log").read_bytes()
    head, end = written.split(cut_marker(marked_bytes(written)))
    assert head == sent[:HEAD]
    assert (sent + b"after the cut...").endswith(end) and len(end) > LIMIT // 4
    assert len(head) + marked_bytes(written) + len(end) == len(sent) + 16


@pytest.mark.usefixtures("without_holes")
def test_without_holes_the_marker_counts_all_cuts(tmp_path: Path, writer: Callable[[bytes], None]) -> None:
    one, sent = OutputLimit(str(tmp_path), LIMIT, writer.process.pid), b""  # type: ignore[attr-defined]
    for n in range(4):
        piece = numbered(n * 10_000, n * 10_000 + 10_000)
        sent += piece
        writer(piece)
        one.check()
    one.finish()
    written = (tmp_path / "output.log").read_bytes()
    kept = len(written) - len(cut_marker(marked_bytes(written)))
    assert kept + marked_bytes(written) == len(sent)


@pytest.mark.usefixtures("without_holes")
def test_without_holes_and_writer_nothing_is_cut(tmp_path: Path) -> None:
    one, sent = OutputLimit(str(tmp_path), LIMIT, None), numbered(0, 20_000)
    append(tmp_path, sent)
    one.check()
    one.finish()
    assert (tmp_path / "output.log").read_bytes() == sent
