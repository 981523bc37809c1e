"""Here-documents: shells and parsers disagree about what they contain, so they require approval, except a quoted one that is a word or an input."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, sandbox_verdict, verdict
from backburner.approval.shell_parser import parse

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


MESSAGE = 'Subject\'s "first" line\n\n- $(reboot) `reboot` $HOME\n- EO\n'


def test_a_quoted_here_document_as_a_word_is_a_text(project: Path) -> None:
    line = f"git add src/main.py && git commit -m \"$(cat <<'EOF'\n{MESSAGE}EOF\n)\" && git status"
    found = sandbox_verdict(project, line, trusted=True)
    assert found.sandbox and found.sandbox.git, found.reasons
    assert verdict(project, f"echo \"$(cat <<'EOF'\n{MESSAGE}EOF\n)\"").decision == "allow"
    (commit,) = [part for part in parse(line) if len(part.words) == 4]
    assert commit.words[3].text == MESSAGE.rstrip("\n")


@pytest.mark.parametrize(
    "line",
    [
        'git commit -m "$(cat <<EOF\n$(reboot)\nEOF\n)"',
        "git commit -m $(cat <<'EOF'\n-F .env\nEOF\n)",
        "git commit -m \"$(cat <<'EOF'\na\nEOF\nreboot\n)\"",
        'git commit -m "$(cat <<\'EOF\'\na\nEOF)"; reboot\nb\nEOF\n)"',
        "git commit -m \"$(cat .env <<'EOF'\na\nEOF\n)\"",
        "git commit -m \"$(cat <<'EOF' > x\na\nEOF\n)\"",
        "git commit -m \"$(sh <<'EOF'\nreboot\nEOF\n)\"",
        "git commit -m x'\"$(cat <<'EOF'\n'; reboot; '\nEOF\n)\"'",
        'git commit -m "x "$(cat <<\'EOF\'\n"; reboot; "\nEOF\n)""',
        "cat <<'X'\nX\n\"$(cat <<'EOF'\nX\nreboot\nEOF\n)\"",
        "git commit -m \"$(cat <<-'EOF'\na\n\tEOF\nreboot\nEOF\n)\"",
        "\"$(cat <<'EOF'\nreboot\nEOF\n)\"",
    ],
)
def test_what_looks_like_a_quoted_here_document_requires_approval(project: Path, line: str) -> None:
    assert verdict(project, line).decision == "ask"
    found = sandbox_verdict(project, line, trusted=True)
    assert not (found.sandbox and found.sandbox.git), found.reasons


@pytest.mark.parametrize(
    "line", [f"git commit -F - <<'EOF'\n{MESSAGE}EOF", f"git add src/main.py\ngit commit -q -F - <<'EOF'\n{MESSAGE}EOF\ngit status\n"]
)
def test_a_quoted_here_document_as_input_is_a_text(project: Path, line: str) -> None:
    found = sandbox_verdict(project, line, trusted=True)
    assert found.sandbox and found.sandbox.git, found.reasons


@pytest.mark.parametrize(
    "line",
    [
        "git commit -F - <<EOF\n$(reboot)\nEOF",
        "git commit -F - <<'EOF'\na\nEOF\nreboot",
        "git commit -F - <<'EOF' && reboot\na\nEOF",
        "git commit -F - <<'EOF' > x\na\nEOF",
        "git commit -F - <<'EOF'\nEOFreboot\nEOF",
        "git commit -F - <<'EOF'\na\\\nEOF\nreboot\nEOF",
        "git commit -F - <<-'EOF'\na\n\tEOF\nreboot\nEOF",
        "git commit -F - <<'EOF' <<'END'\na\nEOF\nreboot\nEND",
        "git commit -F - <<'EOF'\na\n",
        "git add src/main.py\nsh <<'EOF'\nreboot\nEOF",
        "git add src/main.py\n. /dev/stdin <<'EOF'\nreboot\nEOF",
        "git add src/main.py\nxargs touch <<'EOF'\n.git/commondir\nEOF",
        "git add src/main.py\ntee .git/commondir <<'EOF'\nx\nEOF",
        "git add src/main.py\npython3 <<'EOF'\nx\nEOF",
        "git add --pathspec-from-file=- <<'EOF'\n.env\nEOF",
    ],
)
def test_what_is_no_quoted_input_does_not_get_the_git_folder(project: Path, line: str) -> None:
    found = sandbox_verdict(project, line, trusted=True)
    assert not (found.sandbox and found.sandbox.git), found.reasons
    assert verdict(project, line).decision == "ask"


@pytest.mark.parametrize(
    "line",
    [
        "python3 - <<'PY' 2>&1 | tail -20\nx = \"it's\"\nPY",
        'cd src && timeout 60 python3 - <<"PY_1" 2>/dev/null | head\nprint(1)\nPY_1\nls',
        "cat <<EOF 2>&1 | tail # comment\ntext\n\nEOF\n",
    ],
)
def test_the_line_may_go_on_after_the_start_of_a_here_document(project: Path, line: str) -> None:
    assert sandbox_verdict(project, line).sandbox
    assert verdict(project, line).decision == "ask", "not without a sandbox"


@pytest.mark.parametrize(
    "line",
    [
        "python3 - <<'PY' 2>&1 | tail\nimport os\nos.system('git push')\nPY",
        "bash <<'EOF' 2>&1 | tail\ngit push\nEOF",
        "cat <<'EOF' 2>&1 | tail\nls\nEOF\ngit push",
        "cat <<'EOF' 2>&1 | git push\nx\nEOF",
        "cat <<EOF 2>&1 | tail\n$(git push)\nEOF",
        "cat <<EOF 2>&1 | tail\n`git push`\nEOF",
        "cat <<EOF 2>&1 | tail\na\\\nEOF\ngit push\nEOF",
        "cat <<'EOF' 2>&1 | tail\na\nEOFgit push\nEOF",
        "cat <<'EOF' 2>&1 | tail \"\nx\"\nEOF\ngit push\nEOF",
        "cat <<'EOF' 2>&1 | cat <<'END'\nx\nEOF\nx\nEND\ngit push",
        "cat <<'EOF' 2>&1 | tail\nx\n",
    ],
)
def test_commands_after_the_start_of_a_here_document_ask(project: Path, line: str) -> None:
    assert sandbox_verdict(project, line, trusted=True).sandbox is None
    assert verdict(project, line).decision == "ask"
