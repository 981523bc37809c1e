"""What is known about the sandboxes of a machine is found out once for all processes of a home."""

import os
import sys
from pathlib import Path

import pytest

from backburner.system import sandbox_support
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


def test_a_bubblewrap_of_the_system_without_overlays_gives_way_to_one_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(str(tmp_path / "home")).make()
    monkeypatch.setattr(sandbox_support.processes, "executable_of", lambda *_: None)
    packaged = find_support(home)
    assert packaged.bubblewrap and packaged.overlay, packaged.reason
    old = tmp_path / "bwrap"
    old.write_text(
        f'#!/bin/sh\ncase " $* " in *" --overlay"*) echo "Unknown option" >&2; exit 1 ;; esac\nexec {packaged.bubblewrap} "$@"\n'
    )
    old.chmod(0o755)
    monkeypatch.setattr(sandbox_support.processes, "executable_of", lambda *_: str(old))
    assert find_support(home) == packaged
    monkeypatch.setattr(sandbox_support, "_packaged", lambda: None)
    alone = find_support(home)
    assert (alone.level, alone.bubblewrap, alone.overlay) == (packaged.level, str(old), False)
