"""The table of everyday commands in docs/approval.md shows the real decisions."""

import re
from pathlib import Path

import pytest

from approval.command_world import make_project, verdict

PAGE = Path(__file__).parent.parent.parent / "docs" / "approval.md"
ROWS = re.findall(r"^\| `(.+?)` \| (allow|ask|trust) \|", PAGE.read_text(), re.MULTILINE)


def test_the_table_has_forty_commands() -> None:
    assert len(ROWS) == 40


@pytest.mark.parametrize(("line", "documented"), ROWS)
def test_an_everyday_command_gets_the_documented_decision(tmp_path: Path, line: str, documented: str) -> None:
    project = make_project(tmp_path)
    found = verdict(project, line)
    assert found.decision == ("allow" if documented == "allow" else "ask"), found
    assert found.trust_would_do == (documented == "trust")
    assert verdict(project, line, trusted=True).decision == ("ask" if documented == "ask" else "allow")
