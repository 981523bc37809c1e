"""The environment of a command in a sandbox: few variables of the caller, and settings for git without programs or credentials."""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping

from backburner.core.deferred_modules import re
from backburner.core.sandbox import Sandbox
from backburner.system import toolchains
from backburner.system.git_repository import OddRepository, repository_of
from backburner.system.home import read_plain
from backburner.system.paths import is_below, real_path

MAX_FILE_BYTES = 1 << 30
MAX_PROCESSES = 8192  # of the user, with those outside of the sandbox

# Attributes that keep git from printing files with secret names: their content is not shown in any diff, of any commit.
SECRET_NAMES = os.path.join(os.path.dirname(__file__), "secret_names.gitattributes")
# The only variables of the caller that are passed on: any other may hold a secret.
_NAMES = (
    r"PATH|HOME|PWD|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|CLICOLOR|CI|NODE_ENV|DEBUG"
    r"|VIRTUAL_ENV|CONDA_PREFIX|CONDA_DEFAULT_ENV|PYENV_ROOT|PYENV_VERSION|NVM_DIR|NVM_BIN|VOLTA_HOME|JAVA_HOME|GOPATH|GOROOT|GOFLAGS|CARGO_HOME|RUSTUP_HOME"
    r"|RUSTUP_TOOLCHAIN|RUST_BACKTRACE|RUST_LOG|MAVEN_HOME|M2_HOME|GRADLE_HOME|SDKMAN_DIR|DOTNET_ROOT|ANDROID_HOME|ASDF_DIR|ASDF_DATA_DIR|MISE_DATA_DIR|RBENV_ROOT"
)
# What tools look for in the home directory, if it is another one in the sandbox.
_TOOL_FOLDERS = {
    "CARGO_HOME": ".cargo",
    "RUSTUP_HOME": ".rustup",
    "PYENV_ROOT": ".pyenv",
    "NVM_DIR": ".nvm",
    "GOPATH": "go",
    "RBENV_ROOT": ".rbenv",
    "VOLTA_HOME": ".volta",
}
_GIT = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat"}
# In a sandbox that permits more than the code of a project may have, git runs nothing but itself.
_GIT_ALONE = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # a partial clone would fetch missing objects with the program that its URL names
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_EDITOR": ":",  # messages stay as they are; git starts no program for this
}
_GIT_ALONE_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.sshCommand": "false",
    "log.showSignature": "false",
    **dict.fromkeys(("gpg.program", "gpg.openpgp.program", "gpg.x509.program", "gpg.ssh.program"), "false"),
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "tag.forceSignAnnotated": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "safe.bareRepository": "explicit",
}
# Settings of a user that are given to git in a sandbox. None of them names a program or a file.
_USER_SETTINGS = (
    r"user\.(name|email)|init\.defaultbranch|core\.(autocrlf|eol|safecrlf|quotepath|whitespace|abbrev)|safe\.directory|pull\.(rebase|ff)|push\.default"
    r"|diff\.(algorithm|renames|colormoved|mnemonicprefix|noprefix)|merge\.(ff|conflictstyle)|rebase\.(autosquash|autostash)|log\.(date|decorate)|color\.ui"
)
_MAX_SETTINGS_BYTES = 256 * 1024


def passed_variables(environ: Mapping[str, str], passed: tuple[str, ...] = ()) -> dict[str, str]:
    """The variables of the caller that a sandboxed command gets. `passed` are further names from the settings."""
    return dict(_passed(tuple(environ.items()), passed))


@functools.lru_cache(8)
def _passed(variables: tuple[tuple[str, str], ...], passed: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in variables if name in passed or re.fullmatch(_NAMES, name))


def sandbox_environment(
    environ: Mapping[str, str], sandbox: Sandbox, passed: tuple[str, ...] = (), *, user_home: str = "", attributes: str = ""
) -> dict[str, str]:
    """The environment of a sandboxed command.

    `user_home` is the user's home directory if HOME is another one, and `attributes` a file for git if it is not in HOME.
    """
    env = passed_variables(environ, passed)
    if user_home:
        tools = toolchains.readable(user_home, env.get("PATH", os.defpath))
        env |= {name: path for name, folder in _TOOL_FOLDERS.items() if name not in env and (path := f"{user_home}/{folder}") in tools}
    settings = {"core.attributesFile": attributes} if attributes else {}
    env |= _GIT
    if sandbox.only_known_programs:
        env |= _GIT_ALONE
        settings |= _GIT_ALONE_SETTINGS
    if sandbox.git:
        env |= _repository(sandbox.project)
    return env | (_pairs(list(settings.items())) if settings else {})


def search_path(path: str, changeable: Iterable[str]) -> str:
    """A search path without folders in which sandboxed commands may have written programs."""
    folders = [folder for folder in path.split(os.pathsep) if os.path.isabs(folder)]
    places = tuple(changeable)
    return os.pathsep.join(
        folder for folder in folders if not any(is_below(name, place) for name in (folder, real_path(folder)) for place in places)
    )


def environment_for_git(environ: Mapping[str, str], folder: str) -> dict[str, str]:
    """For git that Backburner itself runs to read a repository: it runs no program that the repository or the user's settings name."""
    settings = {**_GIT_ALONE_SETTINGS, "core.attributesFile": SECRET_NAMES}
    pairs = _pairs([*settings.items(), *(("safe.directory", name) for name in safe_directories(environ))])
    no_files = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    return {**passed_variables(environ), **_GIT, **_GIT_ALONE, **no_files, **_repository(folder), **pairs}


def _pairs(settings: list[tuple[str, str]]) -> dict[str, str]:
    """Variables that set git's settings, with precedence over every file."""
    pairs = {f"GIT_CONFIG_{part}_{at}": text for at, pair in enumerate(settings) for part, text in zip(("KEY", "VALUE"), pair, strict=True)}
    return {**pairs, "GIT_CONFIG_COUNT": str(len(settings))}


def _repository(project: str | None) -> dict[str, str]:
    """The repository that git must use: the one that was checked."""
    try:
        found = repository_of(project) if project else None
    except OddRepository:
        found = None
    return {"GIT_DIR": found.git, "GIT_WORK_TREE": found.top} if found else {"GIT_DIR": "/dev/null"}


def git_settings(environ: Mapping[str, str]) -> str:
    """The git settings of the user as a file, without programs and credentials."""
    return _as_file(tuple(_settings(environ)))


@functools.lru_cache(8)
def _as_file(settings: tuple[tuple[str, str], ...]) -> str:
    lines = []
    for name, value in settings:
        section, _, key = name.rpartition(".")
        if re.fullmatch(_USER_SETTINGS, name):
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'[{section}]\n\t{key} = "{escaped}"\n')
    return "".join(lines)


def safe_directories(environ: Mapping[str, str]) -> Iterator[str]:
    """The folders of other owners that the user's git settings allow."""
    return (value for name, value in _settings(environ) if name == "safe.directory")


def _settings(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The plain settings of the system and the user; sections with a name in quotes are left out."""
    home = environ.get("HOME", "")
    folder = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    for path in ("/etc/gitconfig", os.path.join(folder, "git/config"), os.path.join(home, ".gitconfig")):
        try:
            found = os.stat(path)
            yield from _settings_in(path, found.st_mtime_ns, found.st_size, found.st_ino)
        except OSError:
            continue


@functools.lru_cache(8)
def _settings_in(path: str, *_: int) -> tuple[tuple[str, str], ...]:
    """The plain settings in a file. The other arguments identify its version."""
    settings, section = [], ""
    for line in map(str.strip, read_plain(os.path.realpath(path), _MAX_SETTINGS_BYTES).decode("utf-8", "replace").splitlines()):
        if line.startswith("["):
            section = line.strip("[]").casefold()
        elif pair := re.fullmatch(r'([A-Za-z][A-Za-z0-9-]*)\s*=\s*"?([^"\\#;]*?)"?', line):
            settings.append((f"{section}.{pair.group(1).lower()}", pair.group(2)))
    return tuple(settings)
