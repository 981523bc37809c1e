"""Redirects: what they write, and lines in which the parser and the shell disagree about their targets."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

LINES = [
    ("echo hi > README.md new", "the parser takes every word after a redirect for its target, but only the first one is"),
    ("echo a> README.md b", "the same without a space before the redirect"),
    ("cat < README.md > README.md x", "the same, after another redirect"),
    ("sort < README.md -o README.md", "an option after a redirect is an option of the command"),
    ("echo &>x reboot", "in dash, this is a background job, a redirect and a command"),
    ("cat < README.md &>x reboot", "the same, after a redirect"),
    ("true; [ a > README.md ]", "inside [ … ], > is a redirect"),
    ("true; [[ a > README.md ]]", "dash does not support [[: it is a command with a redirect"),
    ("> /dev/null reboot", "a command after its redirect"),
    ("2>/dev/null reboot", ""),
    ("</dev/null reboot", ""),
    ("> README.md", ""),
    ("ls >> README.md", ""),
    ("ls >| README.md", ""),
    ("ls >& README.md", ""),
    ("ls &> README.md", ""),
    ("ls 2> README.md", ""),
    ("cat <> README.md", ""),
    ("exec > README.md", ""),
    ("ls > out/x", "a link to a directory outside the project"),
    ("ls > ../x", ""),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_a_redirect_that_is_harmful_or_ambiguous_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"
