"""Git commands that change files: what a sandbox hides or keeps as it is needs approval, because git would leave it out or stop half-way."""

import subprocess
from pathlib import Path

import pytest

from approval.command_world import sandbox_verdict


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose branch `other` changes protected files, and whose branch `topic` does not."""
    project = tmp_path / "project"
    for folder in (".github", "src", "tools"):
        (project / folder).mkdir(parents=True)
    for name in (".github/ci.yml", "src/main.py", "tools/settings.json", "README.md"):
        (project / name).write_text("one\n")
    (project / ".gitignore").write_text(".env\n")
    git(project, "init", "-q", "-b", "main")
    commit(project)
    for branch, changed in (("topic", "src/main.py"), ("other", ".github/ci.yml")):
        git(project, "checkout", "-q", "-b", branch, "main")
        (project / changed).write_text("two\n")
        commit(project)
    git(project, "checkout", "-q", "main")
    return project


def git(project: Path, *words: str) -> None:
    person = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *person, "-C", str(project), *words], env={"PATH": "/usr/bin:/bin", "HOME": str(project.parent)}, check=True)


def commit(project: Path) -> None:
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "x")


def decision(project: Path, line: str) -> str:
    found = sandbox_verdict(project, line, trusted=True)
    assert found.sandbox is None or found.sandbox.git, line
    return found.decision


@pytest.mark.parametrize("verb", ["checkout", "switch", "merge", "cherry-pick", "revert", "rebase"])
def test_commits_with_protected_files_need_approval(project: Path, verb: str) -> None:
    assert decision(project, f"git {verb} topic") == "sandbox"
    assert decision(project, f"git {verb} other") == "ask"


def test_a_file_does_not_get_a_protected_name(project: Path) -> None:
    for target in (".mcp.json", "CLAUDE.md", ".vscode", "src/.envrc", ".github/x.yml"):
        assert decision(project, f"git mv tools/settings.json {target}") == "ask", target
    assert decision(project, "git mv tools .claude") == "ask"
    assert decision(project, "git mv .github x") == "ask"
    assert decision(project, "git mv tools/settings.json src/settings.json") == "sandbox"


def test_protected_files_are_not_deleted_with_their_folder(project: Path) -> None:
    (project / "tools/.vscode").mkdir()
    (project / "tools/.vscode/x.json").write_text("{}\n")
    commit(project)
    assert decision(project, "git rm -r tools") == "ask"
    assert decision(project, "git rm -r src") == "sandbox"


def test_changed_protected_files_are_not_stashed(project: Path) -> None:
    (project / "README.md").write_text("two\n")
    assert decision(project, "git stash") == "sandbox"
    (project / ".github/ci.yml").write_text("three\n")
    assert decision(project, "git stash") == "ask"
    git(project, "stash", "-q")
    assert decision(project, "git stash pop") == "ask"
    (project / ".envrc").write_text("x\n")
    assert decision(project, "git stash") == "sandbox"
    assert decision(project, "git stash -u") == "ask"
    git(project, "stash", "-q", "-u")
    assert decision(project, "git stash apply") == "ask"
    assert decision(project, "git stash pop stash@{1}") == "ask"


def test_a_hidden_secret_is_not_added_as_an_empty_file(project: Path) -> None:
    (project / ".env").write_text("KEY=1\n")
    assert decision(project, "git add -A") == "sandbox", "it is ignored"
    (project / ".gitignore").write_text("")
    for line in ("git add -A", "git add .", "git add .env", "cd src && git add ..", "git add src/../*"):
        assert decision(project, line) == "ask", line
    for line in ("git add src", "git add -u", "git add README.md .gitignore"):
        assert decision(project, line) == "sandbox", line


def test_a_branch_that_follows_another_changes_the_settings(project: Path) -> None:
    git(project, "update-ref", "refs/remotes/origin/topic", "topic")
    for line in ("git checkout -b new origin/topic", "git switch -c new origin/topic", "git branch new origin/topic", "git switch missing"):
        assert decision(project, line) == "ask", line
    for line in ("git switch -c new --no-track origin/topic", "git checkout -b new topic", "git branch new topic"):
        assert decision(project, line) == "sandbox", line


def test_a_file_is_no_branch(project: Path) -> None:
    assert decision(project, "git checkout README.md") == "ask", "it would discard changes"


@pytest.mark.parametrize("folder", ["hooks", ".husky/_"])
def test_hooks_in_another_folder_are_found(project: Path, folder: str) -> None:
    git(project, "config", "core.hooksPath", folder)
    assert decision(project, "git commit -m x") == "ask", "the folder is missing"
    for name in ("pre-commit", "post-checkout"):
        (project / folder).mkdir(parents=True, exist_ok=True)
        (project / folder / name).write_text("#!/bin/sh\n")
        (project / folder / name).chmod(0o755)
    (project / ".husky").mkdir(exist_ok=True)
    (project / ".husky/pre-commit").write_text("make\n")
    assert decision(project, "git commit -m x") == "ask"
    assert decision(project, "git commit --no-verify -m x") == "sandbox"
    assert decision(project, "git switch -c new") == ("ask" if folder == "hooks" else "sandbox"), "husky runs only what is above"


def stopped_rebase(project: Path, *steps: str) -> None:
    folder = project / ".git/rebase-merge"
    folder.mkdir()
    (folder / "git-rebase-todo").write_text("".join(f"{step}\n" for step in (*steps, "", "# Rebase 1..2 onto 3")))


def head_of(project: Path, branch: str) -> str:
    return (project / f".git/refs/heads/{branch}").read_text().strip()


def test_a_rebase_continues_if_it_only_picks_commits_without_protected_files(project: Path) -> None:
    assert decision(project, "git rebase --continue") == "sandbox", "there is nothing to continue"
    stopped_rebase(project, f"pick {head_of(project, 'topic')} x")
    assert decision(project, "git rebase --continue") == "sandbox"


@pytest.mark.parametrize(
    "step", ["exec ./run.sh", "x make", "merge -C 1234 topic", "edit {topic} x", "pick {other} x", "reset main", "pick topic x"]
)
def test_other_steps_of_a_rebase_need_approval(project: Path, step: str) -> None:
    heads = {branch: head_of(project, branch) for branch in ("topic", "other")}
    stopped_rebase(project, f"pick {heads['topic']} x", step.format(**heads))
    assert decision(project, "git rebase --continue") == "ask"


def test_a_rebase_with_patches_needs_approval(project: Path) -> None:
    (project / ".git/rebase-apply").mkdir()
    assert decision(project, "git rebase --continue") == "ask"


@pytest.mark.parametrize("line", ["git rebase --continue", "git merge --continue", "git notes add -m x"])
def test_hooks_need_approval(project: Path, line: str) -> None:
    assert decision(project, line) == "sandbox"
    for name in ("pre-commit", "post-rewrite", "reference-transaction"):
        (project / ".git/hooks" / name).write_text("#!/bin/sh\n")
        (project / ".git/hooks" / name).chmod(0o755)
    assert decision(project, line) == "ask"


@pytest.mark.parametrize("line", ["git notes add -m seen", "git notes append -m 'two words' topic", "git notes add --message=x"])
def test_a_note_with_a_text_is_added(project: Path, line: str) -> None:
    assert decision(project, line) == "sandbox"


@pytest.mark.parametrize(
    "line",
    [
        "git notes add",
        "git notes edit",
        "git notes add -f -m x",
        "git notes add -m x -F .env",
        "git notes add -m x -C HEAD",
        "git notes --ref=x add -m x",
        "git notes remove HEAD",
        "git notes prune",
        "git notes merge x",
        'git notes add -m "$(cat .env)"',
        "git notes add -m x; make",
    ],
)
def test_other_notes_need_approval(project: Path, line: str) -> None:
    assert decision(project, line) == "ask"


def test_paths_of_a_diff_are_not_taken_for_commits(project: Path) -> None:
    assert sandbox_verdict(project, "git diff main...topic -- '*.py' missing.txt").sandbox
    assert sandbox_verdict(project, "git diff 1234567 -- '*.py'").sandbox is None, "it could be any object"
    assert sandbox_verdict(project, "git show deadbeef").sandbox is None


def test_a_commit_that_can_make_a_folder_a_repository_needs_approval(project: Path) -> None:
    git(project, "checkout", "-q", "-b", "bare")
    (project / "src/HEAD").write_text("ref: refs/heads/main\n")
    commit(project)
    git(project, "checkout", "-q", "main")
    assert decision(project, "git switch bare") == "ask"
    assert decision(project, "git merge bare") == "ask"
