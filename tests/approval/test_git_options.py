"""Subcommands and options of git that change something, run a program, or show a secret."""

from pathlib import Path

import pytest

from approval.command_world import make_project_with_traps, verdict

LINES = [
    ("git diff --output=README.md", ""),
    ("git diff --output README.md", ""),
    ("git log --outp=README.md", "an abbreviated long option"),
    ("git grep -O./bin/ls x", ""),
    ("git grep -nO./bin/ls x", "an option combined with another one"),
    ("git grep --open=./bin/ls x", "an abbreviated long option"),
    ("git grep --open-files=./bin/ls x", "an abbreviated long option"),
    ("git grep --no-ind KEY", "an abbreviated long option"),
    ("git grep --untracked KEY", "secrets are often untracked files"),
    ("git diff --ext-d", "an abbreviated long option"),
    ("git diff --no-index README.md /etc/passwd", ""),
    ("git diff README.md /etc/passwd", "a path outside the project implies --no-index"),
    ("git diff /dev/null /etc/passwd", "a path outside the project implies --no-index"),
    ("git blame --cont=.env README.md", "an abbreviated long option"),
    ("git cat-file --textc HEAD:x", "an abbreviated long option"),
    ("git cat-file --filt HEAD:x", "an abbreviated long option"),
    ("git blame .env", "a secret"),
    ("git show HEAD:.env", "a secret"),
    ("git log -p -- .env", "a secret"),
    ("git cat-file -p HEAD:.env", "a secret"),
    ("git grep KEY -- .env", "a secret"),
    ("git branch new", ""),
    ("git branch -a -D main", "the second option changes something"),
    ("git branch -v -D foo", "the second option changes something"),
    ("git branch -r -d origin/x", "the second option changes something"),
    ("git branch --list -m new", "the second option changes something"),
    ("git branch --all --edit-description", "runs an editor"),
    ("git tag -n -d v1", "the second option changes something"),
    ("git tag -l -d v1", "the second option changes something"),
    ("git remote -v remove origin", "the second option changes something"),
    ("git remote -v add x y", "the second option changes something"),
    ("git remote -v update", "connects to another machine"),
    ("git remote show origin", "connects to another machine"),
    ("git config --get http.extraheader", "may contain a credential"),
    ("git config --list", "may contain a credential"),
    ("git --help status", "runs a viewer"),
    ("git status --help", "runs a viewer"),
    ("git log --show-signature", "runs gpg"),
    ("git log --format=%G?", "runs gpg"),
    ("git -c core.pager=x log", ""),
    ("git --no-pager -c a=b log", ""),
    ("git -C / status", ""),
    ("git push", ""),
    ("git fetch", ""),
    ("git commit -m x", ""),
    ("git stash", ""),
    ("git checkout .", ""),
    ("x='1 --output=README.md'; git log --since $x", "an expansion or a pattern can become several words"),
    ("git diff -L --output=README.md", "the option takes its value only in the same word, so the next word is another option"),
    ("git rev-list -L --output=README.md", "the option takes its value only in the same word, so the next word is another option"),
    ("git blame --pretty --output=README.md", "the option takes its value only in the same word, so the next word is another option"),
    ("git blame --abbrev --output=README.md", "the option takes its value only in the same word, so the next word is another option"),
    ("git log --pretty --show-signature", "the option takes its value only in the same word, so the next word is another option"),
    ("git log --format='%+G?'", "checking a signature runs gpg"),
    ("git log --format='%-G?'", "checking a signature runs gpg"),
    ("git log --format='% GK'", "checking a signature runs gpg"),
    ("git log -L1,5:.env", "a secret"),
    ("git log -L 1,5:.env", "a secret"),
    ("git log -p -- ':(top).env'", "a secret"),
    ("git log -p -- ':(icase).ENV'", "a secret"),
    ("git log -p -- '.e*'", "a secret"),
    ("git log -p -- '.en?'", "a secret"),
    *(
        (f"git {verb} {option} --output=README.md", "the option takes its value only in the same word, so the next word is another option")
        for verb in ("log", "diff", "show", "shortlog", "rev-list")
        for option in ("--pretty", "--format", "--abbrev", "--untracked-files", "-U")
    ),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_a_harmful_git_subcommand_or_option_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"
