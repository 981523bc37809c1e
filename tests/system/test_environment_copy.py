"""The copy of this process's variables that is passed on to commands."""

import os

import pytest

from backburner.system.processes import current_environment


def test_the_copy_is_made_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = current_environment()
    assert before == dict(os.environ) and current_environment() is before
    monkeypatch.setenv("ADDED", "1")
    assert current_environment()["ADDED"] == "1" and "ADDED" not in before
    monkeypatch.setenv("ADDED", "2")
    assert current_environment()["ADDED"] == "2"
    monkeypatch.delenv("ADDED")
    assert "ADDED" not in current_environment() and current_environment() == dict(os.environ)


def test_a_change_of_the_bytes_is_noticed_and_invalid_text_is_kept() -> None:
    os.environb[b"ODD"] = b"a\xff"
    try:
        assert current_environment()["ODD"] == "a\udcff"
    finally:
        del os.environb[b"ODD"]
    assert "ODD" not in current_environment()
