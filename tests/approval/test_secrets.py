"""Secrets: files are recognized by name, in arguments, patterns, options and searched directories."""

import subprocess
from pathlib import Path

import pytest

from approval.command_world import make_project, make_project_with_traps, sandbox_verdict, verdict
from backburner.approval.effects import looks_secret

LINES = [
    ("cat .env", ""),
    ("cat .e*", "a pattern that matches a secret"),
    ("cat .en?", "a pattern that matches a secret"),
    ("cat ./.[e]nv", "a pattern that matches a secret"),
    ("head .*", "a pattern that matches a secret"),
    ("cat ~/.s*/id*", ""),
    ("file -f .env", "reads file names from a file and prints them"),
    ("file --files-from=.env", "reads file names from a file and prints them"),
    ("tree --fromfile .env", "prints a file"),
    ("du --files0=.env", "an abbreviated long option"),
    ("wc --files0=.env", "an abbreviated long option"),
    ("sort --files0=.env", "an abbreviated long option"),
    ("diff --from-file=.env README.md", "a secret in the same word as an option"),
    ("diff --to-file=.env README.md", "a secret in the same word as an option"),
    ("xzcat --files=.env", "a secret in the same word as an option"),
    ("grep -f.env x README.md", "a secret in the same word as an option"),
    ("strings @.env", "reads options from a file and prints them"),
    ("grep -r KEY .", "a secret is in the directory that is searched"),
    ("grep -rn '' .", "a secret is in the directory that is searched"),
    ("cat .git/config", "a secret"),
    ("grep -r . .git", "a secret"),
    ("grep -r -e KEY conf src", "a secret"),
    ("grep -re KEY conf src", "a secret"),
    ("grep -r --regexp=KEY conf src", "a secret"),
    ("rg -g .env KEY", "a secret"),
    ("rg --glob=.env KEY", "a secret"),
    ("rg KEY secrets", "a secret"),
    ("diff -rN src .", "a secret"),
    ("diff -N src conf", "a secret"),
    ("diff src conf", "a secret"),
    ("cat .[[:alpha:]]nv", "a secret"),
    ("cat .[[=e=]]nv", "a secret"),
    ("bash -c 'cat .[^x]nv'", "a secret"),
    ("cat prod.env", "a secret"),
    ("cat .env-production", "a secret"),
    ("cat secrets/db.yaml", "a secret"),
]

SECRET_NAMES = """terraform.tfstate terraform.tfstate.backup kubeconfig serviceAccount.json service-account.json gcp-key.json .vault_pass a.p8 a.ppk
.my.cnf .s3cfg .dockercfg auth.json oauth_creds.json apikey.txt api_key.json API-KEY local.settings.json .git/config .git/modules/x/config a.keytab
.git/worktrees/x/config.worktree .boto ledger.db-wal"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = make_project_with_traps(tmp_path)
    (project / "secrets").mkdir()
    for name in ("prod.env", "secrets/db.yaml"):
        (project / name).write_text("KEY=topsecret\n")
    return project


@pytest.mark.parametrize(("line", "reason"), LINES, ids=[repr(line) for line, _ in LINES])
def test_reading_a_secret_requires_approval(project: Path, line: str, reason: str) -> None:
    assert verdict(project, line).decision == "ask", reason or "not harmless"


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_a_secret_is_recognized_by_its_name(tmp_path: Path, name: str) -> None:
    assert looks_secret(name)
    assert verdict(make_project(tmp_path), f"cat {name}").decision == "ask"


def test_a_search_requires_approval_if_it_would_read_a_secret(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    (project / ".env").unlink()
    assert verdict(project, "grep -rn x .").decision == "allow"
    (project / ".git/config").write_text('[core]\n\tbare = false\n[remote "o"]\n\turl = https://ghp_abc@example.org/x\n')
    assert verdict(project, "grep -rn x .").decision == "ask"
    assert verdict(project, "git remote -v").decision == "ask"
    assert verdict(project, "grep -rn --exclude-dir=.git x .").decision == "allow"
    assert verdict(project, "grep -rn --exclude-dir .git x .").decision == "allow"
    (project / ".git/config").write_text('[core]\n\tbare = false\n[remote "o"]\n\turl = git@example.org:x/y\n')
    assert verdict(project, "git remote -v").decision == "allow"
    for folder in ("node_modules/x", ".venv/lib", "target/out"):
        (project / folder).mkdir(parents=True)
        (project / folder / "tokenizer.js").write_text("x")
        assert verdict(project, "grep -rn x .").decision == "allow", "source code of dependencies can have any name"
        (project / folder / ".env").write_text("KEY=1")
        assert verdict(project, "grep -rn x .").decision == "ask", folder
        (project / folder / ".env").unlink()
    assert verdict(project, "grep -rn x .git").decision == "ask"


def test_a_search_of_too_many_files_requires_approval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backburner.system.command_context._MAX_SEARCHED_FILES", 3)
    found = verdict(make_project(tmp_path), "grep -rn x .")
    assert found.decision == "ask" and "more than 3 files" in found.reasons[0]


def test_a_search_in_a_directory_with_too_many_files_requires_approval(project: Path) -> None:
    (project / "many" / "deep").mkdir(parents=True)
    for number in range(10_001):
        (project / "many" / f"{number}").touch()
    (project / "many" / "deep" / "server.pem").write_text("KEY\n")
    assert verdict(project, "grep -r KEY many").decision == "ask"


def test_rg_does_not_search_files_that_gitignore_excludes(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    (project / "build" / "api_key.txt").write_text("x")
    assert verdict(project, "rg x").decision == "ask"
    (project / ".gitignore").write_text("/build\n*.log\n")
    assert verdict(project, "rg x").decision == "allow"
    (project / ".gitignore").write_text("/build\n!build/api_key.txt\n")
    assert verdict(project, "rg x").decision == "ask"


def test_git_requires_approval_to_show_the_content_of_tracked_secrets(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a.py").write_text("x")
    subprocess.run(["git", "add", "a.py"], cwd=tmp_path, check=True)
    for line in ("git diff", "git show", "git log -p"):
        assert verdict(tmp_path, line).decision == "allow", line
    (tmp_path / ".env").write_text("KEY=1")
    subprocess.run(["git", "add", "-f", ".env"], cwd=tmp_path, check=True)
    for line in ("git diff --cached", "git show abcd1234", "git log -p", "git log -pw", "git log -wU3", "git status -v", "git blame a.py"):
        assert verdict(tmp_path, line).decision == "ask", line
    assert verdict(tmp_path, "git log --oneline").decision == "allow"


@pytest.mark.parametrize(
    "line", ["echo $GITHUB_TOKEN", 'echo "${API_KEY}" | head -c 8', "printf '%s' $DB_PASSWORD", "env | grep -i token", "set | grep KEY"]
)
def test_asking_for_a_secret_variable_needs_approval(tmp_path: Path, line: str) -> None:
    """A sandbox has none of them, but a person should know."""
    assert sandbox_verdict(make_project(tmp_path), line, trusted=True).sandbox is None


@pytest.mark.parametrize(
    "line", ["echo $HOME", "echo ${API_KEY:+set}", "echo ${#TOKEN}", "KEY=a; echo $KEY", "env | grep -i path", "env | grep -v TOKEN"]
)
def test_other_variables_are_printed_in_the_sandbox(tmp_path: Path, line: str) -> None:
    found = sandbox_verdict(make_project(tmp_path), line, trusted=True)
    assert found.sandbox, found.reasons
