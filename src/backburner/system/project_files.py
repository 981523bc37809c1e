"""Finds the files of a project that a sandbox must hide or protect: possible secrets, and files that other programs use automatically.

Listings of folders are kept in memory, because a project is searched before and after each sandboxed command.
"""

import contextlib
import functools
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from backburner.approval.effects import is_protected, may_be_secret
from backburner.system.git_repository import Repository, content_of
from backburner.system.paths import is_below

# Folders that are not searched: they hold the code of others, or what a build can make again.
_SKIPPED = frozenset(
    [".git", "node_modules", ".venv", "venv", "site-packages", "target", ".tox", ".nox", ".mypy_cache", ".pytest_cache"]
    + [".ruff_cache", ".gradle", ".next", ".nuxt", "dist-newstyle", ".terraform", "bower_components", ".yarn", ".pnpm-store", ".cache"]
)  # fmt: skip
# In a folder that git takes for a repository, although it is not called `.git`: what makes it one, and what makes git run programs there.
OF_REPOSITORY = ("HEAD", "config", "config.worktree", "commondir", "hooks")
_PARTS = ("HEAD", "objects", "refs", "commondir")
_CREDENTIALS = rb"(?i)://[^/\s:@]*:[^/\s@]+@|https?://[^/\s@]+@|extraheader|token|passw|secret"
_MAX_SETTINGS_BYTES = 256 * 1024
_MAX_FOLDERS = 20_000
_MAX_INDEX_BYTES = 64 << 20
_INDEX_HEADER_BYTES, _INDEX_ENTRY_BYTES, _INDEX_HASH_AT, _EXTENDED = 12, 62, 40, 0x4000  # an entry without its name; a flag
_EMPTY_FILE = bytes.fromhex("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")  # as git identifies its content
_SETTLED_NS = 50_000_000  # a folder that changed this shortly before it was listed may have changed again without a trace


class TooManyFolders(Exception):
    """The project is too large to be searched before each command."""


class ProjectFiles(NamedTuple):
    """Paths relative to the project; those of git settings are absolute, because a worktree has them elsewhere."""

    secrets: list[str]  # and sockets
    protected: list[str]
    git_settings: list[str]  # with credentials in them
    repository: Repository | None = None  # the one that the project belongs to


class _Folder(NamedTuple):
    changed_ns: int
    inode: int
    listed_ns: int
    folders: list[str]
    secrets: list[str]
    protected: list[str]
    links: list[str]


_listings: dict[str, _Folder] = {}


def search(project: str, home: str | None = None) -> ProjectFiles:
    """The possible secrets and the protected files of a project. TooManyFolders if it has more folders than can be searched.

    With `home`, that of Backburner, also links to the folders in it that sandboxed commands can write.
    """
    secrets: list[str] = []
    protected: list[str] = []
    for number, (path, found) in enumerate(_walk(project)):
        if number > _MAX_FOLDERS:
            raise TooManyFolders
        secrets += [f"{path}{name}" for name in found.secrets]
        protected += [f"{path}{name}" for name in found.protected]
        protected += [f"{path}{name}" for name in found.links if _leads_to_repository(project, f"{path}{name}", home)]
    if len(_listings) > 2 * _MAX_FOLDERS:
        _listings.clear()
    return ProjectFiles(secrets, protected, [])


def _leads_to_repository(project: str, name: str, home: str | None) -> bool:
    """Whether git would use another repository behind a link than the one of the project, and it is in a folder that is not searched itself."""
    folder = os.path.realpath(os.path.join(project, name))
    if home and is_below(folder, home):
        return True
    is_searched = is_below(folder, project) and _SKIPPED.isdisjoint(os.path.relpath(folder, project).split(os.sep))
    if is_searched or not os.path.isdir(folder):
        return False
    while folder not in (project, os.sep):
        if os.path.lexists(os.path.join(folder, ".git")) or _is_repository(
            {name for name in _PARTS if os.path.lexists(os.path.join(folder, name))}
        ):
            return True
        folder = os.path.dirname(folder)
    return False


def _is_repository(names: set[str]) -> bool:
    """Whether git takes a folder with these names in it for a repository, whatever it is called."""
    return "HEAD" in names and (names >= {"objects", "refs"} or "commondir" in names)


def settings_with_credentials(git_folders: Iterable[str]) -> list[str]:
    """The settings in git folders, and in those of submodules below them, that hold a password or a token."""
    found = []
    for folder in git_folders:
        modules = os.path.join(folder, "modules")
        below = [path for path, _, names in os.walk(modules) if "config" in names] if os.path.isdir(modules) else []
        for path in (os.path.join(place, name) for place in (folder, *below) for name in ("config", "config.worktree")):
            with contextlib.suppress(OSError):
                version = os.lstat(path)
                if _holds_credentials(path, version.st_mtime_ns, version.st_ctime_ns, version.st_size, version.st_ino):
                    found.append(path)
    return found


@functools.lru_cache(256)
def _holds_credentials(path: str, *_: int) -> bool:
    """Whether git settings hold a password or a token. The other arguments identify the version of the file."""
    return re.search(_CREDENTIALS, content_of(path, _MAX_SETTINGS_BYTES)) is not None


def without_credentials(settings: bytes) -> bytes:
    """Git settings without passwords and tokens."""
    lines = [re.sub(rb"://[^/\s@]+@", b"://", line) for line in settings.splitlines(keepends=True)]
    return b"".join(line for line in lines if not re.search(_CREDENTIALS, line))


def untracked(names: list[str], git: str | None) -> list[str]:
    """Those of these files that git does not track. What is tracked is no secret of this machine, and tests may need it.

    A file that git tracks as an empty one may have been hidden when it was added.
    """
    if not names or git is None:
        return names
    try:
        path = os.path.join(git, "index")
        found = os.stat(path)
        tracked = _tracked(path, tuple(names), found.st_mtime_ns, found.st_size, found.st_ino)
    except OSError:
        return names
    return [name for name in names if name not in tracked]


@functools.lru_cache(64)
def _tracked(path: str, names: tuple[str, ...], *_: int) -> frozenset[str]:
    """Those of these names that are in an index of git. The other arguments identify its version."""
    index = content_of(path, _MAX_INDEX_BYTES + 1)
    if len(index) > _MAX_INDEX_BYTES:
        return frozenset()
    wanted = {os.fsencode(name): name for name in names}
    return frozenset(wanted[name] for name in _names_in(index) if name in wanted)


def _names_in(index: bytes) -> Iterator[bytes]:
    """The names of files with content in an index; none if its format is not known. Version 4 shortens them."""
    if index[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
        return
    at = _INDEX_HEADER_BYTES
    for _ in range(int.from_bytes(index[8:12], "big")):
        flags = int.from_bytes(index[at + _INDEX_ENTRY_BYTES - 2 : at + _INDEX_ENTRY_BYTES], "big")
        start = at + _INDEX_ENTRY_BYTES + (2 if flags & _EXTENDED else 0)
        end = index.find(b"\0", start)
        if end < 0:
            return
        if index[at + _INDEX_HASH_AT : at + _INDEX_HASH_AT + len(_EMPTY_FILE)] != _EMPTY_FILE:
            yield index[start:end]
        at += (end - at + 8) // 8 * 8  # an entry ends with one to eight zeros


def _walk(project: str) -> Iterator[tuple[str, _Folder]]:
    left = [""]
    while left:
        path = left.pop()
        found = _list(project, path)
        if found:
            yield path, found
            left += [f"{path}{name}/" for name in found.folders]


def _list(project: str, path: str) -> _Folder | None:
    folder = os.path.join(project, path)
    try:
        now = os.stat(folder)
        if (
            (known := _listings.get(folder))
            and known[:2] == (now.st_mtime_ns, now.st_ino)
            and known.listed_ns > now.st_mtime_ns + _SETTLED_NS
        ):
            return known
        listed_ns = time.time_ns()
        folders, secrets, protected, links = [], [], [], []
        names = set()
        with os.scandir(folder) as entries:
            for entry in entries:
                names.add(entry.name)
                if is_protected(entry.name):
                    protected.append(entry.name)
                elif entry.is_symlink():
                    links.append(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    folders += [entry.name] if entry.name not in _SKIPPED else []
                elif entry.is_file(follow_symlinks=False):
                    secrets += [entry.name] if may_be_secret(path + entry.name) else []
                elif stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    secrets.append(entry.name)  # of a service outside
        if _is_repository(names):
            protected += sorted(names.intersection(OF_REPOSITORY))
            folders = [name for name in folders if name not in OF_REPOSITORY]
    except OSError:
        return None
    found = _listings[folder] = _Folder(now.st_mtime_ns, now.st_ino, listed_ns, folders, secrets, protected, links)
    return found
