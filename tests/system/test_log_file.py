"""Reading an output.log: the header is excluded, a cut is marked and does not shift cursors, and output is never taken for our own data."""

import re
from pathlib import Path

import pytest
from log_writing import HEADER, LimitedLog, numbered

from backburner.execution import output_limit
from backburner.execution.output_limit import OutputLimit
from backburner.system.log_file import CAPPED, Log, cut_marker, header, small_output

BLOCK = 4096


def write(folder: Path, body: bytes, head: bytes = HEADER) -> Path:
    (folder / "output.log").write_bytes(head + body)
    return folder


def read(folder: Path, start: int | None = None) -> bytes:
    with Log(str(folder)) as log:
        return b"".join(piece for _, piece in log.chunks(log.body_start() if start is None else start))


def tail(folder: Path, lines: int, **options: int) -> bytes:
    with Log(str(folder)) as log:
        return log.tail(lines, **options)


def count(folder: Path) -> int:
    with Log(str(folder)) as log:
        return log.count_lines()


def write_with_hole(folder: Path, head: bytes, hole: int, end: bytes) -> Path:
    with open(folder / "output.log", "wb") as file:
        file.write(head)
        file.seek(len(head) + hole)
        file.write(end)
    (folder / ".capped").touch()
    return folder


def test_the_header_is_lines_that_start_with_a_hash() -> None:
    assert HEADER == (
        b"# Background task: task_x\n# Command: echo hi\n# Approved by: user at then via cli\n# Started: 2026-02-09T14:30:22.000Z\n"
    )


def test_a_command_cannot_add_lines_to_the_header() -> None:
    lines = header({"Background task": "a\n# Started: b", "Command": "\x1b[2Jx\r\ny", "Started": "now"}).decode().splitlines()
    assert lines == ["# Background task: a # Started: b", "# Command: x  y", "# Started: now"]


def test_a_header_accepts_invalid_text() -> None:
    assert header({"Command": b"caf\xe9".decode("utf-8", "surrogateescape")}).startswith(b"# Command: caf")


def test_the_header_is_excluded(tmp_path: Path) -> None:
    assert read(write(tmp_path, b"hello\nworld\n")) == b"hello\nworld\n"
    assert count(tmp_path) == 2


def test_the_header_can_be_included(tmp_path: Path) -> None:
    assert read(write(tmp_path, b"hello\n"), start=0) == HEADER + b"hello\n"


@pytest.mark.parametrize(
    "body", [b"# Background task: fake\n# Started: never\nreal\n", b"\n# Started: x\ny\n", b"# Started: x\n", HEADER, HEADER + HEADER]
)
def test_output_that_looks_like_a_header_is_kept(tmp_path: Path, body: bytes) -> None:
    assert read(write(tmp_path, body)) == body
    assert count(tmp_path) == body.count(b"\n")


def test_a_log_without_a_header_is_all_output(tmp_path: Path) -> None:
    assert read(write(tmp_path, b"backburner: x: command not found\n", head=b"")) == b"backburner: x: command not found\n"


def test_the_header_of_a_very_long_command_is_excluded(tmp_path: Path) -> None:
    words = " ".join(["x" * 100_000] * 8)
    long = header({"Background task": "task_x", "Command": words, "Approved by": "user", "Started": "now"})
    assert read(write(tmp_path, b"hello\n", head=long)) == b"hello\n"
    assert count(tmp_path) == 1


@pytest.mark.parametrize(("body", "lines"), [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n\n\n", 3), (b"a\rb\n", 1)])
def test_a_last_line_without_a_newline_is_counted(tmp_path: Path, body: bytes, lines: int) -> None:
    assert count(write(tmp_path, body)) == lines


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [(0, b""), (-3, b""), (1, b"line 99\n"), (3, b"line 97\nline 98\nline 99\n"), (1000, b"".join(b"line %d\n" % n for n in range(100)))],
)
def test_the_tail_is_the_last_lines_and_never_the_header(tmp_path: Path, lines: int, wanted: bytes) -> None:
    write(tmp_path, b"".join(b"line %d\n" % n for n in range(100)))
    assert tail(tmp_path, lines) == wanted


def test_the_tail_of_an_empty_log_is_empty(tmp_path: Path) -> None:
    assert tail(write(tmp_path, b""), 5) == b""


def test_a_last_line_without_a_newline_is_in_the_tail(tmp_path: Path) -> None:
    assert tail(write(tmp_path, b"a\nb\nc"), 2) == b"b\nc"


def test_the_tail_reaches_back_over_lines_longer_than_a_block(tmp_path: Path) -> None:
    body = b"first\n" + b"x" * 50_000 + b"\n" + b"y" * 50_000 + b"\n"
    assert tail(write(tmp_path, body), 2) == body[len(b"first\n") :]


def test_the_tail_of_one_endless_line_is_limited(tmp_path: Path) -> None:
    assert tail(write(tmp_path, b"x" * 300_000), 3, longest=100_000) == b"x" * 100_000


def test_a_line_with_carriage_returns_is_one_line_of_the_tail(tmp_path: Path) -> None:
    bar = b"".join(b"%d%%\r" % n for n in range(100)) + b"done\n"
    assert tail(write(tmp_path, b"before\n" + bar + b"after\n"), 2) == bar + b"after\n"


def test_a_hole_in_a_capped_log_is_read_as_its_marker(tmp_path: Path) -> None:
    head, end = HEADER + b"h" * (2 * BLOCK - len(HEADER)), b"t" * BLOCK
    write_with_hole(tmp_path, head, 16 * BLOCK, end)
    assert read(tmp_path) == head[len(HEADER) :] + cut_marker(16 * BLOCK) + end


def test_zero_bytes_of_a_command_are_not_a_hole(tmp_path: Path) -> None:
    write_with_hole(tmp_path, HEADER, 16 * BLOCK, b"end\n")
    (tmp_path / ".capped").unlink()
    assert read(tmp_path) == bytes(16 * BLOCK) + b"end\n"


def test_the_tail_across_a_hole_says_how_much_is_missing(tmp_path: Path) -> None:
    head = HEADER + b"h" * (2 * BLOCK - len(HEADER) - 1) + b"\n"
    write_with_hole(tmp_path, head, 64 * BLOCK, b"last\n")
    assert tail(tmp_path, 2) == cut_marker(64 * BLOCK).lstrip(b"\n") + b"last\n"


def bounded(folder: Path, limit: int) -> bytes:
    with Log(str(folder)) as log:
        return b"".join(log.bounded(limit))


@pytest.mark.parametrize("length", [0, 1, 999, 1000])
def test_a_log_within_the_limit_is_returned_completely(tmp_path: Path, length: int) -> None:
    assert bounded(write(tmp_path, b"x" * length, head=b""), 1000) == b"x" * length


def test_of_a_log_over_the_limit_both_ends_and_a_marker_are_returned(tmp_path: Path) -> None:
    assert bounded(write(tmp_path, b"a" * 500 + b"b" * 77 + b"c" * 500, head=b""), 1000) == b"a" * 500 + cut_marker(77) + b"c" * 500


def test_a_limited_log_does_not_contain_the_header(tmp_path: Path) -> None:
    assert bounded(write(tmp_path, b"hello\n"), 1000) == b"hello\n"
    assert bounded(write(tmp_path, b"a" * 60 + b"b" * 60), 100) == b"a" * 50 + cut_marker(20) + b"b" * 50


@pytest.mark.parametrize("limit", [6 * BLOCK, 8 * BLOCK, 10 * BLOCK, 1 << 30])
def test_a_hole_in_a_limited_log_has_one_marker(tmp_path: Path, limit: int) -> None:
    write_with_hole(tmp_path, b"a" * 4 * BLOCK, 100 * BLOCK, b"b" * 4 * BLOCK)
    kept = min(limit // 2, 4 * BLOCK)
    assert bounded(tmp_path, limit) == b"a" * kept + cut_marker(108 * BLOCK - 2 * kept) + b"b" * kept


def test_the_marker_says_how_much_is_missing() -> None:
    assert cut_marker(1_234_567) == b"\n[backburner: 1,234,567 bytes of output left out here]\n"


def test_reading_continues_at_the_returned_offset(tmp_path: Path) -> None:
    write(tmp_path, b"a" * 3_000_000)
    with Log(str(tmp_path)) as log:
        *_, (offset, _) = log.chunks(log.body_start())
        assert list(log.chunks(offset)) == []
        with open(tmp_path / "output.log", "ab") as file:
            file.write(b"more")
        assert list(log.chunks(offset)) == [(offset + 4, b"more")]


# -- cursors: they count all bytes ever written, so a cut does not shift them

LIMIT = 64 * 1024


@pytest.fixture(params=["with holes", "moved up"])
def capping(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LimitedLog:
    """A log that is limited while it grows, on a file system with holes and on one without."""
    if request.param == "moved up":
        monkeypatch.setattr(output_limit, "_punch", lambda *_: False)
    log = LimitedLog(tmp_path, LIMIT)
    log.append(HEADER)
    return log


def rest(folder: Path, cursor: int) -> bytes:
    """The output of `logs --since`."""
    with Log(str(folder)) as log:
        return b"".join(piece for _, piece in log.chunks(log.position(cursor)))


def cuts_of(folder: Path) -> list[tuple[int, int]]:
    """The positions and sizes of missing output, according to the log."""
    cuts, missing = [], 0
    for found in re.finditer(rb"\n\[backburner: ([0-9,]+) bytes of output left out here\]\n", read(folder, 0)):
        dropped = int(found[1].replace(b",", b""))
        cuts.append((found.start() + missing, dropped))
        missing += dropped - len(found[0])
    return cuts


def expected(sent: bytes, cursor: int, cuts: list[tuple[int, int]]) -> bytes:
    """All output after a cursor, with a marker where some is missing."""
    text = b""
    for start, dropped in cuts:
        if cursor < start + dropped:
            text += sent[cursor:start] + cut_marker(dropped)
            cursor = start + dropped
    return text + sent[cursor:]


def edges(cuts: list[tuple[int, int]]) -> list[int]:
    """Cursors at which errors are likely."""
    return [offset + near for start, dropped in cuts for offset in (start, start + dropped) for near in (-1, 0, 1)]


def test_a_cursor_stays_valid_after_cuts_before_and_after_it(tmp_path: Path, capping: LimitedLog) -> None:
    sent, cursors = HEADER, [len(HEADER)]
    for size in (500, 1500, 700, 3000, 12_000, 900, 20_000, 300, 5000, 1):
        piece = numbered(len(sent) // 16, len(sent) // 16 + size)
        capping.append(piece)
        sent += piece
        with Log(str(tmp_path)) as log:
            assert log.cursor(log.size) == len(sent)
            cursors += [log.cursor(log.size), log.cursor(log.size - 777)]
        assert rest(tmp_path, len(sent) - 5000) == sent[-5000:]
        assert rest(tmp_path, len(sent)) == rest(tmp_path, len(sent) + 1000) == b""
    capping.finish()
    ((start, dropped),) = cuts = cuts_of(tmp_path)
    assert start < cursors[5] < start + dropped < cursors[-3], "some of what the cursors point at is gone, and some is not"
    for cursor in (*cursors, *edges(cuts)):
        assert rest(tmp_path, cursor) == expected(sent, cursor, cuts), cursor
    assert rest(tmp_path, 0) == rest(tmp_path, -5) == rest(tmp_path, 3) == expected(sent, len(HEADER), cuts)


def test_offsets_and_cursors_convert_both_ways(tmp_path: Path, capping: LimitedLog) -> None:
    capping.append(numbered(0, 20_000))
    capping.append(b"the end\n")
    capping.finish()
    ((start, dropped),) = cuts_of(tmp_path)
    end = start + len(cut_marker(dropped))
    with Log(str(tmp_path)) as log:
        for offset in (len(HEADER), start - 1, start, end, end + 1, log.size):
            assert log.position(log.cursor(offset)) == offset
        for offset in (start + 1, end - 1):
            assert log.position(log.cursor(offset)) == start, "half a marker is given once more as a whole"
        for offset in (0, 5):
            assert log.position(log.cursor(offset)) == len(HEADER)


def test_cursors_of_an_open_log_stay_valid_while_it_is_finished(tmp_path: Path) -> None:
    sent = HEADER + numbered(0, 20_000)
    write(tmp_path, sent[len(HEADER) :])
    with Log(str(tmp_path)) as before:
        assert before.cursor(before.size) == len(sent)
        OutputLimit(str(tmp_path), LIMIT).finish()
        assert (before.size, before.cursor(before.size)) == (len(sent), len(sent))
        with Log(str(tmp_path)) as after:
            assert after.size < before.size and after.cursor(after.size) == len(sent)


def test_cursors_stay_valid_after_cuts_with_two_limits(tmp_path: Path) -> None:
    sent = HEADER + numbered(0, 20_000)
    write(tmp_path, sent[len(HEADER) :])
    LimitedLog(tmp_path, LIMIT).append(b"")
    more = numbered(20_000, 200_000)
    with open(tmp_path / "output.log", "ab") as file:
        file.write(more)
    sent += more
    OutputLimit(str(tmp_path), 20 * LIMIT).finish()
    cuts = cuts_of(tmp_path)
    assert len(cuts) == 2
    for cursor in (*edges(cuts), len(sent) - 1600, len(sent)):
        assert rest(tmp_path, cursor) == expected(sent, cursor, cuts), cursor
    with Log(str(tmp_path)) as log:
        assert log.cursor(log.size) == len(sent)


@pytest.mark.parametrize("note", ["", "x", "1 2 3", "1 2 3 4 5", "1 2 3 x", "9" * 500, "0 0 100 10", "\0", "-1 -1 -1 -1"])
def test_a_capped_file_of_another_log_shifts_no_cursor(tmp_path: Path, note: str) -> None:
    write(tmp_path, numbered(0, 1000))
    (tmp_path / ".capped").write_text(note)
    with Log(str(tmp_path)) as log:
        places = [len(HEADER), 5000, log.size]
        assert [log.cursor(offset) for offset in places] == [log.position(offset) for offset in places] == places


@pytest.mark.parametrize("body", [b"", b"one\n", b"# Started: not ours\n", b"no newline"])
def test_small_output_is_what_a_log_contains_without_the_header(tmp_path: Path, body: bytes) -> None:
    write(tmp_path, body)
    assert small_output(str(tmp_path), 4096) == body == read(tmp_path)


def test_output_that_is_too_large_or_was_cut_is_not_small(tmp_path: Path) -> None:
    write(tmp_path, b"x" * 100, b"")
    assert small_output(str(tmp_path), 100) == b"x" * 100
    assert small_output(str(tmp_path), 99) is None
    (tmp_path / CAPPED).touch()
    assert small_output(str(tmp_path), 100) is None
