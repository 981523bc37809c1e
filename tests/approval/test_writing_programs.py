"""Programs that write: overwriting, deleting, and targets that are not obvious."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

LINES = [
    ("tee README.md", ""),
    ("tee -a README.md", ""),
    ("tee -- -a/../../x", "after -- there are no more options"),
    ("touch -- -a/../../x", "after -- there are no more options"),
    ("mkdir -p -- -/../../x", "after -- there are no more options"),
    ("touch .git/hooks/pre-commit", ""),
    ("mkdir -p sub/.git/hooks", ""),
    ("touch .envrc", "direnv runs it"),
    ("xxd -l 5 - README.md", "5 is the value of -l"),
    ("uniq -f 1 - README.md", "1 is the value of -f"),
    ("uniq --skip-fields 1 - README.md", "1 is the value of --skip-fields"),
    ("uniq src/main.py README.md", ""),
    ("cp src/main.py README.md", ""),
    ("cp src/main.py lib", "lib contains a file of this name"),
    ("cp src/main.py lib/", "lib contains a file of this name"),
    ("cp -t lib src/main.py", ""),
    ("cp --targ=lib src/main.py new", "an abbreviated long option"),
    ("cp --parents src/main.py backup", "the copy keeps the whole path"),
    ("cp -rT src lib", "the directory itself is the target"),
    ("cp -r --no-target-dir src lib", "the directory itself is the target"),
    ("cp -r linked new && cat new/etc/passwd", "the copy contains a link to a directory outside the project"),
    ("cp -r . /tmp/x", ""),
    ("cp .env new", ""),
    ("go env -w GOFLAGS=-toolexec=evil", "writes settings"),
    ("rm README.md", ""),
    ("mv README.md new", ""),
    ("ln -s /etc new", ""),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_a_program_that_changes_files_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"
