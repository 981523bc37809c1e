"""Reading outside the project, directly or through links."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

LINES = [
    ("cat out/passwd", "a link to a directory outside the project"),
    ("cat < out/passwd", "a link to a directory outside the project"),
    ("cat ~root/x", ""),
    ("cat /proc/self/cwd/README.md", "the directory of another process"),
    ("grep -R root .", "follows links to directories outside the project"),
    ("rg -L root", "follows links to directories outside the project"),
    ("ls /etc", "lists outside the project"),
    ("ls ~/.ssh", "lists outside the project"),
    ("ls out/", "lists outside the project"),
    ("stat /etc/shadow", "reads metadata outside the project"),
    ("tree /etc", "lists outside the project"),
    ("du /etc", "lists outside the project"),
    ("diff -rN src linked", "follows links to directories outside the project"),
    ("bash -c 'cat ~-/hostname'", "a tilde that bash expands to another directory"),
    ("bash -c 'cat ~+/../x'", "a tilde that bash expands to another directory"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_reading_outside_the_project_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"
