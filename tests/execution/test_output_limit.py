"""A log that grows without end keeps its beginning and its end, while it grows and when it is finished."""

import errno
import os
from pathlib import Path

import pytest
from log_writing import LimitedLog, numbered

from backburner.execution import output_limit
from backburner.execution.output_limit import OutputLimit
from backburner.system.log_file import Log, cut_marker

LIMIT = 64 * 1024
HEAD = LIMIT // 2


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
def without_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a file system without support for holes."""
    monkeypatch.setattr(output_limit, "_punch", lambda *_: False)


def test_a_log_below_the_limit_is_not_changed(tmp_path: Path) -> None:
    log = LimitedLog(tmp_path, LIMIT)
    log.append(b"x" * LIMIT)
    log.finish()
    assert (tmp_path / "output.log").read_bytes() == b"x" * LIMIT
    assert os.listdir(tmp_path) == ["output.log"]


def test_a_growing_log_keeps_beginning_and_end_within_the_limit_on_disk(tmp_path: Path) -> None:
    log, sent = LimitedLog(tmp_path, LIMIT), b""
    for n in range(50):
        piece = numbered(n * 1000, n * 1000 + 1000)
        sent += piece
        log.append(piece)
        assert on_disk(tmp_path) <= LIMIT + 4096
    assert os.stat(tmp_path / "output.log").st_size == len(sent)
    shown = content(tmp_path)
    head, end = shown.split(cut_marker(marked_bytes(shown)))
    assert head == sent[:HEAD]
    assert sent.endswith(end) and len(end) > HEAD - 8192
    assert len(head) + marked_bytes(shown) + len(end) == len(sent)


def test_a_finished_log_is_plain_text_with_a_marker(tmp_path: Path) -> None:
    log, sent = LimitedLog(tmp_path, LIMIT), numbered(0, 20_000)
    log.append(sent)
    log.finish()
    written = (tmp_path / "output.log").read_bytes()
    head, end = written.split(cut_marker(marked_bytes(written)))
    assert head == sent[:HEAD]
    assert sent.endswith(end) and len(end) > HEAD - 8192
    assert len(head) + marked_bytes(written) + len(end) == len(sent)
    assert b"\0" not in written
    assert content(tmp_path) == written


@pytest.mark.parametrize("more", [0, 2048, 3540, 3583, 3584])
def test_finishing_a_log_twice_has_the_effect_of_once(tmp_path: Path, more: int) -> None:
    for data in (numbered(0, 20_000) + b"x" * more, b""):
        log = LimitedLog(tmp_path, LIMIT)
        log.append(data)
        log.finish()
        OutputLimit(str(tmp_path), LIMIT).finish()
    written = (tmp_path / "output.log").read_bytes()
    head, end = written.split(cut_marker(marked_bytes(written)))
    assert len(head) + marked_bytes(written) + len(end) == 20_000 * 16 + more


def test_another_process_finishes_a_log_the_same_way(tmp_path: Path) -> None:
    sent = numbered(0, 20_000)
    LimitedLog(tmp_path, LIMIT).append(sent[:200_000])
    second = LimitedLog(tmp_path, LIMIT)
    second.append(sent[200_000:])
    second.finish()
    written = (tmp_path / "output.log").read_bytes()
    head, end = written.split(cut_marker(marked_bytes(written)))
    assert (head, sent.endswith(end), len(head) + marked_bytes(written) + len(end)) == (sent[:HEAD], True, len(sent))


@pytest.mark.parametrize("limit", [LIMIT // 4, LIMIT * 2, LIMIT * 100])
def test_a_log_cut_with_another_limit_is_finished_without_zeros(tmp_path: Path, limit: int) -> None:
    LimitedLog(tmp_path, LIMIT).append(numbered(0, 20_000))
    second = LimitedLog(tmp_path, limit)
    second.append(b"")
    second.finish()
    written = (tmp_path / "output.log").read_bytes()
    assert b"\0" not in written
    assert len(written) <= LIMIT + 4096 + len(cut_marker(10**6))
    assert marked_bytes(written) > 0


@pytest.mark.usefixtures("without_holes")
def test_without_holes_the_log_is_replaced_by_a_shorter_one(tmp_path: Path) -> None:
    log, sent = LimitedLog(tmp_path, LIMIT), numbered(0, 20_000)
    log.append(sent)
    assert os.stat(tmp_path / "output.log").st_size <= LIMIT
    log.append(b"after the cut...")
    log.finish()
    written = (tmp_path / "output.log").read_bytes()
    head, end = written.split(cut_marker(marked_bytes(written)))
    assert head == sent[:HEAD]
    assert (sent + b"after the cut...").endswith(end) and len(end) > LIMIT // 4
    assert len(head) + marked_bytes(written) + len(end) == len(sent) + 16


@pytest.mark.usefixtures("without_holes")
@pytest.mark.parametrize("same_process", [True, False])
def test_without_holes_the_marker_counts_all_cuts(tmp_path: Path, same_process: bool) -> None:
    log, sent = LimitedLog(tmp_path, LIMIT), b""
    for n in range(4):
        log = log if same_process else LimitedLog(tmp_path, LIMIT)
        piece = numbered(n * 10_000, n * 10_000 + 10_000)
        sent += piece
        log.append(piece)
    log.finish()
    written = (tmp_path / "output.log").read_bytes()
    kept = len(written) - len(cut_marker(marked_bytes(written)))
    assert kept + marked_bytes(written) == len(sent)


@pytest.mark.usefixtures("without_holes")
def test_without_holes_a_log_that_was_cut_elsewhere_is_not_cut_again(tmp_path: Path) -> None:
    LimitedLog(tmp_path, 2 * LIMIT).append(numbered(0, 20_000))
    before = (tmp_path / "output.log").read_bytes()
    LimitedLog(tmp_path, LIMIT).append(b"the end")
    assert (tmp_path / "output.log").read_bytes() == before + b"the end"


@pytest.mark.usefixtures("without_holes")
def test_a_log_that_cannot_be_replaced_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    log, sent = LimitedLog(tmp_path, LIMIT), numbered(0, 20_000)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        log.append(sent)
    assert (tmp_path / "output.log").read_bytes() == sent


@pytest.mark.parametrize("holes", [True, False])
@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("end", [b"", b"no newline"])
def test_the_lines_of_a_cut_log_are_counted_with_those_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool, same_process: bool, end: bytes
) -> None:
    if not holes:
        monkeypatch.setattr(output_limit, "_punch", lambda *_: False)
    log = LimitedLog(tmp_path, LIMIT)
    for n in range(5):
        log = log if same_process else LimitedLog(tmp_path, LIMIT)
        log.append(numbered(n * 10_000, n * 10_000 + 10_000) + end * (n == 4))
    wanted = 50_000 + bool(end)
    with Log(str(tmp_path)) as growing:
        assert growing.count_lines() == wanted
    log.finish()
    with Log(str(tmp_path)) as finished:
        assert finished.count_lines() == wanted


def test_the_removed_lines_of_a_long_flood_are_all_counted(tmp_path: Path) -> None:
    log = LimitedLog(tmp_path, LIMIT)
    for n in range(700):
        log.append(numbered(n * 500, n * 500 + 500))
    with Log(str(tmp_path)) as growing:
        assert growing.count_lines() == 350_000
    log.finish()
    with Log(str(tmp_path)) as finished:
        assert finished.count_lines() == 350_000


def test_the_record_of_removed_lines_is_not_written_through_another_name(tmp_path: Path) -> None:
    log, other = LimitedLog(tmp_path, LIMIT), tmp_path / "other"
    log.append(numbered(0, 10_000))
    other.write_text("1 2 3 4 5")
    (tmp_path / ".capped").unlink()
    os.link(other, tmp_path / ".capped")
    log.append(numbered(10_000, 20_000))
    assert other.read_text() == "1 2 3 4 5"
    assert (tmp_path / ".capped").read_text() != "1 2 3 4 5"
