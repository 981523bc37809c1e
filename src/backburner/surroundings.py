"""The world the gate asks about: which files there are, which program a name means, what a repository's settings run. Reads only."""

import os
import re
from collections.abc import Iterable

from backburner.home import project_above
from backburner.process import executable_of

# Settings of a repository that only say how it is kept. Any other one may make git run something.
_SETTINGS = (
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|quotepath)"
    r"|remote\..*\.(url|fetch|pushurl|tagopt|prune)|branch\..*\.(remote|merge|rebase)|user\.(name|email)|init\.defaultbranch"
    r"|pull\.(rebase|ff)|push\.(default|autosetupremote)|color\..*|gui\..*|gc\..*|fetch\.prune|rerere\.enabled|advice\..*"
)
_LARGEST_SETTINGS = 256 * 1024
_LARGEST_INDEX = 64 << 20
_MOST_MATCHES = 10_000


class Surroundings:
    """The machine as a command would find it."""

    def __init__(self, cwd: str, environ: dict[str, str], hosts: Iterable[str] = ()) -> None:
        self.cwd = os.path.realpath(cwd)
        self._resolved: dict[str, str] = {}  # for as long as one question takes
        self.project = project_above(self.cwd)
        if not os.path.exists(os.path.join(self.project, ".git")) and self._is_shared(environ):
            self.project = os.path.join(self.cwd, "\N{EMPTY SET}")  # a place that many rely on is nobody's project: all of it is outside
        self._environ = environ
        self._path = environ.get("PATH", os.defpath)
        self.relative_path = not all(map(os.path.isabs, self._path.split(os.pathsep)))
        self._hosts = tuple(hosts)

    def _is_shared(self, environ: dict[str, str]) -> bool:
        own = {os.path.realpath(home) for home in {environ.get("HOME"), os.path.expanduser("~")} if home}
        top = self.cwd.split("/")[1]
        return (
            self.cwd in own
            or self.cwd == "/"
            or top in ("etc", "usr", "bin", "sbin", "lib", "lib64", "boot", "dev", "proc", "sys", "var", "opt")
        )

    def has_variable(self, name: str) -> bool:
        return name in self._environ

    def resolve(self, path: str) -> str:
        if (found := self._resolved.get(path)) is None:
            found = self._resolved[path] = os.path.realpath(os.path.join(self.cwd, path))
        return found

    def matches(self, folder: str, pattern: str) -> list[str]:
        """As a shell would expand it in a folder: a leading dot is only fitted by a dot."""
        import glob
        import itertools

        found = [os.path.join(folder, hit) for hit in itertools.islice(glob.iglob(pattern, root_dir=folder), _MOST_MATCHES)]
        return found if len(found) < _MOST_MATCHES else [*found, "/"]  # too many to look at all of them

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def files_below(self, path: str) -> list[str]:
        """The files in a folder and below it, as many as can be looked at quickly; big folders of other people's code are left out."""
        found: list[str] = []
        for folder, folders, files in os.walk(path):
            folders[:] = [name for name in folders if name not in (".git", "node_modules", ".venv", "venv", "__pycache__", "target")]
            found += [os.path.join(folder, name) for name in files]
            if len(found) > _MOST_MATCHES:
                return [*found, os.path.join(path, ".env")]  # too many to look at all of them
        return found

    def executable(self, name: str) -> str | None:
        return executable_of(name, self.cwd, self._path)

    def hosts(self) -> Iterable[str]:
        return self._hosts

    def git_traps(self, folders: Iterable[str]) -> list[str]:
        """What would make git run a program in any of these folders, or cannot be told: settings, a hook, submodules, odd layouts."""
        return [trap for folder in dict.fromkeys(folders) for trap in self._traps_of(folder)]

    def _traps_of(self, folder: str) -> list[str]:
        while True:
            there = {name for name in ("HEAD", "objects", "refs", "commondir") if os.path.lexists(os.path.join(folder, name))}
            if "HEAD" in there and ("commondir" in there or there >= {"objects", "refs"}):
                return [f"{folder} is laid out as a repository of its own"]
            git = os.path.join(folder, ".git")
            if os.path.lexists(git):
                break
            above = os.path.dirname(folder)
            if above == folder:
                return []
            folder = above
        if not os.path.isdir(git) or os.path.islink(git):
            return ["its settings lie elsewhere"]
        found = [f"it has {name}" for name in ("modules", "commondir", "config.worktree") if os.path.lexists(os.path.join(git, name))]
        if os.access(os.path.join(git, "hooks", "post-index-change"), os.X_OK):
            found.append("its post-index-change hook")
        if os.path.lexists(os.path.join(folder, ".gitmodules")) or _holds_submodules(git):
            found.append("it has submodules")
        return [*found, *_odd_settings(os.path.join(git, "config"))]


def _holds_submodules(git: str) -> bool:
    """Whether the index names other repositories (mode 160000), or cannot be looked at as a whole."""
    try:
        with open(os.path.join(git, "index"), "rb") as file:
            index = file.read(_LARGEST_INDEX + 1)
        split = any(name.startswith("sharedindex") for name in os.listdir(git))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return split or len(index) > _LARGEST_INDEX or b"\0\0\xe0\0" in index


def _odd_settings(path: str) -> list[str]:
    """The settings in a file that are not known to be harmless; anything that does not read as plain settings is odd, too."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read(_LARGEST_SETTINGS + 1)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError):
        return ["its settings cannot be read"]
    if len(text) > _LARGEST_SETTINGS:
        return ["its settings are too long to be read"]
    if any(not c.isprintable() and c not in "\n\t" for c in text.replace("\r\n", "\n")):
        return ["its settings hold hidden characters"]
    section, odd = "", []
    for line in (line.strip(" \t\r") for line in text.split("\n")):
        if not line or line.startswith(("#", ";")):
            continue
        if head := re.fullmatch(r'\[([A-Za-z0-9-]+)(?:\s+"([^"\\]*)")?\]', line):
            section = head.group(1).lower() + (f".{head.group(2)}" if head.group(2) is not None else "")
            continue
        pair = re.fullmatch(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?", line)
        name = f"{section}.{pair.group(1).lower()}" if pair else line
        url = pair is not None and name.endswith("url") and "::" in (pair.group(2) or "")
        if not pair or line.endswith("\\") or url or not re.fullmatch(_SETTINGS, name):
            odd.append(name[:60])
    return odd
