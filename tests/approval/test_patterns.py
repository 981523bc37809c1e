"""Shell patterns: files they match can be secrets, options, or in a parent directory."""

from pathlib import Path

import pytest

from approval.command_world import make_project, make_project_with_traps, verdict

LINES = [
    ("cat o*/passwd", "a pattern that matches through a link to a directory outside the project"),
    ("cat */passwd", "a pattern that matches through a link to a directory outside the project"),
    ("touch ./-oREADME.md && sort *", "a file name becomes an option"),
    ("touch ./-delete && find *", "a file name becomes an option"),
    ("sed -n p *", "a file name becomes an option"),
    ("git log *", "a file name becomes an option"),
    ("tree *", "a file name becomes an option"),
    ("sed s,*,x, README.md", "a file name becomes a script"),
    ("bash -c 'cd src && test *'", "a file name becomes an argument that bash evaluates"),
    ("bash -c 'cd src && [ * ]'", "a file name becomes an argument that bash evaluates"),
    ("bash -c 'cd src && printf *'", "a file name becomes an argument that bash evaluates"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_a_pattern_with_harmful_matches_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"


@pytest.mark.parametrize(
    "line",
    [
        "cat .*",
        "cat .?",
        "cat .*/.en*",
        "ls .*",
        "stat .*/x",
        "cat src/.*/x",
        "cat < .*",
        "bash -c 'cat .*/x'",
        "cat .?/*",
        "cat '.'*/x",
        "cat \\.*/x",
        "cat .[.]/x",
        "cat [.]*/x",
        "cat src/.?/README.md",
        "wc .*",
        "head .*",
        "cat <src/*.py",
        "echo x > *.log",
        "echo x >> new?",
    ],
)
def test_a_pattern_for_a_parent_directory_or_in_a_redirect_requires_approval(tmp_path: Path, line: str) -> None:
    assert verdict(make_project(tmp_path), line).decision == "ask"


@pytest.mark.parametrize("line", ["cat src/*.py", "ls src/*", "cat README.*"])
def test_a_simple_pattern_is_allowed(tmp_path: Path, line: str) -> None:
    assert verdict(make_project(tmp_path), line).decision == "allow"


def test_a_pattern_is_checked_in_a_directory_whose_name_contains_brackets(project: Path) -> None:
    folder = project / "a[b]"
    folder.mkdir()
    (folder / ".env").write_text("KEY=topsecret\n")
    assert verdict(folder, "cat .e*").decision == "ask"
