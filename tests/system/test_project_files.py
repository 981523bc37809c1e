"""Which files of a project a sandbox hides or protects, and which folders of a home directory it shows."""

import os
import subprocess
from pathlib import Path

import pytest

from backburner.approval.effects import is_protected, may_be_secret
from backburner.system import project_files, toolchains


@pytest.mark.parametrize(
    "name", [".env", ".env.production", "prod.env", "server.pem", "id_rsa", "credentials.json", "secrets/prod.yaml", "a/token.txt"]
)
def test_files_that_may_be_secrets_are_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("x")
    assert project_files.search(str(tmp_path)).secrets == [name]


@pytest.mark.parametrize(
    "name", ["src/tokenizer.py", ".env.example", "docs/passwords.md", "secrets/__init__.py", "node_modules/x/server.pem", "a.txt"]
)
def test_source_code_examples_and_code_of_others_are_not_hidden(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("x")
    assert project_files.search(str(tmp_path)).secrets == []


def test_a_file_that_appears_later_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert project_files.search(str(tmp_path)).secrets == []
    os.utime(tmp_path / "a", ns=(0, 0))
    assert project_files.search(str(tmp_path)).secrets == []
    (tmp_path / "a/.env").write_text("x")
    (tmp_path / "a/.vscode").mkdir()
    found = project_files.search(str(tmp_path))
    assert (found.secrets, found.protected) == (["a/.env"], ["a/.vscode"])


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/.env").write_text("x")
    (tmp_path / "project/link").symlink_to(tmp_path / "outside")
    (tmp_path / "project/.env").symlink_to(tmp_path / "outside/.env")
    assert project_files.search(str(tmp_path / "project")).secrets == []


def test_a_project_with_too_many_folders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_files, "_MAX_FOLDERS", 3)
    for number in range(5):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(project_files.TooManyFolders):
        project_files.search(str(tmp_path))


def test_tracked_files_are_not_secret(tmp_path: Path) -> None:
    for name in ("server.pem", "other.pem"):
        (tmp_path / name).write_text("x")
    for words in (("init", "-q"), ("add", "server.pem")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert project_files.untracked(["server.pem", "other.pem"], str(tmp_path / ".git")) == ["other.pem"]
    assert project_files.untracked(["server.pem"], str(tmp_path / "none")) == ["server.pem"]


def test_a_file_is_not_tracked_because_its_name_ends_another_one(tmp_path: Path) -> None:
    names = ["conf/prod.env", "my-server.pem", "x" * 200 + ".key", *(f"file{number}" for number in range(40))]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    for words in (("init", "-q"), ("add", "."), ("rm", "-q", "--cached", "file0")):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    git = str(tmp_path / ".git")
    assert project_files.untracked([".env", "prod.env", "server.pem", "s", "file0"], git) == [
        ".env",
        "prod.env",
        "server.pem",
        "s",
        "file0",
    ]
    assert project_files.untracked(names[:3] + names[4:], git) == []
    subprocess.run(["git", "-C", str(tmp_path), "add", "--intent-to-add", "file0"], check=True)  # an index of version 3
    assert project_files.untracked(["file0", "prod.env", "conf/prod.env"], git) == ["file0", "prod.env"]


def test_credentials_are_removed_from_git_settings(tmp_path: Path) -> None:
    (tmp_path / "modules/sub").mkdir(parents=True)
    text = (
        b'[remote "origin"]\n\turl = https://me:pass@example.org/x.git\n[http]\n\textraheader = Authorization: x\n[core]\n\tbare = false\n'
    )
    (tmp_path / "config").write_bytes(text)
    (tmp_path / "modules/sub/config").write_bytes(text)
    assert len(project_files.settings_with_credentials([str(tmp_path)])) == 2
    cleaned = project_files.without_credentials(text)
    assert cleaned == b'[remote "origin"]\n\turl = https://example.org/x.git\n[http]\n[core]\n\tbare = false\n'


@pytest.mark.parametrize(
    ("name", "protected"),
    [(".vscode/tasks.json", True), ("a/.GIT/config", True), ("CLAUDE.md", True), ("claude.md", False), ("src/git.py", False)],
)
def test_protected_names(name: str, protected: bool) -> None:
    assert is_protected(name) == protected


def test_only_names_decide_about_secrets() -> None:
    assert may_be_secret(".ENV") and not may_be_secret("environment.yml")


def test_toolchains_are_readable_but_not_the_rest_of_a_home_directory(tmp_path: Path) -> None:
    home = tmp_path / "home/me"
    for name in (".cargo/bin", ".ssh", "bin", "tools/node/bin", ".config/gh", "other"):
        (home / name).mkdir(parents=True)
    (tmp_path / "sdk/bin").mkdir(parents=True)
    (home / ".cargo/credentials.toml").write_text("x")
    path = os.pathsep.join(
        map(str, (home / "bin", home / "tools/node/bin", home, tmp_path / "sdk/bin", "/usr/bin", tmp_path / "home", "relative"))
    )
    found = toolchains.readable(str(home), path)
    assert found == [str(folder) for folder in (home / ".cargo", home / "bin", home / "tools/node", tmp_path / "sdk")]
    assert toolchains.credentials(str(home)) == [str(home / ".cargo/credentials.toml")]
