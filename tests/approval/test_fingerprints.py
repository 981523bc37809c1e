"""Fingerprints: an approval covers the content of scripts, the directory and the program that would run."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from approval.command_world import PATH, gate_with_permissions, make_project_with_traps
from backburner.testing.records import request


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


def changes_fingerprint(command: str | tuple[str, ...], cwd: Path, change: Callable[[], object], path: str = PATH) -> bool:
    words = (command,) if isinstance(command, str) else command
    submission = request(words, str(cwd), {"PATH": path}, shell=isinstance(command, str))
    gate = gate_with_permissions(cwd)
    before = gate.fingerprint(submission)
    assert gate.fingerprint(submission) == before
    change()
    after = gate.fingerprint(submission)
    assert after == gate_with_permissions(cwd).fingerprint(submission)  # a gate that has not seen it before finds the same
    return after != before


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("cd src && ./run.sh", "src/run.sh"),
        ("cd src && sh run.sh", "src/run.sh"),
        ("cd src && make", "src/Makefile"),
        ("make -C src", "src/Makefile"),
        ("make -fother.mk", "other.mk"),
        ("make --file=other.mk", "other.mk"),
        ("sh < run.sh", "run.sh"),
        ("cat run.sh | sh", "run.sh"),
        ("bash -o pipefail run.sh", "run.sh"),
        ("python3 -W ignore run.py", "run.py"),
        ("python3.11 run.py", "run.py"),
        ("fish run.sh", "run.sh"),
        ("uv run run.py", "run.py"),
        ("awk -f x.awk", "x.awk"),
        ("$SHELL run.sh", "run.sh"),
        ("flock x ./run.sh", "run.sh"),
        ("env -C src ./run.sh", "src/run.sh"),
    ],
)
def test_the_fingerprint_changes_with_the_content_of_a_named_script(project: Path, line: str, file: str) -> None:
    assert changes_fingerprint(line, project, lambda: (project / file).write_text("other\n"))


def test_the_fingerprint_changes_with_the_target_of_a_linked_directory(project: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(project)

    def change_target() -> None:
        link.unlink()
        link.symlink_to(project / "src")

    assert changes_fingerprint("rm -rf build", link, change_target)


def test_the_fingerprint_changes_with_a_program_whose_timestamps_were_restored(project: Path) -> None:
    tool = project / "bin" / "tool"
    tool.write_text("aaa")
    tool.chmod(0o755)

    def rewrite() -> None:
        times = os.stat(tool)
        tool.write_text("bbb")
        os.utime(tool, ns=(times.st_atime_ns, times.st_mtime_ns))

    assert changes_fingerprint(("tool",), project, rewrite, f"{project}/bin:{PATH}")
