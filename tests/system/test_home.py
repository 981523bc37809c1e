"""Paths of a home, locks, and folders that are refused."""

import errno
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from backburner.core.errors import BadInput, HomeUnusable
from backburner.system.home import Home, is_locked, lock, write_atomically
from backburner.system.paths import locate, project_of, real_path
from backburner.system.wakeups import WakeupListener, wake


@pytest.fixture
def long_home(tmp_path: Path) -> Iterator[Home]:
    """A home whose path is too long for a socket inside it."""
    root = tmp_path / ("x" * 100)
    root.mkdir()
    home = Home(str(root))
    yield home
    shutil.rmtree(home.socket_dir, ignore_errors=True)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path is short enough for a home with its sockets inside."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_a_new_home_is_private(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "a" / "home")).make()
    assert {oct(os.stat(path).st_mode & 0o777) for path in (home.root, os.path.join(home.root, "tasks"))} == {"0o700"}


def test_an_existing_home_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    Home(str(tmp_path)).make()
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(HomeUnusable, match=f"Cannot use the home directory {tmp_path / 'home'}"):
        Home(str(tmp_path / "home")).make()


@pytest.mark.parametrize(
    ("flag", "environ", "wanted"),
    [
        ("/a", {"BACKBURNER_HOME": "/b"}, "/a"),
        (None, {"BACKBURNER_HOME": "/b"}, "/b"),
        ("", {"BACKBURNER_HOME": ""}, "~/.backburner"),
        (None, {}, "~/.backburner"),
        ("~/x", {}, "~/x"),
    ],
)
def test_the_home_comes_from_the_flag_the_environment_or_the_default(flag: str | None, environ: dict[str, str], wanted: str) -> None:
    assert locate(flag, environ) == os.path.expanduser(wanted)


def test_a_home_with_a_nul_character_is_refused() -> None:
    with pytest.raises(BadInput):
        locate("a\0b", {})


def test_a_project_is_the_git_root_above_a_folder_else_the_folder(tmp_path: Path) -> None:
    deep = tmp_path / "repo" / "src" / "deep"
    deep.mkdir(parents=True)
    assert project_of(str(deep)) == str(deep)
    (tmp_path / "repo" / ".git").mkdir()
    assert project_of(str(deep)) == project_of(str(tmp_path / "repo")) == str(tmp_path / "repo")


def test_a_worktree_whose_git_is_a_file_is_a_project(tmp_path: Path) -> None:
    (tmp_path / "tree" / "src").mkdir(parents=True)
    (tmp_path / "tree" / ".git").write_text("gitdir: elsewhere")
    assert project_of(str(tmp_path / "tree" / "src")) == str(tmp_path / "tree")


def test_a_link_to_a_folder_is_the_same_project(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert project_of(str(tmp_path / "link")) == str(tmp_path / "real")


def test_sockets_are_in_the_home_if_its_path_is_short_enough(tmp_path: Path) -> None:
    home = Home("/tmp/h")
    assert home.socket_dir == "/tmp/h/sockets"
    mine = Home(str(tmp_path))
    assert mine.create_socket_dir() == mine.socket_dir
    assert oct(os.stat(mine.socket_dir).st_mode & 0o777) == "0o700"


def test_sockets_of_a_home_with_a_long_path_are_below_tmp(long_home: Home) -> None:
    assert long_home.socket_dir.startswith(f"/tmp/backburner-{os.getuid()}/")
    listener = WakeupListener(long_home.create_socket_dir())
    try:
        assert wake(long_home.socket_dir, os.path.basename(listener.path))
        assert listener.wait(5)
    finally:
        listener.close()


@pytest.mark.parametrize("length", range(60, 90))
def test_a_socket_can_be_bound_for_any_length_of_the_home_path(length: int) -> None:
    home = Home("/tmp/" + "x" * (length - 5))
    path = os.path.join(home.socket_dir, f"{2**32}-12345678.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one, pytest.raises(FileNotFoundError):
        one.bind(path)


def test_homes_with_long_paths_have_separate_sockets_and_links_share_them(long_home: Home, tmp_path: Path) -> None:
    other = Home(long_home.root + "y")
    assert other.socket_dir != long_home.socket_dir
    link = tmp_path / ("z" * 100)
    link.symlink_to(long_home.root)
    assert Home(str(link)).socket_dir == long_home.socket_dir


def test_a_socket_folder_that_others_can_access_is_refused(short_path: Path) -> None:
    home = Home(str(short_path))
    (short_path / "sockets").mkdir(mode=0o700)
    (short_path / "sockets").chmod(0o770)
    with pytest.raises(HomeUnusable, match="is not a folder that only you can access; remove it"):
        home.create_socket_dir()


def test_a_link_in_place_of_the_socket_folder_is_refused(short_path: Path) -> None:
    (short_path / "elsewhere").mkdir(mode=0o700)
    (short_path / "sockets").symlink_to(short_path / "elsewhere")
    with pytest.raises(HomeUnusable):
        Home(str(short_path)).create_socket_dir()


def test_a_file_in_place_of_the_socket_folder_is_refused(short_path: Path) -> None:
    (short_path / "sockets").write_text("")
    with pytest.raises(HomeUnusable):
        Home(str(short_path)).create_socket_dir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_socket_folder_of_another_user_is_refused(short_path: Path) -> None:
    (short_path / "sockets").mkdir(mode=0o700)
    os.chown(short_path / "sockets", 12345, 12345)
    with pytest.raises(HomeUnusable):
        Home(str(short_path)).create_socket_dir()


def test_a_lock_is_held_by_one_process_until_released(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not is_locked(path)
    first = lock(path)
    assert first is not None and is_locked(path)
    assert lock(path) is None
    os.close(first)
    assert not is_locked(path)
    second = lock(path, wait=True)
    assert second is not None
    os.close(second)


def test_a_shared_lock_excludes_exclusive_locks(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first, second = lock(path, shared=True), lock(path, shared=True)
    assert first is not None and second is not None
    assert lock(path) is None
    os.close(first)
    os.close(second)


def test_checking_a_lock_does_not_keep_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    (tmp_path / "lock").touch()
    assert not is_locked(path) and not is_locked(path)
    taken = lock(path)
    assert taken is not None
    os.close(taken)


def test_a_file_is_replaced_atomically_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    before = path.stat().st_ino
    write_atomically(str(path), "new")
    assert (path.read_text(), oct(path.stat().st_mode & 0o777)) == ("new", "0o600")
    assert path.stat().st_ino != before
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "inside").touch()
    with pytest.raises(OSError):
        write_atomically(str(tmp_path / "file"), "new")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "path", ["", ".", "/", "file", "link", "link/inside", "link/missing", "missing", "missing/..", "missing/x", "link/..", "dangling", "loop", "a//link/./x", "/proc/self", "folder/"]
)  # fmt: skip
def test_a_real_path_is_what_the_library_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for file in ("file", "folder/deep/inside"):
        (tmp_path / file).touch()
    for link, target in (("link", "folder/deep"), ("a/link", "../folder"), ("dangling", "nowhere/else"), ("loop", "loop")):
        (tmp_path / link).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    assert real_path(path) == os.path.realpath(path)
    assert real_path(os.path.join(tmp_path, path)) == os.path.realpath(os.path.join(tmp_path, path))


def test_the_real_path_of_a_file_whose_name_says_that_it_was_deleted(tmp_path: Path) -> None:
    (tmp_path / "x (deleted)").touch()
    assert real_path(str(tmp_path / "x (deleted)")) == str(tmp_path / "x (deleted)")


def test_a_link_that_cannot_be_read_is_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/1/root for an ordinary user."""

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os.path, "realpath", refuse)
    assert real_path("/proc/1/root/../x") == "/proc/1/x"


def test_a_lock_that_the_file_system_refuses_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="cannot be locked: No locks available") as caught:
        lock(str(tmp_path / "engine.lock"))
    assert caught.value.filename == str(tmp_path / "engine.lock")
