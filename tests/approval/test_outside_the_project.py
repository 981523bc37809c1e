"""Reading outside the project, directly or through links."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, sandbox_verdict, verdict

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


@pytest.mark.parametrize(
    "line",
    [
        "cd /tmp && rm -rf cache",
        "sh -c 'cd /tmp && rm -rf cache'",
        "cd /tmp/x; find . -delete",
        "pushd /srv && rm -rf x; popd",
        "pushd /tmp && rm -r x",
        "dd if=/dev/zero of=/srv/x",
        "dd if=/dev/zero of=~/x",
    ],
)
def test_what_is_deleted_or_written_outside_needs_approval(project: Path, line: str) -> None:
    assert sandbox_verdict(project, line, trusted=True).sandbox is None


@pytest.mark.parametrize("line", ["cd /tmp && rm -f a.txt", "cd /tmp && ls", "pushd src && ls; popd", "dd if=/dev/zero of=a.bin count=1"])
def test_other_commands_elsewhere_run_in_the_sandbox(project: Path, line: str) -> None:
    found = sandbox_verdict(project, line, trusted=True)
    assert found.sandbox, found.reasons
