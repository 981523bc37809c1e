"""Here-documents: shells and parsers disagree about what they contain, so they require approval."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

LINES = [
    ("cat <<E .env\nx\nE", "a word after the start of a here-document is an argument of the command"),
    ("sort <<E -o README.md\nx\nE", "an option after the start of a here-document is an option of the command"),
    ("cat <<E\n`reboot`\nE", "a backquote in a here-document runs"),
    ("cat <<E\n $(reboot)\nE\n", "a substitution runs also after a space at the start of the line"),
    ("cat <<-E\n\t$(reboot)\n\tE\n", "also after a tab"),
    ('cat <<E"F"\na\nEF\nreboot\nE"F"\n', "the delimiter is EF, so the text ends earlier than the parser assumes"),
    ("cat <<E\n${x:-`reboot`}\nE", "a backquote in an expansion in a here-document"),
    ("cat <<E\n${x:-'$(reboot)'}\nE", "single quotes have no effect in a here-document"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_a_here_document_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"
