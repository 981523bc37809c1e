"""The world the gate asks about: which files there are, which program a name means, what a repository's settings run. Reads only."""

import os
import re
from collections.abc import Iterable

from backburner.home import project_of
from backburner.process import executable_of

# Settings of a repository that make git run a program.
_TRAPS = (
    r"^\s*(fsmonitor|sshcommand|pager|editor|hookspath|gitproxy|askpass|external|textconv|command|program|clean|smudge|process|helper|tool|cmd|path|uploadpack|receivepack)\s*=\s*(.*)$"
    r"|^\s*\[\s*(include|includeif|filter|alias|pager|difftool|mergetool|credential)\b.*\]"
)


_MOST_MATCHES = 10_000


class Surroundings:
    """The machine as a command would find it."""

    def __init__(self, cwd: str, environ: dict[str, str], hosts: Iterable[str] = ()) -> None:
        self.cwd = os.path.realpath(cwd)
        self.project = project_of(cwd)
        self._path = environ.get("PATH", os.defpath)
        self._hosts = tuple(hosts)

    def resolve(self, path: str) -> str:
        return os.path.realpath(os.path.join(self.cwd, path))

    def matches(self, pattern: str) -> list[str]:
        """As a shell would expand it: a leading dot is only fitted by a dot."""
        import glob
        import itertools

        return list(itertools.islice(glob.iglob(pattern), _MOST_MATCHES))

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def executable(self, name: str) -> str | None:
        return executable_of(name, self.cwd, self._path)

    def hosts(self) -> Iterable[str]:
        return self._hosts

    def git_traps(self) -> list[str]:
        """What stands in the repository's own settings, in any of the files git reads there, and would run something."""
        found = []
        for path in self._git_settings():
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read(1 << 20)
            except OSError:
                continue
            found += [
                match.group(0).strip()[:60]
                for match in re.finditer(_TRAPS, text, re.IGNORECASE | re.MULTILINE)
                if (match.group(2) or "x").strip() not in ("false", "")
            ]
        return found

    def _git_settings(self) -> list[str]:
        git = os.path.join(self.project, ".git")
        if os.path.isfile(git):  # a worktree or submodule: its settings lie elsewhere
            try:
                with open(git) as file:
                    git = os.path.join(self.project, file.read(4096).partition("gitdir:")[2].strip())
            except OSError:
                return []
        common = os.path.join(git, "commondir")
        folders = [git]
        if os.path.isfile(common):
            with open(common) as file:
                folders.append(os.path.normpath(os.path.join(git, file.read(4096).strip())))
        return [os.path.join(folder, name) for folder in folders for name in ("config", "config.worktree")]
