"""The folders that the sandboxed commands of one project share, in Backburner's home: caches and temporary files."""

import functools
import os
import shutil
import stat

from backburner.core.digests import sha256
from backburner.system.home import Home

CACHES, TEMPORARY = "caches", "tmp"
_TEMPORARY_MODE = 0o1777


def shared_folder(home: str, kind: str, project: str | None) -> str:
    """The folder of this kind for a project, which no other command uses. `home` is a path without links."""
    folder = f"{home}/sandbox/{kind}/{_name(project)}"
    try:
        os.utime(folder)  # when it was last used
    except FileNotFoundError:
        os.makedirs(folder, 0o700, exist_ok=True)
    if kind == TEMPORARY and stat.S_IMODE(os.stat(folder).st_mode) != _TEMPORARY_MODE:
        os.chmod(folder, _TEMPORARY_MODE)  # as programs expect it; others cannot enter the home
    return folder


@functools.lru_cache(64)
def _name(project: str | None) -> str:
    return sha256(os.fsencode(project or "")).hexdigest()[:16]


def clean_up(home: Home, before: float) -> None:
    """Delete the folders that no command has used since then, and temporary files that have not changed since then. Follows no link."""
    for kind in (CACHES, TEMPORARY):
        for folder in _children(os.path.join(home.root, "sandbox", kind)):
            if _changed(folder) < before:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for path in _children(folder) if kind == TEMPORARY else ():
                if _changed(path) < before:
                    shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def _children(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []


def _changed(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0
