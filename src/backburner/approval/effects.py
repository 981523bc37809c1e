"""The effects that a command can have, and a view of one command that resolves its words and paths.

This module decides whether a path is read, created, overwritten or outside the project. It is pure: everything about the machine comes
from a `CommandContext`.
"""

import functools
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple, Protocol

from backburner.approval.shell_parser import Redirect, SimpleCommand, Word
from backburner.approval.wrappers import Options, count_option_words

_MAX_WORD_CHARACTERS = 4096


class Effect(StrEnum):
    HARMLESS = "harmless"
    READS = "reads"
    CREATES = "creates"
    PROJECT_CODE = "project_code"
    NETWORK_READ = "network_read"
    READS_OUTSIDE = "reads_outside"
    READS_SECRETS = "reads_secrets"
    OVERWRITES = "overwrites"
    WRITES_OUTSIDE = "writes_outside"
    DELETES = "deletes"
    NETWORK_CHANGE = "network_change"
    PRIVILEGE = "privilege"
    INTERPRETER = "interpreter"
    INSTALLS = "installs"
    PUBLISHES = "publishes"
    PROCESSES = "processes"
    INJECTION = "injection"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """One effect of a command, with the text that is shown to the user."""

    effect: Effect
    detail: str


class CommandContext(Protocol):
    """The facts about the machine that the gate needs to check a command."""

    cwd: str
    ours: bool  # Backburner itself would start the command
    clean: bool  # it would run in a clean environment, with a fixed git repository and fixed git settings
    project: str | None

    @property
    def trustable(self) -> bool: ...  # whether the user could trust the project of `cwd`
    def inside(self, path: str) -> bool: ...  # whether a resolved path is in the project
    def shortened(self, path: str) -> str: ...  # relative to the project if the path is in it
    def resolve(self, path: str) -> str: ...  # the absolute path, with links resolved

    relative_path: bool  # PATH contains a relative directory

    def matches(self, folder: str, pattern: str) -> list[str]: ...  # the paths in `folder` that a shell pattern matches
    def exists(self, path: str) -> bool: ...
    def is_folder(self, path: str) -> bool: ...
    # What a search below `path` would read that may be a secret. Directories named in `skipped` are left out; with `ignored`, so are
    # hidden files and directories in .gitignore.
    def secrets_below(self, path: str, skipped: Iterable[str], *, ignored: bool) -> str | None: ...
    def has_variable(self, name: str) -> bool: ...  # whether the environment of the command has this variable
    def executable(self, name: str) -> str | None: ...  # the path of the program that a name runs
    def git_config_that_runs_code(self, folders: Iterable[str]) -> list[str]: ...  # settings and hooks that make git run a program
    def git_secrets(self, folders: Iterable[str], *, contents: bool) -> list[str]: ...  # secrets that git could print
    def git_unknown(self, folders: Iterable[str], names: Iterable[str]) -> str | None: ...  # the first name that is not a commit
    def hosts(self) -> Iterable[str]: ...  # hosts that curl may read from


_SECRET_PATH = (
    r"(^|/)([^/]*\.env(rc|[._-][^/]*)?|[^/]*\.tfvars|[^/]*\.(pem|key|p8|p12|pfx|ppk|jks|keystore|keytab|kdbx|gpg|asc|ovpn)"
    r"|id_(rsa|dsa|ecdsa|ed25519)[^/]*|\.netrc|\.npmrc|\.pypirc|\.git-credentials|\.pgpass|\.htpasswd|\.my\.cnf|\.s3cfg|\.boto|\.dockercfg|\.authinfo"
    r"|\.vault_pass[^/]*|[^/]*(credential|secret|passw|token|api[_-]?key|service[_-]?account)[^/]*|[^/]*[_-]key\.json|shadow|gshadow|sudoers[^/]*"
    r"|[^/]*_history|environ|ledger\.db[^/]*|[^/]*\.tfstate(\.[^/]*)?|kubeconfig[^/]*|auth\.json|oauth_creds\.json|local\.settings\.json)$"
    r"|(^|/)\.git/(.*/)?config(\.worktree)?$"
    r"|(^|/)([^/]*(secret|credential)[^/]*|\.ssh|\.aws|\.gnupg|\.kube|\.docker|\.azure|gcloud|\.password-store|\.backburner)(/|$)"
)
# Files that other programs run, or that agents read, as soon as they exist. The same is true of every name that begins with a dot.
_AUTOMATICALLY_USED = frozenset(
    ["conftest.py", "sitecustomize.py", "usercustomize.py", "setup.py", "pyproject.toml", "tox.ini", "noxfile.py", "pytest.ini", "setup.cfg"]
    + ["makefile", "gnumakefile", "justfile", "rakefile", "package.json", "opencode.json", "opencode.jsonc", "build.rs"]
    + ["dockerfile", "containerfile", "vagrantfile", "procfile", "tiltfile", "earthfile", "jenkinsfile", "mise.toml", "devbox.json", "devenv.nix"]
    + [f"{name}.{ending}" for name in ("docker-compose", "compose", "docker-compose.override", "compose.override") for ending in ("yml", "yaml")]
    + [f"{name}.{ending}" for name in ("lefthook", "lefthook-local", "taskfile", "taskfile.dist") for ending in ("yml", "yaml", "toml", "json")]
    + [f"{name}.{ending}" for name in ("azure-pipelines", "bitbucket-pipelines", "appveyor", "cloudbuild", "buildspec") for ending in ("yml", "yaml")]
)  # fmt: skip
_HARMLESS_DOT_NAMES = frozenset([".", "..", ".gitkeep", ".keep"])
_BACKUP_SUFFIX = r"(~|\.(bak|backup|old|orig|save|swp))+$"  # suffixes of backup copies
_SECRET_VARIABLE = r"(?i)key|token|secret|passw|cred|auth|cookie|session"
_STANDARD_STREAMS = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "-")
# Variables that change only the output. Every other variable may change what runs.
_HARMLESS_VARIABLES = (
    r"(LANG|LANGUAGE|LC_[A-Z]+|TZ|NO_COLOR|FORCE_COLOR|CLICOLOR|TERM|COLUMNS|LINES|CI|DEBUG|VERBOSE|LOG_LEVEL|RUST_LOG|RUST_BACKTRACE)"
)


# These patterns are compiled on first use, because most harmless commands do not need them.
def looks_secret(path: str) -> bool:
    """Whether the name of a file or directory suggests that it contains secrets."""
    return re.search(_SECRET_PATH, re.sub(_BACKUP_SUFFIX, "", path), re.IGNORECASE) is not None


@functools.lru_cache(4096)
def injects(name: str) -> bool:
    """Whether setting this variable may change which program runs, or what it does."""
    return re.fullmatch(_HARMLESS_VARIABLES, name) is None


def relied_on(path: str) -> bool:
    """Whether other programs or agents use a file of this name automatically. `path` is relative to the project."""
    parts = unicodedata.normalize("NFKC", os.path.normpath(path)).casefold().split(os.sep)
    if os.path.basename(path) in ("AGENTS.md", "CLAUDE.md", "GEMINI.md") or parts[-1] in _AUTOMATICALLY_USED or parts[-1].endswith(".pth"):
        return True
    return any(part.startswith(".") and part not in _HARMLESS_DOT_NAMES for part in parts)


def can_match_parent(pattern: str) -> bool:
    """Whether a shell pattern can match `.` or `..`. In some shells, every path component that begins with a dot can."""
    return any(part.lstrip("\\")[:1] in (".", "[") and set(part) & set("*?[") for part in pattern.split("/"))


class CommandView:
    """One simple command with its context: its arguments, and where its paths lead.

    `folders` are all directories that the command may start in.
    """

    def __init__(self, part: SimpleCommand, context: CommandContext, folders: list[str]) -> None:
        self.part, self.context, self.folders = part, context, folders
        self.name = os.path.basename(part.words[0].text) if part.words else ""
        self.words = part.words[1:]

    def split_options(self, known: Options) -> tuple[list[Word], list[Word], str | None]:
        """Return the operands, the values of options, and the first unknown option. Options can come before and between operands."""
        operands: list[Word] = []
        values: list[Word] = []
        index = 0
        while index < len(self.words):
            word = self.words[index]
            if word.known and word.text == "--":
                return [*operands, *self.words[index + 1 :]], values, None
            if not word.text.startswith("-") or word.text == "-":
                operands.append(word)
                index += 1
                continue
            count = count_option_words(word.text, known) if word.plain else 0
            option_values = self.words[index + 1 : index + count]
            if (
                count == 0
                or len(option_values) != count - 1
                or any(not value.plain or value.text.startswith("-") for value in option_values)
            ):
                return operands, values, word.text
            values += [*option_values, *([Word(word.text.partition("=")[2])] if "=" in word.text else [])]
            index += count
        return operands, values, None

    def paths(self, word: Word) -> list[str]:
        """Return the resolved paths that a word can mean, from every directory the command may start in, including current pattern matches."""
        text = os.path.expanduser(word.text) if word.text.startswith("~") else word.text
        names = [os.path.join(folder, text) for folder in self.folders]
        if word.pattern:
            names += [name for folder in self.folders for name in self.context.matches(folder, text)]
        return [self.context.resolve(name) for name in names]

    def can_match_option(self, word: Word) -> bool:
        """Whether a pattern matches a file whose name begins with `-`."""
        return any(
            os.path.relpath(name, folder).startswith("-") for folder in self.folders for name in self.context.matches(folder, word.text)
        )

    def reads(self, words: Iterable[Word]) -> Iterator[Finding]:
        """Return the effects of reading these paths."""
        for word in words:
            if (
                not word.known
                or (word.pattern and ("{" in word.text or can_match_parent(word.text)))
                or len(word.text) > _MAX_WORD_CHARACTERS
            ):
                yield Finding(Effect.UNKNOWN, f"reads {word.text[:80]}, which is only known when it runs")
            elif word.text in _STANDARD_STREAMS:
                continue
            elif word.text.startswith(("/proc", "/dev", "@")):
                yield Finding(Effect.READS_OUTSIDE, f"reads {word.text}, outside the project")
            else:
                yield from self._reads_paths(word)

    def _reads_paths(self, word: Word) -> Iterator[Finding]:
        for path in self.paths(word):
            if looks_secret(self.context.shortened(path)) or looks_secret(word.text):
                yield Finding(Effect.READS_SECRETS, f"may read a secret ({word.text})")
            elif not self.context.inside(path):
                yield Finding(Effect.READS_OUTSIDE, f"reads {word.text}, outside the project")
            else:
                yield Finding(Effect.READS, "reads inside the project")

    def writes(self, word: Word, *, append: bool = False) -> Iterator[Finding]:
        """Return the effects of writing to a path. Creating a file and overwriting one are different effects."""
        if not word.plain or len(word.text) > _MAX_WORD_CHARACTERS:
            yield Finding(Effect.UNKNOWN, f"writes to {word.text[:80]}, which is only known when it runs")
            return
        for path in self.paths(word):
            if path in _STANDARD_STREAMS:
                yield Finding(Effect.HARMLESS, "stores nothing")
            elif not self.context.inside(path):
                yield Finding(Effect.WRITES_OUTSIDE, f"writes {word.text}, outside the project")
            elif relied_on(name := self.context.shortened(path)) or looks_secret(name):
                yield Finding(Effect.OVERWRITES, f"writes {word.text}, which other programs use automatically")
            elif self.context.exists(path):
                yield Finding(Effect.OVERWRITES, f"{'appends to' if append else 'overwrites'} {word.text}")
            else:
                yield Finding(Effect.CREATES, f"creates {word.text}")

    def redirect(self, redirect: Redirect) -> Iterator[Finding]:
        operator, target = redirect
        if not target.plain:
            yield Finding(Effect.UNKNOWN, f"redirects to {target.text}, which is only known when it runs")
        elif operator in (">&", "<&") and (target.text.isdigit() or target.text == "-"):
            return
        elif operator == "<":
            yield from self.reads([target])
        else:
            yield from self.writes(target, append=operator in (">>", "&>>"))

    def printed_secrets(self) -> Iterator[Finding]:
        """Return a finding for each printed variable whose name looks like a secret."""
        for word in self.words:
            if not word.known and re.search(_SECRET_VARIABLE, word.text):
                yield Finding(Effect.READS_SECRETS, f"prints {word.text}, which looks like a secret")
