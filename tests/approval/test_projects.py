"""Which directory is the project of a command, and which directories are never a project."""

import os
import subprocess
from pathlib import Path

import pytest

from approval.command_world import ENVIRON, context_for, verdict
from backburner.approval.policy import Verdict, judge
from backburner.system.command_context import LocalCommandContext, may_be_project, project_for
from backburner.testing.records import request


@pytest.fixture
def user_home(tmp_path: Path) -> Path:
    """A home directory with a project and hidden directories."""
    home = tmp_path / "people" / "ann"
    for folder in ("work/app/.git", "work/app/src", "work/other", ".config/git", ".config/gh", ".local/bin", "notes"):
        (home / folder).mkdir(parents=True)
    (home / ".config/gh/hosts.yml").write_text("oauth: x\n")
    return home


def environ(user_home: Path) -> dict[str, str]:
    return {**ENVIRON, "HOME": str(user_home)}


def project(user_home: Path, cwd: str, opened: str | None, trusted: tuple[str, ...] = ()) -> str | None:
    root = project_for(
        str(user_home / cwd),
        None if opened is None else str(user_home / opened),
        [str(user_home / folder) for folder in trusted],
        environ(user_home),
    )
    return root and os.path.relpath(root, user_home)


def verdict_in(user_home: Path, line: str, cwd: str, opened: str | None) -> Verdict:
    folder = str(user_home / cwd)
    found = project_for(folder, None if opened is None else str(user_home / opened), (), environ(user_home))
    return judge(request((line,), folder, environ(user_home), shell=True), LocalCommandContext(folder, environ(user_home), project=found))


def test_the_project_is_the_git_root_of_the_directory_of_the_session(user_home: Path) -> None:
    assert project(user_home, "work/app/src", "work/app/src") == "work/app"
    assert project(user_home, "work/app", "work/app/src") == "work/app"
    assert project(user_home, "work/other", "work/other") == "work/other"


def test_another_directory_is_outside_the_project_unless_it_is_trusted(user_home: Path) -> None:
    assert project(user_home, "work/other", "work/app") is None
    assert project(user_home, "work/app/src", None) is None
    assert project(user_home, "work/other", "work/app", ("work/other",)) == "work/other"
    assert project(user_home, "work/app", None, ("work/app",)) == "work/app"


@pytest.mark.parametrize("folder", [".", "..", "../..", ".config", ".config/gh", ".local/bin"])
def test_a_home_its_parents_and_its_hidden_directories_are_never_a_project(user_home: Path, folder: str) -> None:
    assert project(user_home, folder, folder) is None
    assert project(user_home, folder, folder, (folder,)) is None, "not even if it was trusted"


def test_a_home_that_is_a_repository_is_not_the_project_of_its_subdirectories(user_home: Path) -> None:
    (user_home / ".git").mkdir()
    assert project(user_home, "notes", "notes") == "notes"
    assert project(user_home, ".", "notes") is None
    assert verdict_in(user_home, "echo x > ../.bash_login", "notes", "notes").decision == "ask"


def test_a_repository_that_contains_the_home_is_not_the_project(user_home: Path) -> None:
    (user_home.parent / ".git").mkdir()
    assert project(user_home, "notes", "notes") == "notes"


def test_a_directory_that_everybody_can_write_to_is_not_a_project(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / ".git").mkdir(parents=True)
    (shared / "mine").mkdir()
    shared.chmod(0o1777)
    assert not may_be_project(str(shared), ENVIRON)
    assert project_for(str(shared / "mine"), str(shared / "mine"), (), ENVIRON) == str(shared / "mine")


@pytest.mark.parametrize(
    "line",
    [
        "mkdir -p git",
        "printf x > config",
        "cat hosts.yml",
        "touch x.service",
        "ls",
        "cat *",
        "git log -p",
        "find",
        "rg x",
        "grep -r x",
        "du",
        "tree",
    ],
)
@pytest.mark.parametrize("cwd", [".config", ".config/gh", ".config/git", "..", "work/other"])
def test_reading_and_writing_in_another_directory_requires_approval(user_home: Path, line: str, cwd: str) -> None:
    assert verdict_in(user_home, line, cwd, "work/app").decision == "ask"


def test_commands_that_use_no_files_are_allowed_without_a_project(user_home: Path) -> None:
    for line in ("echo x", "date", "sleep 1", "uname -a"):
        assert verdict_in(user_home, line, ".", None).decision == "allow", line


def test_trust_is_offered_only_for_directories_that_can_be_trusted(user_home: Path) -> None:
    assert verdict_in(user_home, "make", "work/app", "work/app").trust_would_do
    assert verdict_in(user_home, "make", "work/other", "work/app").trust_would_do
    assert not verdict_in(user_home, "make", ".", ".").trust_would_do
    assert not verdict_in(user_home, "make", ".config", "work/app").trust_would_do


def test_a_link_to_a_hidden_directory_is_not_a_project(user_home: Path) -> None:
    (user_home / "work" / "settings").symlink_to(user_home / ".config")
    assert project(user_home, "work/settings", "work/settings") is None


def test_the_home_of_backburner_is_not_part_of_a_project(user_home: Path) -> None:
    home = user_home / "work" / "app" / "state"
    (home / "worktrees" / "task_1" / "src").mkdir(parents=True)
    (home / "config.toml").write_text("")
    (user_home / "work" / "app" / "link").symlink_to(home)

    def verdict_for(line: str, cwd: Path, opened: Path) -> Verdict:
        root = project_for(str(cwd), str(opened), (), environ(user_home), str(home))
        context = LocalCommandContext(str(cwd), environ(user_home), project=root, home=str(home))
        return judge(request((line,), str(cwd), environ(user_home), shell=True), context)

    app = user_home / "work" / "app"
    for line in (
        "cat state/config.toml",
        "cat link/config.toml",
        "touch state/x",
        "echo x > state/rules",
        "grep -r x .",
        "grep -r x state",
        "cat s*/*",
    ):
        assert verdict_for(line, app, app).decision == "ask", line
    for line in ("ls", "printf x > config2.toml", "cat config.toml"):
        assert verdict_for(line, home, app).decision == "ask", line
        assert verdict_for(line, home, home).decision == "ask", line
    checkout = home / "worktrees" / "task_1"
    assert verdict_for("touch src/new.py", checkout, checkout).decision == "allow", "the worktree of an agent is its project"
    assert verdict_for("cat ../../config.toml", checkout, checkout).decision == "ask"


def test_a_linked_worktree_is_checked_like_any_repository(tmp_path: Path) -> None:
    main, linked = tmp_path / "main", tmp_path / "linked"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q", str(main)], check=True)
    subprocess.run([*git, "-C", str(main), "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*git, "-C", str(main), "worktree", "add", "-q", str(linked)], check=True)

    def status() -> Verdict:
        return judge(request(("git", "status"), str(linked), ENVIRON), context_for(linked, ENVIRON))

    assert status().decision == "allow", status().reasons
    (main / ".git" / "config").write_text('[filter "x"]\n\tclean = ./evil\n')
    assert status().decision == "ask"
    (main / ".git" / "config").write_text("[core]\n\tbare = false\n")
    (linked / ".git").write_text(f"gitdir: {tmp_path / 'planted'}\n")
    assert status().decision == "ask"


@pytest.mark.parametrize("line", ["cat hostname", "touch backburner-test-new", "echo x > backburner-test-new"])
def test_a_system_directory_is_not_a_project(line: str) -> None:
    assert verdict(Path("/etc"), line).decision == "ask"


@pytest.mark.parametrize("name", [".bash_aliases", ".gitconfig", ".curlrc", ".config/autostart/x.desktop"])
def test_creating_settings_in_a_home_requires_approval(tmp_path: Path, name: str) -> None:
    assert verdict(tmp_path, ("touch", name), environ={"HOME": str(tmp_path)}).decision == "ask"
