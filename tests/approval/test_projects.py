"""Which folder counts as the project of an automatic verdict, and what never does."""

import os
import subprocess
from pathlib import Path

import pytest

from approval.command_world import ENVIRON, world_of
from backburner.approval.policy import Verdict, judge
from backburner.system.command_context import LocalCommandContext, may_be_project, project_for
from backburner.testing.records import request


@pytest.fixture
def person(tmp_path: Path) -> Path:
    """A person's home with a project in it, and hidden folders."""
    home = tmp_path / "people" / "ann"
    for folder in ("work/app/.git", "work/app/src", "work/other", ".config/git", ".config/gh", ".local/bin", "notes"):
        (home / folder).mkdir(parents=True)
    (home / ".config/gh/hosts.yml").write_text("oauth: x\n")
    return home


def environ(person: Path) -> dict[str, str]:
    return {**ENVIRON, "HOME": str(person)}


def project(person: Path, cwd: str, opened: str | None, trusted: tuple[str, ...] = ()) -> str | None:
    found = project_for(
        str(person / cwd), None if opened is None else str(person / opened), [str(person / one) for one in trusted], environ(person)
    )
    return found and os.path.relpath(found, person)


def say(person: Path, line: str, cwd: str, opened: str | None) -> Verdict:
    place = str(person / cwd)
    found = project_for(place, None if opened is None else str(person / opened), (), environ(person))
    return judge(request((line,), place, environ(person), shell=True), LocalCommandContext(place, environ(person), project=found))


def test_the_project_is_the_git_root_of_the_folder_that_the_session_was_opened_in(person: Path) -> None:
    assert project(person, "work/app/src", "work/app/src") == "work/app"
    assert project(person, "work/app", "work/app/src") == "work/app"
    assert project(person, "work/other", "work/other") == "work/other"


def test_a_folder_that_a_caller_names_is_outside_unless_a_person_trusted_it(person: Path) -> None:
    assert project(person, "work/other", "work/app") is None
    assert project(person, "work/app/src", None) is None
    assert project(person, "work/other", "work/app", ("work/other",)) == "work/other"
    assert project(person, "work/app", None, ("work/app",)) == "work/app"


@pytest.mark.parametrize("folder", [".", "..", "../..", ".config", ".config/gh", ".local/bin"])
def test_a_home_what_is_above_it_and_its_hidden_folders_are_never_a_project(person: Path, folder: str) -> None:
    assert project(person, folder, folder) is None
    assert project(person, folder, folder, (folder,)) is None, "not even where it was trusted"


def test_a_home_that_is_a_repository_is_not_the_project_of_what_lies_in_it(person: Path) -> None:
    (person / ".git").mkdir()
    assert project(person, "notes", "notes") == "notes"
    assert project(person, ".", "notes") is None
    assert say(person, "echo x > ../.bash_login", "notes", "notes").decision == "ask"


def test_a_repository_above_the_home_is_not_the_project_either(person: Path) -> None:
    (person.parent / ".git").mkdir()
    assert project(person, "notes", "notes") == "notes"


def test_a_folder_that_everybody_can_write_to_is_nobodys_project(tmp_path: Path) -> None:
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
def test_reading_and_writing_in_a_folder_that_a_caller_names_is_asked_about(person: Path, line: str, cwd: str) -> None:
    assert say(person, line, cwd, "work/app").decision == "ask"


def test_without_a_project_what_touches_nothing_is_still_allowed(person: Path) -> None:
    for line in ("echo x", "date", "sleep 1", "uname -a"):
        assert say(person, line, ".", None).decision == "allow", line


def test_trust_is_offered_only_where_it_can_be_given(person: Path) -> None:
    assert say(person, "make", "work/app", "work/app").trust_would_do
    assert say(person, "make", "work/other", "work/app").trust_would_do
    assert not say(person, "make", ".", ".").trust_would_do
    assert not say(person, "make", ".config", "work/app").trust_would_do


def test_a_link_does_not_make_a_hidden_folder_a_project(person: Path) -> None:
    (person / "work" / "settings").symlink_to(person / ".config")
    assert project(person, "work/settings", "work/settings") is None


def test_the_folder_of_backburner_is_inside_no_project(person: Path) -> None:
    home = person / "work" / "app" / "state"
    (home / "worktrees" / "task_1" / "src").mkdir(parents=True)
    (home / "config.toml").write_text("")
    (person / "work" / "app" / "link").symlink_to(home)

    def verdict(line: str, cwd: Path, opened: Path) -> Verdict:
        root = project_for(str(cwd), str(opened), (), environ(person), str(home))
        world = LocalCommandContext(str(cwd), environ(person), project=root, home=str(home))
        return judge(request((line,), str(cwd), environ(person), shell=True), world)

    app = person / "work" / "app"
    for line in (
        "cat state/config.toml",
        "cat link/config.toml",
        "touch state/x",
        "echo x > state/rules",
        "grep -r x .",
        "grep -r x state",
        "cat s*/*",
    ):
        assert verdict(line, app, app).decision == "ask", line
    for line in ("ls", "printf x > config2.toml", "cat config.toml"):
        assert verdict(line, home, app).decision == "ask", line
        assert verdict(line, home, home).decision == "ask", line
    checkout = home / "worktrees" / "task_1"
    assert verdict("touch src/new.py", checkout, checkout).decision == "allow", "a checkout of an agent's own is its project"
    assert verdict("cat ../../config.toml", checkout, checkout).decision == "ask"


def test_a_linked_worktree_is_a_repository_like_any_other(tmp_path: Path) -> None:
    main, linked = tmp_path / "main", tmp_path / "linked"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q", str(main)], check=True)
    subprocess.run([*git, "-C", str(main), "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*git, "-C", str(main), "worktree", "add", "-q", str(linked)], check=True)

    def status() -> Verdict:
        return judge(request(("git", "status"), str(linked), ENVIRON), world_of(linked, ENVIRON))

    assert status().decision == "allow", status().reasons
    (main / ".git" / "config").write_text('[filter "x"]\n\tclean = ./evil\n')
    assert status().decision == "ask"
    (main / ".git" / "config").write_text("[core]\n\tbare = false\n")
    (linked / ".git").write_text(f"gitdir: {tmp_path / 'planted'}\n")
    assert status().decision == "ask"
