"""What is known about the sandboxes of a machine is found out once for all processes of a home."""

import os
import sys
from pathlib import Path

import pytest

from backburner.system.home import Home
from backburner.system.sandbox_support import find_support


def test_a_sandbox_is_tried_once_however_the_search_path_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(str(tmp_path / "home")).make()
    monkeypatch.setattr(sys, "path", [os.path.realpath(folder) for folder in sys.path])
    first = find_support(home)
    known = (tmp_path / "home" / "sandbox" / "support.json").stat().st_ino
    monkeypatch.setattr(sys, "path", [f"{os.path.dirname(folder)}/./{os.path.basename(folder)}" for folder in sys.path])
    assert find_support(home) == first
    assert (tmp_path / "home" / "sandbox" / "support.json").stat().st_ino == known  # it was not written again
