"""Git commands that run without approval: which repository they use, which variables they keep, and what they can show."""

import os
import subprocess
from pathlib import Path

import pytest

from approval.command_world import ENVIRON, context_for, verdict
from backburner.approval.policy import Verdict, judge
from backburner.testing.records import request


def git(folder: Path, *words: str) -> str:
    clean = {"PATH": ENVIRON["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", *words]
    return subprocess.run(command, cwd=folder, env=clean, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one commit and a subdirectory."""
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    git(project, "init", "-q")
    (project / "src" / "main.py").write_text("x\n")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    return project


def verdict_for_external_agent(project: Path, line: str, folder: str = ".") -> Verdict:
    """Check a line that an external agent would run itself."""
    cwd = str(project / folder)
    return judge(request((line,), cwd, ENVIRON, shell=True), context_for(cwd, ENVIRON, opened=project, ours=False))


@pytest.mark.parametrize(
    "line",
    [
        "env -i git status",
        "env - git status",
        "env -u GIT_DIR git diff",
        "env -uGIT_CONFIG_COUNT git status",
        "env -viu X git status",
        "env --unset=GIT_DIR git diff",
        "env -i sh -c 'git diff'",
        "busybox env -i git diff",
        "exec -c git status",
    ],
)
def test_removing_the_variables_set_for_git_requires_approval(project: Path, line: str) -> None:
    assert verdict(project, line).decision == "ask"


@pytest.mark.parametrize(
    "line",
    [
        "env LC_ALL=C git status",
        "exec git status",
        "env -u FOO git status",
        "env --unset=FOO git diff",
        "env -v git log",
        "nohup git status",
        "timeout 5 git diff",
    ],
)
def test_other_ways_to_start_git_are_allowed(project: Path, line: str) -> None:
    assert verdict(project, line).decision == "allow"


def test_using_git_in_several_repositories_requires_approval(project: Path) -> None:
    git(project, "init", "-q", "nested")
    assert "several repositories" in verdict(project, "cd nested && git status").reasons[0]
    assert verdict(project / "nested", "git status").decision == "allow"
    assert verdict(project, "cd src && git status").decision == "allow"


def test_git_after_cd_into_one_of_several_repositories_is_allowed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        git(tmp_path, "init", "-q", name)
    assert verdict(tmp_path, "cd one && git status && git log").decision == "allow"
    assert verdict(tmp_path, "cd one && git status; cd ../two && git status").decision == "ask"


def test_a_worktree_of_a_bare_repository_in_the_project_requires_approval(tmp_path: Path, project: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", str(project), "plain.git")
    git(tmp_path / "plain.git", "worktree", "add", "-q", "../checkout", "main")
    assert "not protected" in verdict(tmp_path, "cd checkout && git status").reasons[0]
    assert verdict(tmp_path / "checkout", "git status").decision == "allow", "the settings are outside that project"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a directory")
def test_a_repository_of_another_user_requires_approval(project: Path) -> None:
    os.chown(project / ".git", 12345, 12345)
    assert "another user" in verdict(project, "git status").reasons[0]


def test_an_external_agent_that_uses_git_after_slow_commands_requires_approval(project: Path) -> None:
    for line in ("sleep 8; git diff", "grep -r x . && git status", "cat src/main.py; git diff"):
        assert verdict_for_external_agent(project, line, "src").decision == "ask", line
        assert verdict_for_external_agent(project, line).decision == "allow", "the repository in this directory is found first"
    for line in ("git status", "cd . && git diff | head -n 5", "echo x; git log"):
        assert verdict_for_external_agent(project, line, "src").decision == "allow", line


@pytest.fixture
def history(project: Path) -> Path:
    """The project after a secret was committed and removed again."""
    (project / ".env").write_text("KEY=abc123\n")
    git(project, "add", ".env")
    git(project, "commit", "-q", "-m", "second")
    git(project, "rm", "-q", ".env")
    git(project, "commit", "-q", "-m", "third")
    return project


@pytest.mark.parametrize(
    "line",
    ["git show", "git show HEAD", "git show HEAD~1", "git show main^", "git show {commit}", "git show {short}", "git show v1", "git diff {short} HEAD"]
    + ["git diff main...HEAD", "git diff HEAD~2..HEAD", "git log -p -1", "git diff src", "git diff -- src", "git show HEAD:src/main.py"]
    + ["git diff v1 -- src/main.py", "git show origin/main", "git show packed"],
)  # fmt: skip
def test_showing_a_commit_by_any_name_is_allowed(history: Path, line: str) -> None:
    commit = git(history, "rev-parse", "HEAD~1")
    git(history, "tag", "-a", "-m", "x", "v1")
    git(history, "branch", "packed")
    git(history, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(history, "pack-refs", "--all")
    found = verdict(history, line.format(commit=commit, short=commit[:8]))
    assert found.decision == "allow", found


@pytest.mark.parametrize(
    "line",
    ["git show {blob}", "git show {short}", "git diff {short} HEAD:src/main.py", "git show x-0-g{short}", "git show leak", "git show leak^{{}}"]
    + ["git show {tree}:plain.txt", "git diff {tree} {tree}", "git show {short} --", "git show -- ; git show {short} -- src", "git show {short}..HEAD"]
    + ["git log -p -a", "git diff -a HEAD~1", "git log -pa", "git show --text HEAD~1", "git log -p --binary", "git show HEAD~1:.env", "git show nothing"],
)  # fmt: skip
def test_showing_an_object_without_a_file_name_requires_approval(history: Path, line: str) -> None:
    blob, tree = git(history, "rev-parse", "HEAD~1:.env"), git(history, "rev-parse", "HEAD:src")
    git(history, "tag", "leak", blob)
    (history / blob[:8]).touch()  # with `--` after it, git does not take it for a file
    line = line.format(blob=blob, short=blob[:9], tree=tree) if "--" not in line else line.format(short=blob[:8])
    assert verdict(history, line).decision == "ask"


@pytest.mark.parametrize(
    "attributes", ["* diff\n", ".env text diff\n", "/config/*.env diff=x\n", "[attr]shown diff\n.env shown\n", '".env" diff\n']
)
def test_attributes_that_make_git_print_secrets_require_approval(history: Path, attributes: str) -> None:
    (history / ".gitattributes").write_text("*.py diff=python\n*.lock -diff\n")
    assert verdict(history, "git log -p").decision == "allow"
    (history / ".gitattributes").write_text(attributes)
    assert ".env" in verdict(history, "git log -p").reasons[0]


def test_an_external_agent_requires_approval_for_a_history_with_secrets(project: Path) -> None:
    for line in ("git log -p", "git show HEAD", "git diff HEAD"):
        assert verdict_for_external_agent(project, line).decision == "allow", line
    (project / "config").mkdir()
    (project / "config" / "Secrets.yml").write_text("KEY: abc123\n")
    git(project, "add", "-f", ".")
    git(project, "commit", "-q", "-m", "second")
    git(project, "reset", "-q", "--hard", "HEAD~1")
    for line in ("git log -p", "git show HEAD", "git diff HEAD"):
        assert "config/Secrets.yml" in verdict_for_external_agent(project, line).reasons[0], line
    assert verdict_for_external_agent(project, "git log --oneline").decision == "allow"
