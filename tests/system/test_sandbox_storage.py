"""The folders that sandboxed commands of one project share."""

import os
from pathlib import Path

from backburner.system.home import Home
from backburner.system.sandbox_storage import CACHES, TEMPORARY, clean_up, shared_folder


def test_projects_have_their_own_folders(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home")).make()
    folders = {shared_folder(home.root, kind, project) for kind in (CACHES, TEMPORARY) for project in ("/a", "/b", None)}
    assert len(folders) == 6 and all(map(os.path.isdir, folders))
    assert shared_folder(home.root, TEMPORARY, "/a") in folders


def test_what_was_not_used_for_long_is_deleted(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "home")).make()
    used, unused = Path(shared_folder(home.root, TEMPORARY, "/a")), Path(shared_folder(home.root, CACHES, "/b"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    for name in ("old", "new"):
        (used / name).mkdir()
        (used / f"{name}.log").write_text("x")
    (used / "link").symlink_to(outside)
    for path in (used / "old", used / "old.log", unused, outside):
        os.utime(path, (1, 1))
    os.utime(used / "link", (1, 1), follow_symlinks=False)
    os.utime(used)
    clean_up(home, 1000)
    assert sorted(os.listdir(used)) == ["new", "new.log"] and not unused.exists() and (outside / "file").exists()
