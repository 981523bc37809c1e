"""Descriptors that were opened for a full sandbox are closed if it cannot be prepared."""

import os
import subprocess
from pathlib import Path

import pytest

from backburner.core.sandbox import Level, Network, Sandbox, Support, View
from backburner.execution.sandbox import Request, confine
from backburner.system import run_files
from backburner.system.home import Home

SUPPORT = Support(Level.FULL, "/usr/bin/true", overlay=True, listen=True)


def request(tmp_path: Path) -> Request:
    project, folder = tmp_path / "project", tmp_path / "home/tasks/a"
    for path in (project / ".vscode", folder, tmp_path / "user"):
        path.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    sandbox = Sandbox(Level.FULL, str(project), View.COPY, network=Network.NONE)
    home = Home(str(tmp_path / "home"))
    return Request(sandbox, home, str(folder), str(project), {"HOME": str(tmp_path / "user"), "PATH": "/usr/bin"}, {}, {}, ())


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_a_prepared_sandbox_holds_its_descriptors_until_it_is_closed(tmp_path: Path) -> None:
    wanted = request(tmp_path)
    confine(wanted, SUPPORT).close()
    before = descriptors()
    confinement = confine(wanted, SUPPORT)
    assert {str(number) for number in confinement.files} == descriptors() - before
    assert len(confinement.files) == 4  # the arguments, two files for git, and .vscode
    confinement.close()
    assert descriptors() == before


def test_an_error_leaves_no_descriptor_open(tmp_path: Path) -> None:
    wanted = request(tmp_path)
    confine(wanted, SUPPORT).close()
    changes = Path(wanted.folder) / run_files.CHANGES
    for name in ("upper", "work"):
        (changes / name).rmdir()
    changes.rmdir()
    changes.write_text("in the way")
    before = descriptors()
    with pytest.raises(OSError, match="changes"):
        confine(wanted, SUPPORT)
    assert descriptors() == before
