"""Finds the home, the project of a folder, and paths without links. Imports little: `backburner list` must be fast."""

import os

from backburner.core.version import VERSION

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKED_CONFIG = "config.checked"


def locate(flag: str | None, environ: "Mapping[str, str]") -> str:
    """The home to use: `--home`, else BACKBURNER_HOME, else ~/.backburner."""
    chosen = flag or environ.get("BACKBURNER_HOME") or "~/.backburner"
    if "\0" in chosen or chosen.encode("utf-8", "replace").decode() != chosen:
        from backburner.core.errors import BadInput

        raise BadInput("The path of the home must be valid UTF-8.")
    return os.path.expanduser(chosen)


def project_of(cwd: str) -> str:
    """The project that a folder belongs to: the git root above it, else the folder itself."""
    return project_above(real_path(cwd))


def project_above(cwd: str) -> str:
    """Like `project_of`, for a path without links in it."""
    folder = cwd.rstrip("/")
    while not os.path.exists(f"{folder}/.git"):
        if not folder:
            return cwd
        folder = folder.rpartition("/")[0]
    return folder or "/"


def real_path(path: str) -> str:
    """The path without links in it. Like `os.path.realpath`, which is several times slower for a path that exists."""
    try:
        descriptor = os.open(path, os.O_PATH)
    except FileNotFoundError:
        folder, name = os.path.split(path)
        is_plain = folder.startswith("/") and name not in ("", ".", "..") and not os.path.lexists(path) and os.path.isdir(folder)
        return f"{real_path(folder).rstrip('/')}/{name}" if is_plain else _resolved(path)
    except (OSError, AttributeError):  # only Linux has O_PATH
        return _resolved(path)
    try:
        found = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        found = ""
    finally:
        os.close(descriptor)
    return found if found.startswith("/") and not found.endswith(" (deleted)") else _resolved(path)


def _resolved(path: str) -> str:
    try:
        return os.path.realpath(path)
    except OSError:  # a link of another process in /proc, which cannot be read
        return os.path.normpath(os.path.join(os.getcwd(), path))


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or inside it; both are absolute."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def stamp(path: str) -> tuple[int, int] | None:
    """A value that changes when a file changes; None if there is no file."""
    try:
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    except OSError:
        return None


def checked_mark(config: str) -> str:
    """The content of `config.checked` in a home if this version of Backburner has found the present config.toml to be valid."""
    return f"{stamp(config)} {VERSION}\n"
