"""Options of programs that usually only read: some write files, run programs or read further files."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

LINES = [
    ('x="-o README.md"; tree $x', "an expansion can be an option"),
    ("file -f /etc/passwd", "reads file names from a file and prints them"),
    ("file --magic=./x README.md", "an abbreviated long option"),
    ("tree --fromfile /etc/passwd", "prints a file"),
    ("tree -o README.md", ""),
    ("sort -o README.md src/main.py", ""),
    ("sort -uoREADME.md src/main.py", ""),
    ("sort src/main.py --output README.md", ""),
    ("sort --out=README.md src/main.py", "an abbreviated long option"),
    ("sort --compress-prog=./bin/ls README.md", "an abbreviated long option"),
    ("sort --comp ./bin/ls README.md", "an abbreviated long option with its value in the next word"),
    ("strings @/etc/passwd", "reads options from a file and prints them"),
    ("jq -n 'import \"/etc/x\" as $d; $d'", "a jq program reads files"),
    ("ag --pag=./bin/ls x", "an abbreviated long option"),
    ("ack --pag=./bin/ls x", "an abbreviated long option"),
    ("rg --pre ./bin/ls x", ""),
    ("rg --pre=./bin/ls x", ""),
    ("rg --hidden KEY", "secrets are often in hidden files"),
    ("rg -uu KEY", "secrets are often in hidden files"),
    ("rg -. KEY", "secrets are often in hidden files"),
    ("x='1 -o README.md'; sort -k $x LICENSE", "an expansion or a pattern can become several words"),
    ("sort -t [+-]* LICENSE", "an expansion or a pattern can become several words"),
    ("x='1 --pre=./evil'; rg -m $x a", "an expansion or a pattern can become several words"),
    ("x='1 -f .env README.md'; grep -m $x a", "an expansion or a pattern can become several words"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_a_reading_program_with_a_harmful_option_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"
