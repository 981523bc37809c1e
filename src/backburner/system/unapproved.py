"""How a command runs that nobody approved: in a clean environment, with a fixed git repository and settings, and a limit on file sizes.

Between the decision about a command and the start of git, other commands may have created folders and files. So git does not search
for a repository: it gets the one that was checked. Only commands that the built-in rule for harmless commands allows run like this;
commands that a user approved, trusted or has a rule for do not.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from backburner.system.git_repository import OddRepository, repository_of
from backburner.system.home import is_below, read_plain

MAX_FILE_BYTES = 1 << 30

# Attributes that keep git from printing files with secret names: their content is not shown in any diff, of any commit.
SECRET_NAMES = os.path.join(os.path.dirname(__file__), "secret_names.gitattributes")
# The only variables that are passed on. Any other variable of a client, a shell or an agent could change what a program does.
_NAMES = (
    r"PATH|HOME|PWD|USER|LOGNAME|SHELL|TMPDIR|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR|BACKBURNER_HOME"
)
# Git settings that name a program; set like this, they override every file.
_GIT_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.sshCommand": "false",
    "core.attributesFile": SECRET_NAMES,
    "log.showSignature": "false",
    "safe.bareRepository": "explicit",
}
_GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch missing objects with the program that its URL names
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
}
_MAX_SETTINGS_BYTES = 256 * 1024


def clean_environment(environ: Mapping[str, str], folders: Iterable[str] = (), project: str | None = None) -> dict[str, str]:
    """The environment of such a command: the variables that are passed on, and variables for git.

    `folders` are the folders that it may run in, without links in their paths: git uses their repository, or none. Programs of `project`
    are removed from PATH.
    """
    kept = {name: value for name, value in environ.items() if re.fullmatch(_NAMES, name)}
    if project is not None and "PATH" in kept:
        # Also folders that do not exist yet: an earlier command of the same line could create them.
        outside = [folder for folder in kept["PATH"].split(os.pathsep) if not is_below(os.path.realpath(folder), project)]
        kept["PATH"] = os.pathsep.join(outside) or os.defpath
    settings = [*_GIT_SETTINGS.items(), *(("safe.directory", folder) for folder in safe_directories(environ))]
    pairs = {f"GIT_CONFIG_{part}_{at}": text for at, pair in enumerate(settings) for part, text in zip(("KEY", "VALUE"), pair, strict=True)}
    return {**kept, **_GIT, **_repository(folders), "GIT_CONFIG_COUNT": str(len(settings)), **pairs}


def _repository(folders: Iterable[str]) -> dict[str, str]:
    """The repository that git must use: the one that all these folders belong to; folders without a repository do not count."""
    found = None
    try:
        repositories = {repository for folder in folders if (repository := repository_of(folder))}
        found = repositories.pop() if len(repositories) == 1 else None
    except OddRepository:
        pass
    if found is None:
        return {"GIT_DIR": "/dev/null"}
    return {"GIT_DIR": found.git, "GIT_WORK_TREE": found.top}


def safe_directories(environ: Mapping[str, str]) -> Iterator[str]:
    """The folders of other owners that the user's git settings allow; those files are not read otherwise."""
    home = environ.get("HOME", "")
    folder = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    for path in ("/etc/gitconfig", os.path.join(folder, "git/config"), os.path.join(home, ".gitconfig")):
        try:
            text = read_plain(os.path.realpath(path), _MAX_SETTINGS_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        section = ""
        for line in map(str.strip, text.splitlines()):
            if line.startswith("["):
                section = line.casefold()
            elif section == "[safe]" and (found := re.fullmatch(r'(?i)directory\s*=\s*"?([^"\\#;]+?)"?', line)):
                yield found.group(1)
