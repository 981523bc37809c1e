"""Everyday commands that run without approval, among them harmless variants of lines that require it."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

COMMANDS = [
    "ls -la",
    "/bin/ls",
    'l"s" src',
    "cat README.md",
    "cat < README.md",
    "cat README.md | head -5 | wc -l",
    "grep -rn TODO src",
    "grep -n 'a b' README.md 2>/dev/null",
    "find . -name '*.py'",
    "find src -type f -newer README.md",
    "sort -u README.md",
    "sed -n '1,5p' README.md",
    "sed s/a/b/ README.md",
    "awk '{print $1}' README.md",
    "awk -F: '{print $1, $2}' README.md",
    "git status",
    "git status --short",
    "git log --oneline -5",
    "git --no-pager log -3",
    "git log -- src",
    "git diff HEAD",
    "git branch",
    "git branch -a",
    "touch new",
    "mkdir -p new/deeper",
    "echo hi > new",
    "cp README.md new",
    "ls 2>&1",
    "cd src && ls",
    'echo "$HOME"',
    "timeout 5 ls",
    "nice -n 5 ls",
    "LC_ALL=C sort README.md",
    "date +%s",
    "true",
    "curl -s https://docs.example.org/a",
    "curl -I https://docs.example.org/a",
    "sort -k 2 LICENSE",
    "find . -name '*.md'",
    "awk -F , '{print $1}' README.md",
    "git log --pretty=oneline",
    "git log -n 3",
    "git diff -U5",
    "grep -r -e x src",
    "x=1; echo $x",
    "echo $HOME",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_harmless_command_is_allowed(project: Path, line: str) -> None:
    found = verdict(project, line)
    assert found.decision == "allow", found.reasons
