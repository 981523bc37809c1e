"""Git repositories whose settings, hooks, layout or submodules can make a reading git command run a program."""

import subprocess
from pathlib import Path

import pytest

from approval.command_world import PATH, make_project_with_traps, verdict

# Settings with which a git command that only reads runs a program.
SETTINGS = [
    "[core]\n\tfsmonitor = ./x\n",
    "[core]fsmonitor=./x\n",
    "[core] [include] path=x\n",
    "\ufeff[include]\n\tpath = x\n",
    "#" * (1 << 20) + "\n[core]\n\tfsmonitor = ./x\n",
    '[merge "x"]\n\tdriver = ./x\n',
    '[protocol "ext"]\n\tallow = always\n',
    "[core]\n\tworktree = /etc\n",
    "[core]\n\talternateRefsCommand = ./x\n",
    '[diff "x"]\n\ttextconv = ./x\n',
    '[filter "x"]\n\tclean = ./x\n',
    '[includeIf "gitdir:/"]\n\tpath = x\n',
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project_with_traps(tmp_path)


@pytest.mark.parametrize("settings", SETTINGS, ids=[repr(text[-30:]) for text in SETTINGS])
def test_git_started_by_others_requires_approval_if_settings_run_a_program(project: Path, settings: str) -> None:
    (project / ".git" / "config").write_text(settings)
    assert verdict(project, "git status", ours=False).decision == "ask"


def test_git_started_by_others_requires_approval_if_an_index_hook_exists(project: Path) -> None:
    """`git status` writes the index, which runs post-index-change."""
    (project / ".git" / "hooks" / "post-index-change").write_text("#!/bin/sh\n")
    (project / ".git" / "hooks" / "post-index-change").chmod(0o755)
    assert verdict(project, "git status", ours=False).decision == "ask"


def test_git_started_by_others_requires_approval_in_a_nested_repository(project: Path) -> None:
    (project / "src" / ".git").mkdir()
    (project / "src" / ".git" / "config").write_text("[core]\n\tfsmonitor = ./x\n")
    assert verdict(project, "cd src && git status", ours=False).decision == "ask"


def test_the_settings_of_a_submodule_are_checked(project: Path) -> None:
    """`git status` runs itself in each submodule."""
    (project / ".git" / "modules" / "x").mkdir(parents=True)
    (project / ".git" / "modules" / "x" / "config").write_text("[core]\n\tfsmonitor = ./x\n")
    assert verdict(project, "git status").decision == "ask"


def test_a_tracked_repository_that_is_not_a_listed_submodule_is_checked(tmp_path: Path) -> None:
    """`git status` runs itself there, with the settings of that repository."""
    script = (
        "git init -q . && git init -q sub && git -C sub -c user.name=a -c user.email=a commit -q --allow-empty -m x"
        " && git add sub && git -C sub config core.fsmonitor ./x"
    )
    clean = {"PATH": PATH, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, env=clean, check=True, capture_output=True)
    assert verdict(tmp_path, "git status").decision == "ask"


def test_a_directory_with_the_layout_of_a_bare_repository_requires_approval(project: Path) -> None:
    """git takes any directory with HEAD, objects and refs for a repository, and reads its `config`."""
    for name in ("objects", "refs"):
        (project / "src" / name).mkdir()
    (project / "src" / "HEAD").write_text("ref: refs/heads/main\n")
    (project / "src" / "config").write_text("[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = ./x\n")
    assert verdict(project, "cd src && git status").decision == "ask"


def test_a_directory_with_a_head_and_a_common_directory_requires_approval(project: Path) -> None:
    for name in ("objects", "refs"):
        (project / "src" / "c" / name).mkdir(parents=True)
    (project / "src" / "HEAD").write_text("ref: refs/heads/main\n")
    (project / "src" / "commondir").write_text("c\n")
    assert verdict(project, "cd src && git status").decision == "ask"


def test_a_directory_whose_head_is_a_broken_link_requires_approval(project: Path) -> None:
    for name in ("objects", "refs"):
        (project / "src" / name).mkdir()
    (project / "src" / "HEAD").symlink_to("refs/heads/main")
    assert verdict(project, "cd src && git status").decision == "ask"


def test_a_line_that_creates_a_repository_and_uses_it_requires_approval(project: Path) -> None:
    line = "mkdir -p d/objects d/refs && echo 'ref: refs/heads/main' > d/HEAD && cp LICENSE d/config && cd d && git status"
    assert verdict(project, line).decision == "ask"


def test_a_gitdir_file_that_points_to_nothing_requires_approval(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / ".git").write_text("gitdir: /nowhere\n")
    assert verdict(other, "git status").decision == "ask"


@pytest.mark.parametrize("content", [b"gitdir: \xff\xfe", b"gitdir: a\0b", b"", b"\xff"])
def test_a_damaged_gitdir_file_requires_approval(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".git").write_bytes(content)
    assert verdict(tmp_path, ("git", "status")).decision == "ask"


def test_a_damaged_common_directory_file_requires_approval(project: Path) -> None:
    (project / ".git" / "commondir").write_bytes(b"\xff\0")
    assert verdict(project, ("git", "status")).decision == "ask"


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\r", "\x1c", "\x85", "\u2028"])
def test_only_a_line_feed_ends_a_comment_in_the_git_settings(project: Path, separator: str) -> None:
    text = f"[core]\n# x{separator}[gui]\nfsmonitor = ./x\n"
    (project / ".git" / "config").write_bytes(text.encode())
    assert verdict(project, "git status").decision == "ask"
