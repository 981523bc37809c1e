"""sed, awk and python: only scripts that are known to be harmless run without approval."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

LINES = [
    ("sed '/x*\\|\\/,/e rm README.md #/p' README.md", "an escaped slash does not end an address"),
    ("sed 's/x*\\|\\\\/rm README.md/e #/p' README.md", "an escaped backslash does not escape the slash after it"),
    ("echo x | sed --expression='e rm README.md'", "a script in the same word as its option"),
    ("echo x | sed -e'e rm README.md'", "a script in the same word as its option"),
    ("sed -n -e p --expression='e rm x' README.md", "a second script"),
    ("sed --in-pl d README.md", "an abbreviated long option"),
    ("sed --fil=x.sed", "an abbreviated long option"),
    ("sed -l 5 'e rm README.md' README.md", "5 is the value of -l"),
    ("sed --line-length 5 'e rm README.md' README.md", "5 is the value of --line-length"),
    ("sed -i s/a/b/ README.md", ""),
    ("sed -ni p README.md", ""),
    ("sed 's/a/b/w new' README.md", ""),
    ("sed 's/a/b/e' README.md", ""),
    ("sed '1e reboot' README.md", ""),
    ("awk 'BEGIN{system(\"rm README.md\")}' -F '{print}'", "options end at the program text"),
    ("gawk --source='BEGIN{system(\"rm x\")}' '{print}'", "a program in a long option"),
    ("gawk --dump-variables=README.md '{print}'", "writes a file"),
    ("gawk -oREADME.md '{print}'", "writes a file"),
    ("gawk --file=x '{print}'", "a program from a file"),
    ("awk 'BEGIN{system(\"reboot\")}'", ""),
    ("awk '{print > \"README.md\"}' README.md", ""),
    ("echo 'import os' | python3 -v", "-v is verbose: it runs its input"),
    ("python3 -v", "-v is verbose: it runs its input"),
    ("python3 -c 'x'", ""),
    ("echo x | python3", ""),
    ("x=': BEGIN{system(\"id\")}'; awk -F $x '{print $1}' README.md", "an expansion or a pattern can become several words"),
    ("awk -F [,-]* '{print $1}' README.md", "an expansion or a pattern can become several words"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_code_for_an_interpreter_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"
