"""What in /etc not everybody may read. It is hidden from sandboxed commands of root, which could read it even without capabilities."""

import contextlib
import functools
import os
import shutil
import stat
import subprocess
import tempfile
import time

from backburner.core.digests import sha256
from backburner.system.paths import is_below

_SEARCH_INTERVAL = 60.0  # seconds after which changes of the system are noticed
_TRIAL_TIMEOUT = 10.0  # seconds


def private_settings() -> list[tuple[str, bool]]:
    """The files and folders, and whether each is a folder; without what this process cannot read without capabilities either."""
    return _private_settings(time.monotonic() // _SEARCH_INTERVAL)


@functools.lru_cache(2)
def _private_settings(_: float) -> list[tuple[str, bool]]:
    """An ordinary user cannot read these anyway; root could, even without capabilities."""
    if os.geteuid():
        return []
    found, groups = [], {os.getegid(), *os.getgroups()}
    for folder, folders, names in os.walk("/etc"):
        for name in list(folders) + names:
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            mode, is_ours = status.st_mode, status.st_uid == 0 or status.st_gid in groups
            if not stat.S_ISLNK(mode) and not mode & stat.S_IROTH:
                if is_ours or mode & stat.S_IRWXO:
                    found.append((path, stat.S_ISDIR(mode)))
                if name in folders:
                    folders.remove(name)
    return found


def empty_copies(home: str, bubblewrap: str) -> str | None:
    """A folder with an empty file for each private file in /etc, for an overlay that hides all of them with a single mount.

    None if there are none, or if they must be hidden one by one: an overlay does not show what is mounted below /etc.
    """
    return _empty_copies(home, bubblewrap, time.monotonic() // _SEARCH_INTERVAL)


@functools.lru_cache(2)
def _empty_copies(home: str, bubblewrap: str, _: float) -> str | None:
    names = tuple(path for path, is_folder in private_settings() if not is_folder)
    if not names or os.path.islink("/etc") or _has_mounts("/etc"):
        return None
    folder = f"{home}/sandbox/etc-{sha256(os.fsencode('/'.join(names))).hexdigest()[:16]}"
    try:
        if not os.path.isdir(folder):
            _make_empty_copies(folder, names)
        return folder if _hides(bubblewrap, folder, names) else None
    except OSError:
        return None


def _has_mounts(folder: str) -> bool:
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
        return any(is_below(line.split(" ")[1], folder) for line in mounts)


def _make_empty_copies(folder: str, names: tuple[str, ...]) -> None:
    """Folders above a private file are not private, or they would be hidden themselves."""
    os.makedirs(os.path.dirname(folder), 0o700, exist_ok=True)
    new = tempfile.mkdtemp(prefix="etc-", dir=os.path.dirname(folder))
    os.chmod(new, 0o755)
    for name in names:
        path = os.path.join(new, os.path.relpath(name, "/etc"))
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    try:
        os.rename(new, folder)
    except OSError:  # another process was faster
        shutil.rmtree(new, ignore_errors=True)


@functools.cache
def _hides(bubblewrap: str, folder: str, names: tuple[str, ...]) -> bool:
    """Try whether this bubblewrap can mount the overlay, and whether all these files are empty there."""
    command = [bubblewrap, "--unshare-user", "--cap-drop", "ALL", "--ro-bind", "/", "/", *overlay_arguments(folder), "--", "cat", *names]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRIAL_TIMEOUT, env={"PATH": os.defpath})
        return done.returncode == 0 and not done.stdout
    return False


def overlay_arguments(folder: str) -> list[str]:
    """The arguments of bubblewrap for /etc with these empty files in it."""
    return ["--overlay-src", "/etc", "--overlay-src", folder, "--ro-overlay", "/etc"]
