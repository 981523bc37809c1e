"""Finds the repository that git would use in a folder, and its files. Reads only, and runs nothing."""

import os

from backburner.core.deferred_modules import re
from backburner.core.light_typing import NamedTuple
from backburner.system.home import read_plain
from backburner.system.paths import real_path

_MAX_REFS_BYTES = 4 << 20


class OddRepository(Exception):
    """Git would find settings in a place that is not checked here."""


class Repository(NamedTuple):
    """`top` is the work tree, `git` its own folder and `common` the one with the settings; the last two differ only in a linked worktree."""

    top: str
    git: str
    common: str


def repository_of(folder: str) -> Repository | None:
    """The repository that a folder belongs to; None if there is none. `folder` is absolute, without links in it."""
    while True:
        there = {name for name in ("HEAD", "objects", "refs", "commondir") if os.path.lexists(f"{folder}/{name}")}
        if "HEAD" in there and ("commondir" in there or there >= {"objects", "refs"}):
            raise OddRepository(f"{folder} is laid out as a repository of its own")
        git = os.path.join(folder, ".git")
        if os.path.lexists(git):
            break
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    if os.path.isdir(git) and not os.path.islink(git):
        return Repository(folder, git, git)
    # a linked worktree: its folder is inside the repository, and each names the other
    try:
        own = real_path(os.path.join(folder, _line(git).removeprefix("gitdir: ")))
        common = os.path.dirname(os.path.dirname(own))
        linked = os.path.basename(os.path.dirname(own)) == "worktrees" and real_path(_line(os.path.join(own, "gitdir"))) == git
        if linked and _line(os.path.join(own, "commondir")) == "../.." and os.path.isdir(os.path.join(common, "objects")):
            return Repository(folder, own, common)
    except (OSError, ValueError):
        pass
    raise OddRepository("its settings are in another place")


def is_commit(repository: Repository, name: str) -> bool:
    """Whether a name can only mean a commit: HEAD, a branch, or an ancestor of these. Does not run git, so some commits are not recognized."""
    found = re.fullmatch(r"([\w./-]*)((?:[~^]\d*|@\{[^{}]*\})*)", name)
    if found is None:
        return False
    base = found.group(1)
    if base in ("HEAD", "ORIG_HEAD") or name == "@" or (not base and name.startswith("@{")):
        return True
    if not base or base.startswith((".", "/", "-")) or "/." in base or re.fullmatch(r"[0-9a-fA-F]{40,}", base):
        return False
    if any(os.path.lexists(os.path.join(repository.common, folder, base)) for folder in ("", "refs", "refs/tags")):
        return False
    try:
        packed = content_of(os.path.join(repository.common, "packed-refs"), _MAX_REFS_BYTES)
    except OSError:
        packed = b""
    branches = [f"{folder}/{base}" for folder in ("refs/heads", "refs/remotes")]
    if f" refs/tags/{base}\n".encode() in packed:
        return False
    return any(os.path.isfile(os.path.join(repository.common, branch)) or f" {branch}\n".encode() in packed for branch in branches)


def content_of(path: str, max_bytes: int) -> bytes:
    """The beginning of a git file; FileNotFoundError if it does not exist, another OSError if it is a link, a pipe or the like."""
    try:
        return read_plain(path, max_bytes)
    except FileNotFoundError:
        if os.path.lexists(path):
            raise OSError(f"{path} is not a plain file") from None
        raise


def _line(path: str) -> str:
    """The only line of a small file, which must not be a link."""
    return content_of(path, 4096).decode().removesuffix("\n")
