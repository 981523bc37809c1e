"""Reading output in pieces of limited size: together the pieces contain all of it."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backburner.core.errors import BadInput
from backburner.system.log_file import Log, header, position_of

HEAD = header({"Background task": "t", "Started": "now"})
LINES = st.lists(st.sampled_from(["error one", "fine", "Ärger", "日本語 error", "", "x" * 40, "ERROR" * 10]), max_size=12)


def _log(folder: str, body: bytes) -> Log:
    Path(folder, "output.log").write_bytes(HEAD + body)
    return Log(folder)


@settings(max_examples=300)
@given(lines=LINES, ends=st.booleans(), most=st.integers(5, 120))
def test_pieces_contain_the_whole_output_and_none_is_too_long(lines: list[str], ends: bool, most: int) -> None:
    body = ("\n".join(lines) + "\n" * ends).encode()
    with tempfile.TemporaryDirectory() as folder, _log(folder, body) as log:
        position, found = log.body_start(), []
        while position < log.size:
            position, piece = log.piece(position, most)
            assert 0 < len(piece) <= most
            piece.decode()
            found.append(piece)
        assert b"".join(found) == body


@settings(max_examples=300)
@given(lines=LINES, ends=st.booleans(), most=st.integers(60, 200))
def test_every_line_that_contains_a_text_is_found_once(lines: list[str], ends: bool, most: int) -> None:
    body = ("\n".join(lines) + "\n" * ends).encode()
    with tempfile.TemporaryDirectory() as folder, _log(folder, body) as log:
        position, found = log.body_start(), b""
        for _ in range(100):
            position, piece = log.lines_with("error", position, most, growing=False)
            assert len(piece) <= most
            found += piece
            if position >= log.size:
                break
        assert found.decode().splitlines() == [line for line in lines if "error" in line.casefold()]


def test_an_incomplete_line_is_left_for_the_next_read(tmp_path: Path) -> None:
    with _log(str(tmp_path), b"fine\nerr") as log:
        position, piece = log.lines_with("error", log.body_start(), 1000, growing=True)
        assert piece == b""
        with open(tmp_path / "output.log", "ab") as file:
            file.write(b"or: disk full\n")
        assert log.lines_with("error", position, 1000, growing=True)[1] == b"error: disk full\n"


def test_a_line_longer_than_a_piece_is_cut(tmp_path: Path) -> None:
    with _log(str(tmp_path), b"error " + b"x" * 1000 + b"\nerror two\n") as log:
        position, piece = log.lines_with("error", log.body_start(), 100, growing=False)
        assert len(piece) <= 100 and piece.startswith(b"error xx")
        assert log.lines_with("error", position, 100, growing=False)[1] == b"error two\n"


@pytest.mark.parametrize("text", ["", "x", "1:", ":5", "-1:0", "1:-1", "9:0", "1:" + "9" * 30, "1.5:0"])
def test_an_invalid_cursor_is_rejected(text: str) -> None:
    with pytest.raises(BadInput, match="not a cursor"):
        position_of(text, 2)


def test_pieces_of_a_log_with_a_gap_mark_the_gap(tmp_path: Path) -> None:
    if not hasattr(os, "SEEK_DATA"):
        pytest.skip("no holes here")
    with open(tmp_path / "output.log", "wb") as file:
        file.write(HEAD + b"first\n")
        file.truncate(1 << 20)
        file.seek(1 << 20)
        file.write(b"last\n")
    (tmp_path / ".capped").write_text("")
    with Log(str(tmp_path)) as log:
        position, found = log.body_start(), b""
        for _ in range(50):
            position, piece = log.piece(position, 200)
            found += piece
            if position >= log.size:
                break
        assert found.startswith(b"first\n") and found.endswith(b"last\n") and b"left out here" in found
        assert log.lines_with("last", log.body_start(), 200, growing=False)[1] == b"last\n"
