"""The set-up of a clone: the core alone at first, and the packages of an extra when they are first needed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HomeCli
from terminal import Terminal

from backburner.core import optional_dependencies
from backburner.core.errors import BadInput

ROOT = Path(__file__).parent.parent.parent
# Installs nothing, and records which packages were asked for.
UV = """#!/bin/sh
case $1 in
    venv) for last; do :; done; exec {python} -m venv --without-pip "$last" ;;
    pip) for last; do :; done; cp "$last" {asked}; echo "Resolved packages"
        while [ -e {wait} ]; do sleep 0.05; done; [ ! -e {fail} ] ;;
esac
"""


class Clone:
    """The files of a clone that its set-up uses, with a recording `uv`."""

    def __init__(self, folder: Path) -> None:
        self.root, self.asked, self.fail, self.wait = folder / "clone", folder / "asked", folder / "fail", folder / "wait"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("scripts/setup", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.root / name)
        programs = folder / "programs"
        programs.mkdir()
        (programs / "uv").write_text(UV.format(python=sys.executable, asked=self.asked, fail=self.fail, wait=self.wait))
        (programs / "uv").chmod(0o755)
        self.environ = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "PIP_NO_INDEX": "1"}

    def setup(self, *parts: str) -> "subprocess.CompletedProcess[str]":
        command = [str(self.root / "scripts/setup"), *parts]
        return subprocess.run(command, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    def packages(self) -> set[str]:
        """The names of the packages that were asked for since the last call."""
        names = {line.split(";")[0].split(">")[0].split("[")[0].strip() for line in self.asked.read_text().splitlines()}
        self.asked.unlink()
        return names


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_the_first_command_installs_the_core_alone(clone: Clone) -> None:
    done = clone.setup()
    assert (done.returncode, done.stdout) == (0, f"Setting up Backburner in {clone.root}/.venv (once) ...\n")
    assert "apsw" in (found := clone.packages()) and not found & {"pydantic-ai-slim", "mcp", "prompt_toolkit", "discord.py"}
    assert next(clone.root.glob(".venv/lib/python*/site-packages/backburner.pth")).read_text() == f"{clone.root}/src\n"
    done = clone.setup()
    assert (done.returncode, done.stdout) == (0, "") and not clone.asked.exists()


def test_a_terminal_shows_the_time_and_the_last_line_of_the_installer(clone: Clone) -> None:
    clone.wait.touch()
    with Terminal([str(clone.root / "scripts/setup")], cwd=clone.root, env={**clone.environ, "TERM": "xterm"}) as terminal:
        terminal.wait(lambda shown: re.search(r"^  [1-9]\d* s  Resolved packages$", shown.text, re.M))
        clone.wait.unlink()
        assert terminal.ended() == 0 and "Resolved" not in terminal.text


def test_a_part_is_installed_once_and_updated_with_the_others(clone: Clone) -> None:
    clone.setup()
    done = clone.setup("tui")
    assert (done.returncode, done.stdout) == (0, "Installing packages for tui (once) ...\n")
    assert {"prompt_toolkit", "apsw"} <= clone.packages()
    assert clone.setup("tui").stdout == "" and not clone.asked.exists()
    later = (clone.root / ".venv/ready-tui").stat().st_mtime + 10
    os.utime(clone.root / "constraints.txt", (later, later))
    clone.setup()
    assert "prompt_toolkit" in clone.packages(), "the pins have changed"


def test_everything_for_development_includes_every_part(clone: Clone) -> None:
    clone.setup("dev")
    assert {"pytest", "mcp", "pydantic-ai-slim", "prompt_toolkit", "discord.py"} <= clone.packages()
    assert clone.setup("agent", "mcp").stdout == "" and not clone.asked.exists()


def test_a_failed_setup_shows_the_end_of_its_log_and_is_tried_again(clone: Clone) -> None:
    clone.fail.touch()
    done = clone.setup("tui")
    assert done.returncode == 1 and f"The setup failed. The full log is {clone.root}/.venv/setup.log." in done.stderr
    assert not (clone.root / ".venv/ready").exists()
    clone.fail.unlink()
    assert clone.setup("tui").returncode == 0


def test_an_unknown_part_is_refused(clone: Clone, home_cli: HomeCli) -> None:
    assert clone.setup("nope").returncode == 2
    done = home_cli.cli("setup", "nope")
    assert done.returncode == 2 and "Unknown part 'nope'. Parts: agent," in done.stderr
    assert home_cli.cli("setup").returncode == 2
    assert home_cli.ok("setup", "tui", "mcp") == "Everything is installed.\n"


def test_a_missing_part_is_installed_if_that_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[str] = []
    monkeypatch.setitem(optional_dependencies._MODULES, "tui", ("a_module_that_does_not_exist",))

    def install(extra: str) -> bool:
        wanted.append(extra)
        monkeypatch.setitem(optional_dependencies._MODULES, "tui", ("json",))
        return True

    monkeypatch.setattr(optional_dependencies, "installer", None)
    with pytest.raises(BadInput, match=r"^A chat needs the extra `tui`: pip install 'backburner\[tui\]'\.$"):
        optional_dependencies.need("tui", "A chat needs")
    monkeypatch.setattr(optional_dependencies, "installer", install)
    optional_dependencies.need("tui", "A chat needs")
    assert wanted == ["tui"]
    monkeypatch.setitem(optional_dependencies._MODULES, "tui", ("a_module_that_does_not_exist",))
    monkeypatch.setattr(optional_dependencies, "installer", lambda extra: False)
    with pytest.raises(BadInput):
        optional_dependencies.need("tui", "A chat needs")
