"""The table of everyday commands in docs/approval.md shows the real decisions."""

import re
from pathlib import Path

import pytest

from approval.command_world import make_project, sandbox_verdict
from backburner.core.sandbox import Level, View

PAGE = Path(__file__).parent.parent.parent / "docs" / "approval.md"
CELL = r"(read|copy|write|ask)"
ROWS = re.findall(rf"^\| `(.+?)` \| {CELL} \| {CELL} \| {CELL} \| {CELL} \|$", PAGE.read_text(), re.MULTILINE)
WORDS = {View.READ_ONLY: "read", View.COPY: "copy", View.WRITABLE: "write"}


def test_the_table_has_forty_commands() -> None:
    assert len(ROWS) == 40


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_an_everyday_command_gets_the_documented_decision(tmp_path: Path, row: tuple[str, ...]) -> None:
    project, line = make_project(tmp_path), row[0].replace("&#124;", "|")
    found = [
        sandbox_verdict(project, line, trusted=trusted, level=level).sandbox
        for level in (Level.FULL, Level.PARTIAL)
        for trusted in (False, True)
    ]
    assert [WORDS[sandbox.view] if sandbox else "ask" for sandbox in found] == list(row[1:])


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_without_a_sandbox_every_command_needs_approval(tmp_path: Path, row: tuple[str, ...]) -> None:
    found = sandbox_verdict(make_project(tmp_path), row[0].replace("&#124;", "|"), trusted=True, level=Level.NONE)
    assert found.decision == "ask"
