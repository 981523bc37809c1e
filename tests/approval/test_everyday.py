"""The list of everyday commands in the documentation says what the gate really says."""

import re
from pathlib import Path

import pytest

from approval.command_world import make_project, verdict

PAGE = Path(__file__).parent.parent.parent / "docs" / "approval.md"
ROWS = re.findall(r"^\| `(.+?)` \| (allow|ask|trust) \|", PAGE.read_text(), re.MULTILINE)


def test_the_list_has_forty_commands() -> None:
    assert len(ROWS) == 40


@pytest.mark.parametrize(("line", "told"), ROWS)
def test_an_everyday_command_gets_the_verdict_the_documentation_tells(tmp_path: Path, line: str, told: str) -> None:
    project = make_project(tmp_path)
    found = verdict(project, line)
    assert found.decision == ("allow" if told == "allow" else "ask"), found
    assert found.trust_would_do == (told == "trust")
    assert verdict(project, line, trusted=True).decision == ("ask" if told == "ask" else "allow")
